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
               min(now_ms, coalesce(strftime('%s', NEW.created_at) * 1000, now_ms)),
               min(now_ms, coalesce(strftime('%s', NEW.updated_at) * 1000, now_ms)),
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
               min(now_ms, coalesce(strftime('%s', NEW.created_at) * 1000, now_ms)),
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

ORDERS: Final = """
    CREATE VIEW orders AS -- Made by killproof articles.
    SELECT iif(name = 'orders', '', name || '/') || coalesce(key, '#' || id) AS order_id,
           coalesce(json_extract(payload, '$.customer_id'), '') AS customer_id,
           coalesce(json_extract(payload, '$.order_date'),
                    datetime(created_ms / 1000, 'unixepoch')) AS order_date,
           CASE state WHEN 'running' THEN 'PENDING' WHEN 'compensating' THEN 'PENDING'
                      WHEN 'succeeded' THEN 'PROCESSED' ELSE upper(state) END AS status,
           datetime(created_ms / 1000, 'unixepoch') AS created_at,
           datetime(max(checked_ms, coalesce(finished_ms, 0)) / 1000, 'unixepoch') AS updated_at
      FROM workflow_run"""

ORDERS_INSERT: Final = """
    CREATE TRIGGER killproof_orders_insert INSTEAD OF INSERT ON orders BEGIN
        SELECT RAISE(ABORT, 'orders: order_id must be text of 1 to 500 characters')
         WHERE typeof(NEW.order_id) <> 'text' OR length(NEW.order_id) NOT BETWEEN 1 AND 500
            OR instr(CAST(NEW.order_id AS BLOB), x'00') > 0;
        SELECT RAISE(ABORT, 'orders: customer_id must be text of 1 to 500 characters')
         WHERE typeof(NEW.customer_id) <> 'text' OR length(NEW.customer_id) NOT BETWEEN 1 AND 500
            OR instr(CAST(NEW.customer_id AS BLOB), x'00') > 0;
        SELECT RAISE(ABORT, 'orders: leave out status, created_at, updated_at: they follow')
         WHERE coalesce(NEW.status, 'PENDING') <> 'PENDING' OR NEW.created_at IS NOT NULL
            OR NEW.updated_at IS NOT NULL;
        SELECT RAISE(ABORT, 'orders: order_date must be UTC: YYYY-MM-DD HH:MM:SS')
         WHERE datetime(NEW.order_date, '+0 days') IS NOT NEW.order_date;
        SELECT RAISE(ABORT, 'orders: there is an order with this order_id')
         WHERE EXISTS (SELECT 1 FROM workflow_run WHERE name = 'orders' AND key = NEW.order_id);
        INSERT INTO workflow_run (name, key, state, steps, created_ms, checked_ms, payload)
        SELECT 'orders', NEW.order_id, 'running', 0, now_ms, now_ms,
               json_patch(json_object('order_id', NEW.order_id, 'customer_id', NEW.customer_id),
                          json_object('order_date', NEW.order_date))
          FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000
                       + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms);
    END"""

ORDERS_UPDATE: Final = """
    CREATE TRIGGER killproof_orders_update INSTEAD OF UPDATE ON orders BEGIN
        SELECT RAISE(ABORT,
            'orders is a view: the status follows from the tasks; see killproof workflow --help');
    END"""

ORDERS_DELETE: Final = """
    CREATE TRIGGER killproof_orders_delete INSTEAD OF DELETE ON orders BEGIN
        SELECT RAISE(ABORT,
            'orders is a view: killproof workflow cancel calls an order off');
    END"""

ORDER_TASKS: Final = """
    CREATE VIEW order_tasks AS -- Made by killproof articles.
    SELECT job.id AS task_id,
           iif(run.name = 'orders', '', run.name || '/') || coalesce(run.key, '#' || run.id)
               AS order_id,
           iif(step.undoes > 0, 'undo ', '') || step.name
               || iif(step.item > 0, '[' || step.item || ']', '') AS task_name,
           CASE job.state WHEN 'blocked' THEN 'PENDING' WHEN 'scheduled' THEN 'PENDING'
                      WHEN 'available' THEN 'PENDING' WHEN 'retryable' THEN 'PENDING'
                      WHEN 'leased' THEN 'IN_PROGRESS' WHEN 'succeeded' THEN 'COMPLETED'
                      WHEN 'dead' THEN 'FAILED' ELSE upper(job.state) END AS status,
           CASE WHEN job.state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')
                THEN deliveries - forgiven ELSE max(deliveries - forgiven - 1, 0) END AS retries,
           datetime(job.created_ms / 1000, 'unixepoch') AS created_at,
           datetime(job.updated_ms / 1000, 'unixepoch') AS updated_at
      FROM workflow_step AS step NOT INDEXED  -- In order of their ids, where times are equal.
     CROSS JOIN workflow_run AS run ON run.id = step.run_id
     CROSS JOIN job ON job.id = step.job_id"""

ORDER_TASKS_INSERT: Final = """
    CREATE TRIGGER killproof_order_tasks_insert INSTEAD OF INSERT ON order_tasks BEGIN
        SELECT RAISE(ABORT, 'order_tasks: the queue gives the task_id: leave it out')
         WHERE NEW.task_id IS NOT NULL;
        SELECT RAISE(ABORT,
            'order_tasks: leave out status, retries, created_at, updated_at: they follow')
         WHERE coalesce(NEW.status, 'PENDING') <> 'PENDING' OR coalesce(NEW.retries, 0) <> 0
            OR NEW.created_at IS NOT NULL OR NEW.updated_at IS NOT NULL;
        SELECT RAISE(ABORT, 'order_tasks: task_name must be text of 1 to 90 characters')
         WHERE typeof(NEW.task_name) <> 'text' OR length(NEW.task_name) NOT BETWEEN 1 AND 90
            OR instr(CAST(NEW.task_name AS BLOB), x'00') > 0;
        SELECT RAISE(ABORT, 'order_tasks: there is no order with this order_id')
         WHERE NOT EXISTS (SELECT 1 FROM workflow_run
                            WHERE name = 'orders' AND key = NEW.order_id);
        SELECT RAISE(ABORT,
            'order_tasks: this order has ended: put it and its tasks in with one transaction')
         WHERE (SELECT state FROM workflow_run WHERE name = 'orders' AND key = NEW.order_id)
               <> 'running';
        SELECT RAISE(ABORT, 'order_tasks: an order has at most 5000 tasks')
         WHERE (SELECT steps FROM workflow_run WHERE name = 'orders' AND key = NEW.order_id)
               >= 5000;
        SELECT RAISE(ABORT, 'order_tasks: this order has a task of this name')
         WHERE EXISTS (SELECT 1 FROM workflow_run AS run
                         JOIN workflow_step AS step ON step.run_id = run.id
                        WHERE run.name = 'orders' AND run.key = NEW.order_id
                          AND step.undoes = 0 AND step.name = NEW.task_name);
        SELECT RAISE(ABORT,
            'order_tasks: the task before it has failed: killproof workflow replay, then put it in')
         WHERE (SELECT step.outcome
                  FROM workflow_run AS run JOIN workflow_step AS step ON step.run_id = run.id
                 WHERE run.name = 'orders' AND run.key = NEW.order_id
                 ORDER BY step.number DESC, step.job_id DESC LIMIT 1)
               IN ('dead', 'cancelled', 'expired');
        INSERT INTO job (kind, state, due_ms, max_attempts, retry, created_ms, updated_ms,
                         expires_ms, payload)
        SELECT 'orders.' || NEW.task_name,
               iif((SELECT outcome IS NULL FROM workflow_step WHERE run_id = run.id
                     ORDER BY number DESC, job_id DESC LIMIT 1), 'blocked', 'available'),
               now_ms, 4, 'article', now_ms, now_ms, run.expires_ms,
               json_object('run', run.id, 'workflow', 'orders', 'step', NEW.task_name)
          FROM workflow_run AS run,
               (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000
                       + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) AS now_ms)
         WHERE run.name = 'orders' AND run.key = NEW.order_id;
        INSERT INTO workflow_need (job_id, needs_job_id)
        SELECT last_insert_rowid(), step.job_id
          FROM workflow_run AS run JOIN workflow_step AS step ON step.run_id = run.id
         WHERE run.name = 'orders' AND run.key = NEW.order_id
         ORDER BY step.number DESC, step.job_id DESC LIMIT 1;
        INSERT INTO workflow_step (job_id, run_id, name, number, unmet)
        SELECT last_insert_rowid(), run.id, NEW.task_name, run.steps,
               coalesce((SELECT outcome IS NULL FROM workflow_step WHERE run_id = run.id
                          ORDER BY number DESC, job_id DESC LIMIT 1), 0)
          FROM workflow_run AS run WHERE run.name = 'orders' AND run.key = NEW.order_id;
        UPDATE workflow_run SET steps = steps + 1 WHERE name = 'orders' AND key = NEW.order_id;
    END"""

ORDER_TASKS_UPDATE: Final = """
    CREATE TRIGGER killproof_order_tasks_update INSTEAD OF UPDATE ON order_tasks BEGIN
        SELECT CASE
            WHEN NEW.status IS NOT OLD.status AND NEW.status = 'PENDING' THEN RAISE(ABORT,
                'order_tasks is a view: hung tasks come back, failed: killproof workflow replay')
            WHEN NEW.status IS NOT OLD.status THEN RAISE(ABORT,
                'order_tasks is a view: killproof work claims tasks and ends them')
            ELSE RAISE(ABORT,
                'order_tasks is a view: INSERT adds a task, the rest: killproof workflow --help')
            END;
    END"""

ORDER_TASKS_DELETE: Final = """
    CREATE TRIGGER killproof_order_tasks_delete INSTEAD OF DELETE ON order_tasks BEGIN
        SELECT RAISE(ABORT,
            'order_tasks is a view: killproof workflow cancel calls an order off');
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
    "orders": {
        "orders": (ORDERS, ORDERS_INSERT, ORDERS_UPDATE, ORDERS_DELETE),
        "order_tasks": (
            *(ORDER_TASKS, ORDER_TASKS_INSERT, ORDER_TASKS_UPDATE, ORDER_TASKS_DELETE),
        ),
    },
}
