"""What of this machine would make a verdict on a target worthless, or surprise its author."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from killproof_chaos.doctor import RAM_FILE_SYSTEMS
from killproof_chaos.lint.remarks import Remark, note, problem
from killproof_evidence import isolated
from killproof_evidence.command import CommandTarget
from killproof_evidence.environment import file_system
from killproof_evidence.target import Target


def remarks(target: Target, place: Path) -> Iterator[Remark]:
    """Yield what is wrong where the target is to be judged.

    Args:
        target: the target.
        place: the folder in which runs would keep their evidence.
    """
    kind = file_system(place)
    if kind in RAM_FILE_SYSTEMS:
        say = problem if target.contract.promised("P1") == "power" else note
        yield say(
            "surroundings",
            f"{place} is on {kind}, a disk in memory, where nothing survives a power cut: "
            "go to a folder on a disk",
        )
    if isinstance(target, CommandTarget):
        yield from _effect_program()
    yield from _versions(getattr(target, "peer", None))


def _effect_program() -> Iterator[Remark]:
    """A worker in another language calls a program of this very installation."""
    name = "killproof-effect"
    found, own = shutil.which(name), Path(sys.executable).with_name(name)
    if found is None:
        remedy = f"PATH={own.parent}:$PATH" if own.exists() else "install killproof here"
        yield problem("surroundings", f"{name} is not on PATH, and workers call it: {remedy}")
    elif own.exists() and not os.path.samefile(found, own):
        yield problem(
            "surroundings",
            f"{found} is of another installation than this harness, and may be of another version: "
            f"PATH={own.parent}:$PATH",
        )


def _versions(peer: Any) -> Iterator[Remark]:
    """Compare what is installed for a queue with what its adapter names."""
    if peer is None:
        return
    if not peer.packages:
        yield note("surroundings", f"the environment of {peer.name} is described without a package")
    try:
        installed = isolated.ensure(peer)
    except isolated.NotInstalled as error:
        yield problem("surroundings", f"the queue's environment cannot be made: {error}")
        return
    versions = {_plain(name): version for name, version in installed.versions.items()}
    for package in peer.packages:
        there = versions.get(_plain(package.name))
        if there != package.version:
            yield problem(
                "surroundings",
                f"{package.name} {package.version} is asked for, and {there or 'none'} is in "
                f"{installed.folder}: remove that folder",
            )


def _plain(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503, without runs of separators)."""
    return name.lower().replace("_", "-").replace(".", "-")
