"""Start worker processes on one file, run them together, and read what they wrote down.

The supervisor's side of `load`. Workers are fresh processes in a session of their own, so that a
Ctrl-C reaches the supervisor alone, which then ends them; they also end when its pipe closes.
A worker's array is read with numpy here, never there.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from killproof_bench import lines
from killproof_bench.ledger import Account
from killproof_bench.lines import CrewError as CrewError
from killproof_bench.load import Ended, Spec
from killproof_bench.recording import COLUMNS, SERVED_COLUMNS, Call, Kind, Served
from killproof_bench.result import LockWatch, decode
from killproof_evidence.lifetime import die_with_parent

Calls = npt.NDArray[np.int64]

#: Between "go" and the first call: every worker reads its line before anybody begins.
START_NS = 200_000_000
#: Sixteen interpreters on one slow core start well within this.
READY_SECONDS = 120.0
#: After the end of the measured time: the reference's busy handler may still wait 30 s.
END_SECONDS = 60.0
#: How often the live display moves while the workers work.
TICK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the workers of one round wrote down."""

    accounts: tuple[Account, ...]
    calls: tuple[Calls, ...]  #: Per process, in the order of the specs: rows of `recording.Call`.
    served: tuple[Calls, ...]  #: Likewise: rows of `recording.Served`.
    ended: tuple[Ended, ...]
    enqueued: tuple[int, ...]  #: Ids that the producers were given.
    facts: dict[str, str]  #: Pragmas as the first worker read them back; all agree.
    watch: LockWatch
    ran_dry: bool


class Crew:
    """The worker processes of one round and the process that watches them; a context manager."""

    def __init__(self, specs: Sequence[Spec], *, hash_seed: int) -> None:
        """Start the processes.

        Args:
            specs: One per worker, all on the same file.
            hash_seed: PYTHONHASHSEED: the two arms of a pair share it.
        """
        self._specs = specs
        self._environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._observer: subprocess.Popen[str] | None = None
        self._facts: dict[str, str] = {}
        self.workers = [
            self._start("killproof_bench.load", json.dumps(asdict(spec))) for spec in specs
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        lines.end(self._processes())

    def wait_until_ready(self) -> None:
        """Wait until all workers have opened the file and said which pragmas they read back.

        Raises:
            CrewError: A worker ended, or their answers differ.
        """
        facts = [lines.answer(process, READY_SECONDS) for process in self.workers]
        if any(fact != facts[0] for fact in facts):
            raise CrewError(f"the workers' connections differ: {facts}")
        self._observer = self._start("killproof_bench.observe", self._specs[0].database)
        self._facts = {name: str(value) for name, value in facts[0].items()}

    def go(self, seconds: float) -> int:
        """Let all workers begin together for so long; return when they begin, perf_counter_ns."""
        start_ns = time.perf_counter_ns() + START_NS
        order = {"start_ns": start_ns, "stop_ns": start_ns + round(seconds * 1e9)}
        for process in self.workers:
            lines.tell(process, json.dumps(order))
        return start_ns

    def stop(self) -> None:
        """Let all workers end after the call in flight."""
        for process in self.workers:
            process.send_signal(signal.SIGTERM)

    def wait_for(self, until_ns: int, tick: Callable[[], None]) -> None:
        """Wait until a moment of perf_counter_ns, telling the display as time passes."""
        while (left := until_ns - time.perf_counter_ns()) > 0:
            time.sleep(min(TICK_SECONDS, left / 1e9))
            tick()

    def finish(self) -> Outcome:
        """Wait until all workers have ended, and read what they wrote down.

        Raises:
            CrewError: A worker or the observer failed.
        """
        ended = [Ended(**lines.answer(process, END_SECONDS)) for process in self.workers]
        watch = self._end_observer()
        for process in self.workers:
            lines.tell(process, "")
        lines.wait_for_end(self.workers, END_SECONDS)
        calls = tuple(
            np.fromfile(spec.calls_file, dtype=np.int64).reshape(-1, COLUMNS)
            for spec in self._specs
        )
        served = tuple(
            np.fromfile(f"{spec.calls_file}.jobs", dtype=np.int64).reshape(-1, SERVED_COLUMNS)
            for spec in self._specs
        )
        return Outcome(
            accounts=tuple(
                Account(worker=end.worker, acked=jobs[:, Served.JOB].tolist(), error=end.error)
                for end, jobs in zip(ended, served, strict=True)
            ),
            calls=calls,
            served=served,
            ended=tuple(ended),
            enqueued=tuple(job for call in calls for job in _enqueued(call)),
            facts=self._facts,
            watch=watch,
            ran_dry=any(end.ran_dry for end in ended),
        )

    def _start(self, module: str, argument: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", module, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),  # One that is stopped reads no EOF.
        )

    def _end_observer(self) -> LockWatch:
        assert self._observer is not None
        assert self._observer.stdin is not None
        self._observer.stdin.close()
        watch = decode(LockWatch, lines.answer(self._observer, END_SECONDS))
        self._observer.wait()
        return watch

    def _processes(self) -> "list[subprocess.Popen[str]]":
        return [*self.workers, *([self._observer] if self._observer is not None else [])]


def _enqueued(calls: Calls) -> list[int]:
    made = calls[calls[:, Call.KIND] == Kind.ENQUEUE]
    # A batch has consecutive ids: it is inserted under one lock.
    return [
        job
        for first, size in made[:, [Call.JOB, Call.JOBS]].tolist()
        for job in range(first, first + size)
    ]


def specs(
    folder: Path, arm: str, workers: int, *, backlog: int, synchronous: str, stoppable: bool = False
) -> list[Spec]:
    """Return one spec per worker on `queue.db` in this folder."""
    return [
        Spec(
            arm=arm,
            database=str(folder / "queue.db"),
            synchronous=synchronous,
            calls_file=str(folder / f"calls-{index}.bin"),
            calls_max=backlog,
            stoppable=stoppable,
        )
        for index in range(workers)
    ]
