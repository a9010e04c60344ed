"""The scorecard for people: a table in the terminal, Markdown to commit, and a page.

Pure functions of the record that `killproof chaos scorecard` leaves as scorecard.json. What is said
of other people's work is said carefully: a queue is judged on what its own documents promise, a
promise that it does not make is no fault, and each accusation has the command that shows it.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from killproof.wording import one_line
from killproof_chaos import report, report_words
from killproof_chaos.report_markdown import plain, table
from killproof_chaos.scorecard.cards import RUNS, RUNS_MIN, TRIES
from killproof_chaos.summary import MARKS
from killproof_evidence.judge import PROPERTIES

Record = Mapping[str, Any]

SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    **MARKS,
    "unconfirmed": ("~", "yellow"),
    "failed": ("!", "dim"),
}
WORDS: Final = {**report_words.WORDS, "unconfirmed": "unconfirmed", "failed": "could not be run",
                "pass": "pass", "not_judged": "not judged"}  # fmt: skip
#: How the table is to be read; all of it stands above it.
METHOD: Final = (
    "Each queue is judged on what its own documents promise, and on nothing else; where it "
    "promises something stands beside each promise. A queue that promises a job at most once, and "
    "loses one whose worker died, keeps its promise, and passes.",
    "Each has the worker loop and the recovery that its documents recommend, and a lease (where it "
    "has one) longer than any handler takes. All stand behind the same adapter, and so do two "
    "controls: healthy queues of this repository that must be accused of nothing.",
    "A level stands beside a promise that has several: process, what was accepted survives a kill; "
    "power, also a power cut; at-most-once, transaction or key, how a second effect is prevented.",
    f"A violation is printed where it was seen again: in each of {TRIES} tries when an engine that "
    f"repeats itself shows it (crash, disk, sim), in at least {RUNS_MIN} of {RUNS} runs of its "
    "plan when only real processes do, after it was shrunk to the fewest kinds of faults. What "
    "people have read in the code, and seen by hand, stands beside it. What was seen and not "
    "confirmed is told as unconfirmed: it may be rare, or the machine's, and accuses nobody.",
    "A pass means that no violation was found within the budget. It does not mean that there is "
    "none, and an unknown is no fault: the evidence was not enough.",
)
#: In the notes of a queue: what is to be said of it beside the single promises.
ALL: Final = "all"
#: What no row of it says.
LIMITS: Final = (
    "How good a queue is. Features, speed, documentation and care for its users are not judged.",
    "Other versions, settings, brokers or databases of the same project than those named.",
    "Rare faults. A minute of faults finds what happens in one run of many, not in one of a "
    "thousand; an engine that could not look at a queue (not judged) has found nothing in it.",
    "Promises that an adapter's author did not read out of the documents, or read wrongly: where "
    "each was found is told, so that a maintainer can correct it.",
    "Other machines. One host, two cores, one file system, one SQLite each.",
)
LEVELS: Final = {
    0: "L0: what its producers, handlers and its own listing tell",
    1: "L1: each change of its table, by triggers",
    2: "L2: its code under a scheduler",
    3: "L3: its code under a scheduler, and killed at named places",
}


def terminal(record: Record) -> list[RenderableType]:
    """Return what is printed: the table, the violations, and one sentence."""
    found = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    found.add_column("queue", no_wrap=True)
    found.add_column("verdict", no_wrap=True)
    for number in columns(record):
        found.add_column(number.removeprefix("P"), justify="center", min_width=2, no_wrap=True)
    for card in record["cards"]:
        mark, style = SIGNS[card["verdict"]]
        cells = {cell["promise"]: cell for cell in card["cells"]}
        found.add_row(
            card["queue"],
            Text(f"{mark} {WORDS[card['verdict']]}", style=style),
            *(_short(cells.get(number)) for number in columns(record)),
        )
    key = "  ".join(f"{mark} {WORDS[word]}" for word, (mark, _) in SIGNS.items())
    lines = [f"columns are promises; {key}"]
    for card in record["cards"]:
        lines += [f"{card['queue']}: {one_line(card['why'])}"] if card["why"] else []
        for cell in accusations(card):
            lines += [
                f"{card['queue']} {cell['promise']} {cell['verdict']}: {one_line(cell['story'])} "
                f"({cell['confirmed']})",
                f"  {cell['command']}",
            ]
    return [found, Text("\n".join(lines)), Text(sentence(record), style="bold")]


def _short(cell: Record | None) -> Text:
    word = "failed" if cell is None else str(cell["verdict"])
    mark, style = SIGNS[word]
    return Text(mark, style=style)


def sentence(record: Record) -> str:
    """Return the result in one sentence."""
    others = [card for card in record["cards"] if not card["control"]]
    controls = [card for card in record["cards"] if card["control"]]
    count = {
        word: sum(card["verdict"] == word for card in others)
        for word in ("violated", "unconfirmed", "unknown", "pass", "failed")
    }
    told = ", ".join(f"{number} {WORDS[word]}" for word, number in count.items() if number)
    accused = [card["queue"] for card in controls if card["verdict"] != "pass"]
    beside = f"; controls without a pass: {', '.join(accused)}" if accused else "; controls pass"
    queues = f"{len(others)} public queue{'' if len(others) == 1 else 's'}"
    early = " (interrupted)" if record["interrupted"] else ""
    return f"{queues}: {told or 'none judged'}{beside if controls else ''}{early}"


def columns(record: Record) -> list[str]:
    """Return the promises that any queue on the card makes."""
    made = {name for card in record["cards"] for name in card["promises"]}
    return [entry.number for entry in PROPERTIES if entry.number in made]


def accusations(card: Record) -> list[Record]:
    """Return the cells that say something was seen broken."""
    return [cell for cell in card["cells"] if cell["verdict"] in ("violated", "unconfirmed")]


def not_tested(card: Record) -> list[str]:
    """Return what was not tested of a queue, in sentences."""
    lines = []
    by_word: dict[str, list[str]] = {}
    for cell in card["cells"]:
        by_word.setdefault(cell["verdict"], []).append(cell["promise"])
    for word, told in (("not_judged", "promised and judged by no engine"),
                       ("unknown", "promised, with too little evidence")):  # fmt: skip
        if names := by_word.get(word):
            lines.append(f"{told}: {', '.join(names)}")
    record = card.get("record") or {}
    lines += [f"{name} was left out: {why}" for name, why in (record.get("left_out") or {}).items()]
    if card["cells"]:
        engines = {row["run"]["engine"] for row in record.get("runs", ())}
        if "sim" not in engines:
            lines.append("schedules of single statements: its code was not run under a scheduler")
        if not card["history"]:
            lines.append(
                "what its workers were told: only their handlers and the file were watched"
            )
        if card["promises"].get("P1") != "power":
            lines.append(
                "whether what it has accepted survives a power cut: it does not promise that"
            )
    if (most := card["parameters"].get("workers_max")) is not None:
        workers = "one worker" if most == 1 else f"{most} workers"
        lines.append(f"more than {workers} at a time, for which it is not made")
    options = card["parameters"].get("options")
    if options is not None:
        told = ", ".join(options) or "none"
        lines.append(f"options of an enqueue other than: {told}")
    return lines


def versions(card: Record, record: Record) -> str:
    """Return the queue's version, and what it runs on; not what the harness runs on."""
    told = ", ".join(card["packages"]) or f"killproof {record['version']}"
    runs_on = card.get("runs_on")
    return f"{told}, on {runs_on['runtime']} with SQLite {runs_on['sqlite']}" if runs_on else told


def engines(card: Record) -> list[tuple[str, ...]]:
    """Return what each engine did, a row for each run: its name, what it tried, its word, why."""
    rows: list[tuple[str, ...]] = []
    for row in (card.get("record") or {}).get("runs", ()):
        word = row["verdict"]
        reasons = row.get("unknown_because") or ([row["why"]] if row.get("why") else [])
        owed = f"{row['hit']} of {row['obliged']}" if row.get("obliged") else ""
        told = _word(word) if word in SIGNS else f"! {word}"
        why = "; ".join(one_line(str(reason)) for reason in reasons)
        rows.append((row["run"]["engine"], row.get("tried", ""), owed, told, why))
    return rows


def settings(card: Record) -> str:
    """Return the settings under which it ran."""
    given = {k: v for k, v in card["parameters"].items() if k != "options"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "its defaults"


def write_reports(record: Record, out: Path) -> Path:
    """Write the Markdown to `out` and the page beside it; return the page."""
    page = out.with_suffix(".html")
    page.write_text(render(record), encoding="utf-8")
    out.write_text(markdown(record, page.name), encoding="utf-8")
    return page


def day(record: Record) -> str:
    """Return the day on which it was made."""
    return datetime.fromtimestamp(record["ended"], UTC).strftime("%Y-%m-%d")


def markdown(record: Record, page: str) -> str:
    """Return the card in Markdown."""
    names = columns(record)
    heads = ("queue", "all", *names, "version", "SQLite", "evidence")
    rows = [
        (
            f"**{plain(card['queue'])}**" + (" (control)" if card["control"] else ""),
            _word(card["verdict"]),
            *(_cell(card, number) for number in names),
            plain(card["packages"][0] if card["packages"] else f"killproof {record['version']}"),
            plain((card.get("runs_on") or {}).get("sqlite", "")),
            LEVELS[card["level"]].split(":")[0],
        )
        for card in record["cards"]
    ]
    parts = [
        "# Scorecard: queues on SQLite, and what they promise",
        f"**{plain(sentence(record))}.**",
        f"Command: `{' '.join(record['argv'])}`, {day(record)}, "
        f"killproof {plain(record['version'])}, seed {record['seed']}, "
        f"{record['budget']:g} s for each queue. The same as a page: [{page}]({page}).",
        _machine(record),
        "## How to read it",
        "\n".join(f"- {line}" for line in METHOD),
        "## The card",
        table(heads, rows),
        "\n".join(f"- {number}: {_sentence(number)}" for number in names),
        "Evidence: " + "; ".join(LEVELS.values()) + ".",
        *(_section(card, record) for card in record["cards"]),
        "## What this does not show",
        "\n".join(f"- {line}" for line in LIMITS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sentence(number: str) -> str:
    return next(entry.sentence for entry in PROPERTIES if entry.number == number)


def _word(word: str) -> str:
    return f"{SIGNS[word][0]} {WORDS[word]}"


def _cell(card: Record, number: str) -> str:
    cell = next((cell for cell in card["cells"] if cell["promise"] == number), None)
    return _word("failed" if cell is None else cell["verdict"])


def _machine(record: Record) -> str:
    for card in record["cards"]:
        where = (card.get("record") or {}).get("environment")
        if where:
            told = report_words.environment_rows({"environment": where}, {})
            words = ", ".join(f"{name} {plain(value)}" for name, value in told)
            return f"The harness and its machine (what a queue runs on stands with it): {words}."
    return ""


def _section(card: Record, record: Record) -> str:
    lines = [
        f"## {plain(card['queue'])}",
        f"{_word(card['verdict'])}. {plain(versions(card, record), 600)}.",
    ]
    if card["why"]:
        lines.append(f"It could not be run, which says nothing of it: {plain(card['why'])}.")
        return "\n\n".join(lines)
    lines.append(f"Judged in {plain(card['record']['tried'])}. Settings: {plain(settings(card))}.")
    lines.append(table(("promise", "verdict", "judged by", "where it is promised", ""),
                       [_promise(card, cell) for cell in promised(card)]))  # fmt: skip
    lines.append(table(("engine", "what it did", "of what it owed", "verdict", "why"),
                       [tuple(map(plain, row)) for row in engines(card)]))  # fmt: skip
    for cell in accusations(card):
        lines.append(_accusation(card, cell, record))
    if note := note_of(card, ALL, record):
        lines.append(f"To be fair: {plain(note, 1_000)}")
    lines.append("Not tested: " + "; ".join(map(plain, not_tested(card))) + ".")
    return "\n\n".join(line for line in lines if line)


def promised(card: Record) -> list[Record]:
    """Return the cells of what a queue promises."""
    return [cell for cell in card["cells"] if cell["verdict"] != "not_promised"]


def named(card: Record, cell: Record) -> str:
    """Return a promise's number, with the level that the queue promises where it has several."""
    made = card["promises"].get(cell["promise"])
    return f"{cell['promise']}, {made}" if isinstance(made, str) else str(cell["promise"])


def _promise(card: Record, cell: Record) -> tuple[str, ...]:
    return (
        f"{_sentence(cell['promise'])} ({named(card, cell)})",
        _word(cell["verdict"]),
        ", ".join(cell["by"]),
        plain(cell["cite"]),
        plain(cell["reason"] or cell["confirmed"]),
    )


def _accusation(card: Record, cell: Record, record: Record) -> str:
    note = note_of(card, cell["promise"], record)
    how = "Violated" if cell["verdict"] == "violated" else "Seen, and not confirmed"
    lines = [
        f"**{cell['promise']}, {_sentence(cell['promise'])}.** {how}: {plain(cell['story'])} "
        f"({plain(cell['confirmed'])}; found by {', '.join(cell['by'])}).",
        f"Read in its code: {plain(note, 1_000)}" if note else "",
        f"```sh\n{cell['command'].replace('`', '')}\n```" if cell["command"] else "",
    ]
    return "\n\n".join(line for line in lines if line)


def note_of(card: Record, number: str, record: Record) -> str:
    """Return what a person has found in the queue's code about a promise, or ALL of it."""
    return str(record["notes"].get(card["queue"], {}).get(number, ""))


def render(record: Record) -> str:
    """Return the page."""
    environment = report.pages()
    return environment.get_template("scorecard.html.j2").render(
        record=record,
        sentence=sentence(record),
        columns=columns(record),
        sentences={entry.number: entry.sentence for entry in PROPERTIES},
        sign={word: mark for word, (mark, _) in SIGNS.items()},
        words=WORDS,
        method=METHOD,
        limits=LIMITS,
        levels=LEVELS,
        cards=[_shown(card, record) for card in record["cards"]],
        command=" ".join(record["argv"]),
        day=day(record),
        machine=_machine(record),
    )


def _shown(card: Record, record: Record) -> dict[str, Any]:
    """Return a card with what the page says of it."""
    cells: Iterable[Record] = card["cells"]
    return {
        **card,
        "record": card.get("record"),  # One that could not be run has none.
        "of": {cell["promise"]: cell for cell in cells},
        "made": [{**cell, "named": named(card, cell)} for cell in promised(card)],
        "accusations": [{**cell, "note": note_of(card, cell["promise"], record)}
                        for cell in accusations(card)],
        "settings": settings(card),
        "not_tested": not_tested(card),
        "version": versions(card, record),
        "short": card["packages"][0] if card["packages"] else f"killproof {record['version']}",
        "engines": engines(card),
        "fair": note_of(card, ALL, record),
    }  # fmt: skip
