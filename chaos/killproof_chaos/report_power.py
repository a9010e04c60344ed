"""The report of detection power: tables in the terminal, Markdown to commit, a page with maps.

Pure functions of the record that `killproof chaos power` leaves as power.json. The page opens
without a network and runs no script; what a colour says, a number in the same cell says too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from killproof_chaos import report, report_power_plot, report_words
from killproof_chaos.power.trials import CROSS, ENGINES
from killproof_chaos.report_markdown import plain, table
from killproof_evidence.judge import PROPERTIES

Record = Mapping[str, Any]

#: Of fewer, 3/n is too far from the truth to be told.
RULE_RUNS_MIN: Final = 30

#: What no such measurement shows, whatever it found.
LIMITS: Final = (
    "Faults of other kinds than these. The queues were broken by people who knew the checkers, one "
    "fault at a time: that all of them are caught says nothing about a fault that nobody thought "
    "of.",
    "A rate for the engines that draw nothing. `sim` without a random scheduler and `crash` "
    "without a sample take every schedule and every point: their seeds are repetitions, and show "
    "only that a result does not depend on the moment.",
    "The start of an interpreter, and a disk: a lane has imported everything once, and files lie "
    "in memory, but for the recordings of the engine `disk`.",
    "The moment of detection within a run. A time is that of the whole run to its verdict; a run "
    "of `proc` has a length of its own, and tells no earlier.",
    "What the other engines would find with more time. Where an engine is not the intended one, a "
    "cell says what it found within the seconds that all queues get.",
    "A pass of the healthy queues: a short run of `proc` owes more than it can hit, and is "
    "`unknown`. It counts here as a run that accused nobody.",
    "Other machines. The intervals are of repeated runs of this code on this machine; that false "
    "alarms lie below 3/n takes the runs for independent.",
)


def terminal(record: Record) -> list[RenderableType]:
    """Return what is printed: the queues, the checkers, the controls, and one sentence."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    found.add_column("broken queue", no_wrap=True)
    found.add_column("breaks")
    for engine in ENGINES:
        found.add_column(engine, justify="right")
    for heading in ("true rate", "median", "p95"):
        found.add_column(heading, justify="right")
    for queue in record["queues"]:
        is_missed = bool(queue["missed_seeds"]) or not queue["runs"]
        mark = Text("✗ ", style="bold red") if is_missed else Text("✓ ", style="green")
        found.add_row(
            mark + queue["name"],
            queue["property"],
            *(_cell_text(queue["engines"][engine]) for engine in ENGINES),
            rate_of(queue, f"≥ {100 * queue['rate']['low']:.0f}%"),
            seconds_of(queue["seconds"]["median"]),
            seconds_of(queue["seconds"]["p95"]),
        )
    lines = [
        LEGEND,
        "",
        *only_lines(record),
        *healthy_lines(record),
        *canary_lines(record),
        *seeds_lines(record),
        *crossed_lines(record),
        *record["problems"],
    ]
    style = {"pass": "bold green", "violated": "bold red", "unknown": "bold yellow"}
    return [
        found,
        Text("\n".join(lines)),
        Text(headline(record), style=style[record["verdict"]]),
    ]


LEGEND: Final = (
    "k/n: seeds on which the property was found, * by the engine that must find it; ~ another one\n"
    "was; - it could not run this queue; true rate: lower end of the Wilson interval at 95%;\n"
    "same: seeds draw nothing, and each run is the same one again; times in s."
)


def rate_of(queue: Record, interval: str) -> str:
    """Return the interval of a rate, where its runs differ at all; empty: there was none."""
    if not queue["runs"]:
        return ""
    return interval if queue["differ"] > 1 or queue["runs"] == 1 else "same"


def seeds_lines(record: Record) -> list[str]:
    """Return how many seeds really differ, and how many runs were made again."""
    made = [queue for queue in record["queues"] if queue["runs"] > 1]
    same = [queue for queue in made if queue["differ"] == 1]
    lines = []
    if same:
        lines.append(
            f"seeds draw nothing for {len(same)} of {len(made)} queues: their engines take every "
            "schedule or point, each run is the same one again, and no rate is told"
        )
    if again := record["counts"]["again"]:
        lines.append(
            f"{again:,} runs found nothing while the machine had no time for them, and were made "
            "again: a rate of a property without a bound of time may look that much better"
        )
    return lines


def headline(record: Record) -> str:
    """Return what was found in one sentence."""
    queues, missed = record["queues"], record["missed"]
    caught = caught_in(record)
    runs = [queue["runs"] for queue in queues if queue["runs"]] or [0]
    seeds = f"{min(runs)} to {max(runs)}" if min(runs) < max(runs) else f"{max(runs)}"
    told = f"{caught} of {len(queues)} broken queues caught by their property on each of {seeds}"
    told += " seed" if seeds == "1" else " seeds"
    if missed:
        told += f"; missed at least once: {', '.join(missed)}"
    healthy = sum(row["runs"] for row in record["healthy"])
    if healthy:
        alarms = record["counts"]["alarms"]
        told += (
            f"; {alarms} false alarm{'' if alarms == 1 else 's'} in {healthy} runs of healthy ones"
        )
    return told


def caught_in(record: Record) -> int:
    """Return how many queues were caught on every seed that was run, of those that were run."""
    return sum(bool(queue["runs"]) and not queue["missed_seeds"] for queue in record["queues"])


def _cell_text(cell: Record) -> str:
    if not cell["runs"]:
        return "-" if not cell["can_run"] or cell["failed"] else ""
    mark = "*" if cell["is_intended"] else ""
    other = "~" if cell["other"] and not cell["found"] else ""
    return f"{other}{cell['found']}/{cell['runs']}{mark}"


def seconds_of(value: float | None) -> str:
    """Return a time to detect; empty: too few runs found it in time."""
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def only_lines(record: Record) -> list[str]:
    """Return which checkers are the only catcher of a queue, and which of none."""
    rows = record["checkers"]
    only = [f"{row['property']} ({len(row['only'])})" for row in rows if row["only"]]
    none = [row["property"] for row in rows if not row["only"]]
    lines = [f"only catcher of a queue: {', '.join(only) or 'no checker'}"]
    return lines + ([f"of none: {', '.join(none)}"] if none else [])


def healthy_lines(record: Record) -> list[str]:
    """Return the false alarms of each healthy queue, and the bound over all."""
    lines = []
    made = [row for row in record["healthy"] if row["runs"]]
    for name in dict.fromkeys(row["target"] for row in made):
        rows = [row for row in made if row["target"] == name]
        told = ", ".join(
            f"{row['alarms']} in {row['runs']} of {row['engine']}"
            + (f" ({row['unknown']} unknown)" if row["unknown"] else "")
            for row in rows
        )
        lines.append(f"false alarms, {name}: {told}")
        lines += [f"  {one['command']}: {' '.join(one['broken'])}"
                  for row in rows for one in row["accusations"]]  # fmt: skip
    runs = sum(row["runs"] for row in record["healthy"])
    if runs >= RULE_RUNS_MIN and not record["counts"]["alarms"]:
        lines.append(
            f"none in {runs} runs: their rate is below {300 / runs:.1f}% (rule of three, 95%)"
        )
    return lines


def canary_lines(record: Record) -> list[str]:
    """Return which of the canary's seeds were reported."""
    canary = record["canary"]
    if canary is None or not canary["runs"]:
        return []
    runs = canary["runs"]
    if not canary["expected"] and not canary["reported"]:
        return [f"canary: none of the {runs} seeds that were run violates, and none was reported"]
    reported = ", ".join(map(str, canary["reported"])) or "none"
    expected = ", ".join(map(str, canary["expected"])) or "none"
    word = "as it must" if not canary["wrong"] else f"but it violates on {expected}"
    return [f"canary: of {runs} seeds reported: {reported}; {word}"]


def crossed_lines(record: Record) -> list[str]:
    """Return how much of the map is blank, because the time ended first."""
    left = record["counts"]["cross_left"]
    return [f"{left:,} runs of other engines were not made: their cells are blank"] if left else []


# Markdown and the page.


def write_reports(record: Record, out: Path) -> Path:
    """Write the Markdown to `out` and the page beside it; return the page."""
    page = out.with_suffix(".html")
    page.write_text(render(record), encoding="utf-8")
    out.write_text(markdown(record, page.name), encoding="utf-8")
    return page


def markdown(record: Record, page: str) -> str:
    """Return the whole report in Markdown."""
    parts = [
        "# Detection power",
        f"**{plain(headline(record), 10_000)}**",
        f"Command: `{' '.join(record['argv'])}` (the full one: `make report-power`). Seeds 1 to "
        f"{record['asked']['seeds']}; {record['counts']['runs']:,} runs, "
        f"{record['cpu_seconds'] / 60:.0f} minutes of CPU; {_lasted(record)}. "
        f"The maps in colour: [{page}]({page}).",
        _machine(record),
        _problems(record),
        "## What catches what",
        "Each queue has one fault and lacks nothing else. k/n is the number of seeds on which its "
        "property was found violated; **bold** is the engine that must find it, with the options "
        "that the gallery names; the others have a few seconds. ~ only another property was "
        "found, - the engine could not run this queue, · it does not judge this property.",
        _queues(record),
        "\n".join(f"- {line}" for line in [*seeds_lines(record), *crossed_lines(record)]),
        "## Checkers",
        "A checker is the only catcher of a queue when on no seed another property was found.",
        _checkers(record),
        "## Healthy queues",
        "\n".join(f"- {plain(line, 1_000)}" for line in healthy_lines(record)) or "Not run.",
        "\n".join(plain(line) for line in canary_lines(record)),
        "## How it is computed",
        METHOD,
        _crossed(),
        "## What this does not show",
        "\n".join(f"- {line}" for line in LIMITS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lasted(record: Record) -> str:
    minutes = f"{(record['ended'] - record['started']) / 60:.0f} minutes"
    earlier = record["earlier"]
    return f"{minutes} for those that {earlier:,} earlier ones had left" if earlier else minutes


METHOD: Final = (
    "Rates: Wilson score interval, 95%. Times: wall clock of a run from its command to its "
    "verdict, in a process that has imported everything; a run that found nothing within the "
    "queue's budget is censored there, and median and p95 are those of the Kaplan-Meier estimate "
    "(empty: too few found it in time). False alarms: with none in n runs their rate is below 3/n "
    "with 95% confidence. A run that found nothing while the supervisor got no CPU is made again, "
    "up to three times; one that never got any, and one that judged nothing, is neither found nor "
    "missed. CPU time is the median over the runs that found it, without the "
    "processes that the engine `crash` ends by a kill."
)


def _crossed() -> str:
    told = "; ".join(f"{engine} `{' '.join(CROSS[engine])}`" for engine in ENGINES)
    return f"What an engine gets where it is not the intended one: {told}."


def _machine(record: Record) -> str:
    rows = [("killproof", record["version"]), *report_words.environment_rows(record, {})]
    rows += [("runs at once", str(record["lanes"])), ("files of the runs", record["files_in"])]
    return table(("machine", ""), [(plain(name), plain(value)) for name, value in rows])


def _problems(record: Record) -> str:
    return "\n".join(f"- could not be run: {plain(text)}" for text in record["problems"])


def _queues(record: Record) -> str:
    rows = []
    for queue in record["queues"]:
        times, spent, rate = queue["seconds"], queue["cpu_seconds"], queue["rate"]
        others = [f"{n} {k}/{queue['runs']}" for n, k in queue["checkers"].items()
                  if n != queue["property"]]  # fmt: skip
        rows.append(
            (
                f"[{queue['name']}](../chaos/killproof_chaos/gallery/"
                f"{queue['name'].replace('-', '_')}.py)",
                queue["property"],
                *(_cell_markdown(queue["engines"][engine]) for engine in ENGINES),
                rate_of(queue, f"{100 * rate['low']:.0f} to {100 * rate['high']:.0f}%"),
                f"{seconds_of(times['median'])} / {seconds_of(times['p95'])}",
                f"{queue['budget_seconds']:g}",
                seconds_of(spent["median"]),
                ", ".join(others),
            )
        )
    heads = ("queue", "breaks", *ENGINES, "true rate", "median / p95, s", "budget, s",
             "CPU, s", "also found")  # fmt: skip
    return table(heads, rows)


def _cell_markdown(cell: Record) -> str:
    if not cell["runs"]:
        return "-" if not cell["can_run"] or cell["failed"] else ""
    if not cell["found"]:
        if cell["other"]:
            return f"~{cell['other']}/{cell['runs']}"
        if not cell["judges"]:
            return "·"
    text = f"{cell['found']}/{cell['runs']}"
    return f"**{text}**" if cell["is_intended"] else text


def _checkers(record: Record) -> str:
    rows = [
        (
            row["property"],
            row["sentence"],
            str(len(row["intended"])),
            str(len(row["incidental"])),
            ", ".join(row["only"]),
        )
        for row in record["checkers"]
    ]
    heads = ("", "promise", "caught, as intended", "and beside another", "the only catcher of")
    return table(heads, rows)


def render(record: Record) -> str:
    """Return the page."""
    environment = report.pages()
    environment.filters["s"] = seconds_of
    environment.globals["rate_of"] = rate_of
    queues = sorted(record["queues"], key=lambda queue: (_number(queue), queue["name"]))
    return environment.get_template("power.html.j2").render(
        record=record,
        sentence=headline(record),
        mark=report_words.mark,
        queues=queues,
        engines=ENGINES,
        numbers=[entry.number for entry in PROPERTIES],
        sentences={entry.number: entry.sentence for entry in PROPERTIES},
        only=only_lines(record),
        tiles=tiles(record),
        # Made here; every text in it is escaped.
        times=Markup(report_power_plot.times(queues)),
        healthy=healthy_lines(record),
        canary=canary_lines(record),
        crossed_lines=[*seeds_lines(record), *crossed_lines(record)],
        method=METHOD.split(". "),
        crossed=CROSS,
        limits=LIMITS,
        machine=[
            ("killproof", record["version"]),
            *report_words.environment_rows(record, {}),
            ("runs at once", record["lanes"]),
            ("files of the runs", record["files_in"]),
        ],
        command=" ".join(record["argv"]),
        started=report_words.started(record),
    )


def tiles(record: Record) -> Sequence[tuple[str, str, str]]:
    """Return the figures at the top of the page: what, how much, of what."""
    queues = record["queues"]
    runs = sum(queue["runs"] for queue in queues)
    found = sum(queue["rate"]["count"] for queue in queues)
    healthy = sum(row["runs"] for row in record["healthy"])
    alarms = record["counts"]["alarms"]
    quick = [queue for queue in queues if queue["engine"] != "proc"]
    medians = sorted(q["seconds"]["median"] for q in quick if q["seconds"]["median"] is not None)
    only = sum(bool(row["only"]) for row in record["checkers"])
    return (
        ("broken queues", str(len(queues)), f"{caught_in(record)} never missed"),
        ("runs that had to find", f"{found:,}", f"of {runs:,} found the intended property"),
        (
            "by sim, crash or disk",
            str(len(quick)),
            f"median {seconds_of(medians[len(medians) // 2])} s" if medians else "",
        ),
        ("checkers that alone catch one", str(only), f"of {len(record['checkers'])}"),
        (
            "false alarms",
            str(alarms),
            f"in {healthy} healthy runs"
            + (f", below {300 / healthy:.1f}%" if healthy >= RULE_RUNS_MIN and not alarms else ""),
        ),
        (
            "canary",
            "-" if record["canary"] is None else str(len(record["canary"]["reported"])),
            "not run"
            if record["canary"] is None
            else f"of {len(record['canary']['expected'])} sick seeds in "
            f"{record['canary']['runs']} reported",
        ),
    )


def _number(queue: Record) -> int:
    return int(queue["property"].removeprefix("P"))
