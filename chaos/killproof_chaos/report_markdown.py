"""The report to commit: Markdown, read in a repository's browser or in a terminal.

It names its command, seed, machine and versions, so that somebody else can make it again, and
says what it does not show. Several runs, such as ten seeds in a row, stand in one table; the
first one is told in full.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from killproof_chaos import report_words, summary
from killproof_chaos.report_figures import SAME_FAULT, Bin, Figures
from killproof_evidence.finding import VIOLATED
from killproof_evidence.judge import render_rows

#: A verdict and how its run was made: verdict.json and run.json.
Run = tuple[Mapping[str, Any], Mapping[str, Any]]

COLUMNS: Final = 60  #: of the picture
LEVELS: Final = 8  #: of the picture
CHARS_MAX: Final = 300  #: of a text that came out of a store
LINES_MAX: Final = 12  #: of a witness


def markdown(runs: Sequence[Run], figures: Figures, page: str) -> str:
    """Return the whole report.

    Args:
        runs: at least one; the first is told in full.
        figures: of the first run.
        page: name of the HTML report beside this one.
    """
    record, run = runs[0]
    parts = [
        f"# Chaos: {plain(record['target'])} under the engine {plain(record['engine'])}",
        f"**{report_words.verdict_sentence(record)}**",
        _summary_of_all(runs),
        f"Command: `{_code(' '.join(map(str, run.get('argv') or ['not', 'told'])))}`",
        _head(record, run),
        f"The same run with its pictures: [{page}]({page}).",
        _broken_names(record),
        _reasons(record),
        "## Promises",
        _promises(record),
        report_words.unanswered(record),
        _broken(record),
        _all_runs(runs),
        "## Over time",
        f"```text\n{picture(figures)}\n```",
        _latency(figures),
        "## Faults and obligations",
        _faults(record, figures),
        "## Recovery",
        _recovery(figures),
        "## What this does not show",
        "\n".join(
            f"- {plain(limit, 10 * CHARS_MAX)}" for limit in report_words.limits(record, run)
        ),
        "## Run it again",
        f"```sh\n{_code(str(record.get('replay') or 'killproof chaos run'))}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: object, chars_max: int = CHARS_MAX) -> str:
    r"""Return a text from a store as text of a Markdown table or paragraph, and as nothing else.

    >>> print(plain("a | <b> `c`"))
    a \| &lt;b&gt; \`c\`
    """
    words = " ".join(str(text)[:chars_max].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for letter in "\\`*_[]|":
        shown = shown.replace(letter, f"\\{letter}")
    return shown


def _code(text: str) -> str:
    """Return a text that cannot end the code around it."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown.replace("`", "'")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; its cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _summary_of_all(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return ""
    passed = sum(record["verdict"] == "pass" for record, _ in runs)
    kills = sum(record["counts"].get("kills", 0) for record, _ in runs)
    jobs = sum(record["jobs"].get("enqueued", 0) for record, _ in runs)
    return (
        f"{len(runs)} runs, one seed each: {passed} without a violation and with every obligation "
        f"met; {kills:,} kills and {jobs:,} jobs in all."
    )


def _head(record: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    environment = report_words.environment_rows(record, run)
    rows = [
        ("seed", str(record.get("seed"))),
        ("started", report_words.started(run) or "not told"),
        ("machine", _machine(record)),
        *(
            (name, value)
            for name, value in environment
            if name not in {"CPU", "architecture", "cores"}
        ),
    ]
    return table(("", ""), ((plain(name), plain(value)) for name, value in rows))


def _machine(record: Mapping[str, Any]) -> str:
    environment = record.get("environment") or {}
    found = [environment.get("machine"), environment.get("cpu")]
    cores = environment.get("cores")
    found.append(summary.counted(cores, "core") if isinstance(cores, int) else None)
    return ", ".join(str(value) for value in found if value is not None) or "not told"


def _broken_names(record: Mapping[str, Any]) -> str:
    return "\n".join(
        f"- broken: {report_words.SENTENCES.get(number, number)} ({number})"
        for number, found in record["properties"].items()
        if found["verdict"] == VIOLATED
    )


def _reasons(record: Mapping[str, Any]) -> str:
    found, left_out = report_words.reasons(record)
    lines = [f"- {plain(reason)}" for reason in found]
    if left_out:
        lines.append(f"- and {left_out} more")
    why = "What is not certain:" if record["verdict"] == VIOLATED else "Why it is unknown:"
    return "\n".join([why, "", *lines]) if lines else ""


def _promises(record: Mapping[str, Any]) -> str:
    rows = []
    for row in render_rows(record):
        verdict = f"{report_words.mark(row.verdict)} {report_words.WORDS[row.verdict]}"
        checked = f"{row.checked:,}" if row.checked else ""
        rows.append((row.sentence, verdict, checked, row.names))
    return table(("promise", "verdict", "cases checked", ""), rows)


def _broken(record: Mapping[str, Any]) -> str:
    parts = []
    for number, found in record["properties"].items():
        if found["verdict"] != VIOLATED or not found["witnesses"]:
            continue
        witness = found["witnesses"][0]
        lines = [
            f"{line['file']}:{line['line']}  {line['text'][:CHARS_MAX]}"
            for line in witness["lines"][:LINES_MAX]
        ]
        sentence = report_words.SENTENCES.get(number, number)
        parts += [
            f"### {sentence} ({number})",
            f"{plain(witness['story'])}.",
            "```text\n" + "\n".join(map(_code, lines)) + "\n```",
        ]
    return "\n\n".join(["## What was broken", *parts]) if parts else ""


def _all_runs(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return ""
    figures = ("recovery median", "p99", "slowest", "length")
    head = ("seed", "verdict", "kills", "pauses", "jobs ended", "obligations met", *figures)
    rows = [_line(record, run) for record, run in runs]
    note = (
        "Recovery: from the kill of a lease's holder to the next claim, while a peer was idle; "
        "of fewer than 100 kills the p99 is the slowest."
    )
    return f"## {len(runs)} seeds\n\n{table(head, rows)}\n\n{note}"


def _line(record: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[str, ...]:
    recovery, coverage = record.get("recovery_ms") or {}, record["coverage"]
    seconds = report_words.length(run)
    return (
        plain(record.get("seed")),
        f"{report_words.mark(record['verdict'])} {report_words.WORDS[record['verdict']]}",
        f"{record['counts'].get('kills', 0):,}",
        f"{record['counts'].get('pauses', 0):,}",
        f"{record['jobs'].get('ended', 0):,}",
        f"{coverage['hit']} of {coverage['obliged']}",
        *(report_words.duration(recovery.get(name)) for name in ("p50", "p99", "max")),
        "n/a" if seconds is None else f"{seconds:.0f} s",
    )


def _latency(figures: Figures) -> str:
    rows = [
        (name, f"{s.count:,}", *(report_words.duration(v) for v in (s.p50, s.p99, s.largest)))
        for name, s in (
            ("claim call that got a job", figures.claims),
            ("enqueue, or due time, to the end", figures.jobs),
        )
    ]
    return table(("latency under attack", "n", "median", "p99", "slowest"), rows)


def _faults(record: Mapping[str, Any], figures: Figures) -> str:
    made: dict[str, int] = {}
    for mark in figures.faults:
        name = SAME_FAULT.get(mark.fault, mark.fault)
        made[name] = made.get(name, 0) + 1
    hits: dict[str, int] = {}
    for name, count in record["faults"].items():
        hits[SAME_FAULT.get(name, name)] = hits.get(SAME_FAULT.get(name, name), 0) + count
    rows = [(plain(name), f"{made[name]:,}", f"{hits.get(name, 0):,}") for name in sorted(made)]
    coverage = record["coverage"]
    told = (
        f"Obligations, declared before the run: {coverage['hit']} of {coverage['obliged']} met"
        + (f"; missed: {'; '.join(map(plain, coverage['missed']))}." if coverage["missed"] else ".")
    )
    if not rows:
        return f"No fault was made.\n\n{told}"
    return f"{table(('fault', 'made', 'hit a named phase'), rows)}\n\n{told}"


def _recovery(figures: Figures) -> str:
    spreads = (
        ("a peer was idle", figures.recovery_idle),
        ("all peers were busy", figures.recovery_busy),
    )
    if not any(spread.count for _, spread in spreads):
        return "No worker was killed while it held a lease."
    head = ("kill of a lease's holder to the next claim", "n", "median", "p99", "slowest")
    rows = [
        (name, f"{s.count:,}", *(report_words.duration(v) for v in (s.p50, s.p99, s.largest)))
        for name, s in spreads
    ]
    note = (
        "A p99 of fewer than 100 values would only repeat the slowest; it is left out.\n"
        "The clock stands still while a stopped or foreign process holds the write lock."
    )
    return f"{table(head, rows)}\n\n{note}"


def picture(figures: Figures) -> str:
    """Draw jobs ended per second over the run, and under it where kills and pauses fell."""
    columns = _columns(figures.bins)
    if not columns:
        return "nothing was recorded that has a time"
    rates = [sum(b.ended for b in own) / (own[-1].end - own[0].start) for own in columns]
    top = max(*rates, 1.0)
    width = max(len(f"{top:,.0f}"), 7)
    lines = [f"jobs ended per second; a column is {columns[0][-1].end - columns[0][0].start:g} s"]
    for level in range(LEVELS, 0, -1):
        label = f"{top:,.0f}" if level == LEVELS else "0" if level == 1 else ""
        bars = "".join("#" if rate / top * LEVELS >= level - 0.5 else " " for rate in rates)
        lines.append(f"{label:>{width}} |{bars.rstrip()}")
    for name, counts in (
        ("kills", [sum(b.kills for b in own) for own in columns]),
        ("pauses", [sum(b.pauses for b in own) for own in columns]),
    ):
        lines.append(f"{name:>{width}} |{''.join(map(_digit, counts)).rstrip()}")
    if figures.heal is not None:
        healed = "".join("=" if own[-1].end > figures.heal else " " for own in columns)
        lines.append(f"{'healed':>{width}} |{healed.rstrip()}")
    end = f"{figures.seconds:,.0f} s"
    lines.append(f"{'0':>{width + 2}}{end:>{max(len(columns), len(end)) - 1}}")
    return "\n".join(lines)


def _columns(bins: Sequence[Bin]) -> list[Sequence[Bin]]:
    """Return the bins in groups, so that the picture fits a terminal."""
    size = max(1, -(-len(bins) // COLUMNS))
    return [bins[start : start + size] for start in range(0, len(bins), size)]


def _digit(count: int) -> str:
    """Return a count as one character."""
    return " " if count == 0 else str(count) if count < 10 else "+"
