"""The shim moves the wall clock, live, for programs in any language, and no other clock."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.control import Control
from killproof_chaos.shim.environment import preload_environment

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

HOUR_NS = 3600 * 10**9
#: Half a step: the clocks of two processes, read one after the other, are nearer than this.
NEAR_SECONDS = 1800


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with Control.create(tmp_path / "control", watch=tmp_path / "queue.db") as made:
        yield made


def printed(control: Control, *argv: str) -> str:
    """Return what a program prints under the shim."""
    done = subprocess.run(
        argv,
        env=os.environ | preload_environment(control),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


PROGRAMS = {
    "time.time": (sys.executable, "-c", "import time; print(time.time())"),
    "time.time_ns": (sys.executable, "-c", "import time; print(time.time_ns() / 1e9)"),
    "datetime": (
        sys.executable, "-c", "import datetime as d; print(d.datetime.now().timestamp())",
    ),
    "SQLite": (
        sys.executable, "-c",
        "import sqlite3; c = sqlite3.connect(':memory:');"
        "print(c.execute(\"SELECT strftime('%s', 'now')\").fetchone()[0]); c.close()",
    ),
    "killproof": (
        sys.executable, "-c",
        "from killproof.core.clock import SystemClock; print(SystemClock().now_ms() / 1000)",
    ),
    "date": ("date", "+%s"),
    "sqlite3": ("sqlite3", ":memory:", "SELECT strftime('%s', 'now')"),
    "node": ("node", "-e", "console.log(Date.now() / 1000)"),
    "perl": ("perl", "-e", "print time"),
    "bash": ("bash", "-c", "printf '%(%s)T'"),
}  # fmt: skip


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_wall_clock_is_moved_for(control: Control, program: str, hours: int) -> None:
    argv = PROGRAMS[program]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    control.clock_offset_ns = hours * HOUR_NS

    seen = float(printed(control, *argv))

    assert abs(seen - (time.time() + hours * 3600)) < NEAR_SECONDS


@pytest.mark.parametrize(
    "clock", ["CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "CLOCK_TAI"]
)
def test_no_other_clock_is_moved(control: Control, clock: str) -> None:
    control.clock_offset_ns = HOUR_NS
    code = f"import time; print(time.clock_gettime(time.{clock}))"

    seen = float(printed(control, sys.executable, "-c", code))

    assert abs(seen - time.clock_gettime(getattr(time, clock))) < NEAR_SECONDS


@pytest.mark.parametrize("offset_ns", [1, -1, 999_999_999, -999_999_999, 1_500_000_000])
def test_every_clock_reading_stays_a_valid_time(control: Control, offset_ns: int) -> None:
    """The nanoseconds carry into the seconds, in both directions, at whatever moment it is."""
    control.clock_offset_ns = offset_ns
    code = """
import ctypes
libc, now = ctypes.CDLL(None), (ctypes.c_long * 2)()
readings = [libc.clock_gettime(0, now) or now[1] for _ in range(200_000)]
print(min(readings) >= 0 and max(readings) < 10**9)
"""
    assert printed(control, sys.executable, "-c", code) == "True"


def test_a_step_is_seen_by_a_running_process_at_once(control: Control) -> None:
    code = """
import time
wall, monotonic = time.time(), time.monotonic()
print("ready", flush=True)
for _ in range(3):
    input()
    print(round((time.time() - wall) / 3600), round((time.monotonic() - monotonic) / 3600),
          flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | preload_environment(control),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = [process.stdout.readline()]
        for hours in (1, -1, 0):
            control.clock_offset_ns = hours * HOUR_NS
            process.stdin.write("\n")
            seen.append(process.stdout.readline())

    assert seen == ["ready\n", "1 0\n", "-1 0\n", "0 0\n"]
