"""Record the blocks of a proof, one by one, into a store that survives Ctrl-C.

What each part is for stands in `proof`. The same command goes on where the store ends. A store
holds blocks of one state of the source alone.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

from killproof_bench.gate import (
    blocks,
    checkout,
    conditions,
    counters,
    instructions,
    seeded,
    sequential,
    timing,
)
from killproof_bench.gate.blocks import Load
from killproof_bench.gate.checkout import CheckoutError, Tree
from killproof_bench.gate.processes import side_by_side
from killproof_bench.gate.result import Block
from killproof_bench.gate.session import Show
from killproof_bench.result import decode

#: Long arms, from whose first part every shorter length is had.
LONG_BLOCKS: Final = 16
LONG_SECONDS: Final = 1.0
COUNTER_REPEATS: Final = 20
INSTRUCTION_REPEATS: Final = 5
HOLD_ARMS: Final = 5
#: Seconds that a part takes, for the display until it has been seen.
_PART_SECONDS: Final = {"sham": 2.5, "slow": 2.5, "long": 5.5, "live": 30.0, "seeded": 6.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How much is recorded."""

    shams: int = 200
    slowdowns: int = 90
    live: int = 3  #: Of each sort.


class Store:
    """A folder of JSON lines; each record is whole or not there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Append one record."""
        with (self.folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read(self, name: str) -> list[dict[str, Any]]:
        """Return all records; a last line that a kill cut short is left out."""
        path = self.folder / f"{name}.jsonl"
        if not path.is_file():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def blocks(self, name: str) -> list[Block]:
        """Return recorded blocks."""
        return [decode(Block, record) for record in self.read(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was settled before the first block: it stays for the whole store."""

    source: str  #: Digest of the measured source.
    load: Load
    facts: dict[str, str]
    us_per_op: float
    hold_us: float
    spin_us: float
    spin_loops: int


class Recorder:
    """Records what is missing in the store; every step may be the last."""

    def __init__(
        self, store: Store, goal: Goal, scratch: Path, tree: Tree, workers: int, show: Show
    ) -> None:
        self.store = store
        self.goal = goal
        self._scratch = scratch
        self._tree = tree
        self._show = show
        self.setup = self._settled(workers)
        self._copy = checkout.patched(tree, (), scratch / "copy")
        spin = seeded.spin(self.setup.spin_loops)
        self._slow = checkout.patched(tree, (spin,), scratch / "slow")
        self._spent: dict[str, list[float]] = {}

    def run(self) -> None:
        """Go on until nothing is missing; cheap steps that can fail loudly come first."""
        self._each("seeded", len(seeded.REGRESSIONS), self._regression)
        self._once("counters", self._counters)
        self._once("instructions", self._instructions)
        draw = Random(timing.fresh_coin())
        while (name := self._behind()) is not None:
            self._timed(name, lambda name=name: self._block(name, draw))  # type: ignore[misc]
        self._each("long", LONG_BLOCKS, lambda index: self._long(draw))
        self._each("live", 2 * self.goal.live, self._live)

    def _settled(self, workers: int) -> Setup:
        """Return what the store was begun with, or begin it.

        Raises:
            ValueError: The store holds blocks of another source.
        """
        source = digest(self._tree.source)
        for record in self.store.read("setup"):
            setup = Setup(**(record | {"load": Load(**record["load"])}))
            if setup.source != source:
                raise ValueError(
                    f"--store {str(self.store.folder)!r} holds blocks of another state of the "
                    "source: name an empty folder"
                )
            return setup
        self._show("length of an arm, hold of the lock, length of the spin", 10.0)
        load = blocks.pilot(self._scratch, (self._tree,), workers=workers, durability="power")
        held = Load(**(asdict(load) | {"hold": True}))
        plain = [self._arm(load, number).us_per_op for number in range(HOLD_ARMS)]
        spin_us = sequential.SLOWDOWN * statistics.median(plain)
        setup = Setup(
            source=source,
            load=load,
            facts=conditions.facts(self._tree),
            us_per_op=statistics.median(plain),
            hold_us=statistics.median(
                self._arm(held, number).hold_us for number in range(HOLD_ARMS)
            ),
            spin_us=spin_us,
            spin_loops=round(spin_us * seeded.loops_per_us(load.workers)),
        )
        self.store.add("setup", asdict(setup))
        return setup

    def _arm(self, load: Load, seed: int) -> blocks.Arm:
        return blocks.run_arm(self._scratch, self._tree, load, hash_seed=seed, job_seed=seed)

    def _behind(self) -> str | None:
        """Return the sort of blocks that is further from its goal: both are of the same hours."""
        sorts = {"sham": self.goal.shams, "slow": self.goal.slowdowns}
        done = {name: len(self.store.read(name)) / goal for name, goal in sorts.items() if goal}
        name = min(done, key=lambda name: done[name])
        return name if done[name] < 1 else None

    def _block(self, name: str, draw: Random) -> None:
        other = self._copy if name == "sham" else self._slow
        position = len(self.store.read(name))
        taken = blocks.run_block(self._scratch, self._tree, other, self.setup.load, draw, position)
        told = {"jobs": taken.jobs, "checkpoints": taken.checkpoints, "redone": taken.disturbed}
        self.store.add("ledger", told)
        if not taken.disturbed:
            self.store.add(name, asdict(taken.block))
        redone = sum(record["redone"] for record in self.store.read("ledger"))
        if timing.is_hopeless(redone, len(self.store.read("ledger")) - redone):
            raise CheckoutError(f"other programs disturbed {redone} blocks: wait for a quiet time")

    def _long(self, draw: Random) -> None:
        seed = draw.randrange(2**32)
        load = Load(
            workers=self.setup.load.workers,
            durability=self.setup.load.durability,
            seconds=LONG_SECONDS,
            backlog=round(self.setup.load.backlog * LONG_SECONDS / self.setup.load.seconds),
        )
        begin = time.monotonic()
        arms = [
            blocks.run_arm(self._scratch, side, load, hash_seed=seed, job_seed=seed).slices
            for side in (self._tree, self._copy, self._copy, self._tree)
        ]
        spent = time.monotonic() - begin
        self.store.add("long", {"slices": arms, "overhead": spent - 4 * LONG_SECONDS})

    def _live(self, index: int) -> None:
        """Run the gate's own test, a sham and a slowdown in turns."""
        is_sham = index % 2 == 0
        outcome = timing.run(
            timing.paired(
                self._scratch, self._tree, self._copy if is_sham else self._slow, self.setup.load
            ),
            coin=timing.fresh_coin(),
            tick=lambda progress: self._tell("live", f"{progress.blocks} blocks"),
        )
        if outcome.interrupted:
            raise KeyboardInterrupt
        self.store.add("live", {"sham": is_sham, "run": asdict(outcome.run)})
        told = {"jobs": outcome.jobs, "checkpoints": outcome.checkpoints, "redone": 0}
        self.store.add("ledger", told)

    def _regression(self, index: int) -> None:
        regression = seeded.REGRESSIONS[index]
        worse = checkout.patched(self._tree, (regression.patch,), self._scratch / "seed")
        layer = counters.layer(self._scratch, self._tree, worse, ())
        rose = [counter.name for counter in layer.counters if counter.rose]
        self.store.add("seeded", {"name": regression.name, "rose": rose})

    def _counters(self) -> dict[str, Any]:
        """Count one source again and again, and compare to the last digit."""
        found = side_by_side(
            [
                lambda processes, index=index: counters.count(  # type: ignore[misc]
                    self._scratch / f"count-{index:02d}", self._tree, processes
                )
                for index in range(COUNTER_REPEATS)
            ]
        )
        return {"repeats": len(found), "equal": all(each == found[0] for each in found)}

    def _instructions(self) -> dict[str, Any]:
        if instructions.missing() is not None:
            return {"values": []}
        trees = [self._tree] * INSTRUCTION_REPEATS
        return {"values": instructions.repeated(self._scratch, trees)}

    def _once(self, name: str, step: Callable[[], dict[str, Any]]) -> None:
        if not self.store.read(name):
            self._show(f"{name}, again and again", 60.0)
            self.store.add(name, step())

    def _each(self, name: str, count: int, step: Callable[[int], None]) -> None:
        while (done := len(self.store.read(name))) < count:
            self._timed(name, lambda done=done: step(done))  # type: ignore[misc]

    def _timed(self, name: str, step: Callable[[], None]) -> None:
        self._tell(name, "")
        begin = time.monotonic()
        step()
        self._spent.setdefault(name, []).append(time.monotonic() - begin)

    def _tell(self, name: str, more: str) -> None:
        """Say what is being done, and how long everything will take."""
        wanted = {
            "seeded": len(seeded.REGRESSIONS),
            "sham": self.goal.shams,
            "slow": self.goal.slowdowns,
            "long": LONG_BLOCKS,
            "live": 2 * self.goal.live,
        }
        done = {part: len(self.store.read(part)) for part in wanted}
        left = sum(
            max(0, count - done[part])
            * statistics.fmean(self._spent.get(part) or [_PART_SECONDS[part]])
            for part, count in wanted.items()
        )
        self._show(f"{name} {done[name]} of {wanted[name]} {more}".strip(), left)


def digest(source: Path) -> str:
    """Name the state of a source."""
    found = blake2b(digest_size=16)
    for path in sorted(source.rglob("*")):
        if path.suffix in (".py", ".sql"):
            found.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes())
    return found.hexdigest()
