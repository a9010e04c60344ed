"""Where a claim's time goes, and how long the lock lay idle while somebody wanted it."""

import numpy as np
import pytest

from killproof_bench.anatomy import Parts, anatomy, parts, timeline
from killproof_bench.load import Ended
from killproof_bench.measure import Samples
from killproof_bench.recording import COLUMNS, Call, Kind

MS = 1_000_000


def calls(*rows: dict[Call, float]) -> Samples:
    """Make rows of milliseconds; what is not given is 0."""
    made = np.zeros((len(rows), COLUMNS), dtype=np.int64)
    for row, given in zip(made, rows, strict=True):
        for column, value in given.items():
            row[column] = round(value * MS)
        row[Call.KIND], row[Call.JOBS] = Kind.ACK_AND_CLAIM, 1
    return made


def call(asked: float, lock: float, committed: float, *, checkpoint: float = 0.0) -> Samples:
    """A call of which 1 ms before, 1 ms after, and 0.5 ms of commit are known."""
    return calls(
        {
            Call.BEGIN: asked - 1,
            Call.ASKED: asked,
            Call.LOCK: lock,
            Call.WRITTEN: committed - 0.5,
            Call.COMMITTED: committed,
            Call.CHECKPOINT: checkpoint,
            Call.SYNCED: committed + checkpoint + 2,
            Call.END: committed + checkpoint + 3,
        }
    )


def test_the_lock_is_idle_while_wanted_from_one_commit_to_the_next_lock() -> None:
    # The second waits from 11; the lock is free from 14 and taken at 17.
    line = timeline([call(10, 10, 14), call(11, 17, 20)], 0, 100 * MS)

    assert line.held_ns == 7 * MS
    assert line.wanted_idle_ns == 3 * MS


def test_a_checkpoint_holds_the_lock_too() -> None:
    line = timeline([call(10, 10, 14, checkpoint=2), call(11, 17, 20)], 0, 100 * MS)

    assert (line.held_ns, line.wanted_idle_ns) == (9 * MS, 1 * MS)


def test_only_the_measured_time_counts() -> None:
    line = timeline([call(10, 10, 14), call(11, 17, 20)], 12 * MS, 18 * MS)

    assert (line.held_ns, line.wanted_idle_ns) == (3 * MS, 3 * MS)


def test_the_parts_of_a_call_add_up_to_the_whole() -> None:
    first, second = call(10, 10, 14), call(11, 17, 20, checkpoint=1)
    split = parts([first, second], [], 0, 100 * MS)

    assert split is not None
    assert split.total.tolist() == [8 * MS, 14 * MS]
    assert split.python.tolist() == [2 * MS, 2 * MS]
    assert split.wait.tolist() == [0, 6 * MS]
    assert split.wait_idle.tolist() == [0, 3 * MS]
    whole = split.python + split.wait + split.sql + split.commit + split.checkpoint + split.sync
    assert whole.tolist() == split.total.tolist()


def test_a_producer_holds_the_lock_but_is_no_claim() -> None:
    split = parts([call(11, 17, 20)], [call(10, 10, 14)], 0, 100 * MS)

    assert split is not None
    assert split.total.tolist() == [13 * MS]
    assert split.wait_idle.tolist() == [3 * MS]


def test_calls_that_nobody_timed_have_no_anatomy() -> None:
    untimed = calls({Call.BEGIN: 1, Call.END: 2})

    assert parts([untimed], [], 0, 100 * MS) is None
    assert anatomy([], [], 0, counts_retries=True) is None


def test_the_means_of_several_rounds_are_per_call_and_the_processor_per_job() -> None:
    rounds: list[Parts] = []
    for made in (call(10, 10, 14), call(11, 17, 20)):
        split = parts([made], [], 0, 10 * MS + 10 * MS)
        if split is not None:
            rounds.append(split)
    ended = Ended(
        worker="a",
        error=None,
        ran_dry=False,
        late=0,
        skipped=0,
        user_ns=600_000,
        system_ns=200_000,
        run_delay_ns=100_000,
        switches=6,
    )
    found = anatomy(rounds, [ended], 2, counts_retries=False)

    assert found is not None
    assert found.calls == 1, "the second had not ended when the measured time was over"
    assert (found.user_us, found.system_us, found.run_delay_us) == (300.0, 100.0, 50.0)
    assert (found.switches, found.retries) == (3.0, None)
    assert found.total_ms == pytest.approx(8.0)
    assert found.lock_held == pytest.approx(4 / 20)
