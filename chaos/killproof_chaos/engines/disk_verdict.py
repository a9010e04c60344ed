"""What the images of one recorded run showed, and the verdict on it: values and pure functions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from killproof_chaos.engines import disk_words
from killproof_chaos.engines.disk_client import hosts_queue
from killproof_chaos.engines.disk_model import Sync, Tape, World
from killproof_chaos.engines.disk_policy import Policy
from killproof_chaos.engines.disk_pool import Image
from killproof_chaos.engines.disk_record import Recording
from killproof_chaos.recording import REFUSED
from killproof_evidence.environment import environment
from killproof_evidence.judge import PROPERTIES, Property
from killproof_evidence.store import Store
from killproof_evidence.target import Target, keeps_history

#: What this engine judges in every image; P1 at the level that the contract says.
JUDGED: Final = ("P1", "P6", "P7", "P12", "P13", "P14", "P16")
WITNESSES_MAX: Final = 5
#: Acknowledgements named in one line of lost.jsonl.
NAMED_MAX: Final = 20
#: Of a run, every point and what each policy left: the picture is made of it.
POINTS: Final = "points.json"
#: In place of a number of lost acknowledgements: the file does not open.
UNOPENED: Final = -1
#: Why a promise that no image broke is unknown, where the later images were not looked at.
ENDED_EARLY: Final = "the run ended before the last image"
#: A log with less holds no frame: nothing that an opening would recover.
LOG_BYTES_MIN: Final = 4_096
WRITERS_MIN: Final = 4
#: Answers that only the holder of a job gets, and the words for them.
HELD: Final = {
    "extend": "an extension",
    "release": "a release",
    "snooze": "a snooze",
    "refused": "a lease that was no longer held",
    "get": "a read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    target: str
    points: int | None  #: None: all
    policies: tuple[Policy, ...]
    seed: int
    jobs: int
    fail_fast: bool = False  #: stop at the first image that breaks a promise

    def argv(self) -> list[str]:
        """Return the command that does the same again."""
        return [
            "killproof", "chaos", "disk", "--target", self.target,
            "--points", "all" if self.points is None else str(self.points),
            "--policy", ",".join(self.policies), "--seed", str(self.seed),
            "--jobs", str(self.jobs),
        ] + (["--fail-fast"] if self.fail_fast else [])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far the engine is."""

    phase: str  #: record, check
    done: int = 0  #: images looked at
    total: int = 0
    distinct: int = 0
    lost: int = 0  #: images in which an acknowledgement is gone
    seconds: float = 0.0  #: since the first image


@dataclass(slots=True, kw_only=True)
class Findings:
    """What all images showed."""

    images: int = 0
    digests: set[bytes] = field(default_factory=set)
    lost: list[tuple[Image, tuple[int, ...]]] = field(default_factory=list)
    broken: dict[str, list[tuple[Image, str | None, str]]] = field(default_factory=dict)
    #: (world, step) -> policy -> lost acknowledgements, or UNOPENED
    points: dict[tuple[World, int], dict[Policy, int]] = field(default_factory=dict)
    checked: Counter[str] = field(default_factory=Counter)  #: promise -> cases in all images
    opened: int = 0  #: images that had no equal before
    unopened: int = 0  #: that could not be opened
    hanging: int = 0  #: that were not open in time
    pending: int = 0  #: images with something pending
    spent: dict[str, float] = field(default_factory=dict)  #: CPU s of all processes on each part
    jobs_max: int = 0
    seconds: float = 0.0
    stopped: str = ""  #: why it ended before the last image

    def take(self, image: Image) -> None:
        """Count an image, and keep what is wrong with it."""
        self.images += 1
        self.digests.add(image.digest)
        self.opened += image.opened
        self.unopened += not image.outcome.opens
        self.hanging += image.outcome.hangs
        self.checked.update(image.outcome.checked)
        self.pending += image.pending > 0
        self.jobs_max = max(self.jobs_max, image.outcome.jobs)
        gone = tuple(number for number in image.outcome.unhonoured if number < image.notes)
        if gone:
            self.lost.append((image, gone))
        for broken in image.outcome.broken:
            found = self.broken.setdefault(broken.promise, [])
            found.append((image, broken.job, broken.story))
        left = len(gone) if image.outcome.opens else UNOPENED
        self.points.setdefault((image.world, image.step), {})[image.policy] = left

    def is_violated(self, target: Target) -> bool:
        """Say whether an image breaks a promise of this target."""
        promised = target.contract.promised
        if self.lost and promised("P1") == "power":
            return True
        return any(promised(number) for number in self.broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a verdict rests on."""

    options: Options
    target: Target
    findings: Findings
    facts: disk_words.Facts | None  #: None: there is no recording
    owed: Mapping[str, bool]  #: what the run must have seen -> whether it has
    doubts: Sequence[str] = ()  #: why the log is not the whole truth


def obligations(target: Target, facts: disk_words.Facts, findings: Findings) -> dict[str, bool]:
    """Return what a run must have seen to mean anything -> whether it has."""
    promised = target.contract.promised
    told = [fact for fact in facts.told if fact is not None]
    noted = Counter(fact.f for fact in told)
    true = Counter(fact.f for fact in told if fact.value is True)
    asked = {fact.job: fact.asked for fact in told if fact.f == "enqueue" and fact.asked}
    in_table = {job for job, one in asked.items() if one.get("sink") == "table"}
    keys = Counter(
        fact.asked["key"]
        for fact in told
        if fact.f == "enqueue" and fact.asked and fact.asked.get("key") is not None
    )
    dead = any(
        fact.f == "nack" and isinstance(how, Mapping) and how.get("permanent")
        for fact in told
        for how in (fact.asked, fact.value)
    )
    seen = disk_words.seen(facts.recording, facts.tape)
    logs = [
        len(content)
        for copy in facts.recording.copies[:1]
        for name, content in copy.files.items()
        if name.endswith("-wal")
    ]
    owed = {
        "an enqueue was acknowledged": noted["enqueue"] > 0,
        f"at least {WRITERS_MIN} processes wrote": seen.writers >= WRITERS_MIN,
        "a checkpoint wrote the database": seen.database_writes > 0,
        "the log began anew": seen.log_starts > 1,
        "a sync made something durable": any(isinstance(s, Sync) for s in facts.tape.steps),
        "the first open was recorded": _is_whole(facts),
        "a process was killed": len(facts.recording.kills) > 0,
        "all were killed at once, and left a log": any(n >= LOG_BYTES_MIN for n in logs),
        "an image had something pending": findings.pending > 0,
    }
    if keeps_history(target):  # Elsewhere nobody notes what a worker was told.
        owed |= {
            "a claim was acknowledged": noted["claim"] > 0,
            "an ack was acknowledged": noted["ack"] > 0,
            "a nack was acknowledged": noted["nack"] > 0,
            "a job went to the dead letters": dead,
        }
    if promised("P6") == "transaction" and keeps_history(target):
        acked = {fact.job for fact in told if fact.f == "ack"}
        owed["an effect shared the transaction of its ack"] = bool(acked & in_table)
    if promised("P12"):
        # Who has one answers with its id, or refuses.
        twice = any(count > 1 for count in keys.values()) or _refuses_a_key(facts)
        owed["a key was enqueued twice"] = twice
    if promised("P13"):
        owed["a dead job was replayed"] = true["replay"] > 0
    if promised("P15"):
        owed["a job was cancelled"] = true["cancel"] > 0
    if hosts_queue(target):
        for f, words in HELD.items():
            owed[f"{words} was answered"] = noted[f] > 0
    return owed


def _refuses_a_key(facts: disk_words.Facts) -> bool:
    """Whether somebody was told that there is a job of the key already."""
    for note in facts.tape.notes:
        if REFUSED.encode() in note.text:
            told = json.loads(note.text)
            if told["f"] == REFUSED and told["asked"].get("key") is not None:
                return True
    return False


def _is_whole(facts: disk_words.Facts) -> bool:
    """Whether the log begins before the queue was made."""
    notes = facts.tape.notes
    return bool(notes) and any(step.seq < notes[facts.prepared].seq for step in facts.tape.steps)


def without_images(options: Options, target: Target, store: Store, reason: str) -> dict[str, Any]:
    """Return the verdict on a run that left nothing to look at."""
    nothing = Recording(
        root="", database="", records=[], copies=[], kills=[], names={}, problems=[]
    )
    tape = Tape(initial={}, steps=(), notes=(), unended=0)
    findings = Findings()
    facts = disk_words.Facts(recording=nothing, tape=tape, told=())
    owed = obligations(target, facts, findings)
    case = Case(options=options, target=target, findings=findings, facts=None, owed=owed)
    return verdict(case, store, [reason])


def write_lost(store: Store, findings: Findings, facts: disk_words.Facts) -> None:
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


def write_points(
    store: Store, options: Options, findings: Findings, facts: disk_words.Facts
) -> None:
    """Write every point with what each policy left there, in the order of the run."""
    rows = [
        [world, step, facts.tape.steps[step].seq, [left.get(p) for p in options.policies]]
        for (world, step), left in sorted(findings.points.items())
    ]
    found = {"policies": list(options.policies), "points": rows}
    text = json.dumps(found, separators=(",", ":"))
    (store.path / POINTS).write_text(text, encoding="utf-8")


def verdict(case: Case, store: Store, because: Sequence[str]) -> dict[str, Any]:
    """Return verdict.json as an object.

    Args:
        case: what it rests on.
        store: where the run is, for the environment.
        because: reasons for `unknown` that the case does not hold.
    """
    options, target, findings, facts = case.options, case.target, case.findings, case.facts
    properties = {entry.number: _property(entry, case) for entry in PROPERTIES}
    words = {found["verdict"] for found in properties.values()}
    missed = [f"obligation missed: {name}" for name, hit in case.owed.items() if not hit]
    reasons = [*case.doubts, *because]
    if facts is not None:
        reasons += missed
    if not reasons:
        reasons = [
            f"{number}: {found['reason']}"
            for number, found in properties.items()
            if found["verdict"] == "unknown" and found["reason"] != ENDED_EARLY
        ]
        if not words & {"pass", "violated", "unknown"}:
            reasons = ["the contract promises nothing that this engine judges"]
    level = target.contract.promised("P1")
    return {
        "schema": 1,
        "target": options.target,
        "engine": "disk",
        "seed": options.seed,
        "level": level or "process",
        "verdict": "violated" if "violated" in words else "unknown" if reasons else "pass",
        "unknown_because": reasons,
        "properties": properties,
        "faults": {"kill": 0 if facts is None else len(facts.recording.kills)},
        "coverage": {"obliged": len(case.owed), "hit": sum(case.owed.values()), "missed": missed},
        "counts": _counts(findings, facts),
        "checking_ms": _checking_ms(findings),
        "exhausted": options.points is None and not findings.stopped,
        "jobs": _jobs(findings, facts),
        "recovery_ms": {},
        "environment": environment(store.path, durability=str(level) if level else None),
        "replay": " ".join(options.argv()),
    }


def _checking_ms(findings: Findings) -> dict[str, float]:
    """Return the CPU time of each part of the work: of every image, or of each one opened."""
    return {
        part: round(seconds * 1_000 / (findings.images if part == "rebuild" else opened), 3)
        for part, seconds in sorted(findings.spent.items())
        if (opened := findings.opened)
    }


def _counts(findings: Findings, facts: disk_words.Facts | None) -> dict[str, int]:
    told = facts.told if facts is not None else ()
    speed = round(findings.images / findings.seconds) if findings.seconds else 0
    cpu = sum(findings.spent.values())
    return {
        "images": findings.images,
        "distinct": len(findings.digests),
        "points": 0 if facts is None else len(facts.tape.steps),
        "points_cut": len(findings.points),
        "records": 0 if facts is None else len(facts.recording.records),
        "acknowledged": sum(fact is not None for fact in told),
        "images_lost": len(findings.lost),
        "images_opened": findings.opened,
        "images_unopened": findings.unopened,
        "images_per_second": speed,
        "images_per_cpu_second": round(findings.images / cpu) if cpu else 0,
    }


def _jobs(findings: Findings, facts: disk_words.Facts | None) -> dict[str, int]:
    told = facts.told if facts is not None else ()
    noted = Counter(fact.f for fact in told if fact is not None)
    return {"enqueued": noted["enqueue"], "jobs_max": findings.jobs_max}


def _property(entry: Property, case: Case) -> dict[str, Any]:
    number, findings, facts = entry.number, case.findings, case.facts
    promised = case.target.contract.promised(number)
    nothing: dict[str, Any] = {"checked": 0, "witnesses": []}
    if not promised:
        return {"verdict": "not_promised", **nothing}
    if number not in JUDGED or not _can_judge(number, case):
        return {"verdict": "not_judged", **nothing, "by": entry.engines[0]}
    if facts is None or not findings.images:
        return {"verdict": "unknown", **nothing, "reason": "no image was checked"}
    if case.doubts:
        return {"verdict": "unknown", **nothing, "reason": "the log is not the whole truth"}
    if number == "P1":
        return _durability(str(promised), findings, facts)
    broken, checked = findings.broken.get(number, []), findings.checked[number]
    if not broken and findings.stopped:
        return {"verdict": "unknown", **nothing, "checked": checked, "reason": ENDED_EARLY}
    if not broken and not checked:
        return {"verdict": "unknown", **nothing, "reason": "no image held a case of it"}
    witnesses = [
        disk_words.witness(facts, image, job, story) for image, job, story in broken[:WITNESSES_MAX]
    ]
    found: dict[str, Any] = {
        "verdict": "violated" if broken else "pass",
        "checked": checked,
        "witnesses": witnesses,
    }
    return found | ({"violations": len(broken)} if broken else {})


def _can_judge(number: str, case: Case) -> bool:
    """Whether the target tells enough for this promise to be looked at in an image."""
    target = case.target
    if number == "P6":
        return target.contract.promised("P6") == "transaction"
    if number == "P7":
        return bool(target.contract.edges)
    if number == "P12":
        return target.audit is None or target.audit.key is not None
    if number == "P14" and case.findings.images:
        return case.findings.checked["P14"] > 0
    return True


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
    if not lost and findings.stopped:
        return found | {"verdict": "unknown", "reason": ENDED_EARLY, "witnesses": []}
    witnesses = [
        disk_words.witness(
            facts, image, facts.told_job(gone[0]), disk_words.loss(facts, image, gone), gone[0]
        )
        for image, gone in lost[:WITNESSES_MAX]
    ]
    found |= {"verdict": "violated" if lost else "pass", "witnesses": witnesses}
    return found | ({"violations": len(lost)} if lost else {})
