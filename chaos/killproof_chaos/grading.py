"""Grading a repair: `killproof chaos gallery NAME --grade FILE`.

The reader's file is looked at first, then put through what catches the broken queue, then through a
short general check, so that a repair that breaks something else, promises less or does no work does
not pass. The first stage that is not passed ends the grading: it has a story to read, and the
evidence of it is kept.

All of the reader's code runs in processes of its own, forked from this one, which has imported the
engines already. A stage is a `killproof chaos` command like any other, so the reader can repeat it.
"""

import importlib
import json
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from killproof.wording import one_line
from killproof_chaos import gallery, grading_process
from killproof_chaos.command import STORES, import_engines
from killproof_chaos.gallery import Fault
from killproof_chaos.summary import extent
from killproof_evidence.judge import PROPERTIES

#: Of a process of the reader's code. The longest stage takes a tenth of it on a quiet machine.
CPU_SECONDS_MAX: Final = 60
LOOK_CPU_SECONDS_MAX: Final = 3
#: A process that waits for ever uses no time of the processor.
WALL_SECONDS_MAX: Final = 240
LOOK_WALL_SECONDS_MAX: Final = 120
#: Progress is told from then on.
SHOWN_AFTER_SECONDS: Final = 2.0

SEEDS: Final = (11, 12, 13)
#: Engines whose runs depend on a seed: there a pass once may be luck.
DRAWN: Final = frozenset({"proc", "disk"})
STORY_LINES_MAX: Final = 40
#: Of a line of evidence: enough to find it, and no payload.
LINE_CHARS_MAX: Final = 100

#: The general check: the races that every queue meets, those that find the most first; a power cut
#: at 20 points; a kill at every file call of an ack with an effect; and real processes, where
#: nothing else can be judged. A silence about a promise that a race shows is no pass.
GENERAL_RACES: Final = (
    (
        ("claim", "stale-ack", "unique-key"),
        ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P11", "P12", "P14", "P16", "P17"),
    ),
    (("nack", "last-attempt", "promote", "extend-against-reap"), ("P9", "P10")),
)
GENERAL_DISK: Final = ("--points", "20", "--jobs", "20", "--seed", str(SEEDS[0]))
GENERAL_CRASH: Final = ("--operation", "completing", "--no-errors")
GENERAL_PROC: Final = (
    *("--seconds", "1.5", "--workers", "3", "--producers", "1", "--kills", "4", "--pauses", "0"),
    *("--nemesis", "kill,handler", "--mix", "plain", "--seed", str(SEEDS[0])),
)
LOOK: Final = "first look"
SENTENCES: Final = {entry.number: entry.sentence for entry in PROPERTIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One command of the grading."""

    what: str  #: for the reader
    engine: str
    argv: tuple[str, ...]  #: behind `killproof chaos ENGINE --target FILE`
    must_pass: tuple[str, ...] = ()  #: promises that it must have shown to be kept
    beside: frozenset[str] = frozenset()  #: promises on which it is not heard
    seconds: float = 2.0  #: about, on a quiet machine

    def command(self, file: str) -> list[str]:
        """Return the command, as the reader would type it."""
        word = "run" if self.engine == "proc" else self.engine
        return ["killproof", "chaos", word, "--target", file, *self.argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of a stage."""

    what: str
    verdict: str  #: pass, violated or unknown
    said: str  #: in a line


@dataclass(slots=True, kw_only=True)
class Grade:
    """What came of a grading."""

    name: str
    file: str
    verdict: str = "pass"  #: pass; violated: not repaired; unknown: could not be judged
    is_unusable: bool = False  #: the file is no queue at all
    steps: list[Step] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  #: promises, the intended one first
    story: list[str] = field(default_factory=list)  #: of the first of them, as lines
    again: str = ""  #: the command that shows it in full
    evidence: str = ""  #: the folder of that run

    def add(self, what: str, verdict: str, said: str) -> None:
        """Note what came of a stage."""
        self.steps.append(Step(what=what, verdict=verdict, said=said))
        self.verdict = verdict

    def record(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far a grading is, in tenths of a second."""

    done: int
    total: int
    what: str

    @property
    def left(self) -> float:
        """Seconds that it still takes, about."""
        return max(0, self.total - self.done) / 10


Show = Callable[[Turn], None]


class StageFailed(Exception):
    """The command of a stage has judged nothing; the message says why."""


def grade(
    fault: Fault, file: str, show: Show = lambda _turn: None, *, stages_max: int | None = None
) -> Grade:
    """Judge the repaired copy of a broken queue.

    Args:
        fault: of the broken queue.
        file: the reader's, as it was typed.
        show: is told how far it is, from the third second on.
        stages_max: after the first look, so many stages at most; None: all.

    Raises:
        ValueError: the evidence cannot be written here; the message says what to do.
    """
    grade = Grade(name=fault.name, file=file)
    clock = _Clock(show)
    folder = _new_folder(fault.name)
    try:
        seen = _look(fault.name, file, folder, clock)
        if seen["problem"] is not None:
            grade.is_unusable = seen["is_unusable"]
            grade.add(LOOK, "violated", seen["problem"])
            return grade
        grade.add(LOOK, "pass", "it loads, promises as much, and does its first jobs")
        stages = [*catching(fault), *general(fault, seen)][:stages_max]
        for number, stage in enumerate(stages):
            clock.left = sum(each.seconds for each in stages[number + 1 :])
            _judge(grade, fault, stage, folder / f"{number + 1}-{stage.engine}", clock)
            if grade.verdict != "pass":
                return grade
        return grade
    finally:
        if not grade.evidence:
            shutil.rmtree(folder, ignore_errors=True)


def catching(fault: Fault) -> list[Stage]:
    """Return what must catch a broken queue: its own command, with several seeds."""
    what = f"what catches {fault.name} ({fault.engine})"
    options = fault.options
    one = Stage(
        what=what, engine=fault.engine, argv=options, must_pass=(fault.promise,),
        seconds=fault.seconds,
    )  # fmt: skip
    is_random = "--scheduler" in options and "dfs" not in options
    if "--seed" in options or not (fault.engine in DRAWN or is_random):
        return [one]
    drawn = [
        Stage(
            what=f"{what}, seed {seed}", engine=one.engine, argv=(*options, "--seed", str(seed)),
            must_pass=one.must_pass, seconds=one.seconds,
        )
        for seed in SEEDS
    ]  # fmt: skip
    if not is_random:
        return drawn
    # A random search exhausts nothing: the same scenarios, all schedules up to the default bound.
    scenarios = _of_options(options, "--scenario")
    whole = Stage(what=f"{what}, every schedule", engine="sim", argv=scenarios, seconds=5.0)
    return [*drawn, whole]


def general(fault: Fault, seen: Mapping[str, Any]) -> list[Stage]:
    """Return the short general check of a target: what any queue must stand.

    Args:
        fault: of the broken queue that was repaired.
        seen: what the first look says that the target can be put through.
    """
    what = "general check"
    contract = gallery.target(fault.name).contract
    stages = []
    if seen["level"] >= 2:
        for names, shown in GENERAL_RACES:
            argv = tuple(word for name in names for word in ("--scenario", name))
            must = tuple(each for each in shown if contract.promised(each))
            stages.append(
                Stage(what=f"{what} (sim)", engine="sim", argv=argv, must_pass=must, seconds=2.0)
            )
    if contract.promised("P1") == "power" and fault.engine != "disk":
        stages.append(
            Stage(what=f"{what} (disk)", engine="disk", argv=GENERAL_DISK, must_pass=("P1",))
        )
    if "completing" in seen["steps"] and contract.promised("P6"):
        stages.append(
            Stage(
                what=f"{what} (crash)",
                engine="crash",
                argv=GENERAL_CRASH,
                must_pass=("P6",),
                # It looks whether the file is as before the operation or as after it, and looks
                # late at times: a queue that takes back lost jobs when it is opened has done so.
                beside=frozenset({"P14"}),
                seconds=3.0,
            )
        )
    if seen["level"] < 2 and fault.engine != "proc":
        stages.append(
            Stage(
                what=f"{what} (proc)",
                engine="proc",
                argv=GENERAL_PROC,
                must_pass=("P17",),
                seconds=6.0,
            )
        )
    return stages


def _of_options(options: Sequence[str], name: str) -> tuple[str, ...]:
    found: list[str] = []
    for word, following in pairwise(options):
        if word == name:
            found += [word, following]
    return tuple(found)


# What a stage says.


def _judge(grade: Grade, fault: Fault, stage: Stage, store: Path, clock: "_Clock") -> None:
    """Run a stage and add what came of it."""
    argv = stage.command(grade.file)
    try:
        record = _run(stage, argv, store, clock, grade.file)
    except StageFailed as failed:
        grade.add(stage.what, "unknown", str(failed))
        grade.again, grade.evidence = shlex.join(argv), str(store)
        return
    except grading_process.Endless as endless:
        grade.add(stage.what, "violated", f"it never ends: {endless}")
        return
    broken = [
        number
        for number, found in record["properties"].items()
        if found["verdict"] == "violated" and number not in stage.beside
    ]
    broken.sort(key=lambda number: number != fault.promise)
    errors = record.get("errors") or []
    unseen = [
        number for number in stage.must_pass if record["properties"][number]["verdict"] != "pass"
    ]
    if broken or errors:
        grade.broken = broken
        said = "; ".join([f"{SENTENCES[each]} ({each})" for each in broken[:1]] or errors[:1])
        grade.add(stage.what, "violated", f"{_tried(record)}: broken: {said}")
        grade.story = list(islice(_story(record, broken[0] if broken else ""), STORY_LINES_MAX))
    elif unseen:
        number = unseen[0]
        why = record["properties"][number].get("reason") or _because(record)
        grade.add(
            stage.what,
            "unknown",
            f"{_tried(record)}: whether {number} is kept was not seen: {one_line(why)}",
        )
    else:
        grade.add(stage.what, "pass", f"no violation found in {_tried(record)}")
        return
    grade.again = shlex.join(argv)
    grade.evidence = str(store)


def _tried(record: Mapping[str, Any]) -> str:
    """Return what was tried, without what is in parentheses there."""
    return re.sub(r" \([^)]*\)", "", extent(record))


def _because(record: Mapping[str, Any]) -> str:
    return str(next(iter(record["unknown_because"]), "nothing in the run was about it"))


def _story(record: Mapping[str, Any], number: str) -> Iterator[str]:
    """Yield the story of a broken promise: a schedule's steps, or the lines that prove it."""
    stories = record.get("stories") or []
    # One that was shrunk for another promise may show this one too, and the other way round.
    for each in sorted(
        stories, key=lambda each: (f"({number})" not in each["text"], each["promise"] != number)
    )[:1]:
        yield from each["text"].splitlines()
        return
    witnesses = record["properties"][number]["witnesses"] if number else []
    for witness in witnesses[:1]:
        yield one_line(witness["story"])
        for line in witness["lines"]:
            yield f"  {line['file']}  {one_line(line['text'])[:LINE_CHARS_MAX]}"


# The processes of the reader's code.


@dataclass(slots=True)
class _Clock:
    """How long it has taken, and about how long it still takes."""

    show: Show
    left: float = 10.0  #: s, about, behind the stage that runs
    started: float = field(default_factory=time.monotonic)

    def tell(self, what: str, seconds: float, since: float) -> None:
        now = time.monotonic()
        if now - self.started < SHOWN_AFTER_SECONDS:
            return
        done = now - self.started
        rest = max(0.5, seconds - (now - since)) + self.left
        self.show(Turn(done=round(10 * done), total=round(10 * (done + rest)), what=what))


def _look(name: str, file: str, folder: Path, clock: _Clock) -> dict[str, Any]:
    """Have a first look at the reader's file; return what was seen.

    It needs the engines, which are imported here: the processes that follow are forked from this
    one, and would each import them anew.
    """
    importlib.import_module("killproof_chaos.cli")
    import_engines()
    from killproof_chaos import grading_look

    told = folder / "look.json"
    try:
        said = grading_process.run(
            lambda: grading_look.look(name, file, told),
            folder / "look",
            lambda since: clock.tell("the first look", 1.0, since),
            cpu_seconds=LOOK_CPU_SECONDS_MAX,
            wall_seconds=LOOK_WALL_SECONDS_MAX,
            file=file,
        )
    except grading_process.Endless as endless:
        return {"problem": f"it never ends: {endless}", "is_unusable": False}
    if not told.exists():
        reason = said or "it ended its process: take the exit out of it"
        return {"problem": f"{file} cannot be looked at: {reason}", "is_unusable": True}
    seen: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return seen


def _run(stage: Stage, argv: list[str], store: Path, clock: _Clock, file: str) -> dict[str, Any]:
    """Run the command of a stage; return verdict.json.

    Raises:
        StageFailed: it has judged nothing.
        grading_process.Endless: the reader's code never came back.
    """
    from killproof import cli

    def command() -> None:
        sys.argv = [*argv, "--json", "--no-report", "--store", str(store)]
        sys.argv[:2] = ["killproof", "chaos"]
        sys.exit(cli.main())

    said = grading_process.run(
        command,
        store.with_name(f"{store.name}.log"),
        lambda since: clock.tell(stage.what, stage.seconds, since),
        cpu_seconds=CPU_SECONDS_MAX,
        wall_seconds=WALL_SECONDS_MAX,
        file=file,
    )
    try:
        record: dict[str, Any] = json.loads((store / "verdict.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise StageFailed(said or "the command ended without a verdict") from None
    return record


def _new_folder(name: str) -> Path:
    try:
        Path(STORES).mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"grade-{name}-", dir=STORES))
    except OSError as error:
        raise ValueError(
            f"the evidence cannot be written to {STORES!r} ({error.strerror}): grade in a folder "
            "of yours"
        ) from None
