"""Take ended runs out of the file, each as a whole: the run, its steps, their jobs and attempts.

A step is never pruned by itself, whatever its age: its result may be what a later step reads, and
a run with holes could not be replayed.  (The trigger `workflow_step_kept` refuses it to everybody.)
A run is old when *it* ended long enough ago.  Which limit counts for it:

    runs                          limit of jobs that
    succeeded                     succeeded
    failed, compensation_failed   died
    cancelled, compensated        were cancelled

Each transaction deletes the runs that come first by their end, about `BATCH_JOBS` jobs in all, and
never a part of one.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

from killproof import workflow_tables
from killproof.core.database import Transaction, Value
from killproof.core.jobs import Queue

#: Jobs that are deleted under one hold of the write lock, unless a single run has more.
BATCH_JOBS: Final = 500
#: Whose limit counts for the runs in a state.
LIMIT_OF: Final = {
    "succeeded": "succeeded",
    "failed": "dead",
    "compensation_failed": "dead",
    "cancelled": "cancelled",
    "compensated": "cancelled",
}

COUNT_RUNS: Final = """
    SELECT count(DISTINCT run.id), count(step.job_id)
      FROM workflow_run AS run LEFT JOIN workflow_step AS step ON step.run_id = run.id
     WHERE run.state = :state AND run.finished_ms < :before_ms"""

FIRST_RUNS: Final = """
    SELECT id, (SELECT count(*) FROM workflow_step WHERE run_id = run.id)
      FROM workflow_run AS run
     WHERE state = :state AND finished_ms < :before_ms
     ORDER BY finished_ms LIMIT :limit"""

JOBS_OF_RUN: Final = "SELECT job_id FROM workflow_step WHERE run_id = :run_id"

DELETE_NEEDS: Final = """
    DELETE FROM workflow_need
     WHERE job_id IN (SELECT job_id FROM workflow_step WHERE run_id = :run_id)"""

DELETE_STEPS: Final = "DELETE FROM workflow_step WHERE run_id = :run_id"

DELETE_RUN: Final = "DELETE FROM workflow_run WHERE id = :run_id"

DELETE_JOB: Final = """
    DELETE FROM job
     WHERE id = :id AND state IN ('succeeded', 'dead', 'cancelled', 'expired')"""


def prune_runs(
    queue: Queue,
    before_ms: Mapping[str, int],
    *,
    dry_run: bool,
    progress: Callable[[int], object] = lambda _: None,
) -> dict[str, int]:
    """Delete the runs that ended before the limit of their state; return what was deleted.

    Args:
        queue: where they are.
        before_ms: for each of `succeeded`, `dead`, `cancelled` that is to be pruned, the moment
            before which a run ended.
        dry_run: count, and delete nothing.
        progress: called after each step with the number of jobs deleted so far.

    Returns:
        Jobs by the names of the limits, and `runs`; empty if no run was ever started in the file.

    Raises:
        KillproofError: as for `Queue.cancel`; the steps before stay done.
    """
    if not queue.database.peek(workflow_tables.VERSION):
        return {}
    deleted = dict.fromkeys(before_ms, 0) | {"runs": 0}
    for state, limit in LIMIT_OF.items():
        if limit not in before_ms:
            continue
        values: dict[str, Value] = {"state": state, "before_ms": before_ms[limit]}
        if dry_run:
            ((runs, jobs),) = cast(list[tuple[int, int]], queue.database.peek(COUNT_RUNS, values))
            deleted["runs"] += runs
            deleted[limit] += jobs
            continue
        while True:
            with queue.transaction() as tx:
                runs, jobs = _delete_some(tx, values)
            deleted["runs"] += runs
            deleted[limit] += jobs
            progress(sum(deleted.values()) - deleted["runs"])
            if not runs:
                break
    return deleted


def _delete_some(tx: Transaction, values: dict[str, Value]) -> tuple[int, int]:
    """Delete the first runs as wholes; return the numbers of runs and of jobs."""
    runs = jobs = 0
    found = tx.rows(FIRST_RUNS, values | {"limit": BATCH_JOBS})
    for run_id, size in cast(list[tuple[int, int]], found):
        if runs and jobs + size > BATCH_JOBS:
            break
        ids = tx.rows(JOBS_OF_RUN, {"run_id": run_id})
        tx.change(DELETE_NEEDS, {"run_id": run_id})
        tx.change(DELETE_STEPS, {"run_id": run_id})
        tx.change(DELETE_RUN, {"run_id": run_id})
        for (job_id,) in ids:
            tx.change(DELETE_JOB, {"id": job_id})
        runs, jobs = runs + 1, jobs + size
    return runs, jobs
