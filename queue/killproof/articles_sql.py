"""The SQL of `killproof.articles`: views with the words of the articles, and what writes through.

A view is a way to look, and an INSERT into it is translated into a proper job; anything else is
refused by a trigger that says what to call instead.

- **A calendar that is not**: `datetime` gives 30 February back as it is, until a modifier makes it
  reckon; hence '+0 days'.
- **Times** are text in UTC, `YYYY-MM-DD HH:MM:SS`, cut to the second; only the moment of a job
  that still waits for it is rounded up, so that nobody takes it for due before it is.
- **An INSERT takes the time from SQLite**: no program of ours runs there that could bring it.
- **Refusals are RAISE(ABORT), and come before the row**: an outer `INSERT OR REPLACE` hands its
  conflict rule down to the statements of a trigger, and would let a new row delete a living job
  that has its key.
- The text of each view has `MARK` in it, which SQLite keeps: by it a view of ours is known.

The rules repeat the limits of `killproof.core.model`; a test compares.
"""

from typing import Final, LiteralString

MARK: Final = "-- Made by killproof articles."

JOBS: Final = """
    CREATE VIEW jobs AS -- Made by killproof articles.
    SELECT id,
           kind AS type,
           payload,
           CASE state WHEN 'scheduled' THEN 'pending' WHEN 'available' THEN 'pending'
                      WHEN 'retryable' THEN 'pending' WHEN 'leased' THEN 'processing'
                      WHEN 'succeeded' THEN 'done' WHEN 'dead' THEN 'failed'
                      ELSE state END AS status,
           deliveries - forgiven AS attempts,
           max_attempts,
           datetime(CASE WHEN state IN ('scheduled', 'retryable') THEN (due_ms + 999) / 1000
                         ELSE due_ms / 1000 END, 'unixepoch') AS run_after,
           CASE state WHEN 'leased' THEN datetime(claimed_ms / 1000, 'unixepoch') END AS locked_at,
           error_class || CASE WHEN error_message <> '' THEN ': ' || error_message ELSE '' END
               AS last_error,
           datetime(created_ms / 1000, 'unixepoch') AS created_at,
           datetime(updated_ms / 1000, 'unixepoch') AS updated_at,
           priority,
           key AS idempotency_key
      FROM job"""

JOBS_INSERT: Final = """
    CREATE TRIGGER killproof_jobs_insert INSTEAD OF INSERT ON jobs BEGIN
        SELECT RAISE(ABORT, 'jobs: the queue gives the id: leave it out')
         WHERE NEW.id IS NOT NULL;
        SELECT RAISE(ABORT,
            'jobs: leave out status, attempts, locked_at, last_error: a new job has none')
         WHERE coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.attempts, 0) <> 0
            OR NEW.locked_at IS NOT NULL OR NEW.last_error IS NOT NULL;
        SELECT RAISE(ABORT, 'jobs: type must be text of 1 to 200 characters')
         WHERE typeof(NEW.type) <> 'text' OR length(NEW.type) NOT BETWEEN 1 AND 200
            OR instr(CAST(NEW.type AS BLOB), x'00') > 0;
        SELECT RAISE(ABORT, 'jobs: payload must be JSON, as text')
         WHERE typeof(NEW.payload) <> 'text' OR NOT json_valid(NEW.payload);
        SELECT RAISE(ABORT, 'jobs: payload is over 1048576 bytes: enqueue its file''s path')
         WHERE length(CAST(NEW.payload AS BLOB)) > 1048576;
        SELECT RAISE(ABORT, 'jobs: priority must be an integer from 0 (urgent) to 9')
         WHERE NEW.priority IS NOT NULL
           AND (typeof(NEW.priority) <> 'integer' OR NEW.priority NOT BETWEEN 0 AND 9);
        SELECT RAISE(ABORT, 'jobs: max_attempts must be an integer from 1 to 1000000')
         WHERE NEW.max_attempts IS NOT NULL
           AND (typeof(NEW.max_attempts) <> 'integer'
                OR NEW.max_attempts NOT BETWEEN 1 AND 1000000);
        SELECT RAISE(ABORT,
            'jobs: run_after, created_at, updated_at must be UTC: YYYY-MM-DD HH:MM:SS')
         WHERE EXISTS (SELECT 1 FROM (SELECT NEW.run_after AS given
                                      UNION ALL SELECT NEW.created_at
                                      UNION ALL SELECT NEW.updated_at)
                        WHERE datetime(given, '+0 days') IS NOT given);
        SELECT RAISE(ABORT, 'jobs: idempotency_key must be text of 1 to 500 characters')
         WHERE NEW.idempotency_key IS NOT NULL
           AND (typeof(NEW.idempotency_key) <> 'text'
                OR length(NEW.idempotency_key) NOT BETWEEN 1 AND 500
                OR instr(CAST(NEW.idempotency_key AS BLOB), x'00') > 0);
        SELECT RAISE(ABORT, 'jobs: a job with this idempotency_key has not ended yet')
         WHERE EXISTS (SELECT 1 FROM job WHERE key = NEW.idempotency_key AND key IS NOT NULL
                          AND state IN ('blocked', 'scheduled', 'available', 'leased',
                                        'retryable', 'held'));
        INSERT INTO job (kind, state, priority, due_ms, key, max_attempts, retry, created_ms,
                         updated_ms, payload)
        SELECT NEW.type,
               CASE WHEN due_ms > now_ms THEN 'scheduled' ELSE 'available' END,
               coalesce(NEW.priority, 5),
               max(due_ms, now_ms),
               NEW.idempotency_key,
               coalesce(NEW.max_attempts, 5),
               'article',
               coalesce(CAST(strftime('%s', NEW.created_at) AS INTEGER) * 1000, now_ms),
               coalesce(CAST(strftime('%s', NEW.updated_at) AS INTEGER) * 1000, now_ms),
               NEW.payload
          FROM (SELECT now_ms,
                       coalesce(CAST(strftime('%s', NEW.run_after) AS INTEGER) * 1000, now_ms)
                           AS due_ms
                  FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000
                               + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms));
    END"""

JOBS_UPDATE: Final = """
    CREATE TRIGGER killproof_jobs_update INSTEAD OF UPDATE ON jobs BEGIN
        SELECT CASE
            WHEN NEW.status IS NOT OLD.status AND NEW.status = 'pending' THEN
                RAISE(ABORT,
                'jobs is a view: stuck jobs come back by themselves, failed: killproof replay ID')
            WHEN NEW.status IS NOT OLD.status THEN
                RAISE(ABORT,
                'jobs is a view: killproof work claims and ends; by hand: Queue.claim, Queue.ack')
            WHEN NEW.priority IS NOT OLD.priority THEN
                RAISE(ABORT, 'jobs is a view: killproof reprioritise ID PRIORITY')
            ELSE RAISE(ABORT,
                'jobs is a view: INSERT adds a job, the rest are commands: killproof --help') END;
    END"""

JOBS_DELETE: Final = """
    CREATE TRIGGER killproof_jobs_delete INSTEAD OF DELETE ON jobs BEGIN
        SELECT RAISE(ABORT,
            'jobs is a view: killproof cancel ID stops one, killproof prune deletes what ended');
    END"""

TASKS: Final = """
    CREATE VIEW tasks AS -- Made by killproof articles.
    SELECT id,
           kind AS name,
           priority,
           payload,
           CASE state WHEN 'scheduled' THEN 'pending' WHEN 'available' THEN 'pending'
                      WHEN 'leased' THEN 'running' WHEN 'retryable' THEN 'retrying'
                      WHEN 'succeeded' THEN 'done' WHEN 'dead' THEN 'failed'
                      ELSE state END AS status,
           CASE WHEN state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')
                THEN deliveries - forgiven ELSE max(deliveries - forgiven - 1, 0) END AS retries,
           max_attempts AS max_retries,
           datetime(created_ms / 1000, 'unixepoch') AS created_at,
           datetime(claimed_ms / 1000, 'unixepoch') AS started_at,
           datetime(finished_ms / 1000, 'unixepoch') AS finished_at,
           error_class || CASE WHEN error_message <> '' THEN ': ' || error_message ELSE '' END
               AS error,
           result,
           key AS idempotency_key
      FROM job"""

TASKS_INSERT: Final = """
    CREATE TRIGGER killproof_tasks_insert INSTEAD OF INSERT ON tasks BEGIN
        SELECT RAISE(ABORT, 'tasks: the queue gives the id: leave it out')
         WHERE NEW.id IS NOT NULL;
        SELECT RAISE(ABORT,
            'tasks: leave out status, retries, error, result and times: a new task has none')
         WHERE coalesce(NEW.status, 'pending') <> 'pending' OR coalesce(NEW.retries, 0) <> 0
            OR NEW.started_at IS NOT NULL OR NEW.finished_at IS NOT NULL
            OR NEW.error IS NOT NULL OR NEW.result IS NOT NULL;
        SELECT RAISE(ABORT, 'tasks: name must be text of 1 to 200 characters')
         WHERE typeof(NEW.name) <> 'text' OR length(NEW.name) NOT BETWEEN 1 AND 200
            OR instr(CAST(NEW.name AS BLOB), x'00') > 0;
        SELECT RAISE(ABORT, 'tasks: payload must be JSON, as text')
         WHERE NEW.payload IS NOT NULL
           AND (typeof(NEW.payload) <> 'text' OR NOT json_valid(NEW.payload));
        SELECT RAISE(ABORT, 'tasks: payload is over 1048576 bytes: enqueue its file''s path')
         WHERE length(CAST(NEW.payload AS BLOB)) > 1048576;
        SELECT RAISE(ABORT, 'tasks: priority must be an integer from 0 (urgent) to 9')
         WHERE NEW.priority IS NOT NULL
           AND (typeof(NEW.priority) <> 'integer' OR NEW.priority NOT BETWEEN 0 AND 9);
        SELECT RAISE(ABORT, 'tasks: max_retries must be an integer from 1 to 1000000')
         WHERE NEW.max_retries IS NOT NULL
           AND (typeof(NEW.max_retries) <> 'integer' OR NEW.max_retries NOT BETWEEN 1 AND 1000000);
        SELECT RAISE(ABORT, 'tasks: created_at must be UTC, written YYYY-MM-DD HH:MM:SS')
         WHERE datetime(NEW.created_at, '+0 days') IS NOT NEW.created_at;
        SELECT RAISE(ABORT, 'tasks: idempotency_key must be text of 1 to 500 characters')
         WHERE NEW.idempotency_key IS NOT NULL
           AND (typeof(NEW.idempotency_key) <> 'text'
                OR length(NEW.idempotency_key) NOT BETWEEN 1 AND 500
                OR instr(CAST(NEW.idempotency_key AS BLOB), x'00') > 0);
        SELECT RAISE(ABORT, 'tasks: a task with this idempotency_key has not ended yet')
         WHERE EXISTS (SELECT 1 FROM job WHERE key = NEW.idempotency_key AND key IS NOT NULL
                          AND state IN ('blocked', 'scheduled', 'available', 'leased',
                                        'retryable', 'held'));
        INSERT INTO job (kind, state, priority, due_ms, key, max_attempts, retry, created_ms,
                         updated_ms, payload)
        SELECT NEW.name,
               'available',
               coalesce(NEW.priority, 5),
               now_ms,
               NEW.idempotency_key,
               coalesce(NEW.max_retries, 3),
               'article',
               coalesce(CAST(strftime('%s', NEW.created_at) AS INTEGER) * 1000, now_ms),
               now_ms,
               coalesce(NEW.payload, '{}')
          FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000
                       + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms);
    END"""

TASKS_UPDATE: Final = """
    CREATE TRIGGER killproof_tasks_update INSTEAD OF UPDATE ON tasks BEGIN
        SELECT CASE
            WHEN NEW.status IS NOT OLD.status AND NEW.status IN ('pending', 'retrying') THEN
                RAISE(ABORT,
                'tasks is a view: stuck tasks come back by themselves, failed: killproof replay ID')
            WHEN NEW.status IS NOT OLD.status THEN
                RAISE(ABORT,
                'tasks is a view: killproof work claims and ends; by hand: Queue.claim, Queue.ack')
            WHEN NEW.priority IS NOT OLD.priority THEN
                RAISE(ABORT, 'tasks is a view: killproof reprioritise ID PRIORITY')
            ELSE RAISE(ABORT,
                'tasks is a view: INSERT adds a task, the rest are commands: killproof --help') END;
    END"""

TASKS_DELETE: Final = """
    CREATE TRIGGER killproof_tasks_delete INSTEAD OF DELETE ON tasks BEGIN
        SELECT RAISE(ABORT,
            'tasks is a view: killproof cancel ID stops one, killproof prune deletes what ended');
    END"""

JOB_EFFECTS: Final = """
    CREATE VIEW job_effects AS -- Made by killproof articles.
    SELECT CASE scope WHEN 'job_effects' THEN key ELSE scope || '/' || key END AS idempotency_key,
           job_id,
           datetime(reserved_ms / 1000, 'unixepoch') AS created_at
      FROM effect
     WHERE state <> 'rejected'"""

JOB_EFFECTS_INSERT: Final = """
    CREATE TRIGGER killproof_job_effects_insert INSTEAD OF INSERT ON job_effects BEGIN
        SELECT RAISE(ABORT, 'job_effects: the time is SQLite''s: leave created_at out')
         WHERE NEW.created_at IS NOT NULL;
        SELECT RAISE(ABORT, 'job_effects: idempotency_key must be text of 1 to 500 characters')
         WHERE typeof(NEW.idempotency_key) <> 'text'
            OR length(NEW.idempotency_key) NOT BETWEEN 1 AND 500
            OR instr(CAST(NEW.idempotency_key AS BLOB), x'00') > 0;
        SELECT RAISE(ABORT,
            'job_effects: this idempotency_key is taken: do not run the effect again, look first')
         WHERE EXISTS (SELECT 1 FROM effect WHERE scope = 'job_effects'
                          AND key = NEW.idempotency_key);
        SELECT RAISE(ABORT, 'job_effects: only a job that is running may reserve an effect')
         WHERE NOT EXISTS (SELECT 1 FROM job WHERE id = NEW.job_id AND state = 'leased');
        INSERT INTO effect (scope, key, state, job_id, fence, calls, reserved_ms)
        SELECT 'job_effects', NEW.idempotency_key, 'reserved', job.id, job.fence, 1,
               CAST(strftime('%s', 'now') AS INTEGER) * 1000
               + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)
          FROM job WHERE job.id = NEW.job_id;
    END"""

JOB_EFFECTS_UPDATE: Final = """
    CREATE TRIGGER killproof_job_effects_update INSTEAD OF UPDATE ON job_effects BEGIN
        SELECT RAISE(ABORT,
            'job_effects is a view: context.effect in a handler records what came of an effect');
    END"""

JOB_EFFECTS_DELETE: Final = """
    CREATE TRIGGER killproof_job_effects_delete INSTEAD OF DELETE ON job_effects BEGIN
        SELECT RAISE(ABORT,
            'job_effects is a view: killproof prune --effects TIME forgets settled effects');
    END"""

#: The views of each article, in the order in which they are made, with their triggers.
VIEWS: Final[dict[str, dict[str, tuple[LiteralString, ...]]]] = {
    "jobs": {
        "jobs": (JOBS, JOBS_INSERT, JOBS_UPDATE, JOBS_DELETE),
        "job_effects": (
            *(JOB_EFFECTS, JOB_EFFECTS_INSERT, JOB_EFFECTS_UPDATE, JOB_EFFECTS_DELETE),
        ),
    },
    "tasks": {"tasks": (TASKS, TASKS_INSERT, TASKS_UPDATE, TASKS_DELETE)},
}
