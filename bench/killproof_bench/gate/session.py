"""One run of the gate: its three layers in the order of their cost, and one verdict.

Layer 0 is exact and takes seconds, layer 1 nearly so; layer 2 measures time and may take minutes.
All that were asked for run, whatever the first one says: who is slower wants to know by how much.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from killproof_bench import machine
from killproof_bench.gate import (
    blocks,
    checkout,
    conditions,
    counters,
    instructions,
    sequential,
    timing,
)
from killproof_bench.gate.checkout import Tree
from killproof_bench.gate.result import (
    SCHEMA,
    CounterLayer,
    GateResult,
    GateVerdict,
    InstructionLayer,
    LayerVerdict,
    TimingLayer,
)
from killproof_bench.result import Correctness

LAYERS: Final = (0, 1, 2)
#: What a layer is expected to take, in seconds, for the display alone.
COUNTERS_SECONDS: Final = 5.0
INSTRUCTIONS_SECONDS: Final = 30.0
#: Of a block beside its measured time, for the display until the first has ended: starting,
#: filling, warming up and judging four arms.
BLOCK_OVERHEAD_SECONDS: Final = 4 * 0.35

NOT_ASKED: Final = "not asked for"

Show = Callable[[str, float], None]  #: What is being done, and the seconds left until it is done.


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    base: str
    head: Path
    layers: tuple[int, ...] = LAYERS
    workers: int = 1
    durability: str = "power"
    retry: bool = True


def gate(
    options: Options, scratch: Path, *, command: str, environment: dict[str, str], show: Show
) -> GateResult:
    """Compare head with base; Ctrl-C ends the run and keeps what has ended.

    Raises:
        ValueError: There is no such checkout or revision.
        checkout.CheckoutError, blocks.ArmError: A tool failed.
    """
    started, begin, before = datetime.now(UTC), time.monotonic(), machine.now()
    interrupted = False
    counted = counters.unmeasured(NOT_ASKED)
    instructed = instructions.unmeasured(NOT_ASKED)
    timed = untimed(NOT_ASKED)
    show("both sides as worktrees", 2.0)
    with checkout.trees(scratch, options.base, options.head) as (base, head):
        named = checkout.trailers(options.head, base.revision.commit, head.revision.commit)
        try:
            if 0 in options.layers:
                show("layer 0: counters", COUNTERS_SECONDS)
                counted = counters.layer(scratch, base, head, named)
            if 1 in options.layers:
                show("layer 1: instructions", INSTRUCTIONS_SECONDS)
                instructed = instructions.layer(scratch, base, head, named)
            if 2 in options.layers:
                timed, interrupted = timing_layer(scratch, base, head, options, environment, show)
        except KeyboardInterrupt:
            interrupted = True
        sides = (base.revision, head.revision)
    verdict = merged(
        (counted.verdict, instructed.verdict, timed.verdict),
        interrupted=interrupted,
        void=timed.correctness.verdict == "violated",
    )
    return GateResult(
        schema=SCHEMA,
        kind="gate",
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        interrupted=interrupted,
        verdict=verdict,
        sentence=sentence(verdict, counted, instructed, timed, interrupted=interrupted),
        base=sides[0],
        head=sides[1],
        trailers=named,
        environment=environment,
        counters=counted,
        instructions=instructed,
        timing=timed,
        noise=machine.noise(before, machine.now(), []),
    )


def timing_layer(
    scratch: Path,
    base: Tree,
    head: Tree,
    options: Options,
    environment: dict[str, str],
    show: Show,
) -> tuple[TimingLayer, bool]:
    """Run layer 2, and once more where it ends inconclusive; return it, and if Ctrl-C ended it."""
    begin = time.monotonic()
    show("layer 2: finding the length of an arm", 2.0)
    try:
        load = blocks.pilot(
            scratch, (base, head), workers=options.workers, durability=options.durability
        )
        facts = conditions.facts(base)
        outcomes = []
        for attempt in range(2 if options.retry else 1):
            word = "again, a fresh coin: " if attempt else ""
            outcomes.append(
                timing.run(
                    timing.paired(scratch, base, head, load),
                    coin=timing.fresh_coin(),
                    levels=sequential.RETRY if attempt else sequential.FIRST,
                    tick=_ticker(show, load, word),
                )
            )
            if outcomes[-1].run.verdict != "inconclusive" or outcomes[-1].interrupted:
                break
    except blocks.Incorrect as error:
        return untimed("an arm was wrong: its figures are void", error.correctness), False
    runs = tuple(outcome.run for outcome in outcomes)
    correctness = Correctness(
        verdict="pass", because=(), jobs=sum(outcome.jobs for outcome in outcomes)
    )
    latest = runs[-1]
    promised = latest.sigma is not None and latest.sigma <= sequential.SIGMA_MAX
    layer = TimingLayer(
        verdict=latest.verdict,
        because=tuple(run.because for run in runs),
        seconds=time.monotonic() - begin,
        promised=promised,
        false_alarm_max=sequential.ALPHA,
        miss_max=sequential.BETA,
        runs=runs,
        card=conditions.card(
            load,
            [block for run in runs for block in run.blocks],
            facts,
            environment,
            correctness,
            checkpoints=sum(outcome.checkpoints for outcome in outcomes),
        ),
        correctness=correctness,
    )
    return layer, outcomes[-1].interrupted


def untimed(reason: str, correctness: Correctness | None = None) -> TimingLayer:
    """Return the layer that says why it measured nothing."""
    return TimingLayer(
        verdict="not measured",
        because=(reason,),
        seconds=0.0,
        promised=False,
        false_alarm_max=0.0,
        miss_max=0.0,
        runs=(),
        card=None,
        correctness=correctness or Correctness(verdict="unknown", because=(), jobs=0),
    )


def merged(
    verdicts: Sequence[LayerVerdict], *, interrupted: bool, void: bool = False
) -> GateVerdict:
    """Return one verdict: a layer that fails does so for all; nothing measured is no pass.

    A run with a wrong arm is void, whatever its layers say.

    >>> merged(("pass", "not measured", "inconclusive"), interrupted=False)
    'inconclusive'
    """
    if void:
        return "inconclusive"
    if "fail" in verdicts:
        return "fail"
    if interrupted or "inconclusive" in verdicts or "pass" not in verdicts:
        return "inconclusive"
    return "pass"


def sentence(
    verdict: GateVerdict,
    counted: CounterLayer,
    instructed: InstructionLayer,
    timed: TimingLayer,
    *,
    interrupted: bool,
) -> str:
    """Say in one sentence what was found, the gravest layer first."""
    if timed.correctness.verdict == "violated":
        return f"Void: an arm was wrong: {'; '.join(timed.correctness.because[:2])}."
    if interrupted and verdict != "fail":
        return "Interrupted: what had ended is below, and is no verdict."
    layers: list[CounterLayer | InstructionLayer | TimingLayer]
    layers = [counted, instructed, timed]
    if verdict == "fail":
        reasons = [
            f"layer {number}: {layer.because[0]}"
            + (f", and {len(layer.because) - 1} more" if len(layer.because) > 1 else "")
            for number, layer in enumerate(layers)
            if layer.verdict == "fail"
        ]
        rest = " Interrupted: the rest was not measured." if interrupted else ""
        return f"Slower than the base. {'; '.join(reasons)}.{rest}"
    if verdict == "inconclusive":
        doubts = [
            f"layer {number}: {layer.because[-1]}"
            for number, layer in enumerate(layers)
            if layer.verdict != "pass" and layer.because[-1] != NOT_ASKED
        ]
        return f"Inconclusive: {'; '.join(doubts)}."
    left_out = [
        f"layer {number} {layer.verdict}: {layer.because[0]}"
        for number, layer in enumerate(layers)
        if layer.verdict == "not measured"
    ]
    told = f"; {'; '.join(left_out)}" if left_out else ""
    if not timed.runs:
        return f"No counter rose{told}."
    ratio = timed.runs[-1].ratio
    return f"No slowdown of {sequential.SLOWDOWN:.0%} or more: {told_ratio(ratio.value)}{told}."


def told_ratio(value: float | None) -> str:
    """Say a ratio of times in words."""
    if value is None:
        return "no ratio"
    change = value - 1
    return f"head takes {abs(change):.1%} {'more' if change >= 0 else 'less'} time than base"


def _ticker(show: Show, load: blocks.Load, word: str) -> Callable[[timing.Progress], None]:
    begin = time.monotonic()
    guess = 4 * (load.seconds + blocks.WARM_SECONDS) + BLOCK_OVERHEAD_SECONDS

    def tick(progress: timing.Progress) -> None:
        done = progress.blocks + progress.redone
        each = (time.monotonic() - begin) / done if done else guess
        redone = f", {progress.redone} redone" if progress.redone else ""
        show(f"layer 2: {word}{progress.blocks} blocks{redone}", each * progress.left)

    tick(timing.Progress(blocks=0, redone=0, left=sequential.LOOKS[0]))
    return tick
