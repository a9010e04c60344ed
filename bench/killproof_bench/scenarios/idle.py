"""Idle workers: what they cost, and how soon they begin a job that another process enqueues.

Question: does a worker that waits start at once, and does waiting cost nothing?
Primary figures: median and p99 from the call of `enqueue` to the first line of the handler; CPU of
an idle worker; write transactions while all are idle.

The workers are `killproof work` with its defaults.  There are several files, each with workers of
its own: jobs come to a file only now and then, so that its workers are idle again, and still a
thousand starts do not take minutes.
"""

import json
import select
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from killproof import Queue
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.measure import quantile_figure
from killproof_bench.operations import idle_enqueuer, idle_watch
from killproof_bench.operations.result import Idle
from killproof_bench.operations.turns import ChildError, run_child
from killproof_bench.result import ClaimCard, Correctness, Figure
from killproof_bench.scenarios.claim import Durability
from killproof_bench.seeding import PAYLOAD_BYTES

#: Sixteen interpreters on one slow core start well within this; so does the end of the last job.
READY_SECONDS = 60.0
#: Not imported here: who imports it dies with its parent.
HANDLERS = "killproof_bench.operations.idle_handlers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of this scenario measures."""

    files: int = 8
    workers: int = 2  #: On each file.
    jobs: int = 1_000  #: p99 needs as many.
    pause_seconds: float = 0.025  #: Mean pause between two jobs, of all files together.
    settle_seconds: float = 1.0  #: A worker that has just started takes so long to come to rest.
    idle_seconds: float = 8.0
    durability: Durability = "power"
    seed: int = 1

    @property
    def seconds(self) -> float:
        """About how long it takes: sixteen interpreters begin and end besides."""
        return self.idle_seconds + self.jobs * (self.pause_seconds + 0.001) + 6.0


def run(
    folder: Path, plan: Plan, *, environment: Mapping[str, str], tick: Callable[[str], None]
) -> Idle:
    """Start the workers, watch them do nothing, then give them jobs.

    Args:
        folder: An empty folder on the disk to be measured.
        plan: What to measure.
        environment: cpu, filesystem, python and so on, for the claim card.
        tick: Told what is done next.

    Raises:
        ChildError: A process failed.
        KillproofError: The folder cannot keep the durability.
    """
    files = [folder / f"idle-{number}.db" for number in range(plan.files)]
    for file in files:
        Queue(file, durability=plan.durability).close()
    raw = [raw_syncs_per_second(folder)]
    tick("idle workers start")
    with _workers(files, plan.workers) as pids:
        time.sleep(plan.settle_seconds)
        tick("workers idle")
        watched = idle_watch.watch(pids, files, plan.idle_seconds)
        tick("jobs for idle workers")
        spec = idle_enqueuer.Spec(
            files=[str(file) for file in files],
            jobs=plan.jobs,
            pause_seconds=plan.pause_seconds,
            seed=plan.seed,
        )
        told = run_child(idle_enqueuer.__name__, asdict(spec), hash_seed=plan.seed)
        _wait_until_done(files)
    raw.append(raw_syncs_per_second(folder))
    stored = [_stored(file) for file in files]
    correctness = judge(told["calls"], stored)
    return _result(plan, told, stored, watched, environment, tuple(raw), correctness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One job as the file has it."""

    state: str
    deliveries: int
    begun_ns: int | None  #: The handler's result.


def judge(calls: list[tuple[int, int, int, int]], files: list[dict[int, Stored]]) -> Correctness:
    """Compare what the enqueuer was told with the files: each job done once, and no other there."""
    told = [(place, job) for place, job, _, _ in calls]
    because = []
    if len(set(told)) != len(told):
        because.append("an id was told twice")
    in_files = [(place, job) for place, jobs in enumerate(files) for job in jobs]
    if set(told) != set(in_files):
        because.append(f"{len(told)} jobs went in and {len(in_files)} are stored")
    done = [s.state == "succeeded" and s.deliveries == 1 for jobs in files for s in jobs.values()]
    if not all(done):
        because.append(f"{len(done) - sum(done)} jobs were not done exactly once")
    verdict: Any = "violated" if because else "pass"
    return Correctness(verdict=verdict, because=tuple(because), jobs=len(in_files))


def _result(
    plan: Plan,
    told: Mapping[str, Any],
    stored: list[dict[int, Stored]],
    watched: idle_watch.Watched,
    environment: Mapping[str, str],
    raw: tuple[float, ...],
    correctness: Correctness,
) -> Idle:
    """Put the figures together; jobs that were not done have none."""
    begun = [
        (begin_ns, end_ns, started)
        for place, job, begin_ns, end_ns in told["calls"]
        if (started := _begun(stored[place].get(job))) is not None
    ]
    times = np.array(begun or [(0, 0, 0)], dtype=np.int64)
    blocks = (times[:, 0] - times[0, 0]) // 1_000_000_000
    from_call, from_return = times[:, 2] - times[:, 0], times[:, 2] - times[:, 1]
    p50, p99 = (
        quantile_figure(from_call, blocks, permille, seed=plan.seed) for permille in (500, 990)
    )
    return Idle(
        files=plan.files,
        workers=plan.workers,
        durability=plan.durability,
        start_p50_ms=p50,
        start_p99_ms=p99,
        start_max_ms=float(from_call.max()) / 1e6,
        committed_p50_ms=quantile_figure(from_return, blocks, 500, seed=plan.seed),
        idle_seconds=watched.seconds,
        cpu_per_worker=Figure(
            value=statistics.mean(watched.cpu),
            low=min(watched.cpu),
            high=max(watched.cpu),
            n=len(watched.cpu),
        ),
        voluntary_switches_per_s=watched.switches_per_s,
        write_transactions=watched.turns,
        log_changes=watched.changed,
        lock_samples=watched.looks,
        write_locks_seen=watched.held,
        card=_card(plan, told["facts"], environment, p50, correctness),
        raw=raw,
        correctness=correctness,
    )


def _begun(job: Stored | None) -> int | None:
    return None if job is None else job.begun_ns


def _card(
    plan: Plan,
    facts: Mapping[str, str],
    environment: Mapping[str, str],
    figure: Figure,
    correctness: Correctness,
) -> ClaimCard:
    return ClaimCard(
        operation="from the call of enqueue in another process to the first line of the handler",
        unit="ms",
        load_model="open: a job for one file after the other, its workers idle",
        arrivals=f"uniform pauses of {plan.pause_seconds * 1e3:g} ms in the mean",
        workers=f"{plan.files} files with {plan.workers} `killproof work` each",
        batch=1,
        payload_bytes=PAYLOAD_BYTES,
        rows_live=0,
        rows_dead=0,
        journal_mode=facts["journal_mode"],
        synchronous=facts["synchronous"],
        autocheckpoint=int(facts["autocheckpoint"]),
        busy_policy="turnstile, then an own loop",
        durability=plan.durability,
        filesystem=environment["filesystem"],
        cpu=environment["cpu"],
        python=environment["python"],
        sqlite=facts["sqlite"],
        seconds=plan.jobs * plan.pause_seconds,
        n=figure.n,
        interval="95%, bootstrap over blocks of 1 s",
        checkpoints=0,
        late_or_skipped="none: the next job waits for the call before it",
        steady=True,
        correctness=correctness.verdict,
    )


@contextmanager
def _workers(files: list[Path], each: int) -> Iterator[list[int]]:
    """Run `killproof work` with its defaults on every file; end them in order."""
    command = [sys.executable, "-m", "killproof", "work", HANDLERS, "--db"]
    processes: list[subprocess.Popen[str]] = []
    try:
        for file in [file for file in files for _ in range(each)]:
            # One by one: Ctrl-C between two of them leaves none behind.
            processes.append(
                subprocess.Popen(
                    [*command, str(file)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        for process in processes:
            _wait_for_log(process)
        yield [process.pid for process in processes]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            if process.wait(READY_SECONDS):
                raise ChildError(f"a worker ended with status {process.returncode}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def _wait_for_log(process: "subprocess.Popen[str]") -> None:
    """Wait until a worker says on what it works."""
    assert process.stderr is not None
    if not select.select([process.stderr], [], [], READY_SECONDS)[0]:
        raise ChildError(f"a worker said nothing for {READY_SECONDS:g} s")
    line = process.stderr.readline()
    if "works on" not in line:
        raise ChildError(f"a worker said {line.strip()!r}")


def _wait_until_done(files: list[Path]) -> None:
    """Wait until every job has ended, for so long at most; the verdict tells what has not."""
    until = time.monotonic() + READY_SECONDS
    waiting = list(files)
    while waiting and time.monotonic() < until:
        with closing(sqlite3.connect(waiting[0])) as connection:
            (left,) = connection.execute(
                "SELECT count(*) FROM job WHERE state <> 'succeeded'"
            ).fetchone()
        if left:
            time.sleep(0.05)
        else:
            waiting.pop(0)


def _stored(file: Path) -> dict[int, Stored]:
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT id, state, deliveries, result FROM job").fetchall()
    return {
        job: Stored(
            state=state,
            deliveries=deliveries,
            begun_ns=None if result is None else int(json.loads(result)),
        )
        for job, state, deliveries, result in rows
    }
