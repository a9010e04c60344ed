"""An exception out of a signal handler (Ctrl-C, somebody's time limit) at every moment of a call.

The interpreter runs signal handlers when a function begins and when a call into C returns.  A
profiler is called at the same moments, and what it raises goes the same way: so each call is
repeated with an interruption at its first, second, ... such moment, until one gets through without.
(Generators are left out: what is raised where one goes on would pass its own `finally`.)
"""

import fcntl
import inspect
import itertools
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest

from killproof import Lease, OutcomeUnknown, Queue


class Interrupted(BaseException):
    """What the signal handler raises."""


def interrupt(call: Callable[[], object], at: int) -> bool:
    """Call, and raise at this moment of the call; False if the call has fewer."""
    left = at

    def profiler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        begins = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if not (begins or event == "c_return"):
            return
        left -= 1
        if left == 0:
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(profiler)
    try:
        call()
    except (Interrupted, OutcomeUnknown):
        return True
    finally:
        sys.setprofile(None)
    return left <= 0


def is_free(path: str) -> bool:
    """Whether nobody is in the turnstile."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def claimed(queue: Queue) -> Lease:
    queue.enqueue("k", 1)
    lease = queue.claim()
    assert lease is not None
    return lease


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("name", ["enqueue", "claim", "ack", "get"])
def test_an_interrupted_call_leaves_no_transaction_and_no_lock(
    place: Path, name: str, durability: str
) -> None:
    """Left open, a transaction stopped every other process until this one ended."""
    path = str(place / "q.db")
    with (
        Queue(path, durability=durability) as queue,  # type: ignore[arg-type]
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
    ):
        claimed(queue)
        for at in itertools.count(1):
            lease = claimed(queue) if name == "ack" else None
            calls: dict[str, Callable[[], object]] = {
                "enqueue": lambda: queue.enqueue("k", 2),
                "claim": lambda: queue.claim(),
                "ack": lambda lease=lease: queue.ack(lease),  # type: ignore[misc]
                "get": lambda: queue.get(1),
            }
            was_interrupted = interrupt(calls[name], at)

            other.execute("BEGIN IMMEDIATE")
            other.execute("COMMIT")
            assert queue.get(1) is not None
            queue.enqueue("k", 3)
            assert is_free(f"{path}.turnstile")
            if not was_interrupted:
                break
    assert at > 20
