"""The page in a real browser, served by a real process; and what only processes show of it.

One Chromium for the whole module, the system's own (`apt-get install chromium`, or its path in
$KILLPROOF_CHROMIUM). Where there is none, the tests of the page are skipped, and say so.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from killproof import Queue, operations, web_access, web_audit
from killproof.limits import Limits
from killproof.schedule import Schedules
from killproof.workflow import Workflow, Workflows

SECONDS_MAX = 120.0
CHROMIUM = os.environ.get("KILLPROOF_CHROMIUM") or shutil.which("chromium")
#: The rules of WCAG 2.1, levels A and AA, contrast among them, and what is good practice.
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


SERVE = [sys.executable, "-m", "killproof", "serve"]


class Server:
    """`killproof serve` on a file, until the end of the test."""

    def __init__(self, db: Path) -> None:
        self.process = subprocess.Popen(
            [*SERVE, "--db", db, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read() if self.process.stderr else ""
            text += line
        self.url = str(json.loads(text)["url"])
        self.port = int(self.url.rsplit(":", 1)[1].strip("/"))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        reason = "NO BROWSER: apt-get install chromium, or name one in $KILLPROOF_CHROMIUM"
        os.write(2, f"\n*** tests/process/test_web.py: {reason} ***\n".encode())
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # A sandbox needs rights that a container does not give; the page is ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def reserve(step: object) -> None:
    """Stand for the one step of a workflow; nothing runs it."""


class Shown:
    """A queue with something of everything, its server, and a token of each role."""

    def __init__(self, folder: Path) -> None:
        self.db = folder / "queue.db"
        with Queue(self.db, durability="process") as queue:
            for number in range(3):
                queue.enqueue("mail", {"n": number})
            lease = queue.claim()
            assert lease is not None
            queue.ack(lease, {"sent": True})
            self.dead = self.die(queue, "mail")
            self.held = queue.enqueue("mail", {"html": EVIL, "right to left": "\u202eabc"})
            operations.hold(queue, self.held)
            queue.enqueue("scrape", 1, delay=3_600)
            Limits(queue).set(EVIL[:60], kinds=["scrape"], running=1)
            Schedules(queue).every(EVIL[:60], 60, "scrape")
            orders = Workflow("orders")
            orders.step()(reserve)
            self.run = Workflows(queue).start(orders, {"item": "book"})
        path = web_access.file_of(self.db)
        self.tokens = {role: web_access.add(path, role, role) for role in web_access.ROLES}
        link = folder / "link.db"
        link.symlink_to(self.db)  # The tokens are those of the file, as `token add` sees it.
        self.server = Server(link)
        self.url = self.server.url

    def die(self, queue: Queue, kind: str) -> int:
        job_id = queue.enqueue(kind, {"html": EVIL}, priority=0)
        lease = queue.claim()
        assert lease is not None
        try:
            raise ValueError(f"no such address {EVIL} {'x' * 9_000}")
        except ValueError as error:
            queue.nack(lease, error, permanent=True)
        return job_id


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, on_disk: Callable[[Path], Path]
) -> Iterator[Shown]:
    folder = on_disk(tmp_path_factory.mktemp("web"))
    found = Shown(folder)
    yield found
    found.server.close()
    shutil.rmtree(folder, ignore_errors=True)


Open = Callable[..., Page]


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(SECONDS_MAX * 1_000)
    expect.set_options(timeout=SECONDS_MAX * 1_000)
    yield context
    context.close()


@pytest.fixture
def page_of(context: BrowserContext, shown: Shown) -> Iterator[Open]:
    """Open a page as a person with this role, or none; nothing on it may go wrong."""
    pages: list[Page] = []
    wrong: list[str] = []
    asked: list[str] = []

    def open_page(path: str = "", role: str | None = None, script: str = "") -> Page:
        page = context.new_page()
        page.add_init_script(script)
        pages.append(page)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        if role is not None:
            token = json.dumps(shown.tokens[role])
            page.add_init_script(f"sessionStorage.setItem('token', {token})")
        page.goto(f"{shown.url}{path}")
        expect(page.locator("#link")).to_have_text("live")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert wrong == []
    assert asked
    # It works offline: nothing was asked of anybody else.
    assert [url for url in asked if not url.startswith(shown.url)] == []


def visit(page: Page, shown: Shown, name: str) -> None:
    """Go to a page of the page, and wait until the one before is gone: both have a heading."""
    address = f"{shown.url}#/{name}"
    if page.url != address:
        page.locator("main > *").first.evaluate("element => { element.dataset.before = 'yes'; }")
        page.goto(address)
        expect(page.locator("main > [data-before]")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def tile(page: Page, state: str) -> Any:
    return page.locator(f".tile[data-state={state}] .number")


def test_the_page_follows_the_queue_without_a_reload(page_of: Open, shown: Shown) -> None:
    """Covers S1.53: in real time; and what dies appears among the dead letters by itself."""
    page = page_of()
    page.evaluate("window.same = true")
    before = int(tile(page, "available").inner_text())
    with Queue(shown.db) as queue:
        queue.enqueue("constructor", 1)

        expect(tile(page, "available")).to_have_text(str(before + 1))
        row = page.get_by_role("row", name="constructor")
        expect(row.get_by_role("cell")).to_contain_text(["1", "0"])
        job_id = shown.die(queue, "other")
    expect(page.locator("main")).to_contain_text(f"#{job_id} other: ValueError")
    assert page.evaluate("window.same") is True


def test_without_a_token_the_page_offers_nothing_that_changes(page_of: Open, shown: Shown) -> None:
    """Covers S0.62: read-only, and it says how to act."""
    late = "const now = Date.now; Date.now = () => now() - 86400000;"
    page = page_of(f"#/job/{shown.held}", script=late)
    group = page.get_by_role("group", name="Actions")

    expect(group).to_contain_text("Read-only")
    assert group.get_by_role("button").all_inner_texts() == ["Give a token to act"]
    # The times are the server's, whatever the browser's clock says.
    expect(page.get_by_role("definition").filter(has_text=" ago")).to_have_count(2)
    page.goto(f"{shown.url}#/overview")
    expect(tile(page, "available")).to_be_visible()
    assert page.get_by_role("button", name="Pause").count() == 0


def test_a_job_is_released_and_cancelled_by_keyboard_alone(page_of: Open, shown: Shown) -> None:
    """Covers S0.81, S2.19: the token is typed in, each decision is on record at the job."""
    page = page_of()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.locator("#person").focus()
    page.keyboard.press("Enter")
    page.keyboard.type(shown.tokens["operator"])
    page.keyboard.press("Enter")
    expect(page.locator("#person")).to_have_text("operator: operator")
    page.goto(f"{shown.url}#/job/{shown.held}")
    page.get_by_role("button", name="Release").press("Enter")
    expect(page.get_by_role("status").filter(has_text="may run now")).to_be_visible()
    table = page.get_by_role("region", name="Audit log")
    expect(table.get_by_role("row")).to_have_count(2)  # Drawn anew: the buttons are others now.
    page.get_by_role("button", name="Cancel", exact=True).press("Enter")
    dialog = page.get_by_role("dialog", name=f"Cancel job #{shown.held}?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Cancel", exact=True).press("Enter")
    page.keyboard.press("Enter")  # The first button of the question has the focus.

    expect(page.locator("main .badge").first).to_have_text("cancelled")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table).to_contain_text("operator (operator)")


def test_a_question_asked_while_the_one_before_is_closing_gets_its_own_answer(
    page_of: Open, shown: Shown
) -> None:
    """A dialog tells of its closing in a later task; the next question may stand in it by then."""
    with Queue(shown.db) as queue:
        job_id = queue.enqueue("unwanted", 1)
    page = page_of(f"#/job/{job_id}", role="operator")
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    cancel.click()
    expect(page.get_by_role("dialog", name=f"Cancel job #{job_id}?")).to_be_visible()
    # Both in one task of the page: the telling of the first comes after the second began.
    cancel.evaluate("button => { document.querySelector('#ask-dialog').close(); button.click(); }")
    page.evaluate("new Promise(done => setTimeout(done, 50))")
    page.keyboard.press("Enter")

    expect(page.locator("main .badge").first).to_have_text("cancelled")


def test_what_is_in_a_job_stays_text(page_of: Open, shown: Shown) -> None:
    """Payload, error and traceback hold script; the policy would stop it, and nothing makes it."""
    page = page_of(f"#/job/{shown.dead}")
    expect(page.get_by_role("region", name="Traceback of attempt 1")).to_contain_text(EVIL)
    expect(page.get_by_role("region", name="Payload")).to_contain_text("<script>")
    page.goto(f"{shown.url}#/job/{shown.held}")
    expect(page.get_by_role("region", name="Payload")).to_contain_text(r"\u{202e}abc")
    page.goto(f"{shown.url}#/overview")
    page.locator("details").filter(has_text=f"#{shown.dead}").locator("summary").click()
    expect(page.get_by_role("region", name="Traceback")).to_contain_text(EVIL)

    assert page.title() == "Overview - Killproof"
    assert page.locator("main script, main img").count() == 0


def test_every_page_keeps_the_rules_of_accessibility(page_of: Open, shown: Shown) -> None:
    """Labels, roles, headings, landmarks, and a contrast of 4.5 in both schemes of colour."""
    page = page_of("", "admin")
    for is_dark, name, rules in (
        (False, "jobs?state=dead", RULES),
        (True, f"job/{shown.dead}", RULES),
        (True, "overview", RULES),
        (False, "overview", CONTRAST),
    ):
        page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")
        visit(page, shown, name)
        assert broken(page, rules) == [], (name, is_dark)
    # A rule that can not be broken would guard nothing; the light ground is on.
    page.evaluate("document.querySelector('h1').style.color = '#999'")
    assert [name for name, _ in broken(page, CONTRAST, "h1")] == ["color-contrast"]


def broken(page: Page, rules: dict[str, Any], part: str | None = None) -> list[tuple[str, str]]:
    """Return the rules that the page breaks, each with the first element that does."""
    found = Axe().run(page, context=part, options=rules).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]


def test_the_theme_follows_the_system_and_can_be_chosen(page_of: Open) -> None:
    def ground(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page = page_of()
    page.emulate_media(color_scheme="dark")
    dark = ground(page)
    page.get_by_role("button", name="Theme: system").click()
    light = ground(page)
    page.reload()
    kept = ground(page)

    assert (dark, light, kept) == ("rgb(20, 23, 26)", "rgb(251, 251, 250)", light)
    assert page.get_by_role("button", name="Theme: light").is_visible()
    page.evaluate("localStorage.clear()")


def test_a_telephone_shows_every_page_without_scrolling_sideways(
    page_of: Open, shown: Shown
) -> None:
    page = page_of("", "admin")
    page.set_viewport_size({"width": 360, "height": 740})
    lists = ("overview", "jobs", "limits", "workflows", "schedules", "audit")
    for name in (*lists, f"job/{shown.dead}", f"workflow/{shown.run}"):
        visit(page, shown, name)
        if name in ("limits", "workflows", "schedules", f"workflow/{shown.run}"):
            expect(page.locator("main tbody tr")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        # Nor for ever: an error of a page is cut where it is a headline.
        assert page.evaluate("document.documentElement.scrollHeight") <= 4_000, name


def test_a_search_finds_what_a_payload_holds(page_of: Open, shown: Shown) -> None:
    page = page_of("#/jobs?state=dead", "admin")
    everything = page.get_by_role("button", name="Replay all dead jobs")
    expect(everything).to_be_visible()
    page.goto(f"{shown.url}#/jobs?state=dead&search=nothing")
    expect(page.get_by_text("There is no such job")).to_be_visible()
    assert everything.count() == 0  # It would replay what the search has left out.
    page.goto(f"{shown.url}#/jobs")
    page.get_by_label("Text in kind").fill("right to left")
    page.keyboard.press("Enter")
    rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name=f"#{shown.held}").click()

    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job #{shown.held}: mail")


def test_a_job_that_is_not_there_is_told_in_its_place(
    shown: Shown, context: BrowserContext
) -> None:
    with closing(context.new_page()) as page:  # The browser's console tells of a 404.
        page.goto(f"{shown.url}#/job/999")
        expect(page.get_by_role("heading", level=1)).to_have_text("Job #999")
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("there is no job 999")


# Without a browser.


def streams(port: int, number: int) -> list[socket.socket]:
    """Open so many streams of events, and wait until each has had its first."""
    found = []
    request = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    for _ in range(number):
        one = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
        one.sendall(request)
        found.append(one)
    for one in found:
        text = b""
        while b"event: live" not in text:
            text += one.recv(65_536)
    return found


def test_a_stop_ends_fifty_open_streams_in_order_and_leaves_nothing(place: Path) -> None:
    Queue(place / "queue.db", durability="process").close()
    server = Server(place / "queue.db")
    try:
        open_streams = streams(server.port, 50)
        with closing(socket.create_connection(("127.0.0.1", server.port))) as foreign:
            foreign.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            assert foreign.recv(12) == b"HTTP/1.1 400"
        server.process.send_signal(signal.SIGTERM)
        _, said = server.process.communicate(timeout=SECONDS_MAX)
        ends = []
        for one in open_streams:
            with closing(one):
                text = b""
                while part := one.recv(65_536):
                    text += part
                ends.append(text.endswith(b"event: bye\ndata: {}\n\n\r\n0\r\n\r\n"))
    finally:
        server.close()

    assert server.process.returncode == 0, said
    assert ends.count(True) == 50
    assert said == ""
    left = sorted(path.name for path in place.iterdir())
    assert not [name for name in left if name.endswith(("-wal", "-shm"))], left


def test_a_file_that_goes_and_comes_back_is_told_on_the_page(page_of: Open, shown: Shown) -> None:
    page = page_of()
    away = shown.db.rename(shown.db.with_name("away.db"))
    expect(page.get_by_role("alert")).to_contain_text("is gone (No such file or directory)")
    expect(page.locator("#link")).to_have_text("the queue can not be read")
    away.rename(shown.db)

    expect(page.locator("#link")).to_have_text("live")
    expect(page.get_by_role("alert")).to_be_empty()


KILLED = """
import os, signal, sys
from killproof import Queue
from killproof.core import sync
from killproof.web_access import Person
from killproof.web_acting import Order, act

def hook(point):
    if point == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

with Queue("queue.db") as queue:
    sync.hook = hook
    act(queue, Person(name="ada", role="admin"), Order(action="cancel", job_id=1))
"""


@pytest.mark.parametrize(
    ("point", "state"), [("cancel.written", "available"), ("cancel.committed", "cancelled")]
)
def test_a_kill_in_the_middle_leaves_no_decision_without_a_record(
    place: Path, point: str, state: str
) -> None:
    """Covers S2.19: the entry says that it began; what came of it, the job tells."""
    with Queue(place / "queue.db", durability="process") as queue:
        queue.enqueue("mail", 1)
    killed = subprocess.run([sys.executable, "-c", KILLED, point], cwd=place, timeout=SECONDS_MAX)
    with Queue(place / "queue.db") as queue:
        (entry,) = web_audit.entries(queue)
        job = queue.get(1)

    assert killed.returncode == -signal.SIGKILL
    assert (entry.who, entry.action, entry.job_id, entry.outcome) == ("ada", "cancel", 1, "begun")
    assert job is not None
    assert job.state == state


def test_a_server_that_is_stopped_as_soon_as_it_is_heard_of_ends_in_order(place: Path) -> None:
    Queue(place / "queue.db", durability="process").close()
    server = Server(place / "queue.db")
    try:
        server.process.send_signal(signal.SIGTERM)
        _, said = server.process.communicate(timeout=SECONDS_MAX)
    finally:
        server.close()

    assert (server.process.returncode, "Traceback" in said) == (0, False)
