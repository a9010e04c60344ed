"""Look after a file: `doctor` finds what is wrong, `repair` brings it back after a disk error.

`doctor` changes nothing and is safe beside running workers.  It never opens the database by path (a
plain `open` and `close` in a process with a connection would drop that connection's locks): sizes
come from `stat`, contents from SQLite.

`compact` gives space back to the disk, when somebody asks for it.

`repair` is for a file that a process has marked `.failed` because the disk refused to make a
commit durable.  What is in the log then is only partly true, and the kernel has forgotten which
part.  SQLite knows: each frame has a checksum over all frames before it.  So nobody else may be
connected (a running process would go on with pages that were never checked), recovery takes the
valid prefix of the log, the checkpoint puts it into the database, and the whole file is checked
before the marker goes.
"""

import os
import sqlite3
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from killproof import coherence
from killproof.core import barrier
from killproof.core.clock import Clock, SystemClock
from killproof.core.database import LOG_BYTES_KEPT
from killproof.core.errors import DatabaseBusy, FileRefused, KillproofError, StorageFailed
from killproof.core.jobs import Queue
from killproof.wording import size_of

Status = Literal["ok", "warn", "fail"]

#: SQLite versions with the fix of the WAL-reset fault, as [first, before): it was ported back to
#: three older branches, so that a plain >= is wrong.
#: Source: SQLite's release notes 3.53.0, 3.51.3, 3.50.7 and 3.44.6.
WAL_RESET_FIXED: Final = (
    ((3, 44, 6), (3, 45, 0)),
    ((3, 50, 7), (3, 51, 0)),
    ((3, 51, 3), (3, 52, 0)),
    ((3, 53, 0), (4, 0, 0)),
)
#: A log larger than what is kept after a reset: a reader pins it, or nobody checkpoints.
LOG_BYTES_WARN: Final = 2 * LOG_BYTES_KEPT
#: Who holds a snapshot through so many looks, so far apart, is a reader that pins the log.
LOOKS: Final = 4
LOOK_SECONDS: Final = 0.03
LOOK_SECONDS_MAX: Final = 10.0
#: The bytes of the -shm file that stand for the five read marks.  Source: SQLite's wal.c,
#: WALINDEX_LOCK_OFFSET and WAL_READ_LOCK.
READ_MARKS: Final = range(123, 128)
#: What SQLite and killproof keep beside the database.
SIDE_FILES: Final = ("-wal", "-shm", ".workers", ".turnstile", ".gate")
#: SQLite's answers, in a repair, that accuse the disk; it opens a file to read only after an error.
DISK_ERRORS: Final = frozenset(
    {
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
    }
)
#: The head of the -shm file: two copies of the header, then what checkpoints know.
INDEX_HEAD_BYTES: Final = 136
#: Free space below which a checkpoint, which writes both files at once, may not fit.
FREE_BYTES_WARN: Final = 1 << 30
FREE_BYTES_FAIL: Final = 64 << 20
#: A full check reads the whole file; above this it is left to `PRAGMA integrity_check` by hand.
CHECKED_BYTES_MAX: Final = 256 << 20
#: How long the probe of the write lock waits.
PROBE_SECONDS: Final = 1.0
#: 2024-01-01, in ms: a wall clock before it was never set.
CLOCK_MS_MIN: Final = 1_704_067_200_000
#: A job from the future by more than this means that the wall clock was set back.
CLOCK_MS_AHEAD: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    text: str  #: what was found
    remedy: str | None = None  #: what to do about it, when it is not `ok`


def wal_reset_affected(version: tuple[int, int, int]) -> bool:
    """Say whether this SQLite can lose commits when two programs checkpoint and write at once.

    >>> [wal_reset_affected(version) for version in ((3, 40, 1), (3, 44, 6), (3, 52, 0))]
    [True, False, True]
    """
    return not any(first <= version < before for first, before in WAL_RESET_FIXED)


def doctor(path: str | os.PathLike[str], *, clock: Clock | None = None) -> list[Check]:
    """Check a queue's file and its place, without changing either.

    Args:
        path: the database file.
        clock: for tests.

    Returns:
        All checks in a fixed order; those behind a failed one that they depend on are left out.
    """
    place = os.path.realpath(path)
    clock = clock or SystemClock()
    checks = [_file(place), _sqlite(), _clock(clock), *_space(place)]
    if checks[0].status == "fail":
        return checks
    marker = _marker(place)
    checks += [marker, _beside(place), _log(place)]
    if marker.status == "fail":
        # Opening could copy frames of the log that nobody has checked into the database.
        return checks
    try:
        found = list(_contents(place, clock))
    except sqlite3.Error as error:
        remedy = "restore a backup, or name the right file"
        return [*checks, Check(name="contents", status="fail", text=str(error), remedy=remedy)]
    checks += [*found, _shared(place)]
    if not any(check.status == "fail" for check in found):
        checks += _in_use(place)
    return checks


def repair(path: str | os.PathLike[str]) -> list[Check]:
    """Bring a file back that a disk error has stopped; see the module.

    Returns:
        What was done.  Nothing is done to a file without the marker.

    Raises:
        FileRefused: it is missing, somebody is still connected, or the file is damaged: the marker
            stays; definite.
        StorageFailed: the disk fails still; repair again.
    """
    place = os.path.realpath(path)
    if not os.path.isfile(place):
        raise FileRefused(f"{place} does not exist: name the database file")
    if not os.path.exists(f"{place}.failed"):
        text = "there is no .failed marker: nothing to repair"
        return [Check(name="marker", status="ok", text=text)]
    try:
        with closing(sqlite3.connect(place, timeout=0, isolation_level=None)) as connection:
            frames, problem = _recover(connection)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise FileRefused(
                f"{place} is open in another process: end all of them, then repair"
            ) from error
        if error.sqlite_errorcode & 0xFF in DISK_ERRORS:
            raise _fails_still(place, error) from error
        frames, problem = 0, str(error)
    if problem != "ok":
        raise FileRefused(
            f"{place} is damaged ({problem}): restore it from a backup; the marker stays"
        )
    try:
        barrier.sync_directory(place)
        os.unlink(f"{place}.failed")
        barrier.sync_directory(place)
    except OSError as error:
        raise _fails_still(place, error) from error
    return [
        Check(name="log", status="ok", text=f"{frames} frames were sound and are in the database"),
        Check(name="integrity", status="ok", text="integrity_check: ok"),
        Check(name="marker", status="ok", text="removed: the queue may be opened again"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did."""

    before_bytes: int
    after_bytes: int


def compact(path: str | os.PathLike[str]) -> Compacted:
    """Give the space of deleted jobs back to the disk: SQLite writes the whole file anew.

    Nothing does it by itself: it takes the file for itself alone, for as long as it is large, and
    needs room for two more of it.  Killed anywhere, it has changed nothing or is done.

    Raises:
        FileRefused: it is missing or marked as failed, somebody is connected, or there is too
            little room; definite, and nothing was changed.
        StorageFailed: the disk failed; nothing was changed.
    """
    place = os.path.realpath(path)
    if not os.path.isfile(place):
        raise FileRefused(f"{place} does not exist: name the database file")
    if os.path.exists(f"{place}.failed"):
        raise FileRefused(f"{place} is marked as failed: killproof doctor --repair first")
    before_bytes = os.stat(place).st_size
    free = os.statvfs(os.path.dirname(place))
    needed, found = 2 * before_bytes, free.f_bavail * free.f_frsize
    if found < needed:
        raise FileRefused(
            f"{place}: compacting needs {size_of(needed)} beside it, {size_of(found)} are free: "
            "make room, or leave the file as it is; its space is used again"
        )
    try:
        with closing(sqlite3.connect(place, timeout=0, isolation_level=None)) as connection:
            # For itself alone, as a repair: the checkpoint at the end would be another's otherwise.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
            with _temporary_files_beside(place):
                connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise FileRefused(
                f"{place} is open in another process: end all of them, then compact"
            ) from error
        raise StorageFailed(f"{place}: compacting failed ({error}); nothing was changed") from error
    return Compacted(before_bytes=before_bytes, after_bytes=os.stat(place).st_size)


@contextmanager
def _temporary_files_beside(place: str) -> Iterator[None]:
    """Let SQLite write its copy where room was looked for, and not in /tmp, which may be small."""
    former = os.environ.get("SQLITE_TMPDIR")
    os.environ["SQLITE_TMPDIR"] = os.path.dirname(place)
    try:
        yield
    finally:
        del os.environ["SQLITE_TMPDIR"]
        if former is not None:
            os.environ["SQLITE_TMPDIR"] = former


def _fails_still(place: str, error: Exception) -> StorageFailed:
    """Say of an error during a repair that it accuses the disk, not what is in the file."""
    return StorageFailed(f"{place}: the disk fails still ({error}): see to it, then repair again")


def _recover(connection: sqlite3.Connection) -> tuple[int, str]:
    """Put the sound part of the log into the database; return its frames and the first problem."""
    # Before the first access: SQLite then takes the file for itself alone or answers busy, and
    # rebuilds the index of the log from the frames instead of trusting a shared one.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    # FULL tells how many frames there were; TRUNCATE, which empties the log, forgets it.
    busy, frames, done = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    if busy or done != frames:
        return frames, f"{done} of {frames} frames of the log could be checkpointed"
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return frames, str(connection.execute("PRAGMA integrity_check").fetchone()[0])


# The checks, in their order.


def _file(place: str) -> Check:
    if not os.path.exists(place):
        remedy = f"make it: killproof enqueue KIND JSON --db {place}"
        return Check(name="file", status="fail", text=f"{place} does not exist", remedy=remedy)
    if not os.path.isfile(place):
        remedy = "name the database file"
        return Check(name="file", status="fail", text=f"{place} is not a file", remedy=remedy)
    folder = os.path.dirname(place)
    if not os.access(place, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        text = f"{place} or its folder can not be written by this user"
        return Check(name="file", status="fail", text=text, remedy="correct their owner or rights")
    return Check(name="file", status="ok", text=f"{place}, {size_of(os.stat(place).st_size)}")


def _sqlite() -> Check:
    version = sqlite3.sqlite_version
    if wal_reset_affected(sqlite3.sqlite_version_info):
        return Check(
            name="sqlite",
            status="warn",
            text=f"SQLite {version} has the WAL-reset fault; killproof's own connections avoid it, "
            "another program that checkpoints this file can still meet it",
            remedy="use SQLite 3.53, 3.51.3, 3.50.7 or 3.44.6, or keep other programs off the file",
        )
    return Check(name="sqlite", status="ok", text=f"SQLite {version}")


def _clock(clock: Clock) -> Check:
    if clock.now_ms() < CLOCK_MS_MIN:
        text = "the wall clock is before 2024: delayed jobs wait until it is set"
        return Check(name="clock", status="fail", text=text, remedy="set the clock (NTP)")
    return Check(name="clock", status="ok", text="the wall clock is set")


def _space(place: str) -> Iterator[Check]:
    folder = os.path.dirname(place)
    try:
        free = os.statvfs(folder)
    except OSError as error:
        remedy = "make the folder"
        text = f"{folder}: {error.strerror}"
        yield Check(name="space", status="fail", text=text, remedy=remedy)
        return
    free_bytes = free.f_bavail * free.f_frsize
    status: Status = "ok"
    if free_bytes < FREE_BYTES_WARN:
        status = "fail" if free_bytes < FREE_BYTES_FAIL else "warn"
    room = None if status == "ok" else "make room: enqueue stops when the disk is full"
    yield Check(name="space", status=status, text=f"{size_of(free_bytes)} free", remedy=room)
    kind, _ = barrier.file_system(place)
    reason = barrier.refusal(place, "power")
    if reason is None:
        text = f"{kind or 'unknown'}: fsync reaches the disk as far as can be told"
        yield Check(name="file system", status="ok", text=text)
    else:
        usable = barrier.refusal(place, "process") is None
        yield Check(name="file system", status="warn" if usable else "fail", text=reason)


def _marker(place: str) -> Check:
    failed = Path(f"{place}.failed")
    if not failed.exists():
        return Check(name="marker", status="ok", text="no disk error on record")
    reason = failed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Check(
        name="marker",
        status="fail",
        text=f"the disk failed: {reason[0] if reason else 'no reason on record'}",
        remedy=f"end all processes of this queue, then: killproof doctor --repair --db {place}",
    )


def _beside(place: str) -> Check:
    """The files beside the database must be usable by whoever may use it, and be of its time."""
    database = os.stat(place)
    wrong = []
    for suffix in SIDE_FILES:
        try:
            found = os.stat(place + suffix)
        except FileNotFoundError:
            continue
        mode = database.st_mode & 0o666
        shared = mode & 0o006 or (mode & 0o060 and found.st_gid == database.st_gid)
        if found.st_mode & 0o666 != mode or (found.st_uid != database.st_uid and not shared):
            wrong.append(os.path.basename(place + suffix))
    if wrong:
        return Check(
            name="side files",
            status="warn",
            text=f"{', '.join(wrong)}: owner or rights are not those of the database",
            remedy="chown and chmod them as the database: others can not work with the file",
        )
    if os.path.exists(f"{place}-journal"):
        return Check(
            name="side files",
            status="warn",
            text=f"{os.path.basename(place)}-journal is there: another program has written in "
            "rollback mode, or the file beside it was replaced",
            remedy="end all programs that use the file; restore a backup if it is not theirs",
        )
    return Check(name="side files", status="ok", text="usable by whoever may use the database")


def _log(place: str) -> Check:
    try:
        size = os.stat(f"{place}-wal").st_size
    except FileNotFoundError:
        return Check(name="log", status="ok", text="no write-ahead log: nobody is connected")
    text = f"write-ahead log of {size_of(size)}{_pages(place)}"
    readers = _readers(place)
    if readers:
        text += f"; read without a pause by {', '.join(readers)}"
    if size > LOG_BYTES_WARN:
        remedy = "end the program that keeps a read transaction open; look for stopped workers"
        text += ": it is not being reset"
        return Check(name="log", status="warn", text=text, remedy=remedy)
    return Check(name="log", status="ok", text=text)


def _pages(place: str) -> str:
    """Return what the index of the log says about its pages; '' if it says nothing.

    A process of its own reads the index: this one may hold connections, whose locks would be gone
    when it closed that file.
    """
    command = ["head", "-c", str(INDEX_HEAD_BYTES), f"{place}-shm"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LOOK_SECONDS_MAX)
        (logged,) = struct.unpack_from("=I", done.stdout, 16)  # mxFrame
        (copied,) = struct.unpack_from("=I", done.stdout, 96)  # nBackfill
    except (OSError, subprocess.TimeoutExpired, struct.error):
        return ""
    return f", {logged} pages in it, {copied} of them in the database already"


def _readers(place: str) -> list[str]:
    """Return who holds one snapshot for as long as this looks: `pid 123 (name)`.

    A read transaction is a lock on one of five bytes of the index; the kernel lists it.  Workers
    read for less than a millisecond at a time, so that several looks tell them apart.
    """
    held = _read_locks(place)
    for _ in range(LOOKS - 1):
        if not held:
            break
        time.sleep(LOOK_SECONDS)
        held &= _read_locks(place)
    return [f"pid {pid} ({_name_of(pid)})" for pid in sorted({pid for pid, _ in held})]


def _read_locks(place: str) -> set[tuple[int, int]]:
    """Return (pid, byte) of each read mark of the log that is locked now."""
    try:
        status = os.stat(f"{place}-shm")
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found = set()
    for line in lines:
        fields = line.split()
        # "1: POSIX ADVISORY READ 123 fe:00:2179289 124 124"; who waits has an arrow in between.
        if len(fields) == 8 and fields[1] == "POSIX" and fields[5] == device:
            found |= {(int(fields[4]), byte) for byte in READ_MARKS if fields[6] == str(byte)}
    return found


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "ended"


def _contents(place: str, clock: Clock) -> Iterator[Check]:
    """Look inside on a read-only connection: the file may be another program's."""
    address = f"file:{quote(os.fsencode(place))}?mode=ro"
    with closing(
        sqlite3.connect(address, uri=True, timeout=PROBE_SECONDS, isolation_level=None)
    ) as connection:

        def one(sql: str) -> object:
            row = connection.execute(sql).fetchone()
            return None if row is None else row[0]

        mode = one("PRAGMA journal_mode")
        if one("SELECT 1 FROM sqlite_schema WHERE name = 'killproof_schema'") is None:
            text = "the file has no killproof tables"
            remedy = "name the right file, or put a first job in"
            yield Check(name="contents", status="fail", text=text, remedy=remedy)
            return
        level = one("SELECT value FROM killproof_setting WHERE name = 'durability'")
        yield _durability(place, str(level), str(mode))
        newest_ms = one("SELECT created_ms FROM job ORDER BY id DESC LIMIT 1")
        if isinstance(newest_ms, int) and newest_ms > clock.now_ms() + CLOCK_MS_AHEAD:
            ahead = (newest_ms - clock.now_ms()) / 1_000
            text = f"the newest job is from {ahead:.0f} s in the future: the clock was set back"
            remedy = "delayed jobs wait that much longer; leases are not concerned"
            yield Check(name="clock", status="warn", text=text, remedy=remedy)
        yield _integrity(place, lambda: one("PRAGMA quick_check(1)"))


def _durability(place: str, level: str, mode: str) -> Check:
    refusal = barrier.refusal(place, level)
    if mode != "wal" or refusal is not None:
        text = refusal or f"durability {level}, but journal mode {mode}, not wal"
        remedy = "end the program that changes the journal mode" if refusal is None else None
        return Check(name="durability", status="fail", text=text, remedy=remedy)
    survives = "kill, reboot and power cut" if level == "power" else "kill; not a power cut"
    text = f"{level}, journal mode wal: an acknowledged job survives {survives}"
    return Check(name="durability", status="ok", text=text)


def _integrity(place: str, quick_check: Callable[[], object]) -> Check:
    size = os.stat(place).st_size
    if size > CHECKED_BYTES_MAX:
        text = f"not checked: {size_of(size)}; run PRAGMA integrity_check at a quiet hour"
        return Check(name="integrity", status="ok", text=text)
    found = quick_check()
    if found != "ok":
        remedy = "restore a backup"
        return Check(name="integrity", status="fail", text=f"damaged: {found}", remedy=remedy)
    return Check(name="integrity", status="ok", text="quick_check: ok")


def _shared(place: str) -> Check:
    """Two processes must see each other's memory and locks there, whatever its kind is called."""
    try:
        problem = coherence.problem(os.path.dirname(place))
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        return Check(
            name="sharing",
            status="fail",
            text=f"two processes do not share what they must here: {problem}",
            remedy="move the file to a local disk; a mount of another machine's folder is none",
        )
    text = "two processes see each other's memory and locks here"
    return Check(name="sharing", status="ok", text=text)


def _in_use(place: str) -> Iterator[Check]:
    """Open the file as a worker does, and try its locks."""
    try:
        with Queue(place, busy_limit=PROBE_SECONDS) as queue:
            yield _write_lock(queue)
            liveness = queue.host.lock.liveness(queue.path)
            sound = bool(liveness.file)
            liveness.close()
    except KillproofError as error:
        yield Check(name="open", status="fail", text=str(error))
        return
    if sound:
        text = "the kernel tells at once when a worker dies"
        yield Check(name="death lock", status="ok", text=text)
    else:
        text = "no usable locks here: a dead worker is noticed when its lease runs out"
        remedy = "use short leases, or another file system"
        yield Check(name="death lock", status="warn", text=text, remedy=remedy)


def _write_lock(queue: Queue) -> Check:
    """Take the write lock once, as any write does."""
    try:
        with queue.transaction():
            pass
    except DatabaseBusy:
        text = f"another program has held the write lock for {PROBE_SECONDS:g} s"
        remedy = "end its transaction; look for a stopped worker (state T in ps)"
        return Check(name="write lock", status="fail", text=text, remedy=remedy)
    if queue.database.bypasses:
        text = "the turnstile stood still for 0.25 s: writers go on without it, less fairly"
        remedy = "look for a stopped worker (state T in ps)"
        return Check(name="write lock", status="warn", text=text, remedy=remedy)
    return Check(name="write lock", status="ok", text="free")
