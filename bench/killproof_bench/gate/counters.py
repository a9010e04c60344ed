"""Layer 0: deterministic counters of each operation, base beside head; no chance of a false alarm.

`counting.py` counts in a process of each side, `strace` counts system calls in another. A counter
fails the gate when its mean over the counted calls rises by more than 1%, or when the median call
of one that counts in ones (frames, transactions, statements, system calls, scans) rises at all.
Steps of SQLite's virtual machine and calls of Python go by the hundred: of those, one more is no
regression. A `perf-ok:` trailer in a commit between base and head excuses what it names.

Without strace the system calls that Python itself makes are counted instead, by their names, and
those that SQLite makes are not.
"""

import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof_bench.gate.blocks import environment
from killproof_bench.gate.checkout import CheckoutError, Tree, is_excused
from killproof_bench.gate.processes import Processes, side_by_side
from killproof_bench.gate.result import Counter, CounterLayer, PlanChange

#: A rise of the mean below this is the layout of a B-tree page, not the code.
RISE_MAX: Final = 0.01
#: Rows of the larger of the two files: an index that was lost shows as a thousand times the steps.
ROWS: Final = 100_000
#: A whole count takes some seconds.
SECONDS_MAX: Final = 120.0
COUNTING: Final = Path(__file__).with_name("counting.py")

SYSCALLS: Final = ("pread64", "pwrite64", "fdatasync", "fsync", "fcntl", "flock", "futex")
#: The mark's own call has three names, of which an architecture has some.
_TRACED: Final = ",".join(("?access", "?faccessat", "?faccessat2", *SYSCALLS))
_LINE: Final = re.compile(r"^(?:\d+\s+)?(\w+)\((?:.*?\"/killproof-gate/(begin|end)\")?")

#: Counters that go by the hundred: only their mean is judged.
_LARGE: Final = ("steps-1k", "steps-100k", "python-calls", "late-us", "longest-sleep-us")
_UNITS: Final = {
    "steps-1k": "VM steps, 1,000 rows",
    "steps-100k": "VM steps, 100,000 rows",
    "frames-1k": "WAL frames, 1,000 rows",
    "frames-100k": "WAL frames, 100,000 rows",
    "python-calls": "calls",
    "transactions": "write transactions",
    "scans": "in query plans",
    "sorts": "in query plans",
    "automatic-indexes": "in query plans",
    "late-us": "microseconds slept after the lock was free",
    "longest-sleep-us": "microseconds",
}

Values = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was counted on one side: operation, counter, value of each call."""

    values: Values
    plans: dict[str, list[str]]
    syscalls_by: str


def layer(folder: Path, base: Tree, head: Tree, trailers: Sequence[str]) -> CounterLayer:
    """Count both sides, side by side, and compare."""
    begin = time.monotonic()
    before, after = side_by_side(
        [
            lambda processes: count(folder / "one", base, processes),
            lambda processes: count(folder / "two", head, processes),
        ]
    )
    return compared(before, after, trailers, seconds=time.monotonic() - begin)


def count(folder: Path, tree: Tree, processes: Processes) -> Counts:
    """Count one side in a folder of its own, which is removed again.

    Raises:
        CheckoutError: The counting process failed.
    """
    folder.mkdir()
    try:
        told = json.loads(_counted(processes, folder, tree))
        values: Values = told["counted"]
        by = _trace(folder, tree, processes, values)
        for counters in values.values():
            for name in [name for name in counters if _is_python_syscall(name)]:
                found = counters.pop(name)
                if not by.startswith("strace"):
                    counters[name.removeprefix("python-")] = found
        return Counts(values=values, plans=told["plans"], syscalls_by=by)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def counting(folder: Path, *, traced: bool, calls: int = 0, rows: int = ROWS) -> list[str]:
    """Return the command of a counting process."""
    spec = {"folder": str(folder), "traced": traced, "rows": rows, "calls": calls}
    return [sys.executable, "-S", "-P", str(COUNTING), json.dumps(spec)]


def compared(
    before: Counts, after: Counts, trailers: Sequence[str], *, seconds: float
) -> CounterLayer:
    """Compare what was counted on the two sides; a pure function."""
    shared = [name for name in before.values if name in after.values]
    counters = tuple(
        _counter(operation, name, was, after.values[operation][name], trailers)
        for operation in shared
        for name, was in before.values[operation].items()
        if name in after.values[operation]
    )
    plans = tuple(
        _plan_change(operation, lines, after.plans[operation], trailers)
        for operation, lines in before.plans.items()
        if after.plans.get(operation, lines) != lines
    )
    because = [
        f"{c.name} rose from {_number(c.base)} to {_number(c.head)} ({c.unit}) for each call"
        for c in counters
        if c.rose and not c.excused
    ]
    # Scans, sorts and automatic indexes fail as counters; the text of a plan tells why.
    return CounterLayer(
        verdict="fail" if because else "pass",
        because=tuple(because),
        seconds=seconds,
        calls=max((len(v) for each in before.values.values() for v in each.values()), default=0),
        syscalls_by=before.syscalls_by,
        counters=counters,
        plans=plans,
        absent=tuple(sorted(before.values.keys() ^ after.values.keys())),
    )


def _counter(
    operation: str, name: str, was: list[float], now: list[float], trailers: Sequence[str]
) -> Counter:
    base, head = statistics.fmean(was), statistics.fmean(now)
    base_typical, head_typical = statistics.median_high(was), statistics.median_high(now)
    rose = head > base * (1 + RISE_MAX) or (name not in _LARGE and head_typical > base_typical)
    full = f"{operation}.{name}"
    return Counter(
        name=full,
        operation=operation,
        unit=_UNITS.get(name, name),
        base=base,
        head=head,
        base_typical=base_typical,
        head_typical=head_typical,
        rose=rose,
        excused=is_excused(full, trailers),
    )


def _plan_change(
    operation: str, before: list[str], after: list[str], trailers: Sequence[str]
) -> PlanChange:
    name = f"{operation}.plan"
    return PlanChange(
        name=name,
        operation=operation,
        base=tuple(line for line in before if line not in after),
        head=tuple(line for line in after if line not in before),
        rose=_unwanted(after) > _unwanted(before),
        excused=is_excused(name, trailers),
    )


def _unwanted(lines: list[str]) -> int:
    return sum(
        ("SCAN" in line and "VIRTUAL" not in line) or "TEMP B-TREE" in line or "AUTOMATIC" in line
        for line in lines
    )


def _trace(folder: Path, tree: Tree, processes: Processes, values: Values) -> str:
    """Add the counts of system calls, by strace; say by what, or why not."""
    strace = shutil.which("strace")
    if strace is None:
        return "Python's own calls; strace is not there, so SQLite's were not counted"
    log = folder / "trace"
    command = [strace, "-f", "-qq", "-o", str(log), "-e", f"trace={_TRACED}"]
    try:
        told = json.loads(_run(processes, command + counting(folder, traced=True), tree))
    except CheckoutError as error:  # A container may forbid tracing.
        return f"Python's own calls; strace failed ({error}), so SQLite's were not counted"
    calls = parse_trace(log.read_text(encoding="utf-8", errors="replace").splitlines())
    for operation, each in split(calls, told["operations"]).items():
        for name in SYSCALLS:
            values[operation][name] = [float(call.get(name, 0)) for call in each]
    return "strace"


def parse_trace(lines: Sequence[str]) -> list[dict[str, int]]:
    """Return for each marked call how often each system call was begun in it."""
    calls: list[dict[str, int]] = []
    inside = False
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        name, mark = match.groups()
        if mark == "begin":
            inside = True
            calls.append({})
        elif mark == "end":
            inside = False
        elif inside:
            calls[-1][name] = calls[-1].get(name, 0) + 1
    return calls


def split(
    calls: Sequence[dict[str, int]], operations: Sequence[str]
) -> dict[str, list[dict[str, int]]]:
    """Share the marked calls among the operations, which made equally many each, in order.

    Raises:
        CheckoutError: The numbers do not fit.
    """
    if not operations or len(calls) % len(operations):
        raise CheckoutError(f"{len(calls)} traced calls of {len(operations)} operations")
    size = len(calls) // len(operations)
    return {
        name: list(calls[index * size : (index + 1) * size])
        for index, name in enumerate(operations)
    }


def _is_python_syscall(name: str) -> bool:
    return name.startswith("python-") and name != "python-calls"


def _counted(processes: Processes, folder: Path, tree: Tree) -> str:
    try:
        return _run(processes, counting(folder, traced=False), tree)
    except CheckoutError as error:
        raise CheckoutError(
            f"{error}; a revision that is too old to be counted can be timed: --layer 2"
        ) from error


def _run(processes: Processes, command: list[str], tree: Tree) -> str:
    return processes.run(
        command,
        environment(tree, 0),
        what=f"counting {tree.folder.name} {tree.revision.name!r}",
        seconds=SECONDS_MAX,
    )


def _number(value: float) -> str:
    return f"{value:,.4g}" if value < 1_000 else f"{value:,.0f}"


def unmeasured(reason: str) -> CounterLayer:
    """Return the layer that says why it counted nothing."""
    return CounterLayer(
        verdict="not measured",
        because=(reason,),
        seconds=0.0,
        calls=0,
        syscalls_by=reason,
        counters=(),
        plans=(),
        absent=(),
    )
