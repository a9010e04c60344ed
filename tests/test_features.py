"""Every promise and every fault has a test that names it, and no test names what is not there.

What a test names, it must prove; that is for whoever writes and reviews it.  This keeps the books.
"""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMED_MAX = 4  # Lines of the articles that one test may name: more is a list, not a proof.

acceptance: dict[str, Any] = runpy.run_path(str(ROOT / "docs/acceptance.py"))
LINES, FAULTS = acceptance["features"]()
PROOFS = acceptance["proofs"]()
named: Callable[[str, str], Any] = acceptance["named"]


def test_every_promise_is_named_by_a_test() -> None:
    wanted = {line for line, (kind, *_) in LINES.items() if kind != "W"}
    proven = {line for test in PROOFS for line in test.lines}

    assert " ".join(sorted(wanted - proven)) == ""


def test_every_fault_is_named_by_a_test_or_has_a_reason_why_not() -> None:
    wanted = {fault for fault, (_, *why_not) in FAULTS.items() if not why_not}
    avoided = {fault for test in PROOFS for fault in test.faults}

    assert " ".join(sorted(wanted - avoided)) == ""


def test_every_limit_of_scope_is_stated_on_a_page() -> None:
    for line, (kind, _, *page) in LINES.items():
        assert (kind == "W") == bool(page), line
        assert all((ROOT / name).is_file() for name in page), line


def test_no_test_names_a_line_or_a_fault_that_is_not_there() -> None:
    unknown = {
        f"{test.file}: {test.name}: {name}"
        for test in PROOFS
        for name in (*test.lines, *test.faults)
        if name not in LINES and name not in FAULTS
    }

    assert unknown == set()


def test_no_test_names_more_promises_than_it_can_prove() -> None:
    assert [test.name for test in PROOFS if len(set(test.lines)) > NAMED_MAX] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('def test_a():\n    """Covers S0.1, S2.26, and F7."""\n', [("S0.1", "S2.26"), ("F7",)]),
        ('async def test_a():\n    """F7: why."""\n', [(), ("F7",)]),
        ("def test_a():\n    pass  # Covers S0.1.\n", []),
        ('def fixture():\n    """Covers S0.1."""\n', []),
        ('"""Covers S0.1."""\n', []),
    ],
)
def test_only_the_docstring_of_a_test_counts(text: str, found: list[tuple[str, ...]]) -> None:
    (*tests,) = named("x.py", text)

    assert [names for test in tests for names in (test.lines, test.faults)] == found
