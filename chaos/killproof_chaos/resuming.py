"""Stores that a later run goes on with: one folder, one code, one process at a time.

What older code has found says nothing of this one, so a store carries a word that changes with any
source of the queue, the judge or the harness, and a run of other code refuses it.
"""

import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import killproof
import killproof_chaos
import killproof_evidence
from killproof_chaos.command import STORES

#: The file that holds the word.
CODE: Final = "code.txt"
#: A public queue behind a command line is described by a TOML file; one for Node has a script.
SOURCES: Final = ("*.py", "*.sql", "*.c", "*.toml", "*.js", "*.mjs")


def place_of(store: Path | None, word: str = "power") -> Path:
    """Return the store: a new folder, or that of a run of the same code that may go on.

    Args:
        store: the user's choice; None: a folder named by the word and the time.
        word: the command's.

    Raises:
        ValueError: the folder holds something else; definite.
    """
    folder = store or Path(STORES) / f"{word}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--store {str(folder)!r} cannot be made ({error.strerror}): give a new folder"
        ) from None
    print(f"evidence in {folder}", file=sys.stderr)
    mine, note = code(), folder / CODE
    if not any(folder.iterdir()):
        note.write_text(mine, encoding="utf-8")
    elif not note.exists():
        raise ValueError(f"--store {str(folder)!r} is not empty: give a new folder")
    elif note.read_text(encoding="utf-8") != mine:
        # What older code found says nothing of this one.
        raise ValueError(f"--store {str(folder)!r} is of a run of other code: give a new folder")
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the store for this process: two would remove each other's files, and count twice.

    Raises:
        ValueError: another process makes its runs there; definite.
    """
    with (folder / CODE).open("rb") as note:
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"--store {str(folder)!r} is in use by another run: wait, or give a new folder"
            ) from None
        yield


def code() -> str:
    """Return a word that changes with any source of the queue, the judge or the harness."""
    digest = blake2b(digest_size=16)
    for package in (killproof, killproof_evidence, killproof_chaos):
        root = Path(package.__path__[0])
        for path in sorted(path for kind in SOURCES for path in root.rglob(kind)):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
