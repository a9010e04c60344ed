r"""The page and its API as an ASGI application: who is let in, what is asked, what is answered.

    browser, curl -> Guard (Host, origin, size, headers) -> routes -> Reader or `act`, on threads
                                                              \-> Feed: one look for all watchers

The event loop never touches the database: reads go to one thread with one connection, actions to
another.  Nothing is kept between requests but the open file and the latest view.

What protects it.  A token travels in the header `Authorization`, which a foreign page can neither
set nor read; there are no cookies, so there is nothing to forge a request with.  The name in `Host`
must be one of ours, so that a foreign name that was made to point here (DNS rebinding) gets
nothing.  The page's own policy allows scripts from here alone and no HTML made of text
(`require-trusted-types-for`), so that a payload stays a payload.

This is the one module that needs starlette; `web_server` runs it with uvicorn.
"""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Final, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from killproof import web_audit, web_others
from killproof.core import model
from killproof.core.clock import SystemClock
from killproof.core.errors import (
    DatabaseBusy,
    FileRefused,
    JobNotFound,
    KillproofError,
    OutcomeUnknown,
    StorageFailed,
    StorageFull,
)
from killproof.core.host import Host
from killproof.core.jobs import Queue
from killproof.explain import explain
from killproof.listing import as_page, as_row
from killproof.web_access import ACTIONS, ROLE_TEXT, ROLES, Person, Tokens
from killproof.web_acting import Denied, NothingChanged, Order, act
from killproof.web_feed import WATCHERS_MAX, Feed
from killproof.web_guard import HEADERS, refusal
from killproof.web_listing import page
from killproof.web_reading import OpenFile, Reader, ReadTooLong

#: An action waits for its turn, and then for the write lock, no longer than a person waits.
ACT_BUSY_SECONDS: Final = 5.0
#: Actions that wait for their turn; there is one thread for them.
ACTIONS_WAITING_MAX: Final = 16
#: Reads that wait for theirs, each of half a second at most unless the machine is busy.
READS_WAITING_MAX: Final = 50
#: Characters of a payload or a result on the page of a job.
TEXT_CHARS_MAX: Final = 65_536
#: Attempts on it, the latest ones; each may have a traceback of 16,384 characters.
ATTEMPTS_SHOWN: Final = 50

ASSETS: Final = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
    "views.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

#: What each error is in HTTP; the first that fits.
STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Denied, 403),
    (JobNotFound, 404),
    (NothingChanged, 409),
    (ReadTooLong, 503),
    (DatabaseBusy, 503),
    (FileRefused, 503),
    (StorageFailed, 503),
    (StorageFull, 507),
    (OutcomeUnknown, 500),
    (ValueError, 400),
    (KillproofError, 500),
)


def application(
    db: Path, tokens: Tokens, *, is_private: bool = False, hosts: frozenset[str] = frozenset()
) -> "Guard":
    """Return the application on a file.

    Args:
        db: the database; it may come and go while the application runs.
        tokens: who may do what.
        is_private: whether reading needs a token as well.
        hosts: names under which it is reached, beside `localhost` and plain addresses.
    """
    site = Site(db, tokens, is_private=is_private)
    kinds = (Exception, HTTPException, *(kind for kind, _ in STATUS))
    app = Starlette(
        routes=site.routes(),
        exception_handlers=dict.fromkeys(kinds, _answer_error),
        lifespan=site.lifespan,
    )
    app.router.redirect_slashes = False  # Whoever asks is told of an address that is none.
    return Guard(app, site, hosts)  # Outside of all: its headers are on errors of ours as well.


class Site:
    """What the routes share: the file, the threads, the feed, the tokens."""

    def __init__(self, db: Path, tokens: Tokens, *, is_private: bool) -> None:
        self.tokens = tokens
        self.is_private = is_private
        self._clock = SystemClock()
        self._reader = Reader(str(db))
        self._writer = OpenFile(str(db), busy_limit=ACT_BUSY_SECONDS, host=Host())
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="killproof-read")
        self._acting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="killproof-act")
        self._reads_waiting = self._actions_waiting = 0
        self.feed = Feed(self._reader, self._reading)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Keep the feed running while the application is; close the file at its end."""
        watching = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            self.feed.close()
            await watching
            self.close()

    def close(self) -> None:
        """Let what has begun end, then close the file; what waits for its turn never begins."""
        for thread in (self._reading, self._acting):
            thread.shutdown(wait=True, cancel_futures=True)
        self._reader.close()
        self._writer.close()

    def routes(self) -> list[Route]:
        """Return all of them; docs/api.md is compared with this list by a test."""
        read: dict[str, Callable[[Queue, Request], object]] = {
            "/api/jobs": _jobs,
            "/api/jobs/{job_id:int}": _job,
            "/api/jobs/{job_id:int}/explain": _explain,
            "/api/audit": _audit,
            "/api/limits": _limits,
            "/api/workflows": _runs,
            "/api/workflows/{run_id:int}": _run,
            "/api/schedules": _schedules,
        }
        return [
            Route("/", _asset),
            Route("/{name}", _asset),
            Route("/api/me", self._me),
            Route("/api/events", self._events),
            Route("/api/status", self._status),
            *(Route(path, self._reading_of(answer)) for path, answer in read.items()),
            Route("/api/jobs/{job_id:int}/{action}", self._act_on_job, methods=["POST"]),
            Route("/api/{action}", self._act_on_many, methods=["POST"]),
        ]

    # Who asks.

    def _person(self, request: Request) -> Person | None:
        """Return who asks; None is somebody without a token.

        Raises:
            HTTPException: the token is no good.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            return None
        person = self.tokens.person(token.strip()) if scheme.lower() == "bearer" else None
        if person is None:
            raise HTTPException(
                401,
                "this token is not known here, or has ended: "
                "ask for one, killproof serve token add NAME",
                {"www-authenticate": "Bearer"},
            )
        return person

    def _reader_of(self, request: Request) -> Person | None:
        """Let in whoever may read.

        Raises:
            HTTPException: reading asks for a token.
        """
        person = self._person(request)
        if person is None and self.is_private:
            raise HTTPException(
                401,
                "reading asks for a token here: give one, Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )
        return person

    async def _me(self, request: Request) -> Response:
        """Say who asks and what he may do."""
        person = self._person(request)
        may = [action for action in ACTIONS if person is not None and person.may(action)]
        return _json(
            {
                "name": person.name if person else None,
                "role": person.role if person else None,
                "may_read": person is not None or not self.is_private,
                "may": may,
                "now_ms": self._clock.now_ms(),
                "roles": {role: ROLE_TEXT[role] for role in ROLES},
            }
        )

    # Reading.

    def _reading_of(
        self, answer: Callable[[Queue, Request], object]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Make a route of a function that reads the queue, on the reader's thread."""

        async def answered(request: Request) -> Response:
            self._reader_of(request)

            def work() -> bytes:
                with self._reader.reading() as queue:
                    return _encoded(answer(queue, request))

            return await self._read(work)

        return answered

    async def _read(self, work: Callable[[], bytes]) -> Response:
        """Answer what a read gives.

        Raises:
            HTTPException: too many wait already, and the feed behind them.
        """
        if self._reads_waiting >= READS_WAITING_MAX:
            raise HTTPException(503, "too many reads wait for the file: try again in a moment")
        self._reads_waiting += 1
        try:
            return _json_bytes(await self.feed.call(work))
        finally:
            self._reads_waiting -= 1

    async def _status(self, request: Request) -> Response:
        self._reader_of(request)
        _asked(request)

        def work() -> bytes:
            return _encoded(self._reader.live() | self._reader.history())

        return await self._read(work)

    async def _events(self, request: Request) -> Response:
        self._reader_of(request)
        _asked(request)
        if self.feed.watchers >= WATCHERS_MAX:
            raise HTTPException(503, f"{WATCHERS_MAX} pages are open already: close one")

        def is_allowed() -> bool:
            try:
                self._reader_of(request)
            except (HTTPException, KillproofError):
                return False
            return True

        return StreamingResponse(
            self.feed.events(is_allowed),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},  # nginx would hold events back.
        )

    # Acting.

    async def _act_on_job(self, request: Request) -> Response:
        action = request.path_params["action"]
        if action not in ACTIONS or action in ("pause", "resume", "replay_all"):
            raise HTTPException(
                404, f"there is no action {action[:60]!r} of a job: see docs/api.md"
            )
        person = self._actor(request, action)
        body = await _body(request)
        _check_fields(body, {"reprioritise": {"priority"}}.get(action, set()))
        order = Order(
            action=action,
            job_id=model.check_count(request.path_params["job_id"], "id", 1, _ID_MAX),
            priority=cast(int | None, body.get("priority")),
        )
        return await self._act(person, order)

    async def _act_on_many(self, request: Request) -> Response:
        action = request.path_params["action"]
        fields = {
            "pause": {"kind", "seconds"},
            "resume": {"kind"},
            "replay": {"state", "kind", "limit"},
        }
        if action not in fields:
            raise HTTPException(404, f"there is no action {action[:60]!r}: see docs/api.md")
        person = self._actor(request, action)
        body = await _body(request)
        _check_fields(body, fields[action])
        order = Order(
            action="replay_all" if action == "replay" else action,
            kind=cast(str | None, body.get("kind")),
            state=cast(str | None, body.get("state")),
            seconds=cast(float | None, body.get("seconds")),
            limit=cast(int | None, body.get("limit")),
        )
        return await self._act(person, order)

    def _actor(self, request: Request, action: str) -> Person:
        """Return who wants to act; asked before a byte of the body is waited for.

        Raises:
            HTTPException: nobody that is known here.
        """
        person = self._person(request)
        if person is None:
            raise HTTPException(
                401,
                f"{action} asks for a token: give one, Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )
        return person

    async def _act(self, person: Person, order: Order) -> Response:
        if self._actions_waiting >= ACTIONS_WAITING_MAX:
            raise HTTPException(503, "too many actions wait for the file: try again in a moment")

        until_ns = self._clock.monotonic_ns() + round(ACT_BUSY_SECONDS * 1e9)

        def work() -> dict[str, object]:
            if self._clock.monotonic_ns() > until_ns:  # Nobody expects it to happen any more.
                raise DatabaseBusy(
                    f"others waited for the file before {order.action}, which had no turn for "
                    f"{ACT_BUSY_SECONDS:g} s: nothing was changed, try again"
                )
            queue, _ = self._writer.queue()
            return act(queue, person, order)

        self._actions_waiting += 1
        try:
            # Shielded: the action goes on when the browser has gone, and its record with it.
            loop = asyncio.get_running_loop()
            return _json(await asyncio.shield(loop.run_in_executor(self._acting, work)))
        finally:
            self._actions_waiting -= 1


_ID_MAX: Final = (1 << 63) - 1


# What is answered.


def _jobs(queue: Queue, request: Request) -> object:
    asked = _asked(request, "state", "kind", "search", "limit", "before")
    found = page(
        queue,
        state=asked.get("state") or None,
        kind=asked.get("kind") or None,
        search=asked.get("search") or None,
        limit=_number(asked, "limit", 50),
        before=asked.get("before") or None,
    )
    now_ms = queue.host.clock.now_ms()
    jobs = [as_row(job, now_ms) for job in found.jobs]
    return {"jobs": jobs, "next": found.next, "looked_at": found.looked_at}


def _job(queue: Queue, request: Request) -> object:
    """Return what `killproof show --json` prints; with `text=1` what a page can show of it.

    A browser reads numbers as floats, and would show another order number than the payload's: so
    payload and result are text then, cut, and the attempts are the latest ones.
    """
    asked = _asked(request, "text")
    job_id = model.check_count(request.path_params["job_id"], "id", 1, _ID_MAX)
    job = queue.get(job_id)
    if job is None:
        raise JobNotFound(f"there is no job {job_id} in {queue.path}: see killproof jobs")
    facts = as_page(job, queue.host.clock.now_ms()) | web_others.progress(queue, job_id)
    if asked.get("text") == "1":
        for name in ("payload", "result"):
            if name == "payload" or facts[name] is not None:
                facts[name] = _as_text(facts[name])
        facts["attempts"] = [asdict(attempt) for attempt in job.attempts[-ATTEMPTS_SHOWN:]]
        facts["attempts_left_out"] = max(0, len(job.attempts) - ATTEMPTS_SHOWN)
    return facts


def _as_text(value: object) -> dict[str, object]:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return {"text": text[:TEXT_CHARS_MAX], "chars": len(text)}


def _explain(queue: Queue, request: Request) -> object:
    _asked(request)
    job_id = model.check_count(request.path_params["job_id"], "id", 1, _ID_MAX)
    found = explain(queue, job_id)
    return {
        "id": job_id,
        "kind": found.job.kind,
        "state": found.job.state,
        "keeping": [reason.rule for reason in found.keeping],
        "reasons": [asdict(reason) for reason in found.reasons],
    }


def _audit(queue: Queue, request: Request) -> object:
    asked = _asked(request, "limit", "before", "job")
    found = web_audit.entries(
        queue,
        limit=_number(asked, "limit", 50),
        before=_number(asked, "before", 0) or None,
        job_id=_number(asked, "job", 0) or None,
    )
    is_more = len(found) == _number(asked, "limit", 50)
    next_id = found[-1].id if found and is_more else None
    return {"entries": [asdict(entry) for entry in found], "next": next_id}


def _runs(queue: Queue, request: Request) -> object:
    return web_others.runs(queue, state=_asked(request, "state").get("state") or None)


def _run(queue: Queue, request: Request) -> object:
    _asked(request)
    return web_others.run(queue, request.path_params["run_id"])


def _limits(queue: Queue, request: Request) -> object:
    _asked(request)
    return web_others.limits(queue)


def _schedules(queue: Queue, request: Request) -> object:
    _asked(request)
    return web_others.schedules(queue)


def _asked(request: Request, *names: str) -> dict[str, str]:
    """Return the parameters of the address; one that is not known is a mistake and is told.

    Raises:
        ValueError: it is not known.
    """
    for name in request.query_params:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"parameter {name[:60]!r} is unknown: known are {known}")
    return dict(request.query_params)


def _number(asked: dict[str, str], name: str, default: int) -> int:
    text = asked.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= _ID_MAX):
        raise ValueError(f"{name} {text[:60]!r} must be a whole number, up to {_ID_MAX}")
    return int(text)


async def _body(request: Request) -> dict[str, object]:
    """Return the fields of a request; none is an empty body.

    Raises:
        ValueError: no JSON object; or one with NaN, an infinity or half a character, which the
            audit log could not hold.
        HTTPException: the client went before its body had come; nobody sees the answer.
    """
    try:
        text = await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400, "the body has not come whole: send it again") from error
    if not text:
        return {}
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError('the body must be a JSON object, such as {"priority": 0}')
    return found


def _check_fields(body: dict[str, object], known: set[str]) -> None:
    """Check the names and the sorts of value: whatever passes is kept in the audit log.

    Raises:
        ValueError: one is unknown, or of the wrong sort or size.
    """
    if unknown := sorted(body.keys() - known):
        names = ", ".join(sorted(known)) or "none"
        raise ValueError(f"field {unknown[0][:60]!r} is unknown: known are {names}")
    for name, value in body.items():
        if value is None:
            continue
        if name in ("kind", "state"):
            model.check_text(value, name, model.KIND_CHARS_MAX)
        elif not isinstance(value, int | float) or not abs(value) <= _ID_MAX:
            raise ValueError(f"{name} {str(value)[:60]!r} must be a number")


async def _asset(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in ASSETS:
        raise HTTPException(404, f"there is no page {name[:60]!r}: begin at /")
    body = files("killproof").joinpath("web_assets", name).read_bytes()
    return Response(body, headers={"content-type": ASSETS[name], "cache-control": "no-cache"})


async def _answer_error(_request: Request, error: Exception) -> Response:
    """Answer one line that names what is wrong and the remedy."""
    if isinstance(error, HTTPException):
        told = {
            "Not Found": "there is nothing at this address",
            "Method Not Allowed": "there is nothing at this address, or it takes another method",
        }
        text = error.detail
        if text in told:
            text = f"{told[text]}: docs/api.md lists them"
        return _json({"error": text}, error.status_code, dict(error.headers or {}))
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
    return _json({"error": str(error) or type(error).__name__}, status)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _json_bytes(_encoded(value), status, headers)


def _json_bytes(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def _encoded(value: object) -> bytes:
    """Return JSON that every reader can read: ASCII, and no NaN or infinity.

    A payload that another program has written may hold 1e999, which is infinite here.
    """
    try:
        return json.dumps(value, allow_nan=False).encode() + b"\n"
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False).encode() + b"\n"


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


class Guard:
    """Stands before everything: refuses what a browser was tricked into, and bounds the rest."""

    def __init__(self, app: ASGIApp, site: Site, hosts: frozenset[str]) -> None:
        self.site = site
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if found := refusal(scope["method"], scope["path"], headers, self._hosts):
            status, text = found
            await _json({"error": text}, status, dict(HEADERS))(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.encode() not in given
                    ),
                ]
            await send(message)

        await self._app(scope, receive, sent)
