"""The page's application, asked without a server: who may do what, what is answered, what is kept.

What only a browser or a real process shows is in tests/process/test_web.py.
"""

import asyncio
import json
import os
import re
import shlex
import socket
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from killproof import (
    ManualClock,
    Queue,
    cli_serve,
    operations,
    pausing,
    web,
    web_access,
    web_audit,
    web_feed,
    web_listing,
    web_server,
)
from killproof.backup import backup
from killproof.core import model, sync
from killproof.core.errors import FileRefused, StorageFailed
from killproof.explain import explain
from killproof.retention import prune
from killproof.web import ASSETS, Guard, application
from killproof.web_access import ACTIONS, ROLES, Person, Tokens
from killproof.web_acting import Denied, NothingChanged, Order, act
from killproof.web_feed import Feed
from killproof.web_reading import Reader, ReadTooLong, counted

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., httpx.Response]
Sql = Callable[..., list[tuple[Any, ...]]]

ROOT = Path(__file__).resolve().parents[2]
ADMIN = Person(name="ada", role="admin")


@pytest.fixture
def tokens(place: Path) -> dict[str, str]:
    """A token of each role, by role."""
    return {role: web_access.add(place / "tokens", role, role) for role in ROLES}


@pytest.fixture
def site(queue: Queue, place: Path) -> Iterator[Guard]:
    made = application(place / "queue.db", Tokens(place / "tokens"), hosts=frozenset({"queue.lan"}))
    yield made
    made.site.close()


@pytest.fixture
def ask(site: Guard) -> Ask:
    """Send one request to the application and return its answer."""

    def ask(method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(site, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                if isinstance(body, bytes):
                    return await one.request(method, path, content=body, headers=given)
                return await one.request(method, path, json=body, headers=given)

        return asyncio.run(sent())

    return ask


def bearer(token: str) -> str:
    return f"Bearer {token}"


def died(queue: Queue, kind: str = "mail") -> int:
    job_id = queue.enqueue(kind, {"to": "x"})
    lease = queue.claim([kind])
    assert lease is not None
    queue.nack(lease, ValueError("no such address"), permanent=True)
    return job_id


# Who may do what.


def test_without_a_token_everything_can_be_read_and_nothing_changed(ask: Ask, queue: Queue) -> None:
    """Covers S0.62, S0.81, S2.19."""
    job_id = queue.enqueue("mail", 1)
    answers = {
        path: ask("GET", f"/api/{path}").status_code
        for path in ("status", "jobs", "jobs/1", "jobs/1/explain", "audit", "limits", "schedules")
    }
    refused = [ask("POST", f"/api/jobs/{job_id}/{action}") for action in ("cancel", "hold")]
    refused += [ask("POST", "/api/pause", {"kind": "mail"}), ask("POST", "/api/replay")]

    assert set(answers.values()) == {200}, answers
    assert {answer.status_code for answer in refused} == {401}
    assert "asks for a token: give one" in refused[0].json()["error"]
    assert queue.counts()["available"] == 1


def test_a_role_may_do_what_it_says_and_no_more(
    ask: Ask, queue: Queue, tokens: dict[str, str]
) -> None:
    """Covers S2.19: who may act, and that the one who may not is on record."""
    allowed = {}
    for role in ROLES:
        for action in ACTIONS:
            if action in ("pause", "resume"):
                path, body = f"/api/{action}", {"kind": "mail"}
            elif action == "replay_all":
                path, body = "/api/replay", {"state": "dead"}
            else:
                path, body = f"/api/jobs/{died(queue)}/{action}", {}
            got = ask("POST", path, body, authorization=bearer(tokens[role]))
            allowed[role, action] = got.status_code != 403

    assert {role: {a for a in ACTIONS if allowed[role, a]} for role in ROLES} == {
        "viewer": set(),
        "operator": set(ACTIONS) - {"pause", "resume", "replay_all"},
        "admin": set(ACTIONS),
    }
    denied = [entry for entry in web_audit.entries(queue, limit=200) if entry.outcome == "denied"]
    assert len(denied) == sum(not ok for ok in allowed.values())


def test_a_token_that_is_not_known_is_refused_everywhere(ask: Ask, tokens: dict[str, str]) -> None:
    for header in ("Bearer ", "Bearer nonsense", "Basic YTpi", "Bearer a b"):
        answers = [ask("GET", "/api/jobs", authorization=header)]
        answers += [ask("POST", "/api/jobs/1/cancel", authorization=header)]

        assert [answer.status_code for answer in answers] == [401, 401], header
        assert answers[0].headers["www-authenticate"] == "Bearer"


def test_a_private_page_shows_nothing_without_a_token(
    queue: Queue, place: Path, tokens: dict[str, str]
) -> None:
    made = application(place / "queue.db", Tokens(place / "tokens"), is_private=True)
    made.site.feed.close()  # A stream that is let in all the same ends at once.

    async def status(path: str, **headers: str) -> int:
        transport = httpx.ASGITransport(made)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
            return (await one.get(path, headers=headers)).status_code

    paths = ("/api/jobs", "/api/status", "/api/events", "/api/audit")
    found = [asyncio.run(status(path)) for path in paths]
    given = asyncio.run(status("/api/jobs", authorization=bearer(tokens["viewer"])))
    shell = [asyncio.run(status(path)) for path in ("/", "/page.js", "/api/me")]
    made.site.close()

    assert found == [401] * 4
    assert (given, shell) == (200, [200] * 3)


def test_nobody_s_body_is_waited_for_and_no_more_than_so_many_reads(
    ask: Ask, site: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body of somebody without a token was waited for")

    async def send(message: Message) -> None:
        told.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"9")]
    scope: Scope = {"type": "http", "method": "POST", "path": "/api/pause", "headers": headers}
    scope.update(query_string=b"", root_path="")
    asyncio.run(site(scope, receive, send))
    monkeypatch.setattr(web, "READS_WAITING_MAX", 0)

    assert told[0]["status"] == 401
    assert ask("GET", "/api/jobs").status_code == 503


def test_what_waits_for_its_turn_never_begins_when_the_server_stops(
    site: Guard, queue: Queue, tokens: dict[str, str]
) -> None:
    """Else a stop would take as long as everything that waits for a busy file."""
    queue.enqueue("mail", 1)
    busy = threading.Event()
    site.site._acting.submit(busy.wait)

    async def stopped() -> None:
        transport = httpx.ASGITransport(site)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
            token = {"authorization": bearer(tokens["admin"])}
            asking = asyncio.create_task(one.post("/api/jobs/1/cancel", headers=token))
            while not site.site._actions_waiting:
                await asyncio.sleep(0)
            closing = asyncio.create_task(asyncio.to_thread(site.site.close))
            await asyncio.wait([asking], timeout=60)
            is_cancelled = asking.done() and asking.cancelled()
            busy.set()
            await closing
            assert is_cancelled

    asyncio.run(stopped())

    assert web_audit.entries(queue) == []


# Tokens.


def test_a_token_is_shown_once_and_its_file_is_its_owner_s_alone(place: Path) -> None:
    path = place / "tokens"
    token = web_access.add(path, "ada", "operator")

    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Tokens(path).person(token) == Person(name="ada", role="operator")
    assert os.listdir(place) == ["tokens"]
    path.chmod(0o640)
    with pytest.raises(FileRefused, match=r"mode 640\): chmod 600"):
        web_access.entries(path)
    path.chmod(0o600)
    path.write_text(path.read_text().replace("operator", "king"))
    with pytest.raises(FileRefused, match="is no file of tokens"):
        Tokens(path).person(token)


def test_a_token_ends_when_it_is_removed_or_its_time_is_over(
    place: Path, clock: ManualClock
) -> None:
    path = place / "tokens"
    tokens = Tokens(path, clock)
    ada = web_access.add(path, "ada", "admin", clock=clock)
    bob = web_access.add(path, "bob", "viewer", seconds=60, clock=clock)
    before = [tokens.person(ada), tokens.person(bob)]
    clock.advance(60)
    bob_later = tokens.person(bob)
    web_access.remove(path, "ada")

    assert [one.name for one in before if one] == ["ada", "bob"]
    assert bob_later is None
    assert tokens.person(ada) is None
    assert not tokens.exist()


WRONG_USAGE: tuple[tuple[list[str], str], ...] = (
    (["serve", "token", "add", "ada", "--role", "king"], "role 'king' is unknown"),
    (["serve", "token", "add", "a\nb"], r"name 'a\nb' must be printable"),
    (["serve", "token", "remove", "ada"], "'ada' has no token"),
    (["serve", "--host", "0.0.0.0"], "there is no token: make one first"),
    (["serve", "--port", "70000"], "--port 70000 must be from 0 to 65535"),
    (["serve", "--allow-host", "a b"], "--allow-host 'a b' is no name"),
    (["serve", "audit", "--limit", "0"], "limit 0 must be"),
    (["pause", "--for", "1h"], "say which kind"),
    (["resume", "mail"], "kind 'mail' is not paused"),
    (["serve", "--db", "nothing.db"], "nothing.db does not exist"),
)


def test_wrong_usage_is_one_line_and_code_64(run: Run) -> None:
    run("enqueue", "mail", "1", "--durability", "process")
    for arguments, said in WRONG_USAGE:
        code, out, err = run(*arguments)

        assert (code, out) == (64, ""), arguments
        assert said in err
        assert len(err.splitlines()) == 1


def test_a_port_that_is_taken_is_one_line_with_the_remedy(run: Run) -> None:
    run("enqueue", "mail", "1", "--durability", "process")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run("serve", "--port", port)

    assert (code, out) == (3, "")
    assert re.fullmatch(rf"killproof: .*--port {port}: Address already in use: .*\n", err)


def test_without_the_extra_the_command_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("enqueue", "mail", "1", "--durability", "process")
    monkeypatch.setitem(sys.modules, "killproof.web", None)
    code, _, err = run("serve", "--port", "0")

    assert code == 3
    assert err.startswith("killproof: killproof serve needs its extra: pip install")


def test_tokens_and_pauses_are_made_listed_and_taken_back_by_commands(run: Run) -> None:
    run("enqueue", "mail", "1", "--durability", "process")
    code, token, said = run("serve", "token", "add", "ada", "--role", "admin", "--expires", "30d")
    listed = json.loads(run("serve", "token", "list", "--json")[1])
    paused = json.loads(run("pause", "mail", "--json")[1])

    assert code == 0
    assert token.startswith("killproof_")
    assert token.strip() not in said
    assert [(one["name"], one["role"], "sha256" in one) for one in listed] == [
        ("ada", "admin", False)
    ]
    assert paused == {"kind": "mail", "reason": "paused", "until_ms": None}
    assert run("pause")[1] == "mail: paused until it is resumed\n"
    assert run("resume", "mail")[0] == run("serve", "token", "remove", "ada")[0] == 0
    assert run("pause")[1] == "no kind is closed\n"


# What is let in.


HOSTS: tuple[tuple[str, int], ...] = (
    ("localhost:8420", 200),
    ("127.0.0.1", 200),
    ("[::1]:8420", 200),
    ("queue.lan", 200),
    ("QUEUE.LAN.:80", 200),
    ("evil.example", 421),
    ("localhost.evil.example", 421),
    ("127.0.0.1.evil.example", 421),
    ("localhost:80:80", 421),
    ("[evil]", 421),
    ("", 421),
)


def test_a_name_that_was_made_to_point_here_gets_nothing(ask: Ask) -> None:
    """DNS rebinding: for the browser the foreign page and this server are then one origin."""
    for host, status in HOSTS:
        answer = ask("GET", "/api/status", host=host)

        assert answer.status_code == status, host
        assert ("counts" in answer.json()) == (status == 200)


def test_the_name_it_listens_on_is_one_of_its_own() -> None:
    """Else the address that it prints would be refused."""
    assert cli_serve._names("Box.lan", ["queue.lan:80"]) == {"box.lan", "queue.lan"}
    assert cli_serve._names("::1", None) == {"::1"}


def test_a_page_of_somebody_else_can_not_act(
    ask: Ask, queue: Queue, tokens: dict[str, str]
) -> None:
    """CSRF: there is no cookie to ride on, and the browser's own word is believed as well."""
    queue.enqueue("mail", 1)
    token = bearer(tokens["admin"])
    for origin in ("cross-site", "same-site"):
        answers = [
            ask("POST", "/api/jobs/1/cancel", authorization=token, sec_fetch_site=origin),
            # It would not see the answer, but could keep the reader busy.
            ask("GET", "/api/jobs", sec_fetch_site=origin),
            ask("GET", "/", sec_fetch_site=origin),
        ]
        assert [answer.status_code for answer in answers] == [403, 403, 200]

    assert queue.counts()["available"] == 1
    assert "set-cookie" not in ask("GET", "/").headers
    assert "access-control-allow-origin" not in ask("GET", "/", origin="http://evil").headers


def test_every_answer_carries_the_policy_also_errors(ask: Ask) -> None:
    answers = [ask("GET", path) for path in ("/", "/page.js", "/api/jobs", "/nothing", "/api/x/y")]
    answers += [ask("POST", "/api/jobs/1/cancel"), ask("GET", "/", host="evil.example")]
    answers += [ask("DELETE", "/api/jobs")]

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_nothing_of_the_page_comes_from_elsewhere_or_makes_html_of_text(ask: Ask) -> None:
    """It works offline, and a payload stays text: no other way into the page is used."""
    for name in ASSETS:
        text = ask("GET", f"/{name}").text
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|style="
        assert not re.findall(banned, text), name


# What is answered.


def test_the_answers_are_in_the_words_of_the_commands(
    ask: Ask, queue: Queue, run: Run, tokens: dict[str, str]
) -> None:
    """Covers S0.81: one vocabulary for a shell and for the API."""
    job_id = died(queue)
    told = {
        "show": ask("GET", f"/api/jobs/{job_id}").json(),
        "explain": ask("GET", f"/api/jobs/{job_id}/explain").json(),
        "jobs": ask("GET", "/api/jobs").json()["jobs"],
        "status": ask("GET", "/api/status").json(),
    }
    again = ask("POST", f"/api/jobs/{job_id}/replay", authorization=bearer(tokens["operator"]))
    died(queue)
    commands = {
        "show": run("show", str(job_id), "--json"),
        "explain": run("explain", str(job_id), "--json"),
        "jobs": run("jobs", "--json"),
    }
    status = json.loads(run("status", "--json")[1])

    assert again.json() == {"moved": [job_id], "refused": []}
    for name, (code, out, _) in commands.items():
        said = json.loads(out)
        shape = said[0] if name == "jobs" else said
        mine = told[name][0] if name == "jobs" else told[name]
        assert (code, list(shape)) == (0, list(mine)), name
    assert status.keys() - {"alerts"} <= told["status"].keys()
    assert told["show"]["attempts"][0]["error_message"] == "no such address"
    assert "no such address" in told["show"]["attempts"][0]["traceback"]
    assert told["show"]["summary"] == (
        f"dead, attempt 1 of 5: ValueError: no such address; again: killproof replay {job_id}"
    )


MISTAKES: tuple[tuple[str, str, object, int, str], ...] = (
    ("GET", "/api/jobs?limit=0", None, 400, "limit 0 must be an integer from 1 to 200"),
    ("GET", "/api/jobs?limit=1e9", None, 400, "limit '1e9' must be a whole number"),
    ("GET", "/api/jobs?state=done", None, 400, "state 'done' is unknown: use one of"),
    ("GET", "/api/jobs?before=WzFd%22", None, 400, "no `next` of this list"),
    ("GET", "/api/jobs?before=WyJ4Il0", None, 400, "no `next` of this list"),
    ("GET", "/api/jobs?colour=red", None, 400, "parameter 'colour' is unknown: known are"),
    ("GET", "/api/jobs/77", None, 404, "there is no job 77"),
    ("GET", "/api/jobs/0", None, 400, "id 0 must be an integer"),
    ("GET", "/api/nothing", None, 405, "there is nothing at this address"),
    ("GET", "/nothing", None, 404, "there is no page 'nothing': begin at /"),
    ("POST", "/api/jobs/1/cancel", None, 409, "job 1 is succeeded: nothing was changed"),
    ("POST", "/api/jobs/1/replay", None, 409, "only dead, cancelled and expired"),
    ("POST", "/api/jobs/77/hold", None, 404, "there is no job 77"),
    ("POST", "/api/jobs/1/reprioritise", {"priority": 11}, 400, "priority 11 must be"),
    ("POST", "/api/jobs/1/reprioritise", {"priority": "0"}, 400, "priority '0' must be"),
    ("POST", "/api/jobs/1/reprioritise", None, 400, "needs a priority from 0"),
    ("POST", "/api/jobs/1/explode", None, 404, "there is no action 'explode' of a job"),
    ("POST", "/api/jobs/1/cancel", {"why": "x"}, 400, "field 'why' is unknown"),
    ("POST", "/api/jobs/1/cancel", b"[1]", 400, "the body must be a JSON object"),
    ("POST", "/api/jobs/1/cancel", b"{" * 16000, 400, "the body is no JSON"),
    ("POST", "/api/jobs/1/cancel", b" " * 20000, 413, "over the limit of 16384"),
    ("POST", "/api/pause", {"kind": 7}, 400, "kind 7 must be text"),
    ("POST", "/api/pause", {"kind": "x" * 201}, 400, "must be text of 1 to 200"),
    ("POST", "/api/resume", {"kind": "mail"}, 409, "kind 'mail' is not paused"),
    ("POST", "/api/replay", {}, 400, "say which"),
    ("POST", "/api/replay", {"state": "succeeded"}, 400, "can not be replayed"),
    ("GET", "/api/jobs/1/explain?colour=red", None, 400, "parameter 'colour' is unknown"),
    ("GET", "/api/limits?colour=red", None, 400, "parameter 'colour' is unknown"),
    ("GET", "/api/status?colour=red", None, 400, "parameter 'colour' is unknown"),
    ("GET", f"/api/audit?before={1 << 63}", None, 400, "must be a whole number, up to"),
    ("GET", f"/api/audit?job={10**19 - 1}", None, 400, "must be a whole number, up to"),
    ("GET", f"/api/jobs/{1 << 63}", None, 400, "must be an integer from 1"),
    ("GET", "/api/jobs/", None, 404, "there is nothing at this address"),
    ("POST", "/api/pause", b'{"kind": "mail", "seconds": 1e400}', 400, "the body is no JSON"),
    ("POST", "/api/pause", b'{"kind": "mail", "seconds": NaN}', 400, "the body is no JSON"),
    ("POST", "/api/pause", rb'{"kind": "\ud800"}', 400, "the body is no JSON"),
    ("POST", "/api/pause", {"kind": "mail", "seconds": ["x" * 9_000]}, 400, "must be a number"),
    ("POST", "/api/replay", {"state": "dead", "limit": 10**19}, 400, "must be a number"),
    ("POST", "/api/replay", {"state": "dead\0"}, 400, "without NUL"),
)


def test_an_error_is_one_line_with_the_remedy(
    ask: Ask, queue: Queue, tokens: dict[str, str]
) -> None:
    queue.enqueue("mail", 1)
    lease = queue.claim()
    assert lease is not None
    queue.ack(lease)
    for method, path, body, status, said in MISTAKES:
        answer = ask(method, path, body, authorization=bearer(tokens["admin"]))

        assert (answer.status_code, list(answer.json())) == (status, ["error"]), path
        assert said in answer.json()["error"]
        assert "\n" not in answer.json()["error"]


def test_what_a_browser_would_misread_reaches_it_as_text(ask: Ask, queue: Queue, sql: Sql) -> None:
    """A number over 2**53, one that is infinite here, a lone surrogate that SQLite let in."""
    job_id = queue.enqueue("mail", {"order": 12345678901234567890})
    sql(
        "UPDATE job SET payload = ? WHERE id = ?",
        r'{"a":1e999,"b":"\ud800"}',
        queue.enqueue("k", 1),
    )
    as_text = ask("GET", f"/api/jobs/{job_id}?text=1").json()["payload"]
    foreign = ask("GET", f"/api/jobs/{job_id + 1}")

    assert as_text == {"text": '{\n  "order": 12345678901234567890\n}', "chars": 35}
    assert foreign.status_code == 200
    assert foreign.json()["payload"]["a"] == "inf"


def test_the_api_s_page_names_every_address_and_its_examples_work(
    ask: Ask, site: Guard, queue: Queue, tokens: dict[str, str]
) -> None:
    """Covers S0.81: what is written down for curl is what the application answers."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(GET|POST) (/api/\S+)`", text, flags=re.MULTILINE))
    read = {
        ("GET", route.path.replace(":int", ""))
        for route in site.site.routes()
        if route.path.startswith("/api/") and "GET" in (route.methods or ())
    }
    many = {"pause": "pause", "resume": "resume", "replay_all": "replay"}
    act_on = {
        ("POST", f"/api/jobs/{{job_id}}/{action}") for action in ACTIONS if action not in many
    }
    died(queue)
    answers = {}
    for command in re.findall(r"^curl (?!-N)(.*)$", text, flags=re.MULTILINE):
        words = shlex.split(command.replace("$TOKEN", tokens["admin"]))
        given = dict(zip(words, [*words[1:], ""], strict=True))
        headers = {"authorization": given["-H"].split(": ")[1]} if "-H" in given else {}
        body = json.loads(given["-d"]) if "-d" in given else None
        path = words[-1].removeprefix("http://127.0.0.1:8420")
        answers[command] = ask(given.get("-X", "GET"), path, body, **headers).status_code

    assert named == read | act_on | {("POST", f"/api/{name}") for name in many.values()}
    assert len(answers) == 15
    assert set(answers.values()) == {200}, answers


def test_a_page_shows_the_latest_of_very_many_attempts(ask: Ask, queue: Queue) -> None:
    queue.enqueue("mail", "x" * 100_000)
    for _ in range(53):
        lease = queue.claim()
        assert lease is not None
        queue.release(lease)
    page, whole = ask("GET", "/api/jobs/1?text=1").json(), ask("GET", "/api/jobs/1").json()

    assert [one["fence"] for one in page["attempts"]] == list(range(4, 54))
    assert page["attempts_left_out"] == 3
    assert (len(page["payload"]["text"]), page["payload"]["chars"]) == (65_536, 100_002)
    assert len(whole["attempts"]) == 53


# What is on record.


def test_an_action_is_on_record_before_it_happens(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers S2.19: no moment at which something was done and nobody knows by whom."""
    job_id = queue.enqueue("mail", 1)
    seen = []

    def look(point: str) -> None:
        if point == "cancel.begin":
            seen.extend(web_audit.entries(queue))

    monkeypatch.setattr(sync, "hook", look)
    act(queue, ADMIN, Order(action="cancel", job_id=job_id))
    (entry,) = web_audit.entries(queue, job_id=job_id)

    assert [(one.action, one.job_id, one.outcome) for one in seen] == [("cancel", job_id, "begun")]
    assert (entry.who, entry.role, entry.outcome, entry.said) == ("ada", "admin", "done", None)
    assert entry.ended_ms is not None


def test_what_was_refused_is_on_record_with_the_reason(queue: Queue) -> None:
    with pytest.raises(NothingChanged):
        act(queue, ADMIN, Order(action="unhold", job_id=queue.enqueue("mail", 1)))
    with pytest.raises(Denied):
        act(queue, Person(name="eve", role="viewer"), Order(action="pause", kind="mail"))
    denied, refused = web_audit.entries(queue)

    assert (refused.outcome, refused.said) == (
        "refused",
        "job 1 is available: nothing was changed",
    )
    assert (denied.who, denied.kind, denied.outcome) == ("eve", "mail", "denied")
    assert pausing.closed(queue) == []


def test_a_replay_of_many_that_fails_in_its_midst_is_not_said_to_have_changed_nothing(
    queue: Queue, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "REPLAY_BATCH", 1)
    first, second = died(queue), died(queue)
    sql(
        f"CREATE TRIGGER refused BEFORE UPDATE ON job WHEN OLD.id = {second} "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(sqlite3.IntegrityError):
        act(queue, ADMIN, Order(action="replay_all", state="dead"))
    (entry,) = web_audit.entries(queue)
    states = [job.state for job in map(queue.get, (first, second)) if job is not None]

    assert (states, entry.outcome) == (["available", "dead"], "unknown")


def test_the_log_is_bounded_and_keeps_the_latest(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_audit, "ENTRIES_MAX", 3)
    monkeypatch.setattr(web_audit, "FORGET_EVERY", 1)
    for kind in "abcde":
        act(queue, ADMIN, Order(action="pause", kind=kind))

    assert [entry.kind for entry in web_audit.entries(queue)] == ["e", "d", "c"]
    first = web_audit.entries(queue, limit=1)
    assert [e.kind for e in web_audit.entries(queue, before=first[0].id)] == ["d", "c"]


def test_asking_in_vain_pushes_out_nothing_that_was_done(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer has nothing to lose, and as many requests as he likes."""
    monkeypatch.setattr(web_audit, "ENTRIES_MAX", 6)
    monkeypatch.setattr(web_audit, "DENIED_MAX", 2)
    monkeypatch.setattr(web_audit, "FORGET_EVERY", 1)
    act(queue, ADMIN, Order(action="pause", kind="mail"))
    for _ in range(9):
        with pytest.raises(Denied):
            act(queue, Person(name="eve", role="viewer"), Order(action="resume", kind="mail"))

    assert [one.outcome for one in web_audit.entries(queue)] == ["denied", "denied", "done"]


def test_a_backup_holds_the_log_and_a_prune_leaves_it(queue: Queue, place: Path) -> None:
    act(queue, ADMIN, Order(action="cancel", job_id=queue.enqueue("mail", 1)))
    (place / "backups").mkdir()
    copy = backup(queue, place / "backups").path
    prune(queue, {"cancelled": 0}, dry_run=False)
    with Queue(copy) as copied:
        kept = web_audit.entries(copied)

    assert [entry.job_id for entry in kept] == [1]
    assert web_audit.entries(queue) == kept


def test_a_table_of_the_application_with_that_name_is_left_alone(queue: Queue, sql: Sql) -> None:
    sql("CREATE TABLE killproof_audit (x)")
    queue.enqueue("mail", 1)

    with pytest.raises(FileRefused, match="not this killproof's: rename it"):
        act(queue, ADMIN, Order(action="cancel", job_id=1))
    assert queue.counts()["available"] == 1


# Pauses.


def test_nothing_of_a_paused_kind_starts_until_it_is_resumed(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S0.81: what is paused stays so over restarts, ends by itself or by word."""
    queue.enqueue("mail", 1)
    pausing.pause(queue, "mail")
    paused = queue.claim()
    why = explain(queue, 1).keeping
    clock.advance(10_000_000)
    later = queue.claim()
    pausing.pause(queue, "mail", 60)
    clock.advance(60)

    assert (paused, later) == (None, None)
    assert "throttled" in [reason.rule for reason in why]
    assert queue.claim() is not None
    assert not pausing.resume(queue, "mail")


# Lists.


def some_jobs(queue: Queue, clock: ManualClock) -> None:
    """Jobs in every state, several of each, two kinds, ends and due times that coincide."""
    for number in range(7):
        for kind in ("mail", "scrape"):
            job_id = queue.enqueue(kind, {"n": number}, priority=number % 3, key=f"{kind}{number}")
            if number % 2:
                lease = queue.claim([kind])
                assert lease is not None
                ack = number != 3
                queue.ack(lease, {"r": number}) if ack else queue.nack(lease, "x", delay=50)
            queue.enqueue(kind, {"later": number}, delay=100 - number // 2)
            queue.cancel(queue.enqueue(kind, job_id))
        clock.advance(1 if number % 3 else 0)


def test_pages_hold_every_job_once(queue: Queue, clock: ManualClock, sql: Sql) -> None:
    some_jobs(queue, clock)
    for state in (None, *model.STATES):
        for kind in (None, "mail"):
            found: list[int] = []
            before = None
            while True:
                page = web_listing.page(queue, state=state, kind=kind, limit=2, before=before)
                found += [job.id for job in page.jobs]
                before = page.next
                if before is None:
                    break
            expected = sql(
                "SELECT id FROM job WHERE state = coalesce(?, state) AND kind = coalesce(?, kind)",
                state,
                kind,
            )
            assert sorted(found) == sorted(job_id for (job_id,) in expected), (state, kind)


def test_a_search_looks_at_a_bounded_number_of_jobs_and_goes_on_from_there(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_listing, "LOOKED_AT_MAX", 100)
    monkeypatch.setattr(web_listing, "STEP_ROWS_SEARCHING", 50)
    queue.enqueue("mail", {"to": "Needle@Example.org"})
    queue.enqueue_many([("mail", {"n": number}) for number in range(150)])
    first = web_listing.page(queue, search="needle@example", limit=25)
    second = web_listing.page(queue, search="needle@example", limit=25, before=first.next)

    assert ([job.id for job in first.jobs], first.looked_at) == ([], 100)
    assert ([job.id for job in second.jobs], second.next) == ([1], None)


def test_no_list_reads_the_table_from_end_to_end_or_sorts_it(sql: Sql, queue: Queue) -> None:
    names = ("state", "kind", "text", "first", "second", "third", "fourth", "rows")
    statements = [order.statement for order in web_listing.ORDERS.values()]
    statements.append(web_listing.AVAILABLE_OF_KIND)
    with closing(sqlite3.connect(queue.path)) as connection:
        for statement in statements:
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(names))
            steps = [row[3] for row in plan]
            leased = statement == web_listing.LEASED  # As many rows as jobs are running.
            assert leased or not [s for s in steps if re.match("SCAN|USE TEMP", s)], steps


# Counting.


def test_what_was_put_in_is_told_by_the_ids(queue: Queue, clock: ManualClock, sql: Sql) -> None:
    """Also with holes: rows that were pruned, and the billion ids that a restore skips."""
    moments = []
    for number in range(40):
        queue.enqueue("mail", 1)
        moments.append(clock.now_ms())
        clock.advance(number % 5)
        if number == 21:
            sql("UPDATE sqlite_sequence SET seq = seq + 1000000000 WHERE name = 'job'")
    sql("DELETE FROM job WHERE id BETWEEN 5 AND 9")
    now_ms = clock.now_ms() + 1
    # The first job after the jump, one well after it, and the last one before.
    for first in (22, 30):
        late = [moment for moment in moments if moment >= moments[first]]
        assert counted(queue, moments[first], now_ms)["enqueued"] == len(late), first
    assert counted(queue, moments[9], moments[22])["enqueued"] > 1_000
    assert counted(queue, now_ms, now_ms + 1)["enqueued"] == 0


def test_what_every_watcher_is_sent_is_short_however_long_the_errors_are(
    queue: Queue, ask: Ask
) -> None:
    for _ in range(8):
        queue.enqueue("mail", "x" * 100_000)
        lease = queue.claim()
        assert lease is not None
        queue.nack(lease, ValueError("no such address " * 1_000), permanent=True)

    assert len(ask("GET", "/api/status").content) < 16_384


def test_an_empty_queue_has_a_view_too(ask: Ask) -> None:
    view = ask("GET", "/api/status").json()

    assert sum(view["counts"].values()) == view["oldest_waiting_ms"] == 0
    assert (view["kinds"], view["failures"], len(view["minutes"])) == ([], [], 30)
    assert view["last_minute"] == {"enqueued": 0, "succeeded": 0, "dead": 0}


# The file comes and goes.


def test_a_read_is_cut_off_at_its_deadline(queue: Queue) -> None:
    reader = Reader(queue.path)
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    )
    with pytest.raises(ReadTooLong, match="cut off after 0 s"), reader.reading(0) as look:
        look.database.peek(endless)
    counts = reader.live()["counts"]
    reader.close()

    assert counts == queue.counts()


def test_a_file_that_is_gone_is_told_and_taken_up_again_when_it_is_back(place: Path) -> None:
    """F45: nothing here makes an empty queue where there was one."""
    path = place / "other.db"
    with Queue(path, durability="process") as made:
        made.enqueue("mail", 1)
    reader = Reader(str(path))
    version = reader.version()
    away = path.rename(place / "away.db")
    with pytest.raises(FileRefused, match=r"is gone .*: bring it back"):
        reader.live()
    is_made = path.exists()
    away.rename(path)
    counts = reader.live()["counts"]
    (place / "other.db.failed").touch()
    with pytest.raises(StorageFailed, match="killproof doctor --repair"):
        reader.version()
    (place / "other.db.failed").unlink()
    again = reader.version()
    with Queue(place / "new.db", durability="process") as made:
        made.enqueue_many([("mail", 1)] * 3)
    (place / "new.db").replace(path)
    replaced = reader.live()["counts"]
    reader.close()

    assert not is_made
    assert isinstance(counts, dict)
    assert isinstance(replaced, dict)
    assert (counts["available"], replaced["available"]) == (1, 3)
    assert again != version


def test_reads_go_on_while_the_write_lock_is_held_and_an_action_gives_up_in_words(
    queue: Queue, place: Path, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "ACT_BUSY_SECONDS", 0.05)
    made = application(place / "queue.db", Tokens(place / "tokens"))
    queue.enqueue("mail", 1)

    async def ask(method: str, path: str) -> httpx.Response:
        transport = httpx.ASGITransport(made)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
            token = {"authorization": bearer(tokens["admin"])}
            return await one.request(method, path, headers=token)

    with closing(sqlite3.connect(queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        read = asyncio.run(ask("GET", "/api/jobs/1"))
        refused = asyncio.run(ask("POST", "/api/jobs/1/cancel"))
        other.execute("ROLLBACK")
    monkeypatch.setattr(web, "ACT_BUSY_SECONDS", -1.0)
    late = asyncio.run(ask("POST", "/api/jobs/1/hold"))
    monkeypatch.undo()
    done = asyncio.run(ask("POST", "/api/jobs/1/cancel"))
    made.site.close()

    assert (read.status_code, refused.status_code, done.status_code) == (200, 503, 200)
    assert "was locked by another program for 0.05 s" in refused.json()["error"]
    assert (late.status_code, "had no turn" in late.json()["error"]) == (503, True)
    assert [entry.outcome for entry in web_audit.entries(queue)] == ["done"]


# Who keeps the server waiting.


LATE: tuple[bytes, ...] = (
    b"",
    b"GET /api/status HTTP/1.1\r\nHost: loc",
    b"POST /api/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


def test_a_client_that_is_late_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a request, with its end, with its body, with taking the answer: each held a place."""
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(web_server, "TAKING_SECONDS", 0.05)
    lost: list[bool] = []

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the body, then answer more than the kernel keeps for anybody."""
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(64 << 20)})

    async def run() -> None:
        loop = asyncio.get_running_loop()
        state = uvicorn.server.ServerState()
        config = uvicorn.Config(large, log_config=None, ws="none", http=web_server.Connection)
        config.load()
        listening = await loop.create_server(
            lambda: web_server.Connection(config=config, server_state=state, app_state={}),
            "127.0.0.1",
            0,
        )
        async with listening:
            address = listening.sockets[0].getsockname()
            for text in LATE:
                with closing(socket.create_connection(address)) as client:
                    client.sendall(text)  # And then it says and takes nothing more.
                    while not state.connections:
                        await asyncio.sleep(0)
                    async with asyncio.timeout(60):
                        while state.connections:
                            await asyncio.sleep(0.001)
                lost.append(True)

    asyncio.run(run())

    assert len(lost) == len(LATE)


# One look for all.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look all the time, so that no test waits."""
    monkeypatch.setattr(web_feed, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(web_feed, "REST_FACTOR", 0.0)


def with_feed(queue: Queue, work: Callable[[Feed], Awaitable[None]]) -> Feed:
    """Run some work beside a feed on a queue."""

    async def run() -> Feed:
        thread = ThreadPoolExecutor(max_workers=1)
        reader = Reader(queue.path)
        feed = Feed(reader, thread)
        running = asyncio.create_task(feed.run())
        try:
            await work(feed)
        finally:
            feed.close()
            await running
            thread.submit(reader.close).result()
            thread.shutdown()
        return feed

    return asyncio.run(asyncio.wait_for(run(), 120))


async def views(feed: Feed, number: int) -> AsyncIterator[Any]:
    """Yield what one watcher is shown, so many times."""
    async with aclosing(cast(AsyncGenerator[bytes, None], feed.events(lambda: True))) as events:
        async for event in events:
            if event.startswith(b"id: "):
                yield json.loads(event.split(b"data: ")[1])
                number -= 1
            if not number:
                return


def test_fifty_watchers_cost_one_read_of_each_change(queue: Queue, quick: None) -> None:
    """Covers S1.53: all see the queue in real time, from one look at it."""
    queue.enqueue("mail", 1)
    seen: list[list[int]] = [[] for _ in range(50)]

    async def work(feed: Feed) -> None:
        async def watch(mine: list[int]) -> None:
            async for view in views(feed, 2):
                mine.append(view["counts"]["available"])

        async def change() -> None:
            while not all(seen) or feed.looks < 10:  # Looks without a change are no reads.
                await feed.call(lambda: None)
            queue.enqueue("mail", 2)

        await asyncio.gather(change(), *(watch(mine) for mine in seen))

    feed = with_feed(queue, work)

    assert seen == [[1, 2]] * 50
    assert (feed.reads, feed.watchers) == (2, 0)
    assert feed.looks >= 10


def test_who_comes_when_nobody_was_there_is_told_how_it_is_now(queue: Queue, quick: None) -> None:
    """With nobody there nothing is looked at, so what was seen last is old."""
    seen = []

    async def work(feed: Feed) -> None:
        for _ in range(2):
            async for view in views(feed, 1):
                seen.append(view["counts"]["available"])
            while feed.watchers:
                await feed.call(lambda: None)
            queue.enqueue("mail", 1)

    with_feed(queue, work)

    assert seen == [0, 1]


def test_watchers_are_told_in_words_when_the_queue_can_not_be_read(
    queue: Queue, quick: None
) -> None:
    troubles = []

    async def work(feed: Feed) -> None:
        async for view in views(feed, 2):
            troubles.append(view["trouble"])
            Path(f"{queue.path}.failed").touch()

    with_feed(queue, work)

    assert troubles[0] is None
    assert "killproof doctor --repair" in troubles[1]
