// A job queue for Node: SQLite's own program runs every statement, in a process of its own.
//
//   node queue.mjs prepare|client|worker|snapshot FOLDER
//
// It exists to be judged: killproof chaos run --target examples/node_queue/target.toml
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const [role, folder] = process.argv.slice(2);
const FILE = join(folder, "queue.db");
const LEASE_MS = 3000; // Longer than any handler of a run: nobody extends it.
const RETRY_MS = 200;
const IDLE_MS = 50;
const NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"; // At the commit, in ms.
const ROW_BYTES_MAX = 64 * 1024 * 1024; // Of what one statement prints; the default is 1 MiB.

// The statements go in by standard input, for an argument may have 128 KiB at most. `-bail` ends
// the program at the first error, and so its transaction: a half of one is never committed.
function sql(statements) {
  const settings = ["-cmd", ".timeout 10000", "-cmd", "PRAGMA synchronous = FULL"];
  const ran = spawnSync("sqlite3", ["-batch", "-bail", "-json", ...settings, FILE], {
    input: statements,
    encoding: "utf8",
    maxBuffer: ROW_BYTES_MAX,
  });
  if (ran.error) throw ran.error;
  if (ran.status !== 0) throw new Error(ran.stderr.trim());
  return ran.stdout.trim() ? JSON.parse(ran.stdout) : [];
}

// A value as SQL. A text is quoted and nothing else: no payload can be a statement.
function quoted(value) {
  if (value === undefined || value === null) return "NULL";
  if (typeof value === "number") return String(value);
  return `'${String(value).replaceAll("'", "''").replaceAll("\0", "")}'`;
}

function prepare() {
  sql(`PRAGMA journal_mode = wal;
    CREATE TABLE job (id INTEGER PRIMARY KEY, kind TEXT, payload TEXT,
      state TEXT DEFAULT 'available', priority INTEGER, due_ms INTEGER, key TEXT,
      fence INTEGER DEFAULT 0, attempts INTEGER DEFAULT 0, max_attempts INTEGER,
      until_ms INTEGER, error TEXT);
    CREATE UNIQUE INDEX job_key ON job (key) WHERE state IN ('available', 'leased');`);
}

// A second enqueue under the key of a living job is answered with that job.
function enqueue({ kind, payload, options: { priority = 5, delay = 0, key, max_attempts = 5 } }) {
  const due = Date.now() + Math.ceil(1000 * delay);
  const values = [kind, JSON.stringify(payload), priority, due, key, max_attempts];
  const [row] = sql(`BEGIN IMMEDIATE;
    INSERT INTO job (kind, payload, priority, due_ms, key, max_attempts)
      VALUES (${values.map(quoted).join(", ")}) ON CONFLICT DO NOTHING;
    SELECT id FROM job WHERE id = (CASE changes() WHEN 1 THEN last_insert_rowid() END)
       OR (key = ${quoted(key)} AND state IN ('available', 'leased')) LIMIT 1;
    COMMIT;`);
  return row.id;
}

function cancel({ id }) {
  return sql(`UPDATE job SET state = 'cancelled'
    WHERE id = ${quoted(Number(id))} AND state = 'available' RETURNING id;`).length === 1;
}

// A dead job gets as many attempts again; those that it had stay counted.
function replay({ id }) {
  return sql(`UPDATE job SET state = 'available', max_attempts = attempts + 5, due_ms = ${Date.now()}
    WHERE id = ${quoted(Number(id))} AND state = 'dead' RETURNING id;`).length === 1;
}

// One line of JSON in, one out. What sqlite3 fails at may have happened: nobody knows.
async function client() {
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    const act = { enqueue, cancel, replay }[asked.f];
    let answer;
    try {
      answer = act ? { ok: act(asked) } : { fail: `this queue has no ${asked.f}` };
    } catch (error) {
      answer = { info: error.message };
    }
    console.log(JSON.stringify(answer));
  }
}

// The claim takes back what has run out, counts itself, and draws a new fence. SQLite reads the
// clock, when it has the lock: a lease that began during the wait for it would be over too soon.
function claim() {
  return sql(`BEGIN IMMEDIATE;
    UPDATE job SET state = 'dead', error = 'the lease ran out'
     WHERE state = 'leased' AND until_ms < ${NOW} AND attempts >= max_attempts;
    UPDATE job SET state = 'leased', fence = fence + 1, attempts = attempts + 1,
                   until_ms = ${NOW} + ${LEASE_MS}
     WHERE id = (SELECT id FROM job
                  WHERE (state = 'available' AND due_ms <= ${NOW})
                     OR (state = 'leased' AND until_ms < ${NOW} AND attempts < max_attempts)
                  ORDER BY priority, due_ms, id LIMIT 1)
    RETURNING id, fence, payload;
    COMMIT;`)[0];
}

// The fence says which lease is meant: one that has run out changes nothing any more.
function settle({ id, fence }, changes) {
  sql(`UPDATE job SET ${changes} WHERE id = ${id} AND fence = ${fence} AND state = 'leased';`);
}

async function worker() {
  let stopped = false;
  process.on("SIGTERM", () => { stopped = true; });
  while (!stopped) {
    let job;
    try {
      job = claim();
    } catch {
      continue; // Locked for ten seconds: nothing was claimed.
    }
    // spawnSync lets no signal in: without this turn of the loop SIGTERM would never be heard.
    await sleep(job ? 0 : IDLE_MS);
    if (!job) continue;
    const played = spawnSync("killproof-effect", { input: job.payload });
    if (played.status === 0) settle(job, "state = 'succeeded'");
    else settle(job, `state = iif(attempts < max_attempts, 'available', 'dead'),
      due_ms = ${NOW} + ${RETRY_MS}, error = 'the handler failed'`);
  }
}

function snapshot() {
  const columns = "id, kind, payload, state, priority, due_ms, key, fence, attempts, max_attempts";
  for (const row of sql(`SELECT ${columns}, error FROM job ORDER BY id;`)) {
    console.log(JSON.stringify({ ...row, payload: JSON.parse(row.payload) }));
  }
}

await { prepare, client, worker, snapshot }[role]();
