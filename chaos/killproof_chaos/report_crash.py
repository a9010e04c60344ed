"""The page of a run of the engine `crash`, and the Markdown of several: the map of crash points.

A row for each operation, a column for each of its file calls, and above and below each column what
came of a kill before it, a kill after it, and of making it fail. Pure functions of the store: a
page that opens without a network, and says the same without colour.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from killproof_chaos import report, report_words, summary
from killproof_chaos.engines.crash_points import ERRORS, KILLS
from killproof_evidence.finding import PASS, UNKNOWN, VIOLATED
from killproof_evidence.judge import render_rows
from killproof_evidence.store import Store

#: Calls in one line of the map: what a page of 66 rem and a terminal of 110 columns can hold.
LINE_CALLS: Final = 100
CELL: Final = 9
LINE_HEIGHT: Final = 13
LABELS: Final = 58
#: Points that are told one by one, the violated first.
TOLD_MAX: Final = 40
WORST: Final = (VIOLATED, UNKNOWN, PASS)
LETTERS: Final = {PASS: ".", VIOLATED: "X", UNKNOWN: "?"}
#: A letter for each kind of call; capitals change what is on the disk.
CALL_LETTERS: Final = {
    "open": "o", "close": "c", "write": "W", "fsync": "S", "fdatasync": "S", "sync_range": "S",
    "truncate": "T", "allocate": "T", "rename": "R", "unlink": "U", "mkdir": "M", "rmdir": "M",
    "link": "R", "lock": "l", "unlock": "u", "getlock": "g",
}  # fmt: skip
#: What no run of this engine shows, whatever it found.
LIMITS: Final = (
    "A power cut: a kill takes back nothing that the kernel has accepted; the engine disk cuts "
    "the power.",
    "What happens between two file calls, in memory alone, and stores to the mapped index of the "
    "log: they are no calls.",
    "Two processes that race: the one that dies is alone in its operation, or a peer stands by; "
    "schedules are for the engine sim.",
    "Reads that fail, a second error while the first is dealt with, and a disk that stays full or "
    "broken. Each error strikes once.",
    "Another version of SQLite, of the C library or of the kernel: each may make other calls. A "
    "file of an older schema is not opened here.",
    "A death in the recovery itself, but for that of the operations open, reopen, reap and repair, "
    "which are killed like any other.",
)


def write_report(store: Path) -> Path:
    """Write report.html into the store of a run; return its path.

    Raises:
        StoreError: the run has no verdict yet; definite.
    """
    opened = Store(store)
    part = opened.report.with_name(f".{opened.report.name}.part")
    part.write_text(render(opened), encoding="utf-8")
    part.replace(opened.report)
    return opened.report


def render(store: Store) -> str:
    """Return the page."""
    record, run = store.read_verdict(), store.read_run()
    environment = report.pages()
    points = [point for _, point in store.read(store.path / "points.jsonl") if point is not None]
    worth_telling = [point for point in points if point["verdict"] != PASS]
    worth_telling.sort(key=lambda point: WORST.index(point["verdict"]))
    return environment.get_template("crash.html.j2").render(
        record=record,
        run=run,
        sentence=summary.headline(record),
        mark=report_words.mark,
        words=report_words.WORDS,
        rows=list(render_rows(record)),
        reasons=record["unknown_because"][: report_words.REASONS_MAX],
        reasons_left_out=max(0, len(record["unknown_because"]) - report_words.REASONS_MAX),
        calls=sum(len(row["calls"]) for row in record["operations"]),
        # Made here; every text in them is escaped.
        maps=[(row["operation"], len(row["calls"]), Markup(_map(row)))
              for row in record["operations"]],
        told=worth_telling[:TOLD_MAX],
        told_left_out=max(0, len(worth_telling) - TOLD_MAX),
        broken=[
            (number, report_words.SENTENCES.get(number, number), found)
            for number, found in record["properties"].items()
            if found["verdict"] == VIOLATED
        ],
        environment=report_words.environment_rows(record, run),
        limits=LIMITS,
        command=" ".join(map(str, run.get("argv") or ())),
        started=report_words.started(run),
    )  # fmt: skip


def _map(row: Mapping[str, Any]) -> str:
    """Return the calls of one operation as pictures, a line of calls in each."""
    lines = [
        _line(row["calls"][first : first + LINE_CALLS], first)
        for first in range(0, len(row["calls"]), LINE_CALLS)
    ]
    return "".join(lines)


def _line(calls: Sequence[Mapping[str, Any]], first: int) -> str:
    width = LABELS + CELL * LINE_CALLS
    parts = [
        f'<svg class="calls" viewBox="0 0 {width} {LINE_HEIGHT * 5}" role="img" '
        f'aria-label="calls {first + 1} to {first + len(calls)}">'
    ]
    for at, label in enumerate(("call", "", "before", "after", "failed")):
        if label:
            parts.append(f'<text class="tiny" x="0" y="{at * LINE_HEIGHT + 10}">{label}</text>')
    for column, call in enumerate(calls):
        x = LABELS + column * CELL
        number = first + column + 1
        if number % 10 == 0:
            parts.append(f'<text class="tiny" x="{x + 7}" y="10" text-anchor="end">{number}</text>')
        what = f"call {number}: {call['kind']} {call['file']}"
        letter = CALL_LETTERS.get(call["kind"], "?")
        parts.append(
            f'<text class="kind" x="{x + 4}" y="{LINE_HEIGHT + 10}">{letter}'
            f"<title>{escape(what)}</title></text>"
        )
        for at, faults in ((2, KILLS[:1]), (3, KILLS[1:]), (4, ERRORS)):
            worst = worst_of(call["verdicts"], faults)
            if worst:
                told = ", ".join(
                    f"{_moment(fault)}: {report_words.WORDS[call['verdicts'][fault]]}"
                    for fault in faults
                    if fault in call["verdicts"]
                )
                parts.append(
                    f'<use href="#{worst}" x="{x}" y="{at * LINE_HEIGHT}">'
                    f"<title>{escape(what)}; {escape(told)}</title></use>"
                )
    return "".join([*parts, "</svg>"])


def _moment(fault: str) -> str:
    return f"killed {fault}" if fault in KILLS else fault


def worst_of(verdicts: Mapping[str, str], faults: Iterable[str]) -> str:
    """Return the worst verdict of these faults at a call; empty where none of them applies."""
    found = {verdicts[fault] for fault in faults if fault in verdicts}
    return next((word for word in WORST if word in found), "")


# Markdown.


def write_markdown(stores: Sequence[Path], out: Path) -> Path:
    """Write the Markdown of several runs, and the page of the first beside it.

    Args:
        stores: of runs; the first is told in full, of the others what was found in them.
        out: such as `reports/crash.md`; the page gets the same name with `.html`.

    Raises:
        StoreError: a run has no verdict yet; definite.
    """
    opened = [Store(path) for path in stores]
    page = out.with_suffix(".html")
    page.write_text(render(opened[0]), encoding="utf-8")
    runs = [(store.read_verdict(), store.read_run()) for store in opened]
    out.write_text(markdown(runs, page.name), encoding="utf-8")
    return out


def markdown(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], page: str) -> str:
    """Return the Markdown of runs, each as (verdict.json, run.json)."""
    record, run = runs[0]
    where = report_words.environment_rows(record, run)
    lines = [
        "# Every crash point",
        "",
        "Each operation's file calls are counted once; then its process is killed before and after",
        "each of them, and each is made to fail. A clean process opens the file and finishes all",
        f"jobs, and the judge reads what was recorded. The map in colour: [{page}]({page}).",
        "",
        "| queue | verdict | operations | calls | kills | failed calls | seconds | found |",
        "|---|---|--:|--:|--:|--:|--:|---|",
        *(_summary(one, told) for one, told in runs),
        "",
        "A queue that is broken on purpose is here to show that the engine sees it.",
        "",
        "## How it was made",
        "",
        "`make report-crash`, which runs",
        "",
        "```sh",
        *(" ".join(map(str, told["argv"])) for _, told in runs),
        "```",
        "",
        f"Started {report_words.started(run) or 'not told'}. No seed: nothing is drawn, every call",
        "is taken. Recovered by a worker that was started by its command line: "
        f"{record['counts']['workers']:,}",
        f"points of {record['target']}; the others by a process that makes the same calls. In "
        f"{record['counts']['stopped']:,} points",
        "a failed sync stopped the queue, as it must, and the repair brought the file back.",
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in where),
        f"| files of the points | {record['files_in']} |",
        "",
        f"## The points of {record['target']}",
        "",
        "`.` no violation, `X` violated, `?` unknown, `-` no such failure of this call. Calls:",
        "o open, c close, W write, S sync, T size, R name, U unlink, l lock, u unlock, g ask for a",
        "lock.",
        "",
        "```text",
        *_text_map(record),
        "```",
        "",
        "## What this does not show",
        "",
        *(f"- {limit}" for limit in LIMITS),
        "",
    ]
    return "\n".join(lines)


def _summary(record: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    counts = record["counts"]
    calls = sum(len(row["calls"]) for row in record["operations"])
    found = "; ".join(summary.stories(record)).replace("|", "\\|") or (
        f"{record['coverage']['hit']:,} of {record['coverage']['obliged']:,} points reached"
    )
    name = record["target"] + (" (broken)" if run.get("broken") else "")
    return (
        f"| {name} | {record['verdict']} | {len(record['operations'])} | {calls:,} | "
        f"{counts['kills']:,} | {counts['errors']:,} | {record['seconds']:.0f} | {found} |"
    )


def _text_map(record: Mapping[str, Any]) -> Iterable[str]:
    """Yield the map in letters: four lines for each line of calls."""
    for row in record["operations"]:
        calls = row["calls"]
        yield f"{row['operation']}, {len(calls)} calls"
        for first in range(0, len(calls), LINE_CALLS):
            part = calls[first : first + LINE_CALLS]
            yield f"  {first + 1:>4}   {''.join(CALL_LETTERS.get(c['kind'], '?') for c in part)}"
            for label, faults in (("before", KILLS[:1]), ("after ", KILLS[1:]), ("failed", ERRORS)):
                found = (worst_of(call["verdicts"], faults) for call in part)
                yield f"  {label} {''.join(LETTERS.get(word, '-') for word in found)}".rstrip()
        yield ""
