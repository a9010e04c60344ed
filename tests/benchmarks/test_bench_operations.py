"""The single figures, run small on real processes and real files."""

import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from killproof import Host, ManualClock, Queue, cli
from killproof_bench import report_rows
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.operations.bare_arms import ARMS, Arm, Bare, Killproof
from killproof_bench.operations.meters import OTHER_STATEMENTS, Meter, MeteredConnections
from killproof_bench.operations.meters import STATEMENTS as OF_A_JOB
from killproof_bench.operations.spending_loop import STATEMENTS
from killproof_bench.scenarios import bare, enqueue, idle, rows
from killproof_bench.scenarios.claim import make_template
from killproof_bench.seeding import OTHER_STATES, seed_states

ENVIRONMENT = {"filesystem": "ext4", "cpu": "2 cores", "python": "3.11"}


def quiet(*_: object) -> None:
    """Show nothing."""


@pytest.fixture(autouse=True)
def _short_looks_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for scenario in (bare, enqueue, idle):
        short = partial(raw_syncs_per_second, seconds=0.01)
        monkeypatch.setattr(scenario, "raw_syncs_per_second", short)


def test_the_bare_loop_executes_what_a_job_of_killproof_executes_and_nothing_else(
    place: Path,
) -> None:
    """Else the comparison flatters one of them: `bare_arms` has to follow the core."""
    ours, bare_meter = Meter(STATEMENTS), Meter(STATEMENTS)
    file, other = (make_template(place, "process", 9).rename(place / n) for n in ("a.db", "b.db"))
    # With a clock that stands still nobody looks for dead workers.
    host = Host(clock=ManualClock(), connect=ours.connect)
    arms: list[tuple[Arm, Meter]] = [
        (Killproof(str(file), host), ours),
        (
            Bare(str(other), "NORMAL", own_sync=False, connections=MeteredConnections(bare_meter)),
            bare_meter,
        ),
    ]
    for arm, meter in arms:
        arm.claim_ack(1)
        meter.clear()
        arm.claim_ack(2)
        assert (meter.calls[OF_A_JOB], meter.calls[OTHER_STATEMENTS]) == (2 * len(STATEMENTS), 0)
        meter.clear()
        arm.ack_and_claim(2)
        assert (meter.calls[OF_A_JOB], meter.calls[OTHER_STATEMENTS]) == (
            2 * len(STATEMENTS) + 3,  # The first claim comes before the loop.
            0,
        )
        arm.close()


def test_one_worker_and_the_bare_loops_are_measured_in_turns_and_judged(place: Path) -> None:
    plan = bare.Plan(
        durabilities=("power",),
        operations=("claim, ack",),
        repeats=1,
        slices=2,
        slice_jobs={"power": 20},
    )

    (found,) = bare.run(place, plan, environment=ENVIRONMENT, tick=quiet)
    (spent,) = bare.spend(place, plan, tick=quiet)

    assert [arm.arm for arm in found.arms] == list(ARMS["power"])
    assert found.correctness.verdict == "pass"
    assert found.correctness.jobs == 3 * 3 * 20  # Three arms; the warm-up is judged as well.
    # Killproof commits at NORMAL and syncs by itself; so does one of the bare loops.
    assert [arm.card.synchronous for arm in found.arms] == ["NORMAL", "NORMAL", "FULL"]
    assert {cost.part: cost.calls for cost in spent.bare}["fdatasync of the log"] == 2.0
    assert not list(place.glob("*.db")), "files are left behind"


def test_jobs_put_in_by_every_arm_are_in_the_file_once_and_in_order(place: Path) -> None:
    plan = enqueue.Plan(
        durabilities=("process",), repeats=1, slices=2, batch=10, producers=2, producer_seconds=0.1
    )

    *batches, single = enqueue.run(place, plan, environment=ENVIRONMENT, tick=quiet)

    for found in batches:
        assert found.correctness.verdict == "pass", found.correctness.because
        assert found.correctness.jobs == 3 * 3 * 10
    assert single.correctness.verdict == "pass", single.correctness.because
    assert [arm.card.synchronous for arm in single.arms] == ["NORMAL", "FULL"]
    assert all(arm.per_s.n > 0 for arm in single.arms)


def test_an_idle_worker_starts_a_job_of_another_process_and_is_watched_before(
    place: Path,
) -> None:
    plan = idle.Plan(
        files=1,
        workers=1,
        jobs=12,
        pause_seconds=0.01,
        settle_seconds=0.1,
        idle_seconds=0.2,
        durability="process",
    )

    found = idle.run(place, plan, environment=ENVIRONMENT, tick=quiet)

    assert found.correctness.verdict == "pass", found.correctness.because
    assert found.start_p50_ms.n == 12
    assert found.start_max_ms > 0
    assert found.write_transactions == 0
    assert found.log_changes == 0


def test_seeded_rows_hold_all_rules_of_the_schema(place: Path) -> None:
    """Seeding skips the checks; `integrity_check` makes up for it."""
    path = place / "seeded.db"
    with Queue(path, durability="process") as queue:
        queue.enqueue("bench", {})
        queue.claim()
        assert queue.worker_id is not None
        counts = dict.fromkeys(("available", *OTHER_STATES), 30)
        seed_states(
            path,
            counts,
            queue.host.clock.now_ms(),
            owner=queue.worker_id,
            monotonic_ns=queue.host.clock.monotonic_ns(),
            told=quiet,
        )
        found = queue.counts()

    assert {state: found[state] for state in counts} == counts | {"leased": 31}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        outcomes = dict(connection.execute("SELECT outcome, count(*) FROM attempt GROUP BY 1"))
    assert outcomes == {"succeeded": 30, "failed": 30, "released": 31}  # The last by the close.


def test_steps_do_not_depend_on_the_backlog(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROW_FROM", 500)
    monkeypatch.setattr(rows, "TIMED_CALLS", 20)

    axis, facts = rows.grow(place, states=("available",), rows=5_000, tick=quiet)

    assert facts["synchronous"] == "NORMAL"
    assert axis.rows_large == 5_000
    for cost in axis.costs:
        assert abs(report_rows.steps_change(cost)) <= report_rows.STEPS_GOAL, cost
    assert not list(place.glob("*.db*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("bare", "--repeats", "0"),
        ("enqueue", "--producers", "999"),
        ("idle", "--jobs", "0"),
        ("operations", "--repeats", "0"),
        ("rows", "--rows", "9"),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_name(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["killproof", "bench", *arguments])

    assert cli.main() == 64
    assert arguments[1] in capsys.readouterr().err
