"""Whether the command line of a target's worker works at all, tried where nothing was killed.

A command that names a wrong program, or a target that it does not find, ends at once and leaves all
jobs where they are. After a kill that looks like a queue that does not get on any more; on a sound
file it looks the same, and then it says nothing of the queue.
"""

import os
from contextlib import suppress
from typing import Any

from killproof_chaos.engines import crash_life
from killproof_chaos.engines.crash_process import (
    Ended,
    last_line,
    last_words,
    start,
    stop,
    wait,
    wait_while,
)
from killproof_evidence.store import Store


def failed_by_itself(ended: Ended | None) -> bool:
    """Whether a worker has ended unasked with a status of its own that is not 0."""
    return ended is not None and not ended.hung and os.WIFEXITED(ended.status) and ended.status != 0


def why_not_started(target: Any, store: Store) -> str:
    """Start a worker by its command line on a queue in which one job waits.

    Args:
        target: the queue.
        store: an empty one; the queue is made in it.

    Returns:
        why it never came to that job, which is the set-up's fault; empty: it did, or nobody knows.
    """
    log = store.path / "child.log"
    if wait(start(lambda: crash_life.prepare(target, store, crash_life.PRODUCE), log)).status:
        return ""
    before = _look(target, store)
    budget = crash_life.budget(target)
    pid = crash_life.start_worker(target, store, "worker", argv=True)
    ended = wait_while(
        pid,
        lambda: _look(target, store) in (before, None) and budget.is_left(),
        pause=crash_life.LOOK_SECONDS,
    )
    if ended is None:
        stop(pid)
    crash_life.kill_group(pid)
    if not failed_by_itself(ended) or _look(target, store) != before:
        return ""
    assert ended is not None
    words = last_line(last_words(store.path, "worker.log"))
    return f"the command of a worker {ended.words} on a sound file, and claims no job: {words}"


def _look(target: Any, store: Store) -> list[Any] | None:
    """Return the jobs; None: the copy could not be read, which while a worker writes means little.

    Once the worker has ended it means that the worker did something to the file.
    """
    with suppress(Exception):  # Whatever a torn copy does to the target's own reader.
        return crash_life.look(target, store.db)
    return None
