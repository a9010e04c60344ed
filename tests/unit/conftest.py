"""Fixtures of the unit tests: a queue under a clock that moves only when told to."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, ManualClock, Queue

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
