"""The engine `crash` for real: each broken queue is found where it breaks, a whole one is not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos.engines.crash import Engine
from killproof_chaos.engines.crash_points import Point
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_evidence.store import Store

SECONDS_MAX = 120.0

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)


def crash(
    place: Path, target: str, operation: str, *words: str, **environment: str
) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and verdict.json."""
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "crash", "--target", target,
         "--operation", operation, "--store", "run", "--json", *words],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("target", "promise", "operation"),
    [
        ("deletes-at-claim", "P1", "claim"),
        ("ack-without-fence", "P5", "late_ack"),
        ("attempt-not-counted", "P8", "claim"),
        ("effect-and-ack-apart", "P6", "completing"),
    ],
)
def test_a_broken_queue_is_found_by_its_property_in_the_operation_that_breaks(
    place: Path, target: str, promise: str, operation: str
) -> None:
    code, verdict = crash(place, target, operation, "--no-errors")

    assert code == 1
    words = f"--target {target} --operation {operation} --no-errors"
    assert verdict["replay"] == f"killproof chaos crash {words}"
    found = verdict["properties"][promise]
    assert found["verdict"] == "violated"
    assert f" {operation}" in found["witnesses"][0]["story"].partition(":")[0]
    line = found["witnesses"][0]["lines"][0]
    assert (place / "run" / line["file"]).exists(), "the store of the point is kept"


@pytest.mark.parametrize(("target", "operation"), [("minimal", "ack"), ("killproof", "completing")])
def test_a_whole_queue_passes_at_every_call_of_an_operation(
    place: Path, target: str, operation: str
) -> None:
    code, verdict = crash(place, target, operation)

    assert (code, verdict["unknown_because"]) == (0, [])
    (row,) = verdict["operations"]
    assert verdict["counts"]["kills"] == 2 * len(row["calls"]) > 10
    assert all({"before", "after"} <= set(call["verdicts"]) for call in row["calls"])
    assert verdict["coverage"]["missed"] == []
    told = [
        json.loads(line)
        for line in (place / "run/points.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert {point["status"] for point in told if point["fault"] in ("before", "after")} == {9}


class Beyond(Engine):
    """Believes that the operation makes one call more than it does."""

    def _count(self, pool: Any) -> None:
        super()._count(pool)
        for counted in self._counted.values():
            counted.calls = [*counted.calls[-1:]] * (len(counted.calls) + 1)


def test_a_point_that_was_not_reached_is_unknown(place: Path) -> None:
    shown: list[object] = []
    store = Store.create(place / "run")

    verdict = Beyond("minimal", ["late_ack"], store, shown.append, errors=False, lanes=1).run()

    assert verdict["verdict"] == "unknown"
    last = len(verdict["operations"][0]["calls"])
    missed = [
        Point(operation="late_ack", number=last, kind="", file="", fault=fault).name
        for fault in ("before", "after")
    ]
    assert verdict["coverage"]["missed"] == missed
    assert any("not reached" in reason for reason in verdict["unknown_because"])
    assert len(shown) == verdict["counts"]["points"]


def test_without_a_compiler_the_verdict_is_unknown_and_says_how_to_get_one(place: Path) -> None:
    code, verdict = crash(place, "minimal", "ack", PATH="/nowhere", CC="")

    assert code == 2
    assert verdict["verdict"] == "unknown"
    assert "install a C compiler" in verdict["unknown_because"][0]


def test_an_operation_that_does_not_exist_is_wrong_usage(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "crash", "--operation", "fly"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert done.returncode == 64
    assert "--operation 'fly' is none of killproof: use open_and_migrate" in done.stderr
    assert len(done.stderr.splitlines()) == 1
