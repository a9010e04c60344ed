"""Runs in an export, and their way back in: one line each, after the lines of the jobs.

The jobs of a run travel as all jobs do; the line of the run says which of them are its steps.  An
export is no snapshot: a step may be on its line as it was before its run went on.  So an import
believes the jobs, which it has put in, and derives the rest from them: what has an outcome, who
waits for how many, and the state of the run.  A step that was running at the export is available
after the import, and runs again; its run is `running` then, whatever it was by the end of the
export.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

from killproof import workflow_tables
from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.jobs import Queue

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


def lines(queue: Queue) -> Iterator[dict[str, Any]]:
    """Yield each run as a line of the export, read by itself."""
    after = 0
    while True:
        with queue.database.read() as tx:
            row = tx.row(NEXT_RUN, {"after": after}) if workflow_tables.exists(tx) else None
            if row is None:
                return
            after = cast(int, row[0])
            run = dict(zip(_RUN, row, strict=True))
            steps = [dict(zip(_STEP, step, strict=True)) for step in tx.rows(STEPS, {"id": after})]
            needs = [list(need) for need in tx.rows(NEEDS, {"id": after})]
        yield {MARK: run | {"steps": steps, "needs": needs}}


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

COUNT_UNMET: Final = """
    UPDATE workflow_step
       SET unmet = (SELECT count(*) FROM workflow_need AS need
                      JOIN job ON job.id = need.needs_job_id
                     WHERE need.job_id = workflow_step.job_id AND job.state <> 'succeeded')
     WHERE run_id = :run_id"""

LET_GO: Final = """
    UPDATE job SET state = 'available', updated_ms = :now_ms
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
    if not ids or any(tx.row(IS_STEP, {"id": job_id}) for job_id in ids.values()):
        return ""  # It came in before, or nothing of it did.
    why = ""
    values: dict[str, Value] = {name: run[name] for name in _RUN}
    model.check_text(run["name"], "name", 100)
    if run["key"] is not None and (taken := tx.row(KEY_IS_TAKEN, values)) is not None:
        why = f"run {run['id']} came in without its key {run['key']!r}, which run {taken[0]!r} has"
        values["key"] = None
    run_id = tx.insert(INSERT_RUN, values)
    values |= {"run_id": run_id, "now_ms": now_ms}
    for step in run["steps"]:
        if (job_id := ids.get(step["job_id"])) is None:
            continue
        moved = {"undoes": ids.get(step["undoes"], 0), "swept_by": step["swept_by"]}
        if step["swept_by"]:
            moved["swept_by"] = ids.get(step["swept_by"], 0)
        tx.change(INSERT_STEP, step | moved | {"id": job_id, "run_id": run_id})
    for job, need, spread in run["needs"]:
        if job in ids and need in ids:
            tx.change(INSERT_NEED, {"id": ids[job], "need": ids[need], "spread": spread})
    tx.change(COUNT_UNMET, values)
    tx.change(LET_GO, values)
    tx.change(COUNT_STEPS, values)
    if run["finished_ms"] is not None:
        tx.change(END, values)
    tx.change(CHECK_RUN, values)
    return why
