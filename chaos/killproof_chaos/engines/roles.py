"""What the processes around a queue do: producers, the HTTP sink, a foreign program, an observer.

Each role is the whole life of one process, forked from the warm server. It finds its place in the
environment that the supervisor gives it, and ends by SIGTERM or with the supervisor.
"""

import json
import os
import select
import signal
import sqlite3
import threading
import time
from collections.abc import Container, Sequence
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from killproof_chaos import hook
from killproof_chaos.plan import Plan
from killproof_chaos.recording import Recorder, open_recorder, process_name
from killproof_chaos.workload import WAITING_MS, Job, Operation, options_of
from killproof_evidence.evidence import payload_digest
from killproof_evidence.records import RecordWriter
from killproof_evidence.store import Store
from killproof_evidence.target import Client, Indefinite, Target

#: Requests for a key that the sink has applied already; beside the effects, for they had none.
REPEATS: Final = "repeats.jsonl"
OBSERVE_SECONDS: Final = 0.1
#: A job is put in again within this share of its delay: the call may have to wait as well, for the
#: lock of a foreign program.
REPEAT_SHARE: Final = 1 / 3
#: Between two looks of a producer that holds back.
HOLD_SECONDS: Final = 0.01
#: How long the foreign program waits for the lock it wants to hold.
LOCK_WAIT_SECONDS: Final = 20.0


class Stop:
    """An event that a signal handler may set: a pipe, readable from then on.

    Not `threading.Event`: its lock is not reentrant, so a handler that interrupts `wait` in the
    main thread while that holds the lock waits for itself for ever, and the process never ends.
    """

    def __init__(self) -> None:
        """Open the pipe."""
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def set(self) -> None:
        """Set it, for good; safe in a handler that interrupts anything here."""
        with suppress(BlockingIOError):  # A full pipe is set as well.
            os.write(self._writer, b"!")

    def is_set(self) -> bool:
        """Say whether it was set."""
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so long; say whether it is."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        return bool(ready)


def stop_on_sigterm() -> Stop:
    """Return an event that SIGTERM sets."""
    stopped = Stop()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's; it sends SIGTERM.
    return stopped


def produce(target: Target, place: Path, store: Store, name: str, start_ns: int) -> None:
    """Play a producer's operations, each when it is due, from where the last life was killed."""
    stopped = stop_on_sigterm()
    plan = Plan.read(store.plan)
    operations = plan.operations[plan.producers.index(name)]
    known = options_of(target.contract)
    recorder = open_recorder(process_name())
    ids, asked_ns = known_ids(store, name)
    client = target.client(place)
    hook.ready()
    begun = hook.progress()
    if begun and _may_repeat(operations[begun - 1]):
        # The life before was killed inside this one; its key makes a repetition harmless.
        begun -= 1
    for number in range(begun, len(operations)):
        operation = operations[number]
        due_ns = start_ns + operation.at_ms * 1_000_000
        stopped.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        while hook.is_held() and not stopped.wait(HOLD_SECONDS):
            pass
        if stopped.is_set():
            break
        hook.set_progress(number + 1)
        if _comes_too_late(operation, asked_ns):
            continue
        perform(client, recorder, operation, ids, known)
    client.close()
    recorder.close()


def _may_repeat(operation: Operation) -> bool:
    """Say whether enqueueing again after an unknown outcome is sure to meet the same live job."""
    job = operation.job
    return job is not None and job.key is not None and job.delay_ms >= WAITING_MS


def _comes_too_late(operation: Operation, asked_ns: dict[str, int]) -> bool:
    """Say whether a job is to be put in again, and might have ended since it was put in.

    Its key would be free then, and a second job of one name would look like a double effect.
    """
    job = operation.job
    if job is None:
        return False
    now = time.monotonic_ns()
    return (now - asked_ns.setdefault(job.id, now)) / 1e6 > job.delay_ms * REPEAT_SHARE


def known_ids(store: Store, name: str) -> tuple[dict[str, str], dict[str, int]]:
    """Return the queue's ids of the jobs that earlier lives of this producer enqueued, and when."""
    ids: dict[str, str] = {}
    asked_ns: dict[str, int] = {}
    if hook.progress() == 0:
        return ids, asked_ns
    for path in store.history.glob(f"{name}.*jsonl"):
        for _, record in store.read(path):
            # The completion names the queue's id, the invocation before it the harness's.
            if record is not None and record["f"] == "enqueue":
                if record["type"] == "invoke":
                    asked = record["value"]["id"]
                    asked_ns.setdefault(asked, record["t"])
                elif record["type"] == "ok":
                    ids[asked] = str(record["job"])
    return ids, asked_ns


def perform(
    client: Client,
    recorder: Recorder,
    operation: Operation,
    ids: dict[str, str],
    known: Container[str],
) -> None:
    """Do one operation; what the queue answers is in the history, whatever it is.

    Args:
        client: of the queue.
        recorder: of this process.
        operation: to be done.
        ids: the queue's ids by the harness's; an enqueue adds its own.
        known: the options that the queue's enqueue has.
    """
    job = operation.job
    try:
        if job is not None:
            payload = job.payload()
            options = {name: v for name, v in job.options().items() if name in known}
            found = recorder.call(
                "enqueue",
                lambda: client.enqueue(job.kind, payload, **options),
                value=job.summary() | {"digest": payload_digest(payload)},
                told=lambda result: {"job": result},
            )
            ids[job.id] = str(found)
        elif operation.f == "reap":
            reap = getattr(client, "reap", None)
            if reap is not None:
                recorder.call("reap", reap, told=lambda result: {"value": result})
        elif operation.run is not None:
            _start(client, recorder, operation.run, operation.steps)
        elif operation.f == "collect":
            # What it must not take is missed by a handler; its errors are told as any other's.
            collect = getattr(client, "collect", None)
            assert collect is not None, "the target announces the capability `spill`"
            recorder.call("collect", collect, told=lambda result: {"value": {"files": result}})
        elif operation.f == "backup":
            backup = getattr(client, "backup", None)
            assert backup is not None, "the target announces the capability `backup`"
            recorder.call("backup", backup, told=lambda result: {"value": {"backup": result}})
        elif operation.of in ids:
            known = ids[operation.of]
            act = client.cancel if operation.f == "cancel" else client.replay
            recorder.call(
                operation.f,
                lambda: act(int(known) if known.isdecimal() else known),
                job=known,
                told=lambda result: {"value": result},
            )
    except Exception as error:
        # The producer of a real program would report it and go on; the history has the text.
        if not isinstance(error, Indefinite):
            return


def _start(client: Client, recorder: Recorder, run: str, jobs: Sequence[Job]) -> None:
    """Start a run of a workflow; in the history it is the enqueue of each of its steps."""
    start = getattr(client, "start", None)
    assert start is not None, "the target announces the capability `workflow`"
    steps = [
        {"id": job.id, "kind": job.kind, "payload": job.payload(), "needs": job.needs}
        | job.options()
        for job in jobs
    ]
    asked = [job.summary() | {"digest": payload_digest(job.payload())} for job in jobs]
    recorder.call(
        "start",
        lambda: start(run, steps),
        value={"run": run, "steps": asked},
        told=lambda result: {"value": result},
    )


class _Sink(BaseHTTPRequestHandler):
    """The other side of an HTTP effect: it applies each idempotency key once."""

    protocol_version = "HTTP/1.1"
    applied: RecordWriter
    repeated: RecordWriter
    guard = threading.Lock()
    seen: set[str] = set()  # noqa: RUF012 - one server, one process, one run

    def do_POST(self) -> None:
        """Apply the effect unless its key has been applied before."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        facts = json.loads(body)
        with self.guard:
            first = key not in self.seen
            self.seen.add(key)
            what = "applied" if first else "repeated"
            (self.applied if first else self.repeated).append(
                {"t": time.monotonic_ns(), "pid": os.getpid(), "job": key, "what": what}
                | {name: facts.get(name) for name in ("attempt", "fence")}
            )
        answer = json.dumps({"first": first}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing: the effect log is the record."""


def serve_sink(store: Store, told: Path) -> None:
    """Serve the HTTP sink on a loopback port, which is written to the file `told`."""
    stopped = stop_on_sigterm()
    _Sink.applied = RecordWriter(store.effects / "http.jsonl")
    _Sink.repeated = RecordWriter(store.path / REPEATS)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_whole(told, {"url": f"http://127.0.0.1:{server.server_port}/"})
        stopped.wait()
        server.shutdown()


def hold_lock(database: Path, told: Path, length_ms: int) -> None:
    """Be the other program: hold SQLite's write lock for a while, with plain sqlite3.

    It writes nothing. The times at which it got and gave back the lock go to the file `told`.
    """
    with closing(sqlite3.connect(database, timeout=LOCK_WAIT_SECONDS, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            write_whole(told, {"t": 0, "t_end": 0})  # It never got the lock: the fault missed.
            return
        began = time.monotonic_ns()
        time.sleep(length_ms / 1_000)
        db.execute("ROLLBACK")
        write_whole(told, {"t": began, "t_end": time.monotonic_ns()})


def observe(database: Path, table: str, state: str, told: Path) -> None:
    """Write the number of jobs in each state to the file `told`, again and again, until SIGTERM."""
    stopped = stop_on_sigterm()
    # The mapping may be an expression over NEW: here that is every row.
    count = f"SELECT {state}, count(*) FROM {table} AS NEW GROUP BY 1"  # noqa: S608 - its names
    inserted = "SELECT count(*) FROM killproof_audit WHERE old IS NULL AND job IS NOT NULL"
    number = 0
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as db:
        while not stopped.wait(OBSERVE_SECONDS):
            db.execute("BEGIN")  # One snapshot for both questions.
            counts = dict(db.execute(count).fetchall())
            (enqueued,) = db.execute(inserted).fetchone()
            db.execute("COMMIT")
            number += 1
            write_whole(told, {"number": number, "counts": counts, "inserted": enqueued})


def write_whole(path: Path, record: dict[str, Any]) -> None:
    """Write a small file so that a reader sees all of it or none."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(record), encoding="utf-8")
    scratch.replace(path)


def read_whole(path: Path) -> dict[str, Any] | None:
    """Read what `write_whole` wrote; None: not yet."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record
