"""The order of the rounds, and what falls into the measured time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from killproof_bench import sampling
from killproof_bench.claim_command import Axes, goal_plans
from killproof_bench.measure import Samples
from killproof_bench.recording import COLUMNS, SERVED_COLUMNS, Call, Kind
from killproof_bench.report_goals import TARGETS
from killproof_bench.sampling import sample
from killproof_bench.scenarios.claim import BACKLOG_PER_SECOND, Plan, Step, order, processes
from killproof_bench.scenarios.stopped import loss

SECOND = 1_000_000_000


def arms(plan: Plan, workers: int) -> str:
    return "".join(step.arm[0] for step in order(plan) if step.workers == workers)


def test_two_rounds_are_abba_or_baab_so_that_drift_falls_on_both_arms() -> None:
    """Rule H12a."""
    seen = {arms(Plan(workers=(1, 2, 4, 8), seed=seed), 4) for seed in range(20)}

    assert seen == {"krrk", "rkkr"}


def test_the_same_seed_gives_the_same_order_and_each_pair_shares_its_hash_seed() -> None:
    plan = Plan(workers=(2, 16), rounds=3, seed=7)
    steps = list(order(plan))

    assert steps == list(order(plan))
    assert [step.position for step in steps] == list(range(12))
    assert len({step.hash_seed for step in steps}) == 6


def test_calls_are_timed_from_inside_in_a_pair_of_their_own_and_in_no_other(
    tmp_path: Path,
) -> None:
    plan = Plan(workers=(2, 4), rounds=2)
    steps = list(order(plan, timed_pair=True))

    assert [step.timed for step in steps] == ([False] * 4 + [True] * 2) * 2
    for step in steps:
        assert {spec.timed for spec in processes(tmp_path, plan, step)} == {step.timed}


def calls(*rows: tuple[float, float]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    made = np.zeros((len(rows), COLUMNS), dtype=np.int64)
    for row, (begin, end) in zip(made, rows, strict=True):
        row[Call.BEGIN], row[Call.END] = round(begin * SECOND), round(end * SECOND)
        row[Call.JOBS] = 1
    return made


def test_only_calls_that_ended_in_the_measured_time_count_for_the_rate() -> None:
    cut = sample([calls((9.0, 9.5), (9.9, 10.1), (10.2, 11.5), (11.9, 12.1))], 10 * SECOND, 2.0)

    assert cut.counts == (2,)
    assert cut.per_block.tolist() == [1, 1]


def test_a_call_that_still_waits_at_the_end_is_not_left_out_of_the_tail() -> None:
    """Rule H11."""
    cut = sample([calls((10.1, 10.2)), calls((10.5, 14.5))], 10 * SECOND, 2.0)

    assert cut.counts == (1, 0)
    assert cut.latencies.max() == 4 * SECOND
    assert cut.blocks.tolist() == [0, 1]


def test_calls_outside_the_measured_time_have_no_latency_in_it() -> None:
    cut = sample([calls((8.0, 9.9), (12.0, 12.5))], 10 * SECOND, 2.0)

    assert cut.latencies.tolist() == []


def test_a_short_run_still_has_one_block() -> None:
    cut = sample([calls((10.1, 10.2))], 10 * SECOND, 0.3)

    assert (cut.per_block.tolist(), cut.block_seconds) == ([1], 0.3)


def test_the_loss_is_the_share_of_the_undisturbed_throughput() -> None:
    figure = loss([1_000.0] * 6, [900.0, 800.0, 850.0, 900.0, 800.0, 850.0], seed=1)

    assert figure.value == pytest.approx(0.15)
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < 0.15 < figure.high
    assert loss([], [], seed=1).value is None


def of_kind(kind: Kind, *rows: tuple[float, float, float], jobs: int = 1) -> Samples:
    """Rows of one kind: intended, begin and end in seconds; job ids count from 1 in steps."""
    made = np.zeros((len(rows), COLUMNS), dtype=np.int64)
    for number, (row, given) in enumerate(zip(made, rows, strict=True)):
        row[[Call.INTENDED, Call.BEGIN, Call.END]] = [round(each * SECOND) for each in given]
        row[Call.KIND], row[Call.JOBS], row[Call.JOB] = kind, jobs, 1 + number * jobs
    return made


def test_a_batch_counts_with_all_its_jobs_and_with_one_latency() -> None:
    claims = of_kind(Kind.CLAIM, (10.1, 10.1, 10.2), (10.4, 10.4, 10.7), jobs=10)
    acks = of_kind(Kind.ACK, (10.2, 10.2, 10.3), (10.7, 10.7, 12.5), jobs=10)
    cut = sample([np.concatenate([claims, acks])], 10 * SECOND, 2.0)

    assert cut.counts == (10,)
    assert cut.per_block.tolist() == [10, 0]
    assert cut.latencies.tolist() == [SECOND // 10, 3 * SECOND // 10]


def test_an_empty_poll_is_neither_a_claim_nor_a_job() -> None:
    cut = sample([of_kind(Kind.EMPTY, (10.1, 10.1, 10.2), jobs=0)], 10 * SECOND, 2.0)

    assert (cut.counts, cut.latencies.tolist()) == ((0,), [])


def test_latency_is_taken_from_the_calls_begin_or_from_its_intended_time() -> None:
    made = [of_kind(Kind.ENQUEUE, (10.0, 10.5, 10.6))]
    measured = sampling.window(10 * SECOND, 1.0)

    def latencies(since: Call) -> list[int]:
        found = sampling.series(made, (Kind.ENQUEUE,), measured, since=since).latencies
        return [int(each) for each in found]

    assert latencies(Call.BEGIN) == [round(0.1 * SECOND)]
    assert latencies(Call.INTENDED) == [round(0.6 * SECOND)]


def served(*rows: tuple[int, float]) -> Samples:
    made = np.zeros((len(rows), SERVED_COLUMNS), dtype=np.int64)
    for row, (job, claimed) in zip(made, rows, strict=True):
        row[:2] = job, round(claimed * SECOND)
    return made


def test_time_to_claim_follows_each_job_from_its_intended_enqueue_to_its_claim() -> None:
    enqueues = of_kind(Kind.ENQUEUE, (10.0, 10.1, 10.2), (10.3, 10.3, 10.4), jobs=2)
    claims = [served((3, 10.9), (1, 10.5)), served((2, 10.25), (9, 10.3))]
    found = sampling.time_to_claim([enqueues], claims, sampling.window(10 * SECOND, 1.0))

    # Job 4 was claimed by nobody: it counts with the time it has waited so far.
    assert [round(each / SECOND, 3) for each in found.latencies] == [0.5, 0.25, 0.6, 0.7]


def test_what_the_schedule_wanted_in_the_measured_time_is_counted_by_its_own_times() -> None:
    made = of_kind(Kind.ENQUEUE, (9.9, 10.5, 10.6), (10.9, 12.0, 12.1), (11.1, 12.1, 12.2))

    assert sampling.due([made], (Kind.ENQUEUE,), sampling.window(10 * SECOND, 1.0)) == 1


STEP = Step(position=0, workers=4, arm="killproof", hash_seed=7)


def test_producers_share_the_rate_and_workers_then_have_no_schedule(tmp_path: Path) -> None:
    plan = Plan(loop="open", rate_per_s=100.0, producers=2, batch=5, payload_bytes=500)
    told = processes(tmp_path, plan, STEP)

    assert [spec.role for spec in told] == ["worker"] * 4 + ["producer"] * 2
    assert {(spec.loop, spec.fed, spec.batch) for spec in told[:4]} == {("closed", True, 5)}
    assert {(s.rate_per_s, s.batch, s.payload_bytes) for s in told[4:]} == {(50.0, 1, 500)}
    assert len({spec.seed for spec in told}) == len({spec.calls_file for spec in told}) == 6
    assert plan.backlog == 0


def test_without_producers_the_workers_share_the_rate_in_batches(tmp_path: Path) -> None:
    plan = Plan(loop="open", rate_per_s=200.0, batch=5)
    told = processes(tmp_path, plan, STEP)

    assert {(spec.role, spec.loop, spec.rate_per_s) for spec in told} == {("worker", "open", 10.0)}
    assert plan.backlog > 200.0 * (plan.seconds + plan.warmup_seconds)


def test_a_rate_far_above_what_any_queue_takes_seeds_no_more_than_that(tmp_path: Path) -> None:
    """A million a second would be fourteen million rows, and as many records of each worker."""
    plan = Plan(loop="open", rate_per_s=1e6, producers=0)
    fed = Plan(loop="open", rate_per_s=1e6, producers=1)
    most = BACKLOG_PER_SECOND * (plan.seconds + plan.warmup_seconds) + 1_000

    assert plan.backlog <= most
    assert all(spec.calls_max <= most for spec in processes(tmp_path, fed, next(order(fed))))


def test_both_arms_of_a_pair_have_the_same_schedule(tmp_path: Path) -> None:
    plan = Plan(loop="open", rate_per_s=100.0, producers=1)
    other = replace(STEP, arm="reference", position=1)

    assert [spec.seed for spec in processes(tmp_path, plan, STEP)] == [
        spec.seed for spec in processes(tmp_path, plan, other)
    ]


def test_several_values_of_an_axis_are_measured_one_after_the_other() -> None:
    axes = Axes(
        workers=(4,),
        levels=("power", "process"),
        rates=(0.0,),
        batches=(1, 10),
        payloads=(100,),
        backlogs=(None,),
        finishes=(0, 1_000),
    )
    plans = axes.plans(Plan(workers=(4,)))

    assert len({plan.setup for plan in plans}) == len(plans) == 8
    assert (plans[0].setup.durability, plans[-1].setup.finished) == ("power", 1_000)


def test_the_goals_are_measured_with_their_own_cells_and_repeats() -> None:
    plans = goal_plans(rounds=5, seed=1)
    asked: dict[tuple[str, int, str], int] = {
        (plan.durability, plan.batch, plan.call): plan.rounds
        for plan in plans
        if plan.loop == "closed" and 16 in plan.workers
    }

    assert {key: asked[key] for key in TARGETS} == dict.fromkeys(TARGETS, 5)
