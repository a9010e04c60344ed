"""Changes the checkers in one place after another, and sees their hand-written histories go red.

    python tests/mutate_checkers.py                    # all; writes a report into reports/
    python tests/mutate_checkers.py leases effects     # these files alone, no report
    python tests/mutate_checkers.py effects:_check_once    # one function of a file: seconds
    python tests/mutate_checkers.py --processes 2

mutmut makes the changes and runs, for each, the tests that reach the changed function, in a fork of
one process that has everything loaded: a change costs a fraction of a second. It was taken before
cosmic-ray, which starts Python anew for each. It works in a folder of its own; no source is changed
in place.

A change that no test notices **survives**. Each survivor has to be explained in
`tests/checkers/survivors.toml`, by what it changes and why nobody can see it; else this fails. It
also fails where an explanation is stale: nothing that it explains has survived.
"""

import argparse
import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from killproof_evidence.environment import environment

ROOT: Final = Path(__file__).resolve().parent.parent
JUDGE: Final = ROOT / "chaos/killproof_evidence"
TESTS: Final = ROOT / "tests/checkers"
EXPLANATIONS: Final = TESTS / "survivors.toml"
REPORT: Final = ROOT / "reports" / "checkers-mutation.md"
#: Tests that reach no checker, or try every line of a history: seconds that kill nothing more.
LEFT_OUT: Final = ("test_records.py", "test_sensitivity.py")
#: mutmut's exit codes of a change: those of pytest, and its own.
KILLED: Final = frozenset({1, 3})
SURVIVED: Final = 0
TIMED_OUT: Final = frozenset({-24, 24, 36, 152, 255})
NO_TESTS: Final = frozenset({5, 33})

SETTINGS: Final = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "--import-mode=importlib", "-p", "no:cacheprovider",
           "-p", "no:benchmark", "-p", "no:xdist", "-p", "no:hypothesispytest"]
filterwarnings = ["error", "ignore::DeprecationWarning"]

[tool.mutmut]
source_paths = ["src"]
only_mutate = [{files}]
pytest_add_cli_args_test_selection = ["tests/checkers"]
use_git_change_detection = false
"""


#: pytest counts its folders up and clears old ones away. Many sessions at once clear away each
#: other's, and a test that loses its folder looks like one that has noticed the change.
CONFTEST: Final = """
import shutil
import tempfile

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.option.basetemp = tempfile.mkdtemp(prefix="killproof-mutant-")


def pytest_unconfigure(config):
    shutil.rmtree(config.option.basetemp, ignore_errors=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one function."""

    file: str
    function: str  #: with its class, where it has one
    code: int | None  #: mutmut's; None: it was not tried
    taken: str  #: the lines that it takes away
    given: str  #: the lines that stand there instead

    @property
    def is_boundary(self) -> bool:
        """Say whether it moves nothing but the one point at which two values are equal."""
        return self.taken != self.given and _loose(self.taken) == _loose(self.given)

    def __str__(self) -> str:
        """Show it as a reader wants it."""
        return f"{self.file} {self.function}:\n  - {self.taken}\n  + {self.given}"


def _loose(text: str) -> str:
    return re.sub(r"(?<![<>=!-])([<>])=?(?![<>=])", r"\1", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why nobody can see a change, or a class of them."""

    why: str
    file: str  #: without `.py`; `*` for all
    function: str  #: `*` for all
    taken: re.Pattern[str]
    given: re.Pattern[str]
    boundary: bool  #: it speaks of boundaries alone

    def explains(self, mutant: Mutant) -> bool:
        """Say whether it speaks of this one."""
        return (
            self.file in {"*", mutant.file}
            and self.function in {"*", mutant.function}
            and self.taken.search(mutant.taken) is not None
            and self.given.search(mutant.given) is not None
            and (mutant.is_boundary or not self.boundary)
        )


def explanations(path: Path = EXPLANATIONS) -> list[Explanation]:
    """Read the committed list; what is not given in an entry may be anything."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["survivor"]
    return [
        Explanation(
            why=entry["why"],
            file=entry.get("file", "*"),
            function=entry.get("function", "*"),
            taken=re.compile(entry.get("taken", "")),
            given=re.compile(entry.get("given", "")),
            boundary=entry.get("boundary", False),
        )
        for entry in entries
    ]


def prepare(folder: Path, files: Sequence[str]) -> None:
    """Copy what mutmut needs: the judge, the histories and settings of its own."""
    ignore = shutil.ignore_patterns("__pycache__", *LEFT_OUT)
    shutil.copytree(JUDGE, folder / "src/killproof_evidence", ignore=ignore)
    shutil.copytree(TESTS, folder / "tests/checkers", ignore=ignore)
    names = ", ".join(f'"src/killproof_evidence/checkers/{file}.py"' for file in files)
    (folder / "pyproject.toml").write_text(SETTINGS.format(files=names), encoding="utf-8")
    (folder / "tests" / "conftest.py").write_text(CONFTEST, encoding="utf-8")


def run_mutmut(folder: Path, processes: int, functions: Iterable[str] = ()) -> int:
    """Make the changes and try each; mutmut shows how far it is.

    Args:
        folder: as `prepare` has left it.
        processes: at once.
        functions: `file:function`; the changes of these alone are tried. None: all.
    """
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes)]
    for file, _, function in (name.partition(":") for name in functions):
        command.append(f"killproof_evidence.checkers.{file}.x_{function}__mutmut_*")
    # Each history is a few small files: in memory they cost a third. No test needs a real disk.
    memory = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    return subprocess.run(command, cwd=folder, env=os.environ | memory, check=False).returncode


def mutants(folder: Path, file: str) -> Iterator[Mutant]:
    """Read what mutmut has found out about a file."""
    path = folder / f"mutants/src/killproof_evidence/checkers/{file}.py"
    codes = json.loads(path.with_suffix(".py.meta").read_text(encoding="utf-8"))
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    bodies = {
        node.name: lines[node.lineno : node.end_lineno]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    for key, code in codes["exit_code_by_key"].items():
        name = key.rpartition(".")[2]
        base = name.rpartition("__mutmut_")[0]
        taken, given = _difference(bodies[f"{base}__mutmut_orig"], bodies[name])
        # mutmut writes `x_function`, and `xǁClassǁmethod`.
        function = base.removeprefix("x").removeprefix("_").strip("ǁ").replace("ǁ", ".")
        yield Mutant(file=file, function=function, code=code, taken=taken, given=given)


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    return tuple(  # type: ignore[return-value]
        " / ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that was tried, and what the list says of those that survived."""

    tried: Mapping[str, list[Mutant]]
    explained: Mapping[Explanation, list[Mutant]]
    unexplained: list[Mutant]
    stale: list[Explanation]

    @property
    def is_good(self) -> bool:
        """Say whether each survivor is explained, and each explanation in use."""
        untried = any(mutant.code is None for found in self.tried.values() for mutant in found)
        return not (self.unexplained or self.stale or untried)


def result(tried: Mapping[str, list[Mutant]], known: Sequence[Explanation]) -> Result:
    """Hold the survivors against the list."""
    explained: dict[Explanation, list[Mutant]] = {entry: [] for entry in known}
    unexplained = []
    for mutant in (mutant for found in tried.values() for mutant in found):
        if mutant.code not in {SURVIVED, *NO_TESTS}:
            continue
        entry = next((entry for entry in known if entry.explains(mutant)), None)
        if entry is None:
            unexplained.append(mutant)
        else:
            explained[entry].append(mutant)
    # What speaks of all files is in use only when all were tried.
    asked = [e for e in known if e.file in tried or (e.file == "*" and set(tried) == set(files()))]
    stale = [entry for entry in asked if not explained[entry]]
    return Result(tried=tried, explained=explained, unexplained=unexplained, stale=stale)


def files() -> list[str]:
    """Return the names of all files of checkers."""
    return sorted(
        path.stem for path in (JUDGE / "checkers").glob("*.py") if path.stem != "__init__"
    )


def _is_function(name: str) -> bool:
    file, _, function = name.partition(":")
    tree = ast.parse((JUDGE / f"checkers/{file}.py").read_text("utf-8"))
    return any(isinstance(x, ast.FunctionDef) and x.name == function for x in tree.body)


def promises_of(file: str) -> str:
    """Return the promises that a file's docstring names first."""
    text = ast.get_docstring(ast.parse((JUDGE / f"checkers/{file}.py").read_text("utf-8"))) or ""
    return " ".join(re.findall(r"P\d+", text.partition(":")[0])) or "P12, P2"


def report(found: Result, command: str, seconds: float) -> str:
    """Write the report."""
    facts = environment(ROOT)
    lines = [
        "# The checkers under mutation",
        "",
        f"Command: `{command}`; it draws nothing, so it has no seed.",
        f"Machine: {facts['cpu']}, {facts['cores']} cores; Python {facts['python']}, SQLite "
        f"{facts['sqlite']}, mutmut {version('mutmut')}, pytest {version('pytest')}. It took "
        f"{seconds / 60:.1f} minutes.",
        "",
        "Each function of `chaos/killproof_evidence/checkers/` is changed in one place after "
        "another (a comparison, a number, a word, an argument, a branch), and the hand-written "
        "histories of `tests/checkers/` that reach it are judged again. *Killed*: a test went red. "
        "*Explained*: none did, and `tests/checkers/survivors.toml` says why that cannot be seen.",
        "",
        "| file | promises | changes | killed | time-out | explained | unexplained |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    total: Counter[str] = Counter()
    for file, tried in found.tried.items():
        row = _row(found, tried)
        total.update(row)
        lines.append(f"| `{file}.py` | {promises_of(file)} | {_cells(row)} |")
    lines.append(f"| all | | {_cells(total)} |")
    seen = total["killed"] + total["time-out"]
    lines += [
        "",
        f"**{seen:,} of {total['changes']:,} changes are noticed ({seen / total['changes']:.1%}); "
        f"{total['explained']:,} are explained, {total['unexplained']:,} are not.**",
        "",
        "## Why the others survive",
        "",
        "| changes | where | why |",
        "| ---: | --- | --- |",
    ]
    for entry, explained in found.explained.items():
        where = "all files" if entry.file == "*" else f"`{entry.file}.py`"
        where += "" if entry.function == "*" else f", `{entry.function}`"
        lines.append(f"| {len(explained)} | {where} | {entry.why} |")
    if found.unexplained:
        lines += ["", "## Not explained yet", "", "```text"]
        lines += [*map(str, found.unexplained), "```"]
    return "\n".join([*lines, "", *NOT_SHOWN, ""])


NOT_SHOWN: Final = (
    "## What this does not show",
    "",
    "- That a checker asks for the right thing: a change is measured against what it does today. "
    "The gallery measures that.",
    "- Changes of two places at once, and of what stands outside of functions: constants, "
    "patterns, sets of states. mutmut does not change text that is put together from parts.",
    "- The reader (`evidence.py`) and the judge (`judge.py`): their tests run, but they are not "
    "changed.",
    "- Part of the kills is by `witnesses.jsonl`, which keeps what each history shows as a whole: "
    "it says that something is different, and a person has to say which of the two is right.",
)


def _row(found: Result, tried: Iterable[Mutant]) -> Counter[str]:
    unexplained = set(map(id, found.unexplained))
    row: Counter[str] = Counter()
    for mutant in tried:
        row["changes"] += 1
        if id(mutant) in unexplained:
            row["unexplained"] += 1
        elif mutant.code in {SURVIVED, *NO_TESTS}:
            row["explained"] += 1
        elif mutant.code in TIMED_OUT:
            row["time-out"] += 1
        elif mutant.code is not None:
            row["killed"] += 1
    return row


def _cells(row: Mapping[str, int]) -> str:
    names = ("changes", "killed", "time-out", "explained", "unexplained")
    return " | ".join(f"{row.get(name, 0):,}" for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every survivor is explained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "file", nargs="*", default=[], help="of checkers, such as leases, or file:function"
    )
    parser.add_argument("--processes", type=int, default=1, help="at once; 1 when not given")
    options = parser.parse_args(arguments)
    asked = sorted({name.partition(":")[0] for name in options.file})
    unknown = sorted(set(asked) - set(files()))
    if unknown:
        print(f"{unknown[0]!r} is no file of checkers: use {', '.join(files())}")
        return 64
    functions = sorted({name for name in options.file if ":" in name})
    if functions and len(functions) < len(set(options.file)):
        print(f"{functions[0]!r} names a function: name one in each argument, or in none")
        return 64
    missing = [name for name in functions if not _is_function(name)]
    if missing:
        print(f"{missing[0]!r} names no function at the top of that file")
        return 64
    chosen = asked or files()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="killproof-mutants-") as name:
        folder = Path(name)
        prepare(folder, chosen)
        if run_mutmut(folder, options.processes, functions) != 0:
            print("mutmut did not come to its end; are the tests green without any change?")
            return 3
        tried = {file: list(mutants(folder, file)) for file in chosen}
    known = explanations()
    if functions:
        tried = {
            file: [x for x in found if f"{file}:{x.function}" in functions]
            for file, found in tried.items()
        }
        # What speaks of the rest of a file explains nothing here, and is not stale for that.
        known = [e for e in known if e.function == "*" or f"{e.file}:{e.function}" in functions]
    found = result(tried, known)
    if functions:
        found = replace(found, stale=[entry for entry in found.stale if entry.function != "*"])
    for mutant in found.unexplained:
        print(f"survived, and nothing explains it: {mutant}")
    for entry in found.stale:
        print(f"explains nothing that survived: {entry.file} {entry.function}: {entry.why}")
    row = _row(found, (mutant for found_ in tried.values() for mutant in found_))
    print(" ".join(f"{name} {count:,}" for name, count in row.items()))
    if not options.file:
        command = f"make mutate-checkers PROCESSES={options.processes}"
        REPORT.write_text(report(found, command, time.monotonic() - started), encoding="utf-8")
        print(f"written: {REPORT.relative_to(ROOT)}")
    return 0 if found.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
