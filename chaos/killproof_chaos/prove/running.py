"""Makes the runs one after another, each in a process of its own, within the budget.

An engine forks, takes signals and may be ended by the queue that it judges, so each has a process;
what it prints goes to a log beside its store. One that outlives its time is told to judge what it
has, as Ctrl-C tells it; one that does not even then is ended by force, and has failed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_process import last_line
from killproof_chaos.prove.dealing import Run
from killproof_evidence.store import Store

FAILED: Final = "failed"
EXIT_FAILED: Final = 3
#: A line for each run that was made.
OUTCOMES: Final = "outcomes.jsonl"
RUNS: Final = "runs"
#: After so many times what it should take, and at least so long, a run is told to end.
LIMIT_TIMES: Final = 5.0
LIMIT_SECONDS_MIN: Final = 90.0
#: And after so much longer it is ended by force: an engine drains its queue for at most this.
GRACE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.1
LOG_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    run: Run
    verdict: str  #: pass, violated, unknown; failed: it judged nothing
    began: float  #: s since the campaign began
    seconds: float
    why: str = ""  #: it failed

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "run": self.run.record(), "verdict": self.verdict, "began": round(self.began, 2),
            "seconds": round(self.seconds, 2), "why": self.why,
        }  # fmt: skip

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Outcome":
        """Read an outcome."""
        return cls(**{**record, "run": Run.of_record(record["run"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far it is."""

    done: int
    total: int
    engine: str
    line: str  #: what the engine says of itself
    left: float  #: s, by what the runs should take and have taken


Show = Callable[[Turn], None]


@dataclass(slots=True, kw_only=True)
class Campaign:
    """The runs of one shard under way."""

    target: str
    folder: Path  #: the store
    seconds: float  #: nothing new begins after them
    show: Show
    report: bool = True  #: whether each engine writes its page
    _begun: float = 0.0  #: of the run under way, monotonic s

    def make(
        self, runs: Sequence[Run], more: Callable[[Sequence[Outcome]], Run | None]
    ) -> tuple[list[Outcome], bool]:
        """Make the runs; return what came of those that were made, and whether it was interrupted.

        Args:
            runs: in their order; one that is not owed is made only if it fits.
            more: is asked at the end for one more run, with what came of all before.
        """
        began = time.monotonic()
        waiting, outcomes = list(runs), list[Outcome]()
        log = Store(self.folder).writer(self.folder / OUTCOMES)
        try:
            while True:
                left = self.seconds - (time.monotonic() - began)
                run = self._next(waiting, outcomes, left)
                if run is None and (run := more(outcomes)) is not None:
                    run = run if run.seconds * self._pace(run, outcomes) <= left else None
                if run is None:
                    return outcomes, False
                total = len(outcomes) + 1 + len(waiting)

                self._begun = time.monotonic()

                def tell(line: str, run: Run = run, total: int = total) -> None:
                    now = time.monotonic()
                    need = run.seconds * self._pace(run, outcomes) - (now - self._begun)
                    need = max(need, 0.0) + sum(
                        one.seconds * self._pace(one, outcomes) for one in waiting
                    )
                    left = max(0.0, min(need, self.seconds - (now - began)))
                    done, name = len(outcomes), run.engine
                    self.show(Turn(done=done, total=total, engine=name, line=line, left=left))

                outcome, interrupted = self._make(run, time.monotonic() - began, tell)
                outcomes.append(outcome)
                log.append(outcome.record())
                if interrupted:
                    return outcomes, True
        except KeyboardInterrupt:  # Between two runs.
            return outcomes, True
        finally:
            log.close()

    def _next(self, waiting: list[Run], outcomes: list[Outcome], left: float) -> Run | None:
        """Take the next run for which there is time, and drop those before it."""
        while waiting and left > 0:
            run = waiting.pop(0)
            if run.owed or run.seconds * self._pace(run, outcomes) <= left:
                return run
        waiting.clear()
        return None

    def _pace(self, run: Run, outcomes: Sequence[Outcome]) -> float:
        """Return how much longer this engine takes here than on the machine of the estimates."""
        same = [one for one in outcomes if one.run.engine == run.engine and one.verdict != FAILED]
        return same[-1].seconds / same[-1].run.seconds if same else 1.0

    def _make(self, run: Run, began: float, tell: Callable[[str], None]) -> tuple[Outcome, bool]:
        place = self.folder / RUNS / run.name
        log = self.folder / RUNS / f"{run.name}.log"
        log.parent.mkdir(exist_ok=True)
        words = [*run.argv(self.target), "--store", str(place)]
        if run.engine != "model":
            words.append("--report" if self.report else "--no-report")
        started = time.monotonic()
        limit = max(LIMIT_TIMES * run.seconds, LIMIT_SECONDS_MIN)
        code, interrupted = child(words, log, limit, tell)
        seconds = time.monotonic() - started
        verdict, why = _verdict_of(place, code, log)
        outcome = Outcome(run=run, verdict=verdict, began=began, seconds=seconds, why=why)
        return outcome, interrupted


def child(
    words: Sequence[str], log: Path, limit: float, tell: Callable[[str], None]
) -> tuple[int, bool]:
    """Run a command of `killproof chaos` in a process of its own, which dies with this one.

    Args:
        words: of the command.
        log: where it prints to.
        limit: s, after which it is told to judge what it has.
        tell: is given the last line that it has printed, again and again.

    Returns:
        Its exit code, and whether somebody interrupted it.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "killproof_chaos.prove.child", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            process_group=0,  # Ctrl-C is for us, who pass it on once.
        )
    interrupted = _see_to_its_end(process, limit, log, tell)
    return process.returncode, interrupted


def _see_to_its_end(
    process: "subprocess.Popen[bytes]", limit: float, log: Path, tell: Callable[[str], None]
) -> bool:
    """Wait for a process, and end it when its time is over or somebody says so: then True."""
    deadline = time.monotonic() + limit
    is_told = interrupted = False
    try:
        while process.poll() is None:
            try:
                tell(_tail(log))
                time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                if interrupted:  # Asked twice: at once.
                    return True
                interrupted, deadline = True, time.monotonic()
            if time.monotonic() >= deadline:
                if is_told:
                    break
                process.terminate()  # As Ctrl-C, which a shell may have told it to ignore.
                is_told, deadline = True, time.monotonic() + GRACE_SECONDS
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return interrupted


def _verdict_of(place: Path, code: int, log: Path) -> tuple[str, str]:
    """Return the word of a run's verdict, or that it failed and why."""
    store = Store(place) if place.is_dir() else None  # A command may refuse before it makes one.
    if store is not None and store.verdict.exists() and code != EXIT_FAILED:
        # Also of one that was ended over its page: the file is written whole or not at all.
        return str(store.read_verdict()["verdict"]), ""
    said = last_line(log.read_text(encoding="utf-8", errors="replace")) or "it said nothing"
    return FAILED, f"the process that ran it ended with {code}: {said}"


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return last_line(file.read().decode(errors="replace"))
