"""The parts that every report has: verdict, noise, goals, conditions, machine, command.

One wording for all of them, so that a reader of one report knows where to look in the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from killproof_bench import report
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bullets,
    Command,
    Dash,
    Facts,
    Ink,
    Light,
    Marker,
    Part,
    Prose,
    Section,
    Series,
    Table,
)
from killproof_bench.result import ClaimCard, Correctness, Figure, Noise

#: Killproof has one look in all reports; whoever stands beside it has the others.
KILLPROOF: Final[Ink] = "blue"
REFERENCE: Final[Ink] = "vermillion"
OTHERS: Final[Sequence[Ink]] = ("green", "orange", "purple", "sky", "grey")

#: Quantiles of one arm share its ink: the further out, the more broken the line.
QUANTILES: Final[Sequence[tuple[str, Dash, Marker]]] = (
    ("p50", "dotted", "circle"),
    ("p99", "dashed", "square"),
    ("p99.9", "solid", "diamond"),
)

JUDGED: Final[Mapping[str, tuple[Light, str]]] = {
    "pass": ("good", "every measured run did what a queue promises"),
    "violated": ("bad", "a run broke a promise: the figures are void"),
    "unknown": ("doubt", "unknown: the figures prove nothing"),
}
#: Words of tables whose last column is a judgement.
MET: Final[Mapping[str, Light]] = {
    "met": "good",
    "missed": "bad",
    "not measured": "doubt",
    "void": "doubt",
}


def correctness_badge(verdict: str, because: Sequence[str] = ()) -> Badge:
    """Return whether the figures count at all."""
    light, word = JUDGED[verdict]
    return Badge(light=light, word=word, because=because)


def noise_badge(noise: Noise) -> Badge:
    """Return whether the machine was left alone."""
    if noise.noisy:
        return Badge(light="doubt", word="noisy machine", because=noise.because)
    return Badge(light="good", word="quiet machine")


def goals_badge(rows: Sequence[tuple[str, str, str]]) -> Badge:
    """Return how many goals were met; `rows` are those of `goals_table`."""
    met, all_of = sum(row[2] == "met" for row in rows), len(rows)
    unmeasured = sum(MET[row[2]] == "doubt" for row in rows)
    light: Light = "good" if met == all_of else "doubt" if met + unmeasured == all_of else "bad"
    return Badge(light=light, word=f"{met} of {all_of} goals met")


def goals_table(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Return what was aimed at; each row is the goal, what was measured, and a word of `MET`."""
    return Table(label="Goals", head=("goal", "measured", "met"), rows=rows, lights=MET)


def kicker(command: str, *words: str) -> list[str]:
    """Return the line above the verdict: what was run, how, when."""
    return [" ".join(command.split()[:3]), *(word for word in words if word)]


def moment(started: str) -> str:
    """Return a time of ISO 8601 for a reader.

    >>> moment("2026-11-29T22:47:10+00:00")
    '2026-11-29 22:47 UTC'
    """
    return f"{started[:16].replace('T', ' ')} UTC"


def table(label: str, from_report: report.Table, words: Sequence[int] = (0,)) -> Table:
    """Return a table that the Markdown report has as well."""
    head, rows = from_report
    return Table(label=label, head=head, rows=rows, words=words)


def cards(named: Sequence[tuple[str, ClaimCard]]) -> Section:
    """Return the conditions of the figures, side by side; what all share stands once."""
    lines = [dict(report.card_fields(card)) for _, card in named]
    rows = [(name, *(line[name] for line in lines)) for name in lines[0]] if lines else []
    parts = card_parts([name for name, _ in named], rows)
    return Section(id="card", title="Claim card", parts=parts)


def card_parts(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[Part]:
    """Return the conditions of a few figures; a row is a condition and its value for each name."""
    shared = [(row[0], row[1]) for row in rows if len(set(row[1:])) == 1]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    parts: list[Part] = [
        Prose(text="The figures hold under these conditions, and say nothing without them."),
        Facts(rows=shared),
    ]
    if differing:
        head = ("condition", *names)
        table = Table(
            label="Conditions that differ", head=head, rows=differing, words=range(len(head))
        )
        parts.append(table)
    return parts


def machine(
    environment: Mapping[str, str], noise: Noise, rows: Iterable[tuple[str, str]] = ()
) -> Section:
    """Return the machine, the versions, and how quiet it was."""
    facts = [*environment.items(), *rows, *noise_rows(noise)]
    return Section(id="machine", title="Machine and versions", parts=[Facts(rows=facts)])


def noise_rows(noise: Noise) -> list[tuple[str, str]]:
    """Return how quiet the machine was, in numbers."""
    spread = noise.raw_spread
    return [
        ("other processes", f"{noise.foreign_cpu:.1%} of all CPU time"),
        ("taken by the hypervisor", f"{noise.steal:.1%} of all CPU time"),
        ("load", f"{noise.load_before:.2f} before, {noise.load_after:.2f} after"),
        (
            "pressure before",
            f"CPU {noise.pressure_cpu_before:.1f}%, I/O {noise.pressure_io_before:.1f}%",
        ),
        (
            "the disk's own sync rate",
            "n/a" if spread is None else f"highest over lowest {spread:.2f}",
        ),
    ]


def again(command: str) -> Section:
    """Return how to run it again."""
    return Section(
        id="again",
        title="Run it again",
        parts=[
            Command(text=command),
            Prose(
                text="This page again, from the recorded result beside it: "
                "killproof bench report RESULT.json.",
                small=True,
            ),
        ],
    )


def limits(items: Sequence[str]) -> Section:
    """Return what must not be concluded."""
    plain = [item.removeprefix("- ") for item in items]
    return Section(id="limits", title="What this does not show", parts=[Bullets(items=plain)])


def reasons(judged: Iterable[tuple[str, Correctness]]) -> list[str]:
    """Return why figures do not count: a sentence for each run that was not right."""
    return [
        f"{name}: {'; '.join(found.because[:3]) or 'it gave no evidence'}"
        for name, found in judged
        if found.verdict != "pass"
    ]


def workers(count: int) -> str:
    """Return a number of workers in words.

    >>> workers(1), workers(16)
    ('1 worker', '16 workers')
    """
    return f"{count:,} worker{'' if count == 1 else 's'}"


def workers_axis(counts: Iterable[int]) -> Axis:
    """Return the axis of worker counts: they double, so each step is as wide as the next."""
    ticks = {float(count): f"{count:,}" for count in sorted(set(counts))}
    return Axis(name="workers", log=True, ticks=ticks)


def measured(
    name: str,
    points: Sequence[tuple[float, Figure]],
    *,
    ink: Ink,
    unit: str,
    at: str = "",
    dash: Dash = "solid",
    marker: Marker = "circle",
    label: str | None = None,
) -> Series:
    """Return measured figures with their intervals; a refused one is a gap.

    Args:
        name: of the series, in tips.
        points: x and the figure at it.
        ink: its colour.
        unit: of the figures.
        at: how x is told in a tip; empty: as a number of workers.
        dash: of its line.
        marker: of its points.
        label: at the line's end; the name where `None`.
    """
    places = [at.format(x) if at else workers(round(x)) for x, _ in points]
    return Series(
        name=name,
        ink=ink,
        x=[x for x, _ in points],
        y=[figure.value for _, figure in points],
        low=[figure.low for _, figure in points],
        high=[figure.high for _, figure in points],
        tips=[
            f"{name}, {place}: {report.figure(figure)} {unit}, n = {figure.n:,}"
            for place, (_, figure) in zip(places, points, strict=True)
        ],
        dash=dash,
        marker=marker,
        label=name if label is None else label,
    )
