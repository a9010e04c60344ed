"""Judging a schedule: the checkers of every other engine, fed from memory.

A store is a folder of JSON lines everywhere else. Here its records are lists, so that a verdict
costs half a millisecond; where somebody wants to see one, `write_store` makes the real folder.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Any, Final

from killproof_evidence.contract import Contract
from killproof_evidence.evidence import Evidence
from killproof_evidence.finding import PASS, UNKNOWN, VIOLATED, Finding
from killproof_evidence.judge import PROPERTIES, findings_of
from killproof_evidence.store import Store

Records = Mapping[str, Sequence[dict[str, Any]]]

#: What this engine judges, of all promises.
JUDGED: Final = frozenset(p.number for p in PROPERTIES if "sim" in p.engines)
#: An exception that the target's own code did not expect, in place of a promise's number.
ERROR: Final = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken promise."""

    promise: str  #: P1 to P24, or `error`: an exception that nobody expected
    job: str | None
    story: str  #: what happened, in one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the checkers say of one schedule."""

    violations: tuple[Violation, ...]
    passed: frozenset[str]  #: promises with evidence and without violation
    unknown: Mapping[str, str]  #: promise -> why it could not be judged

    @property
    def word(self) -> str:
        """`violated` or `pass`; a promise without evidence in one schedule is no `unknown`."""
        return VIOLATED if self.violations else PASS


class _Folder(PosixPath):
    """A folder that is not there; the paths in it are made once, for there is one a microsecond."""

    def __truediv__(self, name: str) -> Path:  # type: ignore[override]
        """Return the path of a file in it."""
        found = _paths.get(name)
        if found is None:
            found = _paths[name] = Path(self, name)
            _names[found] = name
        return found


_FOLDER: Final = _Folder("memory")
_paths: dict[str, Path] = {}
_names: dict[Path, str] = {}


class MemoryStore(Store):
    """The records of one run as a store that has no folder."""

    def __init__(self, records: Records, run: dict[str, Any], contract: Contract) -> None:
        """Wrap records, by their path in the store."""
        self.path = _FOLDER
        self._records, self._run, self._contract = records, run, contract

    def history_files(self) -> list[Path]:
        """Return the history files in a fixed order."""
        return self._files("history/")

    def effect_files(self) -> list[Path]:
        """Return the effect files of handlers in a fixed order."""
        return [path for path in self._files("effects/") if path.stem not in {"table", "http"}]

    def sizes(self) -> dict[str, int]:
        """Return nothing: memory loses no file."""
        return {}

    def read(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield the records of one file with their line numbers."""
        yield from enumerate(self._records.get(_names[path], ()), 1)

    def read_run(self) -> dict[str, Any]:
        """Return how the run was made."""
        return self._run

    def read_contract(self) -> Contract:
        """Return what the target promises."""
        return self._contract

    def _files(self, folder: str) -> list[Path]:
        return [self.path / name for name in sorted(self._records) if name.startswith(folder)]


class _Evidence(Evidence):
    """Evidence whose database is still open."""

    problems: Sequence[str] = ()

    def integrity(self) -> dict[str, list[str]]:
        """Return what SQLite found wrong in the file of the run."""
        return {"db": list(self.problems)}


def judge(
    records: Records,
    *,
    contract: Contract,
    promises: frozenset[str] | None,
    problems: Sequence[str],
    errors: Sequence[tuple[str, str]],
    told: Mapping[str, Sequence[str]],
) -> Verdict:
    """Ask every checker whose promise the contract makes.

    Args:
        records: of the run, by their path in a store.
        contract: of the target.
        promises: only these; None: all.
        problems: what an integrity check of the file says; nothing when it is sound.
        errors: (actor, text) of exceptions that ended an actor.
        told: what the scenario's own checks of the file have found, by promise.
    """
    run = {"engine": "sim", "obligations": {}}
    evidence = _Evidence(MemoryStore(records, run, contract))
    evidence.problems = problems
    asked = JUDGED if promises is None else JUDGED & promises
    findings = findings_of(evidence, only=[n for n in asked if contract.promised(n)])
    found = [*_violations(findings)]
    found += [
        Violation(promise=ERROR, job=None, story=f"{actor} met {text}") for actor, text in errors
    ]
    found += [
        Violation(promise=number, job=None, story=story)
        for number, stories in told.items()
        for story in stories
    ]
    broken = {violation.promise for violation in found}
    passed = {number for number, finding in findings.items() if finding.verdict == PASS}
    return Verdict(
        violations=tuple(found),
        passed=frozenset((passed | told.keys()) - broken),
        unknown={
            number: finding.reason or ""
            for number, finding in sorted(findings.items())
            if finding.verdict == UNKNOWN
        },
    )


def _violations(findings: Mapping[str, Finding]) -> Iterator[Violation]:
    for number, finding in findings.items():
        if finding.verdict == VIOLATED:
            for witness in finding.witnesses:
                yield Violation(promise=number, job=witness.job, story=witness.story)


def integrity(database: sqlite3.Connection) -> list[str]:
    """Return what SQLite finds wrong with the file, as this connection sees it."""
    rows = database.execute("PRAGMA integrity_check").fetchall()
    found = [str(row[0]) for row in rows if row[0] != "ok"]
    for table, rowid, parent, _ in database.execute("PRAGMA foreign_key_check"):
        found.append(f"row {rowid} of {table} refers to no row of {parent}")
    return found


def write_store(
    place: Store | Path | str, records: Records, *, run: dict[str, Any], contract: Contract
) -> Store:
    """Write the records as a real store, for `killproof chaos check`.

    Args:
        place: a store that holds no run yet, or where to make one.
        records: of the run, by their path in a store.
        run: run.json.
        contract: of the target.

    Raises:
        StoreError: the folder holds something already; definite.
    """
    store = place if isinstance(place, Store) else Store.create(place)
    for name, found in records.items():
        lines = (json.dumps(record, separators=(",", ":")) + "\n" for record in found)
        (store.path / name).write_text("".join(lines), encoding="utf-8")
    store.write_contract(contract)
    store.write_run(run | {"files": store.sizes()})
    return store
