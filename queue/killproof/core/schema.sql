-- Killproof, schema version 1.
--
--      enqueue                                   ack
--   ---------> available ------claim------> leased ------> succeeded (absorbs)
--   |             ^   ^  <-release, 1st crash- |  \-------> dead (last attempt, or permanent)
--   |             |   |                        |  \-------> cancelled, held
--   |-> scheduled-+   +------- retryable <-----+ nack, timeout, later crash
--   |     ^ due                   due          |
--   |     +-------------- snooze --------------+
--   +-> blocked -> available | scheduled | cancelled | expired | held
--   scheduled, retryable, available -> cancelled | expired | held
--   held -> available | cancelled | dead
--   dead, cancelled, expired -> available by replay only, which keeps the old attempts.
--   What has ended may be pruned: its row is gone then.
--
-- Every time named *_ms is integer milliseconds since the epoch, UTC; *_ns is the owner's
-- monotonic clock.
-- Impossible states can not be stored: the CHECKs below hold whoever writes.

CREATE TABLE killproof_schema (
    component TEXT    NOT NULL PRIMARY KEY,    -- 'core'; what stands above it has a row of its own
    version   INTEGER NOT NULL CHECK (version >= 1)
) STRICT, WITHOUT ROWID;

CREATE TABLE killproof_setting (
    name  TEXT NOT NULL PRIMARY KEY,           -- 'durability': of the file, not of a process
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each life of a process that claims; identities are never used twice.
CREATE TABLE worker (
    id            TEXT    NOT NULL PRIMARY KEY CHECK (length(id) = 32),  -- 128 random bits, hex
    clock         TEXT    NOT NULL,            -- names the monotonic clock of its deadlines
    file          TEXT    NOT NULL,            -- which .workers file holds its byte; '': lease only
    byte          INTEGER NOT NULL,            -- the byte that the kernel frees when it dies
    pid           INTEGER NOT NULL,            -- for people; proves nothing
    registered_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE job (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: no stale lease hits it
    kind              TEXT    NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    state             TEXT    NOT NULL CHECK (state IN ('blocked', 'scheduled', 'available',
                                  'leased', 'retryable', 'held', 'succeeded', 'dead', 'cancelled',
                                  'expired')),
    priority          INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9),  -- 0 is urgent
    due_ms            INTEGER NOT NULL,
    expires_ms        INTEGER,                     -- from then on no attempt begins
    key               TEXT             CHECK (length(key) BETWEEN 1 AND 500),
    max_attempts      INTEGER NOT NULL DEFAULT 5 CHECK (max_attempts >= 1),  -- executions in all
    lease_ms          INTEGER NOT NULL DEFAULT 60000 CHECK (lease_ms >= 1),
    retry             TEXT    NOT NULL DEFAULT 'article',
    fence             INTEGER NOT NULL DEFAULT 0,  -- rises at each claim; outcomes carry it
    deliveries        INTEGER NOT NULL DEFAULT 0,  -- claims, counted by the claim; never falls
    forgiven          INTEGER NOT NULL DEFAULT 0,  -- no attempts: released, snoozed, replayed
    failures          INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    crashes           INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    owner             TEXT,                        -- worker.id
    lease_deadline_ns INTEGER,
    claimed_ms        INTEGER,                     -- when the current or latest attempt began
    created_ms        INTEGER NOT NULL,
    updated_ms        INTEGER NOT NULL,
    finished_ms       INTEGER,
    error_class       TEXT,                        -- of the latest failure; cleared by success
    error_message     TEXT,
    result            TEXT             CHECK (result IS NULL OR json_valid(result)),
    payload           TEXT    NOT NULL CHECK (json_valid(payload)),  -- last: others are read first
    CHECK ((state = 'leased') = (owner IS NOT NULL)),
    CHECK ((state = 'leased') = (lease_deadline_ns IS NOT NULL)),
    CHECK ((state IN ('succeeded', 'dead', 'cancelled', 'expired')) = (finished_ms IS NOT NULL)),
    CHECK (0 <= forgiven AND forgiven <= deliveries AND deliveries <= fence),
    CHECK (state <> 'leased' OR (deliveries - forgiven BETWEEN 1 AND max_attempts)),
    CHECK (state NOT IN ('scheduled', 'available', 'retryable')
           OR deliveries - forgiven < max_attempts),
    CHECK (state <> 'succeeded' OR deliveries >= 1),
    CHECK (result IS NULL OR state = 'succeeded')
) STRICT;

-- One row for each delivery that has ended.
CREATE TABLE attempt (
    job_id        INTEGER NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    fence         INTEGER NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'crashed', 'expired',
                              'released', 'snoozed', 'cancelled', 'held')),
    worker        TEXT    NOT NULL,
    started_ms    INTEGER NOT NULL,
    finished_ms   INTEGER NOT NULL,
    error_class   TEXT CHECK (outcome NOT IN ('failed', 'crashed', 'expired')
                              OR error_class IS NOT NULL),
    error_message TEXT,
    traceback     TEXT,
    PRIMARY KEY (job_id, fence)
) STRICT, WITHOUT ROWID;

-- Kinds of which nothing is claimed for now: paused, at their limit, out of tokens.  The claim has
-- this one clause for all of them; what stands above the core writes the rows, in triggers or in
-- transactions of its own.  The first claim after its moment deletes a row.
CREATE TABLE throttle (
    kind     TEXT    NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    reason   TEXT    NOT NULL CHECK (length(reason) >= 1),  -- who closed the kind, and may open it
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, reason)
) STRICT, WITHOUT ROWID;

-- Serves the claim: the first job of a kind, in the order of the promise (priority, due, id).
CREATE INDEX job_available ON job (kind, priority, due_ms, id) WHERE state = 'available';
-- Serves promotion: what falls due next.
CREATE INDEX job_waiting ON job (due_ms, id) WHERE state IN ('scheduled', 'retryable');
-- Serves the claim: what expires next.
CREATE INDEX job_expiring ON job (expires_ms) WHERE expires_ms IS NOT NULL
    AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held');
-- Serves the claim: the throttle that ends next.
CREATE INDEX throttle_until ON throttle (until_ms);
-- Serves the reaper: who holds leases, and which of them run out first.
CREATE INDEX job_leased ON job (owner, lease_deadline_ns) WHERE state = 'leased';
-- Serves `killproof status` and retention: what ended, latest last.
CREATE INDEX job_finished ON job (state, finished_ms) WHERE finished_ms IS NOT NULL;
-- Serves idempotent enqueue: at most one live job for a key, whoever races.
CREATE UNIQUE INDEX job_key ON job (key) WHERE key IS NOT NULL
    AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held');
-- Serves `killproof status`: jobs that wait for somebody or something, few by nature.
CREATE INDEX job_parked ON job (state) WHERE state IN ('blocked', 'held');
