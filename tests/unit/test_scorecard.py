"""The scorecard: what confirms a violation, and what is said of a queue."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from killproof_chaos import report_scorecard
from killproof_chaos.cli import app
from killproof_chaos.plan import Options
from killproof_chaos.scorecard import making, rows, shrinking
from killproof_chaos.scorecard.cards import (
    FAILED_MAX,
    Cell,
    Check,
    Tried,
    cells_of,
    checks_of,
    open_of,
    word_of,
)
from killproof_chaos.scorecard_command import verdict_of
from killproof_evidence.judge import PROPERTIES

PROC = "killproof chaos replay kp1-x"
CRASH = "killproof chaos crash --target q --operation work"


RUN = {
    "run": {"engine": "disk"}, "verdict": "unknown", "tried": "84 power cuts", "obliged": 10,
    "hit": 9, "unknown_because": ["a key was not met"],
}  # fmt: skip


def record(**found: str) -> dict[str, Any]:
    """The verdict of a campaign: each promise with its word, or the engines that broke it."""
    properties = {}
    replays = []
    for entry in PROPERTIES:
        word = found.get(entry.number, "not_promised")
        engines = [] if word in ("pass", "unknown", "not_promised") else word.split()
        for engine in engines:
            command = CRASH + " --fail-fast" if engine == "crash" else PROC
            replays.append({"promise": entry.number, "engine": engine, "command": command})
        properties[entry.number] = {
            "verdict": "violated" if engines else word,
            "judged_by": {},
            "found_by": engines,
            "witnesses": [{"engine": e, "story": f"seen by {e}", "lines": []} for e in engines],
        }
    return {"properties": properties, "replays": replays}


def tried(check: Check, made: int, **seen: int) -> Tried:
    return Tried(check=check, seen=seen, made=made)


def cell_of(told: Mapping[str, Any], number: str, *checks: Tried) -> Cell:
    return next(c for c in cells_of(told, checks, {}) if c.promise == number)


def test_a_violation_is_printed_as_one_only_where_it_was_seen_again_often_enough() -> None:
    told = record(P1="crash proc", P6="proc", P7="pass")
    by_crash, by_proc = checks_of(told)

    assert (by_crash.command, by_crash.promises, by_crash.tries) == (CRASH, ("P1",), 3)
    assert (by_proc.promises, by_proc.tries, by_proc.needed) == (("P1", "P6"), 10, 8)
    for made, seen, word in ((3, 3, "violated"), (3, 2, "unconfirmed")):
        assert cell_of(told, "P1", tried(by_crash, made, P1=seen)).verdict == word
    for made, seen, word in ((10, 8, "violated"), (10, 7, "unconfirmed")):
        assert cell_of(told, "P6", tried(by_proc, made, P6=seen)).verdict == word
    assert cell_of(told, "P6").verdict == "unconfirmed"
    assert cell_of(told, "P7").verdict == "pass"
    assert (
        cell_of(told, "P6", tried(by_proc, 9, P6=8)).confirmed
        == "seen again in 8 of 9 runs of proc"
    )


def test_real_processes_are_asked_where_an_engine_that_should_repeat_itself_does_not() -> None:
    by_crash, by_proc = checks_of(record(P1="crash proc", P6="proc"))

    for again, left in ((3, ("P6",)), (2, ("P1", "P6"))):
        check = open_of(by_proc, [tried(by_crash, 3, P1=again)])
        assert check is not None
        assert check.promises == left
    alone = Check(engine="proc", command=PROC, promises=("P1",))
    assert open_of(alone, [tried(by_crash, 3, P1=3)]) is None
    told = record(P1="crash proc")
    cell = cell_of(told, "P1", tried(by_crash, 3, P1=2), tried(by_proc, 10, P1=8))
    assert (cell.verdict, cell.command, cell.story) == ("violated", PROC, "seen by proc")


def test_a_try_that_judged_nothing_is_no_try_that_saw_nothing(tmp_path: Path) -> None:
    """A harness that fails, or a disk that is full, acquits nobody."""
    told = record(P6="crash") | {"runs": []}
    told["replays"][0]["command"] = "killproof chaos crash --target nobody"
    (check,) = checks_of(told)
    before = Tried(check=check, failed=FAILED_MAX - 1)
    kept = {" ".join((*check.promises, check.command)): before.record()}
    (tmp_path / making.TRIED).write_text(json.dumps(kept), encoding="utf-8")

    [made] = making.confirm(told, tmp_path, lambda line: None)

    assert (made.made, made.failed, made.confirms("P6")) == (0, FAILED_MAX, False)
    cell = cell_of(told, "P6", made)
    assert (cell.verdict, cell.confirmed) == (
        "unconfirmed", "seen again in 0 of 0 runs of crash; 3 more judged nothing"
    )  # fmt: skip
    assert not Tried(check=check, seen={"P6": 2}, made=2, failed=2).is_decided()
    assert Tried.of_record(made.record()) == made


def test_tries_end_as_soon_as_more_of_them_would_change_nothing() -> None:
    check = Check(engine="proc", command=PROC, promises=("P6", "P8"))

    assert not tried(check, 8, P6=8, P8=7).is_decided()
    assert tried(check, 8, P6=8, P8=5).is_decided()
    assert tried(check, 10, P6=8, P8=8).is_decided()
    assert not tried(check, 2, P6=0, P8=0).is_decided()
    assert tried(check, 3).is_decided()
    assert Tried.of_record(tried(check, 3, P6=1).record()) == tried(check, 3, P6=1)


def card(name: str, *, control: bool = False, **found: str) -> dict[str, Any]:
    told = record(**found)
    checks = [
        tried(check, check.tries, **dict.fromkeys(check.promises, check.tries))
        for check in checks_of(told)
    ]
    cells = cells_of(told, checks, {"P1": "README, <Safety>"})
    return {
        "queue": name, "control": control, "packages": [f"{name} 1.0"],
        "runs_on": {"runtime": "Node v20.1", "sqlite": "3.40.1", "packages": []},
        "level": 1, "history": False, "promises": {"P1": "process", "P6": True},
        "parameters": {"options": ["delay"], "lease_ms": 3_000, "workers_max": 1}, "cites": {},
        "why": "",
        "verdict": word_of(cells), "cells": [asdict(cell) for cell in cells],
        "record": {"tried": "212 kills", "left_out": {}, "runs": [RUN], "environment": {}},
    }  # fmt: skip


def test_a_card_says_the_verdict_its_command_where_it_is_promised_and_what_was_not_tested(
    tmp_path: Path,
) -> None:
    cards = [card("minimal", control=True, P1="pass", P6="pass"), card("q", P1="crash", P6="pass")]
    gone = {key: value for key, value in card("gone", P1="pass").items() if key != "record"}
    cards.append(gone | {"verdict": "failed", "why": "no <version> of it", "cells": []})
    notes = {"P1": "q.py:7 acknowledges <first>", "all": "it says <so>"}
    told = {
        "cards": cards, "notes": {"q": notes}, "seed": 1,
        "argv": ["killproof", "chaos", "scorecard"], "budget": 60.0, "version": "0", "ended": 1.7e9,
        "interrupted": False,
    }  # fmt: skip
    page = report_scorecard.write_reports(told, tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text(encoding="utf-8")

    assert report_scorecard.sentence(told) == (
        "2 public queues: 1 violated, 1 could not be run; controls pass"
    )
    assert "| queue | all | P1 | P6 | version | SQLite | evidence |" in text
    assert "| **minimal** (control) | ✓ pass | ✓ pass | ✓ pass | minimal 1.0 |" in text
    assert "| **q** | ✗ violated | ✗ violated | ✓ pass | q 1.0 | 3.40.1 | L1 |" in text
    assert "An acknowledged job is never lost (P1, process)" in text
    assert "q 1.0, on Node v20.1 with SQLite 3.40.1" in text
    assert "| disk | 84 power cuts | 9 of 10 | ? unknown | a key was not met |" in text
    assert "To be fair: it says &lt;so&gt;" in text
    for said in (CRASH, "seen again in 3 of 3 runs of crash", "README, &lt;Safety&gt;",
                 "Not tested:", "options of an enqueue other than: delay",
                 "2023-11-14"):  # fmt: skip
        assert said in text
    assert "could not be run, which says nothing of it: no &lt;version&gt; of it" in text
    assert "more than one worker at a time, for which it is not made" in text
    # Power is cut for each queue, for what it promises beside that.
    assert "whether what it has accepted survives a power cut" in text
    key = next(str(part) for part in report_scorecard.terminal(told) if "columns" in str(part))
    assert all(mark in key for mark, _ in report_scorecard.SIGNS.values())
    assert "q.py:7 acknowledges &lt;first&gt;" in page.read_text(encoding="utf-8")


def test_all_are_sound_only_where_both_controls_pass() -> None:
    good, bad = card("minimal", control=True, P1="pass"), card("q", P1="unknown")

    assert verdict_of([good, bad], interrupted=False) == "pass"
    assert verdict_of([good], interrupted=True) == "unknown"
    assert verdict_of([good | {"verdict": "unconfirmed"}, bad], interrupted=False) == "unknown"
    assert verdict_of([good, card("q", P1="crash")], interrupted=False) == "violated"


def test_the_rows_are_the_public_queues_behind_their_controls() -> None:
    names = rows.names()

    assert names[:2] == ["killproof-adapter", "minimal-adapter"]
    assert "litequeue" in names
    assert [rows.is_control(name) for name in names] == sorted(
        (rows.is_control(name) for name in names), reverse=True
    )
    with pytest.raises(ValueError, match="--only 'nobody' is not on the card: use killproof-a"):
        rows.names(["nobody"])


def test_tries_that_were_made_before_an_interruption_count(tmp_path: Path) -> None:
    told = record(P6="crash") | {"runs": []}
    (check,) = checks_of(told)
    key = " ".join((*check.promises, check.command))
    made = tried(check, 3, P6=3)
    (tmp_path / making.TRIED).write_text(json.dumps({key: made.record()}), encoding="utf-8")

    assert making.confirm(told, tmp_path, lambda line: None) == [made]
    assert not (tmp_path / making.TRIES).exists()


def token(**changes: Any) -> str:
    options = Options(target="gigq", workers=4, seconds=8.0, kills=20, pauses=6, **changes)
    return f"killproof chaos replay {options.token()}"


def test_what_only_real_processes_show_is_shrunk_to_the_fewest_faults_that_show_it() -> None:
    found = Check(engine="proc", command=token(), promises=("P6", "P7"))
    asked: list[str] = []

    def broken(check: Check) -> frozenset[str]:
        asked.append(check.needs)
        return frozenset({"P6", "P7"} if "handlers" in check.needs else {"P6"})

    smaller = shrinking.shrunk(found, broken)

    assert [needs[:8] for needs in asked] == ["no fault", "handlers"]
    assert smaller is not None
    assert smaller.command == (
        "killproof chaos run --target gigq --seed 1 --workers 4 --seconds 6 --kills 0 --pauses 0 "
        "--nemesis handler"
    )
    assert shrinking.shrunk(found, lambda check: frozenset({"P6"})) is None
    assert shrinking.ladder(Check(engine="crash", command=CRASH, promises=("P1",))) == []
    assert "--kills 20 --pauses 6" in shrinking.readable(found).command


def test_a_report_that_cannot_be_written_is_refused_before_hours_of_work(tmp_path: Path) -> None:
    place, file = tmp_path / "store", tmp_path / "none/card.md"
    words = ["scorecard", "--only", "litequeue", "--store", str(place), "--report", str(file)]
    said = CliRunner().invoke(app, words)

    assert isinstance(said.exception, ValueError)
    assert f"--report {str(file)!r} cannot be written" in str(said.exception)
    assert not place.exists()
