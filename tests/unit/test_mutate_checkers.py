"""The list of survivors: what it must explain, and when it is stale."""

import re
from typing import Any

import pytest

from tests import mutate_checkers
from tests.mutate_checkers import Explanation, Mutant, explanations, files, report, result


def mutant(**how: Any) -> Mutant:
    facts: dict[str, Any] = {
        "file": "leases",
        "function": "f",
        "code": 0,
        "taken": "a < b.t",
        "given": "a <= b.t",
    }
    return Mutant(**facts | how)


def explanation(**how: Any) -> Explanation:
    anything = re.compile("")
    facts: dict[str, Any] = {
        "why": "w",
        "file": "leases",
        "function": "f",
        "taken": anything,
        "given": anything,
    }
    return Explanation(**facts | {"boundary": False} | how)


def test_a_survivor_that_nothing_explains_fails() -> None:
    found = result({"leases": [mutant()]}, [])

    assert not found.is_good
    assert len(found.unexplained) == 1


def test_a_survivor_that_is_explained_passes() -> None:
    assert result({"leases": [mutant()]}, [explanation()]).is_good


@pytest.mark.parametrize(
    "other",
    [
        {"file": "effects"},
        {"function": "g"},
        {"taken": re.compile("c")},
        {"given": re.compile("<$")},
    ],
)
def test_an_explanation_speaks_of_its_own_change_alone(other: dict[str, Any]) -> None:
    assert result({"leases": [mutant()]}, [explanation(**other)]).unexplained


def test_an_explanation_that_explains_nothing_fails() -> None:
    found = result({"leases": [mutant(code=1)]}, [explanation()])

    assert not found.is_good
    assert len(found.stale) == 1


def test_what_speaks_of_all_files_is_stale_only_when_all_were_tried() -> None:
    general = explanation(file="*")

    assert result({"leases": [mutant(code=1)]}, [general]).is_good
    assert result({file: [] for file in files()}, [general]).stale == [general]


def test_a_change_that_was_not_tried_fails() -> None:
    assert not result({"leases": [mutant(code=None)]}, []).is_good


@pytest.mark.parametrize(
    ("taken", "given", "is_boundary"),
    [
        ("a < b", "a <= b", True),
        ("a >= b or c", "a > b or c", True),
        ("a < b", "a > b", False),
        ("a == b", "a != b", False),
        ("def f() -> int:", "def f() -> str:", False),
        ("x < 1", "x < 2", False),
    ],
)
def test_a_boundary_is_the_one_point_at_which_two_values_are_equal(
    taken: str, given: str, is_boundary: bool
) -> None:
    assert mutant(taken=taken, given=given).is_boundary is is_boundary


def test_the_committed_list_is_read_and_each_entry_gives_a_reason() -> None:
    known = explanations()

    assert all(len(entry.why) > 20 for entry in known)
    assert {entry.file for entry in known} <= {"*", *files()}


def test_the_report_tells_each_file_and_each_reason() -> None:
    tried = {"leases": [mutant(), mutant(code=1), mutant(code=36), mutant(function="g")]}
    text = report(result(tried, [explanation(why="nobody can tell")]), "a command", 90)

    assert "| `leases.py` | P4 P5 | 4 | 1 | 1 | 1 | 1 |" in text
    assert "| 1 | `leases.py`, `f` | nobody can tell |" in text
    assert "**2 of 4 changes are noticed (50.0%); 1 are explained, 1 are not.**" in text
    assert "Command: `a command`" in text


def test_a_file_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate_checkers.main(["lease"]) == 64
    assert "'lease' is no file of checkers: use backups" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["leases:_check_nothing"], "'leases:_check_nothing' names no function"),
        (["leases:_check_pair", "effects"], "name one in each argument, or in none"),
        (["leese:_check_pair"], "'leese' is no file of checkers"),
    ],
)
def test_a_function_that_is_not_there_is_refused_before_anything_is_changed(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mutate_checkers.main(arguments) == 64
    assert word in capsys.readouterr().out
