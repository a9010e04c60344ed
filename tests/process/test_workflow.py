"""Runs whose workers are killed with SIGKILL: whole at every moment, and never from zero."""

import os
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from killproof import Lease, Queue, workflow_view
from killproof.core import sync
from killproof.heartbeat import Tenure
from killproof.worker import Context
from killproof.workflow import Workflow, Workflows

SECONDS_MAX = 120.0

#: Each step says its name, and waits for the file `go` where the file `NAME.waits` is.
FLOWS = """
import os, time
from killproof.workflow import Workflow, memo
from killproof.worker import Handlers

handlers = Handlers()


def say(word):
    said = os.open("said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(said, f"{word} {os.getpid()}\\n".encode())
    os.close(said)
    while os.path.exists(f"{word}.waits") and not os.path.exists("go"):
        time.sleep(0.005)


album = Workflow("album", handlers)


@album.step(retry="immediate")
def find(step):
    say("find")
    return ["x", "y"]


@album.step(each=find, retry="immediate")
def resize(step):
    say(f"resize-{step.item}")
    return step.item.upper()


@album.step(needs=[resize], retry="immediate")
def publish(step):
    say("publish")
    return step.results["resize"]


@handlers("memo")
def remembering(context):
    step = memo(context)
    first = step("first", lambda: say("first") or [1])
    second = step("second", lambda: say("second") or first + [2])
    step.progress(2, 3, "nearly")
    return step("third", lambda: say("third") or second + [3])
"""


class Place:
    """A folder with a queue, the flows above, and the workers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        (folder / "flows_here.py").write_text(FLOWS)
        self.queue = Queue(folder / "queue.db")

    def worker(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "killproof", "work", "flows_here"],
                cwd=self.folder,
                stderr=log,
                stdout=log,
            )
        self.workers.append(worker)
        return worker

    def said(self) -> list[str]:
        try:
            return [line.split()[0] for line in (self.folder / "said").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"never came: {what}\n{(self.folder / 'log').read_text()}")
            time.sleep(0.005)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.queue.close()


@pytest.fixture
def here(place: Path) -> Iterator[Place]:
    here = Place(place)
    yield here
    here.close()


def test_a_run_whose_workers_are_killed_in_its_steps_is_never_begun_anew(here: Place) -> None:
    """Goal: a kill costs the attempt at one step.  Method: kill the worker in a step, and again.

    Covers S2.1, S2.4, S2.8, S2.9.
    """
    sys.path.insert(0, str(here.folder))
    try:
        import flows_here  # type: ignore[import-not-found]  # It is written by the fixture.
    finally:
        sys.path.remove(str(here.folder))
    run_id = Workflows(here.queue).start(flows_here.album, None, key="album-1")
    del sys.modules["flows_here"]
    names = ("resize-x", "publish")
    for name in names:
        (here.folder / f"{name}.waits").touch()

    for name in names:
        worker = here.worker()
        here.until(lambda name=name: name in here.said(), f"{name} begins")  # type: ignore[misc]
        worker.kill()
        worker.wait()
        assert workflow_view.faults(here.queue) == []
        assert workflow_view.run(here.queue, run_id).state == "running"
        (here.folder / f"{name}.waits").unlink()
    here.worker()
    here.until(
        lambda: workflow_view.run(here.queue, run_id).state == "succeeded", "the run succeeds"
    )

    assert Counter(here.said()) == {"find": 1, "resize-x": 2, "resize-y": 1, "publish": 2}
    last = workflow_view.run(here.queue, run_id).steps[-1]
    assert workflow_view.decoded(last) == ["X", "Y"]
    assert workflow_view.faults(here.queue) == []


def test_a_killed_handler_reads_its_stored_steps_and_runs_the_others(here: Place) -> None:
    """Covers S2.8, S2.9, S2.10."""
    (here.folder / "third.waits").touch()
    job_id = here.queue.enqueue("memo", None)
    first = here.worker()
    here.until(lambda: "third" in here.said(), "the third step begins")
    first.kill()
    first.wait()
    told, names = workflow_view.progress(here.queue, job_id)
    assert told is not None
    assert (told.done, told.total, told.note) == (2, 3, "nearly")
    assert names == ("first", "second")
    (here.folder / "third.waits").unlink()
    here.worker()

    def job_state() -> str:
        job = here.queue.get(job_id)
        assert job is not None
        return job.state

    here.until(lambda: job_state() == "succeeded", "the job succeeds")
    job = here.queue.get(job_id)
    assert job is not None
    assert job.result == [1, 2, 3]
    assert here.said() == ["first", "second", "third", "third"]


ORDERS = Path(__file__).resolve().parent.parent.parent / "examples/orders/orders.py"


def test_the_orders_of_the_article_are_processed_with_their_last_task(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers S2.24, S2.29, S2.35, S2.38: with the messages and the report of the article."""
    orders = runpy.run_path(str(ORDERS))

    assert orders["main"](place) == {"PROCESSED": 2, "REFUNDED": 1}
    told = capsys.readouterr().out
    for line in (
        *("order 17 is run 1", "processing task 5 (charge) of order 18"),
        *("order 18 is wholly processed", "order 19: receipt-19 is refunded", "no pending task"),
        *("runs: 1 compensated, 2 succeeded", "order 19: ship failed: nobody carries a piano"),
    ):
        assert f"{line}\n" in told
    with Queue(place / "orders.db") as queue:
        attempts = [step.attempt for step in workflow_view.run(queue, 2).steps]
        assert attempts == [1, 3, 1]
        assert workflow_view.faults(queue) == []


# Killed between any two moments of a transaction: a forked process kills itself there.

MOMENTS = ("begin", "locked", "written", "committed", "synced")


def killed_at(point: str, act: Callable[[], None]) -> None:
    """Act in a forked process that kills itself at the sync point."""

    def hook(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            sync.hook = hook
            act()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it was never at {point}"


def flow_of(place: Path) -> Workflow:
    flow = Workflow("flow")
    flow.step(name="a", compensate=lambda step: None)(lambda step: [1, 2])
    flow.step(name="b", needs=["a"], max_attempts=1)(lambda step: None)
    flow.step(name="each", each="a")(lambda step: None)
    flow.step(name="c", needs=["b", "each"])(lambda step: None)
    return flow


def claimed(queue: Queue, kind: str) -> Lease:
    lease = queue.claim([kind])
    assert lease is not None
    return lease


def finish(queue: Queue, flow: Workflow, kind: str) -> None:
    """Run one step as a worker does."""
    lease = claimed(queue, kind)
    tenure = Tenure(lease, now_ns=queue.host.clock.monotonic_ns())
    result = flow.handlers[kind].function(Context(queue, tenure, queue.host.clock))
    if not tenure.completed:
        queue.ack(lease, result)


def snapshot(path: Path) -> list[tuple[object, ...]]:
    """All that is known of runs, but for leases, which the reaper ends."""
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute(
            "SELECT 1 FROM sqlite_schema WHERE name = 'workflow_run'"
        ).fetchall()
        if not tables:
            return []
        return connection.execute(
            "SELECT run.state, run.steps, run.succeeded, step.name, item, undoes > 0, outcome, "
            "iif(job.state = 'leased', 'available', job.state) "
            "FROM workflow_run AS run JOIN workflow_step AS step ON step.run_id = run.id "
            "JOIN job ON job.id = step.job_id ORDER BY step.job_id"
        ).fetchall()


def test_a_worker_that_dies_in_the_last_task_leaves_its_order_pending(place: Path) -> None:
    """Goal: PROCESSED and the success of the run are one.  Covers S2.2, S2.12, S2.29."""
    orders = runpy.run_path(str(ORDERS))
    path, handlers = place / "orders.db", orders["handlers"]

    def standing() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(
                "SELECT status, state FROM orders JOIN workflow_run ON key = order_id"
            ).fetchall()

    def work(kind: str) -> None:
        with Queue(path) as queue:
            lease = claimed(queue, kind)
            tenure = Tenure(lease, now_ns=queue.host.clock.monotonic_ns())
            result = handlers[kind].function(Context(queue, tenure, queue.host.clock))
            if not tenure.completed:
                queue.ack(lease, result)

    with Queue(path) as queue:
        orders["place_order"](queue, "17", "customer-1", "book")
    work("orders.reserve")
    work("orders.charge")
    killed_at("complete.written", lambda: work("orders.ship"))
    assert standing() == [("PENDING", "running")]
    killed_at("complete.committed", lambda: work("orders.ship"))
    assert standing() == [("PROCESSED", "succeeded")]


@pytest.mark.parametrize("act", ["start", "spread", "fail", "cancel"])
def test_a_kill_at_any_moment_leaves_the_run_before_its_change_or_after_it(
    place: Path, act: str
) -> None:
    """Goal: no state between.  Method: the same act is killed at each moment of its transaction.

    Covers S2.2, S2.3, S2.12; F64, F65.
    """
    operation = {"start": "enqueue", "spread": "complete", "fail": "nack", "cancel": "cancel"}[act]
    seen = set()
    first = place / "first"
    first.mkdir()
    flow = flow_of(place)
    with Queue(first / "queue.db") as queue:
        if act != "start":
            Workflows(queue).start(flow)
        if act in ("fail", "cancel"):
            finish(queue, flow, "flow.a")
    before = snapshot(first / "queue.db")
    for moment in MOMENTS:
        path = shutil.copytree(first, place / moment) / "queue.db"

        def do(path: Path = path) -> None:
            with Queue(path) as queue:
                if act == "start":
                    Workflows(queue).start(flow)
                elif act == "spread":
                    finish(queue, flow, "flow.a")
                elif act == "fail":
                    queue.nack(claimed(queue, "flow.b"), "boom")
                else:
                    Workflows(queue).cancel(1)

        killed_at(f"{operation}.{moment}", do)
        with Queue(path) as queue:
            assert workflow_view.faults(queue) == []
            after = snapshot(path)
        is_done = moment in ("committed", "synced")
        assert (after != before) == is_done, f"{act} killed at {moment}"
        if is_done:
            seen.add(tuple(after))
    assert len(seen) == 1
