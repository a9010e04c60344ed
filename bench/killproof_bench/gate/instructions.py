"""Layer 1: instructions of one ack and claim, counted by callgrind.

A process that makes 400 calls less one that makes 200 leaves the cost of the calls alone. The world
stands still in it (`counting.py`), the hash seed is 0 and addresses are not randomised, so repeats
differ by next to nothing; the gate fails above 3%.
"""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from killproof_bench.gate import counters
from killproof_bench.gate.blocks import environment
from killproof_bench.gate.checkout import CheckoutError, Tree, is_excused
from killproof_bench.gate.processes import Processes, side_by_side
from killproof_bench.gate.result import InstructionLayer
from killproof_bench.result import Figure

NAME: Final = "ack-and-claim.instructions"
#: Repeats differ by less than a thousandth (`gate-proof`); a thirtieth is somebody's doing.
RISE_MAX: Final = 0.03
CALLS: Final = (200, 400)
#: Of one process; it takes about 15 s.
SECONDS_MAX: Final = 300.0
_COLLECTED: Final = re.compile(r"Collected\s*:\s*(\d+)")


def missing() -> str | None:
    """Say which tool is not there, or None."""
    for tool in ("valgrind", "setarch"):
        if shutil.which(tool) is None:
            return f"{tool} is not there: install it to have instructions counted"
    return None


def layer(folder: Path, base: Tree, head: Tree, trailers: Sequence[str]) -> InstructionLayer:
    """Count both sides, two processes at a time: counts do not depend on who else runs."""
    if reason := missing():
        return unmeasured(reason)
    begin = time.monotonic()
    try:
        before, after = repeated(folder, (base, head))
    except CheckoutError as error:
        return unmeasured(str(error))
    return judged(before, after, trailers, seconds=time.monotonic() - begin)


def judged(
    before: float, after: float, trailers: Sequence[str], *, seconds: float
) -> InstructionLayer:
    """Compare; a pure function."""
    ratio = after / before
    excused = is_excused(NAME, trailers)
    rose = ratio > 1 + RISE_MAX
    because = (
        f"{NAME} rose by {ratio - 1:.1%}, from {before:,.0f} to {after:,.0f}; "
        f"the gate fails above {RISE_MAX:.0%}"
    )
    return InstructionLayer(
        verdict="fail" if rose and not excused else "pass",
        because=(because,) if rose else (),
        seconds=seconds,
        base=figure([before]),
        head=figure([after]),
        ratio=ratio,
        spread=None,
        excused=excused,
    )


def unmeasured(reason: str) -> InstructionLayer:
    """Return the layer that says why it measured nothing."""
    none = Figure(value=None, low=None, high=None, n=0)
    return InstructionLayer(
        verdict="not measured",
        because=(reason,),
        seconds=0.0,
        base=none,
        head=none,
        ratio=None,
        spread=None,
        excused=False,
    )


def repeated(folder: Path, sides: Sequence[Tree]) -> list[float]:
    """Return instructions per call of each side, in order; the same side may stand there twice.

    Raises:
        CheckoutError: callgrind failed.
    """
    totals = side_by_side(
        [
            _job(folder / f"loop-{index:02d}-{calls}", side, calls)
            for index, side in enumerate(sides)
            for calls in CALLS
        ]
    )
    few, many = CALLS
    return [
        (totals[2 * index + 1] - totals[2 * index]) / (many - few) for index in range(len(sides))
    ]


def collected(text: str) -> int:
    """Return the count in callgrind's own words.

    Raises:
        CheckoutError: They hold none.

    >>> collected("==7== Collected : 675796349")
    675796349
    """
    match = _COLLECTED.search(text)
    if match is None:
        words = text.strip().splitlines() or ["(no message)"]
        raise CheckoutError(f"callgrind counted nothing: {words[-1]}")
    return int(match[1])


def _job(folder: Path, tree: Tree, calls: int) -> Callable[[Processes], int]:
    def run(processes: Processes) -> int:
        folder.mkdir()
        try:
            log = folder / "callgrind.log"
            command = ["setarch", "-R", "valgrind", "--tool=callgrind"]
            command += ["--callgrind-out-file=/dev/null", f"--log-file={log}"]
            processes.run(
                command + counters.counting(folder, traced=False, calls=calls),
                environment(tree, 0),
                what="callgrind",
                seconds=SECONDS_MAX,
            )
            return collected(log.read_text())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return run


def figure(values: Sequence[float]) -> Figure:
    """Return the mean of repeats, with their range."""
    return Figure(value=sum(values) / len(values), low=min(values), high=max(values), n=len(values))
