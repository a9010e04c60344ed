"""Other users, other folders, other limits: what a queue meets outside of its author's home."""

import os
import resource
import subprocess
import sys
import tempfile
import time
import zoneinfo
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from killproof import FileRefused, Host, Job, ManualClock, Queue
from killproof.core import barrier, liveness, turnstile
from killproof.maintenance import doctor

SECONDS_MAX = 120.0
NOBODY = 65_534


def python(code: str, *arguments: str, **variables: str) -> str:
    """Run code in a process of its own, with these variables; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=os.environ | variables,
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)  # No finding: not for a control.
    return done.stdout.strip()


# The class of B80 and B82: files beside the database that others can not use.


@contextmanager
def umask(mask: int) -> Iterator[None]:
    former = os.umask(mask)
    try:
        yield
    finally:
        os.umask(former)


def masked(path: str) -> int:
    """Open a lock file as killproof did: the umask decides who may use it, and root owns it."""
    mode = os.stat(path.rpartition(".")[0]).st_mode & 0o666
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (turnstile, liveness):
        monkeypatch.setattr(module, "open_lock_file", masked)


def check_every_file_has_the_mode_of_the_database(place: Path) -> None:
    Queue(place / "q.db", durability="process").close()
    for path in place.glob("q.db?*"):
        path.unlink()
    (place / "q.db").chmod(0o660)  # Shared with the group of a web server, say.
    with umask(0o077), Queue(place / "q.db") as queue:
        queue.enqueue("kind", 1)
        assert queue.claim() is not None
        modes = {path.name: path.stat().st_mode & 0o777 for path in place.iterdir()}

    assert {"q.db-wal", "q.db.workers", "q.db.turnstile", "q.db.gate"} <= modes.keys()
    assert {name for name, mode in modes.items() if mode != 0o660} == set()


def test_a_strict_umask_of_whoever_comes_first_shuts_no_other_user_out(place: Path) -> None:
    check_every_file_has_the_mode_of_the_database(place)


@pytest.mark.usefixtures("unguarded")
def test_a_lock_file_made_under_the_umask_is_seen_to_shut_others_out(place: Path) -> None:
    """Control; this was killproof's own fault."""
    with pytest.raises(AssertionError, match=r"q\.db\.turnstile"):
        check_every_file_has_the_mode_of_the_database(place)


#: What a user without rights of root can still do; all is imported before the rights go.
AS_NOBODY = """
import os, sys
from killproof import FileRefused, Host, Job, ManualClock, Queue
from killproof.core import barrier
os.setgid(65534); os.setuid(65534)
with Queue(sys.argv[1]) as queue:
    job = queue.claim()
    word = queue.database._handle().turnstile._main._word
    print(bool(queue.database.liveness.file), word is not None)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that others can reach; the folders of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="killproof-test-", dir="/var/tmp") as folder:
        yield Path(folder)


def check_a_call_by_root_takes_nothing_from_the_owner(place: Path) -> None:
    path = place / "q.db"
    Queue(path, durability="process").close()
    for beside in place.glob("q.db?*"):
        beside.unlink()
    os.chown(place, NOBODY, NOBODY)
    os.chown(path, NOBODY, NOBODY)
    with Queue(path) as queue:  # As somebody does who looks at it with sudo.
        queue.enqueue("kind", 1)
        queue.claim()

    assert python(AS_NOBODY, str(path)) == "True True"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_a_call_by_root_does_not_take_the_quick_notice_of_death_from_the_owner(
    public: Path,
) -> None:
    check_a_call_by_root_takes_nothing_from_the_owner(public)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.usefixtures("unguarded")
def test_lock_files_that_root_keeps_are_seen_to_leave_the_lease_alone_to_decide(
    public: Path,
) -> None:
    """Control; this was killproof's own fault."""
    with pytest.raises(AssertionError, match="False False"):
        check_a_call_by_root_takes_nothing_from_the_owner(public)


# Names.

NAMES = ["with space", "größe ☃", "100%", "a?b#c", "it's", "line\nend", "\udcff no unicode", "-v"]


def check_a_folder_of_this_name_works(place: Path, name: str) -> None:
    folder = place / name
    folder.mkdir()
    path = folder / "q.db"
    with Queue(path) as queue:  # At level power: the log is opened by name, and checked by it.
        queue.enqueue("kind", 1)
        queue.enqueue("kind", 2)
        lease = queue.claim()
        assert lease is not None
        queue.ack(lease)
        assert queue.counts()["available"] == 1
    assert [check.text for check in doctor(path) if check.status == "fail"] == []
    assert not {file.name for file in folder.iterdir()} & {"q.db-wal", "q.db-shm"}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_folder_may_have_any_name(place: Path, name: str) -> None:
    check_a_folder_of_this_name_works(place, name)


def test_a_path_that_is_taken_for_an_address_is_seen_to_fail(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the doctor without its quoting."""
    monkeypatch.setattr("killproof.maintenance.quote", os.fsdecode)
    with pytest.raises(AssertionError):
        check_a_folder_of_this_name_works(place, "a?b#c")


# B86: a live job is reaped on a host that is not in UTC.

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Apia")


class LocalTime(ManualClock):
    """Reads the time of the wall, and takes it for UTC."""

    def now_ms(self) -> int:
        local = datetime.fromtimestamp(super().now_ms() / 1_000)
        return round(local.replace(tzinfo=UTC).timestamp() * 1_000)


@contextmanager
def zone(name: str) -> Iterator[None]:
    former = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        if former is not None:
            os.environ["TZ"] = former
        time.tzset()


def a_day_around_midnight(path: Path, make: type[ManualClock]) -> list[object]:
    """Return all that the queue says and stores over 26 hours, across two midnights."""
    clock = make(now_ms=1_719_791_999_000, ident="one")  # A second before July, UTC.
    said: list[object] = []
    with Queue(path, durability="process", host=Host(clock=clock)) as queue:
        queue.enqueue("live", 1, lease=30 * 60)
        queue.enqueue("soon", 2, run_at=datetime(2024, 7, 1, 12, tzinfo=UTC))
        queue.enqueue("late", 3, delay=25 * 3_600)
        live = queue.claim(["live"])
        assert live is not None
        for _ in range(26 * 4):
            clock.advance(15 * 60)
            live = queue.extend(live)
            said.append((queue.reap(), queue.wait(["soon", "late"], 0)))
            if (lease := queue.claim(["soon", "late"])) is not None:
                queue.ack(lease)
        said += queue.database.peek(
            "SELECT id, state, due_ms, claimed_ms, finished_ms, created_ms, updated_ms FROM job"
        )
        said += queue.database.peek("SELECT DISTINCT typeof(due_ms), typeof(created_ms) FROM job")
    return said


def check_every_zone_is_the_same(
    place: Path, make: type[ManualClock], zones: Sequence[str] = ZONES
) -> None:
    told = []
    with tempfile.TemporaryDirectory(dir=place) as folder:
        for number, name in enumerate(zones):
            with zone(name):
                told.append(a_day_around_midnight(Path(folder, f"{number}.db"), make))
    assert told[1:] == told[:1] * (len(zones) - 1)
    assert told[0][-1] == ("integer", "integer")


def test_the_zone_of_the_host_changes_nothing_in_a_day_around_midnight(place: Path) -> None:
    """B85, B86: text with an offset compared with text in UTC; a space that sorts below T."""
    check_every_zone_is_the_same(place, ManualClock)

    @settings(deadline=None, max_examples=2, derandomize=True, database=None)
    @given(st.lists(st.sampled_from(sorted(zoneinfo.available_timezones())), min_size=2))
    def each(zones: list[str]) -> None:
        check_every_zone_is_the_same(place, ManualClock, zones[:3])

    each()


def test_a_queue_that_stores_local_time_is_seen(place: Path) -> None:
    """B85, B86, control."""
    with pytest.raises(AssertionError):
        check_every_zone_is_the_same(place, LocalTime)


# Descriptors.


@contextmanager
def open_files(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def check_few_descriptors_are_enough(place: Path) -> None:
    path = place / "q.db"
    with Queue(path, durability="process") as queue:
        queue.enqueue("kind", 1)
    first = descriptors()
    # Room for one queue: a single descriptor left behind by each would be missed in time.
    with open_files(first + 16):
        for _ in range(20):
            with Queue(path) as queue:
                assert queue.claim() is not None
    assert descriptors() == first


def test_queues_that_come_and_go_live_within_a_small_limit_of_open_files(place: Path) -> None:
    check_few_descriptors_are_enough(place)


@pytest.mark.parametrize("leaking", [barrier.Barrier, turnstile.Turnstile, liveness.Liveness])
def test_a_descriptor_that_is_not_closed_is_seen_to_run_into_the_limit(
    place: Path, monkeypatch: pytest.MonkeyPatch, leaking: type[object]
) -> None:
    """Control."""
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(leaking, "close", lambda self: None)
    with pytest.raises((AssertionError, FileRefused)):
        check_few_descriptors_are_enough(place)
    for left in set(os.listdir("/proc/self/fd")) - before:
        with suppress(OSError):
            os.close(int(left))


def test_at_the_limit_the_error_names_it_and_the_queue_goes_on_when_files_are_closed(
    place: Path,
) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue("kind", 1)
        with open_files(descriptors() - 1), pytest.raises(FileRefused, match="open files"):
            Queue(place / "q.db")
        assert isinstance(queue.get(1), Job)
    with Queue(place / "q.db") as again:
        assert again.claim() is not None
