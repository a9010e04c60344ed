"""The tables of workflows, and the triggers that move a run in the transaction that ends a step.

    running --all steps succeeded-----------------------------------------------> succeeded
       |    --a step failed, nothing of it goes on, nothing to undo-------------> failed
       |    --the same, because somebody called the run off---------------------> cancelled
       |    --the same, and a step that succeeded has a compensation--> compensating
       |                                                                  |   |
       |                       its compensations succeeded, last step first   one of them failed
       |                                                                  v   v
       <--a step of a failed or cancelled run is replayed        compensated  compensation_failed

A step is a job.  A row of `workflow_step` says which run it belongs to and for how many needs it
still waits; a row of `workflow_need` is one arrow of the graph.  What a step's end means for the
others is written by triggers on `job`, inside the very transaction of that end, whoever ends it: an
ack, a reaper, a deadline, a person.  So there is no moment at which a step has ended and its run
does not know, and a crash leaves either both or none.

- `workflow_step_ended`: the step's outcome; on success its dependents come closer, and what waits
  for nothing more is let go; on failure everything below it is cancelled, in one statement over the
  whole graph (a chain of a thousand steps is no recursion of triggers).
- `workflow_run_checked`: when no step of the run is open any more, the run's state follows, and the
  next compensation is enqueued: one at a time, in the reverse order of the successes.
- `workflow_step_back`: a replay opens the run again, as if it had never been called off, and takes
  a deadline that has passed away; one that has not still counts.  Without a replay, nothing comes
  back after the deadline, though what it needs was running then and has succeeded since.
- `workflow_step_guard`: nobody, by whatever command, lets a step go before its needs have
  succeeded, nor one that was undone: such a row is passed over.
- `workflow_step_kept`: a step's job is deleted together with its run only.

`unmet`, `outcome` and `succeeded` repeat what `job` and `workflow_need` say.  They are what makes
the price of a step's end independent of the length of the run: each question is one index entry.
No CHECK stands on what work moves: a statement of a trigger that fails would fail the ack.

A job outside of any run pays the WHEN of these triggers: some comparisons, and at its end one
look into an index.  Before the first run of a file there are no triggers at all.
"""

from typing import Final, LiteralString

from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused

SCHEMA_VERSION: Final = 1
#: Steps of one run, those of its fan-outs included.  It bounds what one transaction may have to
#: move at once (a start, a failure, a cancellation): about 0.2 s under the write lock.
STEPS_MAX: Final = 5_000
#: Arrows between them.
NEEDS_MAX: Final = 20_000

VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'workflow'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('workflow', :version)"

FIND_TABLES: Final = """
    SELECT name FROM sqlite_schema
     WHERE lower(name) IN ('workflow_run', 'workflow_step', 'workflow_need')"""

CREATE: Final[tuple[LiteralString, ...]] = (
    """CREATE TABLE workflow_run (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        name        TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
        key         TEXT    CHECK (length(key) BETWEEN 1 AND 500),
        state       TEXT    NOT NULL CHECK (state IN ('running', 'succeeded', 'failed', 'cancelled',
                                'compensating', 'compensated', 'compensation_failed')),
        steps       INTEGER NOT NULL CHECK (steps >= 0),      -- without compensations
        succeeded   INTEGER NOT NULL DEFAULT 0,
        undo        INTEGER NOT NULL DEFAULT 1 CHECK (undo IN (0, 1)),  -- a failure is compensated
        cancelled   INTEGER NOT NULL DEFAULT 0 CHECK (cancelled IN (0, 1)),  -- a person's word
        created_ms  INTEGER NOT NULL,
        checked_ms  INTEGER NOT NULL,  -- a step has ended: whoever writes it derives the state
        finished_ms INTEGER,
        expires_ms  INTEGER,           -- from then on no step begins
        payload     TEXT    NOT NULL CHECK (json_valid(payload)),
        CHECK ((state IN ('running', 'compensating')) = (finished_ms IS NULL))
    ) STRICT""",
    # Serves start: a run is started once for its key, for as long as its row is kept.
    """CREATE UNIQUE INDEX workflow_run_key ON workflow_run (name, key) WHERE key IS NOT NULL""",
    # Serves lists and retention.
    """CREATE INDEX workflow_run_state ON workflow_run (state, finished_ms)""",
    # Serves counts by workflow and state.
    """CREATE INDEX workflow_run_name ON workflow_run (name, state)""",
    """CREATE TABLE workflow_step (
        job_id    INTEGER PRIMARY KEY REFERENCES job (id),
        run_id    INTEGER NOT NULL REFERENCES workflow_run (id),
        name      TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 90),
        number    INTEGER NOT NULL,            -- its place in the definition, for people
        item      INTEGER NOT NULL DEFAULT 0,  -- 1 and up: one of a fan-out, its place in the list
        undoes    INTEGER NOT NULL DEFAULT 0,  -- the job that it compensates
        unmet     INTEGER NOT NULL,            -- needs that have not succeeded
        delay_ms  INTEGER NOT NULL DEFAULT 0,  -- from the success of the last need to its due time
        outcome   TEXT CHECK (outcome IN ('succeeded', 'dead', 'cancelled', 'expired')),
        swept_by  INTEGER,                     -- cancelled with this failed job; 0: with its run
        place     INTEGER,                     -- it was the n-th success of its run
        undo_kind TEXT,                        -- the kind of job that compensates it
        undone    INTEGER NOT NULL DEFAULT 0 CHECK (undone IN (0, 1)),  -- that job was enqueued
        CHECK (swept_by IS NULL OR outcome = 'cancelled')
    ) STRICT""",
    # A name is given once in a run, and a step is compensated once; serves reading a run.
    """CREATE UNIQUE INDEX workflow_step_name ON workflow_step (run_id, undoes, name, item)""",
    # Serve the trigger on the run: is a step open, has one failed, what is undone next.
    """CREATE INDEX workflow_step_open ON workflow_step (run_id) WHERE outcome IS NULL""",
    """CREATE INDEX workflow_step_failed ON workflow_step (run_id, undoes, swept_by)
        WHERE outcome IN ('dead', 'cancelled', 'expired')""",
    """CREATE INDEX workflow_step_undo ON workflow_step (run_id, place)
        WHERE undo_kind IS NOT NULL AND outcome = 'succeeded' AND undone = 0""",
    """CREATE TABLE workflow_need (
        job_id       INTEGER NOT NULL,             -- it waits ...
        needs_job_id INTEGER NOT NULL,             -- ... for this one to succeed
        spread       TEXT    NOT NULL DEFAULT '',  -- and for the step's jobs that that one spreads
        PRIMARY KEY (job_id, needs_job_id, spread)
    ) STRICT, WITHOUT ROWID""",
    # Serves the end of a step: who waits for it.
    """CREATE INDEX workflow_need_of ON workflow_need (needs_job_id)""",
    # What an UPDATE over many rows (the claim's EXPIRE) will reach by itself is left to it: the
    # rows were chosen before the first trigger ran, and would be moved a second time.  A `+` keeps
    # the planner from walking through all jobs of a state instead of the few that are named.
    """CREATE TRIGGER workflow_step_ended AFTER UPDATE OF state ON job
        WHEN NEW.finished_ms IS NOT NULL
         AND EXISTS (SELECT 1 FROM workflow_step WHERE job_id = NEW.id AND outcome IS NULL)
       BEGIN
        UPDATE workflow_step
           SET outcome = NEW.state,
               place = iif(NEW.state = 'succeeded',
                           (SELECT succeeded + 1 FROM workflow_run WHERE id = run_id), NULL)
         WHERE job_id = NEW.id;
        UPDATE workflow_step
           SET unmet = max(0, unmet - (SELECT count(*) FROM workflow_need AS need
                                        WHERE need.job_id = workflow_step.job_id
                                          AND need.needs_job_id = NEW.id))
         WHERE NEW.state = 'succeeded'
           AND job_id IN (SELECT job_id FROM workflow_need WHERE needs_job_id = NEW.id);
        UPDATE job
           SET state = iif(state = 'blocked'
                           AND (SELECT delay_ms FROM workflow_step WHERE job_id = job.id) > 0,
                           'scheduled', 'available'),
               due_ms = NEW.updated_ms
                        + (SELECT delay_ms FROM workflow_step WHERE job_id = job.id),
               expires_ms = iif(state = 'blocked', expires_ms, NULL),
               finished_ms = NULL, updated_ms = NEW.updated_ms
         WHERE NEW.state = 'succeeded'
           AND +state IN ('blocked', 'cancelled', 'expired')
           AND id IN (SELECT job_id FROM workflow_need JOIN workflow_step AS step USING (job_id)
                        JOIN workflow_run AS run ON run.id = step.run_id
                       WHERE needs_job_id = NEW.id AND unmet = 0
                         AND (outcome IS NULL
                              OR ((outcome = 'expired' OR swept_by IS NOT NULL)
                                  AND (run.expires_ms IS NULL
                                       OR run.expires_ms > NEW.updated_ms))));
        UPDATE workflow_step
           SET outcome = 'cancelled', swept_by = NEW.id
         WHERE NEW.state <> 'succeeded' AND outcome IS NULL
           AND job_id IN (WITH RECURSIVE below (id) AS (
                              SELECT job_id FROM workflow_need WHERE needs_job_id = NEW.id
                               UNION
                              SELECT need.job_id FROM below
                                JOIN workflow_need AS need ON need.needs_job_id = below.id)
                          SELECT below.id FROM below JOIN job ON job.id = below.id
                           WHERE job.expires_ms IS NULL OR job.expires_ms > NEW.updated_ms);
        UPDATE job
           SET state = 'cancelled', finished_ms = NEW.updated_ms, updated_ms = NEW.updated_ms
         WHERE NEW.state <> 'succeeded' AND +state IN ('blocked', 'held')
           AND id IN (SELECT job_id FROM workflow_step
                       WHERE run_id = (SELECT run_id FROM workflow_step WHERE job_id = NEW.id)
                         AND undoes = 0 AND swept_by = NEW.id
                         AND outcome IN ('dead', 'cancelled', 'expired'));
        UPDATE workflow_run
           SET succeeded = succeeded + (SELECT outcome = 'succeeded' AND undoes = 0
                                          FROM workflow_step WHERE job_id = NEW.id),
               checked_ms = NEW.updated_ms
         WHERE id = (SELECT run_id FROM workflow_step WHERE job_id = NEW.id);
       END""",
    """CREATE TRIGGER workflow_run_checked AFTER UPDATE OF checked_ms ON workflow_run
        WHEN NEW.state IN ('running', 'compensating')
         AND NOT EXISTS (SELECT 1 FROM workflow_step WHERE run_id = NEW.id AND outcome IS NULL)
       BEGIN
        UPDATE workflow_run
           SET (state, finished_ms) = (
               SELECT next, iif(next = 'compensating', NULL, NEW.checked_ms)
                 FROM (SELECT CASE
                    WHEN NOT EXISTS (SELECT 1 FROM workflow_step
                                      WHERE run_id = NEW.id AND undoes = 0
                                        AND outcome IN ('dead', 'cancelled', 'expired'))
                        THEN 'succeeded'
                    WHEN EXISTS (SELECT 1 FROM workflow_step
                                  WHERE run_id = NEW.id AND undoes > 0
                                    AND outcome IN ('dead', 'cancelled', 'expired'))
                        THEN 'compensation_failed'
                    WHEN NEW.undo AND EXISTS (
                             SELECT 1 FROM workflow_step
                              WHERE run_id = NEW.id AND undo_kind IS NOT NULL
                                AND outcome = 'succeeded' AND undone = 0)
                        THEN 'compensating'
                    WHEN NEW.state = 'compensating' THEN 'compensated'
                    WHEN NEW.cancelled THEN 'cancelled'
                    ELSE 'failed' END AS next))
         WHERE id = NEW.id;
        INSERT INTO job (kind, state, payload, priority, due_ms, max_attempts, lease_ms, retry,
                         created_ms, updated_ms)
        SELECT undo_kind, 'available',
               json_object('run', run_id, 'workflow', NEW.name, 'undo', step.name),
               priority, NEW.checked_ms, max_attempts, lease_ms, retry,
               NEW.checked_ms, NEW.checked_ms
          FROM workflow_step AS step JOIN job ON job.id = step.job_id
         WHERE run_id = NEW.id AND undo_kind IS NOT NULL AND outcome = 'succeeded'
           AND undone = 0
           AND (SELECT state FROM workflow_run WHERE id = NEW.id) = 'compensating'
         ORDER BY place DESC LIMIT 1;
        INSERT INTO workflow_step (job_id, run_id, name, number, item, undoes, unmet)
        SELECT last_insert_rowid(), run_id, name, number, item, job_id, 0
          FROM workflow_step
         WHERE run_id = NEW.id AND undo_kind IS NOT NULL AND outcome = 'succeeded'
           AND undone = 0
           AND (SELECT state FROM workflow_run WHERE id = NEW.id) = 'compensating'
         ORDER BY place DESC LIMIT 1;
        UPDATE workflow_step SET undone = 1
         WHERE (SELECT state FROM workflow_run WHERE id = NEW.id) = 'compensating'
           AND job_id = (SELECT undoes FROM workflow_step WHERE job_id = last_insert_rowid());
       END""",
    """CREATE TRIGGER workflow_step_back AFTER UPDATE OF state ON job
        WHEN OLD.finished_ms IS NOT NULL AND NEW.state = 'available'
         AND EXISTS (SELECT 1 FROM workflow_step WHERE job_id = NEW.id)
       BEGIN
        UPDATE workflow_step SET outcome = NULL, swept_by = NULL WHERE job_id = NEW.id;
        UPDATE workflow_run
           SET state = iif(state IN ('compensating', 'compensation_failed'),
                           'compensating', 'running'),
               undo = 1, cancelled = 0, finished_ms = NULL,
               expires_ms = iif(expires_ms <= NEW.updated_ms, NULL, expires_ms)
         WHERE id = (SELECT run_id FROM workflow_step WHERE job_id = NEW.id);
        UPDATE job
           SET expires_ms = (SELECT run.expires_ms
                               FROM workflow_step AS step
                               JOIN workflow_run AS run ON run.id = step.run_id
                              WHERE step.job_id = NEW.id AND step.undoes = 0)
         WHERE id = NEW.id AND expires_ms IS NULL;
       END""",
    """CREATE TRIGGER workflow_step_guard BEFORE UPDATE OF state ON job
        WHEN (NEW.state = 'available' OR NEW.state = 'scheduled')
         AND (OLD.finished_ms IS NOT NULL OR OLD.state = 'held' OR OLD.state = 'blocked')
         AND EXISTS (SELECT 1 FROM workflow_step AS step
                       JOIN workflow_run AS run ON run.id = step.run_id
                      WHERE step.job_id = NEW.id
                        AND (step.unmet > 0
                             OR (step.undoes = 0 AND run.state IN
                                 ('compensating', 'compensated', 'compensation_failed'))))
       BEGIN
        SELECT RAISE(IGNORE);
       END""",
    """CREATE TRIGGER workflow_step_kept BEFORE DELETE ON job
        WHEN EXISTS (SELECT 1 FROM workflow_step WHERE job_id = OLD.id)
       BEGIN
        SELECT RAISE(IGNORE);
       END""",
)


def exists(tx: Transaction) -> bool:
    """Say whether a run was ever started in this file.

    Raises:
        FileRefused: the tables are those of a newer killproof; definite.
    """
    return has_version(tx, tx.row(VERSION), SCHEMA_VERSION, "workflows have")


def ensure(tx: Transaction) -> None:
    """Make the tables and triggers at the first use in a file, in the transaction of that use.

    Raises:
        FileRefused: the application has a table of such a name, or they are newer; definite.
    """
    if not exists(tx):
        refuse_taken(tx, tx.row(FIND_TABLES))
        for statement in CREATE:
            tx.change(statement)
        tx.change(SET_VERSION, {"version": SCHEMA_VERSION})


def has_version(tx: Transaction, found: tuple[Value, ...] | None, known: int, what: str) -> bool:
    """Say whether tables are there, of the version that this code knows.

    Raises:
        FileRefused: they are those of a newer killproof; definite.
    """
    if found is not None and found != (known,):
        raise FileRefused(
            f"{tx.path}: its {what} version {found[0]!r}, "
            f"this killproof knows {known}: upgrade killproof"
        )
    return found is not None


def refuse_taken(tx: Transaction, taken: tuple[Value, ...] | None) -> None:
    """Refuse a file whose application has a table of a name that is to be made.

    Raises:
        FileRefused: it has one; definite.
    """
    if taken is not None:
        raise FileRefused(
            f"{tx.path} has a table {taken[0]!r} that is not killproof's: "
            "rename it, or use another file"
        )
