"""The steps of the model as sentences that a person can read, and its edges as a diagram."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from killproof_chaos.engines.model_protocol import (
    ORPHAN,
    Belief,
    Job,
    Lease,
    Rules,
)
from killproof_chaos.engines.model_search import Broken, Step
from killproof_evidence.contract import START


def story(rules: Rules, broken: Broken) -> list[dict[str, Any]]:
    """Return the steps to a broken promise as records, the sentence of what broke last."""
    lines: list[dict[str, Any]] = []
    for number, step in enumerate(broken.steps, 1):
        job = step.move.state.jobs[step.move.job]
        lines.append(
            {
                "n": number,
                "who": who(step),
                "action": step.action,
                "done": step.move.done,
                "job": step.move.job + 1,
                "state": job.state,
                "fence": job.fence,
                "attempt": job.attempt,
                "text": told(rules, step),
            }
        )
    return lines


def who(step: Step) -> str:
    """Return who acts: a worker, a producer, or what happens to them."""
    if step.action == "enqueue":
        return f"p{max(step.move.actor, 0) + 1}"
    return _WHO.get(step.action, f"w{step.move.actor + 1}")


def told(rules: Rules, step: Step) -> str:
    """Return what happened in one step."""
    return _TOLD[step.action](rules, step)


def numbered(line: Mapping[str, Any]) -> str:
    """Return a step as a line of text: number, who, what."""
    return f"{line['n']:>3}  {line['who']:<8} {line['text']}"


_WHO: Final[Mapping[str, str]] = {
    "promote": "time",
    "expire": "time",
    "expire_running": "time",
    "suspect": "reaper",
    "reap": "reaper",
    "cancel": "person",
    "hold": "person",
    "unhold": "person",
    "replay": "person",
}


def _after(step: Step) -> Job:
    return step.move.state.jobs[step.move.job]


def _job(step: Step) -> str:
    return f"job {step.move.job + 1}"


def _lease(step: Step) -> Lease:
    lease = step.before.workers[step.move.actor]
    assert isinstance(lease, Lease)
    return lease


def _enqueue(rules: Rules, step: Step) -> str:
    if not step.before.doubts:
        return f"enqueues {_job(step)}: {_after(step).state}"
    is_new = step.before.jobs[step.move.job].state == START
    what = f"enqueues with the key: {_job(step)}" + (", a new one" if is_new else "")
    if not step.move.done:
        return f"{what}, but the answer is lost"
    again = step.before.doubts[step.move.actor] is not None
    return f"repeats the call: {_job(step)}" if again else what


def _claim(rules: Rules, step: Step) -> str:
    job = _after(step)
    if not step.move.done:
        return f"wants to claim {_job(step)}, too late: it is {job.state} now"
    return f"claims {_job(step)}: fence {job.fence}, attempt {job.attempt} of {rules.max_attempts}"


def _outcome(verb: str) -> Callable[[Rules, Step], str]:
    """Return the words of an outcome: what it shows, and what became of it."""

    def words(rules: Rules, step: Step) -> str:
        shown = f"{verb} {_job(step)} with fence {_lease(step).fence}"
        if not step.move.done:
            return f"{shown}: refused, the lease is lost"
        old, new = step.before.jobs[step.move.job], _after(step)
        if old == new:
            return f"{shown}: yes, and nothing changes"
        return shown if old.state == new.state else f"{shown}: {old.state} -> {new.state}"

    return words


def _expire(rules: Rules, step: Step) -> str:
    why = ": the heartbeat of its holder is late" if step.action == "expire_running" else ""
    return f"the lease on {_job(step)} runs out{why}"


def _suspect(rules: Rules, step: Step) -> str:
    dead = step.before.jobs[step.move.job].lease == ORPHAN
    why = "its owner is dead" if dead else "its time is over"
    return f"sees that the lease on {_job(step)} is lost: {why}"


def _reap(rules: Rules, step: Step) -> str:
    belief = step.before.belief
    assert isinstance(belief, Belief)
    shown = f"takes {_job(step)} back, believing in fence {belief.fence}"
    if not step.move.done:
        return f"{shown}: refused, it is not so any more"
    return f"{shown}: {step.before.jobs[step.move.job].state} -> {_after(step).state}"


def _moved(verb: str) -> Callable[[Rules, Step], str]:
    def words(rules: Rules, step: Step) -> str:
        old = step.before.jobs[step.move.job].state
        return f"{verb} {_job(step)}: {old} -> {_after(step).state}"

    return words


_TOLD: Final[Mapping[str, Callable[[Rules, Step], str]]] = {
    "enqueue": _enqueue,
    "promote": _moved("the due time comes of"),
    "look": lambda rules, step: f"sees {_job(step)} available",
    "claim": _claim,
    "ack": _outcome("acks"),
    "ack_unheard": lambda rules, step: _outcome("acks")(rules, step) + ", but the answer is lost",
    "complete": _outcome("makes the effect and acks"),
    "effect": lambda rules, step: f"makes the effect of {_job(step)}",
    "nack": _outcome("nacks"),
    "release": _outcome("releases"),
    "snooze": _outcome("snoozes"),
    "hold_leased": _outcome("puts aside"),
    "extend": _outcome("extends its lease on"),
    "crash": lambda rules, step: f"is killed with {_job(step)} in hand; another takes its place",
    "pause": lambda rules, step: f"is stopped with {_job(step)} in hand",
    "resume": lambda rules, step: f"wakes up, and still has {_job(step)} in hand",
    "expire": _expire,
    "expire_running": _expire,
    "suspect": _suspect,
    "reap": _reap,
    "cancel": _moved("cancels"),
    "hold": _moved("puts aside"),
    "unhold": _moved("lets go"),
    "replay": _moved("replays"),
}


def diagram(edges: Iterable[tuple[str, str, str]]) -> str:
    """Return the walked edges as a Mermaid state diagram, each with the actions that walk it."""
    actions: dict[tuple[str, str], list[str]] = {}
    for old, new, action in sorted(edges):
        names = actions.setdefault((old, new), [])
        name = action.removesuffix("_unheard")
        if name not in names:
            names.append(name)
    lines = ["stateDiagram-v2"]
    for (old, new), names in actions.items():
        start = "[*]" if old == START else old
        lines.append(f"    {start} --> {new}: {', '.join(names)}")
    return "\n".join(lines)
