"""The page of `killproof bench peers`: public queues and killproof, in one run, side by side."""

from collections.abc import Iterable, Sequence

from killproof_bench import report
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bar,
    Bars,
    Bullets,
    Chart,
    Curves,
    Dash,
    Ink,
    Marker,
    Page,
    Part,
    Prose,
    Section,
    Series,
    Table,
    Tile,
)
from killproof_bench.peers.result import Comparison, Contender, PeerCell, PeersResult

LEVELS = {
    "power": "an acknowledgement survives a power cut",
    "process": "an acknowledgement survives a killed process, not a power cut",
    "less": "an acknowledgement may be lost with the process",
}
PEER_INK: Ink = "grey"


def page(result: PeersResult) -> Page:
    """Return the page of one run."""
    sections: list[Section] = []
    if result.goals:
        sections.append(
            Section(id="goals", title="Goals", parts=[frame.goals_table(_goals(result))])
        )
    levels = [level for level in LEVELS if any(cell.level == level for cell in result.cells)]
    sections += [_level(result, level) for level in levels]
    if result.comparisons:
        sections.append(_comparisons(result.comparisons))
    sections.append(_promises(result))
    if result.cells:
        named = [(f"{cell.contender}, {cell.workers}", cell.card) for cell in _most(result.cells)]
        sections += [_behaviour(result), _rounds(result), frame.cards(named)]
    sections += [
        frame.limits(LIMITS),
        frame.machine(result.environment, result.noise, _conditions(result)),
        frame.again(result.command),
    ]
    return Page(
        title="Killproof and its peers",
        kicker=frame.kicker(result.command, frame.moment(result.started)),
        sentence=result.sentence,
        badges=_badges(result),
        tiles=_tiles(result),
        sections=sections,
    )


LIMITS = (
    "Which queue is best. Each does other things, and what this run asks of them is one shape of "
    "work: many workers, one job at a time, nothing to do in between.",
    "A queue at its best. Each is used through its own calls as its documentation shows them; "
    "whoever knows one well may tune it further.",
    "Another machine. Rates follow the disk's own sync rate, printed with each round: trust the "
    "ratios within this run.",
    "Batches, many queues in one file, delays, priorities, long runs and aged files.",
    "That a queue keeps what it promises. Only what this run looked at was checked: jobs acked "
    "twice, and jobs that were gone.",
)


def _goals(result: PeersResult) -> list[tuple[str, str, str]]:
    words = {True: "met", False: "missed", None: "not measured"}
    return [(goal.text, report.number(goal.measured), words[goal.met]) for goal in result.goals]


def _badges(result: PeersResult) -> list[Badge]:
    ours = {c.name for c in result.contenders if c.role != "peer"}
    judged = [
        (f"{cell.contender}, {frame.workers(cell.workers)}", cell.correctness)
        for cell in result.cells
        if cell.contender in ours
    ]
    badges = [frame.correctness_badge(result.verdict, frame.reasons(judged))]
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted: the rounds that had ended"))
    if result.goals:
        badges.append(frame.goals_badge(_goals(result)))
    return [*badges, frame.noise_badge(result.noise)]


def _tiles(result: PeersResult) -> list[Tile]:
    measured = [contender for contender in result.contenders if contender.state == "measured"]
    tiles = [
        Tile(
            name="queues measured",
            figure=str(len(measured)),
            note=f"of {len(result.contenders)} asked for",
        ),
        Tile(
            name="rounds of each",
            figure=str(result.rounds_planned),
            note=f"{result.seconds:g} s after {result.warmup_seconds:g} s of warm-up",
        ),
        Tile(
            name="disk by itself",
            figure=f"{report.number(result.raw_before)} syncs/s",
            note=f"{report.number(result.raw_after)} after the run",
        ),
    ]
    for cell in _most(result.cells):
        if cell.contender in _named(result.contenders, "killproof"):
            rate = report.figure_value(cell.jobs_per_s)
            tiles.append(
                Tile(
                    name=f"killproof, {cell.level}",
                    figure=f"{rate} jobs/s",
                    note=f"{frame.workers(cell.workers)}, p99.9 "
                    f"{report.figure_value(cell.p999_ms)} ms",
                )
            )
    return tiles


def _named(contenders: Iterable[Contender], role: str) -> set[str]:
    return {contender.name for contender in contenders if contender.role == role}


def _most(cells: Sequence[PeerCell]) -> list[PeerCell]:
    """Return the cells with the most workers."""
    most = max((cell.workers for cell in cells), default=0)
    return [cell for cell in cells if cell.workers == most]


def _ink(result: PeersResult, name: str) -> Ink:
    roles = {contender.name: contender.role for contender in result.contenders}
    inks: dict[str, Ink] = {"killproof": frame.KILLPROOF, "reference": frame.REFERENCE}
    return inks.get(roles.get(name, "peer"), PEER_INK)


def _level(result: PeersResult, level: str) -> Section:
    """Return the figures of all queues whose acknowledgements survive as much."""
    cells = [cell for cell in result.cells if cell.level == level]
    most = _most(cells)
    count = frame.workers(most[0].workers)
    parts: list[Part] = [
        Prose(text=f"{LEVELS[level][0].upper()}{LEVELS[level][1:]}, as read back."),
        _bar_chart(result, most, f"{level}-rate", f"Jobs per second with {count}"),
        _bar_chart(result, most, f"{level}-tail", f"p99.9 of a claim with {count}"),
        _bar_chart(result, most, f"{level}-longest", f"Longest wait for one job with {count}"),
    ]
    if len({cell.workers for cell in cells}) > 1:
        parts.append(_over_workers(result, cells, level))
    head = ("queue", "workers", "jobs/s", "p50 ms", "p99 ms", "p99.9 ms", "longest ms",
            "fewest/most", "verdict")  # fmt: skip
    rows = [
        (
            cell.contender,
            str(cell.workers),
            report.figure(cell.jobs_per_s),
            report.figure(cell.p50_ms),
            report.figure(cell.p99_ms),
            report.figure(cell.p999_ms),
            report.number(cell.longest_ms),
            f"{cell.fewest_over_most:.2f}",
            cell.correctness.verdict,
        )
        for cell in cells
    ]
    parts.append(Table(label=f"Figures at {level}", head=head, rows=rows, words=(0, 8)))
    return Section(id=level, title=f"Durability {level}", parts=parts)


def _bar_chart(result: PeersResult, cells: Sequence[PeerCell], name: str, title: str) -> Chart:
    """Return one bar a queue, the best first; `name` ends in what is drawn."""
    drawn = name.rpartition("-")[2]
    times = drawn != "rate"
    rows = []
    for cell in cells:
        figure = {"rate": cell.jobs_per_s, "tail": cell.p999_ms}.get(drawn)
        value = cell.longest_ms if figure is None else figure.value
        text = f"{report.number(value)}{' ms' if times and value is not None else ''}"
        if value is None and figure is not None:
            text = report.figure_value(figure)
        told = report.figure(figure) if figure is not None else report.number(value)
        unit = "ms" if times else "jobs/s"
        rows.append(
            Bar(
                name=cell.contender,
                value=value,
                low=None if figure is None else figure.low,
                high=None if figure is None else figure.high,
                text=text,
                tip=f"{cell.contender}, {frame.workers(cell.workers)}: {told} {unit}, "
                f"n = {cell.jobs_per_s.n:,}",
                ink=_ink(result, cell.contender),
            )
        )
    rows.sort(key=lambda row: (row.value is None, (row.value or 0.0) * (1 if times else -1)))
    less = "shorter is better" if times else "longer is better"
    interval = "" if drawn == "longest" else f" Lines: {cells[0].card.interval}."
    return Chart(
        id=name,
        title=title,
        picture=Bars(
            axis=Axis(
                name="time, log scale" if times else "jobs/s, log scale", log=True, times=times
            ),
            rows=rows,
        ),
        caption=f"Log scale: {less}; the lengths of bars do not compare, their ends do."
        f"{interval} The figures stand in the table below.",
    )


SHAPES: tuple[tuple[Dash, Marker], ...] = (
    ("solid", "circle"),
    ("dashed", "square"),
    ("dotted", "diamond"),
    ("dotdash", "triangle"),
    ("solid", "inverted_triangle"),
)


def _over_workers(result: PeersResult, cells: Sequence[PeerCell], level: str) -> Chart:
    names = list(dict.fromkeys(cell.contender for cell in cells))
    series: list[Series] = []
    inks: list[Ink] = [ink for ink in frame.OTHERS if ink != frame.REFERENCE]
    peers = 0
    for name in names:
        ink, shape = _ink(result, name), SHAPES[0]
        if ink == PEER_INK:
            ink, shape = inks[peers % len(inks)], SHAPES[peers % len(SHAPES)]
            peers += 1
        points = [
            (float(cell.workers), cell.jobs_per_s) for cell in cells if cell.contender == name
        ]
        series.append(
            frame.measured(name, points, ink=ink, unit="jobs/s", dash=shape[0], marker=shape[1])
        )
    return Chart(
        id=f"{level}-workers",
        title="Jobs per second over the number of workers",
        picture=Curves(
            x=frame.workers_axis(cell.workers for cell in cells),
            y=Axis(name="jobs/s", log=True),
            series=series,
            height=400,
        ),
        caption=f"Log scale. Bars: {cells[0].card.interval}.",
    )


def _comparisons(comparisons: Sequence[Comparison]) -> Section:
    head = ("queue", "workers", "killproof at", "throughput, killproof over it",
            "p99.9, killproof over it", "longest wait, killproof over it")  # fmt: skip
    rows = [
        (
            one.contender,
            str(one.workers),
            one.level,
            report.figure(one.throughput),
            "n/a"
            if one.p999 is None
            else f"{'under ' if one.p999_is_bound else ''}{report.number(one.p999)}",
            report.number(one.longest),
        )
        for one in comparisons
    ]
    parts: list[Part] = [
        Prose(
            text="Killproof at the highest level of durability that the other keeps too, rounds of "
            "the same number compared with each other: median, least and most. Of throughput more "
            "is better for killproof, of times less.",
        ),
        Table(label="Killproof beside each", head=head, rows=rows, words=(0, 2)),
    ]
    return Section(id="beside", title="Killproof beside each", parts=parts)


def _promises(result: PeersResult) -> Section:
    """Return what stands beside each number: what a queue does not promise, and how it was used."""
    rows = []
    for contender in result.contenders:
        gaps = "; ".join(gap.text for gap in contender.gaps) or "nothing that was looked for"
        rows.append((contender.name, contender.version, contender.delivery, gaps))
    used = [
        (
            contender.name,
            contender.claim_call,
            contender.ack_call,
            contender.durability_how,
            contender.language,
        )
        for contender in result.contenders
        if contender.state == "measured"
    ]
    parts: list[Part] = [
        Table(
            label="What each does not promise",
            head=("queue", "version", "delivery", "does not promise"),
            rows=rows,
            words=(0, 1, 2, 3),
        ),
        Prose(text="How each was used:"),
        Table(
            label="How each was used",
            head=("queue", "claims by", "acks by", "durability", "runs on"),
            rows=used,
            words=(0, 1, 2, 3, 4),
        ),
    ]
    missing = [contender for contender in result.contenders if contender.state != "measured"]
    if missing:
        parts.append(Prose(text="Not measured:"))
        parts.append(Bullets(items=[f"{c.name}: {c.state}. {c.because}" for c in missing]))
    written = [(c.name, gap.text, gap.source) for c in result.contenders for gap in c.gaps]
    if written:
        parts.append(
            Table(
                label="Where that is written",
                head=("queue", "what", "source"),
                rows=written,
                words=(0, 1, 2),
                folded=True,
            )
        )
    return Section(id="promises", title="What each does not promise", parts=parts)


def _behaviour(result: PeersResult) -> Section:
    head = ("queue", "workers", "durability", "acked twice", "lost", "errors", "said empty",
            "an error", "verdict")  # fmt: skip
    rows = []
    for cell in result.cells:
        examples = [a_round.error_example for a_round in cell.rounds if a_round.error_example]
        why = "; ".join(cell.correctness.because[:1])
        rows.append(
            (
                cell.contender,
                str(cell.workers),
                cell.level,
                f"{cell.acked_twice:,}",
                f"{cell.lost:,}",
                f"{cell.errors:,}",
                f"{cell.empty:,}",
                examples[0] if examples else "",
                f"{cell.correctness.verdict}{': ' + why if why else ''}",
            )
        )
    parts: list[Part] = [
        Prose(
            text="Counted in every round. Errors are those that a queue's own calls raised at the "
            "worker, which then tried again; empty means that a claim found nothing while jobs "
            "were waiting.",
            small=True,
        ),
        Table(label="How each behaved", head=head, rows=rows, words=(0, 2, 7, 8)),
    ]
    return Section(id="behaviour", title="How each behaved", parts=parts)


def _rounds(result: PeersResult) -> Section:
    head = ("order", "queue", "durability", "workers", "jobs/s", "fewest", "most", "longest ms",
            "raw syncs/s around it")  # fmt: skip
    pairs = [(a_round, cell) for cell in result.cells for a_round in cell.rounds]
    pairs.sort(key=lambda pair: pair[0].position)
    rows = [
        (
            str(a_round.position + 1),
            cell.contender,
            cell.level,
            str(cell.workers),
            report.number(a_round.jobs_per_s),
            f"{min(a_round.counts, default=0):,}",
            f"{max(a_round.counts, default=0):,}",
            report.number(a_round.longest_ms),
            f"{report.number(a_round.raw_before)}, {report.number(a_round.raw_after)}",
        )
        for a_round, cell in pairs
    ]
    table = Table(label="Every round", head=head, rows=rows, words=(0, 1, 2), folded=True)
    return Section(id="rounds", title="Every round, in the order of the run", parts=[table])


def _conditions(result: PeersResult) -> list[tuple[str, str]]:
    return [
        ("seed", str(result.seed)),
        ("jobs in the file when a round begins", f"{result.jobs:,}"),
        ("payload", f"{result.payload_bytes:,} bytes"),
        *(
            (f"environment of {c.name}", ", ".join(c.packages))
            for c in result.contenders
            if c.packages
        ),
    ]
