"""A lane: performs one trial after another in a process that has imported everything once.

A trial is the command that its words say, run in this process as the command line runs it; only
the start of an interpreter is spared. Its store lies in memory, but for the engine that records
syncs, which must be real; it is removed unless somebody may want to look at it. Reads one JSON
object a line, and answers with one.

    python -m killproof_chaos.power.lane MEMORY STORE NUMBER SUPERVISOR_PID
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from killproof_chaos.power.trials import Outcome, Trial
from killproof_evidence.environment import environment
from killproof_evidence.lifetime import die_with_parent
from killproof_evidence.store import Store

FAILED: Final = "failed"
EXIT_FAILED: Final = 3
#: File systems in memory. A queue that refuses them is told that their syncs will do: of these
#: engines none cuts the power.
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
VOUCHED: Final = "KILLPROOF_CHAOS_MEMORY"
#: Where evidence that somebody may want to look at is kept, below the store.
KEPT: Final = "kept"
#: What the commands would tell CI of each of a thousand runs.
UNWANTED: Final = ("GITHUB_STEP_SUMMARY", "KILLPROOF_REPORT")


def perform(trial: Trial, place: Path) -> Outcome:
    """Run a trial in this process; its evidence is in `place`, which must not exist."""
    import typer

    from killproof_chaos.cli import app
    from killproof_chaos.command import import_engines

    import_engines()  # Else the first trial of a lane would be measured with it.
    before, began = _cpu_seconds(), time.monotonic()
    argv = [*trial.argv(), "--store", str(place), "--no-report"]
    why = ""
    try:
        code = typer.main.get_command(app).main(args=argv, standalone_mode=False)
    except (Exception, SystemExit) as error:
        code, why = EXIT_FAILED, f"{type(error).__name__}: {error}"
    seconds, cpu_seconds = time.monotonic() - began, _cpu_seconds() - before
    if code == EXIT_FAILED or not Store(place).verdict.exists():
        why = why or "the harness failed in it"
        return Outcome(
            trial=trial, verdict=FAILED, seconds=seconds, cpu_seconds=cpu_seconds, why=why
        )
    record = Store(place).read_verdict()
    return outcome_of(trial, record, seconds, cpu_seconds)


def outcome_of(trial: Trial, record: dict[str, Any], seconds: float, cpu_seconds: float) -> Outcome:
    """Return what a verdict means for a trial.

    A run that judged nothing, for want of a compiler or of time, has failed: it would else count
    as one that missed a broken queue, or as one that accused no healthy one.
    """
    properties = record["properties"]
    broken = {name: one for name, one in properties.items() if one["verdict"] == "violated"}
    because = record["unknown_because"]
    is_judged = broken or any(one["verdict"] == "pass" for one in properties.values())
    return Outcome(
        trial=trial,
        verdict=record["verdict"] if is_judged else FAILED,
        broken=tuple(broken),
        unproven=tuple(name for name, one in broken.items() if not one["witnesses"]),
        seconds=round(seconds, 3),
        cpu_seconds=round(cpu_seconds, 3),
        why=str(because[0]) if because else "" if is_judged else "it judged nothing",
    )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of all children that it has reaped."""
    return sum(os.times()[:4])


def is_expected(outcome: Outcome) -> bool:
    """Say whether nobody will want to look at the evidence of a trial."""
    from killproof_chaos import gallery
    from killproof_chaos.targets.canary import sings

    trial = outcome.trial
    if trial.part == "cross":
        return outcome.verdict != FAILED
    if trial.part == "intended":
        return gallery.fault(trial.target).promise in outcome.broken
    accused = outcome.verdict == "violated"
    expected = trial.part == "canary" and sings(trial.seed)
    return outcome.verdict != FAILED and accused == expected


def main() -> None:
    """Be a lane."""
    memory, store, number, parent = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # What the commands print must not stand between the answers.
    for name in UNWANTED:
        os.environ.pop(name, None)
    is_memory = environment(Path(memory))["fs"] in IN_MEMORY
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        os.truncate(2, 0)  # The log tells of the trial at hand.
        trial = Trial.of_record(request["trial"])
        on_disk = trial.engine == "disk" or not is_memory
        os.environ |= {VOUCHED: "" if on_disk else "1"}
        place = Path(store if on_disk else memory) / f"lane{number}"
        shutil.rmtree(place, ignore_errors=True)  # Of a trial that was ended by force.
        outcome = perform(trial, place)
        if not is_expected(outcome) and place.exists():
            kept = Path(store) / KEPT / request["name"]
            shutil.copytree(place, kept, dirs_exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        answers.write(json.dumps(outcome.record()).encode() + b"\n")


if __name__ == "__main__":
    main()
