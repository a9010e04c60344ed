"""Count one round of a contender, cut its measured time out, and put rounds beside each other.

Pure functions. A job is right when exactly one ack of it was accepted and nothing of it is left;
what happened twice and what is gone is told beside the figure, because a queue that loses or
repeats jobs is fast for free. Errors are counted too: the caller of a queue has to do something
about each of them.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from killproof_bench.measure import Samples
from killproof_bench.peers.processes import Outcome
from killproof_bench.peers.result import Comparison, Goal, Level, PeerCell
from killproof_bench.result import Correctness, Figure

#: Rates and intervals rest on blocks of a second, as in `bench claim`.
BLOCK_SECONDS = 1.0
NS_PER_MS = 1e6
#: Whose wrong run is void; what another queue does wrong is told beside its figure.
OWN = ("killproof", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How a round went, by counting."""

    acked_twice: int
    lost: int
    correctness: Correctness


def judge(outcome: Outcome, jobs: int, left: Mapping[str, int], *, ours: bool) -> Counted:
    """Compare the acks that workers got with what is left in the file.

    Args:
        outcome: Of the workers.
        jobs: In the file at the beginning.
        left: `waiting` and `claimed` jobs in the file at the end.
        ours: Killproof and the reference are to raise nothing and to leave nothing claimed; of
            another queue that is told, and no fault of the round's.
    """
    acks = Counter(
        number for calls in outcome.calls for number in calls[:, 2].tolist() if number >= 0
    )
    twice = sum(1 for count in acks.values() if count > 1)
    # What was claimed and is no more was freed by somebody else's ack: it is in `acks`.
    lost = jobs - len(acks) - left["waiting"] - left["claimed"]
    because = []
    if twice:
        because.append(f"{twice} jobs were acked more than once")
    if lost > 0:
        because.append(f"{lost} jobs are gone without an ack")
    if lost < 0:
        because.append(f"{-lost} jobs were acked and are still there")
    if ours and (outcome.errors or outcome.refused or left["claimed"]):
        because.append(
            f"{outcome.errors} errors, {outcome.refused} refused acks and {left['claimed']} jobs "
            f"left claimed; none was due ({outcome.error_example})"
        )
    verdict = Correctness(
        verdict="violated" if because else "pass", because=tuple(because), jobs=len(acks)
    )
    if not because and not left["waiting"]:
        reason = f"the {jobs} jobs ran out: measure for a shorter time"
        verdict = Correctness(verdict="unknown", because=(reason,), jobs=len(acks))
    return Counted(acked_twice=twice, lost=max(0, lost), correctness=verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The measured time of one round."""

    latencies: Samples  #: ns: the time that one worker spent on one job.
    blocks: Samples  #: For each latency, the block in which it ended.
    per_block: Samples  #: Jobs that ended in each block.
    counts: tuple[int, ...]  #: Jobs that ended, by worker.
    block_seconds: float


def cut(calls: Sequence[Samples], from_ns: int, seconds: float) -> Cut:
    """Cut the measured time out of what the workers recorded.

    A job that ended in it counts for the rate. Its time also counts if the worker was still on it
    at the end: to leave it out would hide exactly the worker that waited longest. A job that never
    ended counts with its time and for no rate.
    """
    blocks = max(1, round(seconds / BLOCK_SECONDS))
    block_ns = round(seconds * 1e9) // blocks
    until_ns = from_ns + blocks * block_ns
    latencies, places, counts = [], [], []
    per_block = np.zeros(blocks, dtype=np.int64)
    for call in calls:
        begin, end, number = call[:, 0], call[:, 1], call[:, 2]
        ended = (end >= from_ns) & (end < until_ns) & (number >= 0)
        per_block += np.bincount((end[ended] - from_ns) // block_ns, minlength=blocks)
        counts.append(int(np.count_nonzero(ended)))
        seen = (end >= from_ns) & (begin < until_ns)
        latencies.append(end[seen] - begin[seen])
        places.append(np.minimum((end[seen] - from_ns) // block_ns, blocks - 1))
    return Cut(
        latencies=np.concatenate(latencies),
        blocks=np.concatenate(places),
        per_block=per_block,
        counts=tuple(counts),
        block_seconds=block_ns / 1e9,
    )


def level_of(facts: Mapping[str, str]) -> Level:
    """Return what an acknowledgement survives, from what was read back.

    Args:
        facts: journal_mode and synchronous of the connection that commits; of killproof, whose
            sync is not SQLite's, also the `level` that it found in its file.

    In WAL mode NORMAL does not sync a commit, and in the other modes it does not sync the folder
    (https://sqlite.org/pragma.html#pragma_synchronous); OFF keeps a commit only from a kill.
    """
    if "level" in facts:
        return "power" if facts["level"] == "power" else "process"
    if facts["synchronous"] in ("FULL", "EXTRA"):
        return "power"
    if facts["journal_mode"] in ("memory", "off"):
        return "less"
    return "process"


def compare(cells: Sequence[PeerCell]) -> tuple[Comparison, ...]:
    """Put killproof beside each contender at the same number of workers and the same level.

    A wrong run of killproof or of the reference has no figure, and so nothing stands beside it.
    """
    valid = [c for c in cells if c.contender not in OWN or c.correctness.verdict != "violated"]
    ours = {(c.workers, c.level): c for c in valid if c.contender == "killproof"}
    found = []
    for cell in valid:
        beside = ours.get((cell.workers, cell.level))
        if beside is None or cell is beside:
            continue
        theirs = {each.number: each.jobs_per_s for each in cell.rounds}
        ratios = [
            each.jobs_per_s / theirs[each.number]
            for each in beside.rounds
            if theirs.get(each.number)
        ]
        tail = cell.p999_ms.value
        bound = tail is None
        # A p99 is at most the p99.9 that was refused, so the true ratio is smaller still.
        tail = cell.p99_ms.value if tail is None else tail
        our_tail = beside.p999_ms.value
        found.append(
            Comparison(
                contender=cell.contender,
                workers=cell.workers,
                level=cell.level,
                throughput=Figure(
                    value=statistics.median(ratios) if ratios else None,
                    low=min(ratios, default=None),
                    high=max(ratios, default=None),
                    n=len(ratios),
                ),
                p999=our_tail / tail if our_tail is not None and tail else None,
                p999_is_bound=bound,
                longest=beside.longest_ms / cell.longest_ms if cell.longest_ms else 0.0,
            )
        )
    return tuple(found)


#: What is aimed at with this many workers at power.
GOAL_WORKERS = 16
TIMES = {"tinyjobs": 5.0, "localqueue": 5.0, "reference": 1.3}
TAIL_SHARE = 1 / 10
LONGEST_SHARE = 1 / 20


def goals(comparisons: Sequence[Comparison], contenders: Sequence[str]) -> tuple[Goal, ...]:
    """Judge the figures aimed at; of a contender that took part and has none they are `None`."""
    beside = {
        each.contender: each
        for each in comparisons
        if each.workers == GOAL_WORKERS and each.level == "power"
    }
    found = []
    for name, times in TIMES.items():
        if name not in contenders:
            continue
        each = beside.get(name)
        rate = None if each is None else each.throughput.value
        tail = None if each is None else each.p999
        longest = None if each is None else each.longest
        at = f"{GOAL_WORKERS} workers at power, beside {name}"
        found += [
            Goal(
                text=f"{at}: at least {times:g} times the jobs/s",
                measured=rate,
                met=None if rate is None else rate >= times,
            ),
            Goal(
                text=f"{at}: p99.9 at most 1/{1 / TAIL_SHARE:.0f}",
                measured=tail,
                # A bound that is too large says nothing: the true ratio is smaller.
                met=_below(tail, TAIL_SHARE, bound=each is not None and each.p999_is_bound),
            ),
            Goal(
                text=f"{at}: longest wait at most 1/{1 / LONGEST_SHARE:.0f}",
                measured=longest,
                met=None if longest is None else longest <= LONGEST_SHARE,
            ),
        ]
    return tuple(found)


def _below(value: float | None, limit: float, *, bound: bool) -> bool | None:
    if value is None or (bound and value > limit):
        return None
    return value <= limit
