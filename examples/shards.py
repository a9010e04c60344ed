"""One file for each instance, behind a small router; and the way of a job to another instance.

    python shards.py

One SQLite file has one writer at a time.  When that is not enough, or when a customer's data must
be apart, each instance gets a file and workers of its own, and a router says which file a customer
belongs to: by a hash that every process computes alike (`hash()` differs between processes), and by
a table of exceptions for those that were moved.

A move is three commits, in an order in which a kill at any point loses and doubles nothing:

1. The job is *held* in its file: no worker there starts it any more.
2. It is put into the other file, together with the note that it came in; the note makes it once,
   also when the job has run there since.
3. It is *cancelled* in the first file, with its trace.

A move that was cut short is simply called again.  A moved job has all its attempts again, and a
large payload goes with it: what lies in a file beside the first database is copied to the second.
"""

import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from killproof import Job, Queue
from killproof.operations import hold
from killproof.payloads import Payloads


class Router:
    """All files of a folder, and which of them a customer belongs to."""

    def __init__(self, folder: Path, instances: Iterable[str]) -> None:
        self._open = ExitStack()
        self._moved: dict[str, str] = {}  # A real one keeps these in a file of its own.
        self.queues = {
            name: self._open.enter_context(Queue(folder / f"{name}.db"))
            for name in sorted(instances)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def instance_of(self, customer: str) -> str:
        """The instance of a customer; the highest hash wins, so that a new instance takes few.

        Rendezvous hashing: with one instance more, only the customers that it wins are moved.
        """
        return self._moved.get(customer) or max(
            self.queues, key=lambda name: blake2b(f"{name}/{customer}".encode()).digest()
        )

    def enqueue(self, customer: str, kind: str, payload: dict[str, object]) -> tuple[str, int]:
        """Put a job into the file of its customer; return the instance, and the id there."""
        name = self.instance_of(customer)
        return name, self.queues[name].enqueue(kind, {**payload, "customer": customer})

    def assign(self, customer: str, instance: str) -> None:
        """From now on this customer belongs to this instance."""
        self._moved[customer] = instance


def move(source: Queue, target: Queue, job_id: int) -> bool:
    """Move a waiting job to another file; False if it runs or has ended where it is."""
    hold(source, job_id)
    job = source.get(job_id)
    if job is None or job.state != "held":
        return False
    receive(source, target, job)
    return source.cancel(job_id)


def receive(source: Queue, target: Queue, job: Job) -> None:
    """Put a job of another file in, once, whatever became of it since."""
    payload = Payloads(source).payload(job)
    with target.transaction() as tx:
        tx.execute(
            "CREATE TABLE IF NOT EXISTS moved_job "
            "(source TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (source, id))"
        )
        note = (Path(source.path).name, job.id)
        if tx.execute("INSERT OR IGNORE INTO moved_job VALUES (?, ?)", note).rowcount:
            Payloads(target).enqueue(
                job.kind,
                payload,
                priority=job.priority,
                run_at=job.due_ms / 1_000,
                deadline=None if job.expires_ms is None else job.expires_ms / 1_000,
                key=job.key,
                max_attempts=job.max_attempts,
                lease=job.lease_ms / 1_000,
                retry=job.retry,
                tx=tx,
            )


def main(folder: Path) -> dict[str, dict[str, int]]:
    """Spread forty jobs, move a customer's to another instance; return the counts of each."""
    with Router(folder, ["lisboa", "porto", "recife"]) as router:
        placed = [
            (f"customer-{number}", *router.enqueue(f"customer-{number}", "invoice", {}))
            for number in range(40)
        ]
        customer, here, job_id = placed[0]
        there = next(name for name in router.queues if name != here)
        router.assign(customer, there)
        source, target = router.queues[here], router.queues[there]
        moved = [move(source, target, job_id) for _ in range(2)]  # The second finds it gone.
        print(f"{customer} went from {here} to {there}: {moved}")
        counts = {
            name: {state: count for state, count in queue.counts().items() if count}
            for name, queue in router.queues.items()
        }
    print(counts)
    return counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
