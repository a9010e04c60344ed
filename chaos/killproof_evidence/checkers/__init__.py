"""One pure function per promise: evidence in, finding out.

A checker knows nothing of the queue but its contract and what was recorded. It never guesses in
the queue's disfavour: a doubt (an operation without an answer, a time within the clocks' error)
is resolved for the queue, a hole in the evidence is `unknown`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from killproof_evidence.checkers.backups import whole_backups
from killproof_evidence.checkers.durability import (
    conservation,
    durable_acknowledgement,
    integrity,
    no_phantom,
    nothing_done_unseen,
)
from killproof_evidence.checkers.effects import single_effect
from killproof_evidence.checkers.leases import fenced_outcome, lease_exclusion
from killproof_evidence.checkers.limits import limits_kept
from killproof_evidence.checkers.liveness import (
    bounded_recovery,
    eventual_termination,
    no_starvation,
)
from killproof_evidence.checkers.order import claim_order, idempotent_enqueue
from killproof_evidence.checkers.resources import graceful_stop, no_storm
from killproof_evidence.checkers.retries import backoff, bounded_attempts, never_early
from killproof_evidence.checkers.states import allowed_edges, cancellation, dead_letters
from killproof_evidence.checkers.workflows import steps_in_order
from killproof_evidence.evidence import Evidence
from killproof_evidence.finding import Finding

Checker = Callable[[Evidence], Finding]

CHECKERS: Final[Mapping[str, Checker]] = {
    "P1": durable_acknowledgement,
    "P2": no_phantom,
    "P3": nothing_done_unseen,
    "P4": lease_exclusion,
    "P5": fenced_outcome,
    "P6": single_effect,
    "P7": allowed_edges,
    "P8": bounded_attempts,
    "P9": backoff,
    "P10": never_early,
    "P11": claim_order,
    "P12": idempotent_enqueue,
    "P13": dead_letters,
    "P14": conservation,
    "P15": cancellation,
    "P16": integrity,
    "P17": eventual_termination,
    "P18": bounded_recovery,
    "P19": no_starvation,
    "P20": no_storm,
    "P21": graceful_stop,
    "P22": limits_kept,
    "P23": steps_in_order,
    "P24": whole_backups,
}
