"""Folders in memory are given back, also those of owners that were killed."""

import os
import subprocess
import sys
from pathlib import Path

from killproof_chaos import memory


def pid_of_the_dead() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_the_folder_of_a_dead_owner_is_removed_by_whoever_comes_next(tmp_path: Path) -> None:
    left = tmp_path / f"{memory.PREFIX}sim-{pid_of_the_dead()}-x"
    left.mkdir()
    (left / "queue.db").write_text("x")
    assert memory.folder("sim", parent=tmp_path).is_dir()
    assert not left.exists()


def test_folders_of_the_living_and_of_others_are_left_alone(tmp_path: Path) -> None:
    mine = memory.folder("crash", parent=tmp_path)
    init = tmp_path / f"{memory.PREFIX}disk-1-x"
    init.mkdir()
    foreign = tmp_path / "killproof-notes-of-somebody-else"
    foreign.mkdir()
    memory.folder("sim", parent=tmp_path)
    assert mine.is_dir()
    assert init.is_dir()
    assert foreign.is_dir()


def test_without_memory_it_is_a_temporary_folder(tmp_path: Path) -> None:
    made = memory.folder("sim", parent=tmp_path / "none")
    assert made.is_dir()
    assert f"-{os.getpid()}-" in made.name
    made.rmdir()
