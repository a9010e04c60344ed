"""What people and CI read: the headline, the table, JUnit XML, the step summary."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from killproof_chaos import summary
from killproof_chaos.cli import nemeses_of
from killproof_chaos.command import EXIT_OF, Ending, conclude
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.plan import NEMESES
from killproof_evidence.judge import render_rows

LINE = {"file": "history/w1.1.jsonl", "line": 3, "text": "{}"}
STORY = {"job": "7", "story": "w1.1 was told ok for a stale ack", "lines": [LINE]}


def record(verdict: str, **more: Any) -> dict[str, Any]:
    """Make a verdict.json as the judge writes it, with two promises judged."""
    stale = {"verdict": "violated", "checked": 9, "witnesses": [STORY]}
    whole = {"verdict": "pass", "checked": 9, "witnesses": []}
    return {
        "target": "minimal",
        "verdict": verdict,
        "unknown_because": ["obligation missed: kill@ack.begin"] if verdict == "unknown" else [],
        "properties": {
            "P1": {"verdict": "pass", "checked": 1_312, "witnesses": []},
            "P5": stale if verdict == "violated" else whole,
            "P22": {"verdict": "not_promised", "checked": 0, "witnesses": []},
        },
        "counts": {"kills": 212, "pauses": 44},
        "jobs": {"enqueued": 1_312},
        "replay": "killproof chaos replay kp1-x",
    } | more


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ("pass", "minimal: no violation found in 212 kills, 44 pauses, 1,312 jobs"),
        ("violated", "minimal: violated P5, in 212 kills, 44 pauses, 1,312 jobs"),
        ("unknown", "minimal: unknown, in 212 kills, 44 pauses, 1,312 jobs"),
    ],
)
def test_the_headline_tells_the_extent_and_never_that_a_queue_is_correct(
    verdict: str, text: str
) -> None:
    """Rule C11."""
    assert summary.headline(record(verdict)) == text


def test_the_table_begins_with_what_people_ask_first_and_reads_without_colour() -> None:
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(summary.table(render_rows(record("violated"))))
    rows = [line for line in capture.get().splitlines() if "✓" in line or "✗" in line]

    assert rows[0].startswith("No job is lost")
    assert rows[0].endswith("P1 (P3 P17 not judged)")
    assert "✓ pass" in rows[0]
    (broken,) = [row for row in rows if "✗" in row]
    assert broken.strip().endswith("P5")
    assert "✗ violated" in broken


def test_the_figures_name_the_recovery_times_and_the_sqlite_that_ran() -> None:
    where = {"python": "3.11.7", "sqlite": "3.40.1", "wal_reset_affected": True, "cores": 2}
    made = record(
        "pass",
        recovery_ms={"p50": 17.3, "p99": 90.5, "max": 91.2},
        environment=where | {"fs": "ext4", "durability": "power"},
    )

    assert summary.figures(made) == [
        "claimed again after a kill, with a peer idle: median 17 ms, p99 90 ms, at most 91 ms",
        "Python 3.11.7, SQLite 3.40.1 (has the WAL-reset fault), 2 cores, ext4, durability power",
    ]
    assert summary.figures(record("pass")) == []


def test_a_violation_is_told_by_its_first_witness() -> None:
    assert summary.stories(record("violated")) == ["P5: w1.1 was told ok for a stale ack"]
    assert summary.stories(record("pass")) == []


def test_junit_has_a_failure_for_a_violation_and_an_error_for_an_unknown_run() -> None:
    for verdict, failures, errors in (("pass", 0, 0), ("violated", 1, 0), ("unknown", 0, 1)):
        made = record(verdict)
        suite = ElementTree.fromstring(summary.junit(made, render_rows(made)))

        assert suite.get("failures") == str(failures)
        assert suite.get("errors") == str(errors)
        assert len(suite.findall("testcase")) == int(suite.get("tests", "0"))
        assert len(suite.findall("testcase/failure")) == failures
        assert len(suite.findall("testcase/error")) == errors
        assert int(suite.get("skipped", "0")) == len(suite.findall("testcase/skipped")) > 0


def test_what_a_target_said_moves_no_cursor_and_is_whole_xml() -> None:
    hostile = "no\nsuch \x1b[31mqueue"
    made = record("violated") | {"errors": [hostile], "unknown_because": [hostile]}
    made["properties"]["P5"] |= {"witnesses": [STORY | {"story": hostile}]}
    rows = render_rows(made)

    plain = r"no\nsuch \x1b[31mqueue"
    assert summary.reasons(made) == [plain]
    assert summary.stories(made) == [f"P5: {plain}"]
    ElementTree.fromstring(summary.junit(made, rows))
    assert "\x1b" not in summary.markdown(made, rows)
    assert str(EngineFailed(hostile)) == plain


@pytest.mark.parametrize("verdict", EXIT_OF)
def test_a_form_that_cannot_be_written_keeps_the_verdicts_exit_code(
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    ending = Ending(junit=folder / "junit.xml")
    folder.rmdir()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))

    with pytest.raises(typer.Exit) as leaving:
        conclude(record(verdict), ending)

    assert leaving.value.exit_code == EXIT_OF[verdict]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" could not be written")[0] for line in told] == [
        f"killproof: --junit '{folder / 'junit.xml'}'",
        f"killproof: GITHUB_STEP_SUMMARY '{folder / 'summary.md'}'",
    ]


def test_the_step_summary_names_the_missed_obligation_and_the_command_that_repeats_the_run() -> (
    None
):
    made = record("unknown")
    text = summary.markdown(made, render_rows(made))

    assert text.startswith("### minimal: unknown")
    assert "- unknown because obligation missed: kill@ack.begin" in text
    assert "`killproof chaos replay kp1-x`" in text


def test_the_chosen_nemeses_come_in_a_fixed_order_and_none_is_a_choice() -> None:
    assert nemeses_of("lock, kill") == ("kill", "lock")
    assert nemeses_of(",".join(NEMESES)) == NEMESES
    assert nemeses_of("none") == ()
