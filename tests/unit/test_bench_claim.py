"""The order of the rounds, and what falls into the measured time."""

import numpy as np
import pytest

from killproof_bench.recording import COLUMNS, Call
from killproof_bench.sampling import sample
from killproof_bench.scenarios.claim import Plan, order
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
