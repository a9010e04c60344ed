"""How long a program waits for killproof to be there: importing the queue, starting the command.

Question: may a script that cron starts every minute, or a shell prompt, use it without a thought?
Primary figures: the import alone, measured in a new process each time; and `killproof --version`
beside the smallest program of the same command-line library, process and all. The arms take turns
in an order drawn anew for each round, so that a busy moment of the machine hits all of them alike.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof_bench.crew import CrewError

ROUNDS: Final = 20
IMPORT_GOAL_MS: Final = 60.0
VERSION_GOAL: Final = 1.3

HELLO: Final = """
import typer
app = typer.Typer(add_completion=False)
@app.command()
def hello() -> None:
    print("hello")
app()
"""
#: Prints the seconds of the import, and the modules that are neither Python's nor ours.
IMPORT: Final = """
import json, sys, time
before = set(sys.modules)
begin = time.perf_counter()
import killproof
seconds = time.perf_counter() - begin
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps([seconds, sorted(new - sys.stdlib_module_names - {"killproof"})]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupResult:
    """Medians over the rounds, in milliseconds."""

    rounds: int
    interpreter_ms: float  #: a process that does nothing
    import_ms: float  #: of killproof, within its process
    foreign_modules: list[str]  #: what the import brought that is neither Python's nor ours
    hello_ms: float  #: the smallest program of the command-line library
    version_ms: float  #: `killproof --version`

    @property
    def version_ratio(self) -> float:
        """How much longer the command takes than the smallest program."""
        return self.version_ms / self.hello_ms


def run(folder: Path, *, rounds: int = ROUNDS, seed: int = 1) -> StartupResult:
    """Start each program so many times; the first start of each, which compiles, does not count.

    Raises:
        CrewError: a program failed; its own words are on standard error.
    """
    hello = folder / "hello.py"
    hello.write_text(HELLO, encoding="utf-8")
    arms: Mapping[str, list[str]] = {
        "interpreter": ["-c", "pass"],
        "import": ["-c", IMPORT],
        "hello": [str(hello)],
        "version": ["-m", "killproof", "--version"],
    }
    source = random.Random(seed)
    taken: dict[str, list[float]] = {name: [] for name in arms}
    imports: list[float] = []
    foreign: set[str] = set()
    for number in range(rounds + 1):
        for name in source.sample(list(arms), len(arms)):
            seconds, printed = _start(arms[name])
            if number == 0:
                continue
            taken[name].append(seconds)
            if name == "import":
                inside, modules = json.loads(printed)
                imports.append(inside)
                foreign.update(modules)
    return StartupResult(
        rounds=rounds,
        interpreter_ms=_median_ms(taken["interpreter"]),
        import_ms=_median_ms(imports),
        foreign_modules=sorted(foreign),
        hello_ms=_median_ms(taken["hello"]),
        version_ms=_median_ms(taken["version"]),
    )


def sentence(result: StartupResult) -> str:
    """Say what was measured."""
    brought = ", ".join(result.foreign_modules) or "none"
    return (
        f"import killproof: {result.import_ms:.0f} ms (goal {IMPORT_GOAL_MS:.0f}), beside the "
        f"{result.interpreter_ms:.0f} ms of a process that does nothing; "
        f"third-party modules: {brought}.\n"
        f"killproof --version: {result.version_ms:.0f} ms, {result.version_ratio:.2f} times a "
        f"hello-world of the same library ({result.hello_ms:.0f} ms; goal {VERSION_GOAL}).\n"
        f"Medians of {result.rounds} processes each, in turns; Python {sys.version.split()[0]}, "
        f"{'compiled at each start' if sys.dont_write_bytecode else 'bytecode kept'}."
    )


def _start(words: list[str]) -> tuple[float, str]:
    """Run one process; return its seconds and what it printed."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise CrewError(f"{' '.join(words)!r} ended with status {done.returncode}")
    return seconds, done.stdout


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1_000
