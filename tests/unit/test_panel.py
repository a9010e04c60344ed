"""The panel: what it shows of a queue, and what it leaves alone."""

import io
import json
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from killproof import ManualClock, Queue, StorageFailed, cli_panel, panel
from killproof.core.errors import FileRefused
from killproof.panel import Look, Reader, Showing
from tests.unit.conftest import Run, Sql


def fill(queue: Queue, clock: ManualClock) -> None:
    """Some jobs in most states; what failed had one retry, or none."""
    for number in range(7):
        job_id = queue.enqueue("fetch", number, max_attempts=2, retry="immediate", priority=0)
        for _ in range(2):
            lease = queue.claim()
            assert lease is not None
            assert lease.job.id == job_id
            queue.nack(lease, ValueError(f"HTTP 503 number {number} " + "x" * 200))
        clock.advance(1)
    for number in range(3):
        queue.enqueue("report", number)
        lease = queue.claim()
        assert lease is not None
        queue.ack(lease)
    queue.enqueue("report", None)
    assert queue.claim() is not None
    queue.enqueue("report", None)
    clock.advance(5)


def test_a_look_has_counts_mean_retries_and_the_latest_failures(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S1.45, S1.46. The errors are cut at 80 characters."""
    fill(queue, clock)
    look = Reader(queue).look(slots=3, slots_used=1)

    assert {one.state: (one.count, one.retries) for one in look.states} == {
        "available": (1, 0.0),
        "leased": (1, 0.0),
        "retryable": (0, None),
        "succeeded": (3, 0.0),
        "dead": (7, 1.0),
    }
    assert [(died.job_id, died.kind, died.retries) for died in look.latest_failures] == [
        (7, "fetch", 1),
        (6, "fetch", 1),
        (5, "fetch", 1),
        (4, "fetch", 1),
        (3, "fetch", 1),
    ]
    assert look.latest_failures[0].error.startswith("ValueError: HTTP 503 number 6 xxx")
    assert all(len(died.error) == 80 for died in look.latest_failures)
    assert look.oldest_waiting_ms == 5_000
    assert (look.slots, look.slots_used) == (3, 1)


def test_rates_are_of_the_latest_minute_and_of_the_time_between_looks(
    queue: Queue, clock: ManualClock
) -> None:
    reader = Reader(queue)
    first = reader.look()
    fill(queue, clock)  # 12 jobs in 12 s.
    second = reader.look()

    assert first.enqueued_per_second is None
    assert second.enqueued_per_second == 1.0
    assert second.succeeded_per_second == 3 / 60
    assert second.died_per_second == 7 / 60
    clock.advance(61)
    assert reader.look().died_per_second == 0


def test_a_look_takes_no_lock_and_works_while_somebody_holds_the_writers(
    queue: Queue, clock: ManualClock
) -> None:
    """F60: nor does it leave a snapshot open."""
    fill(queue, clock)
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        look = Reader(queue).look()
        other.execute("ROLLBACK")
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    assert (look.slots, look.slots_used, busy) == (None, 1, 0)


def test_a_row_without_an_error_and_one_with_control_characters_end_no_panel(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    """F37."""
    fill(queue, clock)
    sql("UPDATE job SET error_class = NULL, error_message = NULL WHERE id = 7")
    sql("UPDATE job SET kind = 'a' || char(27) || '[2J', error_message = 'x' || char(10) || 'y'")
    look = Reader(queue).look()
    lines = panel.block(look)

    assert "job 7 a\\x1b[2J after 1 retries: Error: x\\ny" in lines
    assert "\x1b" not in lines
    sql("UPDATE job SET error_message = NULL WHERE id = 7")
    assert Reader(queue).look().latest_failures[0].error == "Error"


def test_the_lines_have_a_sign_and_a_word_for_each_state(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    """Covers S1.45, S1.47. The article's signs, and its question mark for the rest; every 30 s."""
    fill(queue, clock)
    queue.enqueue("later", None, delay=60)
    sql("UPDATE job SET state = 'held' WHERE id = 12")
    written: list[str] = []
    shown = panel.Lines(written.append)
    shown.show(Reader(queue).look(slots=3, slots_used=1))

    lines = written[0].splitlines()
    assert shown.seconds == 30.0
    assert lines[0].endswith("queue.db")
    assert lines[1:9] == [
        "⏳ scheduled         1  0.0 retries on average",
        "⏳ available         0",
        "🔄 leased            1  0.0 retries on average",
        "🔁 retryable         0",
        "❓ held              1  0.0 retries on average",
        "✅ succeeded         3  0.0 retries on average",
        "❌ dead              7  1.0 retries on average",
        "done 0.1/s | died 0.1/s | oldest waiting: nothing | slots: 1 of 3",
    ]
    assert len(lines) == 14
    assert "⏳" not in panel.block(Reader(queue).look(), with_signs=False)


def test_the_drawing_says_the_same_without_colour(queue: Queue, clock: ManualClock) -> None:
    fill(queue, clock)
    console = Console(file=io.StringIO(), width=90, no_color=True)
    console.print(cli_panel.drawing(Reader(queue).look(slots=3, slots_used=1)))
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()

    assert "❌   dead" in drawn
    assert "1.0" in drawn
    assert "slots: 1 of 3" in drawn
    assert "latest failures" in drawn
    assert "[bold]" not in drawn


class Failing:
    """A panel that fails as often as the test says, and then leaves a word."""

    seconds = 0.0

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.shown = threading.Event()

    def show(self, look: Look) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.shown.set()


def test_a_panel_that_fails_is_shown_again_and_nothing_else_notices(queue: Queue) -> None:
    """F2: reporting never stops the work."""
    failing = Failing([OSError("broken pipe"), ValueError("drawn wrongly")])
    with Showing(queue, failing):
        assert failing.shown.wait(60)


def test_a_failed_disk_ends_the_panel_and_is_told(queue: Queue) -> None:
    told: list[StorageFailed] = []
    over = threading.Event()

    def tell(error: StorageFailed) -> None:
        told.append(error)
        over.set()

    failing = Failing([StorageFailed("EIO")])
    with Showing(queue, failing, on_storage_failed=tell):
        assert over.wait(60)

    assert not failing.shown.is_set()
    assert len(told) == 1


# The command.


def test_a_panel_for_programs_is_an_object_in_a_line(run: Run) -> None:
    run("enqueue", "k", "1")
    code, out, err = run("panel", "--once", "--json")

    look = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert {one["state"]: one["count"] for one in look["states"]}["available"] == 1


def test_a_panel_in_a_pipe_is_plain_lines(run: Run) -> None:
    run("enqueue", "k", "1")
    code, out, _ = run("panel", "--once")

    assert code == 0
    assert "available         1" in out
    assert "\x1b" not in out


def test_a_terminal_that_moves_no_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with cli_panel.shown() as shown:
        assert isinstance(shown, panel.Lines)


def test_watching_ends_in_order_when_it_is_interrupted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Showing) -> float:
        signal.raise_signal(signal.SIGTERM)
        return 0.0

    run("enqueue", "k", "1")
    monkeypatch.setattr(Showing, "step", interrupt)
    before = signal.getsignal(signal.SIGTERM)

    assert run("status", "--watch")[0] == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_panel_on_a_file_that_is_gone_ends_instead_of_showing_what_was(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(queue.path)

    class Taken:
        seconds = 0.001

        def show(self, look: Look) -> None:
            path.rename(path.with_name("away.db"))

    @contextmanager
    def shown(seconds: float | None, *, as_json: bool) -> Iterator[Taken]:
        yield Taken()

    monkeypatch.setattr(cli_panel, "shown", shown)
    with pytest.raises(FileRefused, match="is gone"):
        cli_panel.watch(path, every=None, is_once=False, as_json=False)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("panel",), "does not exist"),
        (("panel", "--every", "soon"), "--every 'soon' is no time"),
        (("status", "--watch", "--alert", "dead"), "--watch and --alert exclude each other"),
    ],
)
def test_what_can_not_be_watched_is_one_line(run: Run, command: tuple[str, ...], text: str) -> None:
    code, out, err = run(*command)

    assert (code, out) == (64, "")
    assert text in err
    assert err.count("\n") == 1
