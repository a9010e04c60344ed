"""What is held against an image: each clause trips on the smallest file that breaks it."""

import json
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos.engines import disk_check
from killproof_chaos.engines.disk_check import (
    Checker,
    Outcome,
    Row,
    Told,
    keys,
    moves,
    read_told,
    sums,
    whole,
)
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.targets import load
from killproof_evidence.contract import Contract
from killproof_evidence.evidence import payload_digest
from killproof_evidence.target import JobRow

PAYLOAD = {"id": "j1", "sink": "table"}


INSERT = """INSERT INTO job (id, kind, payload, state, priority, due_ms, max_attempts, fence,
                             deadline_ns)
            VALUES (1, 'a', ?1, ?2, 5, 0, 5, 1, iif(?2 = 'leased', 1, NULL))"""
EFFECT = "INSERT INTO chaos_effect (job, attempt, fence) VALUES ('j1', 1, 1)"


#: Made once for each: SQLite waits for the disk when it makes a file.
IMAGES: dict[tuple[str, int], bytes] = {}


def image_of(place: Path, state: str, *, effects: int = 0) -> dict[str, bytes]:
    """Return a file of `minimal` that holds job 1 in this state, as an image."""
    if (state, effects) not in IMAGES:
        load("minimal").prepare(place)
        with closing(sqlite3.connect(place / "queue.db")) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute(EFFECT_TABLE)
            db.execute(INSERT, (json.dumps(PAYLOAD), state))
            for _ in range(effects):
                db.execute(EFFECT)
            db.commit()
        IMAGES[state, effects] = (place / "queue.db").read_bytes()
    return {"queue.db": IMAGES[state, effects]}


def killproof_image(place: Path, change: str = "") -> dict[str, bytes]:
    """Return a file of killproof's that holds job 1, changed by a statement."""
    if not (place / "queue.db").exists():
        with closing(load("killproof").client(place)) as client:
            client.enqueue("a", PAYLOAD)
        with closing(sqlite3.connect(place / "queue.db")) as db:
            db.execute(EFFECT_TABLE)
            db.commit()
    with closing(sqlite3.connect(place / "queue.db")) as db:
        db.execute(change)
        db.commit()
    return {"queue.db": (place / "queue.db").read_bytes()}


def check(place: Path, told: Iterable[Told], state: str, *, effects: int = 0) -> Outcome:
    (place / "made").mkdir()
    image = image_of(place / "made", state, effects=effects)
    return Checker(load("minimal"), place / "image", list(told), database="queue.db").check(image)


@pytest.mark.parametrize(
    ("told", "honoured"),
    [
        (Told(f="enqueue", job="1", asked={"digest": payload_digest(PAYLOAD)}), True),
        (Told(f="enqueue", job="1", asked={"digest": "other"}), False),
        (Told(f="enqueue", job="9"), False),
        (Told(f="claim", job="1", fence=1), True),
        (Told(f="claim", job="1", fence=2), False),
        (Told(f="ack", job="1", fence=1), False),
        (Told(f="nack", job="1", fence=1), False),
        (Told(f="release", job="1", fence=1), False),
        (Told(f="refused", job="1", fence=1), False),
        (Told(f="refused", job="1", fence=0), True),
        (Told(f="get", job="1", fence=1, value={"state": "leased"}), True),
        (Told(f="get", job="1", fence=1, value={"state": "succeeded"}), False),
        (Told(f="get", job="1", fence=2, value={"state": "available"}), False),
        (Told(f="get", job="9", fence=0, value={"state": "available"}), False),
        (Told(f="cancel", job="1", value=None), True),
        (Told(f="cancel", job="1", value=True), False),
        (Told(f="replay", job="1", value=True), True),  # This queue keeps no sign of a replay.
    ],
)
def test_an_image_honours_a_note_or_says_that_it_does_not(
    place: Path, told: Told, honoured: bool
) -> None:
    outcome = check(place, [told], "leased")

    assert outcome.opens
    assert outcome.unhonoured == (() if honoured else (0,))


@pytest.mark.parametrize(("state", "honoured"), [("succeeded", True), ("leased", False)])
def test_a_job_that_a_queue_may_remove_when_it_is_opened_is_not_lost(
    place: Path, state: str, honoured: bool
) -> None:
    tidy = load("minimal")
    edges = {**tidy.contract.edges, "succeeded": ("deleted",)}
    tidy.contract = replace(tidy.contract, edges=edges)
    told = Told(f="ack", job="1", fence=1)
    checker = Checker(tidy, place / "image", [told], database="queue.db")

    assert checker._honours(told, Row(id="1", state=state), {}) is honoured


def test_a_file_that_does_not_open_honours_nothing(place: Path) -> None:
    told = [Told(f="enqueue", job="1")]
    checker = Checker(load("minimal"), place / "image", told, database="queue.db")
    outcome = checker.check({"queue.db": b"no database"})

    assert not outcome.opens
    assert outcome.unhonoured == (0,)
    assert [broken.promise for broken in outcome.broken] == ["P16"]


def test_a_succeeded_job_without_its_row_in_the_table_breaks_p6(place: Path) -> None:
    outcome = check(place, [], "succeeded")

    assert [broken.promise for broken in outcome.broken] == ["P6"]


def test_an_effect_in_the_table_without_the_ack_breaks_p6(place: Path) -> None:
    outcome = check(place, [], "available", effects=1)

    assert [broken.promise for broken in outcome.broken] == ["P6"]


def test_an_effect_that_is_in_the_table_twice_breaks_p6(place: Path) -> None:
    outcome = check(place, [], "succeeded", effects=2)

    assert [broken.promise for broken in outcome.broken] == ["P6"]


def test_an_effect_in_the_table_without_any_job_breaks_p6(place: Path) -> None:
    path = place / "queue.db"
    image_of(place, "succeeded", effects=1)
    path.write_bytes(IMAGES["succeeded", 1])
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM job")
        db.commit()
    image = {"queue.db": path.read_bytes()}
    outcome = Checker(load("minimal"), place / "image", [], database="queue.db").check(image)

    assert [(broken.promise, broken.job) for broken in outcome.broken] == [("P6", None)]


def test_a_replay_that_left_no_sign_is_not_honoured(place: Path) -> None:
    told = [Told(f="enqueue", job="1"), Told(f="replay", job="1", value=True)]
    checker = Checker(load("killproof"), place / "image", told, database="queue.db")

    assert checker.check(killproof_image(place)).unhonoured == (1,)
    forgiven = "UPDATE job SET deliveries = 1, fence = 1, forgiven = 1, failures = 1"
    assert checker.check(killproof_image(place, forgiven)).unhonoured == ()


def test_an_image_from_before_the_queue_was_made_may_be_made_again(place: Path) -> None:
    checker = Checker(load("minimal"), place / "image", [], database="queue.db")

    assert not checker.check({}, prepared=True).opens  # The table of effects is not there.
    assert checker.check({}, prepared=False).opens


def test_a_fault_of_the_harness_is_not_told_as_a_fault_of_the_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_rows: object) -> None:
        raise KeyError("the harness's own")

    monkeypatch.setattr(disk_check, "keys", fail)
    with pytest.raises(KeyError):
        check(place, [], "available")


def test_an_image_that_found_no_room_says_nothing_of_the_queue(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_check, "ROOM_BYTES_MIN", 1 << 60)
    checker = Checker(load("minimal"), place / "image", [], database="queue.db")

    with pytest.raises(OSError, match="no room for images"):
        checker.check({"queue.db": b"no database"})


def test_a_target_that_never_opens_an_image_is_not_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load("minimal")
    monkeypatch.setattr(target, "client", lambda _place: threading.Event().wait())
    monkeypatch.setattr(disk_check, "IMAGE_SECONDS_MAX", 0.01)
    outcome = Checker(target, place / "image", [], database="queue.db").check({})

    assert not outcome.opens
    assert "it is not open after" in outcome.broken[0].story


def test_a_promise_is_checked_only_where_an_image_holds_a_case_of_it(place: Path) -> None:
    outcome = check(place, [], "available")

    assert [outcome.checked.get(name, 0) for name in ("P6", "P12", "P13", "P14")] == [0] * 4
    assert outcome.checked["P7"] == 1


def test_a_whole_image_breaks_nothing(place: Path) -> None:
    outcome = check(place, [Told(f="ack", job="1", fence=1)], "succeeded", effects=1)

    assert (outcome.unhonoured, outcome.broken, outcome.jobs) == ((), (), 1)


def test_a_state_that_no_edge_leads_to_breaks_p7(place: Path) -> None:
    outcome = check(place, [], "melted")

    assert [broken.promise for broken in outcome.broken] == ["P7"]


def test_recovery_along_no_allowed_edge_breaks_p7() -> None:
    before, after = (
        {"1": Row(id="1", state="succeeded")},
        {"1": Row(id="1", state="available")},
    )
    found = list(moves(before, after, load("minimal").contract))

    assert [broken.promise for broken in found] == ["P7"]


def test_recovery_that_loses_a_job_or_counts_wrong_breaks_p14() -> None:
    row = {"1": Row(id="1", state="available")}

    contract = Contract(edges={"succeeded": ("deleted",)})
    done = {"2": Row(id="2", state="succeeded")}

    assert [broken.promise for broken in sums(row, {}, None, contract)] == ["P14"]
    assert [broken.promise for broken in sums(row, row | done, None, contract)] == ["P14"]
    assert [broken.promise for broken in sums(row, row, {"available": 2}, contract)] == ["P14"]
    assert list(sums(row, row, {"available": 1, "dead": 0}, contract)) == []
    assert list(sums(row | done, row, None, contract)) == []  # It tidies up when it is opened.
    assert [broken.promise for broken in sums(done, {}, None, Contract())] == ["P14"]


def test_two_live_jobs_of_one_key_break_p12_and_an_ended_one_does_not() -> None:
    rows = [Row(id=str(n), state=state, key="k") for n, state in enumerate(("leased", "available"))]
    ended = Row(id="3", state="succeeded", key="k")

    assert [broken.promise for broken in keys({row.id: row for row in rows})] == ["P12"]
    assert list(keys({row.id: row for row in (rows[0], ended)})) == []


def test_a_file_that_sqlite_does_not_find_whole_breaks_p16(place: Path) -> None:
    with closing(sqlite3.connect(place / "q.db", isolation_level=None)) as db:
        db.executescript("CREATE TABLE a (b); INSERT INTO a VALUES (1); CREATE INDEX c ON a (b)")
        db.executescript("PRAGMA writable_schema = 1")
        db.execute("UPDATE sqlite_schema SET sql = 'CREATE INDEX c ON a (b) WHERE b > 5'"
                   " WHERE name = 'c'")  # fmt: skip
    with closing(sqlite3.connect(place / "q.db", isolation_level=None)) as db:
        assert [broken.promise for broken in whole(db)] == ["P16"]


def test_a_reference_without_its_row_breaks_p16(place: Path) -> None:
    with closing(sqlite3.connect(place / "q.db", isolation_level=None)) as db:
        db.executescript("CREATE TABLE a (id INTEGER PRIMARY KEY); CREATE TABLE b (a REFERENCES a)")
        db.execute("INSERT INTO b VALUES (7)")

        assert ["foreign_key_check" in broken.story for broken in whole(db)] == [True]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"payload": {"id": "other"}}, "another payload"),
        ({"error": None}, "no error"),
        ({"history": ()}, "keeps 0"),
    ],
)
def test_a_dead_job_that_lacks_something_breaks_p13(
    place: Path, change: dict[str, Any], word: str
) -> None:
    target: Any = load("killproof")
    job = JobRow(
        id=1, kind="a", state="dead", attempts=1, payload=PAYLOAD, error="why",
        history=({"fence": 1},),
    )  # fmt: skip
    told = [Told(f="enqueue", job="1", asked={"digest": payload_digest(PAYLOAD)})]
    checker = Checker(target, place / "image", told, database="queue.db")
    image = killproof_image(place, "UPDATE job SET state = 'dead', finished_ms = 1")

    def promises(row: JobRow) -> list[str]:
        target.snapshot = lambda _place: [row]
        return [broken.story for broken in checker.check(image).broken if broken.promise == "P13"]

    assert promises(job) == []
    assert [word in story for story in promises(replace(job, **change))] == [True]


def test_a_note_that_is_no_answer_of_the_queue_is_left_out() -> None:
    assert read_told(b"ack 7") is None
    assert read_told(b'{"f": "claim", "job": null}') is None
    assert read_told(b'{"f": "claim", "job": 7, "fence": 2}') == Told(f="claim", job="7", fence=2)
