"""One worker beside the bare statements of killproof: what everything but the SQL costs.

Question: how much of the speed of its own statements does the queue keep when nobody contends?
Primary figure: jobs/s of killproof over jobs/s of the bare loop, in the same process, in turns.
Valid comparison: the arms of one repeat.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from killproof_bench import ledger
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.operations import bare_loop, spending_loop
from killproof_bench.operations.bare_arms import ARMS, OPERATIONS
from killproof_bench.operations.comparing import compared
from killproof_bench.operations.result import Comparison, Cost, Spending
from killproof_bench.operations.turns import Turned, copy_durably, run_child
from killproof_bench.result import Correctness
from killproof_bench.scenarios.claim import Durability, make_template, stored

#: Jobs of a slice: about 60 ms at either level, long beside a call and short beside a drift.
SLICE_JOBS = {"power": 100, "process": 400}
#: Slices of each arm in a repeat: eight make about half a second.
SLICES = 8
#: What a repeat takes beside its slices: a process, a verdict, a copy of the files.
OVERHEAD_SECONDS = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of this scenario measures."""

    durabilities: tuple[Durability, ...] = ("power", "process")
    operations: tuple[str, ...] = OPERATIONS
    repeats: int = 6
    slices: int = SLICES
    slice_jobs: Mapping[str, int] = field(default_factory=lambda: SLICE_JOBS)
    seed: int = 1

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        slices = sum(0.06 * (self.slices + 1) * len(ARMS[level]) for level in self.durabilities)
        each = slices + OVERHEAD_SECONDS * len(self.durabilities)
        return self.repeats * len(self.operations) * each


def run(
    folder: Path, plan: Plan, *, environment: Mapping[str, str], tick: Callable[[str], None]
) -> Iterator[Comparison]:
    """Measure every operation at every level; each comparison is told when it has ended.

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
        jobs = plan.slice_jobs[durability]
        backlog = jobs * (plan.slices + 1) + 1  # One is in hand at the end of ack-and-claim.
        template = make_template(folder, durability, backlog)
        for operation in plan.operations:
            repeats: defaultdict[str, list[Turned]] = defaultdict(list)
            facts: dict[str, dict[str, str]] = {}
            verdicts: list[Correctness] = []
            raw = [raw_syncs_per_second(folder)]
            for number in range(plan.repeats):
                tick(f"{operation}, {durability}")
                told = _repeat(folder / "repeat", template, operation, durability, plan, number)
                verdicts += [_judged(ended, backlog) for ended in told.values()]
                shutil.rmtree(folder / "repeat")
                for arm, ended in told.items():
                    repeats[arm].append(Turned(operations=jobs * plan.slices, ns=ended["ns"]))
                    facts[arm] = ended["facts"]
            raw.append(raw_syncs_per_second(folder))
            yield compared(
                operation=operation,
                durability=durability,
                repeats=repeats,
                facts=facts,
                environment=environment,
                raw=raw,
                correctness=ledger.merged(verdicts),
                rows_live=backlog,
            )
        template.unlink()


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
    for index, arm in enumerate(ARMS[durability]):
        files[arm] = str(place / f"{index}.db")
        copy_durably(template, Path(files[arm]))
    spec = bare_loop.Spec(
        operation=operation,
        files=files,
        slices=plan.slices,
        jobs=plan.slice_jobs[durability],
        seed=plan.seed + number,
    )
    return run_child(bare_loop.__name__, asdict(spec), hash_seed=plan.seed + number)


def spend(folder: Path, plan: Plan, *, tick: Callable[[str], None]) -> Iterator[Spending]:
    """Measure where a job's time goes, for every operation at every level.

    Args:
        folder: An empty folder on the disk to be measured.
        plan: What to measure; one process for each, of as many slices as a repeat has.
        tick: Told what is done next.

    Raises:
        ChildError: A process failed.
    """
    for durability in plan.durabilities:
        jobs = plan.slice_jobs[durability]
        template = make_template(folder, durability, jobs * (plan.slices + 1) + 1)
        for operation in plan.operations:
            tick(f"parts of {operation}, {durability}")
            place = folder / "spending"
            place.mkdir()
            sides = (spending_loop.KILLPROOF, spending_loop.BARE, spending_loop.PROFILED)
            files = {side: str(place / f"{side}.db") for side in sides}
            for file in files.values():
                copy_durably(template, Path(file))
            spec = spending_loop.Spec(
                operation=operation,
                files=files,
                own_sync=durability == "power",
                slices=plan.slices,
                jobs=jobs,
                seed=plan.seed,
            )
            told = run_child(spending_loop.__name__, asdict(spec), hash_seed=plan.seed)
            shutil.rmtree(place)
            yield Spending(
                operation=operation,
                durability=durability,
                jobs=told["jobs"],
                killproof=_costs(told["parts"][spending_loop.KILLPROOF]),
                bare=_costs(told["parts"][spending_loop.BARE]),
                functions=_costs(told["functions"]),
            )
        template.unlink()


def _costs(rows: Sequence[tuple[str, float, float]]) -> tuple[Cost, ...]:
    return tuple(Cost(part=part, calls=calls, us=us) for part, calls, us in rows)


def _judged(ended: Mapping[str, Any], backlog: int) -> Correctness:
    """Compare what one arm says it has done with its file."""
    account = ledger.Account(worker=ended["worker"], acked=ended["acked"], error=None)
    return ledger.judge(backlog, [account], stored(Path(ended["facts"]["file"])))
