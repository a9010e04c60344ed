"""The report of the engine `model`: what was searched, and what each guard keeps from happening."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.model_protocol import GUARDS
from killproof_evidence.store import Store

NOT_SHOWN: Final = (
    "That the code does what the protocol says: a test walks both side by side, and the other "
    "engines judge the code.",
    "More workers, jobs or attempts than stand in the table. Workers and jobs are alike, and the "
    "protocol has no rule that counts them; that is an argument and not a search.",
    "Durability, SQLite, due times and their order, limits and workflows: they are no part of it.",
    "Termination for work without end: new jobs, crashes, stops and what people do end some day, "
    "a worker that is not stopped ends its handler, and somebody goes on looking and reaping.",
)


def write_markdown(stores: Iterable[Path], path: Path) -> None:
    """Write the report of these runs: whole searches, and one run without each guard.

    Raises:
        StoreError: a folder is no store of a finished run; definite.
    """
    records = [Store(store).read_verdict() for store in stores]
    whole = [record for record in records if not record["without"]]
    path.write_text("\n".join([*_head(whole), *_guards(records), *_tail(whole)]) + "\n")


def _head(records: Sequence[Mapping[str, Any]]) -> list[str]:
    where = records[0]["environment"]
    lines = [
        "# Every state of the lease protocol",
        "",
        "Command: `make report-model`; nothing is drawn, so there is no seed.",
        f"Machine: {where['cpu']}, {where['cores']} cores; Python {where['python']}. "
        "SQLite takes no part in it.",
        "",
        "Each row is a whole search of the protocol as the contract of `killproof` puts it, with "
        f"at most {records[0]['attempts']} attempts to a job and any number of crashes, stops, "
        "late heartbeats and releases at any step.",
        "States that differ only by the names of workers and jobs count once.",
        "",
        "| search | workers | jobs | producers | people | verdict | states | steps | depth | "
        "CPU s | steps/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    seen = set()
    for record in records:
        people = "yes" if record["people"] else "no"
        for row in record["searches"]:
            name = (row["name"], row["workers"], row["jobs"], people)
            if name not in seen:
                seen.add(name)
                whole = record["verdict"] if row["exhausted"] else "not exhausted"
                lines.append(
                    f"| {row['name']} | {row['workers']} | {row['jobs']} | {row['producers']} | "
                    f"{people} | {whole} | {row['states']:,} | {row['steps']:,} | {row['depth']} "
                    f"| {row['cpu_seconds']:.1f} | {row['steps_per_second']:,} |"
                )
    judged = [n for n, p in records[0]["properties"].items() if p["verdict"] == "pass"]
    return [
        *lines,
        "",
        f"Judged: {', '.join(judged)}. `keys` has producers that share a key, repeat their calls "
        "and may never hear an answer. *People* cancel, hold and replay.",
        "",
    ]


def _guards(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a row for each guard: the promise that breaks first without it."""
    lines = [
        "## Without one guard",
        "",
        "| guard | what it says | without it breaks | after steps | states looked at |",
        "|---|---|---|---|---|",
    ]
    stories = []
    for record in records:
        if len(record["without"]) != 1:
            continue
        (guard,) = record["without"]
        found = {n: p["witnesses"][0] for n, p in record["properties"].items() if p["witnesses"]}
        steps = min((len(witness["lines"]) for witness in found.values()), default=0)
        lines.append(
            f"| `{guard}` | {GUARDS[guard]} | {' '.join(found) or 'nothing'} | {steps} | "
            f"{record['counts']['states']:,} |"
        )
        if guard == "reap.deadline":
            for witness in found.values():
                told = [line["text"] for line in witness["lines"]]
                stories += [f"Without `{guard}`:", "", "```text", *told]
                stories += [f"  => {witness['story']}", "```", ""]
    return [*lines, "", *stories]


def _tail(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        "## Who moves a job where",
        "",
        "```mermaid",
        records[0]["diagram"],
        "```",
        "",
        f"Edges of the contract that nothing here walks: {', '.join(records[0]['not_walked'])}.",
        "",
        "## What this does not show",
        "",
        *(f"- {line}" for line in NOT_SHOWN),
    ]
