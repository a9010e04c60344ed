"""What the report of a recorded result says, and that a recorded one comes back."""

import dataclasses

import pytest

from killproof_bench.capacity import report
from killproof_bench.capacity.compiled import LIMITS, well
from killproof_bench.capacity.question import question
from killproof_bench.capacity.result import (
    SCHEMA,
    CapacityResult,
    CurvePoint,
    Demand,
    Lever,
    Model,
    Point,
    Size,
    from_json,
    to_json,
)
from killproof_bench.result import ClaimCard, Correctness, Figure, Noise

PASS = Correctness(verdict="pass", because=(), jobs=12_345)


def figure(value: float) -> Figure:
    return Figure(value=value, low=value * 0.9, high=value * 1.1, n=5_000)


CARD = ClaimCard(
    operation="ack-and-claim",
    unit="jobs/s",
    load_model="closed loop",
    arrivals="none",
    workers="8 x 1 process",
    batch=1,
    payload_bytes=100,
    rows_live=10_000,
    rows_dead=0,
    journal_mode="wal",
    synchronous="NORMAL",
    autocheckpoint=0,
    busy_policy="turnstile",
    durability="power",
    filesystem="ext4",
    cpu="a processor, 2 cores",
    python="3.11",
    sqlite="3.40.1",
    seconds=6.0,
    n=5_000,
    interval="95%",
    checkpoints=30,
    late_or_skipped="not applicable",
    steady=True,
    correctness="pass",
)


def point(
    workers: int, *, calibrated: bool, error: float = 0.05, factor: float | None = 1.2
) -> Point:
    return Point(
        workers=workers,
        job_ms=5.0,
        calibrated=calibrated,
        jobs_per_s=figure(1_000.0),
        p50_ms=figure(2.0),
        p99_ms=figure(8.0),
        predicted_jobs_per_s=1_000.0 * (1 + error),
        predicted_p99_ms=8.0 * (factor or 1.0),
        throughput_error=error,
        p99_factor=factor,
        correctness=PASS,
        card=CARD,
    )


SIZE = Size(
    workers=64,
    job_ms=10.0,
    jobs_per_s=1_000.0,
    plan_per_s=700.0,
    utilisation=0.5,
    p99_ms=20.0,
    extrapolated=True,
)
MODEL = Model(
    kind="lock",
    because="largest error 3%",
    lock_us=500.0,
    processor_us=700.0,
    cores=2,
    delay_us=400.0,
    ceiling_per_s=2_000.0,
    knee_workers=11.8,
    job_lock_us=1_000.0,
    job_ceiling_per_s=1_000.0,
    processors_per_s=1_200.0,
    calibrated_workers=(4, 8),
)
NOISE = Noise(
    noisy=False,
    because=(),
    steal=0.0,
    foreign_cpu=0.05,
    load_before=0.1,
    load_after=2.0,
    pressure_cpu_before=0.0,
    pressure_io_before=0.0,
    raw_spread=1.1,
)


def made(*points: Point) -> CapacityResult:
    curve = tuple(
        CurvePoint(
            workers=workers,
            job_ms=5.0,
            jobs_per_s=100.0 * workers,
            bound_per_s=110.0 * workers,
            usl_per_s=None,
            p99_ms=workers * 1.0,
        )
        for workers in (1, 2, 4, 8)
    )
    return CapacityResult(
        schema=SCHEMA,
        command="killproof bench capacity",
        seed=1,
        started="2026-01-01T00:00:00+00:00",
        interrupted=False,
        environment={"cpu": "a processor, 2 cores", "filesystem": "ext4"},
        durability="power",
        budget_seconds=220.0,
        spent_seconds=200.0,
        verdict="pass",
        sentence="800 jobs/s of 5 ms at 12 workers.",
        limit="the limit is the one write lock",
        question=question(
            slos=(), rate_text=None, peak=1.0, job_ms=5.0, workers=None, growth_text=None
        ),
        demands=(),
        lock_points=(),
        model=MODEL,
        usl=None,
        points=points,
        curve=curve,
        steps=(),
        sustainable_per_s=800.0,
        sizes=(SIZE,),
        forecast=None,
        levers=(Lever(name="both in batches of 10", gain=3.7, measured=True, because="fewer"),),
        predicts_well=well(points),
        slices=60,
        slices_disturbed=3,
        raw_syncs_per_s=(7_000.0, 6_500.0),
        noise=NOISE,
        correctness=PASS,
        limits=LIMITS,
    )


GOOD = made(point(8, calibrated=True), point(16, calibrated=False, error=-0.12, factor=0.6))


def test_the_answer_comes_first_in_the_terminal_and_on_paper() -> None:
    assert report.terminal(GOOD).startswith(GOOD.sentence)
    assert f"**{GOOD.sentence}**" in report.markdown(GOOD).split("\n## ")[0]


def test_the_errors_on_points_that_the_model_has_not_seen_are_told() -> None:
    assert report.errors_sentence(GOOD) == (
        "The model was calibrated with 8 workers and tried with 16, which it has not seen: "
        "throughput was missed by at most 12% (goal 15%) and p99 by a factor of at most 1.67 "
        "(goal 2): within the goals."
    )


@pytest.mark.parametrize(("error", "factor"), [(0.16, 1.0), (0.0, 2.1), (0.0, 0.45)])
def test_one_point_beyond_a_goal_is_enough_to_say_so(error: float, factor: float) -> None:
    missed = made(GOOD.points[0], point(16, calibrated=False, error=error, factor=factor))

    assert missed.predicts_well is False
    assert "NOT within the goals" in report.errors_sentence(missed)


def test_a_calibrated_point_proves_nothing() -> None:
    assert well([point(8, calibrated=True, error=0.9)]) is None


def test_an_extrapolated_size_is_marked_and_the_mark_is_explained() -> None:
    text = report.markdown(GOOD)

    assert "700/s* (lock 50%, p99 20 ms)" in text
    assert "`*`: extrapolated" in text


def test_the_report_says_what_it_does_not_show_and_how_to_make_it_again() -> None:
    text = report.markdown(GOOD)

    assert "Command: `killproof bench capacity`" in text
    assert text.split("## What this does not show")[1].count("\n- ") == len(LIMITS)
    assert "| condition | 16 workers |" not in text or "| batch | 1 |" in text


def test_without_figures_there_is_a_report_all_the_same() -> None:
    nothing = dataclasses.replace(
        GOOD, model=None, points=(), curve=(), sizes=(), levers=(), predicts_well=None
    )

    assert nothing.sentence in report.markdown(nothing)
    assert report.terminal(nothing).startswith(nothing.sentence)


def test_an_interrupted_run_shows_the_operations_that_it_has_timed() -> None:
    hold = figure(150.0)
    demand = Demand(operation="enqueue", hold_us=hold, outside_us=hold, per_job=1.0)
    short = dataclasses.replace(
        GOOD, demands=(demand,), model=None, points=(), curve=(), sizes=(), levers=()
    )

    assert "enqueue    150 [135 to 165]" in report.terminal(short)


def test_a_recorded_result_comes_back_and_another_schema_is_refused() -> None:
    assert from_json(to_json(GOOD)) == GOOD
    with pytest.raises(ValueError, match="schema 1"):
        from_json(to_json(dataclasses.replace(GOOD, schema=99)))
