"""The report of the bench is a pure function of the recorded result."""

import json
from dataclasses import replace

import pytest

from killproof_bench import report
from killproof_bench.result import (
    BenchResult,
    Cell,
    ClaimCard,
    Correctness,
    Figure,
    LockWatch,
    Noise,
    OperationCost,
    Ratio,
    Round,
    RowsResult,
    StoppedResult,
    Verdict,
    from_json,
    to_json,
)


def figure(value: float | None, *, n: int = 20_000) -> Figure:
    if value is None:
        return Figure(value=None, low=None, high=None, n=n)
    return Figure(value=value, low=value * 0.9, high=value * 1.1, n=n)


def judged(verdict: Verdict = "pass", *because: str) -> Correctness:
    return Correctness(verdict=verdict, because=because, jobs=1_000)


CARD = ClaimCard(
    operation="ack-and-claim",
    unit="jobs/s",
    load_model="closed loop",
    arrivals="none",
    workers="16 x 1 process",
    batch=1,
    payload_bytes=100,
    rows_live=140_000,
    rows_dead=0,
    journal_mode="wal",
    synchronous="NORMAL",
    autocheckpoint=0,
    busy_policy="turnstile",
    durability="power",
    filesystem="ext4",
    cpu="a processor, 2 cores",
    python="3.11.7",
    sqlite="3.40.1",
    seconds=10.0,
    n=20_000,
    interval="95%, bootstrap over 10 blocks of 1 s",
    checkpoints=50,
    late_or_skipped="not applicable",
    steady=True,
    correctness="pass",
)

ROUND = Round(
    position=0,
    jobs_per_s=3_000.0,
    per_second=(3_000,) * 5,
    counts=(900, 1_000),
    max_ms=25.0,
    raw_before=4_000.0,
    raw_after=4_100.0,
    watch=LockWatch(
        samples=500,
        write_lock_held=0.7,
        turnstile_held=0.9,
        wal_bytes_max=4 * 2**20,
        frames_behind_max=1_000,
        restarts=50,
    ),
    correctness=judged(),
)


def cell(arm: str, *, rate: float, tail: float | None, fairness: float) -> Cell:
    reference = arm == "reference"
    return Cell(
        workers=16,
        arm=arm,
        jobs_per_s=figure(rate),
        p50_ms=figure(4.0),
        p99_ms=figure(15.0),
        p999_ms=figure(tail, n=20_000 if tail else 9_000),
        max_ms=31.0,
        fewest_over_most=fairness,
        fewest_over_most_worst=fairness - 0.01,
        jain_min=0.99,
        correctness=judged(),
        card=replace(CARD, synchronous="FULL" if reference else "NORMAL"),
        rounds=(replace(ROUND, position=int(reference)),),
    )


CELLS = (
    cell("killproof", rate=3_600.0, tail=20.0, fairness=0.92),
    cell("reference", rate=2_000.0, tail=200.0, fairness=0.39),
)
RATIOS = (
    Ratio(
        workers=16,
        fewest_over_most=0.92,
        fewest_over_most_reference=0.39,
        p999=0.1,
        throughput=1.8,
    ),
)
RESULT = BenchResult(
    schema=1,
    command="killproof bench claim --seed 3",
    seed=3,
    started="2026-01-01T00:00:00+00:00",
    interrupted=False,
    environment={
        "machine": "a processor, 2 cores, 8 GiB",
        "kernel": "6.1",
        "python": "3.11.7",
        "sqlite": "3.40.1",
    },
    durability="power",
    rounds_planned=1,
    seconds=5.0,
    warmup_seconds=2.0,
    cells=CELLS,
    ratios=RATIOS,
    noise=Noise(
        noisy=False,
        because=(),
        steal=0.0,
        foreign_cpu=0.01,
        load_before=0.1,
        load_after=4.0,
        pressure_cpu_before=0.0,
        pressure_io_before=0.0,
        raw_spread=1.1,
    ),
    rows=RowsResult(
        rows_small=1_000,
        rows_large=1_000_000,
        states=("succeeded", "dead", "scheduled", "leased"),
        available=5_000,
        durability="process",
        calls=400,
        seeding_seconds=21.0,
        file_bytes=2**30,
        costs=(
            OperationCost(
                operation="claim",
                steps_small=700.0,
                steps_large=707.0,
                us_small=90.0,
                us_large=99.0,
                time_ratio=figure(1.1, n=400),
            ),
        ),
    ),
    stopped=StoppedResult(
        workers=8,
        durability="power",
        window_seconds=1.5,
        settle_seconds=0.25,
        running=(3_000.0,),
        undisturbed=(2_900.0,),
        holding=(2_700.0,),
        loss=Figure(value=0.069, low=None, high=None, n=1),
        wal_bytes_max=2**20,
        correctness=judged(),
    ),
    verdict="pass",
    sentence=report.sentence(CELLS, RATIOS, "power"),
)


def test_a_result_comes_back_from_json_as_it_was() -> None:
    assert from_json(to_json(RESULT)) == RESULT


def test_a_result_of_another_schema_is_refused() -> None:
    document = json.loads(to_json(RESULT))

    with pytest.raises(ValueError, match="not a bench result of schema 1"):
        from_json(json.dumps(document | {"schema": 2}))
    with pytest.raises(ValueError, match="missing or unknown fields"):
        from_json(json.dumps(document | {"surprise": 1}))


def test_the_first_sentence_says_how_fast_how_late_how_fair_and_whether_it_was_right() -> None:
    assert RESULT.sentence == (
        "16 workers at power: 3,600 jobs/s, 1.80 times the reference; p99.9 20 ms, "
        "1/10.0 of the reference's; fewest/most 0.92 against 0.39; "
        "each of 2,000 jobs was done exactly once."
    )


def test_a_run_that_was_wrong_is_void_before_anything_else_is_said() -> None:
    wrong = replace(CELLS[1], correctness=judged("violated", "1 jobs acked more than once"))

    assert report.sentence((CELLS[0], wrong), RATIOS, "power") == (
        "The figures are void: reference with 16 workers: 1 jobs acked more than once."
    )


def test_a_run_without_evidence_proves_nothing() -> None:
    dry = replace(CELLS[0], correctness=judged("unknown", "the backlog ran dry"))

    assert report.sentence((dry, CELLS[1]), RATIOS, "power").startswith(
        "The figures prove nothing: killproof"
    )


def test_nothing_measured_is_said() -> None:
    assert report.sentence((), (), "power") == "Nothing was measured."


def test_the_report_holds_the_command_the_conditions_and_the_limits() -> None:
    text = report.contention(RESULT)

    for part in (
        "Command: `killproof bench claim --seed 3`",
        "| seed | 3 |",
        "| machine | a processor, 2 cores, 8 GiB |",
        "| python | 3.11.7 |",
        "| sqlite | 3.40.1 |",
        "| noise | quiet (steal 0.0%",
        "| synchronous | NORMAL | FULL |",
        "## What this does not show",
    ):
        assert part in text
    assert text.startswith(f"# {report.TITLE}\n\n16 workers at power: 3,600 jobs/s")
    assert text.endswith("\n")
    assert "\n\n\n" not in text


def test_the_main_table_has_each_figure_with_its_interval_and_verdict() -> None:
    text = report.contention(RESULT)

    assert (
        "| 16 | killproof | 3,600 [3,240 to 3,960] | 4 [3.6 to 4.4] | 15 [13.5 to 16.5] "
        "| 20 [18 to 22] | 31 | 0.92 (0.91) | 0.990 | pass |"
    ) in text


def test_each_goal_is_printed_with_what_was_measured_whether_met_or_not() -> None:
    assert report.goals(RESULT) == [
        ("16 workers: fewest/most at least 0.7", "0.920", "yes"),
        ("16 workers: p99.9 at most 0.125 of the reference's", "0.100", "yes"),
        ("16 workers: throughput at least 1.2 times", "1.800", "yes"),
        ("a stopped holder costs the others at most 25%", "0.069", "yes"),
        ("claim: steps within 5% of the small file's", "0.010", "yes"),
        ("claim: time ratio under 1.5", "1.100", "yes"),
    ]
    slow = replace(RATIOS[0], throughput=1.1, p999=None)

    assert report.goals(replace(RESULT, ratios=(slow,)))[1:3] == [
        ("16 workers: p99.9 at most 0.125 of the reference's", "n/a", "**no**"),
        ("16 workers: throughput at least 1.2 times", "1.100", "**no**"),
    ]


def test_a_refused_quantile_is_printed_as_refused_with_its_samples() -> None:
    few = cell("killproof", rate=100.0, tail=None, fairness=1.0)
    text = report.contention(replace(RESULT, cells=(few, CELLS[1])))

    assert "| n/a (n=9,000) |" in text
    assert "killproof | n/a (n=9,000)" in report.picture((few, CELLS[1]))


def test_the_picture_is_scaled_to_the_largest_and_plain_ascii() -> None:
    picture = report.picture(CELLS)

    assert picture.isascii()
    assert f"     16  killproof |{'#' * 40} 3,600" in picture
    assert f"     16  reference |{'-' * 22} 2,000" in picture
    assert "p99.9 ms, log scale from 10 to 1000" in picture


def test_a_noisy_run_wears_its_badge_and_says_why() -> None:
    noise = replace(RESULT.noise, noisy=True, because=("the hypervisor took 5.0%",))
    result = replace(RESULT, noise=noise)

    assert report.noise_sentence(result).startswith("NOISY: the hypervisor took 5.0% (steal")
    assert "- A quiet machine: see the noise above." in report.contention(result)


def test_an_interrupted_run_says_so_in_both_places() -> None:
    result = replace(RESULT, interrupted=True)

    assert "**The run was interrupted" in report.contention(result)
    assert "Interrupted: these are the rounds that had ended." in report.terminal(result)


def test_the_terminal_gets_the_verdict_first_then_the_ratios() -> None:
    lines = report.terminal(RESULT).splitlines()

    assert lines[0] == RESULT.sentence
    assert lines[2] == (
        "16 workers: fewest/most 0.92 (reference 0.39), p99.9 ratio 0.100, throughput ratio 1.80"
    )
    assert "synchronous: NORMAL | reference: FULL" in lines
    assert "journal mode: wal" in lines


def test_a_cost_that_grows_with_the_rows_is_not_called_flat() -> None:
    assert RESULT.rows is not None
    grown = replace(RESULT.rows.costs[0], steps_large=1_400.0)

    assert report.rows_sentence(RESULT.rows).startswith("Flat: from 1,000 to 1,000,000 rows")
    assert report.rows_sentence(replace(RESULT.rows, costs=(grown,))).startswith("Not flat")
    slower = replace(RESULT.rows.costs[0], time_ratio=figure(1.6))
    assert report.rows_sentence(replace(RESULT.rows, costs=(slower,))).startswith("Not flat")


def test_a_stopped_run_that_was_wrong_is_void() -> None:
    assert RESULT.stopped is not None
    wrong = replace(RESULT.stopped, correctness=judged("violated", "5 jobs went in"))

    assert "costs the others 6.9% of their throughput" in report.stopped_sentence(RESULT.stopped)
    assert report.stopped_sentence(wrong) == "The figures are void: 5 jobs went in."


def test_a_run_of_one_part_says_its_sentence_once_and_still_shows_its_goals() -> None:
    assert RESULT.rows is not None
    alone = replace(
        RESULT, cells=(), ratios=(), stopped=None, sentence=report.rows_sentence(RESULT.rows)
    )

    assert report.terminal(alone).count("Flat: from 1,000") == 1
    assert "| claim: time ratio under 1.5 | 1.100 | yes |" in report.contention(alone)
    assert "| rounds |" not in report.contention(alone)


def test_a_bar_in_a_cell_does_not_break_the_markdown_table() -> None:
    assert report.markdown_table(("a",), [("x|y",)]).splitlines()[2] == "| x\\|y |"
