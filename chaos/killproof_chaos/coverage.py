"""The obligation manifest: what a run must have hit before its silence means anything.

Declared before the run, from the chosen nemeses and from what the target can show; compared
afterwards with what the records say. A cell is `nemesis@phase`; a *sometimes* is a sentence about
something rare that must have happened at least once. A missed one makes the verdict `unknown`:
a campaign that never stopped a worker inside an ack has not shown that this is harmless.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from killproof_chaos import mix
from killproof_chaos.engines.roles import REPEATS
from killproof_chaos.phases import PHASES
from killproof_chaos.plan import IO_ERRORS, IO_FILES, LOCK_MS, Options
from killproof_evidence.store import Store
from killproof_evidence.target import Target, keeps_history
from killproof_evidence.wall_clock import Step, WallClock

KILLS: Final = frozenset({"kill", "producer-kill"})
REFUSABLE: Final = frozenset({"ack", "nack", "extend", "release", "snooze"})
#: Operations that end a lease, unless they are refused.
ENDS: Final = REFUSABLE - {"extend"}
Lease = tuple[str, int | None]  #: a job and its fencing token

REDELIVERED: Final = "a job whose worker was killed was delivered again"
SPARED: Final = "a worker with a job was killed while a peer was idle"
RECOVERED: Final = "the file was recovered from a log that was not empty"
EXPIRED: Final = "a lease ran out under a stopped worker"
REFUSED: Final = "a stale outcome was refused"
STOPPED: Final = "a worker was asked to stop and ended in order"
RELEASED: Final = "a stopping worker gave back the job in its hand"
DEAD: Final = "a job was dead-lettered"
CRASHED: Final = "a handler took its worker with it"
OVERTIME: Final = "a handler hung"
UNJSONABLE: Final = "a handler returned what JSON cannot hold"
WAITED: Final = "an operation waited for a foreign program's write lock"
OUTLASTED: Final = "a foreign program held the write lock for longer than a lease"
REPEATED: Final = "the HTTP sink was asked again for a key that it had applied"
STEPPED: Final = "the wall clock was set back by an hour and forward again"
BACK_LEASED: Final = "the wall clock was set back while a lease was held"
FORWARD_LEASED: Final = "the wall clock was set forward while a lease was held"
BACK_SCHEDULED: Final = "the wall clock was set back while a job was scheduled"
FORWARD_SCHEDULED: Final = "the wall clock was set forward while a job was scheduled"
DOUBTED: Final = "a caller was told that nobody knows whether its commit happened"
REPAIRED: Final = "everybody was killed after the failures, and the file was recovered"

BACKED_UP: Final = "a backup was made while jobs were being claimed"
LIMITED: Final = "a limit was reached while further jobs of it waited"
SLOTS_KILLED: Final = "a dispatcher was killed while several of its slots had jobs"
SLOTS_PAUSED: Final = "a dispatcher was stopped while several of its slots had jobs"
SLOT_KILLED: Final = "a worker was killed with the job of a schedule in hand"
STEP_KILLED: Final = "a worker was killed in a step of a workflow, and the step was taken up again"
RUN_FAILED: Final = "a run failed with one of its steps, and another succeeded"
REMEMBERED: Final = "a handler was given a result that an attempt before it had recorded"
SPILLED: Final = "a worker was killed with a payload from a file, and another was given it again"
COLLECTED: Final = "a collection of the files of payloads came to its end"
LIMITED_KILL: Final = "a worker was killed while its job was the last that a limit let run"

#: Where nobody gets without a nemesis: no handler fails by itself, no worker stops by itself.
REACHED_BY: Final = (("nack.", "handler"), ("release.", "term"), ("worker.stop", "term"))

#: What every run owes: without it the evidence is not all there.
ENDED: Final = "the run came to its end"
RESTED: Final = "the queue came to rest after the faults"
EXPLAINED: Final = "the end of every process is explained"

#: What a run owes for each capability of the target, and the nemeses that it takes.
MIXED: Final = (
    (BACKED_UP, "backup", ()),
    (SLOTS_KILLED, "dispatcher", ("kill",)),
    (SLOTS_PAUSED, "dispatcher", ("pause",)),
    (LIMITED, "limits", ()),
    (SLOT_KILLED, "schedule", ("kill",)),
    (SPILLED, "spill", ("kill",)),
    (COLLECTED, "spill", ()),
    (STEP_KILLED, "workflow", ("kill",)),
    (RUN_FAILED, "workflow", ("handler",)),
    (REMEMBERED, "workflow", ("handler",)),
    (LIMITED_KILL, "limits", ("kill",)),
)

#: Each sometimes, and the nemeses that must all have been chosen for it to be obliged.
SOMETIMES: Final = (
    (REDELIVERED, ("kill",)),
    (SPARED, ("kill",)),
    (RECOVERED, ("kill",)),
    (EXPIRED, ("pause",)),
    (REFUSED, ("pause",)),
    (STOPPED, ("term",)),
    (RELEASED, ("term",)),
    (DEAD, ("handler",)),
    (CRASHED, ("handler",)),
    (OVERTIME, ("handler",)),
    (UNJSONABLE, ("handler",)),
    (WAITED, ("lock",)),
    (OUTLASTED, ("lock",)),
    (REPEATED, ("kill", "pause", "handler")),
    (STEPPED, ("clock",)),
    (BACK_LEASED, ("clock",)),
    (FORWARD_LEASED, ("clock",)),
    (BACK_SCHEDULED, ("clock",)),
    (FORWARD_SCHEDULED, ("clock",)),
    (DOUBTED, ("io",)),
    (REPAIRED, ("io",)),
)
AT_STEPS: Final = (BACK_LEASED, FORWARD_LEASED, BACK_SCHEDULED, FORWARD_SCHEDULED)
#: States in which a job waits for a moment of the wall clock.
SCHEDULED: Final = frozenset({"scheduled", "retryable"})
LEASED: Final = frozenset({"leased"})


def phases_of(target: Target) -> tuple[str, ...]:
    """Return the phases that the target announces, in the order of the manifest."""
    points: frozenset[str] = getattr(target, "sync_points", frozenset())
    return tuple(phase for phase in PHASES if phase in points)


def aims(target: Target, options: Options) -> tuple[str, ...]:
    """Return the phases that can be reached, and so are aimed at, with the chosen nemeses."""
    return tuple(
        phase
        for phase in phases_of(target)
        if all(
            nemesis in options.nemeses for start, nemesis in REACHED_BY if phase.startswith(start)
        )
    )


def obliged(target: Target, options: Options) -> list[str]:
    """Return what the run must hit; a pure function of what is known before it."""
    cells = [
        f"{nemesis}@{phase}"
        for nemesis in ("kill", "pause")
        if nemesis in options.nemeses
        for phase in aims(target, options)
    ]
    sometimes = [
        sentence
        for sentence, nemeses in SOMETIMES
        if set(nemeses) <= set(options.nemeses) and _can_show(target, sentence)
    ]
    counts = [
        f"{count} {name}s that hit"
        for name, count in (("kill", options.kills), ("pause", options.pauses))
        if name in options.nemeses
    ]
    failures = [
        failure(call, error)
        for call in IO_FILES
        for error in IO_ERRORS
        # A queue of which nothing is known may keep a rollback journal, and never cut its file.
        if "io" in options.nemeses and (call != "truncate" or hasattr(target, "database"))
    ]
    asked = mix.of(target, options)
    mixed = [
        sentence
        for sentence, capability, nemeses in MIXED
        if capability in asked and set(nemeses) <= set(options.nemeses)
    ]
    return [ENDED, RESTED, EXPLAINED, *counts, *cells, *sometimes, *mixed, *failures]


def failure(call: str, error: str) -> str:
    """Return the obligation that a call of this kind failed with this error."""
    return f"{'an' if call == 'open' else 'a'} {call} failed with {error}"


def _can_show(target: Target, sentence: str) -> bool:
    """Say whether the target has what the sentence is about, and evidence for it."""
    points: frozenset[str] = getattr(target, "sync_points", frozenset())
    has_history = keeps_history(target)
    if sentence == RELEASED:
        return any(point.startswith("release.") for point in points)
    if sentence in {REFUSED, WAITED, SPARED, STOPPED, DOUBTED}:
        return has_history
    if sentence == EXPIRED:
        return has_history and target.audit is not None
    if sentence == REDELIVERED:
        # One that takes a job out for good at its claim never delivers it again. Whose token, or
        # whose handler's process, was the killed worker's must be told.
        is_told = target.audit is not None and (target.audit.fence is not None or bool(points))
        return is_told and _redelivers(target)
    if sentence == CRASHED:
        return bool(points)  # Elsewhere a handler may be a process of its own.
    if sentence == REPEATED:
        return _redelivers(target)
    if sentence == DEAD:
        words = () if target.audit is None else tuple(target.audit.states.values()) or ("dead",)
        return "dead" in words
    if sentence in AT_STEPS:
        return target.audit is not None
    if sentence == OUTLASTED:
        is_short = target.contract.parameters.get("lease_ms", 0) < min(LOCK_MS)
        return is_short and hasattr(target, "database")
    if sentence == RECOVERED:
        return hasattr(target, "database")  # It says which file is the database.
    return True


def _redelivers(target: Target) -> bool:
    """Say whether the queue promises to end each job, also one that a dead worker had in hand."""
    return bool(target.contract.promised("P17"))


def hit(store: Store, options: Options, run: Mapping[str, Any]) -> list[str]:
    """Return every obligation that the records of the run show to have been met."""
    faults = [record for _, record in store.read(store.nemesis) if record is not None]
    cells = {f"{_nemesis(fault)}@{fault['phase']}" for fault in faults if fault.get("phase")}
    facts = _Facts(store, faults)
    counts = []
    for name, count in (("kill", options.kills), ("pause", options.pauses)):
        if 0 < count <= sum(fault["hit"] for fault in faults if _nemesis(fault) == name):
            counts.append(f"{count} {name}s that hit")
    whole = [
        sentence
        for sentence, met in (
            (ENDED, not run["interrupted"]),
            (RESTED, run["drained"]),
            (EXPLAINED, not run["problems"]),
        )
        if met
    ]
    failures = sorted({failure(x["call"], x["error"]) for x in facts.of("io")})
    shown = [sentence for sentence, is_shown in SHOWN if is_shown(facts)]
    return whole + counts + sorted(cells) + shown + failures


def _nemesis(fault: dict[str, Any]) -> str:
    return "kill" if fault["fault"] in KILLS else str(fault["fault"])


class _Facts:
    """What the sentences are looked up in, read once."""

    def __init__(self, store: Store, faults: list[dict[str, Any]]) -> None:
        self.faults = faults
        moves = [record for _, record in store.read(store.audit) if record is not None]
        self.changes = [record for record in moves if "run" not in record]
        self.runs = [record for record in moves if "run" in record]
        self.history = [record for path in store.history_files() for record in _read(store, path)]
        self.effects = [record for path in store.effect_files() for record in _read(store, path)]
        self.repeats = [record for _, record in store.read(store.path / REPEATS)]
        self.exited = {record["pid"] for record in self.history if record["f"] == "exit"}
        self.clock = WallClock.of_records(faults)
        parameters = store.read_contract().parameters
        self.lease_ns = parameters.get("lease_ms", 0) * 1_000_000
        self.limits: Mapping[str, Mapping[str, Any]] = parameters.get("limits", {})
        schedules = parameters.get("schedules", {}).values()
        self.prefixes = tuple(str(rules["prefix"]) for rules in schedules)

    def of(self, *faults: str) -> Iterator[dict[str, Any]]:
        """Yield the faults of these names."""
        return (fault for fault in self.faults if fault["fault"] in faults)

    def claims(self) -> Iterator[dict[str, Any]]:
        """Yield the acknowledged claims that got a job."""
        for record in self.history:
            if record["f"] == "claim" and record["type"] == "ok" and "job" in record:
                yield record

    def states_at(self, step: Step) -> set[str]:
        """Return the states in which jobs were when the wall clock was stepped."""
        states: dict[str, str] = {}
        for change in self.changes:
            if self.clock.true_ms(change["t_ms"]) >= step.wall_ms:
                break
            states[str(change["job"])] = change["new"] or ""
        return set(states.values())

    def held(self, *faults: str) -> set[Lease]:
        """Return the leases that a process had when such a fault struck it, and never ended.

        A job that had failed before, and was claimed again for that, is no evidence of the fault.
        """
        struck: dict[int, int] = {}
        for fault in self.of(*faults):
            struck[fault["pid"]] = max(fault["t"], struck.get(fault["pid"], 0))
        ended: set[Lease] = set()
        asked: dict[tuple[int, int], Lease] = {}
        for record in self.history:
            key = record["pid"], record["n"]
            if record["f"] in ENDS and record["type"] == "invoke":
                asked[key] = str(record.get("job")), record.get("fence")
            elif record["type"] == "ok" and key in asked:
                ended.add(asked[key])
        claims = (r for r in self.claims() if r["t"] <= struck.get(r["pid"], 0))
        return {(str(r["job"]), r.get("fence")) for r in claims} - ended

    def taken_back(self, fault: str) -> bool:
        """Say whether a job was claimed again whose holder such a fault had struck."""
        held = self.held(fault)
        latest: dict[str, int] = {}
        for change in self.changes:
            if change["new"] == "leased" and change.get("fence") is not None:
                latest[str(change["job"])] = change["fence"]
        return any(fence is not None and latest.get(job, 0) > fence for job, fence in held)


def _read(store: Store, path: Any) -> Iterator[dict[str, Any]]:
    return (record for _, record in store.read(path) if record is not None)


def _outcomes(facts: _Facts, word: str) -> bool:
    return any(str(record.get("outcome", "")).startswith(word) for record in facts.effects)


def _hung(facts: _Facts) -> bool:
    """Some attempt was told to hang; who interrupts it leaves no word of its own in the log."""
    scripts = {
        record["value"]["id"]: record["value"]["script"]
        for record in facts.history
        if record["f"] == "enqueue" and record["type"] == "invoke"
    }
    for record in facts.effects:
        script = scripts.get(record["job"])
        if script and record["what"] == "start" and record["attempt"]:
            word = script[min(record["attempt"], len(script)) - 1]
            if word.startswith("hang"):
                return True
    return False


def _waited(facts: _Facts) -> bool:
    """Some operation was under way while a foreign program held the lock, and outlived that."""
    died = {fault["pid"]: fault["t"] for fault in facts.of(*KILLS)}
    spans: list[tuple[int, int]] = []
    begun: dict[tuple[int, int], int] = {}
    for record in facts.history:
        key = (record["pid"], record["n"])
        if record["type"] == "invoke":
            begun[key] = record["t"]
        elif key in begun:
            spans.append((begun.pop(key), record["t"]))
    # What was never completed ended with its process.
    spans += [(t, died[pid]) for (pid, _), t in begun.items() if pid in died]
    return any(start < lock["t_end"] <= end for lock in facts.of("lock") for start, end in spans)


def _spared(facts: _Facts) -> bool:
    """Some worker was killed in a handler while another had nothing to do."""
    return any(
        fault["idle_peers"] and fault["phase"].startswith("handler.") for fault in facts.of("kill")
    )


def _started_again(facts: _Facts) -> bool:
    """Some job's process was killed while its handler ran, and the handler was started once more.

    A handler that is a process of its own lives on, and names the one that had the job; 0 stands
    for one that was dead by then.
    """
    died = {fault["pid"]: fault["t"] for fault in facts.of("kill")}
    first = min(died.values(), default=None)
    began: dict[tuple[str, Any], int] = {}
    for record in facts.effects:
        who = str(record["job"]), record.get("pid")
        if record["what"] == "start":
            holder = record.get("worker", record.get("pid"))
            if holder == 0 and first is not None and first < record["t"]:
                began[who] = record["t"]
            elif holder in died and died[holder] >= record["t"]:
                began[who] = died[holder]
        elif record["what"] == "end" and who in began and record["t"] < began[who]:
            del began[who]
    cut = {job: t for (job, _), t in began.items()}
    return any(
        record["what"] == "start" and record["t"] > cut[str(record["job"])]
        for record in facts.effects
        if str(record["job"]) in cut
    )


def _at_step(facts: _Facts, states: frozenset[str], *, forward: bool) -> bool:
    """Some job was in one of these states when the clock was stepped in this direction."""
    return any(
        step.is_forward == forward and states & facts.states_at(step) for step in facts.clock.steps
    )


def _doubted(facts: _Facts) -> bool:
    """Some operation of a process whose call failed ended as `info`, with an error."""
    victims = {fault["pid"] for fault in facts.of("io")}
    return any(record["type"] == "info" and record["pid"] in victims for record in facts.history)


def _backed_up(facts: _Facts) -> bool:
    """Some backup had not ended when a job was claimed after its beginning."""
    begun: dict[tuple[int, int], int] = {}
    claims = sorted(record["t"] for record in facts.claims())
    for record in facts.history:
        if record["f"] != "backup":
            continue
        key = record["pid"], record["n"]
        if record["type"] == "invoke":
            begun[key] = record["t"]
        elif (
            record["type"] == "ok"
            and key in begun
            and (bisect_left(claims, begun[key]) < bisect_left(claims, record["t"]))
        ):
            return True
    return False


def _collected(facts: _Facts) -> bool:
    """Some collection was told to have ended; what it must have left alone, handlers miss."""
    return any(record["f"] == "collect" and record["type"] == "ok" for record in facts.history)


def _at_limit(facts: _Facts) -> Iterator[tuple[dict[str, int | None], set[str]]]:
    """Yield, for each commit at which a resource is at its limit, what runs and what waits.

    What runs has the token of its lease beside it.
    """
    for name, rules in facts.limits.items():
        kinds: set[str] = set(rules.get("kinds", (name,)))
        running: dict[str, int | None] = {}
        waiting: set[str] = set()
        for change in facts.changes if "running" in rules else ():
            if change.get("kind") not in kinds:
                continue
            job = str(change["job"])
            running.pop(job, None)
            waiting.discard(job)
            if change["new"] == "leased":
                running[job] = change.get("fence")
            elif change["new"] == "available":
                waiting.add(job)
            if len(running) >= rules["running"]:
                yield running, waiting


def _had_several(facts: _Facts, name: str) -> bool:
    """Some process that such a fault struck had several leases then, as its history tells."""
    struck: dict[int, list[int]] = {}
    for fault in facts.of(name):
        struck.setdefault(fault["pid"], []).append(fault["t"])
    records: dict[int, list[dict[str, Any]]] = {pid: [] for pid in struck}
    for record in facts.history:
        if record["pid"] in records:
            records[record["pid"]].append(record)
    return any(
        _held_at(records[pid], moment) > 1 for pid, moments in struck.items() for moment in moments
    )


def _held_at(records: Iterable[dict[str, Any]], moment: int) -> int:
    """Return how many leases a process had: those that it had claimed and not yet ended."""
    held: set[tuple[Any, Any]] = set()
    asked: dict[int, tuple[Any, Any]] = {}
    for record in records:
        if record["t"] > moment:
            continue
        if record["f"] == "claim" and record["type"] == "ok" and "job" in record:
            held.add((record["job"], record.get("fence")))
        elif record["f"] in ENDS:
            if record["type"] == "invoke":
                asked[record["n"]] = record.get("job"), record.get("fence")
            else:
                held.discard(asked.pop(record["n"], (None, None)))
    return len(held)


def _taken_up_again(facts: _Facts, jobs: set[str]) -> bool:
    """Some of these jobs was in the hand of a process that was killed, and claimed next after."""
    held = facts.held("kill")
    claims = (r for r in facts.claims() if str(r["job"]) in jobs and "fence" in r)
    return any((str(r["job"]), r["fence"] - 1) in held for r in claims)


def _slot_killed(facts: _Facts) -> bool:
    """Some worker was killed with the job of a schedule in hand."""
    keys = ((str(c["job"]), str(c.get("key", ""))) for c in facts.changes if facts.prefixes)
    return _taken_up_again(facts, {job for job, key in keys if key.startswith(facts.prefixes)})


def _step_killed(facts: _Facts) -> bool:
    """Some worker was killed with a step in hand."""
    names = {
        step["id"]
        for record in facts.history
        if record["f"] == "start" and record["type"] == "invoke"
        for step in record["value"]["steps"]
    }
    jobs = {str(c["job"]) for c in facts.changes if c.get("harness_id") in names}
    return _taken_up_again(facts, jobs)


def _spilled(facts: _Facts) -> bool:
    """Some worker was killed with a job whose payload was in a file."""
    names = {
        record["value"]["id"]
        for record in facts.history
        if record["f"] == "enqueue" and record["type"] == "invoke" and record["value"].get("spill")
    }
    given = {r["job"] for r in facts.effects if r["what"] == "start" and r.get("attempt") != 1}
    found = names & given
    jobs = {str(c["job"]) for c in facts.changes if c.get("harness_id") in found}
    return _taken_up_again(facts, jobs)


def _remembered(facts: _Facts) -> bool:
    """Some handler ended with more results of remembered steps than it had run."""
    ran: dict[tuple[Any, Any], set[str]] = {}
    for record in facts.effects:
        key = record["job"], record.get("fence")
        if record["what"] == "step":
            ran.setdefault(key, set()).add(record["name"])
        elif record["what"] == "end" and set(record.get("read", ())) - ran.get(key, set()):
            return True
    return False


def _killed_at_limit(facts: _Facts) -> bool:
    """Some lease whose holder was killed was among those that filled a limit."""
    held = facts.held("kill")
    return any(running.items() & held for running, _ in _at_limit(facts))


SHOWN: Final[tuple[tuple[str, Callable[[_Facts], bool]], ...]] = (
    (REDELIVERED, lambda f: f.taken_back("kill") or _started_again(f)),
    (SPARED, _spared),
    (RECOVERED, lambda f: any(x["wal_bytes"] > 0 for x in f.of("kill-all"))),
    (EXPIRED, lambda f: f.taken_back("pause")),
    (REFUSED, lambda f: any(r["f"] in REFUSABLE and r["type"] == "fail" for r in f.history)),
    (STOPPED, lambda f: any(x["pid"] in f.exited for x in f.of("term"))),
    (RELEASED, lambda f: any(r["f"] == "release" and r["type"] == "ok" for r in f.history)),
    (DEAD, lambda f: any(change["new"] == "dead" for change in f.changes)),
    (CRASHED, lambda f: any(f.of("handler-exit", "handler-abort"))),
    (OVERTIME, _hung),
    (UNJSONABLE, lambda f: _outcomes(f, "unjsonable")),
    (WAITED, _waited),
    (OUTLASTED, lambda f: any(x["t_end"] - x["t"] > f.lease_ns for x in f.of("lock"))),
    (REPEATED, lambda f: bool(f.repeats)),
    (STEPPED, lambda f: {step.is_forward for step in f.clock.steps} == {False, True}),
    (BACK_LEASED, lambda f: _at_step(f, LEASED, forward=False)),
    (FORWARD_LEASED, lambda f: _at_step(f, LEASED, forward=True)),
    (BACK_SCHEDULED, lambda f: _at_step(f, SCHEDULED, forward=False)),
    (FORWARD_SCHEDULED, lambda f: _at_step(f, SCHEDULED, forward=True)),
    (DOUBTED, _doubted),
    (REPAIRED, lambda f: any(x["hit"] for x in f.of("repair"))),
    (BACKED_UP, _backed_up),
    (SLOTS_KILLED, lambda f: _had_several(f, "kill")),
    (SLOTS_PAUSED, lambda f: _had_several(f, "pause")),
    (SLOT_KILLED, _slot_killed),
    (SPILLED, _spilled),
    (COLLECTED, _collected),
    (STEP_KILLED, _step_killed),
    (RUN_FAILED, lambda f: {"failed", "succeeded"} <= {record["new"] for record in f.runs}),
    (REMEMBERED, _remembered),
    (LIMITED, lambda f: any(waiting for _, waiting in _at_limit(f))),
    (LIMITED_KILL, _killed_at_limit),
)
