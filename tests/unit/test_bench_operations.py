"""The pure parts of the single figures: order, ratios, verdicts, goals, and the report."""

import dataclasses

import pytest

from killproof import Queue
from killproof.core import jobs
from killproof_bench.operations import bare_arms, entries, goals, idle_watch, report
from killproof_bench.operations.bare_arms import BARE_FULL, BARE_SYNC, CLAIM_ACK, KILLPROOF
from killproof_bench.operations.comparing import compared
from killproof_bench.operations.enqueue_arms import MANY
from killproof_bench.operations.idle_watch import Reading
from killproof_bench.operations.meters import PYTHON, SYNC, SYNC_CHECKS, WHOLE, Meter
from killproof_bench.operations.result import (
    SCHEMA,
    Comparison,
    OperationsResult,
    from_json,
    to_json,
)
from killproof_bench.operations.spending_loop import STATEMENTS, parts
from killproof_bench.operations.turns import Turned, coverage, median_figure, mirrored
from killproof_bench.result import Correctness, Noise, Verdict
from killproof_bench.scenarios import idle

FACTS = {
    "journal_mode": "wal",
    "synchronous": "NORMAL",
    "autocheckpoint": "0",
    "sqlite": "3.40.1",
    "checkpoints": "3",
}
ENVIRONMENT = {"filesystem": "ext4", "cpu": "2 cores", "python": "3.11"}


def comparison(
    rates: dict[str, list[int]],
    *,
    operation: str = CLAIM_ACK,
    raw: tuple[float, ...] = (5_000.0, 5_000.0),
    verdict: Verdict = "pass",
) -> Comparison:
    """Make a comparison of so many jobs in a second each."""
    return compared(
        operation=operation,
        durability="power",
        repeats={
            arm: [Turned(operations=rate, ns=1_000_000_000) for rate in each]
            for arm, each in rates.items()
        },
        facts=dict.fromkeys(rates, FACTS),
        environment=ENVIRONMENT,
        raw=raw,
        correctness=Correctness(verdict=verdict, because=(), jobs=1),
    )


def result(*comparisons: Comparison) -> OperationsResult:
    found = goals.goals(comparisons, None)
    return OperationsResult(
        schema=SCHEMA,
        command="killproof bench bare",
        seed=1,
        started="2026-11-30T10:00:00+00:00",
        interrupted=False,
        environment=ENVIRONMENT,
        noise=Noise(
            noisy=True,
            because=("others used it",),
            steal=0.0,
            foreign_cpu=0.5,
            load_before=1.0,
            load_after=2.0,
            pressure_cpu_before=0.0,
            pressure_io_before=0.0,
            raw_spread=1.0,
        ),
        comparisons=comparisons,
        spending=(),
        idle=None,
        goals=found,
        verdict="pass",
        sentence=goals.sentence(found, "pass"),
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_way_there_is_followed_by_the_way_back(seed: int) -> None:
    order = mirrored(["a", "b", "c"], 4, seed)

    assert order[:3] == order[3:6][::-1]
    assert order[6:9] == order[9:][::-1]
    assert {order.count(arm) for arm in "abc"} == {4}


def test_the_median_of_repeats_has_their_range_as_its_interval() -> None:
    figure = median_figure([3.0, 1.0, 2.0, 9.0, 2.5], 50)

    assert (figure.value, figure.low, figure.high, figure.n) == (2.5, 1.0, 9.0, 50)
    assert coverage(5) == 1 - 2 / 2**5


def test_a_ratio_is_taken_within_each_repeat() -> None:
    """The machine was twice as fast in the second repeat: the ratio does not know."""
    found = comparison({KILLPROOF: [100, 200, 300], BARE_SYNC: [200, 400, 400]})

    (ratio,) = found.ratios
    assert ratio.repeats == (0.5, 0.5, 0.75)
    assert ratio.value.value == 0.5


def test_the_goal_of_one_worker_stands_beside_the_faster_bare_loop() -> None:
    found = comparison({KILLPROOF: [96], BARE_SYNC: [100], BARE_FULL: [120]})

    (goal,) = goals.goals([found], None)
    assert BARE_FULL in goal.what
    assert goal.met is False


@pytest.mark.parametrize(("raw", "met"), [((2_400.0, 9_000.0), False), ((2_600.0,), True)])
def test_many_producers_have_to_win_more_where_a_sync_is_slow(
    raw: tuple[float, ...], met: bool
) -> None:
    found = comparison({KILLPROOF: [150], "reference": [100]}, operation=goals.single(16), raw=raw)

    (goal,) = goals.goals([found], None)
    assert goal.met is met
    fewer = dataclasses.replace(found, operation=goals.single(4))
    assert goals.goals([fewer], None) == ()


def test_a_wrong_run_voids_its_goals_and_its_sentence() -> None:
    found = comparison({KILLPROOF: [200], "bare": [100]}, operation=MANY, verdict="violated")

    (goal,) = goals.goals([found], None)
    assert (goal.met, goal.measured) == (None, "void")
    assert "void" in goals.sentence([goal], "violated")


def test_every_acknowledged_id_has_to_be_in_the_file_once() -> None:
    assert entries.judge([[1, 2], [3]], [1, 2, 3]).verdict == "pass"
    assert entries.judge([[]], [1, 2], unacknowledged=2).verdict == "pass"


@pytest.mark.parametrize(
    ("told", "stored", "because"),
    [
        ([[1, 2], [2]], [1, 2], "more than one caller"),
        ([[1, 2, 3]], [1, 2], "not in the file"),
        ([[2, 1]], [1, 2], "not in the order"),
        ([[1]], [1, 2], "1 jobs went in and 2 are stored"),
    ],
)
def test_an_id_lost_told_twice_out_of_order_or_too_many_voids_the_run(
    told: list[list[int]], stored: list[int], because: str
) -> None:
    found = entries.judge(told, stored)

    assert found.verdict == "violated"
    assert because in found.because[0]


def test_a_file_that_is_damaged_voids_the_run() -> None:
    assert entries.judge([[1]], [1], integrity="row 1 missing").verdict == "violated"


def test_the_bare_loop_names_the_column_of_the_fence() -> None:
    assert jobs._COLUMNS[bare_arms.FENCE] == "fence"


def test_what_no_meter_saw_of_a_job_is_python() -> None:
    meter = Meter(STATEMENTS)
    meter.add("BEGIN IMMEDIATE", 2_000)
    meter.add(SYNC, 5_000)
    meter.add(SYNC_CHECKS, 7_000)

    found = {part: us for part, _, us in parts(meter, 20_000, jobs=2)}

    assert found == {
        WHOLE: 10.0,
        "BEGIN IMMEDIATE": 1.0,
        SYNC: 2.5,
        SYNC_CHECKS: 1.0,  # Without the sync inside it.
        PYTHON: 5.5,
    }


def test_statements_of_a_job_are_told_from_all_others() -> None:
    meter = Meter(STATEMENTS)

    assert meter.part_of(Queue.CLAIM) == "the job's statements"
    assert meter.part_of(Queue.HOLDERS) == "other statements"
    assert meter.part_of("PRAGMA wal_checkpoint(FULL)") == "checkpoint"


def reading(turns: tuple[int | None, ...], index: bytes) -> Reading:
    return Reading(cpu_ns=(0, 10_000_000), switches=(5, 7), turns=turns, index=(index,))


def test_a_write_while_idle_is_counted_by_the_turnstile_and_by_the_log() -> None:
    before = reading((2**32 - 1,), b"old")
    after = dataclasses.replace(
        reading((1,), b"new"), cpu_ns=(20_000_000, 50_000_000), switches=(25, 47)
    )

    found = idle_watch.between(before, after, 2.0, looks=100, held=1)

    assert (found.turns, found.changed, found.held) == (2, 1, 1)  # The number begins anew.
    assert found.cpu == (0.01, 0.02)
    assert found.switches_per_s == 15.0


def test_a_file_without_a_turnstile_leaves_the_count_untold() -> None:
    before = reading((None,), b"same")

    found = idle_watch.between(before, before, 1.0, looks=1, held=0)

    assert (found.turns, found.changed) == (None, 0)


def done(state: str = "succeeded", deliveries: int = 1) -> idle.Stored:
    return idle.Stored(state=state, deliveries=deliveries, begun_ns=1)


@pytest.mark.parametrize(
    ("stored", "verdict"),
    [
        ([{1: done()}, {1: done()}], "pass"),
        ([{1: done()}, {}], "violated"),
        ([{1: done()}, {1: done("available", 0)}], "violated"),
        ([{1: done()}, {1: done(deliveries=2)}], "violated"),
        ([{1: done(), 2: done()}, {1: done()}], "violated"),
    ],
)
def test_an_idle_workers_start_counts_when_each_job_was_done_once(
    stored: list[dict[int, idle.Stored]], verdict: str
) -> None:
    calls = [(0, 1, 0, 0), (1, 1, 0, 0)]

    assert idle.judge(calls, stored).verdict == verdict


def test_a_recorded_result_comes_back_whole() -> None:
    one = result(comparison({KILLPROOF: [96, 97], BARE_SYNC: [100, 100]}))

    assert from_json(to_json(one)) == one
    with pytest.raises(ValueError, match="schema"):
        from_json('{"schema": 99}')


def test_the_report_says_goals_figures_conditions_and_limits() -> None:
    one = result(comparison({KILLPROOF: [96, 97], BARE_SYNC: [100, 100]}))

    text = report.markdown(one)
    assert "| yes |" in text
    assert "NOISY: others used it" in text
    assert "| raw fdatasync/s, before and after | 5,000, 5,000 |" in text
    assert "| operation | claim, ack |" in text  # The claim card.
    assert "## What this does not show" in text
    assert "0.965" in report.terminal(one)
