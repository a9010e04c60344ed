"""Runs in an export, and their way back in: one line each, after the jobs that are its steps.

The line of the run says which jobs those are, and is read at one moment with them: a fan-out whose
jobs were there without the success that they came from could not go on.  An import believes the
jobs, which it has put in, and derives the rest from them: what has an outcome, who waits for how
many, and the state of the run.  It puts in as `blocked` what could start, and lets it go in the
transaction in which the run comes in.  A step that was running at the export runs again.

A step may have stayed behind, because its large payload was lost.  What needs it never starts then,
and the run comes in called off, without compensation: a person is told, and decides.
"""

from typing import Any, Final, cast

from killproof import workflow_tables
from killproof.core import model
from killproof.core.database import Transaction, Value

#: What begins the line of a run.
MARK: Final = "killproof_run"

NEXT_RUN: Final = """
    SELECT id, name, key, state, undo, cancelled, created_ms, finished_ms, expires_ms, payload
      FROM workflow_run WHERE id > :after ORDER BY id LIMIT 1"""

STEPS: Final = """
    SELECT job_id, job.created_ms, name, number, item, undoes, delay_ms, swept_by, place, undo_kind,
           undone
      FROM workflow_step JOIN job ON job.id = job_id WHERE run_id = :id ORDER BY job_id"""

NEEDS: Final = """
    SELECT need.job_id, needs_job_id, spread
      FROM workflow_step AS step JOIN workflow_need AS need ON need.job_id = step.job_id
     WHERE step.run_id = :id"""

_RUN: Final = (
    *("id", "name", "key", "state", "undo", "cancelled"),
    *("created_ms", "finished_ms", "expires_ms", "payload"),
)
_STEP: Final = (
    *("job_id", "created_ms", "name", "number", "item", "undoes", "delay_ms", "swept_by"),
    *("place", "undo_kind", "undone"),
)


def following(tx: Transaction, after: int) -> dict[str, Any] | None:
    """Return the run that comes next by its id, for its line; None after the last."""
    row = tx.row(NEXT_RUN, {"after": after}) if workflow_tables.exists(tx) else None
    if row is None:
        return None
    values = {"id": row[0]}
    steps = [dict(zip(_STEP, step, strict=True)) for step in tx.rows(STEPS, values)]
    needs = [list(need) for need in tx.rows(NEEDS, values)]
    return dict(zip(_RUN, row, strict=True)) | {"steps": steps, "needs": needs}


def is_run(line: str) -> bool:
    """Whether a line of an export is that of a run."""
    return MARK in line[:20]


CAME_AS: Final = """
    SELECT job_id FROM imported_job
     WHERE source = :source AND source_id = :id AND created_ms = :created_ms
       AND EXISTS (SELECT 1 FROM job WHERE job.id = imported_job.job_id)"""

IS_STEP: Final = "SELECT 1 FROM workflow_step WHERE job_id = :id"

KEY_IS_TAKEN: Final = "SELECT id FROM workflow_run WHERE name = :name AND key = :key"

INSERT_RUN: Final = """
    INSERT INTO workflow_run (name, key, state, steps, undo, cancelled, created_ms, checked_ms,
                              expires_ms, payload)
    VALUES (:name, :key, 'running', 0, :undo, :cancelled, :created_ms, :created_ms, :expires_ms,
            :payload)"""

INSERT_STEP: Final = """
    INSERT INTO workflow_step (job_id, run_id, name, number, item, undoes, unmet, delay_ms,
                               outcome, swept_by, place, undo_kind, undone)
    SELECT id, :run_id, :name, :number, :item, :undoes, 0, :delay_ms,
           iif(finished_ms IS NULL, NULL, state), iif(state = 'cancelled', :swept_by, NULL),
           :place, :undo_kind, :undone
      FROM job WHERE id = :id"""

INSERT_NEED: Final = "INSERT OR IGNORE INTO workflow_need VALUES (:id, :need, :spread)"

#: Stands for a step that stayed behind: no job gets this number, so it never succeeds.
STAYED_BEHIND: Final = (1 << 63) - 1

COUNT_UNMET: Final = """
    UPDATE workflow_step
       SET unmet = (SELECT count(*) FROM workflow_need AS need
                      LEFT JOIN job ON job.id = need.needs_job_id
                     WHERE need.job_id = workflow_step.job_id
                       AND coalesce(job.state, '') <> 'succeeded')
     WHERE run_id = :run_id"""

CALL_OFF: Final = """
    UPDATE workflow_step SET outcome = 'cancelled', swept_by = 0
     WHERE run_id = :run_id AND outcome IS NULL"""

CANCEL: Final = """
    UPDATE job SET state = 'cancelled', finished_ms = :now_ms, updated_ms = :now_ms
     WHERE id IN (SELECT job_id FROM workflow_step WHERE run_id = :run_id AND swept_by = 0)
       AND +state IN ('blocked', 'held')"""

LET_GO: Final = """
    UPDATE job SET state = iif(due_ms > :now_ms, 'scheduled', 'available'), updated_ms = :now_ms
     WHERE +state = 'blocked'
       AND id IN (SELECT job_id FROM workflow_step WHERE run_id = :run_id AND unmet = 0)"""

COUNT_STEPS: Final = """
    UPDATE workflow_run
       SET steps = (SELECT count(*) FROM workflow_step WHERE run_id = :run_id AND undoes = 0),
           succeeded = (SELECT count(*) FROM workflow_step
                         WHERE run_id = :run_id AND undoes = 0 AND outcome = 'succeeded'),
           state = iif(EXISTS (SELECT 1 FROM workflow_step WHERE run_id = :run_id AND undoes > 0),
                       'compensating', 'running')
     WHERE id = :run_id"""

#: A run that had ended is put back as it was, its times included, unless a step goes on.
END: Final = """
    UPDATE workflow_run SET state = :state, finished_ms = :finished_ms
     WHERE id = :run_id
       AND NOT EXISTS (SELECT 1 FROM workflow_step WHERE run_id = :run_id AND outcome IS NULL)"""

CHECK_RUN: Final = "UPDATE workflow_run SET checked_ms = :now_ms WHERE id = :run_id"


def put_in(tx: Transaction, source: str, line: object, now_ms: int) -> str:
    """Put a run in whose jobs have come in before; return '', or what a person must know.

    A run whose key another run has comes in without its key: its steps are in the file already.

    Raises:
        KeyError, TypeError, ValueError: the line is not what an export writes; definite.
    """
    if not isinstance(line, dict):
        raise ValueError("it is no object")
    run: dict[str, Any] = line[MARK]
    ids: dict[int, int] = {}
    for step in run["steps"]:
        found = tx.row(
            CAME_AS, {"source": source, "id": step["job_id"], "created_ms": step["created_ms"]}
        )
        if found is not None:
            ids[step["job_id"]] = cast(int, found[0])
    workflow_tables.ensure(tx)
    if any(tx.row(IS_STEP, {"id": job_id}) for job_id in ids.values()):
        return ""  # It came in before.
    model.check_text(run["name"], "name", 100)
    values: dict[str, Value] = {name: run[name] for name in _RUN}
    taken = None if run["key"] is None else tx.row(KEY_IS_TAKEN, values)
    if not ids and (run["steps"] or run["key"] is None or taken is not None):
        return ""  # Nothing of it came in; an order that waits for its first step has a key.
    told: list[str] = []
    if taken is not None:
        told.append(f"without its key {run['key']!r}, which run {taken[0]!r} has")
        values["key"] = None
    if behind := len(run["steps"]) - len(ids):
        told.append(f"without {behind} of its steps: what needs them is called off")
        values |= {"cancelled": 1, "undo": 0}
    run_id = tx.insert(INSERT_RUN, values)
    values |= {"run_id": run_id, "now_ms": now_ms}
    _put_steps_in(tx, run, ids, values)
    tx.change(COUNT_UNMET, values)
    if behind:
        tx.change(CALL_OFF, values)
        tx.change(CANCEL, values)
    tx.change(LET_GO, values)
    tx.change(COUNT_STEPS, values)
    if run["finished_ms"] is not None:
        tx.change(END, values)
    if run["steps"]:  # Else it is an order of the articles, and waits for its first step.
        tx.change(CHECK_RUN, values)
    return f"run {run['id']} came in {', and '.join(told)}" if told else ""


def _put_steps_in(
    tx: Transaction, run: dict[str, Any], ids: dict[int, int], values: dict[str, Value]
) -> None:
    """Put in the steps and the needs of those whose jobs came in, under the new ids of these."""
    for step in run["steps"]:
        if (job_id := ids.get(step["job_id"])) is None:
            continue
        moved = {"undoes": 0, "swept_by": step["swept_by"]}
        if step["undoes"]:
            moved["undoes"] = ids.get(step["undoes"], STAYED_BEHIND)
        if step["swept_by"]:
            moved["swept_by"] = ids.get(step["swept_by"], 0)
        tx.change(INSERT_STEP, values | step | moved | {"id": job_id})
    for job, need, spread in run["needs"]:
        if job in ids:
            need_id = ids.get(need, STAYED_BEHIND)
            tx.change(INSERT_NEED, {"id": ids[job], "need": need_id, "spread": spread})
