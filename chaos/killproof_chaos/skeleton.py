"""A new target on the disk: files that pass `lint-target` before a line of them is changed."""

import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Final

NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
NAME_CHARS_MAX: Final = 40

#: What the tiny queue of the skeletons promises, and keeps.
PROMISES: Final[Mapping[str, bool | str]] = {
    "P1": "power",
    **{f"P{number}": True for number in (2, 3, 4, 6, 7, 8, 14, 16, 17)},
}
PARAMETERS: Final[Mapping[str, Any]] = {
    "options": [],
    "lease_ms": 3_000,
    "max_attempts": 5,
    "busy_ms": 10_000,
    # The last attempt of a job may begin when four leases have run out, and behind a backlog.
    "drain_ms": 60_000,
}
#: Handlers that are programs, on a slow machine: each starts an interpreter.
PROGRAMS_PER_SECOND: Final = 20
EDGES: Final[Mapping[str, tuple[str, ...]]] = {
    "start": ("available",),
    "available": ("leased",),
    "leased": ("succeeded", "available", "dead"),
}


class Kind(StrEnum):
    """How the harness reaches a queue."""

    PYTHON = "python"
    COMMAND = "command"
    ISOLATED = "isolated"


def files_of(name: str, kind: Kind) -> dict[str, str]:
    """Return the text of each file of a new target, by its name; the first is the target.

    Raises:
        ValueError: the name cannot be one; the message says what can.
    """
    from killproof_chaos.contract_guide import contract_text  # It imports the judge.

    if not NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise ValueError(
            f"NAME {name!r} must be up to {NAME_CHARS_MAX} small letters, digits and single "
            "hyphens, such as my-queue"
        )
    slow = {"jobs_per_second": PROGRAMS_PER_SECOND} if kind is Kind.COMMAND else {}
    contract = contract_text(PROMISES, {**PARAMETERS, **slow}, EDGES)
    if kind is Kind.COMMAND:
        files = {
            "my_queue_target.toml": _read("command_head.toml") + contract,
            "my_queue_program.py": _read("command_program.py"),
        }
    else:
        text = _read("adapter_target.py")
        files = {
            "my_queue_target.py": _isolated(text) if kind is Kind.ISOLATED else text,
            "my_queue_contract.toml": contract,
        }
    return {_named(file, name): _named(text, name) for file, text in files.items()}


def write(name: str, kind: Kind, folder: Path) -> list[Path]:
    """Write a new target into a folder, and over no file; return what was written.

    Raises:
        ValueError: the name cannot be one, a file of the target is there already, or the folder
            cannot be written; nothing was written then.
    """
    files = {folder / file: text for file, text in files_of(name, kind).items()}
    for path in files:
        if path.exists() or path.is_symlink():
            raise ValueError(f"{path} is there already: give another NAME or --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ValueError(
            f"--output {str(folder)!r} cannot be written ({error.strerror}): give another folder"
        ) from None
    return list(files)


def _read(file: str) -> str:
    return resources.files("killproof_chaos.skeletons").joinpath(file).read_text(encoding="utf-8")


def _isolated(text: str) -> str:
    """Describe an environment of its own; empty, for the tiny queue needs no package."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    described = (
        "    # All packages that the queue needs, pinned: (Package(name=..., version=...), ...).\n"
        f'    peer = PythonPeer(name="my-queue", python="{python}", packages=())\n'
    )
    importing = "from killproof_evidence.contract import Contract\n"
    package = "from killproof_evidence.isolated import PythonPeer\n"
    before = text[: text.index("    # Where the queue needs an environment")]
    after = text[text.index("    peer = None\n") + len("    peer = None\n") :]
    return (before + described + after).replace(importing, importing + package)


def _named(text: str, name: str) -> str:
    """Put the name in for `my-queue`, as each language writes it."""
    camel = "".join(part.capitalize() for part in name.split("-"))
    snake = name.replace("-", "_")
    return text.replace("my-queue", name).replace("my_queue", snake).replace("MyQueue", camel)
