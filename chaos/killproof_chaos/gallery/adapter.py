"""Turns each broken queue of the gallery into a target of the harness."""

from typing import Final

from killproof_chaos.gallery import (
    Fault,
    ack_without_fence,
    acknowledges_before_fsync,
    attempt_not_counted,
    checks_then_claims,
    checks_then_inserts,
    commit_error_refused,
    copies_without_log,
    deletes_at_claim,
    effect_and_ack_apart,
    lease_on_wall_clock,
    limit_not_counted,
    reads_then_writes,
    step_starts_early,
    synchronous_normal,
)
from killproof_chaos.targets.killproof_adapter import KillproofTarget
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue
from killproof_evidence.target import Target

QUEUES: Final[tuple[tuple[Fault, type[MinimalQueue]], ...]] = (
    (deletes_at_claim.FAULT, deletes_at_claim.DeletesAtClaim),
    (ack_without_fence.FAULT, ack_without_fence.AckWithoutFence),
    (attempt_not_counted.FAULT, attempt_not_counted.AttemptNotCounted),
    (effect_and_ack_apart.FAULT, effect_and_ack_apart.EffectAndAckApart),
    (lease_on_wall_clock.FAULT, lease_on_wall_clock.LeaseOnWallClock),
    (commit_error_refused.FAULT, commit_error_refused.CommitErrorRefused),
    (checks_then_claims.FAULT, checks_then_claims.ChecksThenClaims),
    (checks_then_inserts.FAULT, checks_then_inserts.ChecksThenInserts),
    (reads_then_writes.FAULT, reads_then_writes.ReadsThenWrites),
    (synchronous_normal.FAULT, synchronous_normal.SynchronousNormal),
    (acknowledges_before_fsync.FAULT, acknowledges_before_fsync.AcknowledgesBeforeFsync),
)
#: What `minimal` does not have is broken in killproof itself.
MIXED: Final[tuple[tuple[Fault, type[KillproofTarget]], ...]] = (
    (limit_not_counted.FAULT, limit_not_counted.LimitNotCounted),
    (step_starts_early.FAULT, step_starts_early.StepStartsEarly),
    (copies_without_log.FAULT, copies_without_log.CopiesWithoutLog),
)


def target(name: str) -> Target:
    """Return the broken queue of this name as a target; it promises what its control promises."""
    for fault, made in MIXED:
        if fault.name == name:
            return made()
    fault, queue = next(pair for pair in QUEUES if pair[0].name == name)
    return MinimalTarget(name, queue, fault)
