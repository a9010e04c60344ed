"""Which SQLite libraries a process has loaded: two on one file do not see each other's locks.

POSIX locks belong to a process, not to a library.  Two copies of SQLite in one process, on one
file, both get the write lock, and the close of one drops the locks of the other: rows of one table
end up in the pages of another.  In processes of their own they work together as any two programs.

Nobody can refuse the other library: it opens the file without asking.  But the kernel tells what is
mapped into a process, and that is said: by a worker once, at its start, and by `killproof doctor`
of every worker that it can see.  A library that was linked into the interpreter itself has no name
there, and is not counted.
"""

import logging
import re
from functools import cache
from pathlib import Path, PurePath
from typing import Final

#: SQLite by its own name, and the packages that bring a copy without saying so in the file's name.
NAMES: Final = re.compile(r"sqlite|apsw|sqlcipher", re.IGNORECASE)
#: Python's own module, which is no copy where it uses the system's library.
STANDARD: Final = re.compile(r"/lib-dynload/_sqlite3\.[^/]*$")
SYSTEM: Final = "libsqlite3"

logger = logging.getLogger("killproof.libraries")


def loaded(pid: int | str = "self") -> tuple[str, ...]:
    """Return the files of the SQLite libraries of a process; () if nobody may know.

    It reads what the kernel says of the process, and opens none of its files.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    files = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    found = {file for file in files if ".so" in file and NAMES.search(_name(file))}
    if any(PurePath(file).name.startswith(SYSTEM) for file in found):
        found = {file for file in found if not STANDARD.search(file)}
    return tuple(sorted(found))


def _name(file: str) -> str:
    """Return the part of a path that tells the library: the file, and the package that it is in."""
    path = PurePath(file)
    return f"{path.parent.name}/{path.name}"


def trouble(pid: int | str = "self") -> str | None:
    """Say what is wrong with the libraries of a process, or None."""
    found = loaded(pid)
    if len(found) < 2:
        return None
    return f"{len(found)} SQLite libraries in one process: {', '.join(found)}"


REMEDY: Final = "let no other library open this file in a worker's process; another process may"


@cache
def warn() -> None:
    """Log a warning if this process has two libraries: once, when it begins to work."""
    if (found := trouble()) is not None:
        logger.warning("%s: %s", found, REMEDY)
