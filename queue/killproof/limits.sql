-- Limits, component 'limits', version 1.  The rules are in the triggers; `limits.py` sets them.
--
-- A *resource* is what jobs compete for: an API, a processor, a database under migration.  Kinds of
-- job use resources.  Each rule of a resource has a row that holds its state:
--
--     limit_resource   how many of its jobs run          -> rule 'running'
--     limit_bucket     how many may still start          -> rule 'rate'
--     (no table)       somebody has closed it            -> rule 'closed'
--     limit_breaker    how many have failed of late      -> rule 'breaker'
--
-- and everything else follows from these rows, in the transaction that changes them:
--
--     rule's row --trigger--> limit_gate (is it shut, until when) --trigger--> throttle (per kind)
--
-- `throttle` is the core's: its claim takes nothing of a kind that has a row there, whichever
-- process asks, also one that knows nothing of this file.  So a limit holds from the commit that
-- sets it, and no crash can part a lease from its slot.
--
-- No statement of a trigger may fail: it would fail the claim that it is part of.  Hence no CHECK
-- that work could break, and no conflict without an answer.
--
-- Two clocks, as in the core.  Wall-clock milliseconds end rows of `throttle`; a claim also tells
-- the monotonic clock of its owner (its deadline less its length), and by that one tokens are
-- counted and closings end, so that a step of the wall clock neither makes tokens nor takes any.

CREATE TABLE limit_resource (
    name        TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 100),
    running_max INTEGER CHECK (running_max >= 1),   -- NULL: any number
    running     INTEGER NOT NULL DEFAULT 0          -- jobs of its kinds that are leased
) STRICT, WITHOUT ROWID;

CREATE TABLE limit_kind (
    kind     TEXT NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    resource TEXT NOT NULL REFERENCES limit_resource (name),
    PRIMARY KEY (kind, resource)                    -- a kind may use several resources
) STRICT, WITHOUT ROWID;

-- Serves the triggers of a gate: whom it shuts out.
CREATE INDEX limit_kind_resource ON limit_kind (resource, kind);

-- A token bucket, kept as the time until it is full again: one number, no fractions of a token.
-- (The generic cell rate algorithm of ATM, ITU-T I.371.)  A start adds an interval, time takes off
-- what has passed, and a start is allowed while no more than (burst - 1) intervals are missing.
CREATE TABLE limit_bucket (
    resource    TEXT    NOT NULL PRIMARY KEY REFERENCES limit_resource (name),
    rate        REAL    NOT NULL,                   -- starts per second, as it was asked for
    interval_ns INTEGER NOT NULL CHECK (interval_ns >= 1),
    burst       INTEGER NOT NULL CHECK (burst >= 1),
    missing_ns  INTEGER NOT NULL DEFAULT 0,         -- until full, as of the latest start, which was
    at_ns       INTEGER NOT NULL DEFAULT 0,         -- then, on the monotonic clock that
    clock       TEXT    NOT NULL DEFAULT '',        -- this names,
    at_ms       INTEGER NOT NULL DEFAULT 0          -- and then on the wall clock
) STRICT, WITHOUT ROWID;

CREATE TABLE limit_breaker (
    resource     TEXT    NOT NULL PRIMARY KEY REFERENCES limit_resource (name),
    failures_max INTEGER NOT NULL CHECK (failures_max >= 1),
    window_ms    INTEGER NOT NULL CHECK (window_ms >= 1),
    pause_ms     INTEGER NOT NULL CHECK (pause_ms >= 1),
    state        TEXT    NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half-open')),
    opened_ms    INTEGER NOT NULL DEFAULT 0,        -- open: since when,
    until_ms     INTEGER NOT NULL DEFAULT 0,        -- and until when nobody may try
    probe_id     INTEGER,                           -- half-open: the one job that tries,
    probe_fence  INTEGER                            -- and its lease
) STRICT, WITHOUT ROWID;

-- The failures of a closed breaker, those within its window: never more rows than failures_max.
CREATE TABLE limit_failure (
    resource TEXT    NOT NULL,
    at_ms    INTEGER NOT NULL,
    job_id   INTEGER NOT NULL,
    fence    INTEGER NOT NULL,
    PRIMARY KEY (resource, at_ms, job_id, fence)
) STRICT, WITHOUT ROWID;

-- A rule that is shut, or was: a row whose moment has passed means nothing.
CREATE TABLE limit_gate (
    resource  TEXT    NOT NULL,
    rule      TEXT    NOT NULL CHECK (rule IN ('running', 'rate', 'closed', 'breaker')),
    until_ms  INTEGER NOT NULL,                     -- wall clock; the year 9999: until it is opened
    since_ms  INTEGER NOT NULL,
    length_ms INTEGER,                              -- how long it was shut for; NULL: no end
    end_ns    INTEGER,                              -- its end where a monotonic clock is known,
    clock     TEXT,                                 -- and which
    why       TEXT    NOT NULL DEFAULT '',          -- of 'closed': what was said,
    closed_by TEXT    NOT NULL DEFAULT '',          -- and by which process, for people
    PRIMARY KEY (resource, rule)
) STRICT, WITHOUT ROWID;

-- From gates to the claim.

CREATE TRIGGER limit_gate_shut AFTER INSERT ON limit_gate BEGIN
    INSERT INTO throttle (kind, reason, until_ms)
    SELECT kind, 'limit ' || NEW.resource || ': ' || NEW.rule, NEW.until_ms
      FROM limit_kind WHERE resource = NEW.resource
        ON CONFLICT (kind, reason) DO UPDATE SET until_ms = excluded.until_ms;
END;

-- An insert as well: the core deletes rows whose moment has passed, and a gate may be shut again.
CREATE TRIGGER limit_gate_moved AFTER UPDATE OF until_ms ON limit_gate BEGIN
    INSERT INTO throttle (kind, reason, until_ms)
    SELECT kind, 'limit ' || NEW.resource || ': ' || NEW.rule, NEW.until_ms
      FROM limit_kind WHERE resource = NEW.resource
        ON CONFLICT (kind, reason) DO UPDATE SET until_ms = excluded.until_ms;
END;

CREATE TRIGGER limit_gate_opened AFTER DELETE ON limit_gate BEGIN
    DELETE FROM throttle
     WHERE kind IN (SELECT kind FROM limit_kind WHERE resource = OLD.resource)
       AND reason = 'limit ' || OLD.resource || ': ' || OLD.rule;
END;

CREATE TRIGGER limit_kind_joins AFTER INSERT ON limit_kind BEGIN
    INSERT INTO throttle (kind, reason, until_ms)
    SELECT NEW.kind, 'limit ' || resource || ': ' || rule, until_ms
      FROM limit_gate WHERE resource = NEW.resource
        ON CONFLICT (kind, reason) DO UPDATE SET until_ms = excluded.until_ms;
END;

CREATE TRIGGER limit_kind_leaves AFTER DELETE ON limit_kind BEGIN
    DELETE FROM throttle
     WHERE kind = OLD.kind
       AND reason IN (SELECT 'limit ' || resource || ': ' || rule
                        FROM limit_gate WHERE resource = OLD.resource);
END;

-- From the rules to gates.

CREATE TRIGGER limit_running_moved AFTER UPDATE ON limit_resource BEGIN
    DELETE FROM limit_gate
     WHERE resource = NEW.name AND rule = 'running'
       AND (NEW.running_max IS NULL OR NEW.running < NEW.running_max);
    INSERT INTO limit_gate (resource, rule, until_ms, since_ms)
    SELECT NEW.name, 'running', 253402300799000, 0
     WHERE NEW.running >= NEW.running_max
        ON CONFLICT (resource, rule) DO NOTHING;
END;

-- A millisecond more: the claim's wall clock was rounded down.
CREATE TRIGGER limit_bucket_moved AFTER UPDATE ON limit_bucket BEGIN
    DELETE FROM limit_gate
     WHERE resource = NEW.resource AND rule = 'rate'
       AND NEW.missing_ns <= (NEW.burst - 1) * NEW.interval_ns;
    INSERT INTO limit_gate (resource, rule, until_ms, since_ms, length_ms, end_ns, clock)
    SELECT NEW.resource, 'rate', NEW.at_ms + over_ns / 1000000 + 1, NEW.at_ms,
           over_ns / 1000000 + 1, NEW.at_ns + over_ns, NEW.clock
      FROM (SELECT NEW.missing_ns - (NEW.burst - 1) * NEW.interval_ns AS over_ns)
     WHERE over_ns > 0
        ON CONFLICT (resource, rule) DO UPDATE
       SET until_ms = excluded.until_ms, since_ms = excluded.since_ms,
           length_ms = excluded.length_ms, end_ns = excluded.end_ns, clock = excluded.clock;
END;

CREATE TRIGGER limit_breaker_moved AFTER UPDATE ON limit_breaker BEGIN
    DELETE FROM limit_failure WHERE resource = NEW.resource AND NEW.state <> 'closed';
    DELETE FROM limit_gate
     WHERE resource = NEW.resource AND rule = 'breaker' AND NEW.state = 'closed';
    INSERT INTO limit_gate (resource, rule, until_ms, since_ms, length_ms)
    SELECT NEW.resource, 'breaker', iif(NEW.state = 'open', NEW.until_ms, 253402300799000),
           NEW.opened_ms, iif(NEW.state = 'open', NEW.pause_ms, NULL)
     WHERE NEW.state <> 'closed'
        ON CONFLICT (resource, rule) DO UPDATE
       SET until_ms = excluded.until_ms, since_ms = excluded.since_ms,
           length_ms = excluded.length_ms;
END;

-- From jobs to the rules: a lease begins, and ends.

-- Before the row is changed, for here is the last word, by the claim's own monotonic clock: a row
-- of `throttle` may have ended early, because the wall clock was stepped forward, or was read some
-- milliseconds before the other.  The gate is shut again, the claim changes nothing, and goes on
-- with another kind.
CREATE TRIGGER limit_lease_begins BEFORE UPDATE OF state ON job
  WHEN NEW.state = 'leased' AND OLD.state <> 'leased'
   AND EXISTS (SELECT 1 FROM limit_kind WHERE kind = NEW.kind)
BEGIN
    UPDATE limit_gate
       SET until_ms = NEW.claimed_ms
               + (end_ns - NEW.lease_deadline_ns + NEW.lease_ms * 1000000) / 1000000 + 1
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = NEW.kind)
       AND end_ns > NEW.lease_deadline_ns - NEW.lease_ms * 1000000
       AND clock = (SELECT clock FROM worker WHERE id = NEW.owner);
    SELECT RAISE(IGNORE)
      FROM limit_kind JOIN limit_gate USING (resource)
     WHERE kind = NEW.kind
       AND end_ns > NEW.lease_deadline_ns - NEW.lease_ms * 1000000
       AND clock = (SELECT clock FROM worker WHERE id = NEW.owner);

    UPDATE limit_resource SET running = running + 1
     WHERE name IN (SELECT resource FROM limit_kind WHERE kind = NEW.kind);

    -- Time that has passed is told by the monotonic clock if it is the one of the latest start, by
    -- the wall clock if not (another boot, another time namespace).
    UPDATE limit_bucket
       SET missing_ns = interval_ns + max(0, missing_ns - iif(
               clock = (SELECT clock FROM worker WHERE id = NEW.owner),
               max(0, NEW.lease_deadline_ns - NEW.lease_ms * 1000000 - at_ns),
               max(0, NEW.claimed_ms - at_ms) * 1000000)),
           at_ns = NEW.lease_deadline_ns - NEW.lease_ms * 1000000,
           clock = coalesce((SELECT clock FROM worker WHERE id = NEW.owner), ''),
           at_ms = NEW.claimed_ms
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = NEW.kind);

    -- The first start after the pause of an open breaker is the one that tries.
    UPDATE limit_breaker
       SET state = 'half-open', probe_id = NEW.id, probe_fence = NEW.fence
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = NEW.kind)
       AND state = 'open';
END;

-- Only a failure that a further attempt might mend speaks against the resource: a crash speaks
-- against the worker, a permanent failure against the job.
CREATE TRIGGER limit_lease_ends AFTER UPDATE OF state ON job
  WHEN OLD.state = 'leased' AND NEW.state <> 'leased'
   AND EXISTS (SELECT 1 FROM limit_kind WHERE kind = OLD.kind)
BEGIN
    UPDATE limit_resource SET running = max(running - 1, 0)
     WHERE name IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind);

    DELETE FROM limit_failure
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind)
       AND at_ms NOT BETWEEN NEW.updated_ms - (SELECT window_ms FROM limit_breaker
                                                WHERE resource = limit_failure.resource)
                         AND NEW.updated_ms;
    INSERT INTO limit_failure (resource, at_ms, job_id, fence)
    SELECT resource, NEW.updated_ms, NEW.id, NEW.fence
      FROM limit_breaker
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind)
       AND state = 'closed'
       AND NEW.failures > OLD.failures
       AND NOT (NEW.state = 'dead' AND NEW.deliveries - NEW.forgiven < NEW.max_attempts)
        ON CONFLICT DO NOTHING;
    UPDATE limit_breaker
       SET state = 'open', opened_ms = NEW.updated_ms, until_ms = NEW.updated_ms + pause_ms
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind)
       AND state = 'closed'
       AND (SELECT count(*) FROM limit_failure WHERE resource = limit_breaker.resource)
           >= failures_max;

    -- The one that tried: its success closes the breaker, its failure opens it for another pause,
    -- and an end that says nothing (released, snoozed, crashed) lets another try at once.
    UPDATE limit_breaker
       SET state = iif(NEW.state = 'succeeded', 'closed', 'open'),
           until_ms = NEW.updated_ms + iif(
               NEW.failures > OLD.failures
               AND NOT (NEW.state = 'dead' AND NEW.deliveries - NEW.forgiven < NEW.max_attempts),
               pause_ms, 0),
           probe_id = NULL, probe_fence = NULL
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind)
       AND state = 'half-open' AND probe_id = OLD.id AND probe_fence = OLD.fence;
END;

-- A row that somebody deletes by hand while it runs gives its slots back as well.
CREATE TRIGGER limit_lease_gone AFTER DELETE ON job
  WHEN OLD.state = 'leased'
   AND EXISTS (SELECT 1 FROM limit_kind WHERE kind = OLD.kind)
BEGIN
    UPDATE limit_resource SET running = max(running - 1, 0)
     WHERE name IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind);
    UPDATE limit_breaker
       SET state = 'open', until_ms = 0, probe_id = NULL, probe_fence = NULL
     WHERE resource IN (SELECT resource FROM limit_kind WHERE kind = OLD.kind)
       AND state = 'half-open' AND probe_id = OLD.id AND probe_fence = OLD.fence;
END;
