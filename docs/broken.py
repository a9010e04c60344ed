"""The tables of the broken queues, made from the files of the gallery; cog calls them."""

from collections import Counter
from typing import Final

from killproof_chaos import gallery
from killproof_chaos.power.trials import ENGINES
from killproof_chaos.report_markdown import plain
from killproof_evidence.judge import PROPERTIES

#: From a page of docs/ to a file of the gallery.
FILES: Final = "../chaos/killproof_chaos/gallery"


def counts() -> str:
    """Return how many broken queues there are, by the engine that must catch them."""
    faults = [gallery.fault(name) for name in gallery.names()]
    by = Counter(fault.engine for fault in faults)
    told = ", ".join(f"{by[engine]} by `{engine}`" for engine in ENGINES)
    promises = len({fault.promise for fault in faults})
    return f"{len(faults)} broken queues break {promises} of {len(PROPERTIES)} promises: {told}."


def table() -> str:
    """Return the Markdown tables: a heading for each promise, a row for each queue."""
    faults = [gallery.fault(name) for name in gallery.names()]
    lines: list[str] = []
    for entry in PROPERTIES:
        mine = [fault for fault in faults if fault.promise == entry.number]
        if not mine:
            continue
        lines += [
            f"### {entry.number}: {entry.sentence}",
            "",
            "| queue | what is wrong | class | the right line | by | seen in public |",
            "|---|---|---|---|---|---|",
        ]
        for fault in mine:
            file = f"{FILES}/{fault.name.replace('-', '_')}.py"
            cells = (fault.wrong, fault.kind, fault.right)
            lines.append(
                f"| [{fault.name}]({file}) | "
                + " | ".join(plain(cell, 1_000) for cell in cells)
                + f" | `{fault.engine}`, {fault.seconds:g} s | "
                + f"{', '.join(map(plain, fault.seen))} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()
