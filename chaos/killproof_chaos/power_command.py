"""The command `killproof chaos power`: how surely, and how fast, broken queues are caught.

Exit codes: 0 every broken queue was caught by its intended property on every seed, and no healthy
one was accused; 1 one was missed, or one was accused; 2 something could not be run; 3 the harness
itself failed; 64 wrong usage.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import killproof
import killproof_chaos
import killproof_evidence
from killproof_chaos.command import (
    EXIT_OF,
    STORES,
    JsonOption,
    ReportOption,
    StoreOption,
    console,
    harness,
    shown,
    within,
)
from killproof_chaos.sim_command import seconds_of
from killproof_evidence.environment import environment
from killproof_evidence.store import Store, write_json

SEEDS_MAX: Final = 1_000
LANES_MAX: Final = 64
#: A line for each trial that was made: a run that is asked for again goes on where this one ended.
OUTCOMES: Final = "outcomes.jsonl"
RECORD: Final = "power.json"
CODE: Final = "code.txt"
#: What the lanes of two cores need for databases, logs and copies of disks.
MEMORY_BYTES_MIN: Final = 256 << 20
#: Seconds that a trial takes, until there is a measurement.
USUAL_SECONDS: Final = {"sim": 1.0, "crash": 2.5, "disk": 2.5, "proc": 7.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far it is."""

    done: int
    total: int
    text: str


def measure(
    seeds: Annotated[int, typer.Option(help="Seeds of each broken queue.")] = 20,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this broken queue; may be given several times.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Only these engines: sim, crash, disk, proc.")
    ] = None,
    cross: Annotated[
        int, typer.Option(help="Seeds of each engine that is not the intended one.")
    ] = 2,
    healthy: Annotated[bool, typer.Option(help="Also the healthy queues and the canary.")] = True,
    is_slice: Annotated[
        bool, typer.Option("--slice", help="One seed, few processes, no other engines: for CI.")
    ] = False,
    budget: Annotated[str, typer.Option(help="Begin nothing new after this time.")] = "60m",
    lanes: Annotated[
        int | None, typer.Option(help="Runs at once; as many as cores when not given.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Measure what the harness finds: broken queues x engines x checkers, over many seeds.

    Each broken queue of the gallery runs under the engine and options that it names. The rate of
    detection has a Wilson interval; a run that finds nothing within its budget is censored. With
    the STORE of a run that was interrupted, it goes on.
    """
    from killproof_chaos.power import trials

    asked = trials.Asked(
        seeds=within("seeds", seeds, 1, SEEDS_MAX),
        only=tuple(dict.fromkeys(only or ())),
        engines=_engines(engine),
        cross=within("cross", cross, 0, SEEDS_MAX),
        healthy=healthy,
        is_slice=is_slice,
    )
    seconds = seconds_of(budget)
    count = len(os.sched_getaffinity(0)) if lanes is None else within("lanes", lanes, 1, LANES_MAX)
    trials.faults(asked)  # Refuses before a store is made.
    folder = place_of(store)
    with harness():
        planned = trials.trials(asked)
        with shown(_text) as show:
            record = run(asked, planned, folder, seconds=seconds, lanes=count, show=show)
    _tell(record, folder, as_json=as_json, report=report)
    raise typer.Exit(EXIT_OF[record["verdict"]])


def _text(turn: Turn) -> str:
    return turn.text


def place_of(store: Path | None) -> Path:
    """Return the store: a new folder, or that of a run of the same code that may go on.

    Raises:
        ValueError: the folder holds something else; definite.
    """
    folder = store or Path(STORES) / f"power-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"evidence in {folder}", file=sys.stderr)
    code, note = _code(), folder / CODE
    if not any(folder.iterdir()):
        note.write_text(code, encoding="utf-8")
    elif not note.exists():
        raise ValueError(f"--store {str(folder)!r} is not empty: give a new folder")
    elif note.read_text(encoding="utf-8") != code:
        # What older code found says nothing of this one.
        raise ValueError(f"--store {str(folder)!r} is of a run of other code: give a new folder")
    return folder


def _code() -> str:
    """Return a word that changes with any source of the queue, the judge or the harness."""
    digest = blake2b(digest_size=16)
    for package in (killproof, killproof_evidence, killproof_chaos):
        root = Path(package.__path__[0])
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.sql"), *root.rglob("*.c")]):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def run(
    asked: Any,
    planned: list[Any],
    folder: Path,
    *,
    seconds: float,
    lanes: int,
    show: Callable[[Turn], None] = lambda _turn: None,
) -> dict[str, Any]:
    """Make all trials that are not made yet; return the record, written. Ctrl-C ends it early.

    Args:
        asked: what the user asked for.
        planned: its trials.
        folder: the store; outcomes that it holds already are not made again.
        seconds: nothing new begins after them.
        lanes: trials at once.
        show: is told how far it is.
    """
    from killproof_chaos import memory
    from killproof_chaos.power import matrix
    from killproof_chaos.power.lanes import Lanes

    began, started = time.monotonic(), time.time()
    keys = {trial.key for trial in planned}
    made = [one for one in _read(folder) if one.trial.key in keys]
    known = {one.trial.key for one in made}
    left = [trial for trial in planned if trial.key not in known]
    interrupted = ""
    log = Store(folder).writer(folder / OUTCOMES)
    progress = _Progress(planned, made, lanes)

    def due() -> Iterator[Any]:
        for trial in left:
            if time.monotonic() - began > seconds:
                return
            yield trial

    with memory.lent("power", bytes_min=MEMORY_BYTES_MIN, otherwise=folder) as place:
        pool = Lanes(lanes, place, folder) if left else None
        try:
            for outcome in pool.outcomes(due()) if pool is not None else ():
                made.append(outcome)
                log.append(outcome.record())
                show(progress.turn(outcome, seconds - (time.monotonic() - began)))
        except KeyboardInterrupt:
            interrupted = "the run was interrupted"
        finally:
            if pool is not None:
                pool.close()
            log.close()
        where = str(place.parent)
    memory.sweep()
    record = matrix.record_of(asked, planned, made, interrupted=interrupted)
    record |= {
        "argv": [*record["command"].split(), "--lanes", str(lanes)],
        "lanes": lanes,
        "files_in": where,
        "started": started,
        "ended": time.time(),
        "version": version("killproof"),
        "environment": environment(folder),
    }
    write_json(folder / RECORD, record)
    return record


class _Progress:
    """How far it is, and how long it still takes by the pace of each engine so far."""

    def __init__(self, planned: list[Any], made: list[Any], lanes: int) -> None:
        self._lanes = lanes
        self._total = len(planned)
        self._left: dict[str, int] = {}
        self._took: dict[str, list[float]] = {}
        self._missed = 0
        known = {one.trial.key for one in made}
        for trial in planned:
            if trial.key not in known:
                self._left[trial.engine] = self._left.get(trial.engine, 0) + 1

    def turn(self, outcome: Any, budget_left: float) -> Turn:
        """Take in an outcome; return what to show."""
        from killproof_chaos.power.lane import is_expected

        engine = outcome.trial.engine
        self._left[engine] -= 1
        self._took.setdefault(engine, []).append(outcome.seconds)
        self._missed += not is_expected(outcome)
        remaining = sum(count * self._pace(name) for name, count in self._left.items())
        seconds = min(remaining / self._lanes, max(budget_left, 0.0))
        done = self._total - sum(self._left.values())
        left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
        missed = f", {self._missed} not as expected" if self._missed else ""
        text = f"{done:,} of {self._total:,} runs{missed}, about {left} left"
        return Turn(done=done, total=self._total, text=text)

    def _pace(self, engine: str) -> float:
        took = self._took.get(engine)
        return sum(took) / len(took) if took else USUAL_SECONDS[engine]


def _read(folder: Path) -> list[Any]:
    """Return the outcomes that a store holds; those that failed are made again."""
    from killproof_chaos.power.lane import FAILED
    from killproof_chaos.power.trials import Outcome

    path = folder / OUTCOMES
    if not path.exists():
        return []
    found = [Outcome.of_record(record) for _, record in Store(folder).read(path) if record]
    return [outcome for outcome in found if outcome.verdict != FAILED]


def _tell(record: dict[str, Any], folder: Path, *, as_json: bool, report: bool) -> None:
    from killproof_chaos import report_power

    out = console(stderr=as_json)
    for part in report_power.terminal(record):
        out.print(part, highlight=False)
    if report:
        page = report_power.write_reports(record, folder / "power.md")
        print(f"report: {page}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(record))


def _engines(words: list[str] | None) -> tuple[str, ...]:
    from killproof_chaos.power.trials import ENGINES

    for word in words or ():
        if word not in ENGINES:
            raise ValueError(f"--engine {word!r} is unknown: use {', '.join(ENGINES)}")
    return tuple(name for name in ENGINES if not words or name in words)
