// plainjob by its own calls: node plainjob.mjs prepare|client|work FOLDER
import { join } from "node:path";
import { effect, load, serve } from "./_node.mjs";

const [role, folder] = process.argv.slice(2);
const { default: Database } = await load("better-sqlite3");
const { better, defineQueue, defineWorker } = await load("plainjob");

// A job is put in again by whoever finds that it is older than this.
const TIMEOUT_MS = 5000;
const logger = { error: console.error, warn() {}, info() {}, debug() {} };
const connection = better(new Database(join(folder, "queue.db")));
const queue = defineQueue({ connection, logger, timeout: TIMEOUT_MS, maintenanceInterval: 1000 });

if (role === "client") {
  await serve((payload, { delay = 0 }) => ({
    ok: queue.add("job", payload, { delay: Math.ceil(1000 * delay) }).id,
  }));
} else if (role === "work") {
  const handle = (job) => effect(JSON.parse(job.data));
  const worker = defineWorker("job", handle, { queue, logger, pollIntervall: 50 });
  process.on("SIGTERM", () => worker.stop());
  await worker.start();
}
queue.close();
process.exit(0);
