"""The promises that a step of the protocol can break, each a small function.

A function gets the rules, the name of the action, the state before and the move; it returns what
broke, in a sentence, or None. It is asked about the actions that can break it, and may read the
ghosts. Termination is no matter of one step: see `model_search.py`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from killproof_chaos.engines.model_protocol import (
    ACKED,
    ALIVE,
    CURRENT,
    Lease,
    Move,
    Rules,
    State,
)
from killproof_evidence.contract import START, TERMINAL

OUTCOMES: Final = frozenset(
    {"ack", "ack_unheard", "complete", "nack", "release", "snooze", "hold_leased", "extend"}
)

Check = Callable[[Rules, str, State, Move], str | None]


def lease_exclusion(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P4: two live leases of one job never overlap."""
    if not move.done:
        return None
    for who, other in enumerate(before.workers):
        if who != move.actor and type(other) is Lease and other.job == move.job and other.live:
            return (
                f"w{move.actor + 1} holds job {move.job + 1}, and the lease of w{who + 1} on it "
                "still runs"
            )
    return None


def fenced_outcome(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P5: a stale ack, nack, extend, release or snooze is refused, and told so."""
    if not move.done:
        return None
    lease = before.workers[move.actor]
    assert type(lease) is Lease
    if lease.truth == CURRENT:
        return None
    job, after = before.jobs[move.job], move.state.jobs[move.job]
    if action == "ack" and lease.truth == ACKED and job == after:
        return None  # Repeated after a lost answer: it was so, and nothing changes.
    what = "was told yes" if job == after else "changed the job"
    name = action.removesuffix("_unheard")
    return (
        f"the {name} of w{move.actor + 1} with fence {lease.fence} {what}, and its lease on "
        f"job {move.job + 1} was lost before"
    )


def single_effect(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P6: the effect that shares the ack's transaction happens once at most."""
    effects = move.state.jobs[move.job].effects
    if effects > 1 and effects > before.jobs[move.job].effects:
        return f"the effect of job {move.job + 1} has happened {effects} times"
    return None


def allowed_edges(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P7: only edges of the contract, and a terminal state is left by a replay alone."""
    old, new = before.jobs[move.job].state, move.state.jobs[move.job].state
    if old == new:
        return None
    contract = rules.contract
    declared = START in contract.edges if old == START else bool(contract.edges)
    if declared and not contract.allows(old, new):
        return (
            f"job {move.job + 1} went from {'nothing' if old == START else old} to {new}, which "
            "the contract does not allow"
        )
    if old in TERMINAL and action != "replay":
        return f"job {move.job + 1} left {old} for {new}, and nobody replayed it"
    return None


def bounded_attempts(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P8: starts - forgiven <= max_attempts, crashed ones included."""
    runs = move.state.jobs[move.job].runs
    if not move.done or runs <= rules.max_attempts:
        return None
    return f"job {move.job + 1} starts for the {_nth(runs)} time, and may {rules.max_attempts}"


def _nth(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def one_job_per_key(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P12: one living job for a key, also under races and after a lost answer."""
    if not move.state.doubts:
        return None
    living = [n + 1 for n, job in enumerate(move.state.jobs) if job.state in ALIVE]
    if len(living) > 1:
        return f"jobs {living[0]} and {living[1]} live, and have the same key"
    if action == "enqueue":
        doubt = before.doubts[move.actor]
        if doubt is not None and before.jobs[doubt].state in ALIVE and doubt != move.job:
            return f"the call was repeated, and made job {move.job + 1} beside job {doubt + 1}"
    return None


def cancellation(rules: Rules, action: str, before: State, move: Move) -> str | None:
    """P15: after an acknowledged cancel the job does not start."""
    if move.done and before.jobs[move.job].called_off:
        return f"w{move.actor + 1} starts job {move.job + 1} after its cancel was acknowledged"
    return None


#: What judges a step, under the promise's number, and the actions that can break it; none: all.
CHECKS: Final[Mapping[str, tuple[Check, frozenset[str]]]] = {
    "P4": (lease_exclusion, frozenset({"claim"})),
    "P5": (fenced_outcome, OUTCOMES),
    "P6": (single_effect, frozenset({"complete", "effect"})),
    "P7": (allowed_edges, frozenset()),
    "P8": (bounded_attempts, frozenset({"claim"})),
    "P12": (one_job_per_key, frozenset({"enqueue", "replay"})),
    "P15": (cancellation, frozenset({"claim"})),
}
TERMINATION: Final = "P17"
JUDGED: Final = (*CHECKS, TERMINATION)
