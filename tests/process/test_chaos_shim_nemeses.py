"""The nemeses that act through the shim, on real runs: the stepped clock and the failing calls."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos.coverage import failure
from killproof_chaos.nemesis_shim import ClockNemesis, IoNemesis
from killproof_chaos.plan import IO_ERRORS, IO_FILES, STEPS_MIN, Fault
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.control import Control

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

SECONDS_MAX = 120.0
#: A run of seconds, without the nemesis `kill`, may hold no case of some promise (P15, P18).
#: What a busy machine had no time for is told as missed; what was seen stands.
UNSEEN = re.compile(r"P\d+: no |obligation missed: |the supervisor was starved of CPU")


def chaos(
    place: Path, *words: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `killproof chaos ...` in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", *words],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_killproof_keeps_its_promises_when_the_clock_steps_and_every_kind_of_call_fails(
    place: Path,
) -> None:
    """Each failed sync stops the queue; it is repaired as documented, and everything ends."""
    done = chaos(
        place, "run", "--target", "killproof", "--seconds", "3", "--workers", "4", "--nemesis",
        "handler,clock,io", "--mix", "plain", "--seed", "3", "--store", "run",
    )  # fmt: skip

    verdict = json.loads((place / "run/verdict.json").read_text())
    assert verdict["verdict"] != "violated", done.stdout + done.stderr
    reasons = [reason for reason in verdict["unknown_because"] if not UNSEEN.match(reason)]
    assert reasons == [], done.stdout + done.stderr
    missed = set(verdict["coverage"]["missed"])
    faults = records(place / "run/nemesis.jsonl")
    failed = Counter((fault["call"], fault["error"]) for fault in faults if fault["fault"] == "io")
    assert set(failed) == {
        (call, error)
        for call in IO_FILES
        for error in IO_ERRORS
        if failure(call, error) not in missed
    }
    steps = [fault["offset_ms"] for fault in faults if fault["fault"] == "clock"]
    assert steps in ([-3_600_000, 0] * number for number in range(1, STEPS_MIN + 1))
    assert len(steps) == 2 * STEPS_MIN or missed
    kinds = Counter(fault["fault"] for fault in faults)
    assert kinds["repair"] > (("sync", "EIO") in failed), (
        "a failed sync stops killproof; the heal repairs once more"
    )
    assert not (place / "run/db/queue.db.failed").exists()


def test_without_a_compiler_the_remedy_is_told_and_no_pass(place: Path) -> None:
    done = chaos(
        place, "run", "--target", "minimal", "--seconds", "0.5", "--workers", "1", "--nemesis",
        "clock,io", "--seed", "1", "--store", "run",
        environment={"PATH": "", "CC": "", "XDG_CACHE_HOME": str(place)},
    )  # fmt: skip

    assert done.returncode == 2, done.stdout + done.stderr
    assert "no C compiler found; install a C compiler: apt-get install gcc" in done.stdout
    assert "obligation missed: a sync failed with EIO" in done.stdout


def back(at_ms: int = 0, length_ms: int = 0) -> Fault:
    return Fault(fault="clock", at_ms=at_ms, length_ms=length_ms, step_ms=3_600_000)


def test_a_step_waits_for_a_lease_and_is_written_with_both_clocks(place: Path) -> None:
    written: list[dict[str, Any]] = []
    with Control.create(place / "control", watch=place) as control:
        nemesis = ClockNemesis(control, written.append)
        nemesis.admit(back())
        nemesis.step(10, holders=0)
        assert control.clock_offset_ns == 0
        nemesis.step(11, holders=2)
        assert control.clock_offset_ns == -3_600 * 10**9
        assert not nemesis.exhausted
        nemesis.step(12, holders=1)
        assert control.clock_offset_ns == 0
        assert nemesis.exhausted

    first, second = written
    assert (first["before_ms"], first["offset_ms"], first["holders"]) == (0, -3_600_000, 2)
    assert (second["before_ms"], second["offset_ms"], second["hit"]) == (-3_600_000, 0, True)
    assert first["t"] <= first["t_end"] <= second["t"]
    assert nemesis.hits == 2


def test_the_heal_tells_the_true_time_again(place: Path) -> None:
    written: list[dict[str, Any]] = []
    with Control.create(place / "control", watch=place) as control:
        nemesis = ClockNemesis(control, written.append)
        nemesis.admit(back(length_ms=60_000))
        nemesis.admit(back())
        nemesis.step(0, holders=1)
        nemesis.heal()

        assert control.clock_offset_ns == 0
        assert nemesis.exhausted
    assert [record["offset_ms"] for record in written] == [-3_600_000, 0]


def test_a_call_fails_once_in_one_process_and_the_log_says_in_which(place: Path) -> None:
    written: list[dict[str, Any]] = []
    (place / "db").mkdir()
    with Control.create(place / "control", watch=place / "db") as control:
        nemesis = IoNemesis(control, written.append)
        nemesis.admit(Fault(fault="io", at_ms=0, call="open", file="log", error="ENOSPC"))
        nemesis.step(lambda _pid: ("w1.1", ""))
        told = [opened(control, name) for name in ("x.db", "x.db-wal", "x.db-wal")]
        nemesis.step(lambda _pid: ("w1.1", ""))

        assert told == ["", "No space left on device", ""]
        assert nemesis.exhausted
    (record,) = written
    assert (record["process"], record["file"], record["error"]) == ("w1.1", "wal", "ENOSPC")
    assert nemesis.victims == {record["pid"]: record["t"]}


def opened(control: Control, name: str) -> str:
    """Open a file in a process of its own; return what it was told."""
    from killproof_chaos.shim.environment import preload_environment

    code = """
import sys
try:
    open(sys.argv[1], "a").close()
except OSError as error:
    print(error.strerror, end="")
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(control.path.parent / "db" / name)],
        env=os.environ | preload_environment(control),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
