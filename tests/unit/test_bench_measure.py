"""Figures of the bench: exact, refused where they would lie, the same under the same seed."""

from pathlib import Path

import numpy as np
import pytest

from killproof_bench import machine, measure
from killproof_bench.observe import read_locks


def samples(*values: int) -> measure.Samples:
    return np.array(values, dtype=np.int64)


def test_a_quantile_is_the_sample_of_its_rank_and_never_between_two() -> None:
    values = np.arange(10_000, 0, -1, dtype=np.int64)

    assert measure.quantile(values, 500) == 5_000
    assert measure.quantile(values, 990) == 9_900
    assert measure.quantile(values, 999) == 9_990


@pytest.mark.parametrize(("permille", "needed"), [(500, 20), (990, 1_000), (999, 10_000)])
def test_a_quantile_is_refused_below_ten_samples_beyond_it(permille: int, needed: int) -> None:
    assert measure.samples_needed(permille) == needed
    assert measure.quantile(np.arange(needed, dtype=np.int64), permille) is not None
    assert measure.quantile(np.arange(needed - 1, dtype=np.int64), permille) is None


def test_a_refused_figure_says_how_many_samples_it_had() -> None:
    figure = measure.quantile_figure(samples(1, 2, 3), samples(0, 0, 0), 999, seed=1)

    assert (figure.value, figure.low, figure.high, figure.n) == (None, None, None, 3)


def noisy_blocks() -> tuple[measure.Samples, measure.Samples]:
    random = np.random.default_rng(7)
    blocks = np.repeat(np.arange(10, dtype=np.int64), 200)
    return (random.integers(1_000_000, 2_000_000, 2_000) + blocks * 50_000), blocks


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values, blocks = noisy_blocks()
    first, again, other = (
        measure.quantile_figure(values, blocks, 990, seed=seed) for seed in (1, 1, 2)
    )

    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.value is not None
    assert first.low is not None
    assert first.high is not None
    assert first.low <= first.value <= first.high


def test_an_interval_from_whole_blocks_is_wider_than_one_that_ignores_them() -> None:
    values, blocks = noisy_blocks()
    by_block = measure.quantile_figure(values, blocks, 500, seed=1)
    each_alone = measure.quantile_figure(
        values, np.arange(len(values), dtype=np.int64), 500, seed=1
    )

    assert by_block.low is not None
    assert by_block.high is not None
    assert each_alone.low is not None
    assert each_alone.high is not None
    assert by_block.high - by_block.low > 2 * (each_alone.high - each_alone.low)


def test_an_interval_is_refused_with_too_few_blocks() -> None:
    values = np.arange(100, dtype=np.int64)
    figure = measure.quantile_figure(values, values % 4, 500, seed=1)

    assert figure.value is not None
    assert (figure.low, figure.high) == (None, None)


def test_a_rate_is_the_mean_of_its_blocks_with_an_interval_around_it() -> None:
    """Rules H12, H12a."""
    figure = measure.rate_figure(samples(90, 100, 110, 95, 105), block_seconds=0.5, seed=1)

    assert figure.value == 200.0
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < 200.0 < figure.high
    assert figure.n == 500


def test_fairness_is_zero_when_one_worker_gets_nothing() -> None:
    assert measure.fewest_over_most([0, 400]) == 0.0
    assert measure.fewest_over_most([0, 0]) == 0.0
    assert measure.jain([0, 400]) == 0.5


def test_a_run_that_slows_down_is_not_steady() -> None:
    assert measure.is_steady([100, 101, 99, 100, 100, 99])
    assert not measure.is_steady([100, 100, 90, 80, 70, 70])
    assert not measure.is_steady([100, 100])


LOCKS = """\
1: POSIX  ADVISORY  WRITE 700 fe:00:41 120 120
2: FLOCK  ADVISORY  WRITE 700 fe:00:99 0 EOF
2: -> FLOCK  ADVISORY  WRITE 701 fe:00:99 0 EOF
2: -> FLOCK  ADVISORY  WRITE 702 fe:00:99 0 EOF
3: POSIX  ADVISORY  READ 700 fe:00:41 124 124
4: OFDLCK ADVISORY  WRITE -1 fe:00:77 1048577 1048577
"""


def test_the_write_lock_and_the_turnstile_are_seen_from_outside() -> None:
    here = read_locks(LOCKS, 41, 99)
    elsewhere = read_locks(LOCKS, 42, None)

    assert (here.write_lock_held, here.turnstile_held) == (True, True)
    assert (elsewhere.write_lock_held, elsewhere.turnstile_held) == (False, False)


def test_a_process_that_waits_for_a_lock_does_not_hold_it() -> None:
    waiting = "\n".join(line for line in LOCKS.splitlines() if "->" in line)

    assert not read_locks(waiting, 41, 99).turnstile_held


def test_a_read_lock_of_the_wal_index_is_not_the_write_lock() -> None:
    without = "\n".join(LOCKS.splitlines()[1:])

    assert not read_locks(without, 41, 99).write_lock_held


def moment(*, busy: int, steal: int, own: float) -> machine.Moment:
    return machine.Moment(
        busy_ticks=busy,
        steal_ticks=steal,
        all_ticks=10_000 if busy else 0,
        own_seconds=own,
        load=0.0,
        pressure_cpu=0.0,
        pressure_io=0.0,
    )


def test_a_run_beside_other_programs_wears_the_badge() -> None:
    """Rule H14."""
    before = moment(busy=0, steal=0, own=0.0)
    alone = machine.noise(before, moment(busy=5_000, steal=0, own=48.0), [1_000, 1_100])
    crowded = machine.noise(before, moment(busy=5_000, steal=0, own=20.0), [1_000, 1_100])
    stolen = machine.noise(before, moment(busy=5_000, steal=500, own=50.0), [1_000, 1_100])
    slow_disk = machine.noise(before, moment(busy=5_000, steal=0, own=50.0), [1_000, 2_000])

    assert not alone.noisy
    assert crowded.noisy
    assert "other processes" in crowded.because[0]
    assert stolen.noisy
    assert "hypervisor" in stolen.because[0]
    assert slow_disk.noisy
    assert "sync rate" in slow_disk.because[0]


def test_the_raw_rate_leaves_no_file_behind(tmp_path: Path) -> None:
    """Rule H14."""
    assert machine.raw_syncs_per_second(tmp_path, seconds=0.01) > 0
    assert list(tmp_path.iterdir()) == []
    assert machine.now().all_ticks > 0


def test_a_percentile_curve_ends_where_too_few_samples_lie_beyond() -> None:
    told = measure.curve(np.arange(1, 10_001) * 1_000_000)

    assert told == (1_000, 2_500, 5_000, 7_500, 9_000, 9_500, 9_750, 9_900, 9_950, 9_975, 9_990)


def test_each_second_has_its_own_tail_and_its_own_longest_call() -> None:
    quick, slow = np.arange(1, 1_001) * 1_000_000, np.array([7_000_000, 9_000_000])
    blocks = np.array([0] * 1_000 + [2] * 2)

    p99, longest = measure.tails_per_block(np.concatenate([quick, slow]), blocks, 3)

    assert p99 == (990.0, None, None)
    assert longest == (1_000.0, 0.0, 9.0)
