"""What a report says in words: the sentence it opens with, and what it cannot show.

Pure functions of verdict.json and run.json. A run without a violation has found none, in so many
kills; it is never called correct, and each report ends with what it leaves open.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from killproof_chaos.plan import NEMESES
from killproof_chaos.summary import MARKS, counted, extent
from killproof_evidence.judge import PROPERTIES

Record = Mapping[str, Any]

WORDS: Final = {
    "pass": "no violation",
    "violated": "violated",
    "unknown": "unknown",
    "not_promised": "not promised",
    "not_judged": "not judged here",
}
#: Reasons why a verdict is unknown that are listed one by one.
REASONS_MAX: Final = 12
#: Missed obligations that are named beside the verdict; all stand further down.
NAMES_MAX: Final = 4
NEMESIS_WORDS: Final = {
    "kill": "killing workers and producers",
    "pause": "stopping processes past their lease",
    "term": "asking workers to stop",
    "handler": "handlers that fail, hang or take their worker with them",
    "lock": "another program that holds the write lock",
    "clock": "stepping the wall clock",
    "io": "letting disk calls fail",
}
SENTENCES: Final = {entry.number: entry.sentence for entry in PROPERTIES}
#: Three over the number of cases bounds, with 95%, the rate of what was never seen in them.
RULE_OF_THREE: Final = 3


def mark(verdict: str) -> str:
    """Return the symbol of a verdict, the same as on the terminal."""
    return MARKS[verdict][0]


def verdict_sentence(record: Record) -> str:
    """Return the result of a run in one sentence.

    >>> verdict_sentence({"verdict": "pass", "counts": {"kills": 212, "pauses": 44},
    ...     "jobs": {"enqueued": 1312}, "properties": {}, "unknown_because": []})
    'No violation found in 212 kills, 44 pauses, 1,312 jobs.'
    """
    tried = extent(record)
    if record["verdict"] == "pass":
        return f"No violation found in {tried}."
    if record["verdict"] == "violated":
        broken = [n for n, found in record["properties"].items() if found["verdict"] == "violated"]
        were = "promise was" if len(broken) == 1 else "promises were"
        return f"{len(broken)} {were} broken in {tried}."
    return f"Unknown: no violation found in {tried}, but the evidence is not enough."


def duration(ms: float | None) -> str:
    """Return a duration with as many digits as it carries.

    >>> duration(0.4081), duration(132.6), duration(13_600.0), duration(None)
    ('0.408 ms', '133 ms', '13.6 s', 'n/a')
    """
    if ms is None:
        return "n/a"
    if ms >= 10_000:
        return f"{ms / 1_000:,.1f} s"
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def reasons(record: Record) -> tuple[list[str], int]:
    """Return why nothing can be said, missed obligations apart, and how many are left out."""
    missed = record["coverage"]["missed"]
    found = [
        str(reason)
        for reason in record["unknown_because"]
        if not str(reason).startswith("obligation missed")
    ]
    if missed:
        more = f" and {len(missed) - NAMES_MAX} more" if len(missed) > NAMES_MAX else ""
        found.append(
            f"{len(missed)} of {counted(record['coverage']['obliged'], 'obligation')} missed, and "
            "what was not hit has not been shown to be harmless: "
            f"{'; '.join(map(str, missed[:NAMES_MAX]))}{more}"
        )
    return found[:REASONS_MAX], max(0, len(found) - REASONS_MAX)


def unanswered(record: Record) -> str:
    """Return how many operations nobody got an answer to; empty where all were answered."""
    counts = record["counts"]
    unknown, settled = counts.get("indefinite", 0), counts.get("indefinite_settled", 0)
    if not unknown:
        return ""
    return (
        f"{counted(unknown, 'operation')} got no answer, or one that left open what happened; the "
        f"audit settles {settled:,} of them, and the rest count neither for nor against the queue."
    )


def limits(record: Record, run: Record) -> list[str]:
    """Return what this run does not show, the widest gap first, in whole sentences."""
    return [
        *_evidence_limits(record),
        *_engine_limits(record),
        *_nemesis_limits(run),
        *_promise_limits(record),
        *_machine_limits(record, run),
    ]


def _evidence_limits(record: Record) -> Iterable[str]:
    jobs = record["jobs"].get("enqueued", 0)
    if record["verdict"] != "violated" and jobs >= RULE_OF_THREE:
        yield (
            f"That the queue has no fault. A fault that strikes each job independently, and less "
            f"often than 1 job in {jobs // RULE_OF_THREE:,}, stays unseen in more than one of "
            f"twenty runs of {jobs:,} jobs."
        )
    yield (
        "The same schedule again. The seed fixes the plan (jobs, faults, aims), not the order in "
        "which real processes run."
    )


def _engine_limits(record: Record) -> Iterable[str]:
    if record.get("level") != "power":
        yield (
            "A power cut. Processes were killed while the kernel lived on, so what an "
            "acknowledgement is worth after one (P1, level power) was not judged."
        )
    by: dict[str, list[str]] = {}
    for number, found in record["properties"].items():
        if found["verdict"] == "not_judged":
            by.setdefault(str(found.get("by", "")), []).append(number)
    for engine, numbers in by.items():
        told = "; ".join(f"{SENTENCES.get(number, number)} ({number})" for number in numbers)
        if engine:
            yield f"What only the engine {engine} can judge: {told}."
        else:
            yield f"What the queue promises, and this run did not ask for: {told}."


def _nemesis_limits(run: Record) -> Iterable[str]:
    chosen = run.get("chosen_nemeses")
    if isinstance(chosen, list):
        absent = [NEMESIS_WORDS[name] for name in NEMESES if name not in chosen]
        if absent:
            yield f"Faults that were not chosen for this run: {'; '.join(absent)}."


def _promise_limits(record: Record) -> Iterable[str]:
    absent = [
        f"{SENTENCES.get(number, number)} ({number})"
        for number, found in record["properties"].items()
        if found["verdict"] == "not_promised"
    ]
    if absent:
        yield f"What the queue does not promise, and was not asked: {'; '.join(absent)}."


def _machine_limits(record: Record, run: Record) -> Iterable[str]:
    environment = record.get("environment") or {}
    fs = environment.get("fs")
    yield (
        f"Another machine{f', or another file system than {fs}' if fs else ''}. One host, one "
        "file, one SQLite version; nothing about network file systems or several hosts."
    )
    if run.get("starved"):
        yield "How long anything took: the supervisor itself was starved of CPU."
    if run.get("interrupted"):
        yield "The whole plan: the run was interrupted."
    yield (
        "Speed. The throughput and latency here are those of a queue under attack, with every "
        "call recorded; they are no benchmark."
    )


def environment_rows(record: Record, run: Record) -> list[tuple[str, str]]:
    """Return the surroundings of the run, each named in words."""
    environment = dict(record.get("environment") or {})
    affected = environment.pop("wal_reset_affected", None)
    memory = environment.pop("memory_bytes", None)
    named = {
        "durability": "durability of the file",
        "fs": "file system",
        "cores": "cores",
        "cpu": "CPU",
        "machine": "architecture",
    }
    rows = [
        (named.get(name, name.replace("_", " ")), "not told" if value is None else str(value))
        for name, value in environment.items()
    ]
    if affected is not None:
        told = "yes: two connections can lose committed frames" if affected else "no"
        rows.insert(2, ("SQLite's WAL-reset fault", told))
    if isinstance(memory, int):
        rows.append(("memory", f"{memory / 2**30:.1f} GiB"))
    if isinstance(run.get("starved_ms"), int):
        rows.append(("supervisor without CPU", f"{run['starved_ms']:,} ms"))
    return rows


def length(run: Record) -> float | None:
    """Return how long the run took, start and stop included, s; None where it is not told."""
    began, ended = run.get("started"), run.get("ended")
    if isinstance(began, int | float) and isinstance(ended, int | float):
        return ended - began
    return None


def started(run: Record) -> str:
    """Return when the run began, UTC; empty when it is not told."""
    moment = run.get("started")
    if not isinstance(moment, int | float):
        return ""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
