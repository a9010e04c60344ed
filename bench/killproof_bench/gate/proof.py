"""The gate's own error rates, measured: shams, slowdowns and seeded regressions.

Recorded once, block by block into a store that survives Ctrl-C and is gone on with by the same
command: blocks of one code against its byte copy (shams), and blocks of it against a copy with a
busy-spin of a tenth of an operation's time inside the lock (slowdowns). Offline these are paired
anew: a run draws blocks without replacement in random order, and a sham's labels are tossed again
by a fair coin, which is what the gate itself does. Live runs confirm what re-pairing says.

What re-paired runs share is their blocks: the intervals printed beside them are of the coin and the
order, given this machine on this day, and not of other days. The bound on false alarms itself needs
no measurement, it is the test's construction; the shams show that the program keeps it.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from killproof_bench import machine
from killproof_bench.gate import (
    blocks,
    checkout,
    conditions,
    instructions,
    seeded,
    sequential,
)
from killproof_bench.gate.calibration import is_quiet
from killproof_bench.gate.checkout import Tree
from killproof_bench.gate.recorder import Goal, Recorder, Setup, Store
from killproof_bench.gate.result import (
    SCHEMA,
    ArmLength,
    Block,
    GateVerdict,
    ProofResult,
    Seeded,
    Tally,
    TimingRun,
)
from killproof_bench.gate.session import Show
from killproof_bench.result import ClaimCard, Correctness, Figure, Noise, decode

#: Re-paired runs, and how many have to end as they should.
SHAMS: Final = 300
SLOWDOWNS: Final = 60
FOUND_MIN: Final = 55


def prove(
    head: Path,
    scratch: Path,
    folder: Path,
    goal: Goal,
    *,
    seed: int,
    workers: int,
    command: str,
    environment: dict[str, str],
    show: Show,
) -> ProofResult:
    """Record what the store lacks and judge it; Ctrl-C judges what there is.

    Raises:
        ValueError: It is no checkout, or the store is of another source.
        checkout.CheckoutError, blocks.ArmError: A tool failed, or an anchor has moved.
        blocks.Incorrect: An arm did what no queue may do.
    """
    started, begin, before = datetime.now(UTC), time.monotonic(), machine.now()
    store, interrupted = Store(folder), False
    with checkout.trees(scratch, "HEAD", head) as (_, tree):
        recorder = Recorder(store, goal, scratch, tree, workers, show)
        try:
            recorder.run()
        except KeyboardInterrupt:
            interrupted = True
    return judged(
        store,
        recorder.setup,
        goal,
        head=tree,
        seed=seed,
        interrupted=interrupted,
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        environment=environment,
        noise=machine.noise(before, machine.now(), []),
    )


def judged(
    store: Store,
    setup: Setup,
    goal: Goal,
    *,
    head: Tree,
    seed: int,
    interrupted: bool,
    command: str,
    started: str,
    seconds: float,
    environment: dict[str, str],
    noise: Noise,
) -> ProofResult:
    """Re-pair what the store holds, and put the result together."""
    shams, slow = store.blocks("sham"), store.blocks("slow")
    live = [(record["sham"], decode(TimingRun, record["run"])) for record in store.read("live")]
    sigma = sequential.sigma([block.d for block in shams])
    tallies = all_tallies(shams, slow, live, goal, seed)
    caught = seeded_rows(store.read("seeded"), [run for sham, run in live if not sham], goal)
    repeats = (store.read("counters") or [{"repeats": 0, "equal": False}])[0]
    counted = (store.read("instructions") or [{"values": []}])[0]["values"]
    ledger = store.read("ledger")
    correctness = Correctness(
        verdict="pass", because=(), jobs=sum(record["jobs"] for record in ledger)
    )
    complete = not interrupted and all(tally.runs for tally in tallies)
    met = all(tally.met for tally in tallies) and all(row.caught for row in caught)
    verdict: GateVerdict = "inconclusive"
    if complete and is_quiet(sigma):
        verdict = "pass" if met and repeats["equal"] else "fail"
    return ProofResult(
        schema=SCHEMA,
        kind="proof",
        command=command,
        started=started,
        seconds=seconds,
        interrupted=interrupted,
        verdict=verdict,
        sentence=sentence(verdict, tallies, caught, sigma, complete=complete),
        head=head.revision,
        seed=seed,
        environment=environment,
        sigma=sigma,
        slowdown=sequential.ratio([block.d for block in slow]),
        hold_us=setup.hold_us,
        spin_us=setup.spin_us,
        sham_blocks=tuple(shams),
        slow_blocks=tuple(slow),
        arm_lengths=arm_lengths(store.read("long")),
        tallies=tallies,
        seeded=caught,
        counter_repeats=repeats["repeats"],
        counter_repeats_equal=repeats["equal"],
        instructions=instructions.figure(counted)
        if counted
        else Figure(value=None, low=None, high=None, n=0),
        card=_card(setup, [*shams, *slow], environment, correctness, ledger),
        correctness=correctness,
        noise=noise,
    )


def _card(
    setup: Setup,
    kept: Sequence[Block],
    environment: dict[str, str],
    correctness: Correctness,
    ledger: Sequence[dict[str, Any]],
) -> ClaimCard:
    checkpoints = sum(record["checkpoints"] for record in ledger)
    return conditions.card(
        setup.load, kept, setup.facts, environment, correctness, checkpoints=checkpoints
    )


def all_tallies(
    shams: Sequence[Block],
    slow: Sequence[Block],
    live: Sequence[tuple[bool, TimingRun]],
    goal: Goal,
    seed: int,
) -> tuple[Tally, ...]:
    """Count how runs ended: re-paired and live, shams and slowdowns."""
    generator = np.random.default_rng(seed)
    most = sequential.LOOKS[-1]
    rows = {
        sort: repaired([block.d for block in kept], runs, generator, toss=sort == "shams")
        for sort, kept, runs in (("shams", shams, SHAMS), ("slowdowns", slow, SLOWDOWNS))
        if len(kept) >= most
    }
    ended = {f"re-paired {sort}": sequential.outcomes(drawn) for sort, drawn in rows.items()} | {
        f"live {sort}": (
            [run.verdict for sham, run in live if sham == (sort == "shams")],
            [len(run.blocks) for sham, run in live if sham == (sort == "shams")],
        )
        for sort in ("shams", "slowdowns")
    }
    wanted: dict[str, tuple[str, Callable[[int], bool]]] = {
        "re-paired shams": (f"0 of {SHAMS} fail", lambda failed: failed == 0),
        "re-paired slowdowns": (
            f"at least {FOUND_MIN} of {SLOWDOWNS} fail",
            lambda failed: failed >= FOUND_MIN,
        ),
        "live shams": (f"0 of {goal.live} fail", lambda failed: failed == 0),
        "live slowdowns": (f"{goal.live} of {goal.live} fail", lambda failed: failed == goal.live),
    }
    return tuple(
        tally(what, *ended.get(what, ([], [])), goal=text, is_met=is_met)
        for what, (text, is_met) in wanted.items()
    )


def repaired(
    differences: Sequence[float], runs: int, generator: np.random.Generator, *, toss: bool
) -> sequential.Array:
    """Draw runs of 80 blocks in random order without replacement; toss labels anew for a sham."""
    values = np.array(differences)
    most = sequential.LOOKS[-1]
    rows = np.array([generator.permutation(values)[:most] for _ in range(runs)])
    if toss:
        rows *= generator.choice((-1.0, 1.0), rows.shape)
    return rows


def tally(
    what: str,
    verdicts: Sequence[GateVerdict],
    block_counts: Sequence[int],
    *,
    goal: str,
    is_met: Callable[[int], bool],
) -> Tally:
    """Count verdicts; nothing that ran meets no goal."""
    failed = list(verdicts).count("fail")
    return Tally(
        what=what,
        runs=len(verdicts),
        failed=failed,
        passed=list(verdicts).count("pass"),
        inconclusive=list(verdicts).count("inconclusive"),
        goal=goal,
        met=bool(verdicts) and is_met(failed),
        rate=sequential.share(failed, len(verdicts)),
        blocks_mean=statistics.fmean(block_counts) if block_counts else 0.0,
    )


def seeded_rows(
    recorded: Sequence[dict[str, Any]], slow: Sequence[TimingRun], goal: Goal
) -> tuple[Seeded, ...]:
    """Say of each seeded regression whether the layer named beforehand caught it."""
    rose = {record["name"]: record["rose"] for record in recorded}
    rows = [
        Seeded(
            name=regression.name,
            what=regression.what,
            named=f"layer {regression.layer}: counters",
            caught=bool(rose.get(regression.name)),
            by=tuple(rose.get(regression.name, ())[:4]),
        )
        for regression in seeded.REGRESSIONS
    ]
    failed = [run for run in slow if run.verdict == "fail"]
    spun = Seeded(
        name="10% spin",
        what="each write spins inside the lock for a tenth of an operation's time",
        named="layer 2: time",
        caught=len(failed) == goal.live > 0,
        by=tuple(f"{run.ratio.value:.3f} times the base's time" for run in failed),
    )
    return (*rows, spun)


def arm_lengths(recorded: Sequence[dict[str, Any]]) -> tuple[ArmLength, ...]:
    """Return what each length of an arm buys, from the first parts of the long arms."""
    if len(recorded) < 2:
        return ()
    overhead = statistics.fmean(record["overhead"] for record in recorded)
    count = len(recorded[0]["slices"][0])
    found = []
    for used in (2, 3, 4, 6, 8, 10, 14, count):
        seconds = used * blocks.SLICE_SECONDS
        differences = [
            sequential.log_ratio([1 / max(1, sum(arm[:used])) for arm in record["slices"]], "ABBA")
            for record in recorded
        ]
        sigma = math.sqrt(statistics.fmean(d * d for d in differences))
        block_seconds = overhead + 4 * seconds
        found.append(
            ArmLength(
                seconds=seconds,
                block_seconds=block_seconds,
                sigma=sigma,
                cost=sigma**2 * block_seconds,
            )
        )
    return tuple(found)


def sentence(
    verdict: GateVerdict,
    tallies: Sequence[Tally],
    caught: Sequence[Seeded],
    sigma: Figure,
    *,
    complete: bool,
) -> str:
    """Say what the proof has shown."""
    counts = "; ".join(f"{tally.failed} of {tally.runs} {tally.what} failed" for tally in tallies)
    found = sum(row.caught for row in caught)
    told = f"{counts}; {found} of {len(caught)} seeded regressions caught by the layer named"
    if not complete:
        return f"Incomplete: {told}. The same command goes on from its --store."
    if not is_quiet(sigma):
        return (
            f"Inconclusive: sigma is {sigma.value:.1%}, above {sequential.SIGMA_MAX:.0%}; {told}."
        )
    return f"{'Kept' if verdict == 'pass' else 'Not kept'}: {told}; sigma {sigma.value:.1%}."
