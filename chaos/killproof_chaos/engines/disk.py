"""Engine `disk`: one recorded run, and the power cut at every point of it.

The run is recorded under the shim once (`disk_record`). Then the disk is rebuilt as a cut would
leave it at each point, under each policy (`disk_model`), opened by the target, and held against
everything that clients had been told by then (`disk_check`, side by side in `disk_pool`). Equal
images are opened once.

What it cannot see: a disk that breaks its own promises (a cache that ignores flushes), and queues
that write through a map or past the C library.
"""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.engines import disk_words
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.engines.disk_check import Told, read_told
from killproof_chaos.engines.disk_model import Policy, Tape, World, compile_tape
from killproof_chaos.engines.disk_pool import CheckFailed, Image, Work, check_all
from killproof_chaos.engines.disk_record import Recording, database_name, load, record
from killproof_chaos.shim.build import ShimUnavailable
from killproof_chaos.stores import run_record
from killproof_evidence.environment import environment
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.store import Store, write_json
from killproof_evidence.target import Target

RAM: Final = Path("/dev/shm")
#: What this engine judges in every image; P1 at the level that the contract says.
JUDGED: Final = ("P1", "P6", "P7", "P12", "P13", "P14", "P16")
WITNESSES_MAX: Final = 5
#: Acknowledgements named in one line of lost.jsonl.
NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    target: str
    points: int | None  #: None: all
    policies: tuple[Policy, ...]
    seed: int
    jobs: int

    def argv(self) -> list[str]:
        """Return the command that does the same again."""
        return [
            "killproof", "chaos", "disk", "--target", self.target,
            "--points", "all" if self.points is None else str(self.points),
            "--policy", ",".join(self.policies), "--seed", str(self.seed),
            "--jobs", str(self.jobs),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far the engine is."""

    phase: str  #: record, check
    done: int = 0  #: images looked at
    total: int = 0
    distinct: int = 0
    lost: int = 0  #: images in which an acknowledgement is gone
    seconds: float = 0.0  #: since the first image


Show = Callable[[Turn], None]


@dataclass(slots=True, kw_only=True)
class Findings:
    """What all images showed."""

    images: int = 0
    digests: set[bytes] = field(default_factory=set)
    lost: list[tuple[Image, tuple[int, ...]]] = field(default_factory=list)
    broken: dict[str, list[tuple[Image, str | None, str]]] = field(default_factory=dict)
    unopened: int = 0
    pending: int = 0  #: images with something pending
    jobs_max: int = 0
    seconds: float = 0.0

    def take(self, image: Image) -> None:
        """Count an image, and keep what is wrong with it."""
        self.images += 1
        self.digests.add(image.digest)
        self.unopened += not image.outcome.opens
        self.pending += image.pending > 0
        self.jobs_max = max(self.jobs_max, image.outcome.jobs)
        gone = tuple(number for number in image.outcome.unhonoured if number < image.notes)
        if gone:
            self.lost.append((image, gone))
        for broken in image.outcome.broken:
            found = self.broken.setdefault(broken.promise, [])
            found.append((image, broken.job, broken.story))


def run(options: Options, store: Store, show: Show) -> dict[str, Any]:
    """Record, cut at every point, judge; write verdict.json and return it.

    Raises:
        EngineFailed: the harness could not do its part, which says nothing of the queue.
    """
    target = targets.load(options.target)
    started = time.time()
    show(Turn(phase="record"))
    try:
        recording = record(target, store, seed=options.seed, jobs=options.jobs)
    except ShimUnavailable as error:
        verdict = _verdict(options, target, store, Findings(), None, [str(error)])
        return _written(store, options, verdict, started)
    verdict = _judged(options, target, recording, store, show)
    return _written(store, options, verdict, started)


def again(store: Store, show: Show) -> dict[str, Any]:
    """Judge a recorded run again, from its log alone; write verdict.json and return it.

    Raises:
        StoreError: the store holds no recording; definite.
        EngineFailed: the harness could not do its part, which says nothing of the queue.
    """
    saved = store.read_run()["options"]
    policies = tuple(Policy(word) for word in saved["policies"])
    options = Options(**{**saved, "policies": policies})
    verdict = _judged(options, targets.load(options.target), load(store), store, show)
    write_json(store.verdict, verdict)
    return verdict


def _judged(
    options: Options, target: Target, recording: Recording, store: Store, show: Show
) -> dict[str, Any]:
    """Cut the power at every point asked for, and judge what is left."""
    tapes = _tapes(recording)
    told = tuple(read_told(note.text) for note in tapes[World.HAPPENED].notes)
    findings = Findings()
    points = [
        (world, step) for world, tape in tapes.items() for step in _sampled(tape, options.points)
    ]
    cores = len(os.sched_getaffinity(0))
    with _images_folder(store) as folder:
        work = Work(
            target=target, tapes=tapes, told=told, policies=options.policies, seed=options.seed,
            folder=folder,
            database=database_name(
                target, {name: content for name, (_, content) in recording.initial.items()}
            ),
        )  # fmt: skip
        total = len(points) * len(options.policies)
        began = time.monotonic()
        try:
            for image in check_all(work, points, cores):
                findings.take(image)
                findings.seconds = time.monotonic() - began
                show(
                    Turn(
                        phase="check", done=findings.images, total=total,
                        distinct=len(findings.digests), lost=len(findings.lost),
                        seconds=findings.seconds,
                    )
                )  # fmt: skip
        except CheckFailed as error:
            raise EngineFailed(str(error)) from error
    because = [*recording.problems, *_missed(recording, tapes[World.HAPPENED], told, findings)]
    facts = disk_words.Facts(recording=recording, tape=tapes[World.HAPPENED], told=told)
    _write_lost(store, findings, facts)
    return _verdict(options, target, store, findings, facts, because)


def _tapes(recording: Recording) -> dict[World, Tape]:
    """Return the tape of each world; they differ only where a write has no logged end."""
    made = {
        world: compile_tape(
            recording.records, root=recording.root, initial=recording.initial, world=world
        )
        for world in World
    }
    return made if made[World.HAPPENED].unended else {World.HAPPENED: made[World.HAPPENED]}


def _sampled(tape: Tape, points: int | None) -> Sequence[int]:
    """Return the steps after which the power is cut, evenly spread, first and last included."""
    count = len(tape.steps)
    if points is None or points >= count:
        return range(count)
    if points == 1:
        return [count - 1]
    return sorted({round(at * (count - 1) / (points - 1)) for at in range(points)})


@contextmanager
def _images_folder(store: Store) -> Iterator[Path]:
    """Give a folder in RAM, where there is some: an image is looked at once and overwritten."""
    in_ram = RAM.is_dir() and os.access(RAM, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="killproof-", dir=RAM if in_ram else store.path))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _missed(
    recording: Recording, tape: Tape, told: Sequence[Told | None], findings: Findings
) -> list[str]:
    """Return what a run must have seen to mean anything, and did not."""
    noted = Counter(fact.f for fact in told if fact is not None)
    seen = disk_words.seen(recording, tape)
    owed = {
        "an enqueue was acknowledged": noted["enqueue"] > 0,
        "a claim was acknowledged": noted["claim"] > 0,
        "an ack was acknowledged": noted["ack"] > 0,
        "at least 4 processes wrote": seen.writers >= 4,
        "a checkpoint wrote the database": seen.database_writes > 0,
        "the log began anew": seen.log_starts > 1,
        "an image had something pending": findings.pending > 0,
    }
    return [f"obligation missed: {name}" for name, hit in owed.items() if not hit]


def _write_lost(store: Store, findings: Findings, facts: disk_words.Facts) -> None:
    """Write a line for each image in which acknowledgements are gone."""
    path = store.path / "lost.jsonl"
    path.unlink(missing_ok=True)
    with closing(store.writer(path)) as lines:
        for image, gone in sorted(findings.lost, key=lambda pair: pair[0].step):
            named = [disk_words.fact(facts, number) for number in gone[:NAMED_MAX]]
            lines.append(
                {
                    "record": disk_words.moment(facts, image),
                    "step": image.step,
                    "policy": image.policy,
                    "world": image.world,
                    "lost": len(gone),
                    "acknowledged": named,
                }
            )


def _verdict(
    options: Options,
    target: Target,
    store: Store,
    findings: Findings,
    facts: disk_words.Facts | None,
    because: list[str],
) -> dict[str, Any]:
    """Return verdict.json as an object."""
    properties = {
        entry.number: _property(entry.number, entry.engines[0], target, findings, facts)
        for entry in PROPERTIES
    }
    words = {found["verdict"] for found in properties.values()}
    word = "violated" if "violated" in words else "unknown" if because else "pass"
    told = facts.told if facts is not None else ()
    noted = Counter(fact.f for fact in told if fact is not None)
    level = target.contract.promised("P1")
    return {
        "schema": 1,
        "target": options.target,
        "engine": "disk",
        "seed": options.seed,
        "level": level or "process",
        "verdict": word,
        "unknown_because": because,
        "properties": properties,
        "faults": {},
        "coverage": {
            "obliged": 7,
            "hit": 7 - sum(reason.startswith("obligation") for reason in because),
            "missed": [reason for reason in because if reason.startswith("obligation")],
        },
        "counts": {
            "images": findings.images,
            "distinct": len(findings.digests),
            "points": 0 if facts is None else len(facts.tape.steps),
            "records": 0 if facts is None else len(facts.recording.records),
            "acknowledged": sum(noted.values()),
            "images_lost": len(findings.lost),
            "images_unopened": findings.unopened,
            "images_per_second": round(findings.images / findings.seconds)
            if findings.seconds
            else 0,
        },
        "exhausted": options.points is None,
        "jobs": {"enqueued": noted["enqueue"], "jobs_max": findings.jobs_max},
        "recovery_ms": {},
        "environment": environment(store.path, durability=str(level) if level else None),
        "replay": " ".join(options.argv()),
    }


def _property(
    number: str,
    engine: str,
    target: Target,
    findings: Findings,
    facts: disk_words.Facts | None,
) -> dict[str, Any]:
    promised = target.contract.promised(number)
    if not promised:
        return {"verdict": "not_promised", "checked": 0, "witnesses": []}
    if number not in JUDGED:
        return {"verdict": "not_judged", "checked": 0, "by": engine, "witnesses": []}
    if facts is None or not findings.images:
        reason = "no image was checked"
        return {"verdict": "unknown", "checked": 0, "reason": reason, "witnesses": []}
    if number == "P1":
        return _durability(str(promised), findings, facts)
    broken = findings.broken.get(number, [])
    witnesses = [
        disk_words.witness(facts, image, job, story) for image, job, story in broken[:WITNESSES_MAX]
    ]
    found: dict[str, Any] = {
        "verdict": "violated" if broken else "pass",
        "checked": findings.images,
        "witnesses": witnesses,
    }
    return found | ({"violations": len(broken)} if broken else {})


def _durability(level: str, findings: Findings, facts: disk_words.Facts) -> dict[str, Any]:
    """P1: at level `process` a cut may take what it takes; the figures still say how much."""
    lost = sorted(findings.lost, key=lambda pair: (pair[0].step, -len(pair[1])))
    by_policy = Counter(str(image.policy) for image, _ in lost)
    figures = {
        "images_lost": len(lost),
        "points_lost": len({image.step for image, _ in lost}),
        "worst": max((len(gone) for _, gone in lost), default=0),
        "policies": dict(sorted(by_policy.items())),
    }
    found: dict[str, Any] = {"checked": findings.images, "level": level, "figures": figures}
    if level != "power":
        return found | {"verdict": "not_judged", "by": "proc", "witnesses": []}
    witnesses = [
        disk_words.witness(
            facts, image, facts.told_job(gone[0]), disk_words.loss(facts, image, gone), gone[0]
        )
        for image, gone in lost[:WITNESSES_MAX]
    ]
    found |= {"verdict": "violated" if lost else "pass", "witnesses": witnesses}
    return found | ({"violations": len(lost)} if lost else {})


def _written(
    store: Store, options: Options, verdict: dict[str, Any], started: float
) -> dict[str, Any]:
    """Write run.json, contract.toml and verdict.json; return the verdict."""
    target = targets.load(options.target)
    store.write_contract(target.contract)
    run = run_record(
        target,
        "disk",
        options.argv(),
        seed=options.seed,
        started=started,
        problems=verdict["unknown_because"],
    )
    run["options"] = asdict(options)
    store.write_run(run | {name: verdict[name] for name in ("environment", "counts")})
    write_json(store.verdict, verdict)
    return verdict


def drawn_seed() -> int:
    """Return a seed for a run that was given none."""
    return random.randrange(10**6)
