#!/bin/sh
# A job queue in shell: SQLite's own program runs every statement, in a process of its own.
#
#   queue.sh prepare|client|worker|snapshot FOLDER
#
# It exists to be judged: `killproof chaos run --target examples/shell_queue/target.toml`.
set -eu
role=$1
DB=$2/queue.db
NOW="CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

sql() {
    sqlite3 -batch -cmd '.timeout 10000' -cmd 'PRAGMA synchronous = FULL' "$DB" "$1"
}

prepare() {
    # The answer of the pragma, "wal", is nobody's.
    sql "PRAGMA journal_mode = wal;
         CREATE TABLE job (id INTEGER PRIMARY KEY, kind TEXT, payload TEXT, state TEXT,
                           priority INTEGER, due_ms INTEGER, fence INTEGER DEFAULT 0,
                           attempts INTEGER DEFAULT 0, max_attempts INTEGER, until_ms INTEGER,
                           error TEXT)" > /dev/null
}

# One line of JSON in, one out: SQLite takes the request apart, and puts the answer together.
client() {
    while IFS= read -r line; do
        request=$(printf '%s' "$line" | sed "s/'/''/g")
        answer=$(sql "INSERT INTO job (kind, payload, state, priority, due_ms, max_attempts)
                      SELECT r ->> 'kind', r -> 'payload', 'available',
                             coalesce(r ->> '\$.options.priority', 5),
                             $NOW + 1000 * coalesce(r ->> '\$.options.delay', 0),
                             coalesce(r ->> '\$.options.max_attempts', 5)
                        FROM (SELECT '$request' AS r)
                       WHERE r ->> 'f' = 'enqueue' AND r ->> '\$.options.key' IS NULL
                      RETURNING json_object('ok', id)") ||
            answer='{"info": "sqlite3 failed, perhaps at the commit"}'
        printf '%s\n' "${answer:-{\"fail\": \"this queue has no keys, no cancel and no replay\"\}}"
    done
}

# The claim takes back what has run out, counts itself, and draws a new fence.
CLAIM="BEGIN IMMEDIATE;
UPDATE job SET state = 'dead', error = 'the lease ran out'
 WHERE state = 'leased' AND until_ms < $NOW AND attempts >= max_attempts;
UPDATE job SET state = 'leased', fence = fence + 1, attempts = attempts + 1,
               until_ms = $NOW + 3000
 WHERE id = (SELECT id FROM job
              WHERE (state = 'available' AND due_ms <= $NOW)
                 OR (state = 'leased' AND until_ms < $NOW AND attempts < max_attempts)
              ORDER BY priority, due_ms, id LIMIT 1)
RETURNING id, fence, payload;
COMMIT"

settle() {
    sql "UPDATE job SET $1 WHERE id = $id AND fence = $fence AND state = 'leased'"
}

worker() {
    stop=
    trap 'stop=1' TERM
    while [ -z "$stop" ]; do
        row=$(sql "$CLAIM") || continue # Locked for ten seconds: nothing was claimed.
        if [ -z "$row" ]; then
            sleep 0.05
            continue
        fi
        IFS='|' read -r id fence payload <<END
$row
END
        if printf '%s' "$payload" | killproof-effect > /dev/null; then
            settle "state = 'succeeded'"
        else
            settle "state = iif(attempts < max_attempts, 'available', 'dead'),
                    due_ms = $NOW + 200, error = 'the handler failed'"
        fi
    done
}

snapshot() {
    sql "SELECT json_object('id', id, 'kind', kind, 'state', state, 'attempts', attempts,
                            'payload', json(payload), 'error', error, 'priority', priority,
                            'max_attempts', max_attempts, 'fence', fence, 'due_ms', due_ms)
           FROM job ORDER BY id"
}

"$role"
