r"""The folder of large payloads beside a database: one file for each content, named by its SHA-256.

    queue.db.payloads/
        3f1c...e2           a payload or a result; never changed once it has this name
        .6ab0f2d1.partial   being written, under a lock of its writer
        .3f1c...e2.dropped  being removed
        .lock               held by who collects, shared by who copies

**A file has its name when it is whole**: written under another one, synced, renamed; then the
folder and its parent are synced.  A kill leaves a `.partial` file, which the next collection
removes because nobody holds its lock; a power cut can not leave less than the name promises.

**What is read is believed when its hash is right.**  A file that is missing or other than its name
says is `PayloadLost`, which in a handler makes the job a dead letter at once: no retry brings a
file back, a person with a backup does, and then a replay gives all attempts again.

Who refers to which file is not known here: that is `killproof.payloads`.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from killproof.core import barrier
from killproof.core.errors import FileRefused, KillproofError, PayloadTooLarge, StorageFull
from killproof.handlers import Permanent

#: What a handler that asks for the value can be expected to hold in memory.
FILE_BYTES_MAX: Final = 1 << 30
CHUNK_BYTES: Final = 1 << 20
#: A collection may take the name of a file that is being written, once in a while.
ROUNDS_MAX: Final = 5
NAME: Final = re.compile(r"[0-9a-f]{64}")
#: Errors that accuse the rights or the place, not the room on the disk.
REFUSALS: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EMFILE}
)

Source = Callable[[], Iterable[bytes]]
#: name -> (bytes, a job that relies on it)
FilesInUse = Mapping[str, tuple[int, int]]


class PayloadLost(KillproofError, Permanent):
    """A payload's file is missing or damaged: definite; restore it, then replay the job."""


class Folder:
    """The folder of one database; it is made by the first file."""

    def __init__(self, database: str, *, durable: bool = True, like: str | None = None) -> None:
        """Name the folder.

        Args:
            database: the database file, symbolic links resolved.
            durable: files must survive a power cut, as the database does.
            like: whose rights and owner the files get; None is the database's.
        """
        self._database = like or database
        self._durable = durable
        self.path = Path(f"{database}.payloads")

    def store(self, source: Source) -> tuple[str, int]:
        """Write a content to its name; return its hash and its bytes when it is durable.

        Args:
            source: gives the content in pieces; asked again if the file was taken away meanwhile.

        Raises:
            PayloadTooLarge: more than `FILE_BYTES_MAX`; definite, and nothing is left behind.
            StorageFull: the disk is full or failed; definite, and nothing is left behind.
            FileRefused: the folder can not be written; definite.
        """
        for _ in range(ROUNDS_MAX):
            try:
                self._make()
                found = self._write(source)
                if self._durable:
                    barrier.sync_directory(str(self.path / found[0]))
                    barrier.sync_directory(str(self.path))
            except FileNotFoundError:
                continue  # A collection was faster than our lock, or somebody removed the folder.
            except OSError as error:
                raise self._known(error) from error
            return found
        raise FileRefused(f"{self.path}: files vanish from it while they are written")

    def _known(self, error: OSError) -> KillproofError:
        """Return what an error of the disk or of the rights means."""
        text = f"{error.filename or self.path}: {error.strerror}"
        if error.errno in REFUSALS:
            return FileRefused(f"{text}: check the folder and its rights")
        return StorageFull(f"{text}: nothing was changed; see to the disk")

    def _make(self) -> None:
        try:
            self.path.mkdir(0o700)
        except FileExistsError:
            return
        # As readable as the database, whatever the umask of whoever comes first.
        status = os.stat(self._database)
        mode = stat.S_IMODE(status.st_mode) & 0o666
        with suppress(OSError):
            os.chmod(self.path, mode | (mode & 0o444) >> 2)
            os.chown(self.path, status.st_uid, status.st_gid)

    def _write(self, source: Source) -> tuple[str, int]:
        partial = self.path / f".{os.urandom(8).hex()}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            digest, size = hashlib.sha256(), 0
            for chunk in source():
                size += len(chunk)
                if size > FILE_BYTES_MAX:
                    raise PayloadTooLarge(
                        f"payload is over the limit of {FILE_BYTES_MAX} bytes: enqueue a reference "
                        "to where it lies"
                    )
                digest.update(chunk)
                _write_all(descriptor, chunk)
            self._make_alike(descriptor)
            if self._durable:
                os.fsync(descriptor)
            # Over one that is there: it is the same, or damaged.
            os.rename(partial, self.path / digest.hexdigest())
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        finally:
            os.close(descriptor)
        return digest.hexdigest(), size

    def _make_alike(self, descriptor: int) -> None:
        """Give the file the rights and the owner of the database, as SQLite does with its log."""
        status = os.stat(self._database)
        with suppress(OSError):  # It is another user's.
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & 0o666)
            os.fchown(descriptor, status.st_uid, status.st_gid)

    def has(self, name: str, size: int) -> bool:
        """Say whether there is a file of this name and size; its content is not looked at."""
        try:
            return (self.path / name).stat().st_size == size
        except OSError:
            return False

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the content in pieces; whoever uses them before the end uses what is unproven.

        Raises:
            PayloadLost: the file is missing, or not what its name says; definite.
            OSError: it can not be read now.
        """
        path = self.path / name
        digest, count = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    count += len(chunk)
                    yield chunk
        except (FileNotFoundError, NotADirectoryError) as error:
            raise PayloadLost(f"{path} is missing") from error
        if digest.hexdigest() != name or count != size:
            raise PayloadLost(f"{path} is damaged: its content is not what its name says")

    def read(self, name: str, size: int) -> bytes:
        """Return the whole content, proven; errors as for `chunks`."""
        return b"".join(self.chunks(name, size))

    def verify(self, name: str, size: int) -> None:
        """Read the whole content and keep nothing; errors as for `chunks`."""
        for _ in self.chunks(name, size):
            pass

    def copy(self, other: "Folder", name: str, size: int) -> None:
        """Take a file over from another folder, proven on the way.

        Raises:
            PayloadLost: it is missing or damaged there; nothing was made here; definite.
            KillproofError: as for `store`.
        """
        self.store(lambda: other.chunks(name, size))

    def link(self, other: "Folder") -> None:
        """Give the files of another folder of this disk a second name here."""
        names = [name for name in other.names() if NAME.fullmatch(name)]
        if not names:
            return
        self._make()
        for name in names:
            try:
                os.link(other.path / name, self.path / name)
            except FileExistsError:
                continue
            except OSError:  # A file system without hard links.
                shutil.copyfile(other.path / name, self.path / name)
        barrier.sync_directory(str(self.path / "any"))
        barrier.sync_directory(str(self.path))

    def names(self) -> list[str]:
        """Return the names of all that lies in the folder, in order."""
        try:
            return sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._known(error) from error

    def drop(self, name: str) -> Path | None:
        """Take a file's name away, which is quick; return what `remove` then removes."""
        dropped = self.path / f".{name}.dropped"
        try:
            os.rename(self.path / name, dropped)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._known(error) from error
        return dropped

    def remove_leavings(self, name: str) -> int:
        """Remove what a dead process has left under this name; return its bytes, 0 if it lives.

        To be called by who holds the lock of the collection alone.
        """
        path = self.path / name
        try:
            if name.endswith(".partial"):
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return _removed(path)
            if name.endswith(".dropped"):
                return _removed(path)
        except (BlockingIOError, FileNotFoundError):
            return 0  # Its writer lives, or has just ended.
        except OSError as error:
            raise self._known(error) from error
        return 0

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Hold the lock of the collection for the block; False: somebody collects or copies."""
        with self._lock_file() as descriptor:
            yield self._is_locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let nobody collect during the block; where there is no folder there is nothing to keep.

        It waits for a collection under way, which is short.
        """
        if not self.path.is_dir():
            yield
            return
        with self._lock_file() as descriptor:
            self._is_locked(descriptor, fcntl.LOCK_SH)
            yield

    def _is_locked(self, descriptor: int, how: int) -> bool:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._known(error) from error
        return True

    @contextmanager
    def _lock_file(self) -> Iterator[int]:
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._known(error) from error
        try:
            self._make_alike(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)


def copy_all(
    files: FilesInUse,
    source: Folder,
    target: Folder,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[str, ...]:
    """Copy files, each proven on the way; return what is wrong with those that could not be.

    Args:
        files: which.
        source: where they are.
        target: where they go.
        progress: called with the bytes done and in all.

    Raises:
        KillproofError: as for `Folder.store`.
        OSError: one can not be read now.
    """
    lost = []
    done, total = 0, sum(size for size, _ in files.values())
    for name, (size, job_id) in sorted(files.items()):
        try:
            target.copy(source, name, size)
        except PayloadLost as error:
            lost.append(f"job {job_id}: {error}")
        done += size
        if progress is not None:
            progress(done, total)
    return tuple(lost)


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


def _removed(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    return size
