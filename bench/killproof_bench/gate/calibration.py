"""What the gate can promise on this machine: sigma of a block of one code against itself.

The two sides are the head and a byte copy of it at a path as long. Sigma is all that the gate's
power depends on; the chance of a false alarm depends on nothing.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from killproof_bench import machine
from killproof_bench.gate import blocks, checkout, conditions, sequential, timing
from killproof_bench.gate.result import SCHEMA, Block, CalibrationResult, GateVerdict, Power
from killproof_bench.gate.session import Show
from killproof_bench.result import Correctness, Figure

BLOCKS: Final = 20
#: True slowdowns of which the expected outcome is told; the middle one is too small to be promised.
SLOWDOWNS: Final = (0.0, 0.05, 0.10, 0.20)
#: The standard error of a share is then at most 1.1%.
SIMULATIONS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Blocks that were recorded without a test."""

    blocks: tuple[Block, ...]
    redone: int
    jobs: int
    checkpoints: int
    seconds: float
    interrupted: bool

    @property
    def differences(self) -> list[float]:
        """The statistic of each block."""
        return [block.d for block in self.blocks]


def record(
    measure: timing.Measure, count: int, draw: Random, tick: Callable[[int, float], None]
) -> Recording:
    """Record so many blocks that count; Ctrl-C keeps what there is.

    Args:
        measure: Runs one block.
        count: Blocks.
        draw: The coin.
        tick: Told how many there are, and the seconds left.
    """
    begin = time.monotonic()
    kept: list[Block] = []
    redone = jobs = checkpoints = 0
    interrupted = False
    try:
        for taken in timing.measured(measure, draw):
            jobs, checkpoints = jobs + taken.jobs, checkpoints + taken.checkpoints
            redone += taken.disturbed
            if not taken.disturbed:
                kept.append(taken.block)
            each = (time.monotonic() - begin) / (len(kept) + redone)
            tick(len(kept), each * (count - len(kept)))
            if len(kept) >= count or timing.is_hopeless(redone, len(kept)):
                break
    except KeyboardInterrupt:
        interrupted = True
    return Recording(
        blocks=tuple(kept),
        redone=redone,
        jobs=jobs,
        checkpoints=checkpoints,
        seconds=time.monotonic() - begin,
        interrupted=interrupted,
    )


def calibrate(
    head: Path,
    scratch: Path,
    *,
    count: int,
    workers: int,
    durability: str,
    command: str,
    environment: dict[str, str],
    show: Show,
) -> CalibrationResult:
    """Record A/A blocks of the working tree, and say what follows.

    Raises:
        ValueError: It is no checkout.
        checkout.CheckoutError, blocks.ArmError: A tool failed.
        blocks.Incorrect: An arm did what no queue may do.
    """
    started, begin, before = datetime.now(UTC), time.monotonic(), machine.now()
    show("a working tree and its byte copy", 2.0)
    with checkout.trees(scratch, "HEAD", head) as (_, tree):
        copy = checkout.patched(tree, (), scratch / "copy")
        load = blocks.pilot(scratch, (tree, copy), workers=workers, durability=durability)
        facts = conditions.facts(tree)
        recording = record(
            timing.paired(scratch, tree, copy, load),
            count,
            Random(timing.fresh_coin()),
            lambda done, left: show(f"{done} of {count} A/A blocks", left),
        )
    sigma = sequential.sigma(recording.differences)
    measured = len(recording.blocks) + recording.redone
    block_seconds = recording.seconds / measured if measured else 0.0
    correctness = Correctness(verdict="pass", because=(), jobs=recording.jobs)
    verdict: GateVerdict = "pass" if is_quiet(sigma) else "inconclusive"
    return CalibrationResult(
        schema=SCHEMA,
        kind="calibration",
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        interrupted=recording.interrupted,
        verdict="inconclusive" if recording.interrupted else verdict,
        sentence=sentence(sigma, block_seconds),
        environment=environment,
        sigma=sigma,
        block_seconds=block_seconds,
        blocks=recording.blocks,
        redone=recording.redone,
        expected=expected(sigma, block_seconds),
        card=conditions.card(
            load,
            recording.blocks,
            facts,
            environment,
            correctness,
            checkpoints=recording.checkpoints,
        ),
        correctness=correctness,
        noise=machine.noise(before, machine.now(), []),
    )


def is_quiet(sigma: Figure) -> bool:
    """Whether the gate can promise what it promises."""
    return sigma.value is not None and sigma.value <= sequential.SIGMA_MAX


def expected(
    sigma: Figure, block_seconds: float, slowdowns: Sequence[float] = SLOWDOWNS
) -> tuple[Power, ...]:
    """Simulate the gate at this sigma."""
    if sigma.value is None:
        return ()
    return tuple(
        sequential.expected(
            sigma.value, slowdown, block_seconds=block_seconds, runs=SIMULATIONS, seed=1
        )
        for slowdown in slowdowns
    )


def sentence(sigma: Figure, block_seconds: float) -> str:
    """Say what the gate can promise here."""
    if sigma.value is None:
        return "Too few blocks to tell: let it run, or wait until the machine is quiet."
    scatter = f"sigma is {sigma.value:.1%} [{sigma.low:.1%} to {sigma.high:.1%}] for each block"
    if not is_quiet(sigma):
        return (
            f"Inconclusive beforehand: {scatter}, above {sequential.SIGMA_MAX:.0%}; "
            f"the gate promises no detection here, its bound on false alarms stays"
        )
    none, found = expected(sigma, block_seconds, (0.0, sequential.SLOWDOWN))
    return (
        f"{scatter}: a {sequential.SLOWDOWN:.0%} slowdown fails with a chance of {found.fails:.1%} "
        f"in about {found.seconds_mean:.0f} s of timing, no change passes with {none.passes:.1%} "
        f"in about {none.seconds_mean:.0f} s; false alarms at most {sequential.ALPHA:.1%}"
    )
