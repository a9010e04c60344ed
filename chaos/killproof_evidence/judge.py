"""The judge: runs every checker over a store and writes the verdict.

A run is `violated` if any promise is; else `unknown` if an obligation of the chosen nemeses was
missed, a promise that this engine judges has no evidence, or the supervisor was starved; else
`pass`. The same store gives the same bytes, whenever and wherever it is judged.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from killproof_evidence.checkers import CHECKERS, Checker
from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import DEADLY, Evidence, happened
from killproof_evidence.finding import (
    NOT_JUDGED,
    NOT_PROMISED,
    PASS,
    UNKNOWN,
    VIOLATED,
    Finding,
    Witness,
)
from killproof_evidence.records import read_lines
from killproof_evidence.store import Store, write_json

SCHEMA: Final = 1
#: A witness line longer than this is cut: a payload of 200 KiB proves nothing by its length.
LINE_CHARS_MAX: Final = 2_000
#: Lines of the nemesis log that are no faults.
NO_FAULTS: Final = frozenset({"heal", "stall", "cont"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One promise that a queue can make."""

    number: str
    sentence: str  #: as a person who knows no queue would say it
    engines: tuple[str, ...]  #: those that judge it
    sources: tuple[str, ...]  #: the parts of the store that its checker leans on
    told_by: tuple[str, ...] = ()  #: engines of which single scenarios judge it, and no checker
    time_bound: bool = False  #: a starved supervisor makes a violation unknown


PROPERTIES: Final = (
    Property(
        number="P1",
        sentence="An acknowledged job is never lost",
        engines=("proc", "crash", "disk", "sim"),
        sources=("history", "audit", "snapshot", "effects"),
    ),
    Property(
        number="P2",
        sentence="No job appears that nobody enqueued",
        engines=("proc", "crash", "sim"),
        sources=("history", "audit", "snapshot", "effects"),
    ),
    Property(
        number="P3",
        sentence="Nothing counts as done that was not done",
        engines=("proc", "crash", "sim"),
        sources=("history", "audit", "snapshot", "effects", "nemesis"),
    ),
    Property(
        number="P4",
        sentence="One worker at a time holds a job",
        engines=("proc", "sim", "model"),
        sources=("history", "audit", "nemesis"),
    ),
    Property(
        number="P5",
        sentence="A worker that lost its lease changes nothing, and is told",
        engines=("proc", "crash", "sim", "model"),
        sources=("history", "audit"),
    ),
    Property(
        number="P6",
        sentence="No effect happens twice",
        engines=("proc", "crash", "disk", "sim", "model"),
        sources=("history", "effects", "nemesis", "snapshot"),
    ),
    Property(
        number="P7",
        sentence="A job moves only along the allowed edges",
        engines=("proc", "crash", "disk", "sim", "model"),
        sources=("audit", "history"),
    ),
    Property(
        number="P8",
        sentence="A job runs at most as often as allowed, crashes included",
        engines=("proc", "crash", "sim", "model"),
        sources=("effects", "snapshot", "audit", "history"),
    ),
    Property(
        number="P9",
        sentence="No retry comes before its delay",
        engines=("proc", "sim"),
        sources=("history", "audit"),
    ),
    Property(
        number="P10",
        sentence="A delayed job is never early",
        engines=("proc", "sim"),
        sources=("history", "audit", "effects"),
    ),
    Property(
        number="P11",
        sentence="The most urgent job that is due goes first",
        engines=("proc", "sim"),
        sources=("audit", "history"),
    ),
    Property(
        number="P12",
        sentence="One key has at most one live job",
        engines=("proc", "crash", "disk", "sim", "model"),
        sources=("history", "audit", "snapshot", "nemesis"),
    ),
    Property(
        number="P13",
        sentence="A dead job keeps everything, and a replay moves it once",
        engines=("proc", "crash", "disk", "sim"),
        sources=("snapshot", "history", "audit", "effects"),
    ),
    Property(
        number="P14",
        sentence="The jobs add up at every commit",
        engines=("proc", "crash", "disk", "sim"),
        sources=("audit", "snapshot"),
    ),
    Property(
        number="P15",
        sentence="A cancelled job does not start",
        engines=("proc", "sim", "model"),
        sources=("history", "audit", "effects"),
    ),
    Property(
        number="P16",
        sentence="The file is whole, and no lock error reaches a caller",
        engines=("proc", "crash", "disk", "sim"),
        sources=("history",),
    ),
    Property(
        number="P17",
        sentence="Every job ends once the faults stop",
        engines=("proc", "crash", "sim", "model"),
        sources=("history", "snapshot", "nemesis", "audit"),
        time_bound=True,
    ),
    Property(
        number="P18",
        sentence="A killed worker's job is claimed again in time",
        engines=("proc",),
        sources=("recovery", "nemesis", "snapshot", "history"),
        time_bound=True,
    ),
    Property(
        number="P19",
        sentence="No job waits forever behind others",
        engines=("proc", "sim"),
        sources=("history", "effects", "nemesis", "snapshot"),
        time_bound=True,
    ),
    Property(
        number="P20",
        sentence="Polls, WAL, open files and threads stay bounded",
        engines=("proc",),
        sources=("samples", "history"),
        told_by=("sim",),
    ),
    Property(
        number="P21",
        sentence="SIGTERM stops a worker in time and costs no attempt",
        engines=("proc",),
        sources=("history", "nemesis", "audit"),
        time_bound=True,
    ),
    Property(
        number="P22",
        sentence="Limits hold over all processes, and are used",
        engines=("proc", "sim"),
        sources=("audit", "history", "nemesis"),
    ),
    Property(
        number="P23",
        sentence="A step starts only after what it needs",
        engines=("proc",),
        sources=("audit", "history", "effects", "snapshot"),
        told_by=("sim",),
    ),
    Property(
        number="P24",
        sentence="A backup opens and holds every job from before it",
        engines=("proc",),
        sources=("history", "audit", "backups"),
    ),
)

_ENGINES: Final = frozenset(name for p in PROPERTIES for name in p.engines)

#: The first rows of every table: what people ask first, and the promises that answer it.
HEADLINES: Final = (
    ("No job is lost", ("P1", "P3", "P17")),
    ("No effect happens twice", ("P6",)),
    ("Retries are bounded", ("P8", "P9")),
)

#: Worse first: the verdict of several promises together is the first that occurs.
_WORSE: Final = (VIOLATED, UNKNOWN, PASS, NOT_JUDGED, NOT_PROMISED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's answer: the word, and verdict.json as an object."""

    verdict: str
    record: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the verdict table."""

    sentence: str
    verdict: str
    checked: int
    detail: str  #: the first witness, the reason, or who can judge it
    properties: tuple[str, ...]
    names: str  #: the numbers; those that the verdict does not rest on stand in brackets


def judge(
    store: Store | Path | str,
    *,
    write: bool = True,
    checkers: Mapping[str, Checker] = CHECKERS,
) -> Verdict:
    """Judge a store and write its verdict.json.

    Args:
        store: the store or its folder.
        write: False leaves the store as it is.
        checkers: what judges each promise.

    Raises:
        StoreError: run.json is missing or broken; definite.
        ContractError: contract.toml is missing or wrong; definite.
    """
    store = store if isinstance(store, Store) else Store(store)
    evidence = Evidence(store)
    findings = findings_of(evidence, checkers)
    because = _unknown_because(evidence, findings)
    words = {finding.verdict for finding in findings.values()}
    verdict = VIOLATED if VIOLATED in words else UNKNOWN if because else PASS
    record = _record(evidence, findings, verdict, because)
    if write:
        write_json(store.verdict, record)
    return Verdict(verdict=verdict, record=record)


def findings_of(
    evidence: Evidence,
    checkers: Mapping[str, Checker] = CHECKERS,
    only: Collection[str] | None = None,
) -> dict[str, Finding]:
    """Return what each checker says of the evidence, by promise; `only` names those to ask."""
    asked = (p for p in PROPERTIES if only is None or p.number in only)
    return {p.number: _find(evidence, p, checkers) for p in asked}


def _find(evidence: Evidence, of: Property, checkers: Mapping[str, Checker]) -> Finding:
    if of.number in evidence.run.get("not_asked", ()):
        return Finding(verdict=NOT_JUDGED, reason="the run did not ask for it")
    if not evidence.contract.promised(of.number):
        return Finding(verdict=NOT_PROMISED)
    checker = checkers.get(of.number)
    engine = evidence.run.get("engine", "proc")
    if checker is None or (engine in _ENGINES and engine not in of.engines):
        return Finding(verdict=NOT_JUDGED, by=of.engines[0])
    try:
        finding = checker(evidence)
    except Exception as error:
        # A fault of the judge is never the queue's: neither a pass nor a violation.
        return Finding(verdict=UNKNOWN, reason=f"the checker failed: {error!r}")
    broken = [m for m in evidence.malformed if _source(m.file) in of.sources]
    if broken:
        first = broken[0]
        return replace(
            finding,
            verdict=UNKNOWN,
            reason=f"{first.file}:{first.line} cannot be trusted: {first.reason}",
        )
    if evidence.starved and of.time_bound and finding.verdict == VIOLATED:
        return replace(finding, verdict=UNKNOWN, reason="the supervisor was starved of CPU")
    return finding


def _source(file: str) -> str:
    return file.split("/")[0].removesuffix(".jsonl")


def _unknown_because(evidence: Evidence, findings: Mapping[str, Finding]) -> list[str]:
    because = []
    if evidence.starved:
        starved_ms = evidence.run.get("starved_ms")
        because.append(
            "the supervisor was starved of CPU" + (f" for {starved_ms} ms" if starved_ms else "")
        )
    if evidence.run.get("interrupted"):
        because.append("the run was interrupted")
    because += [str(problem) for problem in evidence.run.get("problems") or ()]
    if "obligations" not in evidence.run:
        because.append("run.json does not say what the run was obliged to hit")
    because += [f"obligation missed: {name}" for name in _missed(evidence.run)]
    if evidence.malformed:
        first = evidence.malformed[0]
        because.append(
            f"{len(evidence.malformed)} lines cannot be trusted, first {first.file}:{first.line} "
            f"({first.reason})"
        )
    if evidence.unexplained:
        first = evidence.unexplained[0]
        because.append(f"{first.file}:{first.line}: {first.reason}")
    if all(finding.verdict in {NOT_PROMISED, NOT_JUDGED} for finding in findings.values()):
        because.append("the contract promises nothing that this engine judges")
    for number, finding in findings.items():
        if finding.verdict == UNKNOWN:
            because.append(f"{number}: {finding.reason}")
    return because


def _missed(run: Mapping[str, Any]) -> list[str]:
    obligations = run.get("obligations") or {}
    hit = set(obligations.get("hit", ()))
    return [name for name in obligations.get("obliged", ()) if name not in hit]


def _record(
    evidence: Evidence, findings: Mapping[str, Finding], verdict: str, because: list[str]
) -> dict[str, Any]:
    run = evidence.run
    obliged = (run.get("obligations") or {}).get("obliged", ())
    missed = _missed(run)
    witnesses = [witness for finding in findings.values() for witness in finding.witnesses]
    texts = _texts(evidence.store, witnesses)
    recovery = findings["P18"].figures
    return {
        "schema": SCHEMA,
        "target": run.get("target"),
        "engine": run.get("engine", "proc"),
        "seed": run.get("seed"),
        "level": findings["P1"].level or "process",
        "verdict": verdict,
        "unknown_because": because,
        "properties": {number: _property(finding, texts) for number, finding in findings.items()},
        "faults": dict(sorted(_hits(evidence).items())),
        "coverage": {
            "obliged": len(obliged),
            "hit": len(obliged) - len(missed),
            "missed": missed,
        },
        "counts": _counts(evidence),
        "exhausted": bool(run.get("exhausted", False)),
        "jobs": _jobs(evidence),
        "recovery_ms": {name: recovery[name] for name in ("p50", "p99", "max") if name in recovery},
        "environment": run.get("environment", {}),
        "replay": run.get("replay"),
    }


def _property(finding: Finding, texts: Mapping[tuple[str, int], str]) -> dict[str, Any]:
    record: dict[str, Any] = {"verdict": finding.verdict, "checked": finding.checked}
    for name in ("by", "level", "reason"):
        if (value := getattr(finding, name)) is not None:
            record[name] = value
    if finding.violations:
        record["violations"] = finding.violations
    if finding.figures:
        record["figures"] = dict(finding.figures)
    record["witnesses"] = [
        {
            "job": witness.job,
            "story": witness.story,
            "lines": [
                {"file": file, "line": line, "text": texts.get((file, line), "")}
                for file, line in witness.lines
            ],
        }
        for witness in finding.witnesses
    ]
    return record


def _texts(store: Store, witnesses: Iterable[Witness]) -> dict[tuple[str, int], str]:
    """Read the text of every line that a witness cites, each file once."""
    numbers: dict[str, set[int]] = {}
    for witness in witnesses:
        for file, line in witness.lines:
            numbers.setdefault(file, set()).add(line)
    texts: dict[tuple[str, int], str] = {}
    for file, wanted in numbers.items():
        for line, text in read_lines(store.path / file, wanted).items():
            cut = text if len(text) <= LINE_CHARS_MAX else text[:LINE_CHARS_MAX] + " ..."
            texts[file, line] = cut
    return texts


def _hits(evidence: Evidence) -> Counter[str]:
    return Counter(f.fault for f in evidence.faults if f.hit and f.fault not in NO_FAULTS)


def _counts(evidence: Evidence) -> dict[str, int]:
    hits = _hits(evidence)
    found = {
        "kills": sum(hits[name] for name in DEADLY),
        "pauses": hits["pause"],
        "operations": len(evidence.history.operations),
        "changes": len(evidence.changes),
    }
    found |= _indefinite(evidence)
    return found | dict(evidence.run.get("counts") or {})


def _indefinite(evidence: Evidence) -> dict[str, int]:
    """Count the operations of unknown outcome, and those that the audit settles."""
    unknown = sum(op.type == "info" for op in evidence.history.operations)
    settled = 0
    for story in evidence.stories:
        for operations in (story.enqueues, story.outcomes, story.controls):
            for op in operations:
                settled += op.type == "info" and happened(story, op) is not None
    return {"indefinite": unknown, "indefinite_settled": settled}


def _jobs(evidence: Evidence) -> dict[str, int]:
    states = Counter(story.row.state for story in evidence.stories if story.row is not None)
    acknowledged = sum(story.acknowledged() is not None for story in evidence.stories)
    ended = sum(count for state, count in states.items() if state in TERMINAL)
    return {"enqueued": acknowledged, "ended": ended, **dict(sorted(states.items()))}


def render_rows(record: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the verdict table, from verdict.json as an object.

    The three headlines come first; a promise that a headline covers has no row of its own.
    """
    properties = record["properties"]
    covered = {number for _, numbers in HEADLINES for number in numbers}
    rows = [_row(sentence, numbers, properties) for sentence, numbers in HEADLINES]
    for entry in PROPERTIES:
        if entry.number not in covered and entry.number in properties:
            rows.append(_row(entry.sentence, (entry.number,), properties))
    return rows


def _row(sentence: str, numbers: tuple[str, ...], properties: Mapping[str, Any]) -> Row:
    found = [properties[number] for number in numbers if number in properties]
    verdict = min((p["verdict"] for p in found), key=_WORSE.index, default=NOT_JUDGED)
    deciding: Mapping[str, Any] = next((p for p in found if p["verdict"] == verdict), {})
    detail = ""
    if verdict == VIOLATED:
        detail = deciding["witnesses"][0]["story"] if deciding["witnesses"] else ""
    elif verdict == UNKNOWN:
        detail = deciding.get("reason") or ""
    elif verdict == NOT_JUDGED:
        by = deciding.get("by", "?")
        detail = deciding.get("reason") or f"judged by the engine {by}"
    return Row(
        sentence=sentence,
        verdict=verdict,
        checked=sum(p["checked"] for p in found),
        detail=detail,
        properties=numbers,
        names=_names(numbers, verdict, properties),
    )


def _names(numbers: tuple[str, ...], verdict: str, properties: Mapping[str, Any]) -> str:
    """Name the promises of a row: a pass of one of them must not read as a pass of all."""
    rests: list[str] = []
    others: dict[str, list[str]] = {}
    for number in numbers:
        found = properties.get(number, {"verdict": NOT_JUDGED})
        if found["verdict"] in (NOT_JUDGED, NOT_PROMISED) and found["verdict"] != verdict:
            by = f"by {found['by']}" if found.get("by") else found["verdict"].replace("_", " ")
            others.setdefault(by, []).append(number)
        else:
            rests.append(number)
    beside = "; ".join(f"{' '.join(names)} {why}" for why, names in others.items())
    return " ".join(rests) + (f" ({beside})" if beside else "")
