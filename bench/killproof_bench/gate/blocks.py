"""One block of layer 2: four arms in the order ABBA or BAAB, each of fresh worker processes.

Within a block the arms share the hash seed, the seed of the jobs and the calls that make the file,
and their environments have the same size; between blocks all of these differ. What is left to
differ inside a block is the code, and chance.

Whether a block counts is decided by what the rest of the machine did meanwhile, and never by its
times or its labels: a disturbed block is measured again as a whole, all four arms.
"""

import contextlib
import json
import math
import os
import random
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from killproof_bench import ledger, machine
from killproof_bench.gate import sequential
from killproof_bench.gate.checkout import Tree
from killproof_bench.gate.result import Block
from killproof_bench.result import Correctness

#: The two orders of a block: each side has the same mean place in time, so a drift cancels.
ORDERS: Final = ("ABBA", "BAAB")
#: Calls of the first moments fill caches; in 0.1 s they are some hundreds.
WARM_SECONDS: Final = 0.1
#: Fewer calls than this make an arm coarse; its length follows from the measured rate.
OPS_MIN: Final = 1_000
#: Longer arms bought no power for their time, for what varies is the process (`gate-proof`).
SECONDS_MIN: Final = 0.3
SECONDS_MAX: Final = 3.0
#: How far above `OPS_MIN` an arm aims, so that a slower moment still reaches it.
OPS_MARGIN: Final = 1.3
#: As in `arm.py`: the length of an arm is a multiple.
SLICE_SECONDS: Final = 0.05
#: Jobs of a pilot arm, which finds the rate; and how much faster a later arm may be.
PILOT_JOBS: Final = 4_000
PILOT_SECONDS: Final = 0.2
BACKLOG_MARGIN: Final = 2.5
#: Between "go" and the first call: every worker reads its line before anybody begins.
START_NS: Final = 10_000_000
#: No arm takes a fifth of this on any machine that can run the gate.
ANSWER_SECONDS: Final = 60.0
#: A block is disturbed above these shares: by the hypervisor, by other programs (kernel threads
#: that serve the arms stay below), or where somebody waited for a processor more of the time than
#: two workers and their supervisor do to each other on two cores.
STEAL_MAX: Final = 0.02
FOREIGN_CPU_MAX: Final = 0.05
PRESSURE_CPU_MAX: Final = 0.15

ARM: Final = Path(__file__).with_name("arm.py")


class ArmError(RuntimeError):
    """A worker process failed to start or to answer: the tool failed, exit 3."""


class Incorrect(RuntimeError):
    """An arm did what no queue may do: the run is void, exit 3."""

    def __init__(self, correctness: Correctness) -> None:
        super().__init__("; ".join(correctness.because))
        self.correctness = correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every arm does."""

    workers: int
    durability: str
    seconds: float  #: Measured time, a multiple of 0.05.
    backlog: int
    hold: bool = False  #: Whether to time the hold of the lock, which costs some time itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm's outcome."""

    ops: int
    seconds: float
    slices: tuple[int, ...]  #: Of `arm.SLICE_NS`: calls that ended in each.
    jobs: int  #: Acked and accounted for, those of the warm-up too.
    hold_us: float  #: Median hold of SQLite's lock by the first worker; 0 where not asked for.
    checkpoints: int  #: Complete ones, by the log's own count of its restarts.

    @property
    def us_per_op(self) -> float:
        """Time of the machine for one ack and claim, all workers together."""
        # No call ended: the time is at least all of it, and that is enough to tell.
        return self.seconds * 1e6 / max(1, self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One block, and what does not belong to its record."""

    block: Block
    disturbed: bool  #: It does not count, and is measured again.
    jobs: int  #: Accounted for by the ledger.
    checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What the rest of the machine did while a block ran, as shares."""

    steal: float
    foreign_cpu: float
    pressure_cpu: float

    @property
    def is_too_much(self) -> bool:
        """Whether the block has to be measured again; it never looks at the block's times."""
        return (
            self.steal > STEAL_MAX
            or self.foreign_cpu > FOREIGN_CPU_MAX
            or self.pressure_cpu > PRESSURE_CPU_MAX
        )


def pilot(folder: Path, sides: Sequence[Tree], *, workers: int, durability: str) -> Load:
    """Find how long an arm has to be, from one short arm of each side that counts for nothing."""
    load = Load(workers=workers, durability=durability, seconds=PILOT_SECONDS, backlog=PILOT_JOBS)
    while True:
        try:
            arms = [run_arm(folder, side, load, hash_seed=0, job_seed=0) for side in sides]
            break
        except RanDry:
            load = Load(
                workers=workers,
                durability=durability,
                seconds=PILOT_SECONDS,
                backlog=4 * load.backlog,
            )
    slowest = min(arm.ops / arm.seconds for arm in arms)
    fastest = max(arm.ops / arm.seconds for arm in arms)
    seconds = min(SECONDS_MAX, max(SECONDS_MIN, OPS_MARGIN * OPS_MIN / max(slowest, 1.0)))
    return Load(
        workers=workers,
        durability=durability,
        seconds=round(math.ceil(seconds / SLICE_SECONDS) * SLICE_SECONDS, 2),
        backlog=round(BACKLOG_MARGIN * fastest * (seconds + WARM_SECONDS)) + 100,
    )


def run_block(
    folder: Path, base: Tree, head: Tree, load: Load, coin: random.Random, position: int
) -> Measured:
    """Run one block and say whether it counts.

    Raises:
        Incorrect: An arm lost a job or did one twice.
        ArmError: A worker failed.
    """
    order = coin.choice(ORDERS)
    hash_seed, job_seed = coin.randrange(2**32), coin.randrange(2**32)
    sides = {"A": base, "B": head}
    before, waited, begin = machine.now(), waited_us(), time.perf_counter_ns()
    arms = [
        run_arm(folder, sides[side], load, hash_seed=hash_seed, job_seed=job_seed) for side in order
    ]
    spent_us = (time.perf_counter_ns() - begin) / 1e3
    noise = machine.noise(before, machine.now(), [])
    disturbance = Disturbance(
        steal=noise.steal,
        foreign_cpu=noise.foreign_cpu,
        pressure_cpu=(waited_us() - waited) / spent_us,
    )
    first, second, third, final = arms
    times = (first.us_per_op, second.us_per_op, third.us_per_op, final.us_per_op)
    block = Block(
        position=position,
        order=order,
        us_per_op=times,
        ops=(first.ops, second.ops, third.ops, final.ops),
        d=sequential.log_ratio(times, order),
        hash_seed=hash_seed,
        steal=disturbance.steal,
        foreign_cpu=disturbance.foreign_cpu,
        pressure_cpu=disturbance.pressure_cpu,
    )
    return Measured(
        block=block,
        disturbed=disturbance.is_too_much,
        jobs=sum(arm.jobs for arm in arms),
        checkpoints=sum(arm.checkpoints for arm in arms),
    )


class RanDry(ArmError):
    """The jobs ran out before the time was over: the arm needs a larger backlog."""


def run_arm(folder: Path, tree: Tree, load: Load, *, hash_seed: int, job_seed: int) -> Arm:
    """Run one arm in a folder of its own, judge it, and remove what it made."""
    place = folder / "arm"
    place.mkdir()
    side = tree.folder.name  # `base` or `head`: who failed is the first thing to know.
    try:
        with Workers(place / "queue.db", tree, load, hash_seed, job_seed) as workers:
            told, checkpoints = workers.run(load)
        return _judged(place / "queue.db", load, told, checkpoints)
    except RanDry:
        raise
    except ArmError as error:
        raise ArmError(f"{side}: {error}") from error
    except Incorrect as error:
        because = tuple(f"{side}: {reason}" for reason in error.correctness.because)
        raise Incorrect(replace(error.correctness, because=because)) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Workers:
    """The worker processes of one arm; a context manager that leaves none behind."""

    def __init__(
        self, database: Path, tree: Tree, load: Load, hash_seed: int, job_seed: int
    ) -> None:
        self._tree = tree
        self._database = database
        # Files: a pipe that nobody reads would stop a worker that says much.
        self._logs = [
            (database.parent / f"stderr-{index}.txt").open("w+") for index in range(load.workers)
        ]
        self._processes = [
            self._start(
                {
                    "index": index,
                    "database": str(database),
                    "durability": load.durability,
                    "backlog": load.backlog,
                    "job_seed": job_seed,
                    "hold": load.hold,
                },
                environment(tree, hash_seed),
                log,
            )
            for index, log in enumerate(self._logs)
        ]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        for log in self._logs:
            log.close()

    def run(self, load: Load) -> tuple[list[dict[str, Any]], int]:
        """Let the first make the file, the others open it, and all begin together.

        Returns:
            What each worker tells, and how many complete checkpoints there were.
        """
        numbers = range(len(self._processes))
        self._check_ours(self._line(0))
        for number in numbers[1:]:
            self._tell(number, "")
        for number in numbers[1:]:
            self._check_ours(self._line(number))
        start_ns = time.perf_counter_ns() + START_NS
        measure_ns = start_ns + round(WARM_SECONDS * 1e9)
        order = {
            "start_ns": start_ns,
            "measure_ns": measure_ns,
            "stop_ns": measure_ns + round(load.seconds * 1e9),
        }
        for number in numbers:
            self._tell(number, json.dumps(order))
        told = [self._line(number) for number in numbers]
        checkpoints = _restarts(Path(f"{self._database}-wal"))
        for number in numbers:
            self._tell(number, "")
        for number, process in enumerate(self._processes):
            try:
                status = process.wait(ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                raise ArmError(f"a worker did not end within {ANSWER_SECONDS:g} s") from None
            if status:
                raise self._ended(number)
        return told, checkpoints

    def _check_ours(self, told: dict[str, Any]) -> None:
        # An installed killproof that came first on the path would be compared with itself.
        if not Path(told["killproof"]).is_relative_to(self._tree.source):
            raise ArmError(f"a worker of {self._tree.folder} imported {told['killproof']}")

    def _tell(self, number: int, line: str) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._ended(number) from None

    def _line(self, number: int) -> dict[str, Any]:
        pipe = self._processes[number].stdout
        assert pipe is not None
        # Each process writes one line and then waits, so nothing is left behind in the buffer.
        if not select.select([pipe], [], [], ANSWER_SECONDS)[0]:
            raise ArmError(f"a worker said nothing for {ANSWER_SECONDS:g} s")
        line = pipe.readline()
        if not line:
            raise self._ended(number)
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            raise ArmError(f"a worker printed {line.strip()[:200]!r}, no answer") from None
        return message

    def _ended(self, number: int) -> ArmError:
        status = self._processes[number].wait()
        self._logs[number].seek(0)
        lines = self._logs[number].read().strip().splitlines() or ["(no message)"]
        return ArmError(f"a worker ended with status {status}: {lines[-1]}")

    @staticmethod
    def _start(
        spec: dict[str, Any], environment: dict[str, str], log: IO[str]
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-S", "-P", str(ARM), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )


def environment(tree: Tree, hash_seed: int) -> dict[str, str]:
    """Return the whole environment of a worker: the same names for both sides, values as long."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
        if name in os.environ
    }
    return kept | {
        "PYTHONPATH": str(tree.source),
        "PYTHONHASHSEED": f"{hash_seed:010d}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def waited_us() -> int:
    """Return for how long in all somebody has waited for a processor; 0 without PSI."""
    try:
        text = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return 0
    return int(text.split("total=", 1)[1].split(None, 1)[0])


def _judged(database: Path, load: Load, told: Sequence[dict[str, Any]], checkpoints: int) -> Arm:
    if any(each["dry"] for each in told):
        raise RanDry(f"{load.backlog} jobs ran out within {load.seconds:g} s")
    accounts = [
        ledger.Account(worker=each["worker"], acked=each["acked"], error=each["error"])
        for each in told
    ]
    correctness = ledger.judge(load.backlog, accounts, stored(database))
    if correctness.verdict != "pass":
        raise Incorrect(correctness)
    slices = tuple(sum(column) for column in zip(*(each["slices"] for each in told), strict=True))
    return Arm(
        ops=sum(slices),
        seconds=load.seconds,
        slices=slices,
        jobs=correctness.jobs,
        hold_us=told[0]["hold_us"],
        checkpoints=checkpoints,
    )


def _restarts(log: Path) -> int:
    """Return how often the log has begun anew; 0 where a revision keeps none.

    This process has no connection to the file, and the log carries no locks.
    """
    try:
        with log.open("rb") as file:
            return int.from_bytes(file.read(16)[12:], "big")
    except FileNotFoundError:
        return 0


def stored(database: Path) -> ledger.Stored:
    """Read what the ledger compares with; of the schema only what every revision has."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        (deliveries,) = connection.execute("SELECT sum(deliveries) FROM job").fetchone()
        done = connection.execute("SELECT job_id, worker FROM attempt WHERE outcome = 'succeeded'")
        return ledger.Stored(
            counts=dict(connection.execute("SELECT state, count(*) FROM job GROUP BY state")),
            done=dict(done),
            attempts=connection.execute("SELECT count(*) FROM attempt").fetchone()[0],
            deliveries=deliveries,
            integrity="; ".join(
                str(line) for (line,) in connection.execute("PRAGMA integrity_check")
            ),
        )
