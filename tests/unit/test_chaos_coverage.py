"""The obligation manifest: fixed here, so that it cannot shrink unseen."""

import json
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import coverage, mix, targets
from killproof_chaos.phases import PHASES
from killproof_chaos.plan import NEMESES, Options
from killproof_evidence.contract import Contract
from killproof_evidence.store import Store
from killproof_evidence.target import AuditMapping

WHOLE: dict[str, Any] = {"interrupted": False, "drained": True, "problems": []}
MOMENTS = ("begin", "locked", "written", "committed", "synced")


def test_the_manifest_of_killproof_is_every_phase_of_the_design_by_kill_and_by_pause() -> None:
    phases = [f"{op}.{m}" for op in ["enqueue", "claim", "extend", "ack", "nack"] for m in MOMENTS]
    phases += [f"{op}.{m}" for op in ["release", "reap", "cancel", "complete"] for m in MOMENTS]
    phases += ["promote.begin", "promote.written", "handler.start", "handler.effect"]
    phases += ["handler.end", "worker.idle", "worker.stop", "checkpoint.begin", "checkpoint.end"]
    cells = {f"{nemesis}@{phase}" for nemesis in ("kill", "pause") for phase in phases}

    obliged = coverage.obliged(targets.load("killproof"), Options())
    assert {name for name in obliged if "@" in name} == cells
    assert {name for name in obliged if "@" not in name} == {
        "the run came to its end",
        "the queue came to rest after the faults",
        "the end of every process is explained",
        "200 kills that hit",
        "40 pauses that hit",
        "a job whose worker was killed was delivered again",
        "a worker with a job was killed while a peer was idle",
        "the file was recovered from a log that was not empty",
        "a lease ran out under a stopped worker",
        "a stale outcome was refused",
        "a worker was asked to stop and ended in order",
        "a stopping worker gave back the job in its hand",
        "a job was dead-lettered",
        "a handler took its worker with it",
        "a handler hung",
        "a handler returned what JSON cannot hold",
        "an operation waited for a foreign program's write lock",
        "a foreign program held the write lock for longer than a lease",
        "the HTTP sink was asked again for a key that it had applied",
        "a backup was made while jobs were being claimed",
        "a dispatcher was killed while several of its slots had jobs",
        "a dispatcher was stopped while several of its slots had jobs",
        "a worker was killed with the job of a schedule in hand",
        "a worker was killed in a step of a workflow, and the step was taken up again",
        "a run failed with one of its steps, and another succeeded",
        "a handler was given a result that an attempt before it had recorded",
        "a worker was killed with a payload from a file, and another was given it again",
        "a collection of the files of payloads came to its end",
        "a limit was reached while further jobs of it waited",
        "a worker was killed while its job was the last that a limit let run",
    }


def test_a_capability_is_owed_by_who_announces_it_and_is_asked() -> None:
    killproof, minimal = targets.load("killproof"), targets.load("minimal")
    mixed = {sentence for sentence, _, _ in coverage.MIXED}

    assert mixed <= set(coverage.obliged(killproof, Options()))
    assert not mixed & set(coverage.obliged(killproof, Options(mix="plain")))
    assert not mixed & set(coverage.obliged(minimal, Options()))
    plain = mix.contract_of(killproof, mix.of(killproof, Options(mix="plain")))
    assert mix.not_asked(killproof, plain) == ["P22", "P23", "P24"]
    assert mix.not_asked(minimal, minimal.contract) == []
    # Nobody knows whether the user's jobs are of a kind that is limited.
    assert coverage.LIMITED not in coverage.obliged(killproof, Options(jobs="mine.jsonl"))


def test_the_phases_are_those_of_the_design() -> None:
    operations = [
        "enqueue",
        "claim",
        "extend",
        "ack",
        "nack",
        "release",
        "reap",
        "promote",
        "cancel",
        "complete",
    ]
    others = ["handler.start", "handler.effect", "handler.end", "worker.idle", "worker.stop"]

    assert set(PHASES) == {
        *(f"{operation}.{moment}" for operation in operations for moment in MOMENTS),
        *others,
        "checkpoint.begin",
        "checkpoint.end",
    }


@pytest.mark.parametrize("nemesis", NEMESES)
def test_what_was_not_chosen_is_not_obliged(nemesis: str) -> None:
    others = tuple(name for name in NEMESES if name != nemesis)
    target = targets.load("minimal")

    alone = set(coverage.obliged(target, Options(nemeses=(nemesis,))))
    without = set(coverage.obliged(target, Options(nemeses=others)))
    owed = alone - {coverage.ENDED, coverage.RESTED, coverage.EXPLAINED}
    assert owed
    assert not owed & without


def test_a_target_is_not_obliged_to_what_it_cannot_show() -> None:
    obliged = coverage.obliged(targets.load("minimal"), Options())

    assert coverage.RELEASED not in obliged
    assert "kill@release.begin" not in obliged


def test_what_an_audit_cannot_show_is_not_obliged() -> None:
    target = targets.load("minimal")
    assert {coverage.DEAD, coverage.REDELIVERED} <= set(coverage.obliged(target, Options()))

    target.audit = AuditMapping(table="job", id="id", state="state", states={1: "leased"})
    target.sync_points = frozenset()  # type: ignore[attr-defined]
    assert not {coverage.DEAD, coverage.REDELIVERED} & set(coverage.obliged(target, Options()))


def test_a_phase_that_nobody_reaches_without_a_nemesis_is_not_obliged_without_it() -> None:
    target = targets.load("killproof")
    alone = coverage.aims(target, Options(nemeses=("kill",)))

    missing = set(coverage.phases_of(target)) - set(alone)
    assert {phase.partition(".")[0] for phase in missing} == {"nack", "release", "worker"}
    assert "worker.idle" in alone
    assert coverage.aims(target, Options()) == coverage.phases_of(target)


def test_a_run_without_faults_meets_no_obligation_of_a_nemesis(tmp_path: Path) -> None:
    store = make_store(tmp_path, nemesis=[])
    options = Options()
    hit = coverage.hit(store, options, WHOLE)

    assert hit == [coverage.ENDED, coverage.RESTED, coverage.EXPLAINED]
    missed = set(coverage.obliged(targets.load("killproof"), options)) - set(hit)
    assert "kill@ack.committed" in missed
    assert "200 kills that hit" in missed


def test_asking_for_no_kill_does_not_meet_the_obligation_to_kill(tmp_path: Path) -> None:
    """Rule C12."""
    options = Options(kills=0)
    hit = coverage.hit(make_store(tmp_path, nemesis=[]), options, WHOLE)

    assert "0 kills that hit" in coverage.obliged(targets.load("minimal"), options)
    assert "0 kills that hit" not in hit


@pytest.mark.parametrize(
    ("run", "missed"),
    [
        ({"interrupted": True}, coverage.ENDED),
        ({"drained": False}, coverage.RESTED),
        ({"problems": ["w1.1 ended with status 9, unasked"]}, coverage.EXPLAINED),
    ],
)
def test_a_run_that_is_not_whole_misses_what_every_run_owes(
    tmp_path: Path, run: dict[str, Any], missed: str
) -> None:
    """Rules C5, C6."""
    hit = coverage.hit(make_store(tmp_path, nemesis=[]), Options(), WHOLE | run)

    assert missed not in hit


def kill(pid: int, phase: str = "handler.start", **more: Any) -> dict[str, Any]:
    facts = {"fault": "kill", "pid": pid, "phase": phase, "hit": True}
    return {"t": 500, "idle_peers": [], "wal_bytes": 0} | facts | more


def test_a_kill_meets_its_cell_and_a_producers_kill_too(tmp_path: Path) -> None:
    store = make_store(
        tmp_path, nemesis=[kill(1, "claim.locked"), kill(2, "enqueue.begin", fault="producer-kill")]
    )
    hit = coverage.hit(store, Options(kills=2), WHOLE)

    assert {"kill@claim.locked", "kill@enqueue.begin", "2 kills that hit"} <= set(hit)
    assert "pause@claim.locked" not in hit


def test_a_kill_of_an_idle_worker_is_a_cell_but_no_hit(tmp_path: Path) -> None:
    """Rule C12."""
    store = make_store(tmp_path, nemesis=[kill(1, "worker.idle", hit=False)])
    hit = coverage.hit(store, Options(kills=1), WHOLE)

    assert "kill@worker.idle" in hit
    assert "1 kills that hit" not in hit


CLAIM = [
    {"t": 100, "pid": 1, "n": 1, "f": "claim", "type": "invoke"},
    {"t": 101, "pid": 1, "n": 1, "f": "claim", "type": "ok", "job": 5, "fence": 1},
]
LEASED = {"job": 5, "old": "available", "new": "leased", "fence": 1}
LEASED_AGAIN = {"job": 5, "old": "available", "new": "leased", "fence": 2}
REFUSED = [
    {"t": 100, "pid": 1, "n": 1, "f": "ack", "type": "invoke", "job": 5, "fence": 1},
    {"t": 101, "pid": 1, "n": 1, "f": "ack", "type": "fail", "job": 5, "fence": 1},
]
PAUSE = {"t": 1, "fault": "pause", "pid": 1, "phase": "ack.begin", "hit": True, "t_end": 9}
LOCK = {"t": 100, "t_end": 600_000_100, "fault": "lock", "pid": 9, "phase": "locked", "hit": True}
WAITED = [
    {"t": 50, "pid": 1, "n": 1, "f": "ack", "type": "invoke"},
    {"t": 600_000_200, "pid": 1, "n": 1, "f": "ack", "type": "ok"},
]
EXIT = [{"t": 900, "pid": 1, "n": 1, "f": "exit", "type": "ok"}]
STEP = {
    "t": 1, "t_end": 2, "fault": "clock", "wall_ms": 9_000_000, "before_ms": 0,
    "offset_ms": -3_600_000, "hit": True,
}  # fmt: skip
BACK = STEP | {"wall_ms": 9_001_000, "before_ms": -3_600_000, "offset_ms": 0}
#: What the audit was told: before the first step, and between the two.
HELD = {"job": 5, "new": "leased", "fence": 1, "t_ms": 8_999_000}
HELD_THEN = {"job": 6, "new": "leased", "fence": 1, "t_ms": 5_400_500}
WAITING = HELD | {"new": "scheduled"}
WAITING_THEN = HELD_THEN | {"new": "retryable"}
FAILED = {"t": 1, "fault": "io", "pid": 1, "call": "sync", "error": "EIO", "file": "wal"}
DOUBT = [{"t": 2, "pid": 1, "n": 1, "f": "ack", "type": "info"}]
BACKUP = [
    {"t": 90, "pid": 2, "n": 1, "f": "backup", "type": "invoke"},
    {"t": 110, "pid": 2, "n": 1, "f": "backup", "type": "ok"},
]
COLLECT = [record | {"f": "collect"} for record in BACKUP]
OTHER = {"t": 102, "pid": 1, "n": 2, "f": "claim", "type": "ok", "job": 6, "fence": 1}
STOP = PAUSE | {"t": 500}
#: The job had failed before anybody was struck: what came after is a retry.
NACKED = [
    {"t": 102, "pid": 1, "n": 2, "f": "nack", "type": "invoke", "job": 5, "fence": 1},
    {"t": 103, "pid": 1, "n": 2, "f": "nack", "type": "ok", "job": 5, "fence": 1},
]
FULL = LEASED | {"kind": "report"}
BEHIND = {"job": 6, "old": None, "new": "available", "kind": "report"}
GIVEN_BACK = {"job": 5, "old": "leased", "new": "available", "kind": "report"}
TWICE = [
    *CLAIM,
    {"t": 900, "pid": 3, "n": 1, "f": "claim", "type": "ok", "job": 5, "fence": 2},
]
START = {
    "t": 1, "pid": 7, "n": 1, "f": "start", "type": "invoke",
    "value": {"run": "r1", "steps": [{"id": "r1.a"}]},
}  # fmt: skip
SPILL = {
    "t": 1, "pid": 7, "n": 1, "f": "enqueue", "type": "invoke",
    "value": {"id": "s1", "script": ["ok"], "spill": True},
}  # fmt: skip


def born(name: str = "j", **more: Any) -> dict[str, Any]:
    """The birth of the job that is claimed twice."""
    return {"job": 5, "old": None, "new": "available", "harness_id": name} | more


HUNG = [
    {
        "t": 1, "pid": 7, "n": 1, "f": "enqueue", "type": "invoke",
        "value": {"id": "j1", "script": ["raise", "hang:2"]},
    }
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "parts", "without"),
    [
        (
            coverage.REDELIVERED,
            {"nemesis": [kill(1)], "history": CLAIM, "audit": [LEASED, LEASED_AGAIN]},
            "audit",
        ),
        (coverage.SPARED, {"nemesis": [kill(1, idle_peers=["w2.1"])]}, "nemesis"),
        (
            coverage.RECOVERED,
            {"nemesis": [{"t": 1, "fault": "kill-all", "hit": True, "wal_bytes": 8}]},
            "nemesis",
        ),
        (
            coverage.EXPIRED,
            {"nemesis": [STOP], "history": CLAIM, "audit": [LEASED, LEASED_AGAIN]},
            "audit",
        ),
        (coverage.REFUSED, {"history": REFUSED}, "history"),
        (coverage.STOPPED, {"nemesis": [PAUSE | {"fault": "term"}], "history": EXIT}, "history"),
        (
            coverage.RELEASED,
            {"history": [{"t": 1, "pid": 1, "n": 1, "f": "release", "type": "ok"}]},
            "history",
        ),
        (coverage.DEAD, {"audit": [{"job": 5, "old": "leased", "new": "dead"}]}, "audit"),
        (
            coverage.CRASHED,
            {"nemesis": [{"t": 1, "fault": "handler-abort", "pid": 1, "phase": "", "hit": True}]},
            "nemesis",
        ),
        (
            coverage.OVERTIME,
            {"history": HUNG, "effects": [{"job": "j1", "what": "start", "attempt": 2}]},
            "effects",
        ),
        (
            coverage.UNJSONABLE,
            {"effects": [{"job": "j", "what": "end", "outcome": "unjsonable"}]},
            "effects",
        ),
        (coverage.WAITED, {"nemesis": [LOCK], "history": WAITED}, "history"),
        (coverage.OUTLASTED, {"nemesis": [LOCK]}, "nemesis"),
        (coverage.REPEATED, {"repeats": [{"job": "j1", "what": "repeated"}]}, "repeats"),
        (coverage.STEPPED, {"nemesis": [STEP, BACK]}, "nemesis"),
        (coverage.BACK_LEASED, {"nemesis": [STEP, BACK], "audit": [HELD]}, "audit"),
        (coverage.FORWARD_LEASED, {"nemesis": [STEP, BACK], "audit": [HELD_THEN]}, "audit"),
        (coverage.BACK_SCHEDULED, {"nemesis": [STEP, BACK], "audit": [WAITING]}, "audit"),
        (coverage.FORWARD_SCHEDULED, {"nemesis": [STEP, BACK], "audit": [WAITING_THEN]}, "audit"),
        (coverage.DOUBTED, {"nemesis": [FAILED], "history": DOUBT}, "history"),
        (coverage.BACKED_UP, {"history": [*BACKUP[:1], *CLAIM, *BACKUP[1:]]}, "history"),
        (coverage.COLLECTED, {"history": COLLECT}, "history"),
        (coverage.SLOTS_KILLED, {"nemesis": [kill(1)], "history": [*CLAIM, OTHER]}, "nemesis"),
        (coverage.SLOTS_PAUSED, {"nemesis": [STOP], "history": [*CLAIM, OTHER]}, "history"),
        (coverage.LIMITED, {"audit": [FULL, BEHIND]}, "audit"),
        (
            coverage.LIMITED_KILL,
            {"nemesis": [kill(1)], "history": CLAIM, "audit": [FULL, GIVEN_BACK]},
            "nemesis",
        ),
        (
            coverage.SLOT_KILLED,
            {"nemesis": [kill(1)], "history": TWICE, "audit": [born(key="schedule:tick:1")]},
            "nemesis",
        ),
        (
            coverage.STEP_KILLED,
            {"nemesis": [kill(1)], "history": [START, *TWICE], "audit": [born("r1.a")]},
            "audit",
        ),
        (
            coverage.SPILLED,
            {
                "nemesis": [kill(1)],
                "history": [SPILL, *TWICE],
                "audit": [born("s1")],
                "effects": [{"job": "s1", "what": "start", "attempt": 2}],
            },
            "effects",
        ),
        (
            coverage.RUN_FAILED,
            {"audit": [{"run": 1, "new": "failed"}, {"run": 2, "new": "succeeded"}]},
            "audit",
        ),
        (
            coverage.REMEMBERED,
            {
                "effects": [
                    {"job": "m", "fence": 1, "what": "step", "name": "fetch"},
                    {"job": "m", "fence": 2, "what": "step", "name": "parse"},
                    {"job": "m", "fence": 2, "what": "end", "read": {"fetch": "x", "parse": "y"}},
                ]
            },
            "effects",
        ),
        (coverage.REPAIRED, {"nemesis": [{"t": 1, "fault": "repair", "hit": True}]}, "nemesis"),
        (coverage.failure("sync", "EIO"), {"nemesis": [FAILED]}, "nemesis"),
    ],
)
def test_each_sometimes_is_met_by_its_evidence_and_not_without_it(
    tmp_path: Path, sentence: str, parts: dict[str, list[dict[str, Any]]], without: str
) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    shown = make_store(tmp_path / "with", **parts)
    bare = make_store(tmp_path / "without", **(parts | {without: []}))

    assert sentence in coverage.hit(shown, Options(), WHOLE)
    assert sentence not in coverage.hit(bare, Options(), WHOLE)


@pytest.mark.parametrize(
    "sentence", [coverage.REDELIVERED, coverage.EXPIRED, coverage.SLOT_KILLED, coverage.STEP_KILLED]
)
def test_a_retry_is_not_taken_for_the_work_of_a_fault_that_came_after(
    tmp_path: Path, sentence: str
) -> None:
    parts: dict[str, list[dict[str, Any]]] = {
        "nemesis": [kill(1), STOP],
        "audit": [born("r1.a", key="schedule:tick:1"), FULL, LEASED_AGAIN],
    }
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    struck = make_store(tmp_path / "with", history=[START, *TWICE], **parts)
    failed = make_store(tmp_path / "without", history=[START, *NACKED, *TWICE], **parts)

    assert sentence in coverage.hit(struck, Options(), WHOLE)
    assert sentence not in coverage.hit(failed, Options(), WHOLE)


def test_a_queue_without_tokens_shows_no_redelivery_and_stops_no_run(tmp_path: Path) -> None:
    """Seen with the queues of the articles: there is nothing to tell one lease from the next by."""

    def untold(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in record.items() if k != "fence"} for record in records]

    store = make_store(
        tmp_path,
        nemesis=[kill(1), STOP],
        history=untold([START, *TWICE]),
        audit=untold([born("r1.a"), FULL, LEASED_AGAIN]),
    )

    shown = coverage.hit(store, Options(), WHOLE)

    assert not {coverage.REDELIVERED, coverage.EXPIRED, coverage.STEP_KILLED} & set(shown)


def test_a_limit_is_filled_by_the_lease_that_was_struck_and_not_by_another_of_its_job(
    tmp_path: Path,
) -> None:
    store = make_store(
        tmp_path, nemesis=[kill(1)], history=CLAIM, audit=[FULL | {"fence": 2}, GIVEN_BACK]
    )

    assert coverage.LIMITED_KILL not in coverage.hit(store, Options(), WHOLE)


def test_a_limit_without_kinds_is_on_the_kind_of_its_name(tmp_path: Path) -> None:
    store = make_store(tmp_path, audit=[FULL, BEHIND])
    limits = {"report": {"running": 1}}
    store.write_contract(Contract(parameters={"lease_ms": 500, "limits": limits}))

    assert coverage.LIMITED in coverage.hit(store, Options(), WHOLE)


def test_what_held_between_the_steps_is_not_counted_for_the_first_of_them(tmp_path: Path) -> None:
    store = make_store(tmp_path, nemesis=[STEP, BACK], audit=[HELD_THEN])

    assert coverage.BACK_LEASED not in coverage.hit(store, Options(), WHOLE)


def test_each_call_and_error_is_owed_when_calls_are_made_to_fail() -> None:
    owed = coverage.obliged(targets.load("minimal"), Options(nemeses=("io",)))

    assert {name for name in owed if " failed with " in name} == {
        f"{call} failed with {error}"
        for call in ("an open", "a write", "a sync", "a truncate")
        for error in ("EIO", "ENOSPC")
    }


def test_every_sentence_of_the_manifest_can_be_met() -> None:
    owed = {entry[0] for entry in (*coverage.SOMETIMES, *coverage.MIXED)}
    assert owed == {sentence for sentence, _ in coverage.SHOWN}


def make_store(
    place: Path,
    *,
    nemesis: list[dict[str, Any]] | None = None,
    history: list[dict[str, Any]] | None = None,
    audit: list[dict[str, Any]] | None = None,
    effects: list[dict[str, Any]] | None = None,
    repeats: list[dict[str, Any]] | None = None,
) -> Store:
    """Make a store of hand-written records."""
    store = Store.create(place / "store")
    limits = {"press": {"kinds": ["report"], "running": 1}}
    schedules = {"tick": {"every_ms": 500, "prefix": "schedule:tick:"}}
    parameters = {"lease_ms": 500, "limits": limits, "schedules": schedules}
    store.write_contract(Contract(parameters=parameters))
    for path, records in (
        (store.nemesis, nemesis),
        (store.history_file("w1.1"), history),
        (store.audit, audit),
        (store.effects / "1.jsonl", effects),
        (store.path / "repeats.jsonl", repeats),
    ):
        text = "".join(json.dumps(record) + "\n" for record in records or ())
        path.write_text(text, encoding="utf-8")
    return store


class _HandlersOnly:
    """A target whose workers are processes of somebody else's: only its handler speaks."""

    name, broken = "handlers-only", False
    sync_points = frozenset({"handler.start", "handler.end"})
    contract = Contract(promises={"P17": True}, parameters={"lease_ms": 5_000})
    audit = AuditMapping(table="job", id="id", state="state")
    database = "queue.db"


def test_a_queue_without_a_history_owes_nothing_that_only_a_history_shows() -> None:
    target: Any = _HandlersOnly()
    owed = set(coverage.obliged(target, Options()))

    assert {"kill@handler.start", "pause@handler.end", coverage.REDELIVERED} <= owed
    assert coverage.CRASHED in owed  # Its handler is in its worker's process.
    assert not owed & {coverage.REFUSED, coverage.SPARED, coverage.EXPIRED, coverage.STOPPED}
    assert coverage.OUTLASTED not in owed  # No foreign lock is that long.
    target.contract = Contract(parameters={"lease_ms": 5_000})
    assert coverage.REDELIVERED not in coverage.obliged(target, Options())


def test_a_handler_that_begins_after_the_kill_of_its_first_is_a_job_delivered_again(
    tmp_path: Path,
) -> None:
    def hit(*effects: dict[str, Any]) -> bool:
        store = Store.create(tmp_path / str(len(list(tmp_path.iterdir()))))
        store.write_contract(Contract())
        fault = {"t": 50, "fault": "kill", "pid": 1, "phase": "handler.effect", "hit": True}
        fault |= {"idle_peers": 0}
        store.nemesis.write_text(json.dumps(fault) + "\n")
        lines = "".join(json.dumps(record) + "\n" for record in effects)
        (store.effects / "1.jsonl").write_text(lines)
        return coverage.REDELIVERED in coverage.hit(store, Options(), WHOLE)

    def said(t: int, pid: int, what: str) -> dict[str, Any]:
        return {"t": t, "pid": pid, "job": "j1", "attempt": 1, "what": what}

    assert hit(said(40, 1, "start"), said(90, 2, "start"))
    assert not hit(said(40, 1, "start"), said(45, 1, "end"), said(90, 2, "start"))
    assert not hit(said(40, 3, "start"), said(90, 2, "start"))
    assert not hit(said(40, 1, "start"), said(45, 2, "start"))
    # A handler in a program of its own survives the worker that had the job.
    own = said(40, 7, "start") | {"worker": 1}
    assert hit(own, said(60, 7, "end"), said(90, 8, "start"))
    assert not hit(own, said(45, 7, "end"), said(90, 8, "start"))
    orphan = said(60, 7, "start") | {"worker": 0}
    assert hit(orphan, said(70, 7, "end"), said(90, 8, "start"))
    assert not hit(said(40, 7, "start") | {"worker": 0}, said(90, 8, "start"))
