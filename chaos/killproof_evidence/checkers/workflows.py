"""P23: a step starts only after its needs, its result survives, and its run's state follows.

A producer starts a *run* with all its steps, each a job with a name of its own and the names of the
steps that it needs; the history has that as one operation `start`.  The audit has the changes of
the runs between those of the jobs.  A transaction's rows stand together in it, so the state of a
run has to agree with its steps again before the first row that is about something else.

What a handler was given of its needs, and what it returned, stands in the effect log as digests.

What no step of the run has tried is unknown: an order that nobody could break, a result that was
never handed on, a handler that does not tell what it remembered.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import (
    Change,
    Evidence,
    Execution,
    Run,
    RunChange,
    Story,
    at,
    at_end,
    where,
)
from killproof_evidence.finding import Finding, Line, Tally

#: What a run may be when all of its steps have ended and not all of them well.
UNDONE: Final = frozenset(
    {"failed", "cancelled", "compensating", "compensated", "compensation_failed"}
)
#: Outcomes of a handler that went through all of its script.
EFFECTIVE: Final = frozenset({"ok", "sleep"})
#: Words for a run that has something left to do.
GOES_ON: Final = frozenset({"running", "compensating"})
#: What a run may be, by what its steps say.
FOLLOWS: Final = {
    "running": frozenset({"running"}),
    "succeeded": frozenset({"succeeded"}),
    "failed": UNDONE,
}


def steps_in_order(evidence: Evidence) -> Finding:
    """P23: a step starts only after its needs succeeded; its result survives; the run follows."""
    tally = Tally()
    _check_memory(evidence, tally)
    if not evidence.runs:
        tally.missing("no run of a workflow was started")
        return tally.finding("")
    if not evidence.changes:
        tally.missing("no audit: in what order steps moved cannot be told")
        return tally.finding("")
    tried, handed_on = _check_starts(evidence, tally), 0
    for run in evidence.runs.values():
        _check_whole(tally, run)
        for story in run.steps:
            handed_on += _check_results(evidence, tally, story)
    if evidence.run_changes:
        _Follower(evidence, tally).follow()
    else:
        tally.missing("the audit has no change of a run")
    if not tried:
        tally.missing("no step that needs another was claimed")
    if not handed_on:
        tally.missing("no result of a step was handed on")
    tally.figures["runs"] = len(evidence.runs)
    return tally.finding("")


def _needs(story: Story) -> list[str]:
    return [str(need) for need in story.asked.get("needs") or ()]


# --- Order.


def _check_starts(evidence: Evidence, tally: Tally) -> int:
    """At each claim of a step, all that it needs has succeeded; return how many needs that were."""
    last: dict[int, Change] = {}
    tried = 0
    for change in evidence.changes:
        last[id(change.story)] = change
        if not change.takes:
            continue
        for need in _needs(change.story):
            tally.checked += 1
            tried += 1
            needed = evidence.story_of(need)
            found = None if needed is None else last.get(id(needed))
            if found is None or found.new != "succeeded":
                label = change.story.label
                state = "not there" if found is None else found.new
                tally.violate(
                    label,
                    f"step {change.story.name} (job {label}) was claimed while {need}, which it "
                    f"needs, was {state}",
                    where(found),
                    change.at,
                    *(e.at for e in change.story.executions if e.fence == change.fence),
                )
    return tried


def _check_whole(tally: Tally, run: Run) -> None:
    """A start is one transaction: all steps are there, or none; and none is left behind."""
    there = [story for story in run.steps if story.changes]
    if there and len(there) != run.count:
        tally.violate(
            there[0].label,
            f"run {run.name} was started with {run.count} steps, and {len(there)} of them exist",
            at(run.start),
            at_end(run.start),
            *(story.changes[0].at for story in there[:8]),
        )
    states = {story.name: story.state for story in run.steps}
    for story in there:
        needs = _needs(story)
        if story.state == "blocked" and all(states.get(need) in TERMINAL for need in needs):
            tally.violate(
                story.label,
                f"step {story.name} (job {story.label}) was still blocked at the end, and all that "
                "it needs had ended",
                *_ends(run, needs),
                story.changes[-1].at,
            )


def _ends(run: Run, needs: Iterable[str]) -> Iterator[Line]:
    wanted = set(needs)
    for story in run.steps:
        if story.name in wanted and story.changes:
            yield story.changes[-1].at


# --- Results.


def _check_results(evidence: Evidence, tally: Tally, story: Story) -> int:
    """What a step was given is what the attempts that succeeded have returned; return how often."""
    needs = _needs(story)
    handed_on = 0
    if not needs or not story.executions:
        return handed_on
    returned = {need: _returned(evidence, need) for need in needs}
    for execution in story.executions:
        if execution.saw is None:
            tally.missing(f"step {story.name} does not tell what it was given")
            continue
        for need, source in returned.items():
            if source is None:
                continue
            tally.checked += 1
            handed_on += 1
            if execution.saw.get(need) != source.result:
                tally.violate(
                    story.label,
                    f"step {story.name} (job {story.label}) was given another result of {need} "
                    "than the attempt that succeeded had returned",
                    source.at,
                    (source.file, source.line_end),
                    execution.at,
                )
    return handed_on


def _returned(evidence: Evidence, need: str) -> Execution | None:
    """Return the execution whose success made a step succeed, if it told what it returned."""
    story = evidence.story_of(need)
    done = next((c for c in story.changes if c.new == "succeeded"), None) if story else None
    if story is None or done is None:
        return None
    for execution in story.executions:
        if execution.fence == done.fence_before and execution.result is not None:
            return execution
    return None


# --- The state of a run.


class _Follower:
    """Walks through the commits, and holds each run against its steps."""

    def __init__(self, evidence: Evidence, tally: Tally) -> None:
        self._tally = tally
        self._lines: list[Change | RunChange] = [*evidence.changes, *evidence.run_changes]
        self._lines.sort(key=lambda change: change.line)
        self._runs = evidence.runs
        self._run_of = {
            id(story): run.name for run in evidence.runs.values() for story in run.steps
        }
        self._states: dict[str, RunChange] = {}
        self._steps: dict[str, dict[int, Change]] = {}
        self._ended: dict[str, int] = {}
        self._good: dict[str, int] = {}
        self._apart: dict[str, Change | RunChange] = {}  # Since when a run does not agree.

    def follow(self) -> None:
        """Do it."""
        for change in self._lines:
            if isinstance(change, RunChange):
                name = change.name
                if name is None or name not in self._runs:
                    story = f"run {change.run} ({name}) exists, and nobody started it"
                    self._tally.violate(None, story, change.at)
                    continue
                before = self._states.get(name)
                if before is not None and before.run != change.run and before.new is not None:
                    self._tally.violate(name, f"run {name} is there twice", before.at, change.at)
                self._states[name] = change
            else:
                name = self._run_of.get(id(change.story))
            for other in [run for run in self._apart if run != name]:
                self._accuse(other, change)
            if name is None:
                continue
            if isinstance(change, Change):
                self._count(name, change)
            self._compare(name, change)
        for name in list(self._apart):
            self._accuse(name, None)
        for name, change in self._states.items():
            if change.new in GOES_ON:
                self._tally.missing(f"run {name} had not ended when the run of the harness did")

    def _count(self, name: str, change: Change) -> None:
        """Keep count of the steps that have ended, and of those that have ended well."""
        steps = self._steps.setdefault(name, {})
        before = steps.get(id(change.story))
        for one, sign in ((before, -1), (change, 1)):
            if one is not None and one.new in TERMINAL:
                self._ended[name] = self._ended.get(name, 0) + sign
                if one.new == "succeeded":
                    self._good[name] = self._good.get(name, 0) + sign
        steps[id(change.story)] = change

    def _compare(self, name: str, change: Change | RunChange) -> None:
        self._tally.checked += 1
        state = self._states.get(name)
        if state is not None and self._agrees(name, state):
            self._apart.pop(name, None)
        else:
            self._apart.setdefault(name, change)

    def _agrees(self, name: str, state: RunChange) -> bool:
        if state.new is not None:
            return state.new in FOLLOWS[self._due(name)]
        # A run is forgotten when none of its steps has anything left to do.
        steps = self._steps.get(name, {}).values()
        return all(step.new is None or step.new in TERMINAL for step in steps)

    def _due(self, name: str) -> str:
        count = self._runs[name].count
        if self._ended.get(name, 0) < count:
            return "running"
        return "succeeded" if self._good.get(name, 0) == count else "failed"

    def _accuse(self, name: str, next_: Change | RunChange | None) -> None:
        change, state = self._apart.pop(name), self._states.get(name)
        word = "not there" if state is None else state.new or "gone"
        self._tally.violate(
            name,
            f"run {name} was {word} after a commit at which its steps say {self._due(name)}",
            *(step.at for step in list(self._steps.get(name, {}).values())[:8]),
            where(state),
            change.at,
            where(next_),
        )


# --- Remembered steps.


def _check_memory(evidence: Evidence, tally: Tally) -> None:
    """A step whose result was recorded does not run again, and is read as it was recorded."""
    for story in evidence.stories:
        _check_telling(tally, story)
        if not any(execution.steps for execution in story.executions):
            continue
        recorded: dict[str, tuple[Execution, int, Line]] = {}
        for execution in sorted(story.executions, key=lambda e: (e.fence or 0, e.t)):
            _check_repeats(tally, story, execution, recorded)
            _check_reading(tally, story, execution)
            steps = execution.steps or []
            # A step was recorded before the next one began, and the last before the handler ended.
            proofs = [(after.t, (execution.file, after.line)) for after in steps[1:]]
            if execution.ended and execution.t_end is not None and execution.read is not None:
                proofs.append((execution.t_end, (execution.file, execution.line_end)))
            for step, (t, line) in zip(steps, proofs, strict=False):
                recorded.setdefault(step.name, (execution, t, line))


def _check_telling(tally: Tally, story: Story) -> None:
    """Whose handler was to remember steps, and came to its effect, says what it has of each."""
    wanted = set(story.asked.get("memo") or ())
    for execution in story.executions if wanted else ():
        told = wanted <= (execution.read or {}).keys()
        if execution.ended and execution.outcome in EFFECTIVE and not told:
            tally.missing(f"job {story.label} does not tell what it remembered")


def _check_repeats(
    tally: Tally,
    story: Story,
    execution: Execution,
    recorded: dict[str, tuple[Execution, int, Line]],
) -> None:
    for step in execution.steps or ():
        tally.checked += 1
        if step.name not in recorded:
            continue
        first, t, line = recorded[step.name]
        if execution.t > t:
            tally.violate(
                story.label,
                f"step {step.name} of job {story.label} ran again, and an attempt before had gone "
                "on with its result",
                first.at,
                line,
                execution.at,
                (execution.file, step.line),
            )


def _check_reading(tally: Tally, story: Story, execution: Execution) -> None:
    for name, digest in (execution.read or {}).items():
        tally.checked += 1
        known = {
            step.result
            for other in story.executions
            for step in other.steps or ()
            if step.name == name
        }
        if digest not in known:
            tally.violate(
                story.label,
                f"job {story.label} was given a result of step {name} that no run of it returned",
                execution.at,
                (execution.file, execution.line_end),
            )
