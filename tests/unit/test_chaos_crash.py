"""What the engine `crash` makes of what it saw: points, contradictions, the map."""

from pathlib import Path

import pytest

from killproof_chaos import targets
from killproof_chaos.crash_command import choose, crash
from killproof_chaos.engines import crash_life, crash_state
from killproof_chaos.engines.crash import Engine
from killproof_chaos.engines.crash_points import (
    NOTHING,
    Call,
    Counted,
    Point,
    failed_checkers,
    halves,
    in_order,
    most_telling_first,
    next_refused,
    outcome_of,
    points_of,
    told_wrong,
    undisturbed_wrong,
)
from killproof_chaos.engines.crash_process import Budget, Ended, TargetFailed, word_of
from killproof_chaos.engines.crash_strike import Strike
from killproof_chaos.shim.calls import Action
from killproof_chaos.summary import headline
from killproof_evidence.contract import Contract
from killproof_evidence.store import Store
from killproof_evidence.target import Definite, Indefinite, JobRow

CALLS = [Call(kind="lock", file="shm"), Call(kind="write", file="wal", number=2),
         Call(kind="unlock", file="shm", number=3)]  # fmt: skip
BASE, FULL = ["first: state leased"], ["first: state succeeded"]
CALM = {"told": "ok", "error": "", "next": "ok", "next_error": "", "state": FULL}


def points(*, errors: bool) -> list[Point]:
    return points_of(Counted(operation="ack", calls=CALLS, full=FULL), errors=errors)


def test_every_call_is_a_point_before_and_after() -> None:
    found = {(point.number, point.fault) for point in points(errors=False)}

    assert found == {(n, fault) for n in (1, 2, 3) for fault in ("before", "after")}


def test_a_call_fails_only_in_ways_that_the_kernel_has() -> None:
    failed = [p for p in points(errors=True) if p.fault not in ("before", "after")]

    assert {p.fault for p in failed if p.call.kind == "write"} == {
        "EIO",
        "ENOSPC",
        "EINTR",
        "short",
    }
    assert {p.fault for p in failed if p.call.kind == "lock"} == {"EIO", "EINTR"}
    assert {p.fault for p in failed if p.call.kind == "unlock"} == set()


def test_a_point_names_its_operation_and_its_call() -> None:
    point = Point(operation="ack", number=2, call=CALLS[1], fault="after")

    assert point.words == "killed after call 2 of ack (write wal)"
    assert point.name == "ack-2-after"


def told(**changes: object) -> list[tuple[str, str]]:
    return told_wrong(CALM | changes, operation="ack", base=BASE, full=FULL)


def test_a_caller_who_was_told_the_truth_is_no_violation() -> None:
    assert told() == []
    assert told(told="definite", state=BASE) == []
    assert told(told="indefinite", state=BASE) == told(told="indefinite", state=FULL) == []


def test_an_operation_told_ok_that_the_file_does_not_have_is_lost() -> None:
    ((number, story),) = told(state=BASE)

    assert number == "P1"
    assert "ack was told ok" in story


def test_an_operation_refused_for_good_that_the_file_has_is_a_phantom() -> None:
    ((number, _),) = told(told="definite", state=FULL)

    assert number == "P2"


def test_an_operation_that_said_it_did_nothing_must_have_done_nothing() -> None:
    assert told(told=NOTHING, state=BASE) == []
    assert [number for number, _ in told(told=NOTHING, state=FULL)] == ["P2"]


def test_the_error_of_a_driver_must_not_reach_a_caller() -> None:
    ((number, story),) = told(told="raw", error="OperationalError: disk I/O error", state=BASE)

    assert number == "P16"
    assert "OperationalError" in story


def test_the_error_of_a_driver_must_not_reach_the_next_caller_either() -> None:
    ((number, story),) = told(next="raw", next_error="OSError: 5")

    assert (number, "next" in story) == ("P16", True)


def test_a_failed_rollback_must_not_reach_a_caller() -> None:
    error = "StorageFailed: cannot rollback - no transaction is active"

    assert [number for number, _ in told(told="definite", error=error, state=BASE)] == ["P16"]


def test_nothing_is_said_of_an_operation_that_changes_no_job() -> None:
    assert told_wrong(CALM | {"told": "definite"}, operation="get", base=FULL, full=FULL) == []


def test_a_close_that_could_not_give_back_a_lease_has_promised_nothing() -> None:
    assert told_wrong(CALM | {"state": BASE}, operation="close", base=BASE, full=FULL) == []


def test_half_a_transaction_in_the_file_is_a_violation() -> None:
    assert halves(BASE, base=BASE, full=FULL) == halves(FULL, base=BASE, full=FULL) == []
    ((number, story),) = halves([*BASE, "next: state available"], base=BASE, full=FULL)
    assert number == "P14"
    assert "has next: state available" in story


def refused(word: str, text: str, **point: str) -> list[tuple[str, str]]:
    found = {"next": word, "next_error": text}
    where = {"fault": "EIO", "kind": "write"} | point
    return next_refused(found, fault=where["fault"], kind=where["kind"], stopped=False)


def test_only_a_failed_sync_may_stop_the_operation_after_it() -> None:
    assert refused("ok", "") == []
    assert refused("definite", "no", kind="fdatasync") == []
    assert [number for number, _ in refused("definite", "no")] == ["P16"]
    assert [n for n, _ in refused("indefinite", "no", fault="ENOSPC", kind="fsync")] == ["P16"]


def test_an_operation_may_be_refused_once_if_the_one_after_it_works() -> None:
    """SQLite opens to read only after an error; a queue that opens anew has then healed itself."""
    found = {"next": "definite", "next_error": "check the rights", "again": "ok"}

    assert next_refused(found, fault="EIO", kind="open", stopped=False) == []
    found["again"] = "definite"
    assert len(next_refused(found, fault="EIO", kind="open", stopped=False)) == 1


def test_a_queue_that_stopped_itself_must_name_the_way_back() -> None:
    found = {"next": "definite", "next_error": "it is stopped: run doctor --repair"}

    assert next_refused(found, fault="EINTR", kind="fdatasync", stopped=True) == []
    found["next_error"] = "it is stopped"
    ((number, story),) = next_refused(found, fault="EIO", kind="fdatasync", stopped=True)
    assert (number, "names no way back" in story) == ("P16", True)


def test_an_operation_that_does_not_do_what_it_is_for_is_never_a_pass() -> None:
    def why(told: str, error: str = "", calls: int = 3) -> str:
        found = {"told": told, "error": error}
        return undisturbed_wrong(found, tells="ok", calls=calls, operation="extend")

    assert why("ok") == ""
    assert "its caller was told raw (TypeError: no)" in why("raw", "TypeError: no")
    assert "its caller was told nothing" in why(NOTHING)
    assert "makes no file call" in why("ok", calls=0)


def strike(status: int, *, hits: int = 1, call: Call = CALLS[1], after: bool = False) -> Strike:
    ended = Ended(pid=7, status=status)
    dead = [7] if ended.killed else []
    return Strike(ended=ended, hits=hits, struck=[call] * hits, after=[after] * hits, calls=[],
                  dead=dead)  # fmt: skip


def asked(action: Action = Action.SIGNAL_BEFORE) -> dict[str, object]:
    return {"mode": "kill", "operation": "ack", "process": 0, "number": 2, "kind": "write",
            "file": "wal", "action": int(action)}  # fmt: skip


def test_a_kill_counts_only_when_shim_record_and_wait_status_agree() -> None:
    assert strike(9).missed(asked()) == ""
    assert strike(9, after=True).missed(asked(Action.SIGNAL_AFTER)) == ""

    assert "status 0" in strike(0, hits=0).missed(asked()), "it was never struck"
    assert "SIGKILL" in strike(9, hits=0).missed(asked()), "somebody else killed it"
    assert "no kill" in strike(0).missed(asked()), "the shim struck, and it lived"
    assert "call 2, lock shm" in strike(9, call=Call(kind="lock", file="shm", number=2)).missed(
        asked()
    )
    assert "other side" in strike(9, after=True).missed(asked())


def answer(**more: object) -> dict[str, object]:
    return {"reached": True, "broken": [], "unsure": [], "properties": {}} | more


def test_a_checker_that_threw_at_a_point_makes_it_unknown() -> None:
    thrown = {"verdict": "unknown", "checked": 0, "reason": "the checker failed: KeyError(1)"}
    calm = {"verdict": "unknown", "checked": 0, "reason": "no handler started"}
    point = points(errors=False)[0]

    assert outcome_of(point, answer(properties={"P6": calm})).verdict == "pass"
    outcome = outcome_of(point, answer(properties={"P6": thrown}))
    assert (outcome.verdict, outcome.reason) == (
        "unknown",
        "P6: the checker failed: KeyError(1)",
    )
    assert failed_checkers({"P6": thrown, "P8": calm}) == [outcome.reason]


def test_a_point_that_was_not_reached_is_no_pass_whatever_else_was_seen() -> None:
    outcome = outcome_of(points(errors=False)[0], {"reached": False, "why": "not reached"})

    assert (outcome.verdict, outcome.reason) == ("unknown", "not reached")


def test_what_the_engine_sees_itself_is_a_violation_before_what_is_unsure() -> None:
    outcome = outcome_of(
        points(errors=False)[0], answer(broken=[["P1", "it is gone"]], unsure=["a torn line"])
    )

    assert (outcome.verdict, outcome.reason) == ("violated", "P1: it is gone")


def test_a_state_is_the_same_in_two_runs_but_for_a_deadline_that_has_moved() -> None:
    before = {"first": {"state": "leased", "deadline_ns": 5}}
    extended = {"first": {"state": "leased", "deadline_ns": 9}}
    anew = {"next": {"state": "available"}} | before

    assert crash_state.signature(before, before) == ["first: state leased"]
    assert crash_state.signature(before, extended) == ["first: state leased, deadline_ns moved"]
    assert crash_state.signature(before, anew) == ["first: state leased"], "that job is another's"
    assert crash_state.difference(["a"], ["b"]) == "has a; lacks b"


def test_the_state_of_a_target_in_any_language_is_what_it_tells_of_its_jobs() -> None:
    rows = [JobRow(id=3, kind="k", state="dead", attempts=2, payload={"id": "first"})]

    assert crash_state.signature({}, crash_state.of_snapshot(rows)) == [
        "first: state dead, attempts 2"
    ]


def test_a_process_that_was_stopped_for_long_still_gets_its_passes() -> None:
    budget = Budget(0.05, pass_seconds_max=0.02)
    budget._latest -= 100.0  # As if it had not been scheduled for 100 s.

    assert budget.is_left()


def test_errors_of_the_seam_are_told_apart_from_those_of_the_driver() -> None:
    errors = [None, Definite("no"), Indefinite("perhaps"), OSError(5, "no disk")]

    assert [word_of(error) for error in errors] == ["ok", "definite", "indefinite", "raw"]


def test_an_operation_that_the_target_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(ValueError, match=r"'cancel' is none of minimal: use open_and_migrate"):
        choose(targets.load("minimal"), ["cancel"])


def test_a_run_that_ends_early_looks_at_the_ends_and_the_middle_of_an_operation_first() -> None:
    calls = [Call(kind="write", file="wal") for _ in range(4)]
    points = points_of(Counted(operation="ack", calls=calls, full=None), errors=True)

    ordered = most_telling_first(points)

    assert {*ordered} == {*points}
    assert len(ordered) == len(points)
    kills = [(point.number, point.fault) for point in ordered[:4]]
    assert kills == [(1, "before"), (3, "before"), (2, "before"), (4, "before")]
    assert [point.fault for point in ordered[8:12]] == ["EIO"] * 4


def test_which_point_a_run_that_ends_early_tells_is_not_for_the_machine_to_say() -> None:
    """Two lanes answer as they get on: what ends the run is the first in order, not in time."""
    answers = iter([("c", {"n": 3}), ("a", {"n": 1}), ("d", {"n": 4}), ("b", {"n": 2})])

    assert [name for name, _ in in_order(answers, "abcd")] == ["a", "b", "c", "d"]


def test_a_sample_without_kills_has_as_many_points_as_were_asked_for(tmp_path: Path) -> None:
    """One of them is the kill that tells how the file is without the operation."""
    calls = [Call(kind="write", file="wal") for _ in range(20)]
    store = Store.create(tmp_path / "store")
    engine = Engine("minimal", ["ack"], store, print, kills=False, sample=6, seed=3)
    engine._counted["ack"] = Counted(operation="ack", calls=calls, full=None)

    faults = [point.fault for point in engine._chosen("ack")]

    assert len(faults) == 6
    assert faults[0] == "before"
    assert not {"before", "after"} & {*faults[1:]}


def test_a_run_without_kills_and_without_errors_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves nothing to do: give one of them"):
        crash("minimal", kills=False, errors=False)


def test_the_operations_of_killproof_are_all_that_the_engine_knows() -> None:
    found = choose(targets.load("killproof"), None)

    assert {"open_and_migrate", "enqueue_many", "completing", "reap", "ledger", "work"} < {*found}
    assert len(found) == 55


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


class RefusesKeys:
    """A client of a queue that refuses the key of a living job, as some do, and says so."""

    contract = Contract(promises={"P12": True})

    def __init__(self, *, refuses_all: bool = False) -> None:
        self._refuses_all = refuses_all
        self.jobs: list[str | None] = []

    def client(self, place: Path) -> "RefusesKeys":
        return self

    def enqueue(self, kind: str, payload: object, *, key: str | None = None, **_: object) -> int:
        if self._refuses_all or (key is not None and key in self.jobs):
            raise Definite("there is a job of the key")
        self.jobs.append(key)
        return len(self.jobs)

    def close(self) -> None: ...


def test_a_queue_that_refuses_the_key_of_a_living_job_takes_jobs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store")
    monkeypatch.setenv("KILLPROOF_STORE", str(store.path))
    target = RefusesKeys()

    crash_life.produce_again(target, store)

    assert target.jobs == ["once", None]
    with pytest.raises(TargetFailed):
        crash_life.produce_again(RefusesKeys(refuses_all=True), store)
