"""The report of a full sweep: every scenario at its bound, at random beyond it, and the naive ones.

A pure function of the stores that `make report-schedules` leaves behind, in Markdown.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from killproof_chaos.report_markdown import plain, table
from killproof_chaos.report_sim import LIMITS
from killproof_evidence.store import Store

Record = Mapping[str, Any]

#: Beyond what no run shows, what this sweep does not.
NOT_SHOWN: Final = (
    *LIMITS,
    "Prefixes that end at a state known before, with at least the budget that is left: they are "
    "cut off, because what follows was explored from there. A state is compared by a hash of 64 "
    "bits.",
    "Of a random search, what it did not draw. PCT finds a bug of depth d in n actors and k steps "
    "with a probability of at least 1 / (n k^(d-1)) a schedule.",
)


def write_markdown(root: Path, out: Path, *overrides: str) -> Path:
    """Write the report of the stores in `exhaustive/`, `random/` and `naive/` below a folder.

    Args:
        root: the folder.
        out: the report.
        overrides: what the make target was given, such as `SWEEP=8s`.

    Raises:
        StoreError: a run has no verdict; definite.
        ValueError: there are no runs at all.
    """
    parts = {name: _records(root / name) for name in ("exhaustive", "random", "naive")}
    if not parts["exhaustive"]:
        raise ValueError(f"{root} holds no runs: make them with `make report-schedules`")
    text = "\n\n".join(
        [
            "# Schedules under control",
            _head(parts["exhaustive"][0], " ".join(("make report-schedules", *overrides))),
            *_exhaustive(parts["exhaustive"]),
            *_random(parts["random"]),
            *_naive(parts["naive"]),
            "## What this does not show",
            "\n".join(f"- {line}" for line in NOT_SHOWN),
        ]
    )
    out.write_text(text + "\n", encoding="utf-8")
    return out


def _records(folder: Path) -> list[Record]:
    runs = sorted(path.parent for path in folder.glob("*/verdict.json"))
    return [Store(path).read_verdict() for path in runs]


def _head(record: Record, command: str) -> str:
    where = record["environment"]
    fault = "has" if where["wal_reset_affected"] else "does not have"
    return "\n".join(
        [
            f"Command: `{command}`. The exhaustive part draws nothing; the seeds of the random "
            "part stand beside it.",
            f"Machine: {where['cpu']}, {where['cores']} cores; Python {where['python']}, SQLite "
            f"{where['sqlite']} (which {fault} the WAL-reset fault), files in memory. Two "
            "processes explored at once.",
            "",
            "A schedule is one order in which the statements of a few actors meet a real file; "
            "the queue's own code runs unchanged. Each is judged by the checkers of all engines.",
        ]
    )


def _exhaustive(records: Sequence[Record]) -> list[str]:
    rows, figures = [], []
    for record in records:
        for row in record["scenarios"]:
            bound = "none" if row["bound"] is None else str(row["bound"])
            rows.append(
                (
                    plain(record["target"]),
                    row["scenario"],
                    _verdict(row),
                    f"{row['schedules']:,}",
                    f"{row['pruned']:,}",
                    f"{row['outcomes']:,}",
                    bound if row["exhausted"] else f"{bound}, not {record['asked']}",
                    f"{row['cpu_seconds']:.1f}",
                    f"{row['schedules_per_cpu_second']:,}",
                    f"{100 * row['sqlite_share']:.0f}%",
                )
            )
            figures.append(row)
    whole = sum(row["exhausted"] for row in figures)
    broken = sum(bool(row["broken"]) for row in figures)
    played = sum(row["schedules"] + row["pruned"] for row in figures)
    cut = sum(row["pruned"] for row in figures)
    asked = records[0]["asked"]
    head = (
        "target", "scenario", "verdict", "schedules", "cut off", "outcomes", "bound exhausted",
        "CPU s", "schedules per CPU s", "in SQLite",
    )  # fmt: skip
    found = [
        f"## Every schedule up to {asked} preemptions and {records[0]['crashes']} crash",
        f"**{whole} of {len(figures)} scenarios were exhausted at bound {asked}; "
        f"{'no violation was found' if not broken else f'{broken} broke a promise'} in "
        f"{played - cut:,} schedules.** {cut:,} more were cut off where a state was reached that "
        f"was known: {100 * cut / max(played, 1):.0f}% of all that were begun.",
        table(head, rows),
        "*outcomes*: different pieces of evidence among the schedules. Beside the crash, a "
        "scenario has the passes of time and the clock steps that its text names. The CPU time "
        "includes the lower bounds, which are explored first.",
    ]
    for record in records:
        lacks = [f"{name} (needs {lack})" for name, lack in record["left_out"].items()]
        if lacks:
            found.append(f"Left out for {plain(record['target'])}: {', '.join(lacks)}.")
    return found


def _random(records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    found = ["## At random, beyond the bound"]
    for record in records:
        counts = record["counts"]
        word = "no violation" if record["verdict"] == "pass" else record["verdict"]
        rate = counts["played"] / max(sum(row["cpu_seconds"] for row in record["scenarios"]), 1e-9)
        found.append(
            f"{plain(record['target'])}, scheduler {record['scheduler']}, seed {record['seed']}: "
            f"**{counts['distinct']:,} different schedules, {word}**, of {counts['played']:,} "
            f"played in {len(record['scenarios'])} scenarios ({rate:,.0f} per CPU s).\n"
            f"`{record['replay']}`"
        )
    head = ("target", "scenario", "verdict", "different schedules", "played", "outcomes")
    rows = [
        (
            plain(record["target"]),
            row["scenario"],
            _verdict(row),
            f"{row['distinct']:,}",
            f"{row['schedules']:,}",
            f"{row['outcomes']:,}",
        )
        for record in records
        for row in record["scenarios"]
    ]
    return [*found, table(head, rows)]


def _naive(records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    rows, stories = [], []
    for record in records:
        for row in record["scenarios"]:
            rows.append(
                (
                    plain(record["target"]),
                    row["scenario"],
                    _verdict(row),
                    "" if row["first"] is None else f"{row['first']:,}",
                    f"{row['seconds']:.2f}",
                    f"{sum(story['plays'] for story in record['stories']):,}",
                    str(min((len(story["steps"]) for story in record["stories"]), default="")),
                )
            )
        for story in record["stories"][:1]:
            replay = f"killproof chaos replay {story['token']}"
            stories += [
                f"### {plain(record['target'])}",
                f"```text\n{story['text'].replace('`', chr(39))}```",
                f"```sh\n{replay}\n```",
            ]
    head = (
        "target", "scenario", "broken", "at its bound found as number", "s",
        "schedules to shrink it", "steps",
    )  # fmt: skip
    return [
        "## Naive queues",
        "Each has one guard less than it needs, as many queues in the wild. *s*: wall time from "
        "the first schedule of bound 0 to the violation.",
        table(head, rows),
        *stories,
    ]


def _verdict(row: Record) -> str:
    return " ".join([row["verdict"].replace("pass", "no violation"), *row["broken"]])
