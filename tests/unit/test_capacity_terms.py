"""From recorded calls to the terms of the lock, and how they are carried to other crowds."""

from collections.abc import Sequence

import numpy as np
import pytest

from killproof_bench.capacity import terms
from killproof_bench.capacity.simulation import Service
from killproof_bench.capacity.terms import Calibration, Observed
from killproof_bench.crew import Calls
from killproof_bench.recording import COLUMNS, Call, Kind

US = 1_000


def table(*calls: tuple[int, int, int, int], kind: Kind = Kind.ACK_AND_CLAIM) -> Calls:
    """Return recorded calls of (begin, lock, committed, end) in microseconds."""
    rows = np.zeros((len(calls), COLUMNS), dtype=np.int64)
    for row, (begin, lock, committed, end) in zip(rows, calls, strict=True):
        row[Call.BEGIN], row[Call.LOCK] = begin * US, lock * US
        row[Call.COMMITTED], row[Call.END] = committed * US, end * US
        row[Call.KIND] = kind
    return rows


def observe(*slices: Calls, kind: Kind = Kind.ACK_AND_CLAIM) -> Observed:
    found = terms.observe(slices, kind)
    assert found is not None
    return found


def test_a_hold_ends_with_the_checkpoint_that_follows_the_commit() -> None:
    rows = table((0, 10, 110, 200), (300, 310, 410, 500))
    rows[1, Call.CHECKPOINT] = 50 * US
    service = observe(rows).service

    assert service.hold.tolist() == [100.0, 150.0]
    assert service.after.tolist() == [90.0, 40.0]


def test_only_who_met_a_taken_lock_was_handed_it_over() -> None:
    observed = observe(table((0, 10, 110, 200), (50, 140, 240, 300), (400, 420, 500, 600)))

    assert observed.service.handover.tolist() == [30.0]
    assert observed.service.entry.tolist() == [10.0, 20.0]
    assert observed.queued == pytest.approx(1 / 3)


def test_a_place_is_how_many_went_first_for_each_that_was_found_waiting() -> None:
    """The second finds nobody waiting; the third finds one and goes past him; the fourth is last.

    The fourth finds two, the second and the third, and both go first.
    """
    rows = table(
        (0, 10, 100, 900),
        (20, 300, 390, 900),
        (30, 200, 290, 900),
        (40, 400, 490, 900),
    )

    assert sorted(observe(rows).service.place.tolist()) == [0.0, 1.0]


def test_another_kind_of_call_holds_the_same_lock_but_has_its_own_terms() -> None:
    enqueue = table((0, 10, 110, 200), kind=Kind.ENQUEUE)
    claim = table((50, 140, 340, 400), kind=Kind.CLAIM)
    both = np.concatenate([enqueue, claim])

    observed = observe(both, kind=Kind.CLAIM)
    assert observed.service.hold.tolist() == [200.0]
    assert observed.service.handover.tolist() == [30.0]
    assert terms.observe([both], Kind.ACK) is None


def test_a_call_that_took_no_lock_and_the_gap_between_two_slices_say_nothing() -> None:
    empty = table((0, 0, 0, 40), kind=Kind.EMPTY)
    one = table((0, 10, 110, 200), (500, 510, 610, 700))
    two = table((10_000, 10_010, 10_110, 10_200), (10_500, 10_510, 10_610, 10_700))

    observed = observe(np.concatenate([one, empty]), two)
    assert observed.queued == 0.0
    assert observed.service.entry.tolist() == [10.0] * 4


def observed(hold: float, *, handover: float = 100.0, queued: float = 0.8) -> Observed:
    return Observed(
        service=Service(
            entry=np.array([20.0]),
            hold=np.array([hold * 0.5, hold * 1.5]),
            handover=np.array([handover]),
            place=np.array([0.0, 2.0]),
            after=np.array([300.0]),
        ),
        latency=np.array([1_000.0]),
        queued=queued,
    )


def calibration(
    workers: Sequence[int], holds: Sequence[float], *, job_ms: float = 0.0
) -> Calibration:
    return Calibration(
        job_ms=job_ms,
        workers=tuple(workers),
        observed=tuple(observed(hold) for hold in holds),
        cpu_us=tuple(700.0 for _ in workers),
    )


def hold(of: Calibration, workers: float, job_ms: float = 0.0) -> float:
    return float(of.service(workers, job_ms).hold.mean())


def test_a_term_grows_by_its_step_for_each_doubling_and_by_half_of_it_beyond() -> None:
    known = calibration((4, 8), (300.0, 340.0))

    assert hold(known, 4) == pytest.approx(300.0)
    assert hold(known, 2) == pytest.approx(260.0)
    assert hold(known, 16) == pytest.approx(360.0)


def test_more_workers_make_nothing_shorter() -> None:
    known = calibration((4, 8), (340.0, 300.0))

    assert hold(known, 2) == hold(known, 16) == pytest.approx(320.0)


def test_a_steep_line_never_leaves_what_was_measured_by_far() -> None:
    known = calibration((4, 8), (100.0, 400.0))

    assert hold(known, 256) == pytest.approx(800.0)
    assert hold(known, 1) == pytest.approx(50.0)


def test_the_shape_of_a_term_stays_and_its_mean_moves() -> None:
    carried = calibration((4, 8), (300.0, 340.0)).service(16, 0.0).hold

    assert carried.max() / carried.min() == pytest.approx(3.0)


def test_longer_jobs_are_fewer_workers_at_the_lock() -> None:
    known = calibration((4, 8), (300.0, 340.0), job_ms=5.0)

    assert known.equivalent(8, 5.0) == 8
    assert known.equivalent(80, 59.0) == pytest.approx(8.0)
    assert known.equivalent(2, 1_000.0) == 1.0


def test_where_nobody_waits_no_hand_over_is_believed() -> None:
    known = Calibration(
        job_ms=0.0,
        workers=(1, 8),
        observed=(observed(200.0, handover=9_000.0, queued=0.01), observed(300.0)),
        cpu_us=(400.0, 700.0),
    )

    assert float(known.service(8, 0.0).handover.mean()) == pytest.approx(100.0)


def test_while_each_worker_has_a_core_what_follows_the_lock_is_as_alone() -> None:
    alone = observed(200.0)
    lonely = Observed(
        service=Service(
            entry=alone.service.entry,
            hold=alone.service.hold,
            handover=alone.service.handover,
            place=alone.service.place,
            after=np.array([120.0]),
        ),
        latency=alone.latency,
        queued=0.0,
    )
    known = Calibration(
        job_ms=0.0,
        workers=(4, 8),
        observed=(observed(300.0), observed(340.0)),
        cpu_us=(700.0, 700.0),
        alone=lonely,
        cores=2,
    )

    assert known.service(2, 0.0).after.tolist() == [120.0]
    assert float(known.service(3, 0.0).after.mean()) == pytest.approx(300.0)
