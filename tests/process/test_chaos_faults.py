"""Each fault on a real process: it lands where it was aimed, is seen to act, and is undone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from killproof import Queue
from killproof_chaos import plan, targets
from killproof_chaos.engines.crew import Crew, Process
from killproof_chaos.engines.finish import prepare
from killproof_chaos.engines.kernel import kernel_state
from killproof_chaos.nemesis import LOCKS_AGAIN_MAX, Nemesis
from killproof_chaos.phases import Board
from killproof_chaos.plan import Fault, Options
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.killproof_recorded import RecordedQueue
from killproof_evidence.history import HistoryWriter, read_history
from killproof_evidence.records import RecordWriter, read_records
from killproof_evidence.store import Store

SECONDS_MAX = 120.0


@dataclass(slots=True, kw_only=True)
class Stage:
    """A crew on an empty queue, and what its nemesis wrote."""

    crew: Crew
    store: Store
    place: Path
    ended: list[Process]

    def nemesis(self, *faults: Fault) -> Nemesis:
        """Make a nemesis of these faults."""
        return Nemesis(
            self.crew,
            RecordWriter(self.store.nemesis),
            faults,
            database=self.place / "queue.db",
            wire=self.place,
            lease_ms=200,
            blind=False,
        )

    def turn(self, nemesis: Nemesis | None = None) -> None:
        """Do one turn of the supervisor's loop, without giving life back to who ended."""
        for process in self.crew.poll(0.001):
            self.ended.append(process)
            if nemesis is not None and process.role in ("worker", "producer"):
                nemesis.on_end(process)
        if nemesis is not None:
            nemesis.step(1_000)

    def until(self, seen: Callable[[], object], nemesis: Nemesis | None = None) -> None:
        """Turn until something is seen."""
        deadline = time.monotonic() + SECONDS_MAX
        while not seen():
            assert time.monotonic() < deadline, "it was never seen"
            self.turn(nemesis)

    def worker(self) -> Process:
        """Start a worker and wait until it works."""
        process = self.crew.spawn("w1", "worker")
        self.until(lambda: process.state == "running")
        return process

    def faults(self) -> list[dict[str, object]]:
        """Read the nemesis log."""
        return [record for _, record in read_records(self.store.nemesis) if record is not None]


@pytest.fixture
def stage(place: Path) -> Iterator[Stage]:
    store = Store.create(place / "run")
    work = store.path / "place"
    target = targets.load("minimal")
    made = plan.make(Options(target="minimal", seconds=1.0, producers=1), ())
    made.write(store.plan)
    prepare(target, work, work / "queue.db", made)
    board = Board(store.path / "phases.bin")
    crew = Crew(store, work, "minimal", board)
    crew.wait_until_warm()
    yield Stage(crew=crew, store=store, place=work, ended=[])
    crew.close()
    board.close()


@pytest.mark.parametrize("phase", ["claim.begin", "claim.locked", "claim.written", "worker.idle"])
def test_a_kill_that_is_aimed_at_a_phase_lands_in_it_and_is_a_sigkill(
    stage: Stage, phase: str
) -> None:
    """Rules C2, C3."""
    worker = stage.worker()
    nemesis = stage.nemesis(Fault(fault="kill", at_ms=0, phase=phase))
    stage.until(lambda: stage.ended, nemesis)

    assert worker.status is not None
    assert os.WTERMSIG(worker.status) == signal.SIGKILL
    (fault,) = stage.faults()
    assert (fault["fault"], fault["phase"]) == ("kill", phase)
    assert fault["hit"] is (phase != "worker.idle")
    assert nemesis.exhausted


def test_a_kill_that_is_aimed_while_nobody_lives_hits_the_next_life(stage: Stage) -> None:
    """Seen in a real run: an aim that came due just after everybody had been killed."""
    worker = stage.worker()
    nemesis = stage.nemesis(Fault(fault="kill", at_ms=0, phase="claim.locked"))
    nemesis.kill(worker, "worker.idle")
    stage.until(lambda: stage.ended)
    nemesis.on_end(worker)
    nemesis.step(1_000)
    stage.crew.spawn("w1", "worker")
    stage.until(lambda: len(stage.ended) == 2, nemesis)

    assert [fault["phase"] for fault in stage.faults()] == ["worker.idle", "claim.locked"]


@pytest.mark.parametrize(("phase", "holds"), [("claim.locked", True), ("worker.idle", False)])
def test_a_pause_stops_the_process_at_its_phase_and_lets_it_go_on(
    stage: Stage, phase: str, holds: bool
) -> None:
    worker = stage.worker()
    nemesis = stage.nemesis(Fault(fault="pause", at_ms=0, phase=phase))
    stage.until(lambda: worker.state == "stopped", nemesis)
    assert kernel_state(worker.pid) == "T"

    stage.until(lambda: nemesis.exhausted, nemesis)
    assert kernel_state(worker.pid) not in ("T", "")
    assert worker.state == "running"
    pause, *stalls = stage.faults()
    assert (pause["fault"], pause["phase"], pause["held_write_lock"]) == ("pause", phase, holds)
    assert [stall["fault"] for stall in stalls] == ["stall"] * holds


def test_a_stopped_process_goes_on_when_the_run_is_healed(stage: Stage) -> None:
    worker = stage.worker()
    nemesis = stage.nemesis(Fault(fault="pause", at_ms=0, phase="handler.end"))
    nemesis.pause(worker, "handler.start")
    assert kernel_state(worker.pid) == "T"
    nemesis.heal()

    assert kernel_state(worker.pid) not in ("T", "")
    assert nemesis.exhausted
    # It may have been stopped inside a claim, by chance; then there is a stall too.
    assert [f["fault"] for f in stage.faults() if f["fault"] != "stall"] == ["pause", "heal"]


def test_a_worker_that_gets_sigterm_ends_in_order(stage: Stage) -> None:
    """Rule C3."""
    worker = stage.worker()
    nemesis = stage.nemesis()
    nemesis.term(worker, "worker.idle")
    stage.until(lambda: stage.ended, nemesis)

    assert worker.status == 0
    assert '"f":"exit"' in stage.store.history_file("w1.1").read_text()


def test_another_program_holds_the_write_lock_as_long_as_planned(stage: Stage) -> None:
    stage.worker()  # It polls, and so has to wait.
    nemesis = stage.nemesis(Fault(fault="lock", at_ms=0, length_ms=300))
    stage.until(lambda: nemesis.exhausted, nemesis)

    lock, stall, *_ = stage.faults()
    assert (lock["fault"], stall["fault"], stall["cause"]) == ("lock", "stall", "lock")
    assert lock["t_end"] == stall["t_end"]
    assert nemesis.hits["lock"] >= 1


def test_a_lock_that_nobody_had_to_wait_for_is_taken_again_and_not_for_ever(stage: Stage) -> None:
    """Rule C4."""
    nemesis = stage.nemesis(Fault(fault="lock", at_ms=0, length_ms=20))
    stage.until(lambda: nemesis.exhausted, nemesis)

    assert nemesis.hits["lock"] == 1 + LOCKS_AGAIN_MAX


def test_killing_all_leaves_nobody_who_has_the_file_open(stage: Stage) -> None:
    stage.worker()
    stage.crew.spawn("w2", "worker")
    stage.until(lambda: len(stage.crew.of_role("worker")) == 2)
    client = targets.load("minimal").client(stage.place)
    client.enqueue("report", {"id": "j1"}, delay=60)
    client.close()  # The workers have the file open, so the log stays.
    nemesis = stage.nemesis(Fault(fault="kill-all", at_ms=0))
    stage.until(lambda: not stage.crew.of_role("worker"), nemesis)

    assert sorted(str(fault["fault"]) for fault in stage.faults()) == ["kill", "kill", "kill-all"]


def test_an_end_that_nobody_asked_for_is_not_explained_away(stage: Stage) -> None:
    worker = stage.worker()
    nemesis = stage.nemesis()
    worker.send(signal.SIGKILL)
    stage.until(lambda: stage.ended)

    assert not nemesis.on_end(worker)
    (fault,) = stage.faults()
    assert (fault["fault"], fault["hit"]) == ("died", False)


def test_a_kill_that_came_after_the_process_had_ended_by_itself_does_not_count(
    stage: Stage,
) -> None:
    """Rule C4."""
    worker = stage.worker()
    nemesis = stage.nemesis()
    worker.doom = {"t": 0, "fault": "kill", "pid": worker.pid, "phase": "ack.begin", "hit": True}
    nemesis.term(worker, "worker.idle")
    stage.until(lambda: stage.ended)

    assert nemesis.on_end(worker)
    assert nemesis.hits["kill"] == 0
    assert [fault["fault"] for fault in stage.faults()] == ["term"]


def test_a_process_that_is_killed_while_it_stands_still_counts_as_killed_and_not_as_paused(
    stage: Stage,
) -> None:
    worker = stage.worker()
    nemesis = stage.nemesis()
    nemesis.pause(worker, "handler.start")
    nemesis.kill(worker, "handler.start")
    stage.until(lambda: stage.ended, nemesis)

    assert (nemesis.hits["kill"], nemesis.hits["pause"]) == (1, 0)
    hits = {fault["fault"]: fault["hit"] for fault in stage.faults() if "hit" in fault}
    assert hits == {"pause": False, "kill": True}


def test_a_killed_producer_goes_on_where_it_was_and_enqueues_nothing_twice(stage: Stage) -> None:
    start = time.monotonic_ns()
    producer = stage.crew.spawn("p1", "producer", name="p1", start_ns=start)
    stage.until(lambda: stage.crew.board.progress(producer.slot) > 20)
    nemesis = stage.nemesis(Fault(fault="kill", at_ms=0, phase="enqueue.written"))
    stage.until(lambda: stage.ended, nemesis)
    begun = stage.crew.board.progress(producer.slot)
    again = stage.crew.spawn("p1", "producer", name="p1", start_ns=start)
    stage.until(lambda: stage.crew.board.progress(again.slot) > begun + 20)

    assert [fault["fault"] for fault in stage.faults()] == ["producer-kill"]
    asked = [
        record["value"]["id"]
        for path in stage.store.history_files()
        for _, record in read_records(path)
        if record is not None and record["f"] == "enqueue" and record["type"] == "invoke"
    ]
    unkeyed = {name for name in asked if asked.count(name) > 1}
    keyed = {
        op.job.id
        for op in plan.make(Options(target="minimal", seconds=1.0, producers=1), ()).operations[0]
        if op.job is not None and op.job.key is not None
    }
    assert unkeyed <= keyed


def test_a_lease_that_a_closing_queue_gives_back_is_on_record_as_unknown(place: Path) -> None:
    """A worker that gave up its lease says nothing; the close may still find it there."""
    store = Store.create(place / "run")
    history = HistoryWriter(store.history_file("w1.1"), "w1.1")
    queue = RecordedQueue(place / "queue.db", Recorder(history, lambda _error: False))
    queue.enqueue("report", {"id": "j1"})
    lease = queue.claim()
    assert lease is not None
    queue.close()
    history.close()

    with Queue(place / "queue.db") as again:
        job = again.get(lease.job.id)
    assert job is not None
    assert job.state == "available"
    (release,) = [op for op in read_history(store).operations if op.f == "release"]
    assert (release.type, release.fence, release.job) == ("info", 1, str(lease.job.id))


def test_a_queue_that_closes_without_a_lease_records_no_release(place: Path) -> None:
    store = Store.create(place / "run")
    history = HistoryWriter(store.history_file("w1.1"), "w1.1")
    queue = RecordedQueue(place / "queue.db", Recorder(history, lambda _error: False))
    queue.enqueue("report", {"id": "j1"})
    lease = queue.claim()
    assert lease is not None
    queue.ack(lease)
    queue.close()
    history.close()

    assert [op.f for op in read_history(store).operations] == ["claim", "ack"]


def test_what_a_failure_asked_for_is_on_record_although_its_answer_never_came(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in a real run: killed between the commit of a permanent failure and its answer."""
    store = Store.create(place / "run")
    history = HistoryWriter(store.history_file("w1.1"), "w1.1")
    queue = RecordedQueue(place / "queue.db", Recorder(history, lambda _error: False))
    for number in range(2):
        queue.enqueue("report", {"id": f"j{number}"})
    monkeypatch.setattr(HistoryWriter, "ok", lambda *_, **__: None)
    first, second = queue.claim(), queue.claim()
    assert first is not None
    assert second is not None
    queue.nack(first, "never", permanent=True)
    queue.snooze(second, 2.0)
    queue.close()
    history.close()

    asked = {op.f: op.value for op in read_history(store).operations if op.f != "claim"}
    assert asked == {"nack": {"permanent": True}, "snooze": {"delay_ms": 2_000}}


def test_a_worker_of_killproof_that_is_stopped_before_its_first_claim_ends_in_order(
    place: Path,
) -> None:
    """Seen in a real run: SIGTERM between "ready" and the worker's own signal handlers."""
    child = subprocess.Popen(
        [sys.executable, "-c", EARLY_STOP],
        env=os.environ | {"KILLPROOF_STORE": str(place), "KILLPROOF_PROCESS": "w1.1"},
        cwd=place,
    )

    assert child.wait(SECONDS_MAX) == 0
    assert '"f":"exit"' in (place / "history/w1.1.jsonl").read_text()


EARLY_STOP = """
import os, signal
from pathlib import Path
from killproof_chaos import hook
from killproof_chaos.targets.killproof_adapter import KillproofTarget
hook.ready = lambda: os.kill(os.getpid(), signal.SIGTERM)
Path("history").mkdir(exist_ok=True)
KillproofTarget().work(Path.cwd())
"""


def test_a_process_that_ended_before_it_could_be_watched_gets_no_signal_and_is_told_as_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen under failing disk calls: a worker that cannot open its file is gone at once."""

    def gone(_pid: int) -> int:
        raise ProcessLookupError

    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", gone)
        worker = stage.worker()
    assert not worker.send(signal.SIGTERM)

    os.kill(worker.pid, signal.SIGKILL)
    stage.until(lambda: stage.ended)
    assert worker.state == "ended"
