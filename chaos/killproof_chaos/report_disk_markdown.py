"""The report to commit: power cuts of several queues side by side, from the stores of their runs.

`python -m killproof_chaos.report_disk_markdown OUT STORE...` writes OUT (Markdown), the same name
with `.json` (the figures, which the documents quote) and with `.html` (the page of the first run in
which something was lost).
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from killproof_chaos import report_disk
from killproof_evidence.store import Store, write_json

#: The order of the table: the queue, its other level, the healthy reference, then broken ones.
FIRST: Final[tuple[str, ...]] = ("killproof", "killproof-process", "minimal")
#: Parts of the work on an image that are SQLite's and the queue's own.
SQLITES: Final = ("open", "take back and read", "integrity check")
#: What a figure of the table adds up.
SUMS: Final = (
    "images",
    "distinct",
    "images_opened",
    "points",
    "points_cut",
    "acknowledged",
    "images_unopened",
)


@dataclass(slots=True, kw_only=True)
class Queue:
    """All runs of one queue."""

    records: list[Mapping[str, Any]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return what the runs add up to."""
        found: dict[str, Any] = {
            name: sum(record["counts"][name] for record in self.records) for name in SUMS
        }
        lost = [record["properties"]["P1"].get("figures") or {} for record in self.records]
        policies: dict[str, int] = {}
        for one in lost:
            for policy, count in one.get("policies", {}).items():
                policies[policy] = policies.get(policy, 0) + count
        found |= {
            "runs": len(self.records),
            "seeds": [record["seed"] for record in self.records],
            "level": self.records[0]["level"],
            "verdicts": sorted({record["verdict"] for record in self.records}),
            "images_lost": sum(one.get("images_lost", 0) for one in lost),
            "points_lost": sum(one.get("points_lost", 0) for one in lost),
            "worst": max((one.get("worst", 0) for one in lost), default=0),
            "policies": dict(sorted(policies.items())),
            "kills": sum(record["faults"]["kill"] for record in self.records),
            "broken": {
                number: sum(r["properties"][number].get("violations", 0) for r in self.records)
                for number in ("P6", "P7", "P12", "P13", "P14", "P16")
                if self.records[0]["properties"][number]["verdict"] in ("pass", "violated")
            },
            "images_per_cpu_second": round(
                sum(record["counts"]["images_per_cpu_second"] for record in self.records)
                / len(self.records)
            ),
        }
        return found


def write(stores: Sequence[Path], out: Path) -> None:
    """Write the report, its figures and its page.

    Raises:
        StoreError: a run was not judged yet; definite.
        ValueError: there is no store.
    """
    if not stores:
        raise ValueError("a report on power cuts needs at least one store")
    queues: dict[str, Queue] = {}
    page: Store | None = None
    for path in stores:
        store = Store(path)
        record = store.read_verdict()
        queues.setdefault(record["target"], Queue()).records.append(record)
        if page is None and (record["properties"]["P1"].get("figures") or {}).get("images_lost"):
            page = store
    page = page or Store(stores[0])
    names = [name for name in FIRST if name in queues]
    names += [name for name in queues if name not in FIRST]
    figures = {name: queues[name].figures() for name in names}
    out.with_suffix(".html").write_text(report_disk.render(page), encoding="utf-8")
    write_json(out.with_suffix(".json"), {"schema": 1, "queues": figures})
    told = f"[{out.stem}.html]({out.stem}.html) ({page.read_verdict()['target']})"
    out.write_text(markdown(queues, figures, told), encoding="utf-8")


def markdown(
    queues: Mapping[str, Queue], figures: Mapping[str, Mapping[str, Any]], page: str
) -> str:
    """Return the report.

    Args:
        queues: in any order.
        figures: of each queue, in the order of the tables.
        page: a link to the page of one run.
    """
    first = queues[next(iter(figures))].records
    parts = [
        "# Power cuts",
        _opening(figures),
        "Command: `make report-power-cut`",
        f"One run in pictures, with the points where acknowledgements are lost: {page}.",
        "## What was found",
        _table(figures),
        "An *image* is what the disk may hold after a cut at one point under one policy; equal "
        "ones are opened once. It *lacks* an acknowledgement when a process had been told "
        "something by then (an enqueue, claim, ack, nack, release, snooze, cancel, replay, read or "
        "refusal) that the queue's file does not honour after its own recovery. *Broken* counts "
        "images that break exactly-once effects (P6), the state machine (P7), keys (P12), dead "
        "letters (P13), the sums (P14) or the file itself (P16: it opens, `integrity_check`, "
        "`foreign_key_check`).",
        "## By policy",
        _policies(figures),
        "## How it was done",
        _conditions(first[0], figures),
        "## What bounds the speed",
        _speed(figures, queues),
        "## What this does not show",
        "\n".join(f"- {limit}" for limit in report_disk.LIMITS),
        "## Run it again",
        "One run of each queue:",
        "```sh\n" + "\n".join(queues[name].records[0]["replay"] for name in figures) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _opening(figures: Mapping[str, Mapping[str, Any]]) -> str:
    name, found = next(iter(figures.items()))
    broken = sum(found["broken"].values())
    return (
        f"**{name}, level {found['level']}: of {found['distinct']:,} distinct images "
        f"({found['images']:,} power cuts) {found['images_lost']:,} lack an acknowledgement, "
        f"{broken:,} break another promise, {found['images_unopened']:,} do not open.** They come "
        f"from {found['runs']} recorded runs with {found['acknowledged']:,} acknowledgements and "
        f"{found['kills']} killed processes."
    )


def _table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "| queue | promises to survive | runs | points cut | images | distinct | lack an "
        "acknowledgement | at points | worst | broken | verdict |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, found in figures.items():
        share = found["images_lost"] / found["images"]
        level = "a power cut" if found["level"] == "power" else "a kill"
        lines.append(
            f"| {name} | {level} | {found['runs']} | {found['points_cut']:,} | "
            f"{found['images']:,} | {found['distinct']:,} | {found['images_lost']:,} "
            f"({share:.0%}) | {found['points_lost']:,} | {found['worst']} | "
            f"{sum(found['broken'].values()):,} | {', '.join(found['verdicts'])} |"
        )
    return "\n".join(lines)


def _policies(figures: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(report_disk.POLICIES)
    lines = [
        "Images that lack an acknowledgement, by what the disk does with all that no sync had made "
        "durable:",
        "",
        "| queue | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for name, found in figures.items():
        cells = " | ".join(f"{found['policies'].get(policy, 0):,}" for policy in names)
        lines.append(f"| {name} | {cells} |")
    told = [f"- `{name}`: {words}" for name, words in report_disk.POLICIES.items()]
    return "\n".join([*lines, "", *told])


def _conditions(record: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> str:
    where = record["environment"]
    counts = record["counts"]
    seeds = "; ".join(
        f"{name} {', '.join(map(str, sorted(found['seeds'])))}" for name, found in figures.items()
    )
    return "\n".join(
        (
            f"- Each run: {record['replay'].split('--jobs ')[1].split()[0]} jobs, 2 players, 3 "
            "workers, a program that checkpoints, and for killproof a process that claims and "
            "gives back; some are killed now and then, and all of them once; the first open is in "
            f"the recording. The first run has {counts['records']:,} records and "
            f"{counts['points']:,} points.",
            "- The recorder preloads a shim under unmodified SQLite. What the log rebuilds was "
            "compared with the real files, while nobody was alive and at the end.",
            "- Only a write that had ended before a sync of its file began is durable when that "
            "sync returns; a name only after a sync of its folder; nothing after a sync that "
            "failed.",
            f"- Obligations: {record['coverage']['hit']} of {record['coverage']['obliged']} met "
            "in the first run.",
            f"- Seeds: {seeds}.",
            f"- Machine: {where.get('cpu') or where.get('machine')}, {where['cores']} cores, "
            f"{where['fs']}, images in RAM. Python {where['python']}, SQLite {where['sqlite']}"
            f"{' (has the WAL-reset fault)' if where.get('wal_reset_affected') else ''}.",
        )
    )


def _speed(figures: Mapping[str, Mapping[str, Any]], queues: Mapping[str, Queue]) -> str:
    lines = [
        "CPU time, ms: of each image that was opened, and `rebuild` (with the digest) of every "
        "image. Wall time is not told: the machine did other work meanwhile.",
        "",
    ]
    parts = sorted({part for queue in queues.values() for part in queue.records[0]["checking_ms"]})
    lines += [
        "| queue | " + " | ".join(parts) + " | images/s of one core | of two cores |",
        "|---|" + "---:|" * (len(parts) + 2),
    ]
    for name, found in figures.items():
        cells = " | ".join(
            _mean(record["checking_ms"].get(part, 0.0) for record in queues[name].records)
            for part in parts
        )
        speed = found["images_per_cpu_second"]
        lines.append(f"| {name} | {cells} | {speed:,} | {2 * speed:,} |")
    first = next(iter(figures))
    spent = queues[first].records[0]["checking_ms"]
    share = sum(spent.get(part, 0.0) for part in SQLITES) / sum(spent.values())
    lines += [
        "",
        f"It is SQLite and the queue that bound it, not the rebuilding: for {first}, opening the "
        "file with its recovery, taking back every lease, reading all rows twice and the integrity "
        f"check are {share:.0%} of the work on an image.",
    ]
    return "\n".join(lines)


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{sum(found) / len(found):.2f}"


def main() -> None:
    """Write the report that the command line names."""
    out, *stores = sys.argv[1:]
    write([Path(store) for store in stores], Path(out))
    print(json.dumps({"written": out}))


if __name__ == "__main__":
    main()
