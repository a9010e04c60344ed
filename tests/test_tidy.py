"""The house style as tests, so that nobody has to say it twice.

A `Rule` is a function of one file's path and text that yields what is wrong, and holds a text
that trips it: a rule that cannot fail would guard nothing. Rules about the whole tree follow
below, each with its own control. Words that a rule forbids are spelled here with brackets in the
pattern and with a broken bar in the control, so that this file keeps the rules too.
"""

import ast
import doctest
import importlib
import io
import os
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from killproof.core import jobs
from killproof.core.jobs import Queue
from killproof.core.model import EDGES, STATES

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("queue", "chaos", "bench")
CORE = ROOT / "queue/killproof/core"

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70  # A function that does not fit a screen hides its own shape.
CORE_LINES_MAX = 2_370  # The core is a 30-minute read; raising this is an entry in decisions.md.
TEST_NAME_WORDS_MIN = 4
BLOB_BYTES_MAX = 2 * 1024 * 1024

# What is made, not written. `.ci` is the one dotted folder with sources.
SKIPPED_FOLDERS = re.compile(
    r"\.(?!ci$).*|__pycache__|node_modules|.*\.egg-info|dist|build|killproof-store.*"
)
TEXT = re.compile(r".*\.(py|sql|md|toml|html|jinja|js|css|c|h|sh|jsonl|txt)|Makefile|run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the house."""

    name: str
    files: tuple[str, ...]  # Patterns over the path from the root; `*` spans folders too.
    problems: Callable[[str, str], Iterator[str]]  # Of (path, text), each "line: what, remedy".
    control: tuple[str, str]  # A (path, text) that must trip it, without its broken bars.
    exempt: tuple[str, ...] = ()

    def reads(self, path: str) -> bool:
        """Say whether the rule is about this file."""
        return any(fnmatch(path, p) for p in self.files) and not any(
            fnmatch(path, p) for p in self.exempt
        )


def tree(root: Path = ROOT) -> Iterator[Path]:
    """Yield every file that somebody wrote."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not SKIPPED_FOLDERS.fullmatch(name))
        yield from (Path(folder, name) for name in sorted(names))


def texts() -> Iterator[tuple[str, str]]:
    """Yield the path from the root and the text of every text file."""
    for path in tree():
        if TEXT.fullmatch(path.name):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def matches(pattern: str, remedy: str) -> Callable[[str, str], Iterator[str]]:
    """Make a check that finds a pattern in each line."""
    compiled = re.compile(pattern)

    def check(path: str, text: str) -> Iterator[str]:
        for number, line in enumerate(text.splitlines(), 1):
            if found := compiled.search(line):
                yield f"{number}: {found[0].strip()!r}: {remedy}"

    return check


def long_lines(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield f"{number}: {len(line)} columns, at most {COLUMNS_MAX}"


def long_functions(path: str, text: str) -> Iterator[str]:
    for function in functions(text):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{function.lineno}: {function.name} has {lines} lines, at most 70: split it"


def short_test_names(path: str, text: str) -> Iterator[str]:
    for function in functions(text):
        words = [word for word in function.name.split("_")[1:] if word]
        if function.name.startswith("test_") and len(words) < TEST_NAME_WORDS_MIN:
            yield f"{function.lineno}: {function.name} is no sentence: say what is guaranteed"


def calls(bans: dict[str, str]) -> Callable[[str, str], Iterator[str]]:
    """Make a check that finds names used as `module.attribute`, each ban with its replacement."""

    def check(path: str, text: str) -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute | ast.Name):
                name = ast.unparse(node)
                if name in bans:
                    yield f"{node.lineno}: {name}: use {bans[name]}"
            elif isinstance(node, ast.ImportFrom):
                for name in (f"{node.module}.{alias.name}" for alias in node.names):
                    if name in bans:
                        yield f"{node.lineno}: {name}: use {bans[name]}"

    return check


def foreign_imports(path: str, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            package = module.split(".")[0]
            if package not in sys.stdlib_module_names and package != path.split("/")[1]:
                yield f"{node.lineno}: {module}: this package needs the standard library alone"


def titles(path: str, text: str) -> Iterator[str]:
    prose = re.sub(r"^(```+).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^# \S.*", prose, flags=re.MULTILINE)
    if len(found) != 1 or not text.startswith("# "):
        yield f"1: {len(found)} titles: a document opens with its one '# Title'"


def dead_references(path: str, text: str) -> Iterator[str]:
    """A file that a text names must exist, seen from the root or from the text's own folder.

    Without an extension it is a reference only in Markdown and between backquotes. A missing
    `__init__.py` is no dead reference: the source roots must not have one, and texts say so.
    """
    pattern = r"(?<![\w/.<{*$-])(?:queue|chaos|bench|tests|docs|reports|examples)/[\w./-]+\.\w+"
    if path.endswith(".md"):
        pattern += (
            r"|(?<=\]\()(?!\w+:|#)[^)#\s]+|(?<=`)(?:queue|chaos|bench|tests|docs)/[\w./-]+(?=`)"
        )
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(pattern, line):
            if not name.endswith("/__init__.py") and not any(
                (base / name).exists() for base in (ROOT, (ROOT / path).parent)
            ):
                yield f"{number}: {name} does not exist"


def plain_begins(path: str, text: str) -> Iterator[str]:
    """A deferred transaction that reads and then writes fails at once with BUSY_SNAPSHOT.

    One function may begin so: the one that pins a snapshot for reading.
    """
    for function in functions(text):
        for node in ast.walk(function) if function.name != "_begin_read" else ():
            begun = node.value if isinstance(node, ast.Constant) else None
            if re.fullmatch(r"BEGIN( DEFERRED| TRANSACTION)*;?", str(begun).strip()):
                yield f"{function.lineno}: {begun!r}: BEGIN IMMEDIATE, or _begin_read"


def report_heads(path: str, text: str) -> Iterator[str]:
    for word in ("command", "seed", "machine", "python", "sqlite"):
        if word not in text.lower():
            yield f"1: the report does not name its {word}"
    if "what this does not show" not in text.lower():
        yield "1: the report has no 'What this does not show'"


PYTHON = ("*.py",)
QUEUE = ("queue/killproof/*.py",)
WALL_CLOCK = {
    f"{module}{name}": "the Clock handed in (killproof.core.clock)"
    for module in ("", "datetime.")
    for name in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today")
}
RULES = (
    Rule(
        name="lines fit 100 columns",
        files=("*.py", "*.sql", "*.c", "*.h", "*.sh", ".ci/run", "Makefile"),
        problems=long_lines,
        control=("tests/x.py", "x" * 101),
    ),
    Rule(
        name="functions fit a screen",
        files=PYTHON,
        problems=long_functions,
        control=("tests/x.py", "def f():\n" + "    pass\n" * 70),
    ),
    Rule(
        name="nothing is left for later",
        files=("*",),
        problems=matches(r"\b(TO[D]O|FIX[M]E|X[X]X|HAC[K])\b", "do it, or make it an issue"),
        control=("docs/x.md", "TO¦DO: later"),
    ),
    Rule(
        name="no text names the place where it was written",
        files=("*",),
        problems=matches(
            r"(?<![\w.~-])/(?:wor[k]|roo[t]|hom[e]/\w+)/\w", "say it without the path"
        ),
        control=("docs/x.md", "see /wo¦rk/main"),
    ),
    Rule(
        name="no text names how it was written",
        files=("*",),
        problems=matches(
            r"(?i)\b(?:(?:this|a|our|last|next) [s]ession\b(?! of)|sub-?[a]gents?"
            r"|[h]elper [a]gents?|language [m]odel|[A]I[- ][a]ssistant|chat[g]pt|[o]penai"
            r"|[a]nthropic|[c]laude)\b",
            "the repository is about the queue",
        ),
        control=("docs/x.md", "written by a sub¦agent"),
    ),
    Rule(
        name="no text leans on a document that is not here",
        files=("*",),
        problems=matches(
            r"\b(?:DESIG[N]|COR[E]|STYL[E]|EVIDENC[E]|HARNES[S]|FAULT[S]|BUG[S]|FEATURE[S]|BENC[H]"
            r"|BRIE[F])(?:\.md\b| \d|,? sections? \d)|\((?:COR[E]|DESIG[N]|EVIDENC[E])[,;)]",
            "give the reason itself, or name the page in docs/",
        ),
        control=("docs/x.md", "as DES¦IGN 7.3 says"),
    ),
    Rule(
        name="a document has one title",
        files=("*.md",),
        problems=titles,
        control=("docs/x.md", "# One\n\n# Two\n"),
    ),
    Rule(
        name="a file that a text names exists",
        files=("*",),
        exempt=(
            "tests/test_tidy.py",  # It names files that must not exist.
            "chaos/killproof_chaos/targets/public/*.py",  # They cite the files of other projects.
            "reports/scorecard*",  # So does the card that is made of them.
        ),
        problems=dead_references,
        control=("docs/x.md", "see [it](nothing.md) and `tests/nothing`"),
    ),
    Rule(
        name="a test's name is a sentence",
        files=("tests/*.py",),
        problems=short_test_names,
        control=("tests/x.py", "def test_ack():\n    pass\n"),
    ),
    Rule(
        name="nothing is mocked",
        files=("tests/*.py",),
        problems=matches(r"unittest[.]mock|unittest import [m]ock|\bmocke[r]\b", "pass in a fake"),
        control=("tests/x.py", "from unit¦test.mock import Mock"),
    ),
    Rule(
        name="nothing sleeps where time is a value",
        files=("tests/unit/*.py", "tests/stateful/*.py", "tests/checkers/*.py"),
        problems=calls({"time.sleep": "ManualClock (killproof.core.clock)"}),
        control=("tests/unit/x.py", "import time\ntime.sleep(1)\n"),
    ),
    Rule(
        name="a type is ignored by its code",
        files=PYTHON,
        problems=matches(r"#\s*type:\s*ignor[e](?!\[)", "name the code in brackets, and why"),
        control=("tests/x.py", "x = 1  # type: ig¦nore"),
    ),
    Rule(
        name="the queue reads the time in one place",
        files=QUEUE,
        exempt=("queue/killproof/core/clock.py",),
        problems=calls(WALL_CLOCK),
        control=("queue/killproof/x.py", "import time\nnow = time.time()\n"),
    ),
    Rule(
        name="the queue needs the standard library alone",
        files=QUEUE,
        exempt=(
            "queue/killproof/cli*.py",
            "queue/killproof/web.py",
            "queue/killproof/web_server.py",
            "queue/killproof/schedule_times.py",
        ),
        problems=foreign_imports,
        control=("queue/killproof/x.py", "import rich.table\n"),
    ),
    Rule(
        name="the judge needs the standard library alone",
        files=("chaos/killproof_evidence/*.py",),
        problems=foreign_imports,
        control=("chaos/killproof_evidence/x.py", "from killproof import Queue\n"),
    ),
    Rule(
        name="a transaction that writes is immediate",
        files=QUEUE,
        problems=plain_begins,
        control=("queue/killproof/x.py", "def f(c):\n    c.execute('BEGIN')\n"),
    ),
    Rule(
        name="a report says how it was made and what it does not show",
        files=("reports/*.md",),
        problems=report_heads,
        control=("reports/x.md", "# A report\n\nAll is well.\n"),
    ),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    broken = [
        f"{path}:{problem}"
        for path, text in texts()
        if rule.reads(path)
        for problem in rule.problems(path, text)
    ]

    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_broken_by_its_control(rule: Rule) -> None:
    path, text = rule.control

    assert rule.reads(path)
    assert list(rule.problems(path, text.replace("¦", "")))


# --- The layout of the tree.


def misplaced(paths: Iterable[str]) -> list[str]:
    """Name the modules that would shadow one of the standard library, or sit in a source root."""
    return [
        path
        for path in paths
        if path.endswith(".py") and path.split("/")[0] in SOURCE_ROOTS
        if path.count("/") == 1 or Path(path).stem in sys.stdlib_module_names
    ]


def test_no_module_lies_in_a_source_root_or_shadows_the_standard_library() -> None:
    assert misplaced(path for path, _ in texts()) == []


@pytest.mark.parametrize("path", ["queue/__init__.py", "bench/conf.py", "chaos/a/statistics.py"])
def test_a_module_in_the_wrong_place_is_found(path: str) -> None:
    assert misplaced([path]) == [path]


def imported_queue(root: Path) -> str:
    """Import `queue` with `root` first on the path, as a script in it would."""
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import queue; print(queue.__file__)"
    done = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_queue_is_the_standard_library_s_with_the_root_on_the_path(tmp_path: Path) -> None:
    shadow = tmp_path / "queue"
    shadow.mkdir()
    shadow.joinpath("__init__.py").touch()

    assert imported_queue(ROOT) == imported_queue(Path("/")) != ""
    assert imported_queue(tmp_path) == str(shadow / "__init__.py")


def large(paths: Iterable[Path], bytes_max: int) -> list[str]:
    return [path.name for path in paths if path.stat().st_size > bytes_max]


def test_no_file_is_a_large_blob(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"xx")

    assert large(tree(), BLOB_BYTES_MAX) == []
    assert large([blob], 1) == ["blob"]


def test_every_folder_of_tests_is_on_the_map() -> None:
    map_text = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(ROOT / "tests") for path in tree(ROOT / "tests")}
    unmapped = {f"{folder.parts[0]}/" for folder in folders if folder.parts} - set(
        re.findall(r"`(\w+/)`", map_text)
    )

    assert unmapped == set()


# --- The size of the core.


def python_lines(text: str) -> int:
    """Count lines of code: no blanks, no comments, no docstrings, no comments inside SQL texts."""
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    counted: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*blank, tokenize.ENDMARKER):
            counted.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                counted.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = text.splitlines()
    return sum(1 for number in counted if lines[number - 1].strip()[:2] not in ("", "--"))


def sql_lines(text: str) -> int:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return sum(1 for line in text.splitlines() if line.strip()[:2] not in ("", "--"))


def test_the_core_stays_a_thirty_minute_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Covers S0.10."""
    sizes = {
        path.name: (python_lines if path.suffix == ".py" else sql_lines)(path.read_text("utf-8"))
        for path in sorted(CORE.glob("*"))
        if path.suffix in (".py", ".sql")
    }
    with capsys.disabled():
        print(f"\nlines of the core: {sum(sizes.values())} of {CORE_LINES_MAX}: {sizes}")

    assert sum(sizes.values()) <= CORE_LINES_MAX


def test_only_code_counts_as_a_line() -> None:
    text = (
        '"""One.\n\nTwo."""\n\n# Three.\nX = """\nSELECT 1\n\n-- why\n"""\ndef f():\n    "Four."\n'
    )

    assert python_lines(text) == 4  # X, SELECT, the closing quotes, def.
    assert sql_lines("-- why\n\n/* a\nb */\nSELECT 1\n  FROM job\n") == 2


# --- How the statements of the core find their rows.

# What a plan may still say, and why that stays cheap.
ALLOWED_PLANS = {
    "COUNTS": "counting index entries is what it is asked for",
    "IDLE_WORKERS": "one look for each new worker, at 100 rows",
    "FIRST_OF_KINDS": "it sorts one row for each kind, not the jobs",
    "FIRST_OF_ALL": "it sorts one row for each kind, not the jobs",
}


def statements(*owners: object) -> dict[str, str]:
    """Return the SQL constants of modules and classes."""
    return {
        name: value
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, str) and re.match(r"\s*(SELECT|UPDATE|INSERT|DELETE|WITH)\b", value)
    }


def costly(connection: sqlite3.Connection, statement: str) -> list[str]:
    """Return the steps of a plan that read a whole table or index of ours, or sort."""
    values = dict.fromkeys(re.findall(r":(\w+)", statement))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    return [step for step in plan if re.match(r"SCAN (job|attempt|worker)\b|USE TEMP B-TREE", step)]


@pytest.fixture
def connection(place: Path) -> Iterator[sqlite3.Connection]:
    """An empty queue's file, opened with nothing but SQLite."""
    path = place / "queue.db"
    Queue(path).close()
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def test_no_statement_of_the_core_reads_a_table_from_end_to_end(
    connection: sqlite3.Connection,
) -> None:
    """Covers S0.28, S0.29, S0.30, S1.23, F54, F55, F56, F57.

    Partial indexes, one for each statement, stand where the articles' began with the status.
    """
    found = {
        name: steps
        for name, statement in statements(jobs, jobs.Queue).items()
        if (steps := costly(connection, statement))
    }

    assert set(found) == set(ALLOWED_PLANS), found


def test_a_statement_that_reads_a_table_from_end_to_end_is_found(
    connection: sqlite3.Connection,
) -> None:
    assert costly(connection, "SELECT id FROM job WHERE payload = :payload")
    assert costly(connection, "SELECT id FROM job WHERE state = 'available' ORDER BY created_ms")


# --- What the documents say of the code.


def documented_edges(text: str) -> set[tuple[str | None, str]]:
    """Read the rows `| from | to | when |` of the contract; `new` is the state before enqueue."""
    edges: set[tuple[str | None, str]] = set()
    for old, new in re.findall(r"^\| ([^|]+) \| ([^|]+) \|[^|]+\|$", text, flags=re.MULTILINE):
        for state in re.findall(r"new|`(\w+)`", old):
            edges.update((state or None, target) for target in re.findall(r"`(\w+)`", new))
    return {(old, new) for old, new in edges if new in STATES}


def test_the_contract_names_the_cause_of_every_edge_of_the_state_machine() -> None:
    text = (ROOT / "docs/semantics.md").read_text(encoding="utf-8")

    assert documented_edges(text) == EDGES
    assert documented_edges("| `held` | `dead` | why |\n| new | `dead` | x |") == {
        ("held", "dead"),
        (None, "dead"),
    }


def misnumbered_decisions(text: str) -> list[str]:
    """Return the headings that are out of order, and those of entries over 15 lines."""
    entries = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return [
        entry.splitlines()[0]
        for number, entry in enumerate(entries, 1)
        if not entry.startswith(f"{number}. ") or len(entry.strip().splitlines()) > 15
    ]


def test_decisions_are_numbered_in_order_and_at_most_fifteen_lines_long() -> None:
    text = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")

    assert misnumbered_decisions(text) == []
    assert misnumbered_decisions("# D\n\n## 1. A\n\nx\n\n## 3. B\n") == ["3. B"]
    assert misnumbered_decisions("## 1. A\n" + "x\n" * 15) == ["1. A"]


EXAMPLES = [
    path.relative_to(ROOT).as_posix()
    for root in SOURCE_ROOTS
    for path in tree(ROOT / root)
    if path.suffix == ".py" and re.search(r"^ *>>> ", path.read_text("utf-8"), flags=re.MULTILINE)
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_examples_in_a_docstring_are_true(
    path: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    name = ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__")
    tried = doctest.testmod(importlib.import_module(name), extraglobs={"path": "queue.db"})

    assert (tried.attempted > 0, tried.failed) == (True, 0)


def test_the_walkthrough_names_every_module_of_the_core() -> None:
    text = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8")
    modules = {path.name for path in CORE.glob("*") if path.suffix in (".py", ".sql")}

    assert {name for name in modules - {"__init__.py"} if f"`{name}`" not in text} == set()


def cog_check(page: Path) -> int:
    """Exit code of the check that a page's generated parts are what their code says; 5 is stale."""
    command = [sys.executable, "-m", "cogapp", "-I", str(ROOT / "docs"), "--check", str(page)]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode


@pytest.mark.parametrize("page", ["README.md", "docs/semantics.md", "docs/walkthrough.md"])
def test_the_generated_parts_of_a_page_are_current(tmp_path: Path, page: str) -> None:
    stale = tmp_path / "stale.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    stale.write_text(text.replace("]]] -->\n", "]]] -->\nby hand\n", 1), encoding="utf-8")

    assert cog_check(ROOT / page) == 0
    assert cog_check(stale) == 5


def test_what_the_walkthrough_never_quotes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    excerpts = runpy.run_path(str(ROOT / "docs/excerpts.py"))
    page = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8")
    shown, missing = excerpts["quoted"](page), excerpts["unquoted"](page)
    with capsys.disabled():
        print("\nthe walkthrough quotes these lines, and no line of so many functions:")
        for path in sorted(CORE.glob("*.py")):
            quoted = len(shown.get(path.relative_to(ROOT).as_posix(), ()))
            print(
                f"    {path.name:14}{quoted:4} lines{len(missing.get(path.name, ())):4} functions"
            )

    assert "retry.py" in excerpts["unquoted"]("")


# --- Who may import whom.

# One import that breaks each contract of pyproject.toml: (module to add it to, the import).
VIOLATIONS = {
    "The queue knows nothing of its harnesses; the harnesses know nothing of each other": (
        "queue/killproof/__init__.py",
        "import killproof_chaos",
    ),
    "Inside the core, each layer knows only those below": (
        "queue/killproof/core/errors.py",
        "import killproof.core.jobs",
    ),
    "The judge does not import the accused": (
        "chaos/killproof_evidence/__init__.py",
        "import killproof",
    ),
    "What stands above the core leaves SQLite to it; the file doctor looks at files": (
        "queue/killproof/handlers.py",
        "import sqlite3",
    ),
}


def copy_sources(target: Path) -> None:
    for root in SOURCE_ROOTS:
        shutil.copytree(ROOT / root, target / root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)


def lint_imports(root: Path) -> str:
    """Run the contracts over a copy of the sources; the copy comes first on the path."""
    command = Path(sys.executable).parent / "lint-imports"
    path = os.pathsep.join(str(root / name) for name in SOURCE_ROOTS)
    done = subprocess.run(
        [command, "--no-cache"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_the_import_contracts_are_kept(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    said = lint_imports(tmp_path)

    assert f"{len(VIOLATIONS)} kept, 0 broken" in said, said


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_an_import_contract_breaks_when_violated(tmp_path: Path, contract: str) -> None:
    copy_sources(tmp_path)
    module, statement = VIOLATIONS[contract]
    with (tmp_path / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{statement}\n")
    said = lint_imports(tmp_path)

    assert f"{contract} BROKEN" in said, said


def test_every_import_contract_has_a_violation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["name"] for contract in project["tool"]["importlinter"]["contracts"]}

    assert contracts == set(VIOLATIONS)
