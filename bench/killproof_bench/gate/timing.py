"""Layer 2: blocks until the sequential test has an answer, and once more if it has none.

The coin is drawn from the kernel's randomness and written down: with it every order and every seed
of a run can be had again. A block that the rest of the machine disturbed is measured again, by a
rule that is fixed beforehand and sees neither its times nor its labels, so the sign of `d` stays
fair and the error rates stay bounded.

**The retry.** Only a run that ended inconclusive is repeated, once, with a fresh coin, none of its
blocks, and the lower levels of `sequential.RETRY`. A pass or a fail is final.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from killproof_bench.gate import blocks, sequential
from killproof_bench.gate.blocks import Load, Measured
from killproof_bench.gate.checkout import Tree
from killproof_bench.gate.result import Block, Look, TimingRun

#: A run is given up when more blocks than this, and than those that count, were disturbed.
REDONE_FREE: Final = 10


class Measure(Protocol):
    """Runs the block at a position; the coin decides its order and its seeds."""

    def __call__(self, coin: random.Random, position: int) -> Measured:
        """Return the block, and whether it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is."""

    blocks: int
    redone: int
    left: int  #: Blocks until the next look.


def paired(folder: Path, base: Tree, head: Tree, load: Load) -> Measure:
    """Return what measures a block of these two sides."""

    def measure(coin: random.Random, position: int) -> Measured:
        return blocks.run_block(folder, base, head, load, coin, position)

    return measure


def fresh_coin() -> str:
    """Return a seed of the kernel's randomness, as it is written down."""
    return os.urandom(16).hex()


def measured(measure: Measure, draw: random.Random) -> Iterator[Measured]:
    """Yield block after block for ever; a disturbed one is followed by another at its position."""
    position = 0
    while True:
        taken = measure(draw, position)
        yield taken
        position += not taken.disturbed


def is_hopeless(redone: int, kept: int) -> bool:
    """Whether the machine is too busy to go on."""
    return redone > max(REDONE_FREE, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run and what does not belong to its record."""

    run: TimingRun
    jobs: int  #: Accounted for by the ledger.
    checkpoints: int
    interrupted: bool


def run(
    measure: Measure,
    *,
    coin: str,
    levels: sequential.Levels = sequential.FIRST,
    blocks_max: int = sequential.LOOKS[-1],
    tick: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Measure blocks until a look decides; Ctrl-C ends the run and keeps what has ended.

    Args:
        measure: Runs one block.
        coin: From `fresh_coin`.
        levels: Of a first run, or of its retry.
        blocks_max: Stop undecided after so many; fewer make no bound worse, only more runs
            inconclusive.
        tick: Told after each block.

    Raises:
        blocks.Incorrect: A side did what no queue may do.
        blocks.ArmError: A worker failed.
    """
    kept: list[Block] = []
    looks: list[Look] = []
    redone = jobs = checkpoints = 0
    interrupted = False
    because = f"undecided after {blocks_max} blocks"
    try:
        for taken in measured(measure, random.Random(coin)):
            jobs += taken.jobs
            checkpoints += taken.checkpoints
            if taken.disturbed:
                redone += 1
            else:
                kept.append(taken.block)
                if look := sequential.look_at([each.d for each in kept], levels):
                    looks.append(look)
            tick(Progress(blocks=len(kept), redone=redone, left=_left(len(kept), blocks_max)))
            if looks and looks[-1].verdict != "inconclusive":
                because = sentence(looks[-1])
                break
            if len(kept) >= blocks_max:
                break
            if is_hopeless(redone, len(kept)):
                because = f"other programs disturbed {redone} blocks of {redone + len(kept)}"
                break
    except KeyboardInterrupt:
        interrupted = True
        because = f"interrupted after {len(kept)} blocks"
    differences = [each.d for each in kept]
    found = TimingRun(
        coin=coin,
        verdict=looks[-1].verdict if looks else "inconclusive",
        ratio=sequential.ratio(differences),
        sigma=sequential.sigma(differences).value,
        looks=tuple(looks),
        blocks=tuple(kept),
        redone=redone,
        because=because,
    )
    return Outcome(run=found, jobs=jobs, checkpoints=checkpoints, interrupted=interrupted)


def sentence(look: Look) -> str:
    """Say what a deciding look has shown."""
    if look.verdict == "fail":
        return (
            f"slower by more than {sequential.MARGIN:.0%}: p = {look.p_slower:.2g} "
            f"at {look.blocks} blocks, the level is {look.p_fail_at:g}"
        )
    return (
        f"not slower by {sequential.SLOWDOWN:.0%}: p = {look.p_not_slower:.2g} "
        f"at {look.blocks} blocks, the level is {look.p_pass_at:g}"
    )


def _left(done: int, blocks_max: int) -> int:
    ahead = [look for look in (*sequential.LOOKS, blocks_max) if done < look <= blocks_max]
    return min(ahead) - done if ahead else 0
