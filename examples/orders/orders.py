"""Orders as durable runs: tasks in order, an order that is PROCESSED with its last task.

    python orders.py          three orders, from the webhook to the report
    killproof work orders     the same tasks by workers of your own, in the folder of this file

The application's table `orders` is beside the queue's in one file.  What belongs together is one
transaction: an order and its run; the last task and PROCESSED; a refund and REFUNDED.  So there is
no moment at which an order is paid and nobody knows what comes next, whoever is killed then.

The tasks of an order are steps: each waits for the one before it, each is tried again when it
fails, and one that fails for good has the payment undone.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from killproof import Queue, workflow_view
from killproof.worker import Handlers, Permanent, Worker
from killproof.workflow import Step, Workflow, Workflows

TABLE = """
    CREATE TABLE IF NOT EXISTS orders (
        order_id    TEXT PRIMARY KEY,
        customer_id TEXT NOT NULL,
        item        TEXT NOT NULL,
        status      TEXT NOT NULL DEFAULT 'PENDING'
                    CHECK (status IN ('PENDING', 'PROCESSED', 'REFUNDED')),
        created_ms  INTEGER NOT NULL,
        updated_ms  INTEGER NOT NULL
    ) STRICT"""

handlers = Handlers()
order_flow = Workflow("orders", handlers)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say(line: str) -> None:
    print(line, flush=True)


def begin(step: Step) -> None:
    task = f"task {step.context.job.id} ({step.name})"
    say(f"processing {task} of order {step.payload['order_id']}")


# The tasks, in their order.


@order_flow.step(retry="immediate")
def reserve(step: Step) -> dict[str, object]:
    """Take the item from the shelf."""
    begin(step)
    return {"shelf": f"shelf of {step.payload['item']}"}


def refund(step: Step) -> None:
    """Give the money back: the order was paid, and can not be shipped."""
    with step.completing({"refunded": step.undone["receipt"]}) as tx:
        tx.execute(
            "UPDATE orders SET status = 'REFUNDED', updated_ms = ? WHERE order_id = ?",
            (now_ms(), step.payload["order_id"]),
        )
    say(f"order {step.payload['order_id']}: {step.undone['receipt']} is refunded")


@order_flow.step(compensate=refund, retry="immediate")
def charge(step: Step) -> dict[str, object]:
    """Charge the card: the ledger keeps what was done, so that no retry charges it again."""
    begin(step)

    def pay(key: str) -> str:
        if step.payload["item"] == "lamp" and step.context.job.attempt < 3:
            raise ConnectionError("the bank does not answer")
        return f"receipt-{step.payload['order_id']}"

    key = f"charge:{step.payload['order_id']}"
    return {"receipt": step.context.effect(key, pay, in_doubt="again")}


@order_flow.step(retry="immediate", max_attempts=4)
def ship(step: Step) -> dict[str, object]:
    """Ship it: the order is PROCESSED in the transaction in which its last task succeeds."""
    begin(step)
    if step.payload["item"] == "piano":
        raise Permanent("nobody carries a piano")
    parcel = {"from": step.result("reserve")["shelf"], "paid": step.results["charge"]["receipt"]}
    with step.completing(parcel) as tx:
        tx.execute(
            "UPDATE orders SET status = 'PROCESSED', updated_ms = ? WHERE order_id = ?",
            (now_ms(), step.payload["order_id"]),
        )
    say(f"order {step.payload['order_id']} is wholly processed")
    return parcel


# The webhook, and the report.


def place_order(queue: Queue, order_id: str, customer_id: str, item: str) -> int:
    """Store an order and start its run, in one transaction; the same order twice is one run."""
    with queue.transaction() as tx:
        tx.execute(TABLE)
        tx.execute(
            "INSERT OR IGNORE INTO orders (order_id, customer_id, item, created_ms, updated_ms)"
            " VALUES (?, ?, ?, ?, ?)",
            (order_id, customer_id, item, now_ms(), now_ms()),
        )
        payload = {"order_id": order_id, "item": item}
        return Workflows(queue).start(order_flow, payload, key=order_id, tx=tx)


def statuses(queue: Queue) -> dict[str, int]:
    """Count the orders by status, in the application's own table."""
    with queue.transaction() as tx:
        found = tx.execute("SELECT status, count(*) FROM orders GROUP BY status ORDER BY status")
        return dict(found.fetchall())


def report(queue: Queue) -> None:
    """Say how the orders stand: the application's words, then those of the runs."""
    say("no pending task")
    say("orders: " + ", ".join(f"{count} {status}" for status, count in statuses(queue).items()))
    for one in workflow_view.report(queue):
        counts = ", ".join(f"{count} {state}" for state, count in one.counts.items())
        say(f"runs: {counts}")
        for mean in one.steps:
            say(f"  {mean.name}: {mean.number} times, {mean.mean_ms:.0f} ms in the mean")
    for run in workflow_view.runs(queue, state="compensated"):
        for step in workflow_view.run(queue, run.id).steps:
            if step.error_message:
                say(f"order {run.key}: {step.name} failed: {step.error_message}")


def main(folder: Path) -> dict[str, int]:
    """Place three orders, work on them until all have ended, and report; return the statuses."""
    with Queue(folder / "orders.db") as queue:
        for order_id, item in (("17", "book"), ("18", "lamp"), ("19", "piano"), ("17", "book")):
            run = place_order(queue, order_id, "customer-1", item)
            say(f"order {order_id} is run {run}")
        worker = Worker(queue, handlers, poll=0.02)

        def stop_when_all_have_ended() -> None:
            while any(run.finished_ms is None for run in workflow_view.runs(queue)):
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=stop_when_all_have_ended, daemon=True).start()
        worker.run()
        report(queue)
        return statuses(queue)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
