"""The report of the bench is a pure function of the recorded result."""

import json
from dataclasses import replace

import pytest

from killproof_bench import (
    report,
    report_anatomy,
    report_contention,
    report_curves,
    report_goals,
)
from killproof_bench.cells import ratios
from killproof_bench.result import (
    SCHEMA,
    Anatomy,
    BenchResult,
    Cell,
    ClaimCard,
    Correctness,
    Figure,
    Latency,
    LockWatch,
    Noise,
    OperationCost,
    Pair,
    Ratio,
    Round,
    RowsResult,
    Schedule,
    Setup,
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


SETUP = Setup(
    durability="power",
    loop="closed",
    arrivals="",
    rate_per_s=0.0,
    producers=0,
    call="ack-and-claim",
    batch=1,
    payload_bytes=100,
    backlog=140_000,
    finished=0,
    job_ms=0.0,
)

ANATOMY = Anatomy(
    calls=20_000,
    total_ms=4.0,
    python_ms=0.2,
    wait_held_ms=2.0,
    wait_idle_ms=0.4,
    sql_ms=0.3,
    commit_ms=0.1,
    checkpoint_ms=0.0,
    sync_ms=1.0,
    lock_wait_p50_ms=2.1,
    lock_wait_p99_ms=9.0,
    lock_hold_p50_ms=0.35,
    lock_hold_p99_ms=0.9,
    retries=0.001,
    lock_held=0.7,
    idle_while_wanted=0.05,
    user_us=250.0,
    system_us=90.0,
    run_delay_us=400.0,
    switches=2.5,
)

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
    p999_ms=20.0,
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
        wal_bytes=(2**20, 4 * 2**20),
        frames_behind=(250, 1_000),
    ),
    correctness=judged(),
)


def latency(kind: str, basis: str) -> Latency:
    return Latency(
        kind=kind,
        basis=basis,
        p50_ms=figure(4.0),
        p90_ms=figure(9.0),
        p99_ms=figure(15.0),
        p999_ms=figure(20.0),
        max_ms=31.0,
    )


def cell(arm: str, *, rate: float, tail: float | None, fairness: float) -> Cell:
    reference = arm == "reference"
    return Cell(
        workers=16,
        arm=arm,
        setup=SETUP,
        jobs_per_s=figure(rate),
        p50_ms=figure(4.0),
        p99_ms=figure(15.0),
        p999_ms=figure(tail, n=20_000 if tail else 9_000),
        max_ms=31.0,
        fewest_over_most=fairness,
        fewest_over_most_worst=fairness - 0.01,
        jain_min=0.99,
        latencies=(latency("claim call", "operation"),),
        anatomy=replace(ANATOMY, retries=None) if reference else ANATOMY,
        schedule=None,
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
        setup=SETUP,
        fewest_over_most=0.92,
        fewest_over_most_reference=0.39,
        p999=0.1,
        p999_pooled=False,
        longest=0.04,
        throughput=1.8,
        pairs=(
            Pair(
                throughput=1.8,
                p999=0.1,
                longest=0.04,
                fewest_over_most=0.92,
                fewest_over_most_reference=0.39,
            ),
        )
        * 5,
    ),
)
RESULT = BenchResult(
    schema=SCHEMA,
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
    timing_us=1.5,
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
    sentence=report.sentence(CELLS, RATIOS),
)


def test_a_result_comes_back_from_json_as_it_was() -> None:
    assert from_json(to_json(RESULT)) == RESULT


def test_a_result_of_another_schema_is_refused() -> None:
    document = json.loads(to_json(RESULT))

    with pytest.raises(ValueError, match=f"not a bench result of schema {SCHEMA}"):
        from_json(json.dumps(document | {"schema": SCHEMA - 1}))
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

    assert report.sentence((CELLS[0], wrong), RATIOS) == (
        "The figures are void: reference with 16 workers: 1 jobs acked more than once."
    )


def test_a_run_without_evidence_proves_nothing() -> None:
    dry = replace(CELLS[0], correctness=judged("unknown", "the backlog ran dry"))

    assert report.sentence((dry, CELLS[1]), RATIOS).startswith(
        "The figures prove nothing: killproof"
    )


def test_nothing_measured_is_said() -> None:
    assert report.sentence((), ()) == "Nothing was measured."


def test_the_report_holds_the_command_the_conditions_and_the_limits() -> None:
    text = report_contention.contention(RESULT)

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
    assert text.startswith(f"# {report_contention.TITLE}\n\n16 workers at power: 3,600 jobs/s")
    assert text.endswith("\n")
    assert "\n\n\n" not in text


def test_the_main_table_has_each_figure_with_its_interval_and_verdict() -> None:
    text = report_contention.contention(RESULT)

    assert (
        "| 16 | killproof | 3,600 [3,240 to 3,960] | 4 [3.6 to 4.4] | 15 [13.5 to 16.5] "
        "| 20 [18 to 22] | 31 | 0.92 (0.91) | 0.990 | pass |"
    ) in text


def test_each_goal_is_printed_with_what_was_measured_whether_met_or_not() -> None:
    assert report_goals.goals(RESULT) == [
        ("power, 16 workers: throughput at least 1.3 times", "1.800 (median of 5)", "yes"),
        (
            "power, 16 workers: p99.9 at most 1/10 of the reference's",
            "0.100 (median of 5)",
            "yes",
        ),
        (
            "power, 16 workers: longest wait at most 1/20 of the reference's",
            "0.040 (median of 5)",
            "yes",
        ),
        ("power, 16 workers: fewest/most at least 0.85", "0.920 (median of 5)", "yes"),
        ("a stopped holder costs the others at most 25%", "0.069", "yes"),
        ("claim: steps within 5% of the small file's", "0.010", "yes"),
        ("claim: time ratio under 1.5", "1.100", "yes"),
    ]
    slow = replace(RATIOS[0], throughput=1.1, p999=None, pairs=RATIOS[0].pairs[:2])

    assert report_goals.goals(replace(RESULT, ratios=(slow,)))[:2] == [
        (
            "power, 16 workers: throughput at least 1.3 times",
            "1.100 (median of 2, fewer than asked for)",
            "**no**",
        ),
        ("power, 16 workers: p99.9 at most 1/10 of the reference's", "n/a", "**no**"),
    ]


def test_each_level_and_batch_has_its_own_goals_and_other_setups_have_none() -> None:
    def asked(**changes: object) -> list[str]:
        ratio = replace(RATIOS[0], setup=replace(SETUP, **changes))  # type: ignore[arg-type]
        result = replace(RESULT, ratios=(ratio,), rows=None, stopped=None)
        return [goal for goal, _, _ in report_goals.goals(result)]

    assert asked(durability="process") == [
        "process, 16 workers: throughput at least 0.55 times",
        "process, 16 workers: p99.9 at most 1/6 of the reference's",
        "process, 16 workers: fewest/most at least 0.5",
    ]
    assert asked(batch=10, call="claim-then-ack") == [
        "power, batch 10, 16 workers: throughput at least 1.4 times",
        "power, batch 10, 16 workers: p99.9 at most 1/10 of the reference's",
    ]
    for change in ({"finished": 10}, {"payload_bytes": 999}, {"job_ms": 1.0}, {"loop": "open"}):
        assert asked(**change) == []


def test_no_goal_is_met_by_a_run_that_was_wrong() -> None:
    rows = report_goals.goals(replace(RESULT, verdict="violated"))

    assert {row[1:] for row in rows} == {("void", "**no**")}


def test_no_goal_is_met_by_figures_that_prove_nothing() -> None:
    """Such as of a backlog that ran dry: the goals of other cells are told all the same."""
    dry = Correctness(verdict="unknown", because=("the backlog ran dry",), jobs=9)
    assert RESULT.stopped is not None
    result = replace(
        RESULT,
        verdict="unknown",
        cells=(CELLS[0], replace(CELLS[1], correctness=dry), *CELLS[2:]),
        stopped=replace(RESULT.stopped, correctness=dry),
    )

    rows = report_goals.goals(result)
    assert {row[1:] for row in rows[:5]} == {("void", "**no**")}
    assert rows[5][1:] == ("0.010", "yes")


def test_a_tail_that_no_pair_could_give_is_told_to_be_of_all_rounds() -> None:
    pooled = replace(RATIOS[0], p999_pooled=True)
    goals = report_goals.goals(replace(RESULT, ratios=(pooled,)))

    assert goals[1][1] == "0.100 (all rounds together)"
    assert "p99.9 ratio 0.100 (of all rounds together)" in report.ratio_line(pooled)


def test_a_refused_quantile_is_printed_as_refused_with_its_samples() -> None:
    few = cell("killproof", rate=100.0, tail=None, fairness=1.0)
    text = report_contention.contention(replace(RESULT, cells=(few, CELLS[1])))

    assert "| n/a (n=9,000) |" in text
    assert "killproof | n/a (n=9,000)" in report.picture((few, CELLS[1]))


def test_the_picture_is_scaled_to_the_largest_and_plain_ascii() -> None:
    picture = report.picture(CELLS)

    assert picture.isascii()
    assert f"16 workers, killproof |{'#' * 40} 3,600" in picture
    assert f"16 workers, reference |{'-' * 22} 2,000" in picture
    assert "p99.9 ms, log scale from 10 to 1000" in picture


def test_a_noisy_run_wears_its_badge_and_says_why() -> None:
    noise = replace(RESULT.noise, noisy=True, because=("the hypervisor took 5.0%",))
    result = replace(RESULT, noise=noise)

    assert report.noise_sentence(result).startswith("NOISY: the hypervisor took 5.0% (steal")
    assert "- A quiet machine: see the noise above." in report_contention.contention(result)


def test_an_interrupted_run_says_so_in_both_places() -> None:
    result = replace(RESULT, interrupted=True)

    assert "**The run was interrupted" in report_contention.contention(result)
    assert "Interrupted: these are the rounds that had ended." in report_contention.terminal(result)


def test_the_terminal_gets_the_verdict_first_then_the_ratios() -> None:
    lines = report_contention.terminal(RESULT).splitlines()

    assert lines[0] == RESULT.sentence
    assert lines.index("== power ==") < lines.index(
        "16 workers: fewest/most 0.92 (reference 0.39), p99.9 ratio 0.100, "
        "longest wait ratio 0.040, throughput ratio 1.80"
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

    assert report_contention.terminal(alone).count("Flat: from 1,000") == 1
    assert "| claim: time ratio under 1.5 | 1.100 | yes |" in report_contention.contention(alone)
    assert "| rounds |" not in report_contention.contention(alone)


def test_a_bar_in_a_cell_does_not_break_the_markdown_table() -> None:
    assert report.markdown_table(("a",), [("x|y",)]).splitlines()[2] == "| x\\|y |"


def test_every_part_of_a_call_is_in_the_table_and_the_picture_is_divided_like_them() -> None:
    text = report_contention.contention(RESULT)

    assert "### Where a claim's time goes: power" in text
    assert "| 16 | killproof | 4 | 0.2 | 2 | 0.4 | 0.3 | 0.1 | 0 | 1 |" in text
    assert "| unseen | 70% | 5.0% | 250 + 90 | 400 | 2.50 |" in text
    drawn = next(line for line in report_anatomy.picture(CELLS).splitlines() if "killproof" in line)
    assert drawn.endswith(f"|{'ppp' + 'w' * 30 + 'iiiiii' + 'sssss' + 'C' + 'y' * 15}| 4 ms")
    assert "- killproof, 16 workers, each second of its first round" in text


def test_the_latencies_of_an_open_loop_stand_apart_and_its_schedule_is_told() -> None:
    setup = replace(SETUP, loop="open", arrivals="poisson", rate_per_s=400.0, producers=1)
    kept = Schedule(
        offered_per_s=398.0, done_per_s=397.0, late=12, skipped=3, left=4, empty_polls=50
    )
    latencies = (
        latency("claim call", "operation"),
        latency("enqueue commit", "operation"),
        latency("enqueue commit", "intended"),
        latency("time to claim", "intended"),
    )
    opened = tuple(replace(each, setup=setup, latencies=latencies, schedule=kept) for each in CELLS)
    result = replace(RESULT, cells=(*CELLS, *opened))
    text = report_contention.contention(result)

    assert text.count("| time to claim | its intended time | 4 [3.6 to 4.4] |") == 2
    assert text.count("| enqueue commit | the call's begin |") == 2
    assert "| 16 | killproof | 398 | 397 | 12 | 3 | 4 | 50 |" in text
    assert "## power, 400 jobs/s offered (poisson)" in text
    assert "Time from enqueue to claim" not in text
    assert "Each latency by itself" not in report_contention.contention(RESULT)


def test_two_setups_that_differ_in_their_backlog_alone_are_told_apart() -> None:
    fewer = replace(CELLS[0], setup=replace(SETUP, backlog=500))

    assert [name for name, _ in report.groups((*CELLS, fewer))] == [
        "power, backlog 140,000",
        "power, backlog 500",
    ]


def test_the_cells_of_a_setup_stand_by_their_workers_however_they_were_measured() -> None:
    first = replace(CELLS[0], workers=1)
    ((_, cells),) = report.groups((*CELLS, first))

    assert [cell.workers for cell in cells] == [1, 16, 16]


def test_a_setup_is_named_by_what_is_not_as_usual() -> None:
    odd = replace(SETUP, call="claim-then-ack", payload_bytes=5_000, finished=1_000_000, job_ms=2.5)

    assert report.plan_name(odd) == (
        "power, claim then ack, payload 5,000 bytes, 1,000,000 finished, 2.5 ms of work"
    )
    assert report.plan_name(replace(odd, batch=10)).startswith("power, batch 10, claim then")


def round_of(rate: float, *, tail: float | None, longest: float) -> Round:
    return replace(ROUND, jobs_per_s=rate, p999_ms=tail, max_ms=longest)


def test_a_ratio_is_the_median_over_pairs_and_not_the_ratio_of_two_medians() -> None:
    """A machine that slows down between two pairs moves both sides of the later one."""
    ours = replace(
        CELLS[0],
        rounds=tuple(
            round_of(rate, tail=tail, longest=30.0)
            for rate, tail in ((300.0, 10.0), (150.0, 20.0), (90.0, 30.0))
        ),
    )
    reference = replace(
        CELLS[1],
        rounds=tuple(
            round_of(rate, tail=200.0, longest=longest)
            for rate, longest in ((200.0, 600.0), (75.0, 300.0), (90.0, 1_200.0))
        ),
    )
    (ratio,) = ratios((ours, reference))

    assert ratio.throughput == 1.5
    assert (ratio.p999, ratio.p999_pooled) == (0.1, False)
    assert ratio.longest == 0.05
    assert len(ratio.pairs) == 3


def test_a_pair_without_a_tail_makes_it_the_ratio_of_all_rounds_together() -> None:
    few = replace(CELLS[0], rounds=(ROUND, round_of(3_000.0, tail=None, longest=25.0)))
    (ratio,) = ratios((few, replace(CELLS[1], rounds=(ROUND, ROUND))))

    assert ratio.p999 == pytest.approx(20.0 / 200.0)
    assert ratio.p999_pooled


def test_only_cells_of_one_setup_and_number_of_workers_are_compared() -> None:
    other = replace(CELLS[1], setup=replace(SETUP, batch=10))

    assert ratios((CELLS[0], other, replace(CELLS[1], workers=8))) == ()


def test_three_numbers_of_workers_make_a_curve_and_two_do_not() -> None:
    def cells(*numbers: int) -> list[Cell]:
        return [replace(each, workers=number) for number in numbers for each in CELLS]

    (drawn,) = report_curves.over_workers(cells(1, 4, 16))

    assert drawn.isascii()
    assert "jobs/s" in drawn.splitlines()[0]
    assert "# killproof" in drawn
    assert "- reference" in drawn
    assert report_curves.over_workers(cells(1, 16)) == []


def test_open_loops_that_differ_in_their_rate_alone_make_one_picture() -> None:
    def opened(rate: float, **changes: object) -> Cell:
        setup = replace(SETUP, loop="open", arrivals="poisson", rate_per_s=rate, producers=1)
        latencies = (latency("claim call", "operation"), latency("time to claim", "intended"))
        changed = replace(setup, **changes)  # type: ignore[arg-type]
        return replace(CELLS[0], setup=changed, latencies=latencies)

    rates = [opened(100.0), opened(200.0), opened(400.0)]
    (drawn,) = report_curves.over_load([*rates, opened(800.0, batch=10), *CELLS])

    assert "p99 of the time to claim, ms; 16 workers, power, poisson" in drawn
    assert "jobs/s offered" in drawn
    assert report_curves.over_load(rates[:2]) == []


def test_a_reference_that_did_nothing_has_no_ratio_rather_than_a_ratio_of_nothing() -> None:
    nothing = replace(ROUND, jobs_per_s=0.0, max_ms=0.0, p999_ms=None)
    (ratio,) = ratios((replace(CELLS[0], rounds=(ROUND,)), replace(CELLS[1], rounds=(nothing,))))

    assert ratio.throughput is None
    assert "throughput ratio n/a" in report.ratio_line(ratio)
