"""What is made of a run's records when the last process has ended."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import targets
from killproof_chaos.engines.finish import _write_recovery
from killproof_chaos.engines.proc import in_words
from killproof_evidence.records import read_records
from killproof_evidence.store import Store

KILL: dict[str, Any] = {
    "t": 1_000, "fault": "kill", "pid": 1, "process": "w1.1", "phase": "handler.start",
    "hit": True, "idle_peers": ["w2.1"],
}  # fmt: skip
FIRST: list[dict[str, Any]] = [
    {"t": 900, "pid": 1, "n": 1, "f": "claim", "type": "invoke"},
    {"t": 901, "pid": 1, "n": 1, "f": "claim", "type": "ok", "job": 5, "fence": 1},
]
SECOND: list[dict[str, Any]] = [
    {"t": 1_100, "pid": 2, "n": 1, "f": "claim", "type": "invoke"},
    {"t": 1_101, "pid": 2, "n": 1, "f": "claim", "type": "ok", "job": 5, "fence": 2},
]
CHANGES: list[dict[str, Any]] = [
    {"seq": 1, "job": 5, "old": None, "new": "available", "fence": 0},
    {"seq": 2, "job": 5, "old": "available", "new": "leased", "fence": 1},
    {"seq": 3, "job": 5, "old": "leased", "new": "available", "fence": 1},
    {"seq": 4, "job": 5, "old": "available", "new": "leased", "fence": 2},
]


def recovered(
    place: Path,
    *,
    faults: list[dict[str, Any]],
    first: list[dict[str, Any]] = FIRST,
    second: list[dict[str, Any]] = SECOND,
    changes: list[dict[str, Any]] = CHANGES,
) -> list[dict[str, Any]]:
    store = Store.create(place / "store")
    for path, records in (
        (store.nemesis, faults),
        (store.history_file("w1.1"), first),
        (store.history_file("w2.1"), second),
        (store.audit, changes),
    ):
        path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    _write_recovery(store)
    return [record for _, record in read_records(store.recovery) if record is not None]


def test_the_recovery_of_a_killed_holder_is_its_job_claimed_again(tmp_path: Path) -> None:
    (found,) = recovered(tmp_path, faults=[KILL])

    assert (found["job"], found["fence"], found["phase"]) == ("5", 1, "handler.start")
    assert (found["t_kill"], found["t_reclaim"]) == (1_000, 1_101)
    assert found["peers_idle"] is True


def test_a_job_that_nobody_claimed_again_is_written_down_too(tmp_path: Path) -> None:
    (found,) = recovered(tmp_path, faults=[KILL], second=[])

    assert found["t_reclaim"] is None


def test_a_holder_whose_ack_was_accepted_left_nothing_to_recover(tmp_path: Path) -> None:
    ack: dict[str, Any] = {"pid": 1, "n": 2, "f": "ack"}
    told = [ack | {"t": 902, "type": "invoke", "job": 5, "fence": 1}]
    told += [ack | {"t": 903, "type": "ok"}]

    assert recovered(tmp_path, faults=[KILL], first=FIRST + told) == []


def test_a_worker_that_was_not_killed_is_no_recovery(tmp_path: Path) -> None:
    assert recovered(tmp_path, faults=[]) == []


@pytest.mark.parametrize("fault", ["kill", "pause", "term", "handler-exit", "handler-abort"])
def test_a_peer_that_is_struck_before_it_could_take_over_was_not_idle(
    tmp_path: Path, fault: str
) -> None:
    strike = KILL | {"t": 1_050, "fault": fault, "pid": 2, "process": "w2.1", "idle_peers": []}
    found, *_ = recovered(tmp_path, faults=[KILL, strike])

    assert found["peers_idle"] is False


def test_a_queue_without_tokens_says_nothing_of_recovery(tmp_path: Path) -> None:
    ack: dict[str, Any] = {"pid": 1, "n": 2, "f": "ack"}
    told = [ack | {"t": 902, "type": "invoke", "job": 5}, ack | {"t": 903, "type": "ok"}]
    records = [{k: v for k, v in r.items() if k != "fence"} for r in (*FIRST, *told)]

    assert recovered(tmp_path, faults=[KILL], first=records, second=[]) == []


def test_a_peer_that_is_struck_later_was_idle(tmp_path: Path) -> None:
    strike = KILL | {"t": 1_200, "pid": 2, "process": "w2.1", "idle_peers": []}
    (found, *_) = recovered(tmp_path, faults=[KILL, strike])

    assert found["peers_idle"] is True


def test_a_job_that_waited_for_its_turn_says_nothing_of_recovery(tmp_path: Path) -> None:
    """Seen in a real run: a backup of priority 9, taken back at once, behind a backlog of 7 s."""
    other = {"seq": 4, "job": 6, "old": "available", "new": "leased", "fence": 1}
    (found,) = recovered(
        tmp_path, faults=[KILL], changes=[*CHANGES[:3], other, CHANGES[3] | {"seq": 5}]
    )

    assert found["peers_idle"] is False


def test_a_job_that_waited_for_its_turn_was_recovered_when_it_was_there(tmp_path: Path) -> None:
    """Else a reap that comes ten seconds late would go unseen whenever others went first."""
    wall_ns = time.time_ns() - time.monotonic_ns()
    killed = time.monotonic_ns()
    back_ms = (killed + 10_000_000_000 + wall_ns) // 1_000_000
    other = {"seq": 4, "job": 6, "old": "available", "new": "leased", "fence": 1}
    changes = [*CHANGES[:2], CHANGES[2] | {"t_ms": back_ms}, other, CHANGES[3] | {"seq": 5}]
    late = [record | {"t": killed + 12_000_000_000} for record in SECOND]
    (found,) = recovered(tmp_path, faults=[KILL | {"t": killed}], second=late, changes=changes)

    assert found["peers_idle"] is True
    assert 9_000 < (found["t_reclaim"] - found["t_kill"]) / 1_000_000 < 11_000


def test_a_job_that_was_taken_back_late_is_a_slow_recovery_whatever_else_was_claimed(
    tmp_path: Path,
) -> None:
    other = {"seq": 3, "job": 6, "old": "available", "new": "leased", "fence": 1}
    moved = [*CHANGES[:2], other, CHANGES[2] | {"seq": 4}, CHANGES[3] | {"seq": 5}]
    (found,) = recovered(tmp_path, faults=[KILL], changes=moved)

    assert found["peers_idle"] is True


def test_a_backup_without_one_of_its_large_payloads_is_not_whole(tmp_path: Path) -> None:
    target = targets.load("killproof")
    target.prepare(tmp_path)
    client: Any = target.client(tmp_path)
    try:
        client.enqueue("report", {"id": "large", "body": "x" * 9_000}, spill=True)
        client.enqueue("report", {"id": "small"})
        copy = tmp_path / client.backup()
    finally:
        client.close()
    problems: Callable[[Path], list[str]] = getattr(target, "backup_problems")  # noqa: B009
    assert problems(copy) == []

    for file in Path(f"{copy}.payloads").iterdir():
        if len(file.name) == 64:
            file.unlink()

    assert [found.partition(":")[0] for found in problems(copy)] == ["payload of job 1"]


def test_two_words_of_a_table_that_are_one_of_the_contract_are_counted_together() -> None:
    words = in_words({"failed": 3, "timeout": 2, "9": 1}, {"failed": "dead", "timeout": "dead"})

    assert words == {"dead": 5, "9": 1}
