"""What the engine `crash` makes of what it saw: points, contradictions, the map."""

import pytest

from killproof_chaos import targets
from killproof_chaos.crash_command import choose
from killproof_chaos.engines.crash_lane import word_of
from killproof_chaos.engines.crash_points import (
    NOTHING,
    Counted,
    Point,
    halves,
    points_of,
    told_wrong,
)
from killproof_chaos.summary import headline
from killproof_evidence.target import Definite, Indefinite

CALLS = [("lock", "shm"), ("write", "wal"), ("unlock", "shm")]
CALM = {"told": "ok", "error": "", "next": "ok", "next_error": "", "changes": 3}


def points(*, errors: bool) -> list[Point]:
    counted = Counted(operation="ack", calls=CALLS, changes_full=3)
    return points_of(counted, errors=errors)


def test_every_call_is_a_point_before_and_after() -> None:
    found = {(point.number, point.fault) for point in points(errors=False)}

    assert found == {(n, fault) for n in (1, 2, 3) for fault in ("before", "after")}


def test_a_call_fails_only_in_ways_that_the_kernel_has() -> None:
    failed = [p for p in points(errors=True) if p.fault not in ("before", "after")]

    assert {p.fault for p in failed if p.kind == "write"} == {"EIO", "ENOSPC", "EINTR", "short"}
    assert {p.fault for p in failed if p.kind == "lock"} == {"EIO", "EINTR"}
    assert {p.fault for p in failed if p.kind == "unlock"} == set()


def test_a_point_names_its_operation_and_its_call() -> None:
    point = Point(operation="ack", number=2, kind="write", file="wal", fault="after")

    assert point.words == "killed after call 2 of ack (write wal)"
    assert point.name == "ack-2-after"


def told(**changes: object) -> list[tuple[str, str]]:
    return told_wrong(CALM | changes, operation="ack", base=2, full=3)


def test_a_caller_who_was_told_the_truth_is_no_violation() -> None:
    assert told() == []
    assert told(told="definite", changes=2) == []
    assert told(told="indefinite", changes=2) == told(told="indefinite", changes=3) == []


def test_an_operation_told_ok_that_the_file_does_not_have_is_lost() -> None:
    ((number, story),) = told(changes=2)

    assert number == "P1"
    assert "ack was told ok" in story


def test_an_operation_refused_for_good_that_the_file_has_is_a_phantom() -> None:
    ((number, _),) = told(told="definite", changes=3)

    assert number == "P2"


def test_an_operation_that_said_it_did_nothing_must_have_done_nothing() -> None:
    assert told(told=NOTHING, changes=2) == []
    assert [number for number, _ in told(told=NOTHING, changes=3)] == ["P2"]


def test_the_error_of_a_driver_must_not_reach_a_caller() -> None:
    ((number, story),) = told(told="raw", error="OperationalError: disk I/O error", changes=2)

    assert number == "P16"
    assert "OperationalError" in story


def test_the_error_of_a_driver_must_not_reach_the_next_caller_either() -> None:
    ((number, story),) = told(next="raw", next_error="OSError: 5")

    assert (number, "next" in story) == ("P16", True)


def test_a_failed_rollback_must_not_reach_a_caller() -> None:
    error = "StorageFailed: cannot rollback - no transaction is active"

    assert [number for number, _ in told(told="definite", error=error, changes=2)] == ["P16"]


def test_nothing_is_said_of_an_operation_that_changes_no_job() -> None:
    assert told_wrong(CALM | {"told": "definite"}, operation="extend", base=3, full=3) == []


def test_a_close_that_could_not_give_back_a_lease_has_promised_nothing() -> None:
    assert told_wrong(CALM | {"changes": 2}, operation="close", base=2, full=3) == []


def test_half_a_transaction_in_the_file_is_a_violation() -> None:
    assert halves(2, base=2, full=5) == halves(5, base=2, full=5) == []
    ((number, story),) = halves(3, base=2, full=5)
    assert (number, story[:19]) == ("P14", "the file has 1 of t")


def test_errors_of_the_seam_are_told_apart_from_those_of_the_driver() -> None:
    errors = [None, Definite("no"), Indefinite("perhaps"), OSError(5, "no disk")]

    assert [word_of(error) for error in errors] == ["ok", "definite", "indefinite", "raw"]


def test_an_operation_that_the_target_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(ValueError, match=r"'cancel' is none of minimal: use open_and_migrate"):
        choose(targets.load("minimal"), ["cancel"])


def test_the_operations_of_killproof_are_all_that_the_engine_knows() -> None:
    found = choose(targets.load("killproof"), None)

    assert {"open_and_migrate", "enqueue_many", "completing", "reap", "promote", "close"} < {*found}
    assert len(found) == 31


def test_the_headline_says_in_how_many_points_nothing_was_found() -> None:
    record = {
        "target": "minimal",
        "verdict": "pass",
        "counts": {"kills": 12, "errors": 3},
        "jobs": {},
        "operations": [{}],
        "seconds": 2.2,
    }

    assert headline(record) == (
        "minimal: no violation found in 12 kills and 3 failed calls of 1 operation, 2 s"
    )
