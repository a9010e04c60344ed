"""What 50 clients that watch the page cost the workers.

Question: does a page that everybody leaves open slow the queue down, or make its log grow?
Primary figures: p50 and p99 of a claim with watchers, over those without; the largest log. Valid
comparison: the two arms of one run. They take turns on fresh copies of one seeded file, in ABBA
or BAAB by a seeded coin, so that a linear drift of the machine falls on both alike.

The clients are one more process on the same machine: what they cost is in the figures too, though
in practice it is somebody else's.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from killproof_bench import ledger, measure
from killproof_bench.crew import END_SECONDS, READY_SECONDS, Crew, CrewError, Outcome, specs
from killproof_bench.result import Correctness, Figure
from killproof_bench.sampling import Sample, sample
from killproof_bench.scenarios.claim import (
    PAUSE_SECONDS,
    Plan,
    Step,
    make_template,
    order,
    verdict,
)
from killproof_bench.watchers import Watched
from killproof_evidence.lifetime import die_with_parent

WORKERS = 8
WATCHERS = 50
#: The two sides of the comparison.
ARMS = ("watched", "unwatched")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRound:
    """One round of one arm."""

    position: int
    arm: str
    pair: int  #: The rounds of a pair stand side by side in time.
    jobs_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    wal_bytes_max: int
    frames_behind_max: int
    server_cpu: float | None  #: Seconds of processor per second, of `killproof serve`.
    events_per_s: float | None  #: To each client, on average.
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult:
    """Both arms, over all rounds."""

    workers: int
    watchers: int
    durability: str
    facts: dict[str, str]  #: Pragmas as the workers read them back.
    p50_ms: dict[str, Figure]  #: By arm.
    p99_ms: dict[str, Figure]
    p50_ratio: float | None  #: Watched over unwatched, of all rounds together.
    p99_ratio: float | None
    pairs: tuple[tuple[float, float], ...]  #: The same two ratios for each pair of rounds.
    wal_bytes_max: dict[str, int]
    rounds: tuple[WatchRound, ...]
    correctness: Correctness


def run(
    folder: Path, plan: Plan, *, watchers: int = WATCHERS, tick: Callable[[Step], None]
) -> WatchResult:
    """Run all rounds; `tick` is told each at its begin.

    Args:
        folder: An empty folder on the disk to be measured.
        plan: One number of workers, and how long, how often, at which level.
        watchers: Clients that follow the events.
        tick: For the display.

    Raises:
        CrewError: A process failed.
    """
    template = make_template(folder, plan.durability, plan.backlog)
    samples: dict[str, list[Sample]] = {arm: [] for arm in ARMS}
    rounds = []
    facts: dict[str, str] = {}
    for step in order(plan, ARMS):
        tick(step)
        place = folder / f"round-{step.position}"
        place.mkdir()
        shutil.copyfile(template, place / "queue.db")
        os.sync()
        time.sleep(PAUSE_SECONDS)
        cut, outcome, cost = _round(place, plan, step, watchers)
        facts = outcome.facts
        samples[step.arm].append(cut)
        rounds.append(_told(step, cut, outcome, cost, watchers, plan, place))
        shutil.rmtree(place)
    return _result(plan, watchers, facts, samples, rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What was spent on the watchers of one round."""

    watched: Watched
    server_cpu_seconds: float
    seconds: float


def _round(
    place: Path, plan: Plan, step: Step, watchers: int
) -> tuple[Sample, Outcome, Cost | None]:
    told = specs(
        place, "killproof", step.workers, backlog=plan.backlog, synchronous=plan.synchronous
    )
    with Crew(told, hash_seed=step.hash_seed) as crew, contextlib.ExitStack() as around:
        crew.wait_until_ready()
        watching = None
        if step.arm == "watched":
            watching = around.enter_context(_watching(place / "queue.db", watchers))
        start_ns = crew.go(plan.warmup_seconds + plan.seconds)
        from_ns = start_ns + round(plan.warmup_seconds * 1e9)
        crew.wait_for(from_ns + round(plan.seconds * 1e9), lambda: None)
        cost = None if watching is None else watching()
        outcome = crew.finish()
    return sample(outcome.calls, from_ns, plan.seconds), outcome, cost


@contextlib.contextmanager
def _watching(database: Path, watchers: int) -> Iterator[Callable[[], Cost]]:
    """Serve the page to clients; what is yielded ends both and says what it cost.

    Raises:
        CrewError: One of them failed.
    """
    server = _start("killproof", "serve", "--db", str(database), "--port", "0", "--json")
    clients = None
    try:
        port = _port(server)
        clients = _start("killproof_bench.watchers", str(port), str(watchers))
        assert clients.stdout is not None
        if clients.stdout.readline() != "ready\n":
            raise CrewError(f"the clients did not start: {clients.communicate()[1].strip()}")
        begin, before = time.monotonic(), _cpu_seconds(server.pid)
        clients_process = clients

        def end() -> Cost:
            cpu, seconds = _cpu_seconds(server.pid) - before, time.monotonic() - begin
            said, complaint = clients_process.communicate(timeout=END_SECONDS)
            if clients_process.returncode:
                raise CrewError(f"the clients failed: {complaint.strip()}")
            server.send_signal(signal.SIGTERM)
            _, complaint = server.communicate(timeout=END_SECONDS)
            if server.returncode:
                raise CrewError(f"killproof serve ended with {server.returncode}: {complaint}")
            watched = Watched(**json.loads(said))
            return Cost(watched=watched, server_cpu_seconds=cpu, seconds=seconds)

        yield end
    finally:
        for process in (server, clients):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()


def _start(module: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),  # A server that reads no stdin.
    )


def _port(server: "subprocess.Popen[str]") -> int:
    """Read the address that the server prints as JSON.

    Raises:
        CrewError: It has not said any within `READY_SECONDS`, or has ended.
    """
    assert server.stdout is not None
    text = ""
    silent = threading.Timer(READY_SECONDS, server.kill)  # Its end is the end of a line, too.
    silent.start()
    try:
        while not text.endswith("}\n"):
            line = server.stdout.readline()
            if not line:
                _, complaint = server.communicate()
                raise CrewError(f"killproof serve did not start: {complaint.strip()}")
            text += line
    finally:
        silent.cancel()
    return int(json.loads(text)["url"].rsplit(":", 1)[1].strip("/"))


def _cpu_seconds(pid: int) -> float:
    """Return what a living process has used of the processor, in user and kernel mode."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _told(
    step: Step,
    cut: Sample,
    outcome: Outcome,
    cost: Cost | None,
    watchers: int,
    plan: Plan,
    place: Path,
) -> WatchRound:
    correctness = verdict(place / "queue.db", plan.backlog, outcome)
    if cost is not None and not cost.watched.fewest and correctness.verdict == "pass":
        reason = "a client saw no event while the workers worked: measure for a longer time"
        correctness = Correctness(verdict="unknown", because=(reason,), jobs=correctness.jobs)
    p50, p99 = (measure.quantile(cut.latencies, permille) for permille in (500, 990))
    return WatchRound(
        position=step.position,
        arm=step.arm,
        pair=step.position // 2,
        jobs_per_s=sum(cut.counts) / (len(cut.per_block) * cut.block_seconds),
        p50_ms=None if p50 is None else p50 / 1e6,
        p99_ms=None if p99 is None else p99 / 1e6,
        wal_bytes_max=outcome.watch.wal_bytes_max,
        frames_behind_max=outcome.watch.frames_behind_max,
        server_cpu=None if cost is None else cost.server_cpu_seconds / cost.seconds,
        events_per_s=None
        if cost is None
        else cost.watched.events / watchers / cost.watched.seconds,
        correctness=correctness,
    )


def _result(
    plan: Plan,
    watchers: int,
    facts: dict[str, str],
    samples: dict[str, list[Sample]],
    rounds: Sequence[WatchRound],
) -> WatchResult:
    figures = {
        permille: {arm: _figure(samples[arm], permille, plan.seed) for arm in ARMS}
        for permille in (500, 990)
    }
    return WatchResult(
        workers=plan.workers[0],
        watchers=watchers,
        durability=plan.durability,
        facts=facts,
        p50_ms=figures[500],
        p99_ms=figures[990],
        p50_ratio=_ratio(*(figures[500][arm].value for arm in ARMS)),
        p99_ratio=_ratio(*(figures[990][arm].value for arm in ARMS)),
        pairs=pairs_of(rounds),
        wal_bytes_max={
            arm: max(each.wal_bytes_max for each in rounds if each.arm == arm) for arm in ARMS
        },
        rounds=tuple(rounds),
        correctness=ledger.merged([each.correctness for each in rounds]),
    )


def _figure(samples: Sequence[Sample], permille: int, seed: int) -> Figure:
    """Return a quantile over all rounds of an arm, with a bootstrap over blocks of time."""
    blocks_each = len(samples[0].per_block)
    latencies = np.concatenate([part.latencies for part in samples])
    blocks = np.concatenate(
        [part.blocks + number * blocks_each for number, part in enumerate(samples)]
    )
    return measure.quantile_figure(latencies, blocks, permille, seed=seed)


def pairs_of(rounds: Sequence[WatchRound]) -> tuple[tuple[float, float], ...]:
    """Return the ratios of p50 and of p99 for each pair of rounds that has both."""
    found = []
    for pair in sorted({each.pair for each in rounds}):
        both = {each.arm: each for each in rounds if each.pair == pair}
        if set(both) == set(ARMS):
            watched, unwatched = (both[arm] for arm in ARMS)
            p50 = _ratio(watched.p50_ms, unwatched.p50_ms)
            p99 = _ratio(watched.p99_ms, unwatched.p99_ms)
            if p50 is not None and p99 is not None:
                found.append((p50, p99))
    return tuple(found)


def _ratio(ours: float | None, reference: float | None) -> float | None:
    if ours is None or not reference:
        return None
    return ours / reference
