"""The gate's test: exact, with error rates that hold under any noise; made-up numbers, no clock."""

import math
from collections.abc import Set
from random import Random

import numpy as np
import pytest

from killproof_bench.gate import report_proof, sequential, timing
from killproof_bench.gate.blocks import (
    FOREIGN_CPU_MAX,
    PRESSURE_CPU_MAX,
    STEAL_MAX,
    Disturbance,
    Measured,
)
from killproof_bench.gate.result import Block


def block(d: float, position: int = 0, order: str = "ABBA") -> Block:
    return Block(
        position=position,
        order=order,
        us_per_op=(1.0, 1.0, 1.0, 1.0),
        ops=(1_000, 1_000, 1_000, 1_000),
        d=d,
        hash_seed=0,
        steal=0.0,
        foreign_cpu=0.0,
        pressure_cpu=0.0,
    )


def made_up(differences: list[float], disturbed: Set[int] = frozenset()) -> timing.Measure:
    """Return a measure that plays these differences; the calls named are disturbed."""
    calls = iter(range(10_000))
    left = iter(differences)

    def measure(coin: Random, position: int) -> Measured:
        bad = next(calls) in disturbed
        return Measured(
            block=block(9.9 if bad else next(left), position),
            disturbed=bad,
            jobs=10,
            checkpoints=1,
        )

    return measure


def test_the_statistic_is_the_same_for_both_orders_of_a_block() -> None:
    assert sequential.log_ratio([1.0, 1.2, 1.2, 1.0], "ABBA") == pytest.approx(math.log(1.2))
    assert sequential.log_ratio([1.2, 1.0, 1.0, 1.2], "BAAB") == pytest.approx(math.log(1.2))


def test_a_drift_of_the_machine_cancels_inside_a_block() -> None:
    drifting = [math.exp(0.05 * place) for place in range(4)]

    assert sequential.log_ratio(drifting, "ABBA") == pytest.approx(0.0)
    assert sequential.log_ratio(drifting, "BAAB") == pytest.approx(0.0)


@pytest.mark.parametrize("noise", ["normal", "heavy tail", "outliers", "drift"])
def test_false_alarms_stay_below_their_bound_whatever_the_noise(noise: str) -> None:
    random = np.random.default_rng(11)
    shape = (2_000, sequential.LOOKS[-1])
    rows = {
        "normal": random.normal(0, 0.1, shape),
        "heavy tail": 0.1 * random.standard_t(2, shape),
        "outliers": random.normal(0, 0.05, shape) * random.choice([1, 1, 1, 8], shape),
        "drift": np.cumsum(random.normal(0, 0.03, shape), axis=1),
    }[noise]
    rows *= random.choice((-1.0, 1.0), shape)  # What the coin does to equal code.

    verdicts, _ = sequential.outcomes(rows)

    # Three standard errors above the bound: red for a test that is wrong, never by chance.
    assert verdicts.count("fail") / len(verdicts) <= sequential.ALPHA + 3 * math.sqrt(0.005 / 2_000)


def test_a_tenth_is_found_with_95_percent_where_sigma_is_12_percent() -> None:
    power = sequential.expected(0.12, 0.10, block_seconds=2.5, runs=2_000, seed=1)

    assert power.fails >= 0.95
    assert power.passes <= sequential.BETA


def test_no_change_passes_at_the_first_look_on_a_quiet_machine() -> None:
    power = sequential.expected(0.04, 0.0, block_seconds=2.5, runs=500, seed=1)

    assert power.passes == 1.0
    assert power.blocks_mean == sequential.LOOKS[0]


def test_a_slowdown_between_the_margins_fails_before_it_passes() -> None:
    look = sequential.look_at([math.log(1.05)] * 10)

    assert look is not None
    assert look.p_not_slower <= look.p_pass_at
    assert look.verdict == "fail"


def test_nobody_looks_between_the_looks() -> None:
    assert sequential.look_at([1.0] * 9) is None
    assert sequential.look_at([1.0] * 11) is None


def test_the_levels_of_the_looks_add_up_to_what_is_promised() -> None:
    assert math.isclose(sequential.ALPHA, 0.005)
    assert math.isclose(sequential.BETA, 0.05)
    for levels in (sequential.FIRST, sequential.RETRY):
        assert len(sequential.LOOKS) == len(levels.fail) == len(levels.passes)


def test_a_retry_decides_at_levels_of_its_own() -> None:
    slower = [math.log(1.2)] * 80

    first = timing.run(made_up(slower), coin="00").run
    retry = timing.run(made_up(slower), coin="00", levels=sequential.RETRY).run

    assert (first.verdict, len(first.blocks)) == ("fail", 10)
    assert (retry.verdict, len(retry.blocks)) == ("fail", 20)
    assert [look.p_fail_at for look in retry.looks] == [0.0, 0.0001]


def test_the_interval_of_the_ratio_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(30):
        ratio = sequential.ratio([*random.normal(math.log(1.1), 0.05, 12)])
        assert ratio.low is not None
        assert ratio.high is not None
        assert ratio.value is not None
        assert ratio.low <= ratio.value <= ratio.high
        covered += ratio.low <= 1.1 <= ratio.high

    assert covered >= 30 * 0.95 - 3 * math.sqrt(30 * 0.95 * 0.05)


def test_too_few_blocks_give_a_ratio_without_an_interval() -> None:
    assert sequential.ratio([0.1] * 3).low is None
    assert sequential.ratio([]).value is None
    assert sequential.sigma([0.1]).value is None
    assert sequential.share(0, 0).value is None


def test_clopper_and_pearson_bound_a_share_that_was_never_seen() -> None:
    none = sequential.share(0, 300)

    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 300))


def test_a_copy_that_is_slower_by_its_place_alone_shows_before_labels_are_tossed() -> None:
    shams = [block(0.01 if place < 90 else -0.01, place) for place in range(100)]

    assert report_proof.as_they_came(shams) == (
        "the copy was slower in 90% [82% to 95%] of 100 sham blocks; of equal code it is in half "
        "of them"
    )
    assert report_proof.as_they_came([]) == "no sham blocks"


def test_a_run_ends_at_the_look_that_decides() -> None:
    outcome = timing.run(made_up([math.log(1.2)] * 80), coin="00")

    assert outcome.run.verdict == "fail"
    assert len(outcome.run.blocks) == 10
    assert outcome.jobs == 100


def test_a_disturbed_block_is_measured_again_and_its_times_are_never_looked_at() -> None:
    plain = timing.run(made_up([0.0, 0.001] * 40), coin="00")
    disturbed = timing.run(made_up([0.0, 0.001] * 40, disturbed={0, 4, 5}), coin="00")

    assert disturbed.run.redone == 3
    assert disturbed.run.blocks == plain.run.blocks
    assert disturbed.run.ratio == plain.run.ratio
    assert disturbed.jobs == plain.jobs + 30


def test_a_machine_that_is_never_quiet_ends_the_run_undecided() -> None:
    outcome = timing.run(made_up([0.0] * 80, disturbed=set(range(500))), coin="00")

    assert outcome.run.verdict == "inconclusive"
    assert "disturbed" in outcome.run.because


def test_a_run_without_an_answer_ends_after_its_blocks() -> None:
    undecided = [*np.random.default_rng(3).normal(0.055, 0.5, 80)]

    outcome = timing.run(made_up(undecided), coin="00")

    assert outcome.run.verdict == "inconclusive"
    assert [look.blocks for look in outcome.run.looks] == list(sequential.LOOKS)
    assert outcome.run.because == "undecided after 80 blocks"


def test_ctrl_c_keeps_the_blocks_that_have_ended() -> None:
    calls = iter(range(100))

    def measure(coin: Random, position: int) -> Measured:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return Measured(block=block(0.0, position), disturbed=False, jobs=1, checkpoints=0)

    outcome = timing.run(measure, coin="00")

    assert outcome.interrupted
    assert len(outcome.run.blocks) == 4
    assert outcome.run.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("steal", "foreign", "pressure", "redo"),
    [
        (0.0, 0.0, 0.0, False),
        (STEAL_MAX, FOREIGN_CPU_MAX, PRESSURE_CPU_MAX, False),
        (STEAL_MAX + 0.001, 0.0, 0.0, True),
        (0.0, FOREIGN_CPU_MAX + 0.001, 0.0, True),
        (0.0, 0.0, PRESSURE_CPU_MAX + 0.001, True),
    ],
)
def test_foreign_load_alone_decides_whether_a_block_counts(
    steal: float, foreign: float, pressure: float, redo: bool
) -> None:
    disturbance = Disturbance(steal=steal, foreign_cpu=foreign, pressure_cpu=pressure)

    assert disturbance.is_too_much is redo


def test_coins_are_the_kernels_and_never_the_same() -> None:
    assert len({timing.fresh_coin() for _ in range(100)}) == 100
