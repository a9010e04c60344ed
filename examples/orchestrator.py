"""An orchestrator's own tables beside the queue's, in one file and in the same transactions.

    python orchestrator.py

An orchestrator of one's own keeps its graph, its runs, its task executions and its log; the queue
keeps the jobs.  In one file both are written together: a run and its first jobs exist or do not; a
task is done, its log line is there and its successors are enqueued, or none of it has happened.
(Steps with needs, results and compensation are what `killproof.workflow` has ready; this is for
those who have an orchestrator already.)
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from killproof import Queue, Transaction
from killproof.worker import Context, Handlers, Worker

#: An ETL: which task needs which.
GRAPH = {"extract": [], "clean": ["extract"], "prices": ["extract"], "load": ["clean", "prices"]}

TABLES = (
    "CREATE TABLE dag (name TEXT PRIMARY KEY, graph TEXT NOT NULL)",
    "CREATE TABLE dag_run (id INTEGER PRIMARY KEY, dag TEXT NOT NULL, state TEXT NOT NULL)",
    "CREATE TABLE task_execution (run INTEGER NOT NULL, task TEXT NOT NULL, job INTEGER NOT NULL,"
    " state TEXT NOT NULL, PRIMARY KEY (run, task))",
    "CREATE TABLE dag_log (run INTEGER NOT NULL, line TEXT NOT NULL)",
)


def start(queue: Queue) -> int:
    """Begin a run of the graph; the run and its first jobs are one commit."""
    with queue.transaction() as tx:
        for table in TABLES:
            tx.execute(table)
        tx.execute("INSERT INTO dag VALUES ('etl', ?)", (json.dumps(GRAPH),))
        tx.execute("INSERT INTO dag_run (dag, state) VALUES ('etl', 'running')")
        ((run,),) = tx.execute("SELECT max(id) FROM dag_run").fetchall()
        enqueue_ready(queue, tx, run)
    return int(run)


def enqueue_ready(queue: Queue, tx: Transaction, run: int) -> None:
    """Put a job in for each task whose needs are done and that has none yet."""
    executions = dict(
        tx.execute("SELECT task, state FROM task_execution WHERE run = ?", (run,)).fetchall()
    )
    for task, needs in GRAPH.items():
        if task not in executions and all(executions.get(need) == "done" for need in needs):
            job = queue.enqueue("dag_task", {"run": run, "task": task}, tx=tx)
            tx.execute("INSERT INTO task_execution VALUES (?, ?, ?, 'queued')", (run, task, job))
    if len(executions) == len(GRAPH) and set(executions.values()) == {"done"}:
        tx.execute("UPDATE dag_run SET state = 'done' WHERE id = ?", (run,))


def handlers_for(queue: Queue) -> Handlers:
    """The handler of all tasks."""
    handlers = Handlers()

    @handlers("dag_task", timeout=60.0)
    def dag_task(context: Context) -> None:
        assert isinstance(context.payload, dict)
        run, task = context.payload["run"], context.payload["task"]
        line = f"{task} done"  # The work of a task is done before the transaction, not in it.
        with context.completing() as tx:
            tx.execute(
                "UPDATE task_execution SET state = 'done' WHERE run = ? AND task = ?", (run, task)
            )
            tx.execute("INSERT INTO dag_log VALUES (?, ?)", (run, line))
            enqueue_ready(queue, tx, run)

    return handlers


def main(folder: Path) -> tuple[str, list[str]]:
    """Run the graph; return the state of the run, and its log."""
    with Queue(folder / "queue.db") as queue:
        run = start(queue)
        worker = Worker(queue, handlers_for(queue), poll=0.02)

        def watch() -> None:
            while any(map(queue.counts().get, ("available", "retryable", "leased"))):
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        with queue.transaction() as tx:
            ((state,),) = tx.execute("SELECT state FROM dag_run WHERE id = ?", (run,)).fetchall()
            log = [line for (line,) in tx.execute("SELECT line FROM dag_log").fetchall()]
    print(f"run {run}: {state}; {', '.join(log)}")
    return state, log


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
