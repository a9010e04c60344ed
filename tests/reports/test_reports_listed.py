"""The list of reports says what the tests say."""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
NUMBER = re.compile(r"\bB\d+\b")
SECTIONS = ("Tested", "Waiting for a capability", "Out of scope")


def sections(text: str) -> dict[str, str]:
    """Return the tables of each section: the lines that begin with a bar."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    tables = {
        name: "\n".join(line for line in body.splitlines() if line.startswith("|"))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
    assert tuple(tables) == SECTIONS
    return tables


def told_by_tests(source: str) -> tuple[set[str], set[str]]:
    """Return the reports that the docstrings of tests name, and those that have a control."""
    named: set[str] = set()
    controlled: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            numbers = set(NUMBER.findall(ast.get_docstring(node) or ""))
            named |= numbers
            if "control" in (ast.get_source_segment(source, node) or "").lower():
                controlled |= numbers
    return named, controlled


def check_the_list(text: str, sources: dict[str, str]) -> None:
    tables = sections(text)
    rows = dict(re.findall(r"^\| `(test_\w+\.py)` \| (.*) \|$", tables["Tested"], re.MULTILINE))
    everywhere = set(NUMBER.findall(tables["Tested"]))
    assert rows.keys() == sources.keys(), "a file is not listed"
    for name, source in sources.items():
        named, controlled = told_by_tests(source)
        listed = set(NUMBER.findall(rows[name]))
        assert listed <= named, f"{name}: listed, and in no docstring"
        assert named <= everywhere, f"{name}: in a docstring, and not listed"
        assert listed <= controlled, f"{name}: listed, and without a control"
    numbers = [number for table in tables.values() for number in NUMBER.findall(table)]
    assert len(numbers) == len(set(numbers)), "listed twice"


def sources() -> dict[str, str]:
    return {
        path.name: path.read_text("utf-8")
        for path in sorted(HERE.glob("test_*.py"))
        if path.name != Path(__file__).name
    }


def test_every_report_is_listed_once_where_its_tests_are_and_has_a_control() -> None:
    check_the_list((HERE / "README.md").read_text("utf-8"), sources())


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("B1 B40", "B40", "in a docstring, and not listed"),
        ("B1 B40", "B1 B3 B40", "listed, and in no docstring"),
        ("| B43 |", "| B44 |", "listed twice"),
        ("| `test_full_disks.py` | B31 B125 |\n", "", "a file is not listed"),
    ],
)
def test_a_list_that_says_something_else_is_seen(line: str, instead: str, words: str) -> None:
    text = (HERE / "README.md").read_text("utf-8")
    assert line in text
    with pytest.raises(AssertionError, match=words):
        check_the_list(text.replace(line, instead), sources())


def test_a_report_without_a_control_is_seen() -> None:
    """Rule C1."""
    text = (HERE / "README.md").read_text("utf-8")
    spoiled = {name: source.replace("B31, control", "B31") for name, source in sources().items()}
    with pytest.raises(AssertionError, match="without a control"):
        check_the_list(text, spoiled)


def tables() -> ModuleType:
    """Return what makes the tables of docs/reports.md."""
    path = HERE.parent.parent / "docs" / "reported.py"
    spec = importlib.util.spec_from_file_location("reported", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reported"] = module  # Its dataclasses look for their module.
    spec.loader.exec_module(module)
    return module


def check_the_rules(ruled: dict[str, list[str]], waiting: dict[str, str]) -> None:
    for name, tests in ruled.items():
        assert bool(tests) != (name in waiting), f"{name}: shown, or waits for something"


def test_every_rule_for_a_harness_is_shown_by_a_test_or_waits_for_something() -> None:
    reported = tables()
    check_the_rules(reported.ruled(), reported.WAITING)


@pytest.mark.parametrize(("name", "waiting"), [("C3", {"H1": "", "H10": ""}), ("H1", {})])
def test_a_rule_that_nothing_shows_is_seen(name: str, waiting: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=name):
        check_the_rules(tables().ruled() | {name: []}, waiting)
