"""Copy a queue's file while it works, and bring a copy back.

A copy of a live database with `cp` loses what is in the log, silently.  A backup here is one read
snapshot, copied page by page through SQLite: it holds every job that was acknowledged before it
began, and nobody waits for it.  While it runs the log can not start anew, so the log grows by what
is written meanwhile.

**A backup is believed when it has been read back**: the numbers of jobs in each state equal those
of the snapshot, integrity_check passes, and file and folder are synced.  Only then does it get its
name, through a link that never replaces anything; before that it is a `.partial` file, and a kill
leaves no more than that.  It is one plain file, without a log beside it.

**In the copy nobody works.**  A lease is an agreement with a process that the copy has never met,
so the copy holds none: what was running there is available, and the delivery is no attempt.  Its
workers are forgotten.

**A restore begins another history**, and must not be taken for the one that was lost.  Jobs that
ended after the backup run again; jobs that were put in after it are gone.  Numbers are not used
twice: the next id is a billion higher, so that an id somebody wrote down since means nothing rather
than another job, and each fence is a million higher, so that a sink that has seen later ones does
not refuse what comes now.  docs/operations.md says what that means for effects and keys.

**Large payloads** (`killproof.payloads`) go along: into a folder beside the copy, each file proven
by its hash, before the copy gets its name.  Nothing of them is collected while it runs.
"""

import errno
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from killproof import payloads
from killproof.core import barrier
from killproof.core.clock import Clock, SystemClock
from killproof.core.database import SCHEMA_VERSION
from killproof.core.errors import FileRefused, KillproofError
from killproof.core.jobs import Queue
from killproof.payload_files import FilesInUse, Folder, copy_all

logger = logging.getLogger("killproof")

#: Pages copied between two reports of progress: 8 MiB.
STEP_PAGES: Final = 2_048
#: Numbers that a restore leaves out: more than a queue gives out between two backups ...
FENCES_SKIPPED: Final = 1_000_000  # ... to one job,
IDS_SKIPPED: Final = 1_000_000_000  # ... or to all: 2,000 a second for six days.
#: Names that are tried when several backups fall into one millisecond.
NAMES_MAX: Final = 1_000
#: What file systems without hard links answer (FAT, some network and FUSE ones).
NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
#: Where the latest backup is written down in the file, for `doctor`.
SETTING: Final = "last_backup"

Progress = Callable[[int, int], object]  # Bytes done, and in all.


class BackupDamaged(KillproofError):
    """What was copied does not stand up to its check: definite; nothing got its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that was read back and found whole."""

    path: str
    bytes: int
    jobs: int
    counts: dict[str, int]  #: jobs by state as they were; what was leased is available in the copy
    payloads: int = 0  #: files of large payloads, in the folder beside it
    lost: tuple[str, ...] = ()  #: those that are missing or damaged in the source, and whose


# Copying.

#: Of the table itself; what is compared with it comes from the indexes.
COUNTS: Final = "SELECT state, count(*) FROM job GROUP BY state"


def backup(
    queue: Queue, folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> Backup:
    """Copy the queue's file into a folder, under a name that no file has.

    Args:
        queue: what to copy; workers and producers go on meanwhile.
        folder: where to; it must exist, on any file system.
        progress: called now and then with the bytes done and in all.

    Raises:
        FileRefused: the folder can not be written, or the disk is full; definite.
        BackupDamaged: the copy is not whole; it is gone again; definite.
        KillproofError: as for `Queue.cancel`, from the note of the backup in the file; the backup
            is there then.
    """
    queue.counts()  # Refuses a file whose disk has failed, and a queue that is closed.
    target = Path(folder).resolve()
    now_ms = queue.host.clock.now_ms()
    moment = datetime.fromtimestamp(now_ms / 1_000, UTC)
    stem = f"{Path(queue.path).stem}-{moment:%Y%m%dT%H%M%S}.{now_ms % 1_000:03}Z"
    files = Folder(queue.path)
    with files.kept(), _partial(target, stem, queue.path) as partial:
        counts, wanted = _copied(queue, partial, now_ms, progress)
        lost = copy_all(wanted, files, Folder(str(partial)), progress)
        path = _publish(partial, (target / name for name in _names(stem)))
    _note(queue, path, now_ms)
    return Backup(
        path=str(path),
        bytes=os.stat(path).st_size,
        jobs=sum(counts.values()),
        counts=counts,
        payloads=len(wanted) - len(lost),
        lost=lost,
    )


def _copied(
    queue: Queue, partial: Path, now_ms: int, progress: Progress | None
) -> tuple[dict[str, int], FilesInUse]:
    """Fill the partial file, and read it back; return its jobs by state as they were.

    And the files of large payloads that they rely on.
    """
    try:
        with closing(_reader(queue.path)) as source, closing(_writer(partial)) as copy:
            counts = _begin_read(source)
            _copy(source, copy, progress)
            if (found := dict(copy.execute(COUNTS).fetchall())) != counts:
                raise BackupDamaged(f"{partial} has {found}, not {counts}: {queue.path} is damaged")
            _end_all_leases(copy, now_ms)
            _check_whole(copy, partial)
            return counts, _payloads_of(copy)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # Of a disk or a lock, not of the file.
            raise
        raise BackupDamaged(f"{queue.path}: {error}: restore an older backup") from error


def _payloads_of(copy: sqlite3.Connection) -> FilesInUse:
    if copy.execute(payloads.VERSION).fetchone() is None:
        return {}
    return payloads.files_in_use(copy.execute(payloads.IN_USE).fetchall())


def _begin_read(source: sqlite3.Connection) -> dict[str, int]:
    """Take the snapshot that is copied; return how many jobs it has in each state."""
    source.execute("BEGIN")
    return {state: count for state, count in source.execute(Queue.COUNTS) if count}


def _copy(source: sqlite3.Connection, copy: sqlite3.Connection, progress: Progress | None) -> None:
    """Copy every page, and leave the copy without a log of its own."""
    page_bytes = source.execute("PRAGMA page_size").fetchone()[0]

    def told(_: int, left: int, total: int) -> None:
        if progress is not None:
            progress((total - left) * page_bytes, total * page_bytes)

    # The read transaction stays open between the steps: without it each commit of somebody else
    # would start the copy anew, and under load it would never end.
    source.backup(copy, pages=STEP_PAGES, progress=told)
    if source.in_transaction:
        source.execute("ROLLBACK")
    # The header says WAL, as the source's does: the first access would put a log beside the copy.
    copy.execute("PRAGMA journal_mode = MEMORY").fetchall()


def _reader(path: str) -> sqlite3.Connection:
    """Open a file for reading alone; its log is left as it is."""
    address = f"file:{quote(os.fsencode(path))}?mode=ro"
    return sqlite3.connect(address, uri=True, timeout=30.0, isolation_level=None)


def _writer(path: Path) -> sqlite3.Connection:
    """Open the copy: nobody else knows of it, and it is synced as a whole at its end."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


RECORD_RELEASE: Final = """
    INSERT OR REPLACE INTO attempt
           (job_id, fence, outcome, worker, started_ms, finished_ms, error_class, error_message)
    SELECT id, fence, 'released', owner, coalesce(claimed_ms, created_ms), :now_ms, 'BackedUp',
           'it was running when the backup was made'
      FROM job WHERE state = 'leased'"""

RELEASE: Final = """
    UPDATE job
       SET state = 'available', forgiven = forgiven + 1, owner = NULL, lease_deadline_ns = NULL,
           updated_ms = :now_ms
     WHERE state = 'leased'"""


def _end_all_leases(copy: sqlite3.Connection, now_ms: int) -> None:
    copy.execute("BEGIN IMMEDIATE")
    copy.execute(RECORD_RELEASE, {"now_ms": now_ms})
    copy.execute(RELEASE, {"now_ms": now_ms})
    copy.execute("DELETE FROM worker")  # What hangs on a worker goes with it, by its foreign key.
    copy.execute("COMMIT")


def _check_whole(copy: sqlite3.Connection, path: Path) -> None:
    """Read it from end to end."""
    found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise BackupDamaged(f"{path}: integrity_check says {found}: run killproof doctor")


NOTE: Final = "INSERT OR REPLACE INTO killproof_setting VALUES (:name, :value)"


def _note(queue: Queue, path: Path, now_ms: int) -> None:
    """Write down when and where, so that `doctor` can miss it."""
    with queue.transaction() as tx:
        tx.change(NOTE, {"name": SETTING, "value": f"{now_ms} {path}"})


# Bringing back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore made."""

    path: str
    jobs: int
    counts: dict[str, int]
    replaced: str | None  #: where the file that was there before is now
    payloads: int = 0  #: files of large payloads, in the folder beside it
    lost: tuple[str, ...] = ()  #: those that are missing or damaged in the backup, and whose


def restore(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make a queue's file from a backup; the backup is only read.

    Args:
        source: the backup, or any queue's file; leases in it are ended as in a backup.
        target: the file to make.
        force: put it in the place of a file that is there, if nobody has that open; what was there
            is kept beside it.
        clock: for tests.
        progress: called now and then with the bytes done and in all.

    Raises:
        FileRefused: the backup is no queue's file; there is a file and `force` is not given;
            somebody has it open; definite.
        BackupDamaged: the backup is not whole; nothing was made; definite.
    """
    start, place = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    now_ms = (clock or SystemClock()).now_ms()
    if start == place:
        raise FileRefused(f"{place} is the backup itself: name another file to make")
    if not start.is_file():
        raise FileRefused(f"{start} does not exist: name a backup")
    in_the_way = [path for path in _parts(place) if path.exists()]
    if in_the_way and not force:
        raise FileRefused(
            f"{in_the_way[0]} exists: name a file that does not, or end all processes of the "
            "queue and give --force; what is there is kept beside it"
        )
    with _partial(place.parent, place.name, str(start)) as partial:
        try:
            with closing(_reader(str(start))) as backup, closing(_writer(partial)) as copy:
                _copy(backup, copy, progress)
                _check_is_ours(copy, start, place)
                _end_all_leases(copy, now_ms)
                _begin_anew(copy)
                _check_whole(copy, partial)
                counts, wanted = dict(copy.execute(COUNTS).fetchall()), _payloads_of(copy)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # Of the disk, not of the backup.
                raise
            raise BackupDamaged(f"{start}: {error}: use another backup") from error
        # Into the folder of what is there now: names are contents, so nothing is replaced.
        lost = copy_all(wanted, Folder(str(start)), Folder(str(place), like=str(partial)), progress)
        replaced = None
        if in_the_way:
            replaced = _replace(partial, place, now_ms)
        else:
            _publish(partial, iter([place]))
    return Restored(
        path=str(place),
        jobs=sum(counts.values()),
        counts=counts,
        replaced=replaced,
        payloads=len(wanted) - len(lost),
        lost=lost,
    )


def _parts(place: Path) -> list[Path]:
    """Return the names that make up a database; a log without its database would be taken for ours.

    The lock files beside it are left alone: they hold nothing.
    """
    return [place, *(Path(f"{place}{end}") for end in ("-wal", "-shm", "-journal", ".failed"))]


def _check_is_ours(copy: sqlite3.Connection, start: Path, place: Path) -> None:
    try:
        (version,) = copy.execute(
            "SELECT max(version) FROM killproof_schema WHERE component = 'core'"
        ).fetchone()
        (level,) = copy.execute(
            "SELECT max(value) FROM killproof_setting WHERE name = 'durability'"
        ).fetchone()
    except sqlite3.OperationalError as error:
        raise FileRefused(f"{start} is no backup of a queue ({error}): name another") from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise FileRefused(
            f"{start} has schema version {version}, this killproof knows {SCHEMA_VERSION}: "
            "upgrade killproof"
        )
    if refusal := barrier.refusal(str(place), str(level)):
        raise FileRefused(refusal)


NEW_FENCES: Final = "UPDATE job SET fence = fence + :skipped WHERE state <> 'succeeded'"

NEW_IDS: Final = "UPDATE sqlite_sequence SET seq = seq + :skipped WHERE name = 'job'"

NO_IDS_YET: Final = "INSERT INTO sqlite_sequence VALUES ('job', :skipped)"

# Where there are runs of workflows; callers wrote their ids down as well.

NEW_RUNS: Final = "UPDATE sqlite_sequence SET seq = seq + :skipped WHERE name = 'workflow_run'"


def _begin_anew(copy: sqlite3.Connection) -> None:
    """Leave out the numbers that the lost history has given out; see the module."""
    copy.execute("BEGIN IMMEDIATE")
    copy.execute(NEW_FENCES, {"skipped": FENCES_SKIPPED})
    if not copy.execute(NEW_IDS, {"skipped": IDS_SKIPPED}).rowcount:
        copy.execute(NO_IDS_YET, {"skipped": IDS_SKIPPED})
    copy.execute(NEW_RUNS, {"skipped": IDS_SKIPPED})
    copy.execute("COMMIT")


def _replace(partial: Path, place: Path, now_ms: int) -> str:
    """Put the new file in the place of the old one, which keeps a name of its own.

    At each moment the place holds one of the two: a kill in between loses neither.
    """
    _make_durable(partial)
    aside = next(
        path
        for number in range(NAMES_MAX)
        if not (path := Path(f"{place}.replaced-{now_ms + number}")).exists()
    )
    with _nobody_else(place) if place.exists() else nullcontext():
        if place.exists():
            Folder(str(aside), like=str(place)).link(Folder(str(place)))
        for part in _parts(place):
            if part != place and part.exists():
                os.rename(part, f"{aside}{str(part).removeprefix(str(place))}")
        if place.exists():
            try:
                os.link(place, aside)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                os.rename(place, aside)  # A kill before the next line leaves it under this name.
        os.replace(partial, place)
    barrier.sync_directory(str(place))
    return str(aside)


@contextmanager
def _nobody_else(place: Path) -> Iterator[None]:
    """Hold SQLite's lock on a whole database for the block, so that nobody can have it open.

    Every connection that has read a file in WAL mode holds a lock on it.  A file that is damaged is
    left as soon as that is known: its lock was had by then, and nobody else can open it either.

    Raises:
        FileRefused: somebody is connected; definite.
    """
    with closing(sqlite3.connect(place, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            # Without a log there is none that the close could take away under the new name.
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise FileRefused(
                    f"{place} is open in another process: end all of them, then restore"
                ) from error
            connection.close()
        yield


# Names, and the disk.


@contextmanager
def _partial(folder: Path, stem: str, like: str) -> Iterator[Path]:
    """Give a new file beside the name it is to get, as readable as the one it is made from."""
    path = folder / f".{stem}.{os.urandom(4).hex()}.partial"
    mode = stat.S_IMODE(os.stat(like).st_mode) & 0o666
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    except OSError as error:
        raise FileRefused(f"{folder}: {error.strerror}: name another folder") from error
    try:
        yield path
    except (sqlite3.OperationalError, OSError) as error:
        raise FileRefused(f"{path}: {error}: make room, or name another folder") from error
    finally:
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}-journal")):
            try:
                name.unlink(missing_ok=True)
            except OSError as error:  # It must not hide what has happened, nor undo it.
                logger.warning("%s is left over (%s): remove it", name, error.strerror)
        shutil.rmtree(Folder(str(path)).path, ignore_errors=True)


def _names(stem: str) -> Iterator[str]:
    yield f"{stem}.db"
    for number in range(2, NAMES_MAX):
        yield f"{stem}-{number}.db"


def _publish(partial: Path, names: Iterator[Path]) -> Path:
    """Give the finished file the first free name, durably; nothing is ever replaced.

    Raises:
        FileRefused: no name is free; definite.
    """
    _make_durable(partial)
    path = partial
    for path in names:
        has_payloads = os.path.isdir(Folder(str(partial)).path)
        if has_payloads and not _publish_payloads(partial, path):
            continue
        try:
            os.link(partial, path)
        except FileExistsError:
            if has_payloads:  # Else what is there belongs to the file that has this name.
                _publish_payloads(path, partial)
            continue
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Take the name, then fill it.
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            except FileExistsError:
                if has_payloads:
                    _publish_payloads(path, partial)
                continue
            os.replace(partial, path)
        barrier.sync_directory(str(path))
        return path
    raise FileRefused(f"{path} exists: name a file that does not")


def _publish_payloads(old: Path, new: Path) -> bool:
    """Let a folder of payloads follow its file, or go before it; False: that name is taken.

    Before: a kill in between leaves a folder without a file, and not a file without its payloads.
    """
    try:
        os.rename(Folder(str(old)).path, Folder(str(new)).path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _make_durable(path: Path) -> None:
    """Sync a file that no connection has open any more: closing it here can drop no lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
