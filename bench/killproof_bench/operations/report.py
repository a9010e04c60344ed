"""Turn the single figures into lines and a report: pure functions of the result."""

from collections.abc import Iterator, Sequence
from typing import Final

from killproof_bench.ascii_chart import Bar, bars
from killproof_bench.operations.result import (
    Comparison,
    Cost,
    Goal,
    Idle,
    OperationsResult,
    RatioFigure,
    Spending,
)
from killproof_bench.report import card_fields, figure, markdown_table, number, plain_table
from killproof_bench.result import ClaimCard, Figure

TITLE: Final = "Operations: one worker, jobs put in, idle workers"
MET: Final = {True: "yes", False: "**no**", None: "void"}
Rows = list[tuple[str, ...]]


def terminal(result: OperationsResult) -> str:
    """Return what the command prints: the sentence, the goals, figures, conditions."""
    lines = [result.sentence]
    lines += [
        f"{MET[goal.met].strip('*'):<4} {goal.what}: {goal.measured}, asked {goal.asked}"
        for goal in result.goals
    ]
    for each in result.comparisons:
        lines += ["", picture(each), *(ratio_line(ratio) for ratio in each.ratios)]
    for spent in result.spending:
        head, rows = spending_table(spent)
        lines += ["", f"where a job's time goes: {spent.operation}, {spent.durability}"]
        lines += [plain_table(head, rows)]
    if result.idle is not None:
        lines += ["", plain_table(*idle_table(result.idle))]
    lines += ["", *(f"{name}: {value}" for name, value in conditions(result))]
    shared, head, rows = cards_tables(cards(result))
    lines += [f"{name}: {value}" for name, value in shared]
    lines += [plain_table(head, rows)] if rows else []
    return "\n".join(lines)


def markdown(result: OperationsResult) -> str:
    """Return the report."""
    parts = [
        f"# {TITLE}",
        result.sentence,
        f"Command: `{result.command}`",
        markdown_table(("", ""), conditions(result)),
        "## Goals",
        markdown_table(("goal", "asked", "measured", "met"), goal_rows(result.goals)),
        "## Figures",
        markdown_table(*figures_table(result.comparisons)),
        "Rates are medians over the repeats, ratios medians of the ratios within each repeat; in "
        "brackets the range of the repeats. `bare, rows ready` executes rows that were made before "
        "the clock ran, `bare, rows made` makes them of the objects that killproof is given.",
    ]
    if result.spending:
        parts += ["## Where a job's time goes", SPENDING_METHOD]
    for spent in result.spending:
        parts += [
            f"### {spent.operation}, {spent.durability}",
            markdown_table(*spending_table(spent)),
            "Killproof's functions by their own time, under Python's profiler, which makes Python "
            "look slower than it is:",
            markdown_table(*functions_table(spent)),
        ]
    if result.idle is not None:
        parts += ["## Idle workers", markdown_table(*idle_table(result.idle)), IDLE_METHOD]
    if found := cards(result):
        shared, head, rows = cards_tables(found)
        parts += ["## Claim cards", markdown_table(("of every figure", ""), shared)]
        parts += [markdown_table(head, rows)] if rows else []
    parts += ["## Method", METHOD, "## What this does not show", LIMITS]
    return "\n\n".join(parts) + "\n"


METHOD: Final = (
    "A repeat is a fresh process with fresh files, one for each arm. In it the arms run in short "
    "slices, there and back again (A B B A, or A B C C B A), so that a drift of the machine falls "
    "on all alike; producers of many processes take turns by whole rounds, ABBA.\n"
    "The bare arms run killproof's own statements, taken from its constants, on a plain connection "
    "in a loop. At `power` there are two, because one process can make a commit durable in two "
    "ways: `fdatasync` of the log after a commit at NORMAL, which are killproof's system calls, "
    "and FULL, which is what a program without a barrier sets. A goal stands beside the faster.\n"
    "Before the clock runs, the log is made as long as one in use: a log that still grows costs a "
    "third more for each commit, and for how long is chance.\n"
    "Each file is judged afterwards: every acknowledged job is in it once, ids are in the order of "
    "the jobs, and nothing else is there."
)
SPENDING_METHOD: Final = (
    "Means of a run with meters on the seams of the queue, in turns with the bare loop (NORMAL, "
    "and at `power` fdatasync); what the meters cost is taken off. The bare loop's checkpoints "
    "happen inside its COMMIT. Python is what no meter saw, the interpreter's share of a statement "
    "and its rows excepted."
)
IDLE_METHOD: Final = (
    "Workers are `killproof work` with its defaults. Write transactions are counted exactly, by "
    "the number in the turnstile's file, which each leaver raises, and by the index of the log, "
    "which each write changes; /proc/locks is looked at besides."
)
LIMITS: Final = (
    "- Another machine. Rates follow the disk's own sync rate; trust the ratios of this run.\n"
    "- Contention: here one process writes at a time, but for the producers.\n"
    "- Work: jobs do nothing, so that every microsecond of the queue shows.\n"
    "- Old files: these begin empty, or with the jobs of the run (`killproof bench rows`).\n"
    "- Idle workers on a busy machine: here nobody else wants the processor."
)


def conditions(result: OperationsResult) -> Iterator[tuple[str, str]]:
    """Yield what all figures hold under."""
    noise = result.noise
    quiet = "quiet" if not noise.noisy else f"NOISY: {'; '.join(noise.because)}"
    raw = [rate for each in result.comparisons for rate in each.raw]
    raw += result.idle.raw if result.idle is not None else ()
    yield "seed", str(result.seed)
    yield "started", result.started
    yield from result.environment.items()
    if raw:
        yield "raw fdatasync/s, before and after", f"{raw[0]:,.0f}, {raw[-1]:,.0f}"
    yield (
        "noise",
        f"{quiet} (load {noise.load_before:.2f} before, {noise.load_after:.2f} after)",
    )
    yield "verdict", result.verdict + (", interrupted" if result.interrupted else "")


def goal_rows(goals: Sequence[Goal]) -> Rows:
    """Return the goals as rows."""
    return [(goal.what, goal.asked, goal.measured, MET[goal.met]) for goal in goals]


def picture(each: Comparison) -> str:
    """Return the rates as bars."""
    heading = f"{each.operation}, {each.durability}: {each.arms[0].card.unit}"
    rows = [
        Bar(label=arm.arm, value=arm.per_s.value, text=figure(arm.per_s), mark="#" if ours else "-")
        for arm, ours in zip(each.arms, (True, *(False for _ in each.arms)), strict=False)
    ]
    return bars(heading, rows)


def ratio_line(ratio: RatioFigure) -> str:
    """Return one ratio with its repeats."""
    repeats = ", ".join(f"{value:.3f}" for value in ratio.repeats)
    return f"  over {ratio.against}: {number(ratio.value.value)} (by repeat: {repeats})"


def figures_table(comparisons: Sequence[Comparison]) -> tuple[tuple[str, ...], Rows]:
    """Return all rates and ratios."""
    head = ("operation", "durability", "arm", "per second", "killproof over it", "verdict",
            "raw syncs/s")  # fmt: skip
    rows: Rows = []
    for each in comparisons:
        ratios = {ratio.against: figure(ratio.value) for ratio in each.ratios}
        raw = f"{each.raw[0]:,.0f}, {each.raw[-1]:,.0f}" if each.raw else ""
        for arm in each.arms:
            beside = ratios.get(arm.arm, "")
            rows.append(
                (
                    *(each.operation, each.durability, arm.arm, figure(arm.per_s), beside),
                    *(each.correctness.verdict, raw),
                )
            )
    return head, rows


def spending_table(spent: Spending) -> tuple[tuple[str, ...], Rows]:
    """Return the parts of a job's time, killproof's and the bare loop's."""
    head = ("part", "killproof, us", "calls", "bare, us", "calls", "difference, us")
    bare = {cost.part: cost for cost in spent.bare}
    return head, [_part(cost, bare.get(cost.part)) for cost in spent.killproof]


def _part(ours: Cost, bare: Cost | None) -> tuple[str, ...]:
    beside = ("-", "-") if bare is None else (f"{bare.us:.1f}", _calls(bare))
    more = ours.us - (0.0 if bare is None else bare.us)
    return (ours.part, f"{ours.us:.1f}", _calls(ours), *beside, f"{more:+.1f}")


def _calls(cost: Cost) -> str:
    return f"{cost.calls:.2f}" if cost.calls else ""


def functions_table(spent: Spending) -> tuple[tuple[str, ...], Rows]:
    """Return the functions that the profile names."""
    head = ("function", "own us of a job", "calls")
    return head, [(f"`{f.part}`", f"{f.us:.1f}", f"{f.calls:.1f}") for f in spent.functions]


def idle_table(idle: Idle) -> tuple[tuple[str, ...], Rows]:
    """Return what idle workers cost, and how soon they start."""
    cpu = idle.cpu_per_worker
    turns = "not told" if idle.write_transactions is None else str(idle.write_transactions)
    return ("idle workers", "measured"), [
        ("files, and workers on each", f"{idle.files}, {idle.workers}"),
        ("start after the call of enqueue, p50 ms", _with_n(idle.start_p50_ms)),
        ("start after the call of enqueue, p99 ms", _with_n(idle.start_p99_ms)),
        ("the longest, ms", number(idle.start_max_ms)),
        ("start after the return of enqueue, p50 ms", _with_n(idle.committed_p50_ms)),
        ("watched idle, s", f"{idle.idle_seconds:.1f}"),
        (
            "processor of one, share of a core",
            f"{_percent(cpu.value)} [{_percent(cpu.low)} to {_percent(cpu.high)}] of {cpu.n}",
        ),
        ("times that one woke up, per s", f"{idle.voluntary_switches_per_s:.1f}"),
        ("write transactions of all", turns),
        ("logs that changed", str(idle.log_changes)),
        (
            "write locks seen in /proc/locks",
            f"{idle.write_locks_seen} in {idle.lock_samples:,} looks",
        ),
    ]


def _with_n(value: Figure) -> str:
    return f"{figure(value)}, n = {value.n:,}"


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.2%}"


def cards(result: OperationsResult) -> list[tuple[str, ClaimCard]]:
    """Return the claim card of every figure, by name."""
    found = [
        (f"{each.operation}, {each.durability}: {arm.arm}", arm.card)
        for each in result.comparisons
        for arm in each.arms
    ]
    return found if result.idle is None else [*found, ("idle worker to start", result.idle.card)]


def cards_tables(
    named: Sequence[tuple[str, ClaimCard]],
) -> tuple[Rows, tuple[str, ...], Rows]:
    """Return the conditions that all figures share, and a table of those that differ."""
    fields = [(name, dict(card_fields(card))) for name, card in named]
    if not fields:
        return [], (), []
    first = fields[0][1]
    shared = [name for name in first if len({lines[name] for _, lines in fields}) == 1]
    differing = [name for name in first if name not in shared]
    rows: Rows = [(name, *(lines[field] for field in differing)) for name, lines in fields]
    return [(n, first[n]) for n in shared], ("figure", *differing), rows if differing else []
