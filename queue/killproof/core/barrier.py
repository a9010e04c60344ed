"""The barrier: what was committed is on the disk before anybody is told so (shared fsync).

Killproof commits with synchronous=NORMAL, leaves the turnstile and then syncs the write-ahead log
itself: the fsyncs of all processes merge in the kernel while the next writer already works.  In
602,000 rebuilt power-cut images no acknowledgement was lost; NORMAL alone loses at most points.

Three rules keep it true.  The descriptor is opened while a read transaction pins the log, and lives
and dies with its connection: opened earlier it may belong to a log that was deleted since.  The
link count is checked after the sync: a deleted log syncs without an error.  An error of the sync is
reported by the kernel once and then forgotten, so it is never retried: the queue stops for good.
"""

import errno
import os
import re

from killproof.core.errors import OutcomeUnknown, StorageFailed
from killproof.core.turnstile import close_quietly

#: File systems whose fsync does nothing: a power cut takes everything.
RAM_KINDS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
#: File systems on which the shared memory of the write-ahead log is not coherent between hosts.
NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "afs", "glusterfs", "lustre"}
)
MOUNTS = "/proc/self/mountinfo"


class Barrier:
    """One connection's descriptor of the write-ahead log."""

    def __init__(self, path: str) -> None:
        """Open the log of this database and make its directory entry durable.

        To be called inside a read transaction, which pins the file.

        Raises:
            FileNotFoundError: there is no log; the connection is not in WAL mode (any more).
        """
        self._path = path
        # Never O_CREAT: it could make an empty log beside a database in another journal mode.
        self._descriptor = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        self._link = f"/proc/self/fd/{self._descriptor}"
        try:
            self._file = self._identity()
            # The first writer may have run at synchronous=OFF, and then nobody synced its name.
            sync_directory(path)
        except BaseException:
            self.close()
            raise

    def log_bytes(self) -> int:
        """Return the size of the log; 0 when the descriptor was closed, which `wait` will tell."""
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            return 0

    def wait(self) -> None:
        """Return when everything committed before this call is durable.

        Raises:
            OutcomeUnknown: the database or its log was deleted or replaced, or the descriptor
                closed, under us; indefinite.
            StorageFailed: the disk failed; never to be retried.
        """
        try:
            os.fdatasync(self._descriptor)
            is_same = self._identity() == self._file
        except OSError as error:
            # None of these comes from the sync itself.
            if error.errno in (errno.EBADF, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise OutcomeUnknown(
                    f"{self._path} or its log's descriptor is out of reach: open the queue anew"
                ) from error
            why = f"fdatasync of the log failed: {error.strerror}"
            raise StorageFailed(stopped(self._path, why)) from error
        if not is_same:
            raise OutcomeUnknown(
                f"{self._path} or its log was deleted or replaced: open the queue anew"
            )
        check_not_failed(self._path)

    def close(self) -> None:
        """Close the descriptor; safe at any time, because the log carries no POSIX locks."""
        close_quietly(self._descriptor)

    def _identity(self) -> tuple[str, int]:
        """Name the file behind the descriptor, its link count included, and its database.

        The kernel's text for it changes when the file is deleted ("... (deleted)"), renamed, or the
        number belongs to another file by now.  `fstat` would say the same, but it marks the
        timestamps of the file as seen (Linux 6.13 and later), and then the next write has to
        journal a fresh one: 60 to 100 us for each commit.  The database is not written by a commit:
        its number costs 1 to 4 us, and tells of one that was removed or replaced by a backup.

        Raises:
            OSError: the database is gone, or the descriptor was closed.
        """
        database = os.stat(self._path).st_ino
        try:
            return os.readlink(self._link), database
        except FileNotFoundError:
            status = os.fstat(self._descriptor)  # EBADF if it was closed; else there is no /proc.
            return f"{status.st_dev}:{status.st_ino}:{status.st_nlink > 0}", database


def sync_directory(path: str) -> None:
    """Make the directory entries beside the file durable."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_not_failed(path: str) -> None:
    """Stand before every acknowledgement: once a disk has failed, nobody acknowledges.

    Raises:
        StorageFailed: the marker is there.
    """
    if os.access(f"{path}.failed", os.F_OK):
        raise StorageFailed(stopped(path, f"the disk failed once, {path}.failed says when"))


def stopped(path: str, why: str) -> str:
    """Return what everybody is told who meets a stopped file, with the way back."""
    return (
        f"{path} is stopped ({why}): end all its processes, "
        f"then run: killproof doctor --repair --db {path}"
    )


def mark_failed(path: str, reason: str) -> None:
    """Leave the marker, as well as a failing disk lets us."""
    try:
        descriptor = os.open(
            f"{path}.failed", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        try:
            os.write(descriptor, f"{reason}\n".encode(errors="backslashreplace"))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return


def refusal(path: str, durability: str) -> str | None:
    """Return why a database must not live here at this level, with the remedy; None if it may."""
    kind, options = file_system(path)
    if kind in NETWORK_KINDS or kind.startswith("fuse"):
        return (
            f"{path} is on {kind}: the log needs shared memory, which a network or FUSE "
            "file system does not give; use a local disk"
        )
    # The second spelling is that of newer kernels (seen on 6.18).
    if durability == "power" and (kind in RAM_KINDS or options & {"volatile", "fsync=volatile"}):
        return (
            f"{path} is on {kind}, where fsync does nothing: "
            "use a disk, or say that it need not survive a power cut (durability='process', "
            "--durability process)"
        )
    return None


def file_system(path: str) -> tuple[str, frozenset[str]]:
    """Return kind and mount options of the file system under the path; ('', ...) when untold."""
    where = os.path.realpath(path)
    best, found = -1, ("", frozenset[str]())
    try:
        with open(MOUNTS, "rb") as file:
            # A mount point may hold what else ends a line for `splitlines`: then no queue opened.
            lines = os.fsdecode(file.read()).rstrip("\n").split("\n")
    except OSError:
        return found
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields.split(" ")[4])
        under = mount == "/" or where == mount or where.startswith(f"{mount}/")
        if under and len(mount) >= best:  # The later of equals lies on top.
            kind, _, options = rest.split(" ", 2)
            best, found = len(mount), (kind, frozenset(options.replace(" ", ",").split(",")))
    return found
