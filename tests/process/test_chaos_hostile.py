"""A target's code may do anything; none of it becomes a verdict of the harness."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from killproof import cli

VIOLATED = 1
FAILED = 3
USAGE = 64
HEALTHY = """
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue


class Target(MinimalTarget):
    def prepare(self, place):
        {prepare}
        super().prepare(place)


target = Target("minimal", MinimalQueue)
"""


@pytest.fixture
def told(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """What a command says that is refused before anything of the target runs: no process needed."""
    monkeypatch.chdir(place)

    def told(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["killproof", "chaos", *words])
        return cli.main(), capsys.readouterr().err

    return told


def chaos(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("code", ["0", "1", "'bye'"])
def test_a_target_that_exits_at_its_import_is_refused(
    place: Path, told: Callable[..., tuple[int, str]], code: str
) -> None:
    (place / "exits.py").write_text(f"import sys\nsys.exit({code})\n")
    status, said = told("model", "--target", "exits.py")

    assert status == USAGE
    assert "target file 'exits.py' cannot be loaded: SystemExit" in said


def test_a_target_that_exits_in_the_middle_of_a_run_is_no_pass(place: Path) -> None:
    (place / "exits.py").write_text(HEALTHY.format(prepare="raise SystemExit(0)"))
    done = chaos(place, "run", "--target", "exits.py", "--seconds", "1", "--store", "run")

    assert done.returncode == FAILED
    assert "the target's code ended the harness" in done.stderr


def test_workers_that_cannot_even_start_say_nothing_of_the_queue(place: Path) -> None:
    ends = "    def work(self, place):\n        raise RuntimeError('no such table')\n\n\ntarget ="
    (place / "starts.py").write_text(HEALTHY.format(prepare="pass").replace("target =", ends))
    done = chaos(
        place, "run", "--target", "starts.py", "--seconds", "1", "--nemesis", "none",
        "--workers", "8", "--store", "run",
    )  # fmt: skip

    assert done.returncode == FAILED
    assert "processes end by themselves again and again" in done.stderr
    assert "RuntimeError: no such table" in done.stderr


def test_workers_that_break_a_promise_before_they_can_not_go_on_are_judged(place: Path) -> None:
    """Goal: what they did stands, and nobody reads the rest as a whole run."""
    ends = (
        "    def work(self, place):\n"
        "        MinimalQueue(place / 'queue.db').enqueue('k', {'id': 'nobody-asked'})\n"
        "        raise RuntimeError('no such table')\n\n\ntarget ="
    )
    (place / "ends.py").write_text(HEALTHY.format(prepare="pass").replace("target =", ends))
    done = chaos(
        place, "run", "--target", "ends.py", "--seconds", "1", "--nemesis", "none",
        "--workers", "8", "--store", "run", "--json", "--no-report",
    )  # fmt: skip

    assert done.returncode == VIOLATED, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["properties"]["P2"]["verdict"] == "violated"
    assert verdict["properties"]["P17"]["verdict"] != "violated"
    assert any(why.startswith("the run was cut short: ") for why in verdict["unknown_because"])


def test_what_a_target_prints_does_not_stand_between_the_answers(place: Path) -> None:
    (place / "prints.py").write_text(HEALTHY.format(prepare="print('noise')"))
    done = chaos(
        place, "crash", "--target", "prints.py", "--operation", "enqueue", "--no-errors",
        "--store", "run",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr


def test_a_lane_that_a_target_ends_without_a_word_is_told_in_a_line(place: Path) -> None:
    ends = "    def snapshot(self, place):\n        import os\n\n        os._exit(0)\n\n\ntarget ="
    (place / "ends.py").write_text(HEALTHY.format(prepare="pass").replace("target =", ends))
    done = chaos(
        place, "crash", "--target", "ends.py", "--operation", "claim", "--no-errors",
        "--store", "run",
    )  # fmt: skip

    assert done.returncode == FAILED
    assert done.stderr.splitlines()[-1].endswith(
        "it said nothing, as when the target's code ends its process"
    )


@pytest.mark.parametrize("engine", [None, "prok", ["proc"]])
def test_a_store_of_no_known_engine_is_refused(
    place: Path, told: Callable[..., tuple[int, str]], engine: object
) -> None:
    (place / "run").mkdir()
    record = {"target": "minimal"} | ({} if engine is None else {"engine": engine})
    (place / "run/run.json").write_text(json.dumps(record))
    status, said = told("check", "run")

    assert status == USAGE
    assert f"names the engine {engine!r}" in said
