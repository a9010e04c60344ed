"""The tests that `--killproof-target` makes: one for each promise and engine, and one for each run.

A promise that is kept passes, one that is violated fails with its story and the lines that prove
it. What the queue does not promise, or this engine cannot judge, is skipped with the reason. The
run's own test fails when the engine missed what it was obliged to hit: the passes beside it then
rest on less than was asked for.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from killproof_chaos import pytest_runs
from killproof_chaos.pytest_plugin import ACTING
from killproof_chaos.pytest_runs import ENGINES, SECONDS_MAX, Outcome
from killproof_evidence.finding import NOT_JUDGED, NOT_PROMISED, PASS, UNKNOWN, VIOLATED
from killproof_evidence.judge import PROPERTIES

STORES: Final = "killproof-store"
#: Of one violation the lines are shown, of so many more the story.
STORIES_MAX: Final = 4
LINES_MAX: Final = 12
LINE_CHARS_MAX: Final = 300
REASON_CHARS_MAX: Final = 500
REASONS_MAX: Final = 12
RUN: Final = "the run met what it was obliged to"
UNKNOWN_WORDS: Final = ("fail", "skip")
#: What begins with promises is the reason of those promises' own tests.
OF_PROMISES: Final = re.compile(r"P\d+(, P\d+)*: ")


class Judgement(Exception):
    """A verdict that is no pass; its text is all there is to tell."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The acting half of the plugin: what was asked for, and where it is kept."""

    targets: tuple[str, ...]
    engines: tuple[str, ...]
    seconds: float
    seed: int | None
    unknown_fails: bool
    folder: Path  #: of all runs; the processes of xdist share it
    cwd: Path
    python_path: str
    seen: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    @classmethod
    def of(cls, config: pytest.Config) -> Plugin:
        """Read the options.

        Raises:
            pytest.UsageError: one cannot be used; the message names the value and the remedy.
        """
        words = [word.strip() for word in config.getoption("killproof_engine").split(",")]
        engines = tuple(dict.fromkeys(word for word in words if word))
        for word in engines:
            if word not in ENGINES:
                raise pytest.UsageError(
                    f"--killproof-engine {word!r} is unknown: use {', '.join(ENGINES)}"
                )
        seconds: float = config.getoption("killproof_seconds")
        if not 0.1 <= seconds <= SECONDS_MAX:
            raise pytest.UsageError(f"--killproof-seconds {seconds:g} must be from 0.1 to 3600")
        unknown = config.getini("killproof_unknown")
        if unknown not in UNKNOWN_WORDS:
            raise pytest.UsageError(f"killproof_unknown = {unknown!r} must be fail or skip")
        told = getattr(config, "workerinput", {}).get(ACTING)
        parent = Path(config.getoption("killproof_store") or config.rootpath / STORES)
        session = f"pytest-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        found: Any = config.getini("pythonpath")
        return cls(
            targets=tuple(dict.fromkeys(config.getoption("killproof_target"))),
            engines=engines or ("proc",),
            seconds=seconds,
            seed=config.getoption("killproof_seed"),
            unknown_fails=unknown == "fail",
            folder=Path(told) if told else (config.invocation_params.dir / parent / session),
            cwd=config.invocation_params.dir,
            python_path=os.pathsep.join(map(str, found)),
        )

    def outcome(self, target: str, engine: str) -> Outcome:
        """Return the outcome of a run, made by whoever asks first."""
        key = (target, engine)
        if key not in self.seen:
            place = self.folder / pytest_runs.folder_of(target, engine)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Judgement(
                    f"{self.folder} cannot be made ({error.strerror}): give --killproof-store a "
                    "folder on a disk that can be written"
                ) from None
            argv = pytest_runs.command(target, engine, self.seconds, self.seed, place)
            log = place.with_name(f"{place.name}.log")
            self.seen[key] = pytest_runs.once(
                place,
                lambda: pytest_runs.perform(
                    argv, log, cwd=self.cwd, environment=self._environment()
                ),
            )
        return self.seen[key]

    def _environment(self) -> dict[str, str]:
        """Return the environment of an engine: it finds a target where this pytest finds it."""
        parts = [self.python_path, os.environ.get("PYTHONPATH", "")]
        found = os.pathsep.join(part for part in parts if part)
        return os.environ | ({"PYTHONPATH": found} if found else {})

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Add the tests before `-k`, `-m` and `--lf` choose among all."""
        for target in self.targets:
            for engine in self.engines:
                node = Judged.from_parent(
                    session,
                    name=engine,
                    nodeid=f"killproof::{target}::{engine}",
                    acting=self,
                    target=target,
                )
                report = node.ihook.pytest_make_collect_report(collector=node)
                node.ihook.pytest_collectreport(report=report)  # Whoever counts, counts them.
                items.extend(report.result)

    def pytest_report_header(self) -> str:
        """Say what is going to take time."""
        return (
            f"killproof: {', '.join(self.targets)} by {', '.join(self.engines)}, about "
            f"{self.seconds:g} s each; evidence in {self.folder}"
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say in a line what became of each run; with xdist other processes have made it."""
        lines = list(self._summary())
        if lines:
            terminalreporter.section("killproof")
            for line in lines:
                terminalreporter.line(line)

    def _summary(self) -> Iterator[str]:
        from killproof_chaos import summary

        for target in self.targets:
            for engine in self.engines:
                place = self.folder / pytest_runs.folder_of(target, engine)
                found = pytest_runs.read(place.with_name(f"{place.name}.outcome.json"))
                if found is None:
                    continue
                record = found.record
                said = "no verdict" if record is None else summary.headline(record)
                yield f"{engine}: {said}; evidence in {place}"


class Judged(pytest.Collector):
    """One engine's tests of one queue."""

    def __init__(self, *, acting: Plugin, target: str, **rest: Any) -> None:
        """Remember what is judged; `rest` is pytest's."""
        super().__init__(**rest)
        self.acting, self.target, self.engine = acting, target, str(rest["name"])

    def collect(self) -> Iterable[PromiseItem]:
        """Yield a test for the run, and one for each promise."""
        yield PromiseItem.from_parent(self, name=f"run {RUN}", number=None)
        for each in PROPERTIES:
            name = f"{each.number} {each.sentence}"
            yield PromiseItem.from_parent(self, name=name, number=each.number)


class PromiseItem(pytest.Item):
    """The test of one promise, or of the run itself."""

    def __init__(self, *, number: str | None, parent: Judged, **rest: Any) -> None:
        """Remember the promise; `rest` is pytest's."""
        super().__init__(parent=parent, **rest)
        self._number, self._judged = number, parent
        self.add_marker(
            pytest.mark.killproof(
                target=parent.target, engine=parent.engine, promise=number or "run"
            )
        )
        if self.config.pluginmanager.hasplugin("xdist"):
            # With --dist loadgroup one process makes a run, and the others need not wait for it.
            self.add_marker(pytest.mark.xdist_group(f"{parent.target} {parent.engine}"))

    def runtest(self) -> None:
        """Look into the outcome of the run; whoever comes first makes it.

        Raises:
            Judgement: the promise is violated, or nobody knows.
        """
        acting = self._judged.acting
        outcome = acting.outcome(self._judged.target, self._judged.engine)
        verdict, text = told(outcome, self._number)
        if is_failure(outcome, verdict, unknown_fails=acting.unknown_fails):
            place = pytest_runs.folder_of(self._judged.target, self._judged.engine)
            raise Judgement(f"{text}\nevidence: {acting.folder / place}")
        if verdict != PASS:
            pytest.skip(text.partition("\n")[0])

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | Any:
        """Return the text of a verdict without the way by which it came here."""
        if isinstance(excinfo.value, Judgement):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where the test stands: it has no line."""
        return self.path, None, self.nodeid


def is_failure(outcome: Outcome, verdict: str, *, unknown_fails: bool) -> bool:
    """Say whether the test of a promise fails.

    Without a record nothing was judged, for a mistyped target for example: that is no `unknown`
    that a project has chosen to let pass.
    """
    is_judged = outcome.record is not None
    return verdict == VIOLATED or (verdict == UNKNOWN and (unknown_fails or not is_judged))


def told(outcome: Outcome, number: str | None) -> tuple[str, str]:
    """Return the verdict on a promise, and what a person needs to understand it.

    Args:
        outcome: of the run.
        number: of the promise; None: of the run itself.
    """
    record = outcome.record
    if record is None:
        last = outcome.words.splitlines()[-1] if outcome.words else "it said nothing"
        text = f"unknown: no verdict, exit code {outcome.code}: {last}"
        # The command stands in the test of the run, and not in each of the others.
        return UNKNOWN, text if number else f"{text}\nagain: {' '.join(outcome.argv)}"
    again = f"again: {record['replay']}"
    if number is None:
        return _of_the_run(record, again)
    found = record["properties"][number]
    verdict = found["verdict"]
    if verdict == VIOLATED:
        lines = [f"{number} is violated, said the engine {record['engine']}"]
        return verdict, "\n".join([*lines, *_witnesses(found), *_schedules(record, number), again])
    if verdict == UNKNOWN:
        reason = found.get("reason") or "; ".join(map(str, record["unknown_because"]))
        return verdict, f"unknown: {reason[:REASON_CHARS_MAX]}\n{again}"
    if verdict == NOT_PROMISED:
        return verdict, "not promised by this queue"
    if verdict == NOT_JUDGED:
        by = found.get("by")
        return verdict, found.get("reason") or f"not judged by {record['engine']}, but by {by}"
    return verdict, ""


def _of_the_run(record: dict[str, Any], again: str) -> tuple[str, str]:
    """Judge the run itself: what was missed, and errors that belong to no promise."""
    if record.get("errors"):
        lines = ["an error that nobody expected", *map(str, record["errors"])]
        return VIOLATED, "\n".join([*lines, again])
    own = [
        str(reason) for reason in record["unknown_because"] if not OF_PROMISES.match(str(reason))
    ]
    if not own:
        return PASS, ""
    lines = [f"unknown: {reason}" for reason in own[:REASONS_MAX]]
    more = len(own) - REASONS_MAX
    lines += [f"and {more} more reasons in verdict.json"] if more > 0 else []
    return UNKNOWN, "\n".join([*lines, again])


def _witnesses(found: dict[str, Any]) -> Iterator[str]:
    """Yield the first violation with the lines that prove it, and what else was found."""
    witnesses = found["witnesses"]
    for witness in witnesses[:1]:
        yield f"  {witness['story']}"
        for line in witness["lines"][:LINES_MAX]:
            yield f"    {line['file']}:{line['line']}  {line['text'][:LINE_CHARS_MAX]}"
    for witness in witnesses[1:STORIES_MAX]:
        yield f"  {witness['story']}"
    more = max(found.get("violations", 0), len(witnesses)) - STORIES_MAX
    if more > 0:
        yield f"  and {more} more, in verdict.json"


def _schedules(record: dict[str, Any], number: str) -> Iterator[str]:
    """Yield how to see the schedule that broke a promise; the engine sim has them."""
    for story in record.get("stories") or ():
        if story["promise"] == number:
            yield f"story: killproof chaos replay {story['token']}"
