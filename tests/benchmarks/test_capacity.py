"""The capacity run, small, on real processes and real files."""

import sys
from pathlib import Path

import numpy as np
import pytest

from killproof import Queue, cli
from killproof_bench import ledger
from killproof_bench.capacity import search, terms
from killproof_bench.capacity.closed import within
from killproof_bench.capacity.pool import Pool, crowd, workers
from killproof_bench.crew import CrewError
from killproof_bench.recording import Call, Kind
from killproof_bench.scenarios.claim import stored
from killproof_bench.seeding import seed_available

BACKLOG = 20_000


def test_slices_of_all_kinds_follow_each_other_and_each_job_is_done_once(place: Path) -> None:
    """A closed loop, then producers with workers that wait; both leave their terms.

    Then Ctrl-C in a slice of ten minutes, which ends with the calls in flight.
    """

    def press() -> None:
        raise KeyboardInterrupt

    database = place / "queue.db"
    with Queue(database, durability="process") as queue:
        now_ms = queue.host.clock.now_ms()
    with Pool(database, 3, synchronous="NORMAL", seed=1) as pool:
        pool.wait_until_ready()
        seed_available(database, BACKLOG, now_ms)
        closed = pool.slice(workers(2), warmup_seconds=0.1, seconds=0.3, tick=lambda: None)
        orders = crowd(workers=2, producers=1, job_ms=0.0, rate_per_s=200.0, seeds=[7])
        offered = pool.slice(orders, warmup_seconds=0.1, seconds=0.3, tick=lambda: None)
        with pytest.raises(KeyboardInterrupt):
            pool.slice(workers(2), warmup_seconds=0.0, seconds=600.0, tick=press)
        written = pool.written()
        pool.finish()

    enqueued = [
        int(job)
        for rows in written.calls
        for job in rows[rows[:, Call.KIND] == Kind.ENQUEUE][:, Call.JOB]
    ]
    judged = ledger.judge(BACKLOG, written.accounts, stored(database), enqueued=enqueued)
    assert (judged.verdict, judged.because) == ("pass", ())
    observed = terms.observe([within(written, closed.begin_ns, closed.end_ns)], Kind.ACK_AND_CLAIM)
    assert observed is not None
    assert np.all(observed.service.hold > 0)
    assert np.all(observed.service.after > 0)
    assert enqueued
    # Jobs of the closed loop's backlog come first, so the new ones still wait: they count too.
    assert len(search.arrived(written, offered).intended) <= len(enqueued)
    assert [len(closed.ended), len(offered.ended)] == [2, 3]


def test_a_process_that_cannot_open_the_file_ends_the_run(place: Path) -> None:
    (place / "queue.db").write_bytes(b"this is no database" * 100)

    with (
        Pool(place / "queue.db", 1, synchronous="NORMAL", seed=1) as pool,
        pytest.raises(CrewError, match="ended with status"),
    ):
        pool.wait_until_ready()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--slo", "claim<5"), "--slo 'claim<5': write it as"),
        (("--rate", "many"), "--rate 'many': write it as 12/s"),
        (("--peak", "3"), "give --rate 12/s too"),
        (("--budget", "5"), "--budget 5: give a number from 60"),
    ],
)
def test_a_question_that_cannot_be_read_is_refused_before_anything_is_measured(
    options: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["killproof", "bench", "capacity", *options])

    assert cli.main() == 64
    assert told in capsys.readouterr().err
