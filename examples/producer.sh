#!/bin/bash
# Producers in plain Bash, for a cron job or a deploy script:   ./producer.sh "a subject"
#
# The first way is the command; --field takes a text as it is, so that nothing has to be escaped.
# The second is SQLite alone, on the first article's table, which is a view here: json_object
# escapes what JSON wants escaped, and SQL wants each quote twice.
# The database is $KILLPROOF_DB, else queue.db.
set -euo pipefail

export KILLPROOF_DB="${KILLPROOF_DB:-queue.db}"
subject="${1:?usage: producer.sh SUBJECT}"

killproof enqueue send_report --field "subject=$subject" --key "subject:$subject"

if command -v sqlite3 >/dev/null; then
    killproof articles --create jobs >/dev/null
    sqlite3 -cmd '.timeout 30000' "$KILLPROOF_DB" \
        "INSERT INTO jobs (type, payload)
         VALUES ('send_report', json_object('subject', '${subject//\'/\'\'}'))"
fi
