"""Jobs put in beside the bare statements, and by 16 producers beside the plain reference.

Question: what does it cost to put jobs in, in batches and one by one, when many do it at once?
Primary figures: jobs/s of killproof over jobs/s of the other arm, in turns.  Valid comparison: the
arms of one repeat.
"""

import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from killproof import Queue
from killproof_bench import ledger
from killproof_bench.arms import BUSY_MS
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.operations import enqueue_loop, entries, producing
from killproof_bench.operations.comparing import compared
from killproof_bench.operations.enqueue_arms import ARMS, KILLPROOF, OPERATIONS
from killproof_bench.operations.goals import PRODUCERS, single
from killproof_bench.operations.producer import Spec
from killproof_bench.operations.producing import Produced
from killproof_bench.operations.result import Comparison
from killproof_bench.operations.turns import Turned, copy_durably, run_child
from killproof_bench.result import Correctness
from killproof_bench.scenarios.claim import Durability

#: The most that `enqueue_many` takes, and enough for one sync not to matter.
BATCH = 1_000
#: Batches of each arm in a repeat; a batch takes about 20 ms.
SLICES = 8
REFERENCE = "reference"
WAITING = {
    KILLPROOF: "turnstile, then an own loop",
    REFERENCE: f"SQLite's busy handler, {BUSY_MS // 1000} s",
}
#: What a repeat takes beside its slices.
OVERHEAD_SECONDS = 0.7
#: What a round of the producers takes beside its time: 16 interpreters, and a verdict.
CREW_SECONDS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of this scenario measures."""

    durabilities: tuple[Durability, ...] = ("power", "process")
    operations: tuple[str, ...] = OPERATIONS
    repeats: int = 6
    slices: int = SLICES
    batch: int = BATCH
    producers: int = PRODUCERS
    producer_seconds: float = 1.5  #: Measured, after a warm-up of a fifth.
    seed: int = 1

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        slices = 25e-6 * self.batch * (self.slices + 1) * len(ARMS) + OVERHEAD_SECONDS
        batches = self.repeats * len(self.operations) * len(self.durabilities) * slices
        single = 2 * self.repeats * (1.2 * self.producer_seconds + CREW_SECONDS)
        return batches + (single if self.producers else 0)


def run(
    folder: Path, plan: Plan, *, environment: Mapping[str, str], tick: Callable[[str], None]
) -> Iterator[Comparison]:
    """Measure batches at every level, then single enqueues; each is told when it has ended.

    Args:
        folder: An empty folder on the disk to be measured.
        plan: What to measure.
        environment: cpu, filesystem, python and so on, for the claim cards.
        tick: Told what is done next, before each repeat.

    Raises:
        ChildError: A process failed.
        KillproofError: The folder cannot keep the durability.
    """
    for durability in plan.durabilities:
        template = _empty(folder, durability)
        for operation in plan.operations:
            yield _batches(folder, template, plan, operation, durability, environment, tick)
        template.unlink()
    if plan.producers:
        yield _producers(folder, plan, environment, tick)


def _batches(
    folder: Path,
    template: Path,
    plan: Plan,
    operation: str,
    durability: Durability,
    environment: Mapping[str, str],
    tick: Callable[[str], None],
) -> Comparison:
    """Compare one way to put batches in with its bare statements."""
    repeats: defaultdict[str, list[Turned]] = defaultdict(list)
    facts: dict[str, dict[str, str]] = {}
    verdicts: list[Correctness] = []
    raw = [raw_syncs_per_second(folder)]
    for number in range(plan.repeats):
        tick(f"{operation}, {durability}")
        place = folder / "repeat"
        for arm, ended in _repeat(place, template, operation, durability, plan, number).items():
            verdicts.append(_judged(ended))
            repeats[arm].append(Turned(operations=plan.batch * plan.slices, ns=ended["ns"]))
            facts[arm] = ended["facts"]
        shutil.rmtree(place)
    raw.append(raw_syncs_per_second(folder))
    return compared(
        operation=operation,
        durability=durability,
        repeats=repeats,
        facts=facts,
        environment=environment,
        raw=raw,
        correctness=ledger.merged(verdicts),
        batch=plan.batch,
    )


def _repeat(
    place: Path,
    template: Path,
    operation: str,
    durability: Durability,
    plan: Plan,
    number: int,
) -> dict[str, dict[str, Any]]:
    """Run one fresh process on fresh files; return what it says of each arm."""
    place.mkdir()
    files = {}
    for index, arm in enumerate(ARMS):
        files[arm] = str(place / f"{index}.db")
        copy_durably(template, Path(files[arm]))
    spec = enqueue_loop.Spec(
        operation=operation,
        files=files,
        own_sync=durability == "power",
        batch=plan.batch,
        slices=plan.slices,
        seed=plan.seed + number,
    )
    return run_child(enqueue_loop.__name__, asdict(spec), hash_seed=plan.seed + number)


def _judged(ended: Mapping[str, Any]) -> Correctness:
    """Compare what one arm says it has put in with its file, the jobs' own numbers included."""
    with closing(sqlite3.connect(ended["facts"]["file"])) as connection:
        rows = connection.execute(
            "SELECT id, json_extract(payload, '$.n') FROM job ORDER BY id"
        ).fetchall()
        integrity = "; ".join(line for (line,) in connection.execute("PRAGMA integrity_check"))
    told, stored = ended["ids"], [job for job, _ in rows]
    unacknowledged = 0 if told else ended["put"]
    found = entries.judge([told], stored, unacknowledged=unacknowledged, integrity=integrity)
    if [number for _, number in rows] != list(range(ended["put"])):
        because = (*found.because, "the jobs in the file are not in the order they were given in")
        return Correctness(verdict="violated", because=because, jobs=found.jobs)
    return found


def _producers(
    folder: Path, plan: Plan, environment: Mapping[str, str], tick: Callable[[str], None]
) -> Comparison:
    """Compare single enqueues of many processes with the plain reference at FULL."""
    template, operation = _empty(folder, "power"), single(plan.producers)
    repeats: defaultdict[str, list[Turned]] = defaultdict(list)
    facts: dict[str, dict[str, str]] = {}
    verdicts: list[Correctness] = []
    raw = [raw_syncs_per_second(folder)]
    for number in range(plan.repeats):
        pair = (KILLPROOF, REFERENCE) if number % 2 else (REFERENCE, KILLPROOF)
        for arm in pair:
            tick(f"{operation}, {arm}")
            place = folder / "repeat"
            place.mkdir()
            copy_durably(template, place / "queue.db")
            done = producing.produce(
                Spec(arm=arm, database=str(place / "queue.db"), synchronous="FULL"),
                plan.producers,
                seconds=plan.producer_seconds,
                hash_seed=plan.seed + number,
            )
            verdicts.append(_entered(place / "queue.db", done))
            shutil.rmtree(place)
            ns = round(plan.producer_seconds * 1e9)
            repeats[arm].append(Turned(operations=done.counted, ns=ns))
            facts[arm] = done.facts
        raw.append(raw_syncs_per_second(folder))
    template.unlink()
    return compared(
        operation=operation,
        durability="power",
        repeats={arm: repeats[arm] for arm in (KILLPROOF, REFERENCE)},
        facts=facts,
        environment=environment,
        raw=raw,
        correctness=ledger.merged(verdicts),
        workers=f"{plan.producers} processes",
        busy_policy=WAITING,
    )


def _entered(database: Path, done: Produced) -> Correctness:
    """Compare what all producers were told with the file."""
    with closing(sqlite3.connect(database)) as connection:
        stored = [job for (job,) in connection.execute("SELECT id FROM job")]
        integrity = "; ".join(line for (line,) in connection.execute("PRAGMA integrity_check"))
    return entries.judge(done.ids, stored, integrity=integrity)


def _empty(folder: Path, durability: Durability) -> Path:
    """Make the file that every repeat begins with a copy of."""
    template = folder / "empty.db"
    Queue(template, durability=durability).close()
    return template
