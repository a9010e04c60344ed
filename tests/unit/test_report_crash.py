"""The map of crash points: a page that says the same without colour, and its text."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos.report import BYTES_MAX
from killproof_chaos.report_crash import markdown, render, worst_of, write_markdown, write_report
from killproof_evidence.contract import Contract
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.store import Store, write_json

HOSTILE = "<script>alert(1)</script>"


def record(**more: Any) -> dict[str, Any]:
    calls = [
        {"call": number, "kind": "write", "file": "wal", "verdicts": {
            "before": "pass", "after": "pass", "EIO": "pass"}}
        for number in range(1, 131)
    ]  # fmt: skip
    calls[6]["verdicts"] = {"before": "violated", "after": "unknown"}
    silent = {"verdict": "not_promised", "checked": 0, "witnesses": []}
    witness: dict[str, Any] = {
        "job": None,
        "story": f"killed before call 7: {HOSTILE}",
        "lines": [],
    }
    broken = {"verdict": "violated", "checked": 9, "violations": 1, "witnesses": [witness]}
    return {
        "target": "minimal", "engine": "crash", "seed": None, "verdict": "violated",
        "level": "process", "unknown_because": [],
        "properties": {one.number: silent for one in PROPERTIES} | {"P1": broken},
        "coverage": {"obliged": 389, "hit": 389, "missed": []},
        "counts": {"points": 389, "kills": 260, "errors": 129, "workers": 16, "stopped": 2,
                   "retried": 0},
        "jobs": {}, "seconds": 12.0, "files_in": "/dev/shm",
        "operations": [{"operation": "ack", "calls": calls}],
        "environment": {"python": "3.11", "cores": 2}, "replay": "killproof chaos crash",
    } | more  # fmt: skip


RUN = {"argv": ["killproof", "chaos", "crash"], "started": 1_790_000_000.0, "broken": True}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "run")
    made.write_contract(Contract())
    made.write_run(RUN)
    write_json(made.verdict, record())
    point = {"operation": "ack", "call": 7, "kind": "write", "file": "wal", "fault": "before",
             "verdict": "violated", "reason": f"P1: {HOSTILE}"}  # fmt: skip
    (made.path / "points.jsonl").write_text(json.dumps(point) + "\n", encoding="utf-8")
    return made


class Page(HTMLParser):
    """Counts the cells of a page by their sign, and keeps what is fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: dict[str, int] = {}
        self.tags: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        if tag == "use" and "x" in values:
            sign = str(values["href"])
            self.cells[sign] = self.cells.get(sign, 0) + 1
        self.fetched += [str(values[name]) for name in ("src", "data") if name in values]
        if tag in ("a", "link") and not str(values.get("href", "#")).startswith("#"):
            self.fetched.append(str(values["href"]))


def test_each_call_has_a_cell_for_each_fault_and_a_sign_that_needs_no_colour(store: Store) -> None:
    page = Page(render(store))

    assert page.cells == {"#pass": 129 * 3, "#violated": 1, "#unknown": 1}
    assert page.fetched == []
    assert "script" not in page.tags


def test_a_cell_tells_its_call_its_file_and_its_verdicts(store: Store) -> None:
    text = render(store)

    assert "<title>call 7: write wal; killed before: violated</title>" in text
    assert "<title>call 8: write wal; EIO: no violation</title>" in text


def test_the_page_of_a_run_is_written_beside_it_and_small(store: Store) -> None:
    page = write_report(store.path)

    assert page == store.report
    assert page.stat().st_size < BYTES_MAX / 10
    assert HOSTILE not in page.read_text(encoding="utf-8")


def test_the_markdown_has_the_command_the_map_and_what_is_not_shown(tmp_path: Path) -> None:
    text = markdown([(record(), RUN), (record(target="other"), RUN)], "crash.html")

    assert "killproof chaos crash" in text
    assert "| minimal (broken) | violated | 1 | 130 | 260 | 129 | 12 |" in text
    assert f"  before ......X{'.' * 93}" in text
    assert f"  after  ......?{'.' * 93}" in text
    assert f"  failed ......-{'.' * 93}" in text
    assert "   101   " in text, "a line of the map holds a hundred calls"
    assert "## What this does not show" in text


def test_the_markdown_and_the_page_are_written_beside_each_other(
    store: Store, tmp_path: Path
) -> None:
    out = write_markdown([store.path], tmp_path / "crash.md")

    assert "(crash.html)" in out.read_text(encoding="utf-8")
    assert (tmp_path / "crash.html").read_text(encoding="utf-8") == render(store)


def test_of_several_faults_at_a_call_the_map_shows_the_worst() -> None:
    verdicts = {"EIO": "pass", "ENOSPC": "unknown", "short": "violated"}

    assert worst_of(verdicts, ("EIO", "ENOSPC", "short")) == "violated"
    assert worst_of(verdicts, ("EIO", "ENOSPC")) == "unknown"
    assert worst_of(verdicts, ("EINTR",)) == ""
