"""The table of public bug reports, made from the tests that repeat them; cog calls it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPORTS: Final = Path(__file__).resolve().parent.parent / "tests" / "reports"
NUMBER: Final = re.compile(r"\bB(\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One test of one file, and the reports that its docstring names."""

    numbers: tuple[int, ...]
    sentence: str  #: the test's name, in words
    is_control: bool  #: the same check without its guard, seen to fail
    kind: str  #: what the tests of its file have in common


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios of all files, in order; opens the tests as text and runs nothing."""
    for path in sorted(REPORTS.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kind = path.stem.removeprefix("test_").replace("_", " ")
        link = f"[{kind}](../tests/reports/{path.name})"
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            told = ast.get_docstring(node) or ""
            numbers = tuple(sorted(map(int, set(NUMBER.findall(told)))))
            yield Scenario(
                numbers=numbers,
                sentence=node.name.removeprefix("test_").replace("_", " "),
                is_control=re.search(r"\bcontrol\b", told, re.IGNORECASE) is not None,
                kind=link,
            )


def table() -> str:
    """Return the Markdown table: a row for each report that a test repeats."""
    found = list(scenarios())
    numbers = sorted({number for scenario in found for number in scenario.numbers})
    in_part = partial()
    lines = [
        "| report | class | the test | its control, seen red | result |",
        "|---|---|---|---|---|",
    ]
    for number in numbers:
        mine = [scenario for scenario in found if number in scenario.numbers]
        holds = [scenario for scenario in mine if not scenario.is_control]
        controls = [scenario for scenario in mine if scenario.is_control] or holds
        result = "holds in part" if number in in_part else "holds"
        test, control = _told(holds or mine), _told(controls, holds)
        lines.append(f"| B{number} | {mine[0].kind} | {test} | {control} | {result} |")
    return "\n".join(lines)


def partial() -> frozenset[int]:
    """Return the reports of which the list says that they are answered in part."""
    text = (REPORTS / "README.md").read_text(encoding="utf-8")
    said = text.split("In part:")[1].split("##")[0]
    return frozenset(int(number) for number in re.findall(r"^- B(\d+):", said, re.MULTILINE))


def count() -> int:
    """Return how many reports a test repeats."""
    return len({number for scenario in scenarios() for number in scenario.numbers})


def _told(chosen: list[Scenario], above: list[Scenario] | None = None) -> str:
    if chosen == above:
        return "within the same test"
    return "<br>".join(scenario.sentence for scenario in chosen)
