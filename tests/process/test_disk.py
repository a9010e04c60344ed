"""The power is cut for real recordings: the healthy queue loses nothing, the hasty ones are caught.

Goal: the engine sees what no kill can show. Method: the command is run on each queue with few
points; the shim's absence is a PATH without a compiler and an empty cache.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos.engines.disk_model import Policy
from killproof_chaos.shim.build import ShimUnavailable, build

SECONDS_MAX = 90.0
SMALL = ("--points", "40", "--jobs", "40", "--seed", "3")


@pytest.fixture(name="compiled")
def _compiled() -> None:
    """Skip where the shim cannot be built."""
    try:
        build()
    except ShimUnavailable as unavailable:
        pytest.skip(str(unavailable))


def cut(place: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "killproof",
            "chaos",
            "disk",
            "--store",
            "run",
            "--json",
            *arguments,
        ],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def verdict_of(done: "subprocess.CompletedProcess[str]", code: int) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("target", ["minimal", "killproof"])
def test_a_queue_that_syncs_before_it_answers_loses_nothing(place: Path, target: str) -> None:
    verdict = verdict_of(cut(place, "--target", target, *SMALL), 0)

    assert verdict["properties"]["P1"]["verdict"] == "pass"
    assert verdict["properties"]["P1"]["figures"]["images_lost"] == 0
    assert verdict["counts"]["images"] == 40 * len(Policy)
    assert 1 < verdict["counts"]["distinct"] <= verdict["counts"]["images"]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("target", ["synchronous-normal", "acknowledges-before-fsync"])
def test_a_queue_that_answers_before_its_sync_is_caught_with_the_job_that_is_gone(
    place: Path, target: str
) -> None:
    verdict = verdict_of(cut(place, "--target", target, *SMALL), 1)

    found = verdict["properties"]["P1"]
    assert found["verdict"] == "violated"
    witness = found["witnesses"][0]
    assert witness["job"] is not None
    assert "gone" in witness["story"]
    assert any("knows" in line["text"] for line in witness["lines"])
    lost = [json.loads(line) for line in (place / "run/lost.jsonl").read_text().splitlines()]
    assert lost[0]["acknowledged"]


@pytest.mark.usefixtures("compiled")
def test_a_recorded_run_is_judged_again_from_its_log_alone(place: Path) -> None:
    first = verdict_of(cut(place, "--target", "synchronous-normal", *SMALL), 1)
    again = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "check", "run", "--json"],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    second = verdict_of(again, 1)
    assert second["properties"] == first["properties"]


@pytest.mark.usefixtures("compiled")
def test_a_recorded_run_has_no_plan_and_says_how_it_is_repeated(place: Path) -> None:
    verdict = verdict_of(cut(place, "--target", "minimal", *SMALL), 0)
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "replay", "run"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert done.returncode == 64
    assert verdict["replay"] in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("compiled")
def test_losses_at_level_process_are_told_and_break_no_promise(place: Path) -> None:
    verdict = verdict_of(cut(place, "--target", "killproof-process", *SMALL), 0)

    found = verdict["properties"]["P1"]
    assert found["verdict"] == "not_judged"
    assert found["level"] == "process"
    assert found["figures"]["images_lost"] > 0


def test_without_a_compiler_the_verdict_is_unknown_and_names_the_remedy(place: Path) -> None:
    (place / "empty").mkdir()
    done = cut(
        place, *SMALL, PATH=str(place / "empty"), XDG_CACHE_HOME=str(place / "cache"), CC=""
    )  # fmt: skip

    verdict = verdict_of(done, 2)
    assert "install a C compiler" in verdict["unknown_because"][0]
    assert verdict["properties"]["P1"]["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--points", "some"), "--points 'some' is neither all nor a number from 1"),
        (("--policy", "melt"), "--policy 'melt' is unknown: use keep, drop"),
        (("--policy", ","), "--policy ',' names none"),
        (("--jobs", "1"), "--jobs 1 must be an integer from 20"),
        (("--target", "nothing"), "target 'nothing' is unknown"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_value_and_the_remedy(
    place: Path, arguments: tuple[str, ...], text: str
) -> None:
    done = cut(place, *arguments)

    assert done.returncode == 64
    assert text in done.stderr
    assert "Traceback" not in done.stderr
