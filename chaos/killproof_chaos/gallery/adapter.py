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
    deletes_at_claim,
    effect_and_ack_apart,
    lease_on_wall_clock,
    reads_then_writes,
    synchronous_normal,
)
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

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


def target(name: str) -> MinimalTarget:
    """Return the broken queue of this name as a target; it promises what `minimal` promises."""
    fault, queue = next(pair for pair in QUEUES if pair[0].name == name)
    return MinimalTarget(name, queue, fault)
