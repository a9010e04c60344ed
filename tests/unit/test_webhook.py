"""The news of a death is as durable as the death, and reaches a real server."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from killproof import Job, Lease, ManualClock, Queue, operations, webhook
from killproof.handlers import Handlers, Permanent, RetryLater
from killproof.heartbeat import Tenure
from killproof.worker import Context

Sql = Callable[..., list[tuple[object, ...]]]
URL = "http://127.0.0.1:9/dead"


def claimed(queue: Queue, kind: str | None = None) -> Lease:
    lease = queue.claim(None if kind is None else [kind])
    assert lease is not None
    return lease


def die(queue: Queue, kind: str = "k") -> int:
    job_id = queue.enqueue(kind, {"n": 1}, key=f"event:{queue.counts()['dead']}")
    queue.nack(claimed(queue, kind), ValueError("no such address"), permanent=True)
    return job_id


def news(sql: Sql) -> list[dict[str, Any]]:
    rows = sql("SELECT payload FROM job WHERE kind = 'killproof.webhook' ORDER BY id")
    return [json.loads(str(payload)) for (payload,) in rows]


class Server:
    """A real HTTP server that answers as it is told and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, dict(self.headers), json.loads(body)))
                status, headers = outer.answers.pop(0) if outer.answers else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/dead"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def deliver(queue: Queue, clock: ManualClock) -> tuple[Lease, Callable[[], object]]:
    lease = claimed(queue, webhook.KIND)
    context = Context(queue, Tenure(lease, now_ns=clock.monotonic_ns()), clock)
    return lease, lambda: webhook.deliver(context)


def test_the_news_of_a_death_arrives_with_its_error_and_a_key(
    queue: Queue, server: Server, clock: ManualClock
) -> None:
    """Covers S1.52."""
    webhook.add(queue, server.url)
    job_id = die(queue, "scrape")
    lease, send = deliver(queue, clock)
    assert send() == {"status": 204}
    queue.ack(lease)
    ((path, headers, body),) = server.got

    assert path == "/dead"
    assert headers["Idempotency-Key"] == lease.job.key
    assert body == {
        "job": job_id, "kind": "scrape", "key": "event:0", "attempts": 1,
        "error_class": "ValueError", "error_message": "no such address",
        "died_ms": clock.now_ms(),
    }  # fmt: skip


def test_the_news_is_in_the_transaction_of_the_death(queue: Queue, sql: Sql) -> None:
    """Also for a death that a reaper writes down, and once for each death and address."""
    webhook.add(queue, URL)
    webhook.add(queue, URL)
    webhook.add(queue, f"{URL}/2")
    queue.enqueue("k", 1, max_attempts=1)
    claimed(queue)
    assert queue.database.liveness is not None
    queue.database.liveness.release()
    queue.reap()

    assert [(one["error_class"], one["url"]) for one in news(sql)] == [
        ("Crashed", URL),
        ("Crashed", f"{URL}/2"),
    ]


def test_no_news_is_sent_of_the_death_of_news(queue: Queue, sql: Sql) -> None:
    webhook.add(queue, URL)
    die(queue)
    queue.nack(claimed(queue, webhook.KIND), "nobody listens", permanent=True)

    assert len(news(sql)) == 1


def test_a_job_that_dies_again_after_a_replay_is_news_again(queue: Queue, sql: Sql) -> None:
    webhook.add(queue, URL)
    job_id = die(queue)
    operations.replay(queue, [job_id])
    queue.nack(claimed(queue, "k"), "again", permanent=True)

    assert [one["error_message"] for one in news(sql)] == ["no such address", "again"]


def test_a_removed_address_gets_nothing(queue: Queue, sql: Sql) -> None:
    assert not webhook.remove(queue, URL)
    assert webhook.urls(queue) == []
    webhook.add(queue, URL)
    assert webhook.urls(queue) == [URL]
    assert webhook.remove(queue, URL)
    die(queue)

    assert news(sql) == []


@pytest.mark.parametrize(
    "url", ["ftp://x/", "/dead", "http://", f"http://x/{'y' * 400}", "http:// x"]
)
def test_what_is_no_address_is_refused_with_the_value(queue: Queue, url: str) -> None:
    with pytest.raises(ValueError, match="must be an http or https address"):
        webhook.add(queue, url)


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (503, {"Retry-After": "7"}, RetryLater),
        (429, {"Retry-After": "99999"}, RetryLater),
        (500, {}, OSError),
        (408, {}, OSError),
        (404, {}, Permanent),
        (302, {"Location": "/elsewhere"}, Permanent),
    ],
)
def test_the_answer_says_whether_and_when_it_is_tried_again(
    queue: Queue,
    server: Server,
    clock: ManualClock,
    status: int,
    headers: dict[str, str],
    error: type[Exception],
) -> None:
    server.answers = [(status, headers)]
    webhook.add(queue, server.url)
    die(queue)
    with pytest.raises(error) as raised:
        deliver(queue, clock)[1]()

    if isinstance(raised.value, RetryLater):
        assert raised.value.seconds == min(int(headers["Retry-After"]), 3_600)
    assert len(server.got) == 1


def test_a_server_that_is_not_there_is_an_error_to_be_retried(
    queue: Queue, server: Server, clock: ManualClock
) -> None:
    webhook.add(queue, server.url)
    die(queue)
    server.close()
    with pytest.raises(OSError, match="refused"):
        deliver(queue, clock)[1]()


def test_only_http_is_spoken_whatever_a_payload_says(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(webhook.KIND, {"url": "file:///etc/hostname"})
    with pytest.raises(Permanent, match="no http"):
        deliver(queue, clock)[1]()


def test_a_module_may_have_a_handler_of_its_own_for_the_news(queue: Queue) -> None:
    handlers = Handlers()
    said: list[Job] = []
    handlers(webhook.KIND)(lambda context: said.append(context.job))
    webhook.register(handlers)

    assert handlers.kinds == (webhook.KIND,)
