"""Take ended jobs out of the file when they are old enough.

Old is counted from the *end* of a job (`finished_ms`): a job that waited a month and ended today is
of today.  Jobs that have not ended are never touched, whatever their age; the statement names the
four states that have.  A job takes its attempts with it; its effects stay in the ledger, because
the record that a payment was made must outlive the job that made it.  They have a limit of their
own, from the moment when they were settled: an effect that is forgotten is applied again when its
key comes again.  What is in doubt is never forgotten, nor what a living job may ask for.

A step of a workflow goes with its run, when that has ended long enough ago, and never alone.

It works in bounded steps: each is one short transaction, and between two of them everybody else has
their turn at the lock.  Ended anywhere, it has done what it said so far, and can be run again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, LiteralString, cast

from killproof import workflow_tables
from killproof.core import model
from killproof.core.database import Value
from killproof.core.jobs import Queue
from killproof.workflow_retention import prune_runs

#: Jobs that are deleted under one hold of the write lock: some milliseconds.
PRUNE_BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a prune deleted, or would."""

    #: jobs by state, entries of the ledger as `effects`, and `runs` where some were ever started
    deleted: dict[str, int]
    dry_run: bool


COUNT: Final = """
    SELECT count(*) FROM job
     WHERE state = :state AND finished_ms IS NOT NULL AND finished_ms < :before_ms"""

FIRST: Final = """
    SELECT finished_ms, id FROM job
     WHERE state = :state AND finished_ms IS NOT NULL AND finished_ms < :before_ms
       AND (finished_ms, id) > (:after_ms, :after_id)
     ORDER BY finished_ms, id LIMIT :limit"""

# A `+` keeps the planner from the index of a state: the rows are named.

DELETE: Final = """
    DELETE FROM job
     WHERE id IN (SELECT value FROM json_each(:ids))
       AND +state IN ('succeeded', 'dead', 'cancelled', 'expired') AND finished_ms < :before_ms"""


# The same where runs were started: their steps go with their run, see `workflow_retention`.

COUNT_BUT_STEPS: Final = """
    SELECT count(*) FROM job
     WHERE state = :state AND finished_ms IS NOT NULL AND finished_ms < :before_ms
       AND NOT EXISTS (SELECT 1 FROM workflow_step WHERE job_id = job.id)"""

FIRST_BUT_STEPS: Final = """
    SELECT finished_ms, id FROM job
     WHERE state = :state AND finished_ms IS NOT NULL AND finished_ms < :before_ms
       AND (finished_ms, id) > (:after_ms, :after_id)
       AND NOT EXISTS (SELECT 1 FROM workflow_step WHERE job_id = job.id)
     ORDER BY finished_ms, id LIMIT :limit"""


def prune(
    queue: Queue,
    keep: Mapping[str, float],
    *,
    effects: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Pruned:
    """Delete the jobs that ended longer ago than they are to be kept.

    Args:
        queue: where they are.
        keep: seconds to keep a job after its end, for each state that is to be pruned: `succeeded`,
            `dead`, `cancelled`, `expired`; a state that is not named is left alone.
        effects: seconds to keep an entry of the effect ledger after it was settled; None is for
            ever.
        dry_run: count, and delete nothing.
        progress: called after each step with the number deleted so far.

    Raises:
        ValueError: a state has not ended, or a time is wrong; definite.
        KillproofError: as for `Queue.cancel`; the steps before stay done.
    """
    now_ms = queue.host.clock.now_ms()
    limits: dict[str, int] = {}
    for state, seconds in keep.items():
        if state not in model.TERMINAL:
            names = ", ".join(sorted(model.TERMINAL))
            raise ValueError(f"state {state!r} can not be pruned: only {names}")
        limits[state] = now_ms - model.to_ms(seconds, f"time to keep {state} jobs")
    deleted = dict.fromkeys(limits, 0)
    has_runs = bool(queue.database.peek(workflow_tables.VERSION))
    for state, before_ms in limits.items():
        if dry_run:
            counting: LiteralString = COUNT_BUT_STEPS if has_runs else COUNT
            ((count,),) = queue.database.peek(counting, {"state": state, "before_ms": before_ms})
            deleted[state] = cast(int, count)
            continue
        # The moment is fixed at the start: what ends meanwhile is for the next prune.
        values: dict[str, Value] = {"state": state, "before_ms": before_ms, "limit": PRUNE_BATCH}
        values |= {"after_ms": -1, "after_id": 0}
        # Found without the lock, and from where the last step ended: the steps of workflows that
        # are passed over may be many.
        first: LiteralString = FIRST_BUT_STEPS if has_runs else FIRST
        while found := queue.database.peek(first, values):
            ids = json.dumps([job_id for _, job_id in found])
            with queue.transaction() as tx:
                deleted[state] += tx.change(DELETE, {"ids": ids, "before_ms": before_ms})
            if progress is not None:
                progress(sum(deleted.values()))
            values["after_ms"], values["after_id"] = found[-1]
    for name, count in prune_runs(queue, limits, dry_run=dry_run).items():
        deleted[name] = deleted.get(name, 0) + count
    if effects is not None:
        before_ms = now_ms - model.to_ms(effects, "time to keep effects")
        deleted["effects"] = _forget_effects(queue, before_ms, dry_run=dry_run)
    return Pruned(deleted=deleted, dry_run=dry_run)


HAS_EFFECTS: Final = "SELECT 1 FROM killproof_schema WHERE component = 'effects'"

# There is no index by age, and none is worth its writes: a step is so many entries in their order.

LAST_OF_STEP: Final = """
    SELECT scope, key FROM (SELECT scope, key FROM effect
                             WHERE (scope, key) > (:scope, :key)
                             ORDER BY scope, key LIMIT :limit)
     ORDER BY scope DESC, key DESC LIMIT 1"""

COUNT_EFFECTS: Final = """
    SELECT count(*) FROM effect
     WHERE (scope, key) > (:scope, :key) AND (scope, key) <= (:last_scope, :last_key)
       AND state IN ('applied', 'rejected') AND settled_ms < :before_ms
       AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = effect.job_id AND finished_ms IS NULL)"""

DELETE_EFFECTS: Final = """
    DELETE FROM effect
     WHERE (scope, key) > (:scope, :key) AND (scope, key) <= (:last_scope, :last_key)
       AND state IN ('applied', 'rejected') AND settled_ms < :before_ms
       AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = effect.job_id AND finished_ms IS NULL)"""


def _forget_effects(queue: Queue, before_ms: int, *, dry_run: bool) -> int:
    """Go through the ledger step by step; return how many entries went, or would."""
    if not queue.database.peek(HAS_EFFECTS):
        return 0
    forgotten = 0
    values: dict[str, Value] = {"scope": "", "key": "", "limit": PRUNE_BATCH}
    values["before_ms"] = before_ms
    while found := queue.database.peek(LAST_OF_STEP, values):
        values["last_scope"], values["last_key"] = found[0]
        if dry_run:
            ((count,),) = queue.database.peek(COUNT_EFFECTS, values)
            forgotten += cast(int, count)
        else:
            with queue.transaction() as tx:
                forgotten += tx.change(DELETE_EFFECTS, values)
        values["scope"], values["key"] = found[0]
    return forgotten
