"""What one thread keeps open on one database, and what becomes of it at a fork.

Connections are kept, one for each thread.  *None may be inherited through a fork.*  SQLite keeps a
table of the files that the process has locked.  A child inherits the table but not the locks, and
then believes that its own, new connection is protected.  Seen: the parent closed as the last one
that the kernel knew of, the log was deleted under the child, and the child's acknowledged job was
gone.

So every connection is closed just before a fork and opened anew at the next call.  One that another
thread is using, or that is in a transaction of the forking thread, cannot be closed: the child
keeps it, untouched and for ever, and refuses to work on that file.  `subprocess` does not fork in
this sense; multiprocessing's start methods spawn and forkserver do not either.
"""

import ctypes
import os
import sqlite3
import threading
import weakref
from functools import partial

from killproof.core.host import Barrier, Turnstile

#: How long a fork waits for a transaction of another thread, in seconds.
FORK_SECONDS = 1.0

#: What the C library may keep of freed memory before it gives any back, in bytes: twice this.
FREED_BYTES_KEPT = 4 << 20

#: Held while something is opened, and across a fork: nothing may be opened in between.
opening = threading.RLock()
#: Databases of which this process inherited an open connection: it must not touch them.
inherited: set[str] = set()

_handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()


class Handle:
    """A connection, its place at the turnstile, and the log that it writes."""

    def __init__(
        self, path: str, connection: sqlite3.Connection, turnstile: Turnstile, log: Barrier
    ) -> None:
        """Take over what was opened; to be called while holding `opening`."""
        _keep_freed_memory()
        self.path = path
        self.connection = connection
        #: Asks for the write lock.
        self.begin = partial(connection.execute, "BEGIN IMMEDIATE")
        self.turnstile = turnstile
        self.log = log
        self.log_bytes = log.log_bytes()
        #: True in a child that was forked in the middle of a transaction: not ours to touch.
        self.is_inherited = False
        #: Held by the thread during each call, so that nobody closes the connection under it.
        self.in_use = threading.RLock()
        # A thread that ends drops its handle, and so does the end of the process.
        self._closer = weakref.finalize(self, _close, connection, turnstile, log)
        _handles.add(self)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._closer.alive

    def close(self) -> None:
        """Close everything, once the call that uses it has ended."""
        with self.in_use:
            self._closer()

    def keep(self) -> None:
        """Leave everything open for ever: SQLite's connection is leaked on purpose.

        After a disk failure the last close would copy frames into the database that nobody has
        verified.  Another thread may be in the middle of a write, so nothing of ours closes either.
        """
        if self._closer.detach() is not None:
            # Also the end of the interpreter would close it, but for one reference too many.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))

    def abandon(self) -> None:
        """In a forked child: close descriptors of ours only, and nothing of SQLite's.

        Its close would meet the parent's file; unlocking would release the parent's turn.
        """
        self.is_inherited = True
        self.keep()
        self.turnstile.abandon()
        self.log.close()


def _keep_freed_memory() -> None:
    """Let the C library keep the memory that SQLite frees and takes again at each call.

    A commit of another process empties the page cache, about 350 KB.  glibc gives what lies free at
    the top of its heap back to the kernel from 128 KiB on, and each page then comes back by a
    fault: where the heap lies so, 85 faults and a third of the processor time of a job, with 16
    workers.  A large block that is freed raises that limit to twice its size (mallopt(3)); it is
    never touched, and whoever has set a limit keeps it.
    """
    bytes(FREED_BYTES_KEPT)


def _close(connection: sqlite3.Connection, turnstile: Turnstile, log: Barrier) -> None:
    connection.close()
    turnstile.close()
    log.close()


def _before_fork() -> None:
    """Close what can be closed; from here to the end of the fork nothing is opened."""
    opening.acquire()
    for handle in list(_handles):
        if handle.is_open and handle.in_use.acquire(timeout=FORK_SECONDS):
            try:
                if not handle.connection.in_transaction:
                    handle.close()
            finally:
                handle.in_use.release()


def _after_fork_in_child() -> None:
    for handle in list(_handles):
        if handle.is_open:
            inherited.add(handle.path)
            handle.abandon()
    opening.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=opening.release, after_in_child=_after_fork_in_child
)
