"""Start a contender's processes in its own environment, and read what they say.

The supervisor's side of `drivers/loop.py`. As in `crew`: fresh processes in a session of their own,
one JSON line each way, the calls in files.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from killproof_bench import lines
from killproof_bench.peers.catalog import DRIVERS, Peer
from killproof_bench.peers.drivers.loop import COLUMNS, Spec

Calls = npt.NDArray[np.int64]

#: Between "go" and the first call: every worker reads its line before anybody begins.
START_NS = 200_000_000
#: Sixteen interpreters on two busy cores, and a queue that lets one open at a time.
READY_SECONDS = 120.0
#: Making a file of some ten thousand jobs, one by one.
SEED_SECONDS = 300.0
#: After the end: a worker may wait for its last ack, see `loop.LAST_ACK_NS`.
END_SECONDS = 90.0
#: After all have ended, for closing; what takes longer is killed, its figures are written.
CLOSE_SECONDS = 5.0
TICK_SECONDS = 0.2


class PeerFailed(RuntimeError):
    """A contender's process failed; one line that says what it said last."""


def environment(hash_seed: int) -> dict[str, str]:
    """Return the environment of a contender's process: ours, but with nothing said to Python.

    Args:
        hash_seed: Shared by all processes of a round, so that no contender has luck of its own.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYTHONHASHSEED": str(hash_seed)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the workers of one round said and wrote."""

    calls: tuple[Calls, ...]  #: Per worker: rows of begin_ns, end_ns, number of the job.
    facts: Mapping[str, str]
    errors: int
    refused: int
    empty: int
    error_example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A peer and the interpreter that has it."""

    peer: Peer
    program: str
    runtime: str
    packages: tuple[str, ...]

    def command(self, spec: Spec) -> list[str]:
        """Return the command of one process."""
        # Neither our folder nor the user's packages; the driver's own folder neither, where each
        # file has the name of the queue that it imports. Not -I: it ignores PYTHONHASHSEED.
        loop = str(DRIVERS / "loop.py")
        return [
            self.program,
            "-s",
            "-P",
            loop,
            str(self.peer.driver_file),
            json.dumps(asdict(spec)),
        ]

    def ask(self, spec: Spec) -> dict[str, Any]:
        """Run one process to its end and return what it said.

        Raises:
            PeerFailed: It failed, or took too long.
        """
        try:
            done = subprocess.run(
                self.command(spec),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SEED_SECONDS,
                check=False,
                env=environment(0),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{spec.mode} took longer than {SEED_SECONDS:g} s") from None
        if done.returncode or not done.stdout:
            raise PeerFailed(_last_line(done.stderr, done.returncode))
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


class Workers:
    """The worker processes of one round; a context manager."""

    def __init__(self, contender: Contender, spec: Spec, workers: int, hash_seed: int) -> None:
        """Start them.

        Args:
            contender: Whose.
            spec: Of all of them; each gets a number and a file of its own.
            workers: How many.
            hash_seed: PYTHONHASHSEED of all of them.
        """
        folder = Path(spec.folder).parent
        self._specs = [
            replace(spec, worker=number, calls_file=str(folder / f"calls-{number}.bin"))
            for number in range(workers)
        ]
        self._logs = [(folder / f"stderr-{number}.txt").open("w+") for number in range(workers)]
        self._processes = [
            subprocess.Popen(
                contender.command(each),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(hash_seed),
                start_new_session=True,
            )
            for each, log in zip(self._specs, self._logs, strict=True)
        ]
        self._facts: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        lines.end(self._processes)
        for log in self._logs:
            log.close()

    def wait_until_ready(self) -> None:
        """Wait until all have opened the queue and said what they read back."""
        facts = [self._line(number, READY_SECONDS) for number in range(len(self._processes))]
        if any(fact != facts[0] for fact in facts):
            raise PeerFailed(f"the workers' connections differ: {facts}")
        self._facts = facts[0]

    def go(self, seconds: float) -> int:
        """Let all begin together for so long; return when they begin, perf_counter_ns."""
        start_ns = time.perf_counter_ns() + START_NS
        stop_ns = start_ns + round(seconds * 1e9)
        for number in range(len(self._processes)):
            self._tell(number, json.dumps({"start_ns": start_ns, "stop_ns": stop_ns}))
        return start_ns

    def wait_for(self, until_ns: int, tick: Callable[[], None]) -> None:
        """Wait until a moment of perf_counter_ns, telling the display as time passes."""
        while (left := until_ns - time.perf_counter_ns()) > 0:
            time.sleep(min(TICK_SECONDS, left / 1e9))
            tick()

    def stop(self) -> None:
        """Let all end after the job in hand."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)

    def finish(self) -> Outcome:
        """Wait until all have ended, and read what they wrote."""
        numbers = range(len(self._processes))
        ended = [self._line(number, END_SECONDS) for number in numbers]
        for number in numbers:
            self._tell(number, "")
        for process in self._processes:
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return Outcome(
            calls=tuple(
                np.fromfile(spec.calls_file, dtype=np.int64).reshape(-1, COLUMNS)
                for spec in self._specs
            ),
            facts=self._facts,
            errors=sum(each["errors"] for each in ended),
            refused=sum(each["refused"] for each in ended),
            empty=sum(each["empty"] for each in ended),
            error_example=next((e["error_example"] for e in ended if e["error_example"]), ""),
        )

    def _tell(self, number: int, line: str) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._failed(number) from None

    def _line(self, number: int, seconds: float) -> dict[str, Any]:
        process = self._processes[number]
        assert process.stdout is not None
        # Each process writes one line and then waits, so nothing is left behind in the buffer.
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise PeerFailed(f"worker {number} said nothing for {seconds:g} s")
        line = process.stdout.readline()
        if not line:
            raise self._failed(number)
        message: dict[str, Any] = json.loads(line)
        return message

    def _failed(self, number: int) -> PeerFailed:
        status = self._processes[number].wait()
        self._logs[number].seek(0)
        return PeerFailed(_last_line(self._logs[number].read(), status))


def _last_line(text: str, status: int) -> str:
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return said[-1] if said else f"a process ended with status {status} and said nothing"


def ask_all(work: Sequence[tuple[Contender, Spec]], tick: Callable[[str], None]) -> dict[str, str]:
    """Run processes that make files, two at a time, and return what failed, by folder."""

    def one(item: tuple[Contender, Spec]) -> tuple[str, str]:
        contender, spec = item
        try:
            contender.ask(spec)
        except PeerFailed as error:
            return spec.folder, str(error)
        tick(contender.peer.name)
        return spec.folder, ""

    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        return {folder: error for folder, error in pool.map(one, work) if error}
    finally:
        # After a Ctrl-C only those that run are waited for.
        pool.shutdown(cancel_futures=True)
