"""The shared memory that says where a process is, and makes it stand still."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from killproof_chaos.phases import NUMBERS, Board


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path / "phases.bin")
    yield made
    made.close()


def test_a_phase_that_was_entered_is_seen_from_another_mapping(
    board: Board, tmp_path: Path
) -> None:
    other = Board(tmp_path / "phases.bin")
    board.enter(3, 0, NUMBERS["ack.written"])

    assert other.phase(3) == "ack.written"
    assert other.phase(2) == ""
    other.close()


def test_an_operation_of_the_second_thread_hides_the_first_until_it_returns(board: Board) -> None:
    board.enter(0, 0, NUMBERS["handler.start"])
    board.enter(0, 1, NUMBERS["extend.locked"])

    assert board.phase(0) == "extend.locked"
    board.leave(0, 1)
    assert board.phase(0) == "handler.start"


def test_who_arrives_at_an_armed_phase_stands_still_until_let_go(board: Board) -> None:
    """Rule C2."""
    board.arm(1, "claim.locked", True)
    passed = threading.Event()

    def arrive() -> None:
        board.enter(1, 0, NUMBERS["claim.locked"])
        passed.set()

    thread = threading.Thread(target=arrive)
    thread.start()
    while not board.arrived(1):
        assert thread.is_alive()
    assert board.arrived(1) == [(0, "claim.locked")]
    assert not passed.is_set()

    board.let_go(1, 0)
    thread.join()
    assert passed.is_set()
    assert board.arrived(1) == []


def test_what_is_not_armed_or_no_longer_armed_passes(board: Board) -> None:
    board.arm(1, "claim.locked", True)
    board.arm(1, "claim.locked", False)

    board.enter(1, 0, NUMBERS["claim.locked"])
    board.enter(1, 0, NUMBERS["claim.begin"])
    assert board.arrived(1) == []


def test_a_new_life_in_a_slot_is_not_ready_but_finds_its_progress_and_what_is_armed(
    board: Board,
) -> None:
    board.ready(4, 100)
    board.set_progress(4, 17)
    board.arm(4, "ack.begin", True)
    board.clear(4)

    assert not board.is_ready(4, 100)
    assert board.progress(4) == 17
    assert board.phase(4) == ""
    thread = threading.Thread(target=board.enter, args=(4, 0, NUMBERS["ack.begin"]))
    thread.start()
    while not board.arrived(4):
        assert thread.is_alive()
    board.let_go(4, 0)
    thread.join()


def test_ready_is_said_by_one_process_and_not_by_its_successor(board: Board) -> None:
    board.ready(5, 100)

    assert board.is_ready(5, 100)
    assert not board.is_ready(5, 101)
