"""An open loop's schedule, and the pacer that keeps it by the clock alone."""

import itertools
import statistics

import pytest

from killproof_bench.pacing import BURST, Arrivals, Pacer, schedule

SECOND = 1_000_000_000


def times(arrivals: Arrivals, rate: float, count: int, seed: int = 1) -> list[int]:
    return list(itertools.islice(schedule(arrivals, rate, seed=seed), count))


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "burst"])
def test_a_schedule_offers_its_rate_and_the_same_seed_gives_it_again(arrivals: Arrivals) -> None:
    made = times(arrivals, 200.0, 4_000)

    assert made == sorted(made)
    assert made[-1] / SECOND == pytest.approx(20.0, rel=0.05)
    assert made == times(arrivals, 200.0, 4_000)
    assert made != times(arrivals, 200.0, 4_000, seed=2)


def test_the_gaps_are_exponential_equal_or_between_bursts() -> None:
    def gaps(arrivals: Arrivals) -> list[int]:
        return [b - a for a, b in itertools.pairwise(times(arrivals, 100.0, 5_000))]

    poisson = gaps("poisson")
    # An exponential gap spreads as far as it is long.
    assert statistics.stdev(poisson) / statistics.mean(poisson) == pytest.approx(1.0, rel=0.1)
    assert max(gaps("constant")) - min(gaps("constant")) <= 1
    assert [gap > 0 for gap in gaps("burst")[: 2 * BURST]].count(True) == 2


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="rate 0/s: give a number above 0"):
        next(schedule("poisson", 0.0, seed=1))


class Time:
    """A clock that only a sleep, or a slow call, moves."""

    def __init__(self) -> None:
        self.ns = 0
        self.until = 10 * SECOND

    def clock(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * SECOND)


def paced(hand: Time, *seconds: float) -> Pacer:
    offsets = (round(each * SECOND) for each in itertools.chain(seconds, itertools.count(11)))
    return Pacer(
        offsets, start_ns=0, until_ns=lambda: hand.until, clock=hand.clock, sleep=hand.sleep
    )


def test_each_call_is_handed_out_when_it_is_due() -> None:
    hand = Time()
    pacer = paced(hand, 0.5, 1.5)

    assert pacer.wait() == 0.5 * SECOND == hand.ns
    assert pacer.wait() == 1.5 * SECOND == hand.ns
    assert (pacer.wait(), pacer.skipped) == (None, 0)


def test_what_became_due_during_a_slow_call_is_due_at_once_with_its_own_time() -> None:
    """The credit comes from the clock: a slow call takes nothing from what is offered."""
    hand = Time()
    pacer = paced(hand, 1.0, 1.1, 1.2, 5.0)
    pacer.wait()
    hand.ns += 3 * SECOND

    assert [pacer.wait(), pacer.wait()] == [round(1.1 * SECOND), round(1.2 * SECOND)]
    assert hand.ns == 4 * SECOND
    assert pacer.wait() == 5 * SECOND


def test_what_was_due_and_never_made_is_counted() -> None:
    hand = Time()
    pacer = paced(hand, 1.0, 2.0, 3.0, 9.9, 10.5)
    pacer.wait()
    hand.ns = 12 * SECOND

    assert (pacer.wait(), pacer.skipped) == (None, 3)


def test_an_end_that_is_brought_forward_ends_the_wait_and_skips_nothing() -> None:
    hand = Time()
    pacer = paced(hand, 1.0, 2.0)
    pacer.wait()
    hand.until = 0

    assert (pacer.wait(), pacer.skipped) == (None, 0)
