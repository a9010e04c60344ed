"""One process of one contender: `python -I loop.py DRIVER.py SPEC`, in the contender's environment.

It stands alone: the standard library, the driver, and what the driver imports; Python 3.11 or
later. Every contender is driven by this same loop, killproof too. The protocol is that of
`killproof_bench.load`: one JSON line of facts, one line in with the moments to begin and to stop,
one line at the end, and the calls in a file.

One job at a time: a job's time runs from the moment at which the worker asks for it to the return
of its ack, through every error and every empty answer in between; where one call acks it and claims
the next, from the return of the call before. A worker that never gets one has a job that never
ended, and that time counts too.
"""

import gc
import importlib.util
import json
import os
import signal
import sqlite3
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: begin_ns, end_ns, number of the job (-1: it never ended): the columns of the array.
COLUMNS = 3
UNFINISHED = -1
#: After "nothing there": a program that asks again at once would burn the others' processor.
EMPTY_SECONDS = 0.001
#: After the end an ack is tried again for so long; then its job stays claimed.
LAST_ACK_NS = 30_000_000_000
#: Opening is tried so often: many a queue cannot be opened by sixteen processes at once.
OPEN_TRIES = 100
OPEN_PAUSE_SECONDS = 0.1
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one process is told at its start."""

    mode: str  #: seed, work, or account: make the file, take jobs, or count what is left.
    arm: str  #: Of the drivers that are more than one contender.
    folder: str  #: The queue's own; it may hold several files.
    level: str  #: seed: as fast as can be; power; shipped: as the queue comes.
    jobs: int = 0
    payload_bytes: int = 0
    worker: int = 0
    calls_file: str = ""
    calls_max: int = 0

    def synchronous(self) -> str | None:
        """Return what PRAGMA synchronous is to be; None: it is not touched."""
        return {"seed": "OFF", "power": "FULL"}.get(self.level)


class Refused(RuntimeError):
    """The queue did not accept an ack: the job is not the worker's any more."""


class Driver(Protocol):
    """What a driver module's `open_queue(spec)` returns.

    A driver whose queue acks and claims in one call has `ack_and_claim(token)` too.
    """

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue them all."""

    def facts(self) -> Mapping[str, str]:
        """Read back what the durability and the locks of the connection in use are set to."""

    def claim(self) -> tuple[int, Any] | None:
        """Take one job: its number, and what `ack` needs."""

    def ack(self, token: Any) -> None:
        """Finish it. Raises `Refused` where the queue says that it was not ours."""

    def account(self) -> Mapping[str, int]:
        """Count the jobs that are `waiting` and those that are `claimed`."""

    def close(self) -> None:
        """Close."""


def pragmas(connection: sqlite3.Connection) -> dict[str, str]:
    """Read back what decides about durability and waiting."""
    return {
        "journal_mode": _value(connection, "PRAGMA journal_mode"),
        "synchronous": SYNCHRONOUS[int(_value(connection, "PRAGMA synchronous"))],
        "autocheckpoint": _value(connection, "PRAGMA wal_autocheckpoint"),
        "busy_timeout": _value(connection, "PRAGMA busy_timeout"),
        "sqlite": sqlite3.sqlite_version,
    }


def _value(connection: sqlite3.Connection, pragma: str) -> str:
    return str(connection.execute(pragma).fetchone()[0])


def set_synchronous(connection: sqlite3.Connection, spec: Spec) -> None:
    """Set PRAGMA synchronous on a queue's own connection, where the spec asks for it."""
    if (wanted := spec.synchronous()) is not None:
        connection.execute(f"PRAGMA synchronous = {wanted}")


def count(database: str, table: str, condition: str = "1") -> int:
    """Count rows of a file that nobody writes any more; the words are a driver's own."""
    connection = sqlite3.connect(database)
    try:
        sql = f"SELECT count(*) FROM {table} WHERE {condition}"  # noqa: S608
        return int(connection.execute(sql).fetchone()[0])
    finally:
        connection.close()


class Deadline:
    """When to stop; SIGTERM brings it forward to now."""

    def __init__(self) -> None:
        self.ns = 0
        signal.signal(signal.SIGTERM, self.expire)

    def expire(self, _signal: int = 0, _frame: object = None) -> None:
        """Stop after the job in hand."""
        self.ns = 0


@dataclass(slots=True)
class Ended:
    """What one worker says at its end."""

    errors: int = 0
    refused: int = 0
    error_example: str = ""
    empty: int = 0
    used: int = field(default=0, repr=False)


def main(driver_file: str, argument: str) -> None:
    """Run one process."""
    spec = Spec(**json.loads(argument))
    driver = _opened(_load(driver_file).open_queue, spec)
    if spec.mode == "seed":
        padding = "x" * (spec.payload_bytes - len('{"n": 0000000, "padding": ""}'))
        driver.seed([{"n": 10**6 + n, "padding": padding} for n in range(spec.jobs)])
        driver.close()
        _say({})
    elif spec.mode == "account":
        found = driver.account()
        driver.close()
        _say(dict(found))
    else:
        _work(driver, spec)


def _work(driver: Driver, spec: Spec) -> None:
    calls = array("q", bytes(8 * COLUMNS * spec.calls_max))
    deadline = Deadline()
    _say(dict(driver.facts()))
    line = sys.stdin.readline()
    if not line:
        return  # The parent is gone.
    order = json.loads(line)
    gc.collect()
    gc.freeze()
    gc.disable()
    deadline.ns = order["stop_ns"]
    time.sleep(max(0, order["start_ns"] - time.perf_counter_ns()) / 1e9)
    ended = drive(driver, calls, deadline)
    with open(spec.calls_file, "wb") as file:
        calls[: ended.used * COLUMNS].tofile(file)
    _say(
        {
            "errors": ended.errors,
            "refused": ended.refused,
            "error_example": ended.error_example,
            "empty": ended.empty,
        }
    )
    # Only when all have stopped does anybody close: closing can move the whole log.
    sys.stdin.readline()
    driver.close()


def drive(driver: Driver, calls: "array[int]", deadline: Deadline) -> Ended:
    """Take job after job until the deadline; the one in hand is finished after it."""
    clock = time.perf_counter_ns
    together: Callable[[Any], tuple[int, Any] | None] | None
    together = getattr(driver, "ack_and_claim", None)
    ended = Ended()
    held: tuple[int, Any] | None = None
    begin = clock()
    vain = False
    while ended.used < len(calls) // COLUMNS:
        if held is None and clock() >= deadline.ns:
            break
        try:
            if held is None:
                held = driver.claim()
                if held is None:
                    ended.empty += 1
                    vain = True
                    time.sleep(EMPTY_SECONDS)
                    continue
            number, token = held
            if together is not None and clock() < deadline.ns:
                held = together(token)
            else:
                driver.ack(token)
                held = None
        except Refused as refused:
            ended.refused += 1
            ended.error_example = ended.error_example or f"refused: {refused}"
            held, vain = None, True
            continue
        except Exception as caught:  # Whatever a queue raises at its worker is counted, by name.
            ended.errors += 1
            example = f"{type(caught).__name__}: {caught}".splitlines()[0]
            ended.error_example = ended.error_example or example
            vain = True
            if clock() >= deadline.ns + LAST_ACK_NS:
                break
            continue
        _record(calls, ended, begin, clock(), number)
        begin, vain = clock(), False
    if vain and ended.used < len(calls) // COLUMNS:
        _record(calls, ended, begin, clock(), UNFINISHED)
    return ended


def _record(calls: "array[int]", ended: Ended, begin: int, end: int, number: int) -> None:
    index = ended.used * COLUMNS
    calls[index] = begin
    calls[index + 1] = end
    calls[index + 2] = number
    ended.used += 1


def _opened(open_queue: Callable[[Spec], Driver], spec: Spec) -> Driver:
    for attempt in range(OPEN_TRIES):
        try:
            return open_queue(spec)
        except Exception:
            if attempt == OPEN_TRIES - 1 or spec.mode != "work":
                raise
            time.sleep(OPEN_PAUSE_SECONDS)
    raise AssertionError


def _load(driver_file: str) -> Any:
    # By its path, under a name that nobody has: a driver has the name of the queue it imports.
    spec = importlib.util.spec_from_file_location("killproof_driver", driver_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["killproof_driver"] = module
    spec.loader.exec_module(module)
    return module


def _say(message: Mapping[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    # Drivers import the names above by their full path, as mypy and the tests do. Where a peer
    # lives there is no killproof_bench, so this file, which is it already, stands in for itself.
    sys.modules["killproof_bench.peers.drivers.loop"] = sys.modules["__main__"]
    status = 0
    try:
        main(sys.argv[1], sys.argv[2])
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    # Not by returning: threads that a queue does not end would keep the process alive for ever.
    os._exit(status)
