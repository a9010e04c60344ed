"""The verdict of the engine `disk`: what no image held is no pass, and a doubt is no violation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import targets
from killproof_chaos.engines import disk_words
from killproof_chaos.engines.disk import in_rounds, sampled
from killproof_chaos.engines.disk_check import Broken, Outcome, Told
from killproof_chaos.engines.disk_client import operations
from killproof_chaos.engines.disk_model import Tape, World
from killproof_chaos.engines.disk_policy import Policy
from killproof_chaos.engines.disk_pool import Image
from killproof_chaos.engines.disk_record import RENAME_EXCHANGE, Recording, unmodelled
from killproof_chaos.engines.disk_verdict import Case, Findings, Options, obligations, verdict
from killproof_chaos.shim.calls import File, Kind
from killproof_chaos.shim.log import Begin, FileKey, Note
from killproof_evidence.contract import Contract
from killproof_evidence.store import Store

NOTE = Note(seq=0, slot=0, pid=1, thread=1, time_ns=0, text=b'{"f": "enqueue", "job": 1}')
EVERYTHING = {"P1": 1, "P6": 1, "P7": 1, "P12": 1, "P13": 1, "P14": 1, "P16": 1}


def image(**changes: Any) -> Image:
    outcome = Outcome(
        unhonoured=changes.pop("unhonoured", ()), broken=changes.pop("broken", ()), opens=True,
        jobs=1, checked=changes.pop("checked", EVERYTHING),
    )  # fmt: skip
    return Image(
        step=0, policy=Policy.DROP, world=World.HAPPENED, digest=b"1", pending=1, notes=1,
        outcome=outcome, opened=True, **changes,
    )  # fmt: skip


def judged(place: Path, *images: Image, contract: Contract | None = None, **changes: Any) -> Any:
    """Return the verdict on these images, nothing being owed."""
    target: Any = targets.load("killproof")
    if contract is not None:
        target.contract = contract
    findings = Findings()
    for one in images:
        findings.take(one)
    step: Any = Begin(
        seq=0, slot=0, pid=1, thread=1, time_ns=0, call=1, number=1, kind=Kind.WRITE,
        file=File.WAL, key=FileKey(1, 1, 1), path="", target="", at=0, length=0, flags=0, data=b"",
    )  # fmt: skip
    recording = Recording(
        root="/q", database="q.db", records=[NOTE], copies=[], kills=[], names={}, problems=[]
    )
    told = (Told(f="enqueue", job="1"),)
    tape = Tape(initial={}, steps=(step,), notes=(NOTE,), unended=0)
    facts = disk_words.Facts(recording=recording, tape=tape, told=told)
    options = Options(target="killproof", points=None, policies=tuple(Policy), seed=1, jobs=20)
    case = Case(options=options, target=target, findings=findings, facts=facts, owed={})
    return verdict(replace(case, **changes), Store(place), [])


def test_images_that_honour_everything_pass(tmp_path: Path) -> None:
    found = judged(tmp_path, image())

    assert (found["verdict"], found["unknown_because"]) == ("pass", [])


def test_a_note_that_is_not_honoured_violates_p1_and_names_its_job(tmp_path: Path) -> None:
    found = judged(tmp_path, image(unhonoured=(0,)))

    assert found["verdict"] == "violated"
    assert found["properties"]["P1"]["witnesses"][0]["job"] == "1"


def test_a_note_that_was_written_after_the_cut_is_not_lost(tmp_path: Path) -> None:
    assert judged(tmp_path, image(unhonoured=(1,)))["verdict"] == "pass"


def test_a_broken_promise_that_was_not_made_is_no_violation(tmp_path: Path) -> None:
    contract = Contract(promises={"P1": "power", "P16": True})
    broken = (Broken(promise="P6", job=None, story="twice"),)

    assert judged(tmp_path, image(broken=broken))["verdict"] == "violated"
    assert judged(tmp_path, image(broken=broken), contract=contract)["verdict"] == "pass"


@pytest.mark.parametrize("promise", ["P6", "P12", "P13"])
def test_a_promise_of_which_no_image_held_a_case_is_unknown(tmp_path: Path, promise: str) -> None:
    found = judged(tmp_path, image(checked={**EVERYTHING, promise: 0}))

    assert found["verdict"] == "unknown"
    assert found["unknown_because"] == [f"{promise}: no image held a case of it"]


def test_a_log_that_is_not_the_whole_truth_proves_no_violation(tmp_path: Path) -> None:
    found = judged(tmp_path, image(unhonoured=(0,)), doubts=["a write is missing"])

    assert (found["verdict"], found["unknown_because"]) == ("unknown", ["a write is missing"])


def test_an_obligation_that_was_missed_is_unknown(tmp_path: Path) -> None:
    found = judged(tmp_path, image(), owed={"a process was killed": False})

    assert found["verdict"] == "unknown"
    assert found["coverage"] == {
        "obliged": 1, "hit": 0, "missed": ["obligation missed: a process was killed"]
    }  # fmt: skip


@pytest.mark.parametrize(("points", "owes"), [({"ack.synced"}, True), ({"handler.end"}, False)])
def test_answers_to_workers_are_owed_only_where_the_workers_tell_them(
    points: set[str], owes: bool
) -> None:
    target: Any = targets.load("minimal")
    target.sync_points = frozenset(points)
    recording = Recording(
        root="/q", database="q.db", records=[], copies=[], kills=[], names={}, problems=[]
    )
    tape = Tape(initial={}, steps=(), notes=(), unended=0)
    facts = disk_words.Facts(recording=recording, tape=tape, told=())
    owed = obligations(target, facts, Findings())

    told = {"a claim was acknowledged", "an ack was acknowledged", "a nack was acknowledged"}
    told.add("an effect shared the transaction of its ack")
    assert told | {"a job went to the dead letters"} <= owed.keys() or not owes
    assert not told & owed.keys() or owes
    assert "an enqueue was acknowledged" in owed


@pytest.mark.parametrize(("key", "met"), [("key-1", True), (None, False)])
def test_a_key_that_was_refused_was_asked_for_twice(key: str | None, met: bool) -> None:
    refused = json.dumps({"f": "refused enqueue", "asked": {"id": "j1", "key": key}})
    recording = Recording(
        root="/q", database="q.db", records=[], copies=[], kills=[], names={}, problems=[]
    )
    notes = (NOTE, replace(NOTE, text=refused.encode()))
    tape = Tape(initial={}, steps=(), notes=notes, unended=0)
    facts = disk_words.Facts(recording=recording, tape=tape, told=())

    owed = obligations(targets.load("minimal"), facts, Findings())

    assert owed["a key was enqueued twice"] is met


def test_a_contract_that_promises_nothing_judgeable_is_unknown(tmp_path: Path) -> None:
    contract = Contract(promises={"P1": "process", "P17": True})
    found = judged(tmp_path, image(unhonoured=(0,)), contract=contract)

    assert found["verdict"] == "unknown"
    assert found["unknown_because"] == ["the contract promises nothing that this engine judges"]


def test_what_the_target_does_not_tell_is_not_judged(tmp_path: Path) -> None:
    contract = Contract(promises={"P1": "power", "P6": "key", "P7": True})
    found = judged(tmp_path, image(), contract=contract)["properties"]

    assert [found[name]["verdict"] for name in ("P6", "P7")] == ["not_judged"] * 2


def test_the_first_points_are_spread_over_the_whole_run() -> None:
    points = [(World.HAPPENED, step) for step in range(100)]
    first = [step for _, step in in_rounds(points)[:7]]

    assert sorted(in_rounds(points)) == points
    assert first == sorted(first)
    assert first[-1] > 90


def test_few_points_are_spread_from_the_first_to_the_last() -> None:
    tape = Tape(initial={}, steps=(None,) * 100, notes=(), unended=0)  # type: ignore[arg-type]

    assert list(sampled(tape, 3)) == [0, 50, 99]
    assert len(sampled(tape, None)) == 100


def test_the_same_seed_gives_the_same_jobs_and_every_kind_of_them() -> None:
    lists, same = (operations(1, 2, 20, cancels=True, replays=True, tables=True) for _ in range(2))
    jobs = [op.job for mine in lists for op in mine if op.job is not None]

    assert lists == same
    assert {op.f for mine in lists for op in mine} == {"enqueue", "cancel", "replay"}
    assert {"raise", "permanent"} <= {job.script[0] for job in jobs}
    assert {"log", "table"} == {job.sink for job in jobs}
    assert any(job.snooze for job in jobs)
    assert max(sum(job.key == one.key for job in jobs) for one in jobs if one.key) == 2


@pytest.mark.parametrize(
    ("kind", "file", "flags", "path", "word"),
    [
        (Kind.OPEN, File.WAL, 0o10000, "/q/a", "O_DSYNC"),
        (Kind.RENAME, File.DIRECTORY, 0, "/q/a", "folders"),
        (Kind.RMDIR, File.DIRECTORY, 0, "/q/a", "folders"),
        (Kind.RENAME, File.OTHER, RENAME_EXCHANGE, "/q/a", "exchanged"),
        (Kind.LINK, File.OTHER, 0, "/elsewhere/a", "another folder"),
        (Kind.ALLOCATE, File.DATABASE, 3, "", "holes"),
    ],
)
def test_a_call_that_the_model_cannot_rebuild_is_named(
    kind: Kind, file: File, flags: int, path: str, word: str
) -> None:
    call = Begin(
        seq=0, slot=0, pid=1, thread=1, time_ns=0, call=1, number=1, kind=kind, file=file,
        key=FileKey(1, 1, 1), path=path, target="", at=0, length=0, flags=flags, data=b"",
    )  # fmt: skip

    assert word in str(unmodelled(call, "/q"))
    assert unmodelled(replace(call, kind=Kind.WRITE), "/q") is None
