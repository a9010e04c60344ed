"""The first look at a repaired queue: it loads, promises no less, and does its first jobs.

It runs the reader's code in a process of its own (`grading.py` starts it), so that a loop without
an end costs a few seconds and can be named by its line.
"""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from killproof_chaos import gallery, targets
from killproof_chaos.engines.crash import operations_of as step_operations_of
from killproof_chaos.sim import Actor, Scenario, run_one
from killproof_chaos.sim.campaign import operations_of
from killproof_chaos.workload import Job
from killproof_evidence.target import TargetNotFound, level

#: Of a target at this level the simulator runs the code.
HOSTED: Final = 2


def look(name: str, file: str, told: Path) -> None:
    """Look at the repaired copy of a broken queue; write down what was seen, as JSON.

    The answer has `problem` (None: there is none), `is_unusable` (the file is no queue at all),
    and what the target can be put through: `level`, `scenarios` (what its client has), `steps`.

    Args:
        name: of the broken queue.
        file: the reader's.
        told: where the answer goes.
    """
    told.write_text(json.dumps(_seen(name, file)), encoding="utf-8")


def _seen(name: str, file: str) -> dict[str, Any]:
    try:
        target: Any = targets.load(file)
    except TargetNotFound as error:
        return {"problem": _unusable(error, file), "is_unusable": True}
    try:
        problem = next(_problems(name, file, target), None)
    except Exception as error:  # The reader's code: whatever it raises is told by its line.
        problem = f"it fails at its first jobs: {_where(error, file)}"
    return {
        "problem": problem,
        "is_unusable": False,
        "level": level(target),
        "steps": sorted(step_operations_of(target)) if hasattr(target, "steps") else [],
    }


def _problems(name: str, file: str, target: Any) -> Iterator[str]:
    """Yield what is wrong at first sight, the cheapest to see first."""
    broken: Any = gallery.target(name)
    yield from _less(broken.contract, target.contract)
    if target.audit != broken.audit:
        yield "its audit mapping is another one: the judge could not follow the jobs; put it back"
    for member in ("sync_points", "capabilities"):
        none: frozenset[str] = frozenset()
        gone = getattr(broken, member, none) - getattr(target, member, none)
        if gone:
            yield f"its {member} lack {', '.join(sorted(gone))}: put them back"
    if level(broken) > level(target):
        yield "it has lost its `open`, so the simulator can not run it: put it back"
    if level(target) >= HOSTED:
        gone = operations_of(broken) - operations_of(target)
        if gone:
            yield f"it can no longer {', '.join(sorted(gone))}: put that back"
        yield from _first_jobs(file, target)
    else:
        yield from _first_enqueue(target)


def _less(before: Any, after: Any) -> Iterator[str]:
    """Yield in what a contract is less than it was, or another one."""
    for promise, made in before.promises.items():
        if after.promised(promise) != made:
            yield (
                f"its contract promises less: {promise} was {made!r} and is "
                f"{after.promised(promise)!r}; a repair keeps the promise"
            )
    for key in before.parameters.keys() | after.parameters.keys():
        old, new = before.parameters.get(key), after.parameters.get(key)
        if old != new:
            yield f"its contract says {key} = {new!r} where it said {old!r}: put that back"
    if before.edges != after.edges:
        yield "its contract allows other edges than before: put them back"


def _first_jobs(file: str, target: Any) -> Iterator[str]:
    """Let one undisturbed worker do a job, and fail one."""
    problems: list[str] = []

    def work(me: Actor) -> None:
        try:
            problems.extend(_refusals(me))
        except Exception as error:  # As in `_seen`.
            problems.append(f"it fails at its first jobs: {_where(error, file)}")

    text = "one worker does a job, and fails one"
    run_one(target, Scenario(name="look", text=text, actors={"w1": work}, heals=False))
    yield from problems


def _refusals(me: Actor) -> Iterator[str]:
    for number, (word, end) in enumerate((("ok", "ack"), ("raise", "nack")), 1):
        job = Job(id=f"job-{number}", kind="report", script=(word,), max_attempts=1)
        if me.enqueue(job) is None:
            yield "it refuses all work: an ordinary enqueue was not accepted"
            return
        lease = me.claim()
        if lease is None:
            yield "it does nothing: a job is due, nobody else is there, and `claim` gives None"
            return
        accepted = me.ack(lease) if me.play(lease) else me.nack(lease)
        if not accepted:
            yield f"it refuses the {end} of the worker that holds the job"


def _first_enqueue(target: Any) -> Iterator[str]:
    """Put a job in, and look for it: all that can be done to a queue from outside."""
    with TemporaryDirectory(prefix="killproof-") as folder:
        place = Path(folder)
        target.prepare(place)
        client = target.client(place)
        job = Job(id="job-1", kind="report")
        client.enqueue(job.kind, job.payload(), **job.options())
        client.close()
        if not list(target.snapshot(place)):
            yield "it does nothing: what was enqueued is not in the queue"


def _unusable(error: TargetNotFound, file: str) -> str:
    """Return why a file is no queue, with the line where there is one."""
    cause = error.__context__
    if isinstance(cause, SyntaxError) and cause.lineno is None:
        return f"{file} is no text in Python: {cause.msg}"
    if isinstance(cause, SyntaxError):
        return f"{file}, line {cause.lineno}: {cause.msg}: mend that line"
    if isinstance(cause, BaseException):
        return f"{file} cannot be loaded: {_where(cause, file)}"
    return f"{error}: copy a whole file with `killproof chaos gallery NAME --copy FILE`"


def _where(error: BaseException, file: str) -> str:
    """Return an error with the last line of the reader's file that it passed."""
    said = f"{type(error).__name__}: {error}"
    mine = Path(file).resolve()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == mine
    ]
    if not frames:
        return said
    return f"line {frames[-1].lineno}, in {frames[-1].name}: {said}"
