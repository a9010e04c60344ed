"""The report of `killproof chaos prove`: one page over all engines, and the same in Markdown.

Pure functions of the store. The page opens without a network and runs no script; it links to the
page of each run, which lies beside it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from killproof_chaos import report, report_words
from killproof_chaos.prove.dealing import ENGINES
from killproof_chaos.prove.running import RUNS
from killproof_chaos.prove_command import rows_of
from killproof_chaos.report_markdown import plain, table
from killproof_chaos.summary import counted
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.store import Store

Record = Mapping[str, Any]

MARKDOWN: Final = "prove.md"
#: Of the picture of the time, in its own units.
WIDTH: Final = 900
LANE: Final = 30
LEFT: Final = 70
COLOURS: Final = {"pass": "#009e73", "violated": "#d55e00", "unknown": "#e69f00"}
#: In a bar, so that no reader needs the colour; where the bar has room for it.
SIGNS: Final = {"violated": "✗", "unknown": "?"}
SIGN_WIDE: Final = 16
#: What every such verdict leaves open.
LIMITS: Final = (
    "That the queue has no fault: within this budget, under these faults, none was found.",
    "What no engine judges for this target: the map says who judged what.",
    "The same schedule of real processes again: of the engine proc the seed fixes the plan alone.",
    "Another machine, file system or SQLite version; several hosts; network file systems.",
    "Disks that ignore flushes, and memory or sectors that come back as garbage.",
)


def write_report(folder: Path) -> Path:
    """Write prove.md and report.html into a store that was judged; return the page."""
    store = Store(folder)
    record, run = store.read_verdict(), store.read_run()
    pages = {
        row["run"]["name"]: f"{RUNS}/{row['run']['name']}/report.html"
        for row in record["runs"]
        if (folder / RUNS / row["run"]["name"] / "report.html").exists()
    }
    store.report.write_text(render(record, run, pages), encoding="utf-8")
    (folder / MARKDOWN).write_text(markdown(record, run, pages), encoding="utf-8")
    return store.report


def sentence(record: Record) -> str:
    """Return the result in one sentence."""
    said = report_words.verdict_sentence(record)
    shards = record["shards"]
    part = ""
    if len(shards["here"]) < shards["of"]:
        part = f"Shard {', '.join(map(str, shards['here']))} of {shards['of']}: "
    return f"{part}{said}"


def matrix(record: Record) -> list[tuple[str, str, str, list[str], str]]:
    """Return a row for each promise made: number, sentence, verdict, each engine's word, detail."""
    rows = []
    for entry in PROPERTIES:
        found = record["properties"][entry.number]
        if found["verdict"] == "not_promised":
            continue
        by = found.get("judged_by", {})
        detail = found["witnesses"][0]["story"] if found["witnesses"] else found.get("reason", "")
        words = [by.get(name, "") for name in engines_of(record)]
        rows.append((entry.number, entry.sentence, str(found["verdict"]), words, str(detail)))
    return rows


def engines_of(record: Record) -> list[str]:
    """Return the engines that were run, in their order."""
    made = {row["run"]["engine"] for row in record["runs"]}
    return [name for name in ENGINES if name in made]


def picture(record: Record) -> str:
    """Return the campaign over time as SVG: a lane for each engine, a bar for each run."""
    names = engines_of(record)
    runs = record["runs"]
    whole = max((row["began"] + row["seconds"] for row in runs), default=0.0)
    longest = max(whole, float(record["budget"]), 1.0)
    scale = (WIDTH - LEFT - 10) / longest
    height = LANE * len(names) + 34
    parts = [
        f'<svg class="plan" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="The runs of each engine over time">'
    ]
    for at, name in enumerate(names):
        middle = LANE * at + 21
        parts.append(f'<text x="0" y="{middle}">{escape(name)}</text>')
        for row in (row for row in runs if row["run"]["engine"] == name):
            left = LEFT + row["began"] * scale
            colour = COLOURS.get(row["verdict"], "#59626c")
            # Thin, and not pale: a paler red is the orange of what is unknown.
            tall = LANE - 10 if row["run"]["owed"] else LANE // 2 - 4
            top = LANE * at + 6 + (LANE - 10 - tall) // 2
            told = f"{row['run']['name']}: {row['verdict']}, {row['seconds']:.0f} s"
            wide = max(row["seconds"] * scale, 2)
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}"'
                f' height="{tall}" rx="3" fill="{colour}">'
                f"<title>{escape(told)}</title></rect>"
            )
            if row["verdict"] in SIGNS and wide >= SIGN_WIDE:
                parts.append(
                    f'<text class="sign" x="{left + 4:.1f}" y="{middle - 1}">'
                    f"{SIGNS[row['verdict']]}</text>"
                )
    base = LANE * len(names) + 4
    parts.append(f'<path class="base" d="M{LEFT} {base}H{WIDTH - 10}"/>')
    end = LEFT + float(record["budget"]) * scale
    parts.append(f'<path class="budget" d="M{end:.1f} 0V{base}"/>')
    parts += [
        f'<text class="tiny" x="{LEFT}" y="{base + 16}">0 s</text>',
        f'<text class="tiny" x="{end:.1f}" y="{base + 16}" text-anchor="end">'
        f"budget {record['budget']:.0f} s</text>",
        "</svg>",
    ]
    return "".join(parts)


def tiles(record: Record) -> Sequence[tuple[str, str, str]]:
    """Return the figures at the top of the page: what, how much, of what."""
    made, covered = record["properties"].values(), record["coverage"]
    promised = [found for found in made if found["verdict"] != "not_promised"]
    passed = sum(found["verdict"] == "pass" for found in promised)
    engines = engines_of(record)
    spent = sum(row["seconds"] for row in record["runs"])
    parts = len(record["shards"]["here"])
    budget = f"{record['budget']:.0f} s" if parts == 1 else f"{parts} x {record['budget']:.0f} s"
    return (
        ("promises without a violation", str(passed), f"of {len(promised)} made"),
        ("engines", str(len(engines)), ", ".join(engines)),
        ("obligations met", f"{covered['hit']:,}", f"of {covered['obliged']:,}"),
        ("runs", str(len(record["runs"])), f"{spent:.0f} s of {budget}"),
    )


def machine(record: Record, run: Record) -> list[tuple[str, str]]:
    """Return where it was made, by which version, when."""
    rows = [("killproof", str(record["version"])), ("seed", str(record["seed"]))]
    rows += [("started", report_words.started(run) or "not told")]
    return [*rows, *report_words.environment_rows(record, run)]


def left_out(record: Record) -> list[str]:
    """Return what was not run, and why."""
    lines = [f"{name}: {why}" for name, why in record["left_out"].items()]
    spare = [run["name"] for run in record["not_made"] if not run["owed"]]
    if spare:
        lines.append(
            f"no time was left for {counted(len(spare), 'further run')}: {', '.join(spare)}"
        )
    return lines


def markdown(record: Record, run: Record, pages: Mapping[str, str]) -> str:
    """Return the report in Markdown."""
    engines = engines_of(record)
    promises = table(
        ("promise", "verdict", *engines, ""),
        [
            (
                f"{plain(said)} ({number})",
                f"{report_words.mark(word)} {word.replace('_', ' ')}",
                *(report_words.mark(each) if each else "" for each in words),
                plain(detail),
            )
            for number, said, word, words, detail in matrix(record)
        ],
    )
    runs = table(
        ("run", "owed", "seconds", "obligations", "verdict", "command"),
        [
            (
                f"[{name}]({pages[name]})" if name in pages else name,
                "yes" if row["run"]["owed"] else "",
                f"{row['seconds']:.0f}",
                f"{row['hit']}/{row['obliged']}" if row["obliged"] else "",
                f"{row['verdict']}",
                f"`{row['replay'][:160]}`" if row["replay"] else plain(row["why"]),
            )
            for row in record["runs"]
            for name in [row["run"]["name"]]
        ],
    )
    parts = [
        f"# Proof: {plain(record['target'])}",
        f"**{plain(sentence(record))}**",
        f"Command: `{' '.join(map(str, run['argv']))}`. The same with its picture: "
        "[report.html](report.html).",
        "\n".join(f"- unknown because {plain(why)}" for why in record["unknown_because"][:40]),
        "## Who judged what",
        "A sign under an engine is its own word; nothing: it does not judge this promise.",
        promises,
        "\n".join(f"- {number}, {engine}: `{command}`"
                  for number, engine, command in commands(record)),
        "## Runs",
        "A run that is not owed makes the evidence larger, and nothing waits for it.",
        runs,
        "\n".join(f"- {plain(line)}" for line in left_out(record)),
        "## Machine",
        table(("", ""), [(plain(n), plain(v)) for n, v in machine(record, run)]),
        "## What this does not show",
        "\n".join(f"- {plain(limit)}" for limit in LIMITS),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def commands(record: Record) -> list[tuple[str, str, str]]:
    """Return a command that shows each violation again: promise, engine, command."""
    found: dict[tuple[str, str], str] = {}
    for one in record["replays"]:
        found.setdefault((one["promise"], one["engine"]), one["command"])
    return [(number, engine, command) for (number, engine), command in found.items()]


def render(record: Record, run: Record, pages: Mapping[str, str]) -> str:
    """Return the page."""
    environment = report.pages()
    return environment.get_template("prove.html.j2").render(
        record=record,
        sentence=sentence(record),
        mark=report_words.mark,
        words=report_words.WORDS,
        tiles=tiles(record),
        engines=engines_of(record),
        rows=rows_of(record),
        matrix=matrix(record),
        # Made here; every text in it is escaped.
        picture=Markup(picture(record)),
        commands=commands(record),
        pages=pages,
        left_out=left_out(record),
        machine=machine(record, run),
        limits=LIMITS,
        command=" ".join(map(str, run["argv"])),
        started=report_words.started(run),
    )
