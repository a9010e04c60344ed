"""What the report of growing files says, from figures made up."""

import pytest

from killproof_bench import report_rows
from killproof_bench.page import kinds
from killproof_bench.result import Figure, Noise, OperationCost
from killproof_bench.rows_result import SCHEMA, Axis, GrowthResult, from_json, to_json

QUIET = Noise(
    noisy=False,
    because=(),
    steal=0.0,
    foreign_cpu=0.0,
    load_before=0.1,
    load_after=1.0,
    pressure_cpu_before=0.0,
    pressure_io_before=0.0,
    raw_spread=1.0,
)


def growth(*, steps_large: float = 102.0, us_large: float = 120.0) -> GrowthResult:
    cost = OperationCost(
        operation="claim",
        steps_small=100.0,
        steps_large=steps_large,
        us_small=100.0,
        us_large=us_large,
        time_ratio=Figure(value=us_large / 100.0, low=1.0, high=2.0, n=400),
    )
    axis = Axis(
        states=("available",),
        rows_small=10_000,
        rows_large=1_000_000,
        file_bytes=1 << 28,
        seeding_seconds=2.0,
        calls=400,
        costs=(cost,),
    )
    return GrowthResult(
        schema=SCHEMA,
        command="killproof bench rows",
        seed=1,
        started="2026-11-30T10:00:00+00:00",
        interrupted=False,
        environment={"cpu": "2 cores"},
        noise=QUIET,
        durability="process",
        raw=(5_000.0, 4_900.0),
        journal_mode="wal",
        synchronous="NORMAL",
        autocheckpoint=0,
        axes=(axis,),
        verdict="pass",
        sentence=report_rows.sentence((axis,)),
    )


def test_a_cost_within_both_goals_is_called_flat() -> None:
    result = growth()

    assert result.sentence.startswith("Flat: from 10,000 to 1,000,000 rows in available")
    assert "| yes | yes |" in report_rows.markdown(result)


@pytest.mark.parametrize(
    ("result", "row"),
    [
        (growth(steps_large=106.0), "| **no** | yes |"),
        (growth(steps_large=94.0), "| **no** | yes |"),
        (growth(us_large=131.0), "| yes | **no** |"),
    ],
)
def test_more_steps_or_more_time_is_not_flat(result: GrowthResult, row: str) -> None:
    assert result.sentence.startswith("Not flat")
    assert row in report_rows.markdown(result)


def test_the_report_of_rows_says_under_which_conditions_and_what_it_does_not_show() -> None:
    text = report_rows.markdown(growth())

    assert "| raw fdatasync/s, before and after | 5,000, 4,900 |" in text
    assert "| synchronous | NORMAL |" in text
    assert "## What this does not show" in text


def test_a_recorded_growth_comes_back_whole_and_has_a_page() -> None:
    result = growth()

    assert from_json(to_json(result)) == result
    assert kinds.read(to_json(result)) == result
    with pytest.raises(ValueError, match="schema"):
        from_json('{"schema": 99}')
