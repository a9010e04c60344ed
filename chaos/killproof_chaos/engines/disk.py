"""Engine `disk`: one recorded run, and the power cut at every point of it.

The run is recorded under the shim once (`disk_record`). Then the disk is rebuilt as a cut would
leave it at each point, under each policy (`disk_model`), opened by the target, and held against
everything that clients had been told by then (`disk_check`, side by side in `disk_pool`). Equal
images are opened once. What was found becomes the verdict in `disk_verdict`.

What it cannot see: a disk that breaks its own promises (a cache that ignores flushes), sectors that
come back as garbage, and queues that write through a map or past the C library. An extension or a
reap that was answered too early takes nothing that counts: after a cut every lease is dead.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos import memory, targets
from killproof_chaos.engines import disk_verdict, disk_words
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.engines.disk_check import ROOM_BYTES_MIN, read_told
from killproof_chaos.engines.disk_model import Disk, Tape, World, compile_tape
from killproof_chaos.engines.disk_policy import Policy
from killproof_chaos.engines.disk_pool import HANGING_MAX, CheckFailed, Work, check_all
from killproof_chaos.engines.disk_record import NO_CONTENT, Copy, Recording, load, record
from killproof_chaos.engines.disk_settle import settled
from killproof_chaos.engines.disk_verdict import Findings, Options, Turn
from killproof_chaos.shim.build import ShimUnavailable
from killproof_chaos.shim.log import FileKey
from killproof_chaos.stores import run_record
from killproof_evidence.store import Store, write_json
from killproof_evidence.target import Target

#: Of the largest copy: the files, the log that recovery writes, the shared memory, and as much.
ROOM_SIZES: Final = 6
#: Points are checked in rounds, each spread over the whole run: (first, stride).
ROUNDS: Final = ((0, 16), (8, 16), (4, 8), (2, 4), (1, 2))

Show = Callable[[Turn], None]


def run(options: Options, store: Store, show: Show) -> dict[str, Any]:
    """Record, cut at every point, judge; write verdict.json and return it.

    Ctrl-C ends it early: the verdict then stands on what had been seen.

    Raises:
        EngineFailed: the harness could not do its part, which says nothing of the queue.
    """
    targets.tell_seed(options.seed)
    target = targets.load(options.target)
    started = time.time()
    unrecorded = ""
    show(Turn(phase="record"))
    try:
        recording = record(options.target, target, store, seed=options.seed, jobs=options.jobs)
    except ShimUnavailable as error:
        unrecorded = str(error)
    except KeyboardInterrupt:
        unrecorded = "stopped by a signal while the run was being recorded"
    if unrecorded:
        verdict = disk_verdict.without_images(options, target, store, unrecorded)
    else:
        verdict = judged(options, target, recording, store, show)
    return _written(store, options, target, verdict, started, unrecorded)


def again(store: Store, show: Show) -> dict[str, Any]:
    """Judge a recorded run again, from its log alone; write verdict.json and return it.

    Raises:
        StoreError: the store holds no recording; definite.
        EngineFailed: the harness could not do its part, which says nothing of the queue.
    """
    run_ = store.read_run()
    saved = run_["options"]
    policies = tuple(Policy(word) for word in saved["policies"])
    options = Options(**{**saved, "policies": policies})
    target = targets.load(options.target)
    # What an interrupted recording left may look whole: that it was cut short only the run knew.
    if reason := run_.get("unrecorded"):
        verdict = disk_verdict.without_images(options, target, store, reason)
    else:
        recording = load(store)
        changed = _contract_changed(target, store)
        recording = replace(recording, problems=[*recording.problems, *changed])
        verdict = judged(options, target, recording, store, show)
    write_json(store.verdict, verdict)
    return verdict


def _contract_changed(target: Target, store: Store) -> list[str]:
    """Say whether the target promises something else than when the run was recorded."""
    with suppress(OSError, ValueError):
        if store.read_contract().dump() == target.contract.dump():
            return []
    return [
        f"contract.toml is missing, broken, or not what {target.name} promises today: run it anew"
    ]


def judged(
    options: Options, target: Target, recording: Recording, store: Store, show: Show
) -> dict[str, Any]:
    """Cut the power at every point asked for, and judge what is left."""
    tapes, doubts = tapes_of(recording)
    tape = next(iter(tapes.values()))
    told = tuple(read_told(note.text) for note in tape.notes)
    facts = disk_words.Facts(recording=recording, tape=tape, told=told)
    findings = Findings()
    points = in_rounds(
        [(world, step) for world, each in tapes.items() for step in sampled(each, options.points)]
    )
    size = max((sum(map(len, copy.files.values())) for copy in recording.copies), default=0)
    with _images_folder(store, size) as folder:
        work = Work(
            target=target, tapes=tapes, told=told, policies=options.policies, seed=options.seed,
            folder=folder, database=recording.database, prepared=facts.prepared,
        )  # fmt: skip
        try:
            _check(options, work, points, findings, show)
        except KeyboardInterrupt:
            findings.stopped = "by a signal"
        except CheckFailed as error:
            raise EngineFailed(str(error)) from error
    total = len(points) * len(options.policies)
    doubts = [*recording.problems, *doubts]
    because = []
    if findings.stopped and not findings.is_violated(target):
        because.append(f"stopped {findings.stopped} after {findings.images} of {total} images")
    owed = disk_verdict.obligations(target, facts, findings)
    disk_verdict.write_lost(store, findings, facts)
    disk_verdict.write_points(store, options, findings, facts)
    case = disk_verdict.Case(
        options=options, target=target, findings=findings, facts=facts, owed=owed, doubts=doubts
    )
    return disk_verdict.verdict(case, store, because)


def _check(
    options: Options,
    work: Work,
    points: Sequence[tuple[World, int]],
    findings: Findings,
    show: Show,
) -> None:
    """Check every image; with `fail_fast`, none after the first that breaks a promise."""
    total = len(points) * len(options.policies)
    began = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    for image in check_all(work, points, cores, findings.spent):
        findings.take(image)
        findings.seconds = time.monotonic() - began
        show(
            Turn(
                phase="check", done=findings.images, total=total,
                distinct=len(findings.digests), lost=len(findings.lost),
                seconds=findings.seconds,
            )
        )  # fmt: skip
        if findings.hanging >= HANGING_MAX:
            findings.stopped = f"when {HANGING_MAX} images did not open in time"
            return
        if options.fail_fast and findings.is_violated(work.target):
            findings.stopped = "at the first violation"
            return


def tapes_of(recording: Recording) -> tuple[dict[World, Tape], list[str]]:
    """Return the tapes that may be true, and what is wrong when none rebuilds the files.

    The worlds differ only where nobody knows what a killed process's call did. One in which the
    files come out otherwise than they were is not the true one.
    """
    first = _compiled(recording, World.HAPPENED, {})
    looks = [(copy.seq, _by_key(first, copy)) for copy in recording.copies]
    known = settled(recording.records, looks)
    tapes = {world: _compiled(recording, world, known) for world in World}
    if not tapes[World.HAPPENED].unended:
        del tapes[World.NEVER]
    wrong = {world: _difference(tape, recording.copies) for world, tape in tapes.items()}
    true = {world: tape for world, tape in tapes.items() if wrong[world] is None}
    if true:
        return true, []
    return tapes, [f"the log does not rebuild the files: {wrong[World.HAPPENED]}"]


def _compiled(recording: Recording, world: World, known: Mapping[tuple[int, int], int]) -> Tape:
    return compile_tape(
        recording.records, root=recording.root, initial={}, world=world, settled=known,
        deaths=_deaths(recording),
    )  # fmt: skip


def _deaths(recording: Recording) -> dict[int, int]:
    """Return, for each killed process, the first record after the supervisor knew it dead."""
    found = {}
    for kill in recording.kills:
        later = (r.seq for r in recording.records if getattr(r, "time_ns", 0) > kill.dead_ns)
        found[kill.pid] = next(later, len(recording.records))
    return found


def _at(tape: Tape, copy: Copy) -> Disk:
    """Return the disk as it was when a copy was taken."""
    disk = Disk(tape)
    disk.play(sum(step.seq < copy.seq for step in tape.steps) - 1)
    return disk


def _by_key(tape: Tape, copy: Copy) -> dict[FileKey, bytes]:
    keys = _at(tape, copy).keys()
    return {keys[name]: content for name, content in copy.files.items() if name in keys}


def _difference(tape: Tape, copies: Sequence[Copy]) -> str | None:
    """Say where the rebuilt files differ from those that were there; None: nowhere."""
    for number, copy in enumerate(copies, 1):
        made = _at(tape, copy).image(Policy.KEEP, random.Random(0))
        for name in sorted(made.keys() | copy.files.keys()):
            if not name.endswith(NO_CONTENT) and made.get(name) != copy.files.get(name):
                return f"{name} is not as in copy {number}"
    return None


def sampled(tape: Tape, points: int | None) -> Sequence[int]:
    """Return the steps after which the power is cut, evenly spread, first and last included."""
    count = len(tape.steps)
    if points is None or points >= count:
        return range(count)
    if points == 1:
        return [count - 1]
    return sorted({round(at * (count - 1) / (points - 1)) for at in range(points)})


def in_rounds(points: Sequence[tuple[World, int]]) -> list[tuple[World, int]]:
    """Return the points so that the first few are spread over the whole run, and so on."""
    return [point for first, stride in ROUNDS for point in points[first::stride]]


def _images_folder(store: Store, size: int) -> AbstractContextManager[Path]:
    """Give a folder in RAM, where there is enough: an image is looked at once and overwritten."""
    needed = ROOM_BYTES_MIN + ROOM_SIZES * size * len(os.sched_getaffinity(0))
    return memory.lent("disk", bytes_min=needed, otherwise=store.path)


def _written(
    store: Store,
    options: Options,
    target: Target,
    verdict: dict[str, Any],
    started: float,
    unrecorded: str,
) -> dict[str, Any]:
    """Write run.json, contract.toml and verdict.json; return the verdict."""
    store.write_contract(target.contract)
    run = run_record(
        target,
        "disk",
        options.argv(),
        seed=options.seed,
        started=started,
        problems=verdict["unknown_because"],
    )
    run |= {"options": asdict(options), "unrecorded": unrecorded}
    store.write_run(run | {name: verdict[name] for name in ("environment", "counts")})
    write_json(store.verdict, verdict)
    return verdict


def drawn_seed() -> int:
    """Return a seed for a run that was given none."""
    return random.randrange(10**6)
