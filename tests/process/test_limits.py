"""Limits among real workers: a real HTTP server that bans, and real kills.

Each worker is a process of its own. A handler writes what it does to the file `said`, one `write`
a line, so that a kill loses nothing.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from killproof import Queue
from killproof.limits import Limits

SECONDS_MAX = 120.0
WORKERS = 3

JOBS = """
import os, sys, time, urllib.error, urllib.request
from killproof import Queue
from killproof.handlers import Handlers, RetryLater
from killproof.worker import Worker

handlers = Handlers()
said = os.open("said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def say(word, context):
    line = f"{word} {os.getpid()} {context.job.kind} {context.job.id} {time.monotonic_ns()}\\n"
    os.write(said, line.encode())


@handlers("backup")
@handlers("migrate")
@handlers("render")
def work(context):
    say("start", context)
    while not os.path.exists("go"):
        time.sleep(0.005)
    say("end", context)


@handlers("ask")
def ask(context):
    try:
        with urllib.request.urlopen(context.payload["url"], timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            seconds = error.headers.get("Retry-After")
        if seconds is None:
            raise
        raise RetryLater(float(seconds), "HTTP 429", shared=context.payload["shared"]) from error


with Queue("queue.db") as queue:
    Worker(queue, handlers).run()
"""


@pytest.fixture
def queue(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.chdir(place)
    with Queue("queue.db", durability="process") as queue:
        yield queue


@contextmanager
def crew() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers in this folder; whoever lives at the end is told to stop, and must."""
    workers = [subprocess.Popen([sys.executable, "-c", JOBS]) for _ in range(WORKERS)]
    try:
        yield workers
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.wait(SECONDS_MAX)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)


def said() -> list[list[str]]:
    """Return the whole lines that the workers have written."""
    path = Path("said")
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]


@dataclass(kw_only=True)
class Api:
    """A server that lets six ask, then wants a second of silence, and bans who does not listen.

    So many as there are workers may be on their way when it says so; from the next on it bans.
    """

    asked: int = 0
    ignored: int = 0  #: requests within the second of silence
    silent_until: float = 0.0
    is_banned: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)

    ALLOWED = 6
    RETRY_AFTER = 1

    def answer(self) -> int:
        with self.guard:
            now = time.monotonic()
            if self.is_banned:
                return 403
            if now < self.silent_until:
                self.ignored += 1
                self.is_banned = self.ignored >= WORKERS
                return 403 if self.is_banned else 429
            self.asked += 1
            if self.asked % (self.ALLOWED + 1):
                return 200
            self.ignored, self.silent_until = 0, now + self.RETRY_AFTER - 0.05
            return 429


@pytest.fixture
def api() -> Iterator[tuple[Api, str]]:
    api = Api()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = api.answer()
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", str(api.RETRY_AFTER))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield api, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "each on its own"])
def test_three_workers_are_banned_unless_they_share_what_one_was_told(
    queue: Queue, api: tuple[Api, str], shared: bool
) -> None:
    """The story of the banned address, and its control. Covers S1.1, S1.4, S1.50. F35."""
    server, url = api
    jobs = 8 if shared else 99
    for _ in range(jobs):
        queue.enqueue("ask", {"url": url, "shared": shared}, max_attempts=99)

    with crew():
        wait_until(lambda: server.is_banned or queue.counts()["succeeded"] == jobs)

    assert server.is_banned is not shared
    if shared:
        assert [limit.name for limit in Limits(queue).list()] == ["ask"]
        assert server.asked >= 9  # It did say 429.


def test_kills_leave_no_slot_taken_and_let_nobody_in_beside_a_holder(queue: Queue) -> None:
    """And each limit is reached as long as work waits. Covers S1.2, S1.5, S1.6, S1.11. F13."""
    limits = Limits(queue)
    limits.set("main database", kinds=["backup", "migrate"], running=1)
    limits.set("processor", kinds=["render"], running=2)
    for kind in ("backup", "migrate", "render", "render") * 3:
        queue.enqueue(kind, None, retry="immediate", max_attempts=9)
    killed: dict[str, int] = {}

    with crew() as workers:
        for _ in range(2):
            wait_until(lambda: all(map(runs, workers)))
            assert [limit.running for limit in limits.list()] == [1, 2]
            killed |= kill_one(workers)
        wait_until(lambda: all(map(runs, workers)))
        Path("go").touch()
        wait_until(lambda: queue.counts()["succeeded"] == 12)

    assert most_at_once({"backup", "migrate"}, killed) == 1
    assert most_at_once({"render"}, killed) == 2
    assert [limit.running for limit in limits.list()] == [0, 0]
    assert queue.database.peek("SELECT * FROM throttle") == []


def kill_one(workers: list[subprocess.Popen[bytes]]) -> dict[str, int]:
    """Kill the first worker and start another, the last; return when, monotonic ns."""
    victim = workers.pop(0)
    before_ns = time.monotonic_ns()
    victim.kill()
    victim.wait()
    workers.append(subprocess.Popen([sys.executable, "-c", JOBS]))
    return {str(victim.pid): before_ns}


def runs(worker: subprocess.Popen[bytes]) -> bool:
    """Whether a worker is inside a handler, as it has said."""
    words = [line[0] for line in said() if line[1] == str(worker.pid)]
    return bool(words) and words[-1] == "start"


def most_at_once(kinds: set[str], killed: dict[str, int]) -> int:
    """Return how many ran at once at most; who was killed ran until just before that."""
    moments: list[tuple[int, int]] = []
    open_since: dict[str, int] = {}
    for word, pid, kind, _, moment in said():
        if kind not in kinds:
            continue
        moments.append((int(moment), 1 if word == "start" else -1))
        open_since[pid] = int(moment)
        if word == "end":
            del open_since[pid]
    moments += [(max(start, killed[pid]), -1) for pid, start in open_since.items()]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    assert running == 0
    return most
