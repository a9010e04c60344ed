"""What is made of the rounds with and without watchers."""

import dataclasses
import signal
import subprocess

import pytest

from killproof_bench import report_watch
from killproof_bench.crew import CrewError
from killproof_bench.result import Correctness, Figure
from killproof_bench.scenarios import watch
from killproof_bench.scenarios.watch import ARMS, WatchResult, WatchRound, pairs_of
from killproof_bench.watchers import Stream

PASS = Correctness(verdict="pass", because=(), jobs=10)


def told(position: int, arm: str, p50: float, p99: float) -> WatchRound:
    return WatchRound(
        position=position,
        arm=arm,
        pair=position // 2,
        jobs_per_s=2_000.0,
        p50_ms=p50,
        p99_ms=p99,
        wal_bytes_max=1 << 20,
        frames_behind_max=10,
        server_cpu=None,
        events_per_s=None,
        correctness=PASS,
    )


ROUNDS = (
    told(0, "watched", 3.0, 9.0),
    told(1, "unwatched", 2.0, 6.0),
    told(2, "unwatched", 4.0, 8.0),
    told(3, "watched", 2.0, 4.0),
)


def result(p50: float, p99: float, wal_bytes: int = 1 << 20) -> WatchResult:
    figures = {arm: Figure(value=1.0, low=None, high=None, n=10) for arm in ARMS}
    return WatchResult(
        workers=8,
        watchers=50,
        durability="power",
        facts={},
        p50_ms=figures,
        p99_ms=figures,
        p50_ratio=p50,
        p99_ratio=p99,
        pairs=pairs_of(ROUNDS),
        wal_bytes_max={"watched": wal_bytes, "unwatched": 1 << 20},
        rounds=ROUNDS,
        correctness=PASS,
    )


def test_rounds_are_compared_with_their_neighbour_in_time() -> None:
    assert pairs_of(ROUNDS) == ((1.5, 1.5), (0.5, 0.5))
    assert pairs_of(ROUNDS[:1]) == ()


def test_a_goal_that_is_missed_is_said_plainly() -> None:
    met = [met for _, _, met in report_watch.goals(result(1.1, 1.9))]
    missed = [met for _, _, met in report_watch.goals(result(1.21, 2.1, 65 << 20))]

    assert met == ["yes", "yes", "yes"]
    assert missed == ["**no**", "**no**", "**no**"]


def test_figures_of_a_wrong_run_are_void() -> None:
    wrong = Correctness(verdict="violated", because=("job 7 was done twice",), jobs=10)
    void = dataclasses.replace(result(1.0, 1.0), correctness=wrong)

    assert report_watch.sentence(void) == "The figures are void: job 7 was done twice."
    assert {met for _, _, met in report_watch.goals(void)} == {"void"}
    assert "1.00 times (p50)" in report_watch.sentence(result(1.0, 1.0))


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "READY_SECONDS", 0.01)
    silent = subprocess.Popen(
        ["sleep", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with pytest.raises(CrewError, match="did not start"):
        watch._port(silent)

    assert silent.returncode == -signal.SIGKILL


def test_an_event_that_comes_in_two_parts_is_one() -> None:
    stream = Stream()
    for part in (b"id: 1\nevent: li", b"ve\ndata: {}\n\nevent: live\n", b"data"):
        stream.take(part)

    assert stream.events == 2
