"""Runs the core's tests and a short chaos run in other surroundings; writes what it saw.

    python tests/matrix.py                 # all rows; minutes
    python tests/matrix.py zone umask      # those rows
    python tests/matrix.py --report        # write reports/matrix.md from what has run

A row is a change of the surroundings: another SQLite, another Python, zone, locale, limit of open
files, umask, folder.  Before its tests a *probe* runs in the same surroundings and tells them as it
finds them: a variation that had no effect is no variation.  A row that can not run here says why,
and does not count as passed; nor does one whose chaos run hit nobody.

What a row has shown lies in killproof-store/matrix/, so that a sweep can be done in pieces.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "killproof-store" / "matrix"
REPORT = ROOT / "reports" / "matrix.md"
#: No row may hang, however crowded the machine.
SECONDS_MAX = 900
#: A chaos run of a few seconds; it is short of some places that a whole one reaches.
CHAOS = (
    *("--seconds", "3", "--kills", "20", "--pauses", "4", "--workers", "4", "--seed", "1"),
    *("--mix", "plain", "--no-report"),
)
CORE = ("unit", "process")
PASSED = re.compile(r"([0-9]+) passed")
RED = re.compile(r"^(?:FAILED|ERROR) (.*)$", re.MULTILINE)
#: What pytest says when a file has no test but one that is left out.
NONE_CHOSEN = 5
#: It copies the sources and starts pytest in them again: of no use a second time.
LEFT_OUT = "not a_guard_that_is_taken_away"

#: Python looks for a module of this name at its start, in every process of the row: the standard
#: library's module is the newer one there, and no process has two.
NEWER = """\
import sys
import pysqlite3.dbapi2 as newer
for name, number in (("IOERR_FSYNC", 1034), ("IOERR_DIR_FSYNC", 1290), ("IOERR_WRITE", 778),
                     ("BUSY_SNAPSHOT", 517)):
    if not hasattr(newer, f"SQLITE_{name}"):
        setattr(newer, f"SQLITE_{name}", number)
sys.modules["sqlite3"] = sys.modules["sqlite3.dbapi2"] = newer
"""

PROBE = """
import json, locale, os, platform, resource, sqlite3, sys, tempfile, time
locale.setlocale(locale.LC_ALL, "")
print(json.dumps({
    "python": platform.python_version(), "sqlite": sqlite3.sqlite_version,
    "zone": time.strftime("%Z %z", time.localtime(0)),
    "locale": locale.setlocale(locale.LC_ALL), "file names": sys.getfilesystemencoding(),
    "open files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "umask": f"{os.umask(0):03o}",
    "folder": ascii(tempfile.gettempdir()),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One change of the surroundings."""

    name: str
    what: str
    variables: dict[str, str] = field(default_factory=dict)
    python: str = ""  #: a version; its environment is the one that `make check-all` makes
    first: str = ""  #: said in the shell before the command
    newer: bool = False
    folder: str = ""
    turkish: bool = False
    apart: bool = False  #: each file of tests in a process of its own
    tests: tuple[str, ...] = ()  #: instead of the core's; then without chaos
    differs: tuple[str, ...] = ()  #: what the probe must tell otherwise than the first row's


ROWS = (
    Row(name="here", what="nothing changed"),
    Row(name="newer", what="a newer SQLite, in every process", newer=True, differs=("sqlite",)),
    Row(
        name="other-program",
        what="another program with the newest SQLite, apsw's, on the same file",
        tests=("tests/reports/test_two_libraries.py",),
    ),
    Row(name="3.12", what="Python 3.12", python="3.12", differs=("python",)),
    Row(name="3.13", what="Python 3.13", python="3.13", differs=("python",)),
    Row(
        name="kathmandu",
        what="TZ=Asia/Kathmandu, LC_ALL=tr_TR.UTF-8",
        variables={"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8"},
        turkish=True,
        differs=("zone", "locale"),
    ),
    Row(
        name="st-johns",
        what="TZ=America/St_Johns, LC_ALL=C, and no UTF-8 mode",
        variables={
            "TZ": "America/St_Johns",
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        },
        differs=("zone", "file names"),
    ),
    Row(
        name="apia",
        what="TZ=Pacific/Apia, LC_ALL=C.UTF-8",
        variables={"TZ": "Pacific/Apia", "LC_ALL": "C.UTF-8"},
        differs=("zone",),
    ),
    Row(
        name="files",
        what="ulimit -n 128",
        first="ulimit -n 128",
        apart=True,
        differs=("open files",),
    ),
    Row(name="umask", what="umask 077", first="umask 077", differs=("umask",)),
    Row(
        name="folder",
        what="a folder with spaces and UTF-8 in its name",
        folder="größe ☃ of it",
        differs=("folder",),
    ),
    Row(
        name="disk",
        what="a disk of 1 MiB that fills up (tmpfs)",
        tests=("tests/reports/test_full_disks.py",),
    ),
)


def main() -> int:
    """Run rows, or write the report; 0 when all that ran is well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="names of rows; none is all of them")
    parser.add_argument("--report", action="store_true", help="only write reports/matrix.md")
    options = parser.parse_args()
    known = {row.name: row for row in ROWS}
    if unknown := set(options.rows) - known.keys():
        print(f"there is no row {min(unknown)!r}: it is one of {', '.join(known)}", file=sys.stderr)
        return 64
    STORE.mkdir(parents=True, exist_ok=True)
    if not options.report:
        for name in options.rows or known:
            result = run(known[name])
            (STORE / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
            print(f"{name}: {result['result']}", flush=True)
    found = results()
    REPORT.write_text(report(found), encoding="utf-8")
    return 1 if any(result["result"].startswith("FAILED") for result in found.values()) else 0


def results() -> dict[str, dict[str, Any]]:
    """Return what the rows have shown, in their order."""
    return {
        row.name: json.loads(path.read_text(encoding="utf-8"))
        for row in ROWS
        if (path := STORE / f"{row.name}.json").exists()
    }


def run(row: Row) -> dict[str, Any]:
    """Run a row: its probe, its tests, its chaos."""
    began = time.time()
    shown: dict[str, Any] = {"began": time.strftime("%Y-%m-%d %H:%M", time.gmtime(began))}
    with surroundings(row) as (python, variables, reason):
        if reason:
            return shown | {"result": f"not run: {reason}"}
        shown["probe"] = json.loads(command(row, variables, [python, "-c", PROBE])[1])
        here = results().get("here", shown)["probe"]
        if same := [name for name in row.differs if shown["probe"][name] == here[name]]:
            return shown | {"result": f"not run: {same[0]} is what it is anyway"}
        tests = row.tests or [
            str(path.relative_to(ROOT))
            for folder in CORE
            for path in sorted((ROOT / "tests" / folder).glob("test_core_*.py"))
        ]
        argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, "-rfE"]
        # A process for each file: some tests leave descriptors open, as a failed disk demands.
        parts = [[test] for test in tests] if row.apart else [tests]
        done = [command(row, variables, [*argv, *part]) for part in parts]
        lasts = [said.strip().splitlines()[-1] if said.strip() else "nothing" for _, said in done]
        shown["tests"] = lasts[0]
        if row.apart:
            passed = sum(int(found[1]) for last in lasts if (found := PASSED.search(last)))
            shown["tests"] = f"{passed} passed, each file in a process of its own"
        shown["red"] = [red for _, said in done for red in RED.findall(said)]
        fine = all(status in (0, NONE_CHOSEN) for status, _ in done)
        if not row.tests:
            shown["chaos"], chaos_fine = chaos(row, python, variables, shown["probe"]["sqlite"])
            fine = fine and chaos_fine
    shown["seconds"] = round(time.time() - began)
    return shown | {"result": "passed" if fine else "FAILED"}


def chaos(row: Row, python: str, variables: dict[str, str], sqlite: str) -> tuple[str, bool]:
    """Make a short chaos run; return what it told, and whether it hit and broke no promise."""
    store = Path(variables["TMPDIR"]) / "run"
    argv = [python, "-m", "killproof", "chaos", "run", *CHAOS, "--store", str(store)]
    _, said = command(row, variables, argv)
    try:
        verdict = json.loads((store / "verdict.json").read_text(encoding="utf-8"))
    except OSError:
        return f"no verdict: {said.strip()[-200:]}", False
    last = [line for line in said.splitlines() if line.startswith("killproof: ")]
    told = last[-1].removeprefix("killproof: ") if last else verdict["verdict"]
    kills = re.search(r"in ([0-9,]+) kills", told)
    hit = kills is not None and int(kills[1].replace(",", "")) > 0
    if (ran := verdict["environment"]["sqlite"]) != sqlite:
        return f"{told}, but on SQLite {ran}", False
    return told, hit and verdict["verdict"] in ("pass", "unknown")


@contextmanager
def surroundings(row: Row) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the interpreter, the variables of the row, and why it can not run here, or ''."""
    python, reason = sys.executable, ""
    if row.python:
        python = str(ROOT / f".venv-{row.python}" / "bin" / "python")
        if not os.path.exists(python):
            reason = f"there is no environment .venv-{row.python}: make check-all makes it"
    # The folders of the tests lie on a disk: /tmp may be memory.
    with tempfile.TemporaryDirectory(prefix="killproof-matrix-", dir="/var/tmp") as folder:
        place = Path(folder) / row.folder
        place.mkdir(exist_ok=True)
        variables = os.environ | {"TMPDIR": str(place), "KILLPROOF_REPORT": "0"} | row.variables
        if row.newer:
            (Path(folder) / "start").mkdir()
            (Path(folder) / "start" / "sitecustomize.py").write_text(NEWER, encoding="utf-8")
            variables["PYTHONPATH"] = str(Path(folder) / "start")
        if row.turkish and not reason:
            reason = make_locale(Path(folder), row.variables["LC_ALL"])
            variables["LOCPATH"] = folder
        yield python, variables, reason


def make_locale(folder: Path, name: str) -> str:
    """Make a locale that the machine has only the source of; return why it can not, or ''."""
    source, _, charset = name.partition(".")
    if shutil.which("localedef") is None:
        return "there is no localedef: apt-get install locales"
    argv = ["localedef", "-i", source, "-f", charset, str(folder / name)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    # It warns of what it does not know, with status 1, and writes the locale all the same.
    return "" if (folder / name / "LC_CTYPE").exists() else f"localedef: {done.stderr.strip()}"


def command(row: Row, variables: dict[str, str], argv: list[str]) -> tuple[int, str]:
    """Run a command in the surroundings; return its status and what it printed."""
    shell = ["bash", "-c", f'{row.first or ":"}; exec "$@"', "bash", *argv]
    done = subprocess.run(
        shell, env=variables, cwd=ROOT, timeout=SECONDS_MAX, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout.decode("utf-8", "replace")


HEAD = """# The same core in other surroundings

{verdict}

Command: `make matrix`, or a few rows with `make matrix ROWS="newer umask"`

Each row is a probe that tells the surroundings as it finds them, then the core's tests
(`test_core_*.py` of `tests/unit/` and `tests/process/`), then `killproof chaos run`
with `{chaos}`.
A short chaos run misses some of the places that it owes, so its best verdict is mostly "unknown":
no broken promise, and not everything reached.

Machine: {machine}.  Seed of each chaos run: 1.

| row | Python, SQLite | tests | chaos | result |
|---|---|---|---|---|
"""

TAIL = """
## The surroundings, as the probe found them

| row | zone | locale, file names | open files | umask | folder |
|---|---|---|---|---|---|
{probes}

## What this does not show

- Which SQLite has the WAL-reset fault is told by its version (`killproof doctor` knows the ranges);
  that the fault does not happen is not shown by a few seconds.
- The newer SQLite is that of `pysqlite3`, the standard library's own module built with another
  library, put in its place at the start of every process.
  Why the core does not run on apsw: [decisions](../docs/decisions.md).
- Every other file system, kernel and architecture; macOS and Windows are not supported.
- A disk of 1 MiB is memory (tmpfs), so level `process`; a failing disk is another thing:
  [power cuts](power-cut.md).
"""


def report(found: dict[str, dict[str, Any]]) -> str:
    """Return the report as Markdown."""
    passed = sum(result["result"] == "passed" for result in found.values())
    failed = [name for name, result in found.items() if result["result"].startswith("FAILED")]
    left = [row.name for row in ROWS if row.name not in found]
    left += [name for name, result in found.items() if result["result"].startswith("not run")]
    verdict = f"{passed} of {len(ROWS)} rows passed; failed: {', '.join(failed) or 'none'}; "
    verdict += f"not run: {', '.join(left) or 'none'}."
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    rows, probes = [], []
    for row in ROWS:
        if (result := found.get(row.name)) is None:
            continue
        probe = result.get("probe", {})
        versions = f"{probe['python']}, {probe['sqlite']}" if probe else ""
        tests = result.get("tests", "")
        if result.get("red"):
            tests += "<br>" + "<br>".join(test.split(" - ")[0] for test in result["red"])
        cells = [row.what, versions, tests, result.get("chaos", ""), result["result"]]
        rows.append(f"| {' | '.join(cells)} |")
        if probe and not row.tests:
            names = f"{probe['locale']}, {probe['file names']}".replace(";", "; ")
            cells = [row.what, probe["zone"], names, str(probe["open files"]), probe["umask"]]
            probes.append(f"| {' | '.join([*cells, _base(probe['folder'])])} |")
    head = HEAD.format(verdict=verdict, chaos=" ".join(CHAOS), machine=machine)
    return head + "\n".join(rows) + "\n" + TAIL.format(probes="\n".join(probes))


def _base(folder: str) -> str:
    """Return a folder without the part of its name that is another one each time."""
    return re.sub(r"killproof-matrix-[^/']*", "...", folder).strip("'")


if __name__ == "__main__":
    sys.exit(main())
