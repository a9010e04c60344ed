"""The production checklist: each line can be seen good, and seen bad."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from killproof import Host, Lease, ManualClock, Queue, checklist, pausing
from killproof.backup import backup
from killproof.effects import Effect, Ledger
from killproof.limits import Limits
from killproof.maintenance import Check

Sql = Callable[..., list[tuple[object, ...]]]
DAY = 86_400.0


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def found(queue: Queue, name: str) -> Check:
    return next(check for check in checklist.checks(queue) if check.name == name)


def test_every_line_of_the_checklist_is_there(queue: Queue) -> None:
    """Covers S0.68, S0.69, S0.70, S0.71."""
    assert [check.name for check in checklist.checks(queue)] == [
        "volume", "claims", "retries", "rescue", "effects", "errors", "alert", "backup"
    ]  # fmt: skip


def test_every_line_that_is_not_well_says_what_to_do(queue: Queue, clock: ManualClock) -> None:
    """Covers S0.72, S0.73, S0.74, S0.75."""
    queue.enqueue("k", 1, retry="immediate")
    clock.advance(DAY)
    unwell = [check for check in checklist.checks(queue) if check.status != "ok"]

    assert {check.name for check in unwell} >= {"retries", "rescue", "backup"}
    assert all(check.remedy for check in unwell)


def test_a_file_in_a_containers_own_layer_is_noticed(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:1 / / rw - overlay overlay rw\n")
    monkeypatch.setattr("killproof.core.barrier.MOUNTS", mounts)
    monkeypatch.setattr(checklist, "CONTAINER_MARKS", (mounts,))
    assert found(queue, "volume").status == "warn"
    mounts.write_text(
        "1 0 0:1 / / rw - overlay overlay rw\n"
        f"2 1 8:1 / {Path(queue.path).parent} rw - ext4 /dev/vda rw\n"
    )

    assert found(queue, "volume").status == "ok"


def test_the_container_of_the_examples_keeps_the_file_on_a_volume_and_gets_its_signals() -> None:
    """Covers S0.7, S0.67, S0.68: as far as reading it tells."""
    lines = (Path(__file__).parents[2] / "examples/container/Dockerfile").read_text().splitlines()

    assert "VOLUME /data" in lines
    assert any(line.startswith("ENV KILLPROOF_DB=/data/") for line in lines)
    assert 'CMD ["killproof", "work", "first_jobs", "--grace", "30", "--log-format", "json"]' in (
        lines
    )
    assert lines.index("USER worker") < lines.index("VOLUME /data")


@pytest.mark.parametrize("options", [{"retry": "immediate"}, {"max_attempts": 101}])
def test_retries_without_a_delay_or_an_end_are_noticed(
    queue: Queue, options: dict[str, object]
) -> None:
    queue.enqueue("k", 1)
    assert found(queue, "retries").status == "ok"
    queue.enqueue("hasty", 1, **options)  # type: ignore[arg-type]  # One of two options.

    assert "'hasty'" in found(queue, "retries").text


@pytest.fixture
def worker(queue: Queue, clock: ManualClock) -> Iterator[Queue]:
    with Queue(queue.path, host=Host(clock=clock)) as worker:
        worker.claim()
        yield worker


def test_jobs_of_the_dead_need_somebody_who_takes_them_back(
    queue: Queue, worker: Queue, clock: ManualClock
) -> None:
    queue.enqueue("k", 1)
    claimed(worker)
    assert "1 worker at work" in found(queue, "rescue").text
    assert worker.database.liveness is not None
    worker.database.liveness.release()

    assert found(queue, "rescue").text == (
        "1 job held by dead workers, and nobody to take them back"
    )


def test_jobs_that_wait_while_nobody_works_are_noticed(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("k", 1)
    assert found(queue, "rescue").status == "ok"
    clock.advance(61)

    assert "a job has waited for 1 min 1 s" in found(queue, "rescue").text


def test_an_effect_in_doubt_is_noticed(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("k", 1)
    lease = claimed(queue)

    def fails(key: str) -> None:
        assert found(queue, "effects").status == "ok"  # Reserved by a lease that lives.
        raise TimeoutError

    with pytest.raises(TimeoutError):
        Ledger(queue, lease, clock=clock).apply(
            Effect(scope="s", key="x", function=fails, in_doubt="held")
        )

    assert "1 effect in doubt" in found(queue, "effects").text


def test_a_dead_letter_without_its_error_is_noticed(queue: Queue, sql: Sql) -> None:
    queue.enqueue("k", 1)
    queue.nack(claimed(queue), "no", permanent=True)
    assert found(queue, "errors").status == "ok"
    assert "1 dead letter waiting" in found(queue, "alert").text
    sql("DELETE FROM attempt")

    assert found(queue, "errors").status == "warn"


def test_a_backup_that_is_missing_gone_or_old_is_noticed(
    queue: Queue, place: Path, clock: ManualClock
) -> None:
    assert "no backup of this file" in found(queue, "backup").text
    done = backup(queue, place)
    assert found(queue, "backup").status == "ok"
    clock.advance(3 * DAY)
    assert "3 d ago" in found(queue, "backup").text
    Path(done.path).unlink()

    assert "not there any more" in found(queue, "backup").text


#: A worker that claims and waits; the kernel tells of its process.
WORKER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
from killproof import Queue
with Queue(sys.argv[1]) as queue:
    queue.claim()
    more = [open("/dev/null") for _ in range(int(sys.argv[2]))]
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(("more", "status"), [(0, "ok"), (16, "warn")])
def test_a_worker_that_runs_out_of_open_files_is_noticed(
    queue: Queue, more: int, status: str
) -> None:
    queue.enqueue("k", 1)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, queue.path, str(more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        check = found(queue, "descriptors")
        worker.communicate(b"end\n")

    assert (check.status, f"process {worker.pid} has " in check.text) == (status, True)
    assert " of 32 files open" in check.text


def test_what_is_closed_by_hand_or_rests_after_failures_is_noticed(queue: Queue) -> None:
    limits = Limits(queue)
    limits.set("shop", kinds=["scrape"], running=1)
    limits.breaker("shop", failures=1, pause=60)
    assert found(queue, "limits").status == "ok"
    queue.enqueue("scrape", 1)
    queue.nack(claimed(queue), "no")
    assert "limit 'shop' lets nothing start (its breaker is open)" in found(queue, "limits").text
    limits.open("shop")
    limits.close("shop", None, "moving house")
    assert "(closed: moving house)" in found(queue, "limits").text
    limits.open("shop")
    assert found(queue, "limits").status == "ok"

    pausing.pause(queue, "mail")
    check = found(queue, "pauses")
    assert (check.status, check.remedy) == ("warn", "killproof resume mail")
