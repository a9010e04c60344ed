"""The tables of public bug reports and of harness rules, made from the tests; cog calls them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
REPORTS: Final = TESTS / "reports"
NUMBER: Final = re.compile(r"\bB(\d+)\b")
#: `Rule C3.` or `Rules C1, C9a.` in the docstring of a test.
NAMED: Final = re.compile(r"\bRules? ([CH]\d+[ab]?(?:, [CH]\d+[ab]?)*)")

#: What went wrong in public chaos harnesses (C) and benchmarks (H), as a rule for these here.
RULES: Final = {
    "C1": "every check is seen to fail when the fault, or the guard, is taken away",
    "C2": "a kill waits for a sign of the victim; each is told with the phase that it hit",
    "C3": "the wait status says SIGKILL; a polite SIGTERM is counted apart",
    "C4": "a fault counts when its effect was seen; no evidence is not no problem",
    "C5": "a run that was cut short is unknown, and leaves no child behind",
    "C6": "quiet is: counts that are stable and add up, by a deadline, and no sleep",
    "C7": "what was skipped, or never promised, has not passed",
    "C8": "a process that nobody has reaped is dead, whatever its process id says",
    "C9": "each effect is a line of its own with job and attempt, on the disk, and no counter",
    "C9a": "the effects that are counted are not idempotent",
    "C10": "an operation without an answer may have happened or not; both are legal",
    "C11": "the verdict tells its extent, and never says correct",
    "C12": "a run counts after a least number of strikes that hit",
    "C13": "a second run after the lease ran out accuses nobody; one beside a live lease does",
    "C14": "a verdict of damage names SQLite's version, and no cause that was not isolated",
    "C15": "no part of the harness opens a live database but through SQLite",
    "H1": "arrivals do not wait for answers; a stall shows in the percentiles",
    "H2": "the result says whether its load is an open or a closed loop",
    "H3": "jobs are counted when done and found so in the file",
    "H4": "journal mode, synchronous, file system and version are read back and printed",
    "H5": "the journal mode is asserted, and the disk is named",
    "H6": "there is a backlog, and rows in other states; a run that ran dry is void",
    "H7": "enqueue, claim, ack, and both at once are measured each",
    "H8": "only what gives the same guarantees stands side by side",
    "H9": "the benchmarks run in the tests, small",
    "H10": "latency is measured below saturation, throughput by draining",
    "H11": "calls that had not ended are part of the percentiles",
    "H12": "monotonic clock, each operation by itself, repeated, with its spread",
    "H12a": "median and interval of interleaved rounds, never the best",
    "H12b": "durability stands beside each figure",
    "H13": "a claim of no duplicates has a control in which there are some",
    "H14": "what a sync costs is measured on the spot and printed",
}
#: Rules whose subject is not there yet.
WAITING: Final = {
    "H1": "an open-loop benchmark",
    "H10": "an open-loop benchmark",
}


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
        kind = next(one.kind for one in mine if "test_classes" not in one.kind)
        lines.append(f"| B{number} | {kind} | {test} | {control} | {result} |")
    return "\n".join(lines)


def ruled() -> dict[str, list[str]]:
    """Return links to the tests that name each rule; opens all tests as text."""
    found: dict[str, list[str]] = {name: [] for name in RULES}
    for path in sorted(TESTS.glob("*/test_*.py")):
        text = path.read_text(encoding="utf-8")
        if NAMED.search(text) is None:
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for names in NAMED.findall(ast.get_docstring(node) or ""):
                sentence = node.name.removeprefix("test_").replace("_", " ")
                link = f"[{sentence}](../{path.relative_to(TESTS.parent).as_posix()})"
                for name in names.split(", "):
                    found[name].append(link)  # A rule that is not in the table is a KeyError.
    return found


def rules() -> str:
    """Return the Markdown table: a row for each rule, with its tests or what it waits for."""
    lines = ["| rule | what it says | shown by |", "|---|---|---|"]
    for name, links in ruled().items():
        shown = "<br>".join(links) or f"waits for {WAITING[name]}"
        lines.append(f"| {name} | {RULES[name]} | {shown} |")
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
