// liteque by its own calls: node liteque.mjs prepare|client|work FOLDER
import { join } from "node:path";
import { effect, load, serve } from "./_node.mjs";

const [role, folder] = process.argv.slice(2);
const { Runner, SqliteQueue, buildDBClient } = await load("liteque");

// Its times are kept in whole seconds, rounded down: a job is its worker's for 3 s at least.
const TIMEOUT_SECONDS = 4;
const db = buildDBClient(join(folder, "queue.db"), { runMigrations: role === "prepare" });
const queue = new SqliteQueue("jobs", db, {
  defaultJobArgs: { numRetries: 2 },
  keepFailedJobs: true,
});

if (role === "client") {
  await serve(async (payload, { priority = 5, delay = 0, key, max_attempts = 3 }) => {
    const job = await queue.enqueue(payload, {
      priority,
      delayMs: Math.ceil(1000 * delay),
      idempotencyKey: key,
      numRetries: max_attempts - 1,
    });
    return job ? { ok: job.id } : { fail: `there is a job of the key ${key}` };
  });
} else if (role === "work") {
  const functions = { run: (job) => effect(job.data) };
  const options = { concurrency: 1, pollIntervalMs: 50, timeoutSecs: TIMEOUT_SECONDS };
  const runner = new Runner(queue, functions, options);
  process.on("SIGTERM", () => runner.stop());
  await runner.run();
}
process.exit(0);
