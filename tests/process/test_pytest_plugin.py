"""The pytest plugin: a test for each promise and engine, each engine run once."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import pytest_runs
from killproof_chaos.pytest_items import is_failure, told
from killproof_chaos.pytest_runs import Outcome

pytest_plugins = ["pytester"]

#: A queue whose enqueue answers before its commit: it loses jobs in nearly every power cut.
BROKEN = ("--killproof-target=acknowledges-before-commit", "--killproof-engine=disk")
SHORT = ("--killproof-seconds=0.5", "--killproof-seed=1")
ALONE = ("-p", "no:cacheprovider", "-p", "no:xdist")


@pytest.mark.skipif(shutil.which("cc") is None, reason="the engine disk needs a C compiler")
def test_each_promise_is_a_test_and_a_violation_tells_its_story(
    pytester: pytest.Pytester, on_disk: Any
) -> None:
    pytester.makepyfile("def test_of_the_user(): pass")
    store = on_disk(pytester.path)
    ran = pytester.runpytest_inprocess(
        *BROKEN, *SHORT, *ALONE, f"--killproof-store={store}", "--strict-markers", "-rs", "-v"
    )

    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    node = "killproof::acknowledges-before-commit::disk"
    ran.stdout.fnmatch_lines(
        [
            "killproof: acknowledges-before-commit by disk, about 0.5 s each; evidence in *",
            "*test_of_the_user PASSED*",
            f"{node}::P1 An acknowledged job is never lost FAILED*",
            f"{node}::P6 No effect happens twice PASSED*",
            f"{node}::P9 No retry comes before its delay SKIPPED*",
            "P1 is violated, said the engine disk",
            "  the power is cut after record * (policy *): the enqueue of job * gone",
            "    disk.log:*  process * knows: {*",
            "again: killproof chaos disk --target acknowledges-before-commit --points 5 *",
            f"evidence: {store}/pytest-*/disk-acknowledges-before-commit",
            "disk: acknowledges-before-commit: violated P1, in * power cuts *; evidence in *",
        ]
    )
    assert "not promised by this queue" in ran.stdout.str()
    assert "not judged by disk, but by proc" in ran.stdout.str()
    assert len(list(store.glob("pytest-*/*.outcome.json"))) == 1


def test_without_its_option_the_plugin_imports_nothing_and_does_nothing() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import killproof_chaos.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "['killproof_chaos', 'killproof_chaos.pytest_plugin']"


def test_of_many_that_ask_at_once_one_makes_the_run(tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> Outcome:
        made.append("once")
        return Outcome(argv=["killproof"], code=0, record={"verdict": "pass"}, words="")

    with ThreadPoolExecutor(4) as pool:
        place = tmp_path / "session" / "proc-minimal"
        found = list(pool.map(lambda _: pytest_runs.once(place, make), range(8)))
    assert made == ["once"]
    assert all(outcome == found[0] for outcome in found)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--killproof-engine=proc,fire", "--killproof-engine 'fire' is unknown: use proc, crash"),
        ("--killproof-seconds=0", "--killproof-seconds 0 must be from 0.1 to 3600"),
        ("-okillproof_unknown=perhaps", "killproof_unknown = 'perhaps' must be fail or skip"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_runs(
    pytester: pytest.Pytester, option: str, says: str
) -> None:
    ran = pytester.runpytest_inprocess("--killproof-target=minimal", option, *ALONE)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert says in ran.stderr.str()


def record(**values: Any) -> dict[str, Any]:
    """A verdict of the engine proc in which nothing was found and P2 is unknown."""
    properties: dict[str, Any] = {
        f"P{number}": {"verdict": "not_promised", "witnesses": []} for number in range(1, 25)
    }
    properties["P2"] = {"verdict": "unknown", "reason": "no job exists", "witnesses": []}
    whole = {
        "target": "minimal",
        "engine": "proc",
        "verdict": "unknown",
        "unknown_because": ["obligation missed: kill@ack.written", "P2: no job exists"],
        "properties": properties,
        "counts": {},
        "jobs": {},
        "replay": "killproof chaos replay kp1-x",
    }
    return whole | values


def outcome_of(found: dict[str, Any] | None, words: str = "", code: int = 2) -> Outcome:
    return Outcome(argv=["killproof", "chaos", "run"], code=code, record=found, words=words)


def test_tests_are_chosen_by_marker_and_name_and_a_target_that_is_not_there_fails_them(
    pytester: pytest.Pytester,
) -> None:
    """No such target: the run gives no verdict, and nobody knows anything."""
    asked = ("--killproof-target=nobody.s:target", "-okillproof_unknown=skip", *ALONE)
    chosen = ("-k", "nobody", "-m", "killproof(promise='P2')")
    failing = pytester.runpytest_inprocess(*asked, *chosen)
    failing.assert_outcomes(failed=1, deselected=24)
    failing.stdout.fnmatch_lines(["unknown: no verdict, exit code 64: killproof: *nobody.s*"])


def test_unknown_is_what_the_project_says_and_no_verdict_at_all_fails() -> None:
    judged, none = outcome_of(record()), outcome_of(None, code=64)

    assert [
        is_failure(outcome, "unknown", unknown_fails=fails)
        for outcome in (judged, none)
        for fails in (True, False)
    ] == [True, False, True, True]


def test_a_store_that_cannot_be_made_is_told_in_a_line(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("file").write_text("")
    asked = ("--killproof-target=minimal", "--killproof-store=file", *ALONE)
    ran = pytester.runpytest_inprocess(*asked, "-m", "killproof(promise='P2')")
    ran.assert_outcomes(failed=1, deselected=24)
    ran.stdout.fnmatch_lines(["* cannot be made (Not a directory): give --killproof-store a *"])
    ran.stdout.no_fnmatch_line("*Traceback*")


def test_a_run_without_a_verdict_is_no_pass_of_anything() -> None:
    outcome = outcome_of(None, "killproof: target 'x' is unknown: use minimal", 64)
    verdict, text = told(outcome, None)
    assert verdict == "unknown"
    assert text == (
        "unknown: no verdict, exit code 64: killproof: target 'x' is unknown: use minimal\n"
        "again: killproof chaos run"
    )
    assert told(outcome, "P1") == ("unknown", text.partition("\n")[0])


def test_what_the_run_missed_fails_the_test_of_the_run_and_no_promise() -> None:
    assert told(outcome_of(record()), None) == (
        "unknown",
        "unknown: obligation missed: kill@ack.written\nagain: killproof chaos replay kp1-x",
    )
    assert told(outcome_of(record(unknown_because=["Process 7: it hung"])), None)[0] == "unknown"
    whole = record(unknown_because=["P2: no job exists", "P1, P3: the time ended"])
    assert told(outcome_of(whole), None) == ("pass", "")


def test_an_error_that_belongs_to_no_promise_fails_the_test_of_the_run() -> None:
    verdict, text = told(outcome_of(record(errors=["w1: KeyError: 'x'"])), None)
    assert verdict == "violated"
    assert "w1: KeyError: 'x'" in text


def test_an_outcome_survives_being_written_and_read(tmp_path: Path) -> None:
    outcome = outcome_of(record())
    (tmp_path / "kept").write_text(json.dumps(asdict(outcome)))
    assert pytest_runs.read(tmp_path / "kept") == outcome
    assert pytest_runs.read(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("proc", "chaos run --target q --seconds 8 --kills 20 --pauses 4 --seed 7"),
        ("crash", "chaos crash --target q --points 2 --seed 7"),
        ("disk", "chaos disk --target q --points 80 --jobs 64 --seed 7"),
        ("sim", "chaos sim --target q --budget 8s --seed 7"),
    ],
)
def test_the_seconds_become_what_each_engine_takes(engine: str, words: str) -> None:
    argv = pytest_runs.command("q", engine, 8.0, 7, Path("s"))
    assert argv == ["killproof", *words.split(), "--store", "s", "--json"]
