"""When a machine is too noisy for an answer, and what a run plans to do."""

from pathlib import Path

import numpy as np
import pytest

from killproof_bench.capacity import closed
from killproof_bench.capacity.closed import Cell, Looked, Recording
from killproof_bench.capacity.pool import Slice, Written
from killproof_bench.capacity.question import question
from killproof_bench.capacity.study import Plan, Study
from killproof_bench.crew import Calls
from killproof_bench.machine import Moment
from killproof_bench.recording import COLUMNS, Call, Kind
from killproof_bench.result import Correctness

SECOND = 1_000_000_000


def plan(*, job_ms: float = 5.0, budget: float = 220.0) -> Plan:
    asked = question(
        slos=(), rate_text=None, peak=1.0, job_ms=job_ms, workers=None, growth_text=None
    )
    return Plan(question=asked, durability="power", budget_seconds=budget, seed=1)


def calls_of(counts: list[int]) -> Calls:
    """Return so many calls in each second."""
    ends = np.concatenate(
        [second * SECOND + np.arange(1, count + 1) for second, count in enumerate(counts)]
    )
    rows = np.zeros((len(ends), COLUMNS), dtype=np.int64)
    rows[:, Call.END], rows[:, Call.KIND] = ends, Kind.ACK_AND_CLAIM
    return rows


def study(*, foreign: float = 0.05, unsteady: Cell | None = None) -> Study:
    made = Study(plan(), Path(), {}, command="", tick=lambda text, done: None)
    looked: list[Looked] = []
    counts: list[int] = []
    for block in range(4):
        for cell in (*made.plan.calibrated, *made.plan.held_out):
            begin = len(looked) * SECOND
            part = Slice(begin_ns=begin, end_ns=begin + SECOND, ended=())
            looked.append(Looked(block=block, cell=cell, slice=part, foreign=foreign))
            counts.append(1_000 if cell == unsteady and block % 2 else 100)
    made.recording = Recording(
        looked=tuple(looked),
        written=Written(accounts=(), calls=(calls_of(counts),), served=()),
        facts={},
        raw_rates=(7_000.0,),
        correctness=Correctness(verdict="pass", because=(), jobs=1),
        jobs_seeded=1,
        interrupted=False,
    )
    return made


def test_a_quiet_and_steady_machine_is_fit() -> None:
    assert study().unfit() == ()


def test_where_others_use_the_processor_there_is_no_answer() -> None:
    assert any("other programs used over 25%" in reason for reason in study(foreign=0.4).unfit())


def test_a_load_that_does_not_repeat_gives_no_answer() -> None:
    (reason,) = study(unsteady=Cell(workers=8, job_ms=5.0)).unfit()

    assert reason == "8 workers with 5 ms jobs did 100 jobs/s in one second and 1,000 in another"


def test_a_held_out_load_that_does_not_repeat_is_no_reason() -> None:
    """It is what the model is tried on: its error shows it."""
    assert study(unsteady=Cell(workers=16, job_ms=5.0)).unfit() == ()


def moment(*, busy: int, ticks: int, own: float, steal: int = 0) -> Moment:
    return Moment(
        busy_ticks=busy,
        steal_ticks=steal,
        all_ticks=ticks,
        own_seconds=own,
        load=0.0,
        pressure_cpu=0.0,
        pressure_io=0.0,
    )


def test_what_the_supervisor_uses_is_not_foreign_and_what_the_hypervisor_takes_is() -> None:
    before, nothing = moment(busy=0, ticks=0, own=0.0), Slice(begin_ns=0, end_ns=SECOND, ended=())

    own = moment(busy=100, ticks=200, own=1.0)
    assert closed.foreign_share(before, own, nothing) == pytest.approx(0.0, abs=0.01)
    stolen = moment(busy=100, ticks=200, own=1.0, steal=60)
    assert closed.foreign_share(before, stolen, nothing) == pytest.approx(0.3, abs=0.01)


def test_the_model_is_tried_on_half_and_on_twice_of_what_it_sees() -> None:
    made = plan()

    assert {cell.workers for cell in made.held_out} == {2, 16}
    assert not set(made.held_out) & set(made.calibrated)
    assert made.calibrate[0] == 2 * 2
    assert 2 * made.calibrate[-1] == 16


def test_each_block_has_each_load_once_and_the_same_seed_the_same_order() -> None:
    made = plan()
    cells = (*made.calibrated, *made.held_out)
    order = list(closed.order(cells, 3, seed=7))

    assert order == list(closed.order(cells, 3, seed=7))
    for block in range(3):
        assert sorted(map(repr, (cell for at, cell in order if at == block))) == sorted(
            map(repr, cells)
        )


def test_what_was_disturbed_is_measured_once_more_and_not_without_end() -> None:
    quiet, noisy = study().recording, study(foreign=0.4).recording
    assert quiet is not None
    assert noisy is not None

    assert list(closed.again(quiet.looked, 4)) == []
    once = list(closed.again(noisy.looked, 4))
    assert once == [(4, each.cell) for each in noisy.looked[: len(once)]]
    assert len(once) == round(closed.AGAIN_MAX * len(noisy.looked))


def test_long_jobs_are_modelled_by_short_ones() -> None:
    assert plan(job_ms=200.0).work_ms == 5.0
    assert plan(job_ms=8.0).work_ms == 8.0


def test_a_larger_budget_measures_more_often_and_a_small_one_often_enough() -> None:
    assert plan(budget=60.0).blocks == 2
    assert plan(budget=220.0).blocks > 4
    assert plan(budget=3_600.0).blocks == 12
