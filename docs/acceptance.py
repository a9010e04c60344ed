"""What was promised, and which tests say that it holds: the tables of docs/features.md.

`features.toml` has the lines; a test names the lines that it proves in its docstring.  A name in a
comment, in a module or in a fixture counts for nothing: only a function that pytest collects.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The parts that tests name, by the word before the number.
LINE = re.compile(r"\bS[0-2]\.\d+\b")
FAULT = re.compile(r"\bF\d{1,2}\b")
KINDS = {
    "B": "behaviour",
    "C": "schema",
    "D": "default",
    "O": "operations",
    "P": "promise",
    "N": "next step",
    "W": "limit",
}
ARTICLES = {
    "S0": "S0: a queue for automations",
    "S1": "S1: an asyncio dispatcher",
    "S2": "S2: durable workflows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A test function and what its docstring names."""

    file: str  #: from the root of the project
    name: str
    lines: tuple[str, ...]
    faults: tuple[str, ...]


def features(root: Path = ROOT) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the lines and the faults, by their ids."""
    found = tomllib.loads((root / "docs/features.toml").read_text(encoding="utf-8"))
    return found["line"], found["fault"]


def named(file: str, text: str) -> Iterator[Test]:
    """Yield the tests of a file that name a line or a fault."""
    if not LINE.search(text) and not FAULT.search(text):
        return  # Reading the others as Python is most of the work.
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("test_"):
            continue
        doc = ast.get_docstring(node) or ""
        lines, faults = tuple(LINE.findall(doc)), tuple(FAULT.findall(doc))
        if lines or faults:
            yield Test(file=file, name=node.name, lines=lines, faults=faults)


def proofs(root: Path = ROOT) -> list[Test]:
    """Return every test that names a line or a fault, in the order of files and places."""
    return [
        test
        for path in sorted((root / "tests").rglob("test_*.py"))
        for test in named(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    ]


def table_of_lines(article: str) -> str:
    """Return the rows of an article: id, kind, purpose, and what proves it."""
    lines, _ = features()
    found = proofs()
    rows = ["| | kind | purpose | tests that name it |", "|---|---|---|---|"]
    for line, (kind, purpose, *page) in lines.items():
        if line.startswith(f"{article}."):
            proof = _proof(test for test in found if line in test.lines)
            if page:
                stated = "stated above"
                if Path(page[0]).name != "features.md":
                    stated = f"stated in [{Path(page[0]).name}]({Path(page[0]).name})"
                proof = f"{stated}<br>{proof}" if proof else stated
            rows.append(f"| {line} | {KINDS[kind]} | {purpose} | {proof or '**none**'} |")
    return "\n".join(rows)


def table_of_faults() -> str:
    """Return the rows of the faults: id, what is right here, and what proves it."""
    _, faults = features()
    found = proofs()
    rows = ["| | right is | tests that name it |", "|---|---|---|"]
    for fault, (right, *why_not) in faults.items():
        proof = _proof(test for test in found if fault in test.faults)
        if why_not:
            right, proof = "not applicable", why_not[0]
        rows.append(f"| {fault} | {right} | {proof or '**none**'} |")
    return "\n".join(rows)


def counts() -> str:
    """Return the sentence that sums the tables up."""
    lines, faults = features()
    found = proofs()
    wanted = {line for line, (kind, *_) in lines.items() if kind != "W"}
    proven = wanted & {line for test in found for line in test.lines}
    traps = {fault for fault, (_, *why_not) in faults.items() if not why_not}
    avoided = traps & {fault for test in found for fault in test.faults}
    return (
        f"{len(proven)} of {len(wanted)} promises and {len(avoided)} of {len(traps)} faults are "
        f"named by {len(found)} tests; {len(lines) - len(wanted)} lines are limits of scope."
    )


def _proof(found: Iterator[Test]) -> str:
    """Return links to the tests, at most three: a line is proven by one."""
    listed = list(found)
    shown = [
        f"[{test.name.removeprefix('test_').replace('_', ' ')}](../{test.file})"
        for test in listed[:3]
    ]
    if len(listed) > 3:
        shown.append(f"and {len(listed) - 3} more")
    return "<br>".join(shown)
