"""The runs behind the pytest plugin: each engine once per session, whoever asks first.

An engine forks, kills and stops processes, so it runs as the command that people use, in a process
of its own; its outcome goes to a file. Of several processes (xdist) the first makes the run while
it holds a kernel lock, and the others read the file.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ENGINES: Final = ("proc", "crash", "disk", "sim")
SECONDS_MAX: Final = 3_600.0
#: The share of the faults of `chaos run`, whose 200 kills and 40 pauses take 20 seconds; a quarter
#: of it, so that also a queue whose workers start slowly gets there.
KILLS_PER_SECOND: Final = 2.5
PAUSES_PER_SECOND: Final = 0.5
#: Points for each second, as two cores make them with a queue in Python.
CUTS_PER_SECOND: Final = 10
JOBS_PER_SECOND: Final = 8
#: Of a recorded run (`chaos disk --jobs`): the fewest that it takes, and its default.
JOBS_MIN: Final = 20
JOBS: Final = 80
POINTS_EACH_SECOND: Final = 0.3
#: How long an engine that was told to end gets for what it has made.
END_SECONDS: Final = 30.0
WORDS_CHARS_MAX: Final = 500
#: How the command of an engine begins, and the module that runs the rest of it and dies with us.
COMMAND: Final = ("killproof", "chaos")
DYING: Final = "killproof_chaos.prove.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run."""

    argv: list[str]  #: the command
    code: int  #: its exit code
    record: dict[str, Any] | None  #: verdict.json; None: it gave none
    words: str  #: the last that it said, where it gave no verdict


def command(target: str, engine: str, seconds: float, seed: int | None, store: Path) -> list[str]:
    """Return the command line of an engine that works for about so many seconds."""
    words = [*COMMAND, "run" if engine == "proc" else engine, "--target", target]
    if engine == "proc":
        words += ["--seconds", f"{max(0.5, seconds):g}"]
        words += ["--kills", str(max(4, round(KILLS_PER_SECOND * seconds)))]
        words += ["--pauses", str(max(2, round(PAUSES_PER_SECOND * seconds)))]
    elif engine == "crash":
        words += ["--points", str(max(1, round(POINTS_EACH_SECOND * seconds)))]
    elif engine == "disk":
        words += ["--points", str(max(5, round(CUTS_PER_SECOND * seconds)))]
        words += ["--jobs", str(max(JOBS_MIN, min(JOBS, round(JOBS_PER_SECOND * seconds))))]
    else:
        words += ["--budget", f"{seconds:g}s"]
    words += [] if seed is None else ["--seed", str(seed)]
    return [*words, "--store", str(store), "--json"]


def folder_of(target: str, engine: str) -> str:
    """Return the name of a run's store: what a file system takes of both names."""
    return f"{engine}-{re.sub(r'[^A-Za-z0-9._-]+', '-', target).strip('-.')}"


def once(place: Path, make: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of the run at this place, made now unless somebody has made it.

    Args:
        place: the run's store; the outcome and the lock lie beside it.
        make: makes it.
    """
    kept = place.with_name(f"{place.name}.outcome.json")
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(place.with_name(f"{place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := read(kept)) is not None:
            return found
        made = make()
        aside = kept.with_suffix(".new")
        aside.write_text(json.dumps(asdict(made)), encoding="utf-8")
        aside.replace(kept)
        return made
    finally:
        os.close(lock)


def read(kept: Path) -> Outcome | None:
    """Read an outcome; None: there is none yet."""
    try:
        return Outcome(**json.loads(kept.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None


def perform(
    argv: Sequence[str], log: Path, *, cwd: Path, environment: Mapping[str, str]
) -> Outcome:
    """Run an engine's command to its end; Ctrl-C ends it in order, and our death at once.

    Args:
        argv: as `command` returns it; this interpreter runs it.
        log: for what it says meanwhile.
        cwd: from where a target is found.
        environment: of the process.
    """
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", DYING, str(os.getpid()), *argv[len(COMMAND) :]],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
        )
        try:
            said, _ = process.communicate()
        except BaseException:
            # It takes SIGTERM for Ctrl-C, which it may have got as well: its children end first.
            process.terminate()
            try:
                process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            raise
    try:
        record = json.loads(said)
    except ValueError:
        record = None
    words = log.read_text(encoding="utf-8", errors="replace").strip()
    return Outcome(
        argv=list(argv), code=process.returncode, record=record, words=words[-WORDS_CHARS_MAX:]
    )
