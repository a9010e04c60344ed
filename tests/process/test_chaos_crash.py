"""The engine `crash` for real: each broken queue is found where it breaks, a whole one is not."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos.engines.crash import Engine, Turn
from killproof_chaos.engines.crash_life import LIVES
from killproof_chaos.engines.crash_pool import Pool
from killproof_chaos.engines.crash_strike import Striker
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.targets import load
from killproof_evidence.store import Store

SECONDS_MAX = 120.0
TARGETS = Path(__file__).with_name("targets")

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
         "--operation", operation, "--store", "run", "--json", "--lanes", "1", *words],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def no_show(turn: Turn) -> None:
    """Show nobody how far the engine is."""


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
    code, verdict = crash(place, target, operation, "--no-errors", "--fail-fast")

    assert code == 1
    words = f"--target {target} --operation {operation} --no-errors --fail-fast"
    assert verdict["replay"] == f"killproof chaos crash {words}"
    found = verdict["properties"][promise]
    assert found["verdict"] == "violated"
    assert f" {operation}" in found["witnesses"][0]["story"].partition(":")[0]
    line = found["witnesses"][0]["lines"][0]
    assert (place / "run" / line["file"]).exists(), "the store of the point is kept"
    # The first point that breaks a promise has ended the run.
    assert verdict["counts"]["kills"] < len(verdict["operations"][0]["calls"])
    assert verdict["coverage"]["missed"] == []
    assert not verdict["exhausted"]
    said = {one["verdict"] for one in verdict["properties"].values()}
    assert "pass" not in said, "what the later points would have shown nobody knows"


def test_without_kills_calls_fail_and_one_kill_tells_how_the_file_is_without_them(
    place: Path,
) -> None:
    _, verdict = crash(place, "commit-error-refused", "enqueue", "--no-kills", "--fail-fast")

    assert verdict["properties"]["P2"]["verdict"] == "violated"
    assert verdict["counts"]["kills"] == 1
    assert verdict["counts"]["errors"] > 0
    assert " --no-kills" in verdict["replay"]


@pytest.mark.parametrize(
    ("target", "operation", "errors"),
    [
        ("minimal", "ack", True),
        ("killproof", "repair", True),
        ("killproof", "completing_beside_a_peer", False),
    ],
)
def test_a_whole_queue_passes_at_every_call_of_an_operation(
    place: Path, target: str, operation: str, errors: bool
) -> None:
    """Covers S2.17."""
    shown: list[Turn] = []
    store = Store.create(place / "run")

    verdict = Engine(target, [operation], store, shown.append, errors=errors, lanes=2).run()

    assert (verdict["verdict"], verdict["unknown_because"]) == ("pass", [])
    calls = verdict["operations"][0]["calls"]
    assert verdict["counts"]["kills"] == 2 * len(calls) > 10
    assert all({"before", "after"} <= set(call["verdicts"]) for call in calls)
    assert verdict["coverage"]["missed"] == []
    assert verdict["counts"]["workers"] > 0, "a worker started by its command line recovers too"
    told = [
        json.loads(line)
        for line in (place / "run/points.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert {point["status"] for point in told if point["fault"] in ("before", "after")} == {9}
    assert (shown[-1].done, shown[-1].total) == (len(told) - 1,) * 2


class First(Engine):
    """Fails the first call of an operation alone."""

    def _count(self, pool: Pool) -> None:
        super()._count(pool)
        for counted in self._counted.values():
            del counted.calls[1:]


def test_a_file_that_could_only_be_opened_to_read_is_refused_at_its_open(place: Path) -> None:
    """SQLite opens to read only where the first open has failed, and says nothing."""
    store = Store.create(place / "run")

    verdict = First("minimal", ["open"], store, no_show, lanes=1).run()

    assert (verdict["verdict"], verdict["unknown_because"]) == ("pass", [])
    assert verdict["faults"]["EIO"] == 1


#: An interpreter that takes its time, as on a busy machine.
SLOW = """#!/bin/sh
sleep 0.5
exec {python} "$@"
"""


def test_a_strike_is_met_however_late_the_process_under_the_shim_begins(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a busy machine: its own slot was taken for that of the process to be struck."""
    slow = place / "slow-python"
    slow.write_text(SLOW.format(python=sys.executable))
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    (place / "lane").mkdir()
    store = Store.create(place / "lane/point")

    with closing(Striker(load("minimal"), "minimal", place / "lane")) as striker:
        count = striker.strike(store, {"mode": "count", "operation": "open"})

    assert {call.process for call in count.calls} == {0}


class Beyond(Engine):
    """Waits for calls that no process makes: the kill is switched off."""

    def _count(self, pool: Pool) -> None:
        super()._count(pool)
        for counted in self._counted.values():
            counted.calls = [replace(counted.calls[0], number=9_999)]


def test_without_a_kill_there_is_no_pass(place: Path) -> None:
    store = Store.create(place / "run")

    verdict = Beyond("minimal", ["late_ack"], store, no_show, errors=False, lanes=1).run()

    assert verdict["verdict"] == "unknown"
    assert verdict["coverage"]["missed"] == ["late_ack-1-before", "late_ack-1-after"]
    assert verdict["coverage"]["hit"] == 0
    assert any("not reached" in reason for reason in verdict["unknown_because"])


class Sampled(Engine):
    """Kills at a few calls of a worker that starts a process for each statement."""

    def _count(self, pool: Pool) -> None:
        super()._count(pool)
        self.processes = {call.process for one in self._counted.values() for call in one.calls}
        for counted in self._counted.values():
            counted.calls = counted.calls[7::45]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs SQLite's own program")
@pytest.mark.parametrize("broken", [False, True])
def test_a_queue_in_any_language_is_killed_in_each_process_of_its_worker(
    place: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:
        monkeypatch.setenv("BROKEN", "1")
    target = str(TARGETS / "shell_queue.py")
    store = Store.create(place / "run")
    engine = Sampled(target, LIVES[broken:], store, no_show, errors=False, lanes=2)
    verdict = engine.run()

    assert len(engine.processes) >= 2  # The claim and the ack; polls as there is time for.
    assert verdict["coverage"]["missed"] == []
    assert verdict["counts"]["workers"] == verdict["counts"]["kills"] > 5
    if broken:
        assert verdict["properties"]["P1"]["verdict"] == "violated"
    else:
        assert (verdict["verdict"], verdict["unknown_because"]) == ("pass", [])


class AtFirstCall(Engine):
    """Kills at the first call alone: after it a worker recovers that its command line starts."""

    def _count(self, pool: Pool) -> None:
        super()._count(pool)
        for counted in self._counted.values():
            counted.calls = counted.calls[:1]


STRANGER = """
import sys
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue


class Stranger(MinimalTarget):
    def worker_argv(self, place):
        return [sys.executable, "-m", "killproof_chaos.targets.worker", self.name, str(place)]


target = Stranger("stranger", MinimalQueue)
"""


def test_a_worker_command_that_starts_on_no_file_says_nothing_of_the_queue(place: Path) -> None:
    """The command names a target that is only here; nothing else is wrong with it."""
    target = place / "stranger.py"
    target.write_text(STRANGER)

    verdict = AtFirstCall(
        str(target), ["claim"], Store.create(place / "run"), no_show, errors=False, lanes=1
    ).run()

    assert verdict["verdict"] == "unknown"
    assert verdict["properties"]["P17"]["witnesses"] == []
    assert any(
        "the command of a worker ended with status 1 on a sound file" in reason
        and "target 'stranger' is unknown" in reason
        for reason in verdict["unknown_because"]
    )


COMMAND_ONLY = """
from killproof_chaos.targets import load

control = load("minimal")


class Target:
    def __getattr__(self, name):
        if name == "work":
            raise AttributeError(name)
        return getattr(control, name)

    def worker_argv(self, place):
        return ["/bin/sh", "-c", "echo no such queue >&2; exit 7"]


target = Target()
"""


@pytest.mark.parametrize("engine", ["run", "disk"])
def test_a_worker_command_that_does_not_start_ends_a_run_with_its_last_words(
    place: Path, engine: str
) -> None:
    target = place / "command_only.py"
    target.write_text(COMMAND_ONLY)

    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", engine, "--target", str(target)],
        cwd=place, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip

    assert done.returncode == 3
    assert "'no such queue'; see" in done.stderr


@pytest.mark.parametrize(
    ("kind", "operation", "errors", "word", "text"),
    [
        ("raises", "extend", False, "unknown", "did not do what it is for: its caller was told"),
        ("silent", "extend", False, "unknown", "extend makes no file call"),
        ("stale", "ack", False, "violated", "the process that came after: open: RuntimeError"),
        ("aborts", "ack", True, "violated", "its caller's process was ended by SIGABRT"),
    ],
)
def test_a_queue_that_fails_where_a_harness_may_not_look_is_no_pass(
    place: Path, monkeypatch: pytest.MonkeyPatch,
    kind: str, operation: str, errors: bool, word: str, text: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("ODD", kind)
    store = Store.create(place / "run")

    target = str(TARGETS / "odd_queue.py")
    verdict = Engine(target, [operation], store, no_show, errors=errors, lanes=1).run()

    assert verdict["verdict"] == word
    stories = [one["story"] for one in verdict["properties"]["P16"]["witnesses"]]
    assert any(text in story for story in [*stories, *verdict["unknown_because"]])


def test_ctrl_c_leaves_a_store_and_the_truth(place: Path) -> None:
    words = ("--target", "minimal", "--operation", "claim", "--operation", "ack", "--store", "run")
    with subprocess.Popen(
        [sys.executable, "-m", "killproof", "chaos", "crash", *words],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " left" in line:
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 2
    assert "unknown because the run was interrupted" in out
    verdict = json.loads((place / "run/verdict.json").read_text(encoding="utf-8"))
    assert (
        verdict["coverage"]["hit"] + len(verdict["coverage"]["missed"])
        == (verdict["coverage"]["obliged"])
    )


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
