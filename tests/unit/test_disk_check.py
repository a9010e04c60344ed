"""What is held against an image: each clause trips on the smallest file that breaks it."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from killproof_chaos.engines.disk_check import Checker, Outcome, Row, Told, moves, read_told, sums
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.targets import load
from killproof_evidence.evidence import payload_digest

PAYLOAD = {"id": "j1", "sink": "table"}


INSERT = """INSERT INTO job (id, kind, payload, state, priority, due_ms, max_attempts, fence,
                             deadline_ns)
            VALUES (1, 'a', ?1, ?2, 5, 0, 5, 1, iif(?2 = 'leased', 1, NULL))"""
EFFECT = "INSERT INTO chaos_effect (job, attempt, fence) VALUES ('j1', 1, 1)"


def image_of(place: Path, state: str, *, effects: int = 0) -> dict[str, bytes]:
    """Make a file of `minimal` that holds job 1 in this state, and return it as an image."""
    load("minimal").prepare(place)
    with closing(sqlite3.connect(place / "queue.db")) as db:
        db.execute(EFFECT_TABLE)
        db.execute(INSERT, (json.dumps(PAYLOAD), state))
        for _ in range(effects):
            db.execute(EFFECT)
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
        (Told(f="cancel", job="1", value=None), True),
    ],
)
def test_an_image_honours_a_note_or_says_that_it_does_not(
    place: Path, told: Told, honoured: bool
) -> None:
    outcome = check(place, [told], "leased")

    assert outcome.opens
    assert outcome.unhonoured == (() if honoured else (0,))


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

    assert [broken.promise for broken in sums(row, {}, None)] == ["P14"]
    assert [broken.promise for broken in sums(row, row, lambda: {"available": 2})] == ["P14"]
    assert list(sums(row, row, lambda: {"available": 1, "dead": 0})) == []


def test_a_note_that_is_no_answer_of_the_queue_is_left_out() -> None:
    assert read_told(b"ack 7") is None
    assert read_told(b'{"f": "claim", "job": null}') is None
    assert read_told(b'{"f": "claim", "job": 7, "fence": 2}') == Told(f="claim", job="7", fence=2)
