// What the scripts of queues for Node have in common: the lines of a producer, and the handler.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const root = join(process.env.KILLPROOF_NODE, "package.json");

// Imports a package of the queue's own environment.
export function load(name) {
  return import(pathToFileURL(createRequire(root).resolve(name)));
}

// Answers each request for an enqueue; what a queue raises leaves open whether it happened.
export async function serve(enqueue) {
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let answer;
    try {
      if (asked.f === "enqueue") answer = await enqueue(asked.payload, asked.options);
      else answer = { fail: `this queue has no ${asked.f}` };
    } catch (error) {
      answer = { info: String(error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
}

// Plays a payload in a process of its own, while this one's loop goes on.
export function effect(payload) {
  return new Promise((resolve, reject) => {
    const playing = spawn("killproof-effect", { stdio: ["pipe", "ignore", "inherit"] });
    playing.on("error", reject);
    playing.on("exit", (code, signal) => {
      if (code === 0) resolve();
      else reject(new Error(`the handler ended with ${code ?? signal}`));
    });
    playing.stdin.end(JSON.stringify(payload));
  });
}
