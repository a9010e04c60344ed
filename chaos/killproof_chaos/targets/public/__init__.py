"""Queues of other people, each judged through an adapter in a file of its own.

A queue is found by the name of its file, with hyphens: `--target persist-queue`, or
`--target public:persist-queue`. To add one is to add a file. Two of them are controls: the healthy
queues killproof and minimal, judged through the very same adapter.
"""

from functools import cache
from pathlib import Path
from typing import Final

from killproof_evidence.target import Target, load_target

#: May stand before a name, where somebody wants to say that no queue of ours is meant.
PREFIX: Final = "public:"
_FOLDER: Final = Path(__file__).parent
#: A Python adapter, or the description of a queue behind a command line.
_SUFFIXES: Final = (".py", ".toml")


@cache  # The folder is read once: a list of all of them asks for each by its name.
def files() -> dict[str, Path]:
    """Return the file of each queue, by its name, in alphabetical order."""
    found = (path for path in _FOLDER.iterdir() if path.suffix in _SUFFIXES)
    named = {path.stem.replace("_", "-"): path for path in found if path.stem[0] != "_"}
    return dict(sorted(named.items()))


def names() -> tuple[str, ...]:
    """Return their names, in alphabetical order."""
    return tuple(files())


def target(name: str) -> Target:
    """Return the queue of this name; nothing of it is installed for that.

    Raises:
        KeyError: there is none of this name.
    """
    return load_target(str(files()[name]), {})
