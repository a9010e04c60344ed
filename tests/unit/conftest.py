"""Fixtures of the unit tests: a queue under a clock that moves only when told to."""

import io
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, ManualClock, Queue, cli

Run = Callable[..., tuple[int, str, str]]
Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(place: Path, clock: ManualClock) -> Iterator[Queue]:
    """An empty queue; level `process`, because no unit test needs the disk to be waited for."""
    host = Host(clock=clock, random=random.Random(7))
    with Queue(place / "queue.db", durability="process", host=host) as queue:
        yield queue


@pytest.fixture
def sql(queue: Queue) -> Iterator[Sql]:
    """Run a statement as another program would: on a connection of its own, committed at once."""
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
        yield lambda statement, *values: connection.execute(statement, values).fetchall()


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `killproof` in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("KILLPROOF_DB", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["killproof", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
