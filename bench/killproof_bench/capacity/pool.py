"""The processes of a capacity run, told slice by slice what to do: the supervisor's side.

Like `crew.Crew`, whose processes make one round each; these stay and make many.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from killproof_bench import lines
from killproof_bench.crew import END_SECONDS, READY_SECONDS, TICK_SECONDS, Calls, CrewError
from killproof_bench.ledger import Account
from killproof_bench.load import Ended, Spec
from killproof_bench.recording import COLUMNS, SERVED_COLUMNS, Served

#: Between the order and the first call: every process reads its line before anybody begins.
START_NS = 30_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice that has ended."""

    begin_ns: int  #: Of the measured part, perf_counter_ns.
    end_ns: int
    ended: tuple[Ended, ...]  #: Of the processes that had something to do, in their order.


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the processes wrote down over the whole run."""

    accounts: tuple[Account, ...]
    calls: tuple[Calls, ...]  #: Per process: rows of `recording.Call`.
    served: tuple[Calls, ...]  #: Per process: rows of `recording.Served`.


class Pool:
    """Processes on one file; a context manager that leaves none behind."""

    def __init__(self, database: Path, count: int, *, synchronous: str, seed: int) -> None:
        """Start the processes.

        Args:
            database: The file; its folder takes the tables.
            count: How many.
            synchronous: As the durability says; killproof's own arm reads it from the file.
            seed: PYTHONHASHSEED of all.
        """
        self._specs = [
            Spec(
                arm="killproof",
                database=str(database),
                synchronous=synchronous,
                calls_file=str(database.parent / f"calls-{index}.bin"),
                calls_max=0,
                timed=True,
            )
            for index in range(count)
        ]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "killproof_bench.capacity.member", json.dumps(asdict(spec))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
            for spec in self._specs
        ]
        #: Pragmas as the first process read them back.
        self.facts: dict[str, str] = {}
        self._names: list[str | None] = [None] * count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        lines.end(self._processes)

    def wait_until_ready(self) -> None:
        """Wait until all have opened the file.

        Raises:
            CrewError: One has ended.
        """
        for process in self._processes:
            facts = lines.answer(process, READY_SECONDS)
            self.facts = {name: str(value) for name, value in facts.items()}

    def slice(
        self,
        changes: Mapping[int, Mapping[str, object]],
        *,
        warmup_seconds: float,
        seconds: float,
        tick: Callable[[], None],
    ) -> Slice:
        """Let some processes work for a while.

        Args:
            changes: For each process that is to work, the fields of its `Spec` that change.
            warmup_seconds: Before the measured part.
            seconds: Of the measured part.
            tick: Called a few times a second.

        Raises:
            CrewError: One has ended, or an error has reached it.
        """
        start_ns = time.perf_counter_ns() + START_NS
        stop_ns = start_ns + round((warmup_seconds + seconds) * 1e9)
        for index, fields in changes.items():
            order = {"start_ns": start_ns, "stop_ns": stop_ns, "changes": dict(fields)}
            lines.tell(self._processes[index], json.dumps(order))
        try:
            while (left := stop_ns - time.perf_counter_ns()) > 0:
                time.sleep(min(TICK_SECONDS, left / 1e9))
                tick()
        except KeyboardInterrupt:
            for index in changes:  # To each its deadline is now.
                self._processes[index].send_signal(signal.SIGTERM)
            raise
        finally:
            # Also after Ctrl-C: their answers must not be taken for those of the next slice.
            ended = [self._answer(index) for index in changes]
        begin_ns = start_ns + round(warmup_seconds * 1e9)
        return Slice(begin_ns=begin_ns, end_ns=stop_ns, ended=tuple(ended))

    def written(self) -> Written:
        """Read what the processes have written down so far; between two slices nobody writes."""
        calls = tuple(_table(spec.calls_file, COLUMNS) for spec in self._specs)
        served = tuple(_table(f"{spec.calls_file}.jobs", SERVED_COLUMNS) for spec in self._specs)
        return Written(
            accounts=tuple(
                Account(worker=name, acked=jobs[:, Served.JOB].tolist(), error=None)
                for name, jobs in zip(self._names, served, strict=True)
            ),
            calls=calls,
            served=served,
        )

    def finish(self) -> None:
        """End all processes.

        Raises:
            CrewError: One failed.
        """
        for process in self._processes:
            lines.tell(process, "")
        lines.wait_for_end(self._processes, END_SECONDS)

    def _answer(self, index: int) -> Ended:
        end = Ended(**lines.answer(self._processes[index], END_SECONDS))
        self._names[index] = end.worker or self._names[index]
        if end.error is not None:
            raise CrewError(f"an error reached a worker: {end.error}")
        return end


def _table(path: str, columns: int) -> Calls:
    try:
        return np.fromfile(path, dtype=np.int64).reshape(-1, columns)
    except FileNotFoundError:  # It has had nothing to do yet.
        return np.zeros((0, columns), dtype=np.int64)


def workers(count: int, *, job_ms: float = 0.0) -> dict[int, dict[str, object]]:
    """Return the orders of a closed loop: the first so many processes work."""
    return {index: {"job_ms": job_ms} for index in range(count)}


def crowd(
    *, workers: int, producers: int, job_ms: float, rate_per_s: float, seeds: Sequence[int]
) -> dict[int, dict[str, object]]:
    """Return the orders of an open loop: producers with random arrivals, and workers that wait."""
    orders: dict[int, dict[str, object]] = {
        index: {"job_ms": job_ms, "fed": True} for index in range(workers)
    }
    for place in range(producers):
        orders[workers + place] = {
            "role": "producer",
            "rate_per_s": rate_per_s / producers,
            "seed": seeds[place],
        }
    return orders
