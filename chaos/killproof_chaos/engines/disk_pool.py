"""Images checked side by side: one forked process for each core, each with a disk of its own.

A process plays the tape forward, and from the beginning when it is handed an earlier point; what
the parent has read (the log, the target's modules) it shares without copying. Nothing is started
twice, and an image costs neither an interpreter nor an import.
"""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from killproof_chaos.engines.disk_check import Checker, Outcome, Told, removes_rows
from killproof_chaos.engines.disk_model import Disk, Tape, World, digest
from killproof_chaos.engines.disk_policy import Policy
from killproof_evidence.lifetime import die_with_parent
from killproof_evidence.target import Target

#: Points handed out at once: few enough to end together, enough not to wait for the next.
CHUNK_POINTS: Final = 8


#: A target that does not open so many images in time would not open the others either.
HANGING_MAX: Final = 3
#: What was found in an image, by its digest and whether the queue had been made by then.
Seen = dict[tuple[bytes, bool], Outcome]


class CheckFailed(RuntimeError):
    """A checking process ended or raised: it says nothing of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What was found at one point, under one policy."""

    step: int
    policy: Policy
    world: World
    digest: bytes
    pending: int  #: writes, sizes and names that were not durable there
    notes: int  #: that had been written by then
    outcome: Outcome
    opened: bool  #: whether this process opened it, or had seen its equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All that the checking processes share."""

    target: Target
    tapes: dict[World, Tape]
    told: tuple[Told | None, ...]
    policies: tuple[Policy, ...]
    seed: int
    database: str  #: name of the SQLite file
    prepared: int  #: number of the note at which the queue had been made
    folder: Path  #: where images are laid out, in RAM if there is any


def check_all(
    work: Work, points: Sequence[tuple[World, int]], cores: int, spent: dict[str, float]
) -> Iterator[Image]:
    """Check every policy at every point; yield as they come, chunks in any order.

    Args:
        work: what all share.
        points: in the order in which they are handed out.
        cores: so many processes.
        spent: takes up the CPU seconds that went into each part of the work.

    Raises:
        CheckFailed: a process ended before its work did.
    """
    chunks = [points[at : at + CHUNK_POINTS] for at in range(0, len(points), CHUNK_POINTS)]
    context = multiprocessing.get_context("fork")
    crew: dict[Connection, multiprocessing.process.BaseProcess] = {}
    try:
        for number in range(min(cores, len(chunks))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(theirs, work, work.folder / f"image-{number}", os.getpid()),
                daemon=True,
            )
            process.start()
            theirs.close()
            crew[ours] = process
            ours.send(chunks.pop(0))
        while crew:
            for ready in wait([*crew, *(process.sentinel for process in crew.values())]):
                if isinstance(ready, Connection):
                    yield from _received(ready, spent)
                    if chunks:
                        ready.send(chunks.pop(0))
                    else:
                        ready.send(None)
                        crew.pop(ready).join()
                        ready.close()
                    continue
                dead = [p for c, p in crew.items() if p.sentinel == ready and not c.poll()]
                if dead:
                    raise CheckFailed(f"a checking process ended with status {dead[0].exitcode}")
    finally:
        for connection, checker in crew.items():
            checker.terminate()
            checker.join()
            connection.close()


def _received(connection: Connection, spent: dict[str, float]) -> list[Image]:
    try:
        found = connection.recv()
    except EOFError:
        raise CheckFailed("a checking process ended in the middle of its answer") from None
    if isinstance(found, str):
        raise CheckFailed(f"a checking process failed: {found}")
    images: list[Image] = found[0]
    for part, seconds in found[1].items():
        spent[part] = spent.get(part, 0.0) + seconds
    return images


def _work(channel: Connection, work: Work, place: Path, parent: int) -> None:
    """Check chunks until there are no more."""
    # A fork holds the parent's ends of its own pipe and its siblings': none of them sees an EOF.
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this one.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    checker = Checker(work.target, place, work.told, database=work.database)
    disks: dict[World, Disk] = {}
    seen: Seen = {}
    while (chunk := channel.recv()) is not None:
        checker.spent.clear()
        try:
            found = []
            for image in _chunk(work, chunk, disks, checker, seen):
                found.append(image)
                if sum(one.outcome.hangs for one in found) >= HANGING_MAX:
                    break
        except Exception as error:
            channel.send(f"{type(error).__name__}: {error}")
            return
        channel.send((found, dict(checker.spent)))


def _chunk(
    work: Work,
    points: Sequence[tuple[World, int]],
    disks: dict[World, Disk],
    checker: Checker,
    seen: Seen,
) -> Iterator[Image]:
    for world, step in points:
        yield from _images(work, world, step, disks, checker, seen)


def _images(
    work: Work,
    world: World,
    step: int,
    disks: dict[World, Disk],
    checker: Checker,
    seen: Seen,
) -> Iterator[Image]:
    tape = work.tapes[world]
    if world not in disks or disks[world].step > step:
        disks[world] = Disk(tape)
    disk = disks[world]
    disk.play(step)
    notes, pending = tape.notes_before(step), disk.pending
    prepared = notes > work.prepared

    def look(policy: Policy) -> tuple[bytes, bool]:
        """See to it that this image has been looked at; say which, and whether it is only now."""
        began = time.process_time()
        files = disk.image(policy, random.Random(f"{work.seed} {step} {policy}"))
        name = digest(files)
        checker.spent["rebuild"] += time.process_time() - began
        if opened := (name, prepared) not in seen:
            seen[name, prepared] = checker.check(files, prepared=prepared)
        return name, opened

    whole: Outcome | None = None  # Everything that had been written, where rows go by themselves.
    if removes_rows(work.target.contract):
        whole = seen[look(Policy.KEEP)[0], prepared]
    name: bytes | None = None
    for policy in work.policies:
        opened = False
        if name is None or pending:  # Else every policy leaves the same files.
            name, opened = look(policy)
        outcome = seen[name, prepared]
        if whole is not None:
            outcome = without_the_removed(outcome, whole, work.told)
        yield Image(
            step=step, policy=policy, world=world, digest=name, pending=pending, notes=notes,
            outcome=outcome, opened=opened,
        )  # fmt: skip


def without_the_removed(outcome: Outcome, whole: Outcome, told: Sequence[Told | None]) -> Outcome:
    """Take from what is missing in an image the jobs whose rows the queue had removed by then.

    They are those that are missing as well from what the disk holds with everything written on it.
    """
    if outcome.there is None or whole.there is None:
        return replace(outcome, there=None)
    kept = outcome.there | whole.there
    missing = tuple(
        number
        for number in outcome.unhonoured
        if (fact := told[number]) is not None and fact.job in kept
    )
    return replace(outcome, unhonoured=missing, there=None)
