"""The verdict for people and for CI: one headline, a table, JUnit XML, a step summary.

Pure functions of the record in verdict.json. Nothing here says that a queue is correct: a run
without a violation has found none, in so many kills, and says so.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from killproof.wording import one_line
from killproof_evidence.judge import PROPERTIES, Row

#: A mark beside each word: the table must be readable without colour.
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "pass": ("✓", "green"),
    "violated": ("✗", "bold red"),
    "unknown": ("?", "yellow"),
    "not_promised": ("-", "dim"),
    "not_judged": ("·", "dim"),
}
STORY_CHARS_MAX: Final = 300


def headline(record: Mapping[str, Any]) -> str:
    """Return the verdict in one sentence, over what the engine has tried ("in 212 kills")."""
    tried = f"in {extent(record)}"
    if record["verdict"] == "pass":
        return f"{record['target']}: no violation found {tried}"
    if record["verdict"] == "violated":
        broken = [n for n, found in record["properties"].items() if found["verdict"] == "violated"]
        broken += ["an error that nobody expected"] if record.get("errors") else []
        return f"{record['target']}: violated {', '.join(broken)}, {tried}"
    return f"{record['target']}: unknown, {tried}"


def extent(record: Mapping[str, Any]) -> str:
    """Return what was tried; the counts tell which engine it was."""
    counts, jobs = record["counts"], record["jobs"]
    if "tried" in record:  # By several engines, whose counts say nothing of which.
        return str(record["tried"])
    if "images" in counts:
        return (
            f"{counted(counts['images'], 'power cut')} "
            f"({counted(counts['distinct'], 'distinct image')}), "
            f"{counted(counts['acknowledged'], 'acknowledgement')}"
        )
    if "schedules" in counts:
        return (
            f"{counted(counts['schedules'], 'schedule')} ({counts['distinct']:,} different) of "
            f"{counted(len(record['scenarios']), 'scenario')}"
        )
    if "states" in counts:
        without = f" without {', '.join(record['without'])}" if record["without"] else ""
        states = f"{counts['states']:,} states and {counted(counts['steps'], 'step')}"
        return f"{states} of {record['about']}{without}"
    if "errors" in counts:
        return (
            f"{counted(counts['kills'], 'kill')} and "
            f"{counted(counts['errors'], 'failed call')} of "
            f"{counted(len(record['operations']), 'operation')}, {record['seconds']:.0f} s"
        )
    return ", ".join(
        (
            counted(counts.get("kills", 0), "kill"),
            counted(counts.get("pauses", 0), "pause"),
            counted(jobs.get("enqueued", 0), "job"),
        )
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "kill"), counted(1312, "job")
    ('1 kill', '1,312 jobs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def reasons(record: Mapping[str, Any]) -> list[str]:
    """Return why the verdict is unknown, one reason a line; empty when it is not."""
    return [one_line(str(reason)) for reason in record["unknown_because"]]


def stories(record: Mapping[str, Any]) -> list[str]:
    """Return the first witness of each violated property, in a sentence."""
    found = []
    for name, finding in record["properties"].items():
        if finding["verdict"] == "violated" and finding["witnesses"]:
            story = one_line(finding["witnesses"][0]["story"])
            found.append(f"{name}: {story[:STORY_CHARS_MAX]}")
    return found


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return what was measured beside the verdict, and where: a line each."""
    found = []
    times = record.get("recovery_ms")
    if times:
        found.append(
            f"claimed again after a kill, with a peer idle: median {times['p50']:.0f} ms, "
            f"p99 {times['p99']:.0f} ms, at most {times['max']:.0f} ms"
        )
    where = record.get("environment")
    if where:
        reset = " (has the WAL-reset fault)" if where.get("wal_reset_affected") else ""
        durability = where.get("durability")
        level = f", durability {durability}" if durability else ""
        found.append(
            f"Python {where['python']}, SQLite {where['sqlite']}{reset}, {where['cores']} cores, "
            f"{where['fs']}{level}"
        )
    return found


def judged(record: Mapping[str, Any], *, about: str = "") -> list[Row]:
    """Return a row for each promise that an engine judged.

    The usual headlines stand for several promises each: of an engine that judges a few of them they
    would say too much.

    Args:
        record: verdict.json.
        about: what was judged, behind each sentence, where that is not the queue's code.
    """
    found = []
    for entry in PROPERTIES:
        finding = record["properties"][entry.number]
        if finding["verdict"] in ("pass", "violated", "unknown"):
            witnesses = finding["witnesses"]
            found.append(
                Row(
                    sentence=entry.sentence + about,
                    verdict=finding["verdict"],
                    checked=finding["checked"],
                    detail=witnesses[0]["story"] if witnesses else finding.get("reason") or "",
                    properties=(entry.number,),
                    names=entry.number,
                )
            )
    return found


def table(rows: list[Row]) -> Table:
    """Return the verdict table: the plain sentence first, the number of the property last."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    result.add_column("promise", overflow="fold")
    result.add_column("verdict", no_wrap=True)
    result.add_column("checked", justify="right")
    result.add_column("", no_wrap=True)
    for row in rows:
        mark, style = MARKS[row.verdict]
        word = Text(f"{mark} {row.verdict.replace('_', ' ')}", style=style)
        checked = f"{row.checked:,}" if row.checked else ""
        result.add_row(row.sentence, word, checked, row.names)
    return result


def junit(record: Mapping[str, Any], rows: list[Row]) -> bytes:
    """Return the verdict as JUnit XML: a test case for each promise."""
    suite = ElementTree.Element("testsuite", name=f"killproof chaos {record['target']}")
    failures = skipped = 0
    for row in rows:
        name = f"{row.sentence} [{row.names}]"
        case = ElementTree.SubElement(suite, "testcase", classname=record["target"], name=name)
        if row.verdict == "violated":
            failures += 1
            found = [s for s in stories(record) if s.split(":")[0] in row.properties]
            ElementTree.SubElement(
                case, "failure", message=one_line(row.detail) or "violated"
            ).text = "\n".join(found)
        elif row.verdict != "pass":
            skipped += 1
            message = one_line(row.detail) or row.verdict.replace("_", " ")
            ElementTree.SubElement(case, "skipped", message=message)
    run = ElementTree.SubElement(suite, "testcase", classname=record["target"], name="the run")
    unexpected = record.get("errors")
    if unexpected:
        # No promise has a case that would show it.
        failures += 1
        ElementTree.SubElement(
            run, "failure", message="an error that nobody expected"
        ).text = "\n".join(map(one_line, unexpected))
    errors = record["verdict"] == "unknown"
    if errors:
        # What was not hit is no pass: CI must see it beside the promises, not among the skipped.
        ElementTree.SubElement(run, "error", message="; ".join(reasons(record)) or "unknown")
    for name, count in (
        ("tests", len(rows) + 1),
        ("failures", failures),
        ("errors", int(errors)),
        ("skipped", skipped),
    ):
        suite.set(name, str(count))
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text


def markdown(record: Mapping[str, Any], rows: list[Row]) -> str:
    """Return the verdict as a Markdown section, for a CI job's summary."""
    lines = [
        f"### {headline(record)}",
        "",
        "| promise | verdict | checked | |",
        "|---|---|---|---|",
    ]
    for row in rows:
        mark, _ = MARKS[row.verdict]
        word = row.verdict.replace("_", " ")
        lines.append(f"| {row.sentence} | {mark} {word} | {row.checked} | {row.names} |")
    lines += [""]
    lines += [f"- {story}" for story in stories(record)]
    lines += [
        f"- an error that nobody expected: {one_line(text)}" for text in record.get("errors") or ()
    ]
    lines += [f"- unknown because {reason}" for reason in reasons(record)]
    lines += ["", f"`{record['replay']}`", ""]
    return "\n".join(lines)
