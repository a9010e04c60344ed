"""P20, P21: what the processes use up, and how they stop."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from killproof_evidence.evidence import Evidence, Fault, Sample, Story, at, at_end, where
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation

#: A WAL of this size means that checkpoints no longer keep up, bytes: 16,384 pages of 4 KiB,
#: sixteen times SQLite's own automatic checkpoint.
WAL_BYTES_DEFAULT = 64 * 1024 * 1024
#: Claim calls that found nothing, per second and process.
POLLS_PER_SECOND_DEFAULT = 200
#: A process must be watched this long before its rate means anything, ns.
WATCH_NS_MIN = 2_000_000_000
#: Samples of one process before its growth means anything.
SAMPLES_MIN = 12
#: Open files or threads by which a process may grow between the first third of its life and
#: the last: caches warm up, a leak goes on.
GROWTH_MAX = 8
#: Open files that a further thread may bring: a connection of its own, and the locks beside it.
#: Too many threads are judged as threads.
FILES_PER_THREAD: Final = 8
#: Claims for each job that was claimed at all; attempts are bounded by P8, this is the average.
CLAIMS_PER_JOB_DEFAULT = 6
#: What the end of an interpreter may take on top of the grace time, ms.
EXIT_MS = 1_000


def no_storm(evidence: Evidence) -> Finding:
    """P20: claims per job, empty polls, WAL size, open files and threads stay bounded."""
    tally = Tally()
    parameters = evidence.contract.parameters
    if not evidence.samples:
        tally.missing("no samples of WAL size, open files and threads")
    wal_bytes = parameters.get("wal_bytes", WAL_BYTES_DEFAULT)
    for sample in evidence.samples:
        tally.checked += 1
        size = sample.values.get("wal_bytes")
        if size is not None and size > wal_bytes:
            tally.violate(None, f"the WAL had {size} bytes, and {wal_bytes} are allowed", sample.at)
    for name in ("open_files", "threads"):
        tally.figures[f"{name}_max"] = _check_growth(tally, evidence.samples, name, parameters)
    sizes = (sample.values.get("wal_bytes") or 0 for sample in evidence.samples)
    tally.figures["wal_bytes_max"] = max(sizes, default=0)
    _check_claims(evidence, tally)
    _check_polls(evidence, tally)
    return tally.finding("")


def _check_growth(
    tally: Tally, samples: Iterable[Sample], name: str, parameters: Any
) -> int | None:
    by_pid: dict[int | None, list[tuple[int, Sample]]] = {}
    for sample in samples:
        if sample.values.get(name) is not None:
            by_pid.setdefault(sample.pid, []).append((sample.values[name], sample))
    bound = parameters.get(name)
    for pid, found in by_pid.items():
        highest, worst = max(found, key=lambda pair: pair[0])
        if bound is not None and highest > bound:
            tally.violate(
                None, f"process {pid} had {highest} {name}, and {bound} are allowed", worst.at
            )
        third = len(found) // 3
        # Who declares a bound may grow up to it: a pool of threads fills with its first jobs, and
        # where a process begins slowly that is after a third of what was seen of its life.
        if bound is not None or len(found) < SAMPLES_MIN:
            continue
        first = max(found[:third], key=lambda pair: pair[0])
        last = min(found[-third:], key=lambda pair: pair[0])
        further = _further_threads(found) if name == "open_files" else 0
        if last[0] > first[0] + GROWTH_MAX + FILES_PER_THREAD * further:
            tally.violate(
                None,
                f"process {pid} went from at most {first[0]} {name} to never less than {last[0]}",
                first[1].at,
                last[1].at,
            )
    return max((value for found in by_pid.values() for value, _ in found), default=None)


def _further_threads(found: Sequence[tuple[int, Sample]]) -> int:
    """Return how many more threads there were in the last third of a life than in the first."""
    threads = [sample.values.get("threads") or 0 for _, sample in found]
    third = len(threads) // 3
    return max(0, max(threads[-third:]) - min(threads[:third]))


def _check_claims(evidence: Evidence, tally: Tally) -> None:
    claims = [max(len(s.claims), sum(c.takes for c in s.changes)) for s in evidence.stories]
    claimed = [count for count in claims if count]
    bound = evidence.contract.parameters.get("claims_per_job", CLAIMS_PER_JOB_DEFAULT)
    if not claimed:
        return
    average = sum(claimed) / len(claimed)
    tally.figures["claims_per_job"] = round(average, 2)
    if average > bound:
        worst = max(evidence.stories, key=lambda s: len(s.claims) + len(s.changes))
        tally.violate(
            worst.label,
            f"a job was claimed {average:.1f} times on average, and {bound} are allowed",
            *(at(op) for op in worst.claims[:15]),
        )


def _check_polls(evidence: Evidence, tally: Tally) -> None:
    empty: dict[int, list[Operation]] = {}
    first: dict[int, int] = {}
    for op in evidence.history.operations:
        first.setdefault(op.pid, op.t)
        if op.f == "claim" and op.type == "ok" and op.job is None:
            empty.setdefault(op.pid, []).append(op)
    bound = evidence.contract.parameters.get("polls_per_second", POLLS_PER_SECOND_DEFAULT)
    highest = 0.0
    for pid, polls in empty.items():
        span = evidence.last_seen[pid] - first[pid]
        if span < WATCH_NS_MIN:
            continue
        rate = len(polls) / (span / 1e9)
        highest = max(highest, rate)
        if rate > bound:
            tally.violate(
                None,
                f"{polls[0].process} polled the empty queue {rate:.0f} times a second, and "
                f"{bound} are allowed",
                *(at(op) for op in polls[:5]),
            )
    tally.figures["empty_polls_per_second_max"] = round(highest, 1)


def graceful_stop(evidence: Evidence) -> Finding:
    """P21: SIGTERM exits in time and loses no attempt."""
    tally = Tally()
    grace_ms = evidence.contract.parameters.get("grace_ms")
    if grace_ms is None:
        tally.missing("the contract declares no grace_ms")
        return tally.finding("")
    stopped: dict[int, Fault] = {}
    for fault in evidence.faults:
        if fault.fault == "term" and fault.pid is not None:
            stopped.setdefault(fault.pid, fault)
    keeps_history = any(op.f == "claim" for op in evidence.history.operations)
    held: dict[int, list[tuple[Story, Operation]]] = {}
    for story in evidence.stories:
        for claim in story.claims:
            if claim.pid in stopped and claim.type == "ok":
                held.setdefault(claim.pid, []).append((story, claim))
    for pid, fault in stopped.items():
        told = pid in evidence.history.last or pid in evidence.history.ends
        if not told and fault.t_end is None and not keeps_history:
            tally.missing(f"no worker keeps a history, so nobody knows when process {pid} ended")
            continue
        if not _check_exit(evidence, tally, fault, grace_ms):
            continue
        for story, claim in held.get(pid, ()):
            _check_given_back(evidence, tally, story, claim, fault)
    return tally.finding("no process was told to stop")


def _check_exit(evidence: Evidence, tally: Tally, fault: Fault, grace_ms: int) -> bool:
    """Check that a process ended in time; return whether it ended in order."""
    assert fault.pid is not None
    file, line, ended = evidence.history.ends.get(fault.pid, (None, 0, fault.t_end))
    exit_line = (file, line) if file is not None else None
    allowed = fault.t + (grace_ms + EXIT_MS) * 1_000_000
    limit = evidence.t_last if ended is None else ended
    allowed += evidence.stalled_ns(fault.t, limit)
    allowed += sum(
        max(0, min(end, limit) - max(start, fault.t))
        for start, end in evidence.pauses.get(fault.pid, ())
    )
    killed = evidence.killed.get(fault.pid)
    if ended is None:
        if fault.pid in evidence.self_ended or (killed is not None and killed.t <= allowed):
            return False
        tally.checked += 1
        tally.violate(
            None,
            f"process {fault.pid} was told to stop and did not end in order",
            fault.at,
            evidence.history.last.get(fault.pid),
            where(killed),
        )
        return False
    tally.checked += 1
    if ended > allowed:
        tally.violate(
            None,
            f"process {fault.pid} ended {(ended - fault.t) / 1e6:.0f} ms after SIGTERM, and "
            f"{grace_ms} ms are declared",
            fault.at,
            exit_line,
        )
    return exit_line is not None


def _check_given_back(
    evidence: Evidence, tally: Tally, story: Story, claim: Operation, fault: Fault
) -> None:
    """A lease that a stopping process held was ended by it, and a release was forgiven."""
    outcomes = [op for op in story.outcomes if op.fence == claim.fence and op.pid == claim.pid]
    # A refused extension told the worker that the lease was gone: nothing was left to give back.
    ended = [op for op in outcomes if op.f != "extend" or op.type == "fail"]
    if not ended and not story.tried("cancel") and not _was_taken(evidence, story, claim):
        tally.violate(
            story.label,
            f"{claim.process} stopped on SIGTERM and left job {story.label} leased",
            at(claim),
            at_end(claim),
            fault.at,
            evidence.history.ends[claim.pid][:2],
        )
    released = next((op for op in outcomes if op.f == "release" and op.type == "ok"), None)
    if released is None:
        return
    for change in story.changes:
        before = change.before
        if before is not None and change.ends and before.fence == claim.fence:
            known = change.forgiven is not None and before.forgiven is not None
            if known and (change.forgiven or 0) <= (before.forgiven or 0):
                tally.violate(
                    story.label,
                    f"the release of job {story.label} on SIGTERM cost it an attempt",
                    at(released),
                    at_end(released),
                    before.at,
                    change.at,
                )


def _was_taken(evidence: Evidence, story: Story, claim: Operation) -> bool:
    """Say whether the lease had ended in the file before its process did.

    A worker that noticed by its own clock gives nothing back, and says nothing to the queue.
    """
    _, _, exited = evidence.history.ends[claim.pid]
    for change in story.changes:
        if change.ends and change.fence_before == claim.fence:
            moment = evidence.moment(change.t_ms)
            return moment is not None and moment <= exited
    return False
