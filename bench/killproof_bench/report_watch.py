"""Turn the recorded cost of watchers into lines and a report: pure functions of the result."""

import dataclasses
import json
from dataclasses import dataclass

from killproof_bench.report import figure, markdown_table, number
from killproof_bench.result import Noise
from killproof_bench.scenarios.watch import ARMS, WatchResult

TITLE = "Watching: what 50 open pages cost the workers"

#: What the comparison is asked to show; printed, never asserted.
P50_GOAL = 1.2
P99_GOAL = 2.0
#: What a log is cut back to when it starts anew: a bound that no reader has made grow.
WAL_GOAL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """One run of `killproof bench watch`, with its conditions."""

    command: str
    seed: int
    started: str  #: UTC, ISO 8601.
    environment: dict[str, str]
    seconds: float
    warmup_seconds: float
    rounds: int  #: Of each arm.
    noise: Noise
    result: WatchResult


def to_json(report: WatchReport) -> str:
    """Return the report as one JSON document."""
    return json.dumps(dataclasses.asdict(report), indent=1, ensure_ascii=False)


def sentence(result: WatchResult) -> str:
    """Return the one sentence that the command and the report begin with."""
    if result.correctness.verdict != "pass":
        return f"The figures are void: {'; '.join(result.correctness.because[:2])}."
    p50, p99 = ("refused" if x is None else f"{x:.2f} times" for x in _ratios(result))
    return (
        f"{result.watchers} clients watch while {result.workers} workers run at "
        f"{result.durability}: a claim takes {p50} (p50) and {p99} (p99) of what it takes without "
        f"them; the log stays under {_mebibytes(result.wal_bytes_max['watched'])} "
        f"({_mebibytes(result.wal_bytes_max['unwatched'])} without); "
        f"each of {result.correctness.jobs:,} jobs was done exactly once."
    )


def goals(result: WatchResult) -> list[tuple[str, str, str]]:
    """Return what was to be shown, what was measured, and whether it was met; void if wrong."""
    if result.correctness.verdict != "pass":
        return [(what, "void", "void") for what in ("p50", "p99", "the log")]
    p50, p99 = _ratios(result)
    wal = result.wal_bytes_max["watched"]
    return [
        (f"p50 within {P50_GOAL:g} times", number(p50), _met(p50, P50_GOAL)),
        (f"p99 within {P99_GOAL:g} times", number(p99), _met(p99, P99_GOAL)),
        (
            f"the log stays under {_mebibytes(WAL_GOAL_BYTES)}",
            _mebibytes(wal),
            _met(wal, WAL_GOAL_BYTES),
        ),
    ]


def terminal(report: WatchReport) -> str:
    """Return what the command prints: the sentence, the goals, the conditions."""
    lines = [sentence(report.result)]
    lines += [f"{what}: {found} ({met})" for what, found, met in goals(report.result)]
    lines.append(
        "by pair of rounds, p50 and p99: "
        + ", ".join(f"{p50:.2f} and {p99:.2f}" for p50, p99 in report.result.pairs)
    )
    lines += [f"{name}: {value}" for name, value in _conditions(report)]
    return "\n".join(lines)


def markdown(report: WatchReport) -> str:
    """Return the report."""
    result = report.result
    rounds = [
        (
            str(each.position),
            each.arm,
            f"{each.jobs_per_s:,.0f}",
            number(each.p50_ms),
            number(each.p99_ms),
            _mebibytes(each.wal_bytes_max),
            f"{each.frames_behind_max:,}",
            "-" if each.server_cpu is None else f"{each.server_cpu:.1%}",
            "-" if each.events_per_s is None else f"{each.events_per_s:.2f}",
        )
        for each in result.rounds
    ]
    head = ("round", "arm", "jobs/s", "p50 ms", "p99 ms", "largest log", "frames behind")
    figures = [
        (arm, figure(result.p50_ms[arm]), figure(result.p99_ms[arm]), f"{result.p50_ms[arm].n:,}")
        for arm in ARMS
    ]
    parts = [
        f"# {TITLE}",
        sentence(result),
        f"Command: `{report.command}`",
        markdown_table(("", ""), _conditions(report)),
        "## Goals",
        markdown_table(("goal", "measured", "met"), goals(result)),
        "## Figures",
        markdown_table(("arm", "p50 ms", "p99 ms", "calls"), figures),
        "In brackets: 95% interval, by a bootstrap over blocks of a second.",
        "## Rounds",
        markdown_table((*head, "CPU of the server", "events/s to a client"), rounds),
        "## What this does not show",
        "- A machine with more processors, where the server and its clients take less from the "
        "workers, or one where a browser draws beside them.\n"
        "- Workers that do something: between two claims these do nothing, so that every "
        "disturbance shows.\n"
        "- Files of millions of jobs: the counts read more there, and rest longer.\n"
        "- Other pages than the overview, and people who search while the workers run.",
    ]
    return "\n\n".join(parts) + "\n"


def _conditions(report: WatchReport) -> list[tuple[str, str]]:
    result = report.result
    noise = report.noise
    quiet = "quiet" if not noise.noisy else f"NOISY: {'; '.join(noise.because)}"
    return [
        ("seed", str(report.seed)),
        ("started", report.started),
        *report.environment.items(),
        ("operation", "ack-and-claim: one transaction acks a job and claims the next"),
        ("load", f"closed loop, {result.workers} processes, no work between two calls"),
        ("watchers", f"{result.watchers} streams of events in one process on the same machine"),
        ("durability", result.durability),
        *((name, result.facts[name]) for name in ("journal_mode", "synchronous")),
        ("rounds", f"{report.rounds} of each arm, in ABBA or BAAB"),
        (
            "each round",
            f"{report.warmup_seconds:g} s warm-up, {report.seconds:g} s measured",
        ),
        ("noise", f"{quiet} (load {noise.load_before:.2f} before, {noise.load_after:.2f} after)"),
        ("correctness", result.correctness.verdict),
    ]


def _ratios(result: WatchResult) -> tuple[float | None, float | None]:
    return result.p50_ratio, result.p99_ratio


def _met(value: float | None, most: float) -> str:
    return "not measured" if value is None else "yes" if value <= most else "**no**"


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
