"""The store: one folder per run with everything that was recorded, and the verdict on it.

run.json            how the run was made, and what the nemeses were obliged to hit
contract.toml       what the target promises
plan.json           the seeded plan, expanded
history/            one file per process
effects/            one file per pid; table.jsonl and http.jsonl hold what the sinks applied
nemesis.jsonl       each fault, stall, and the start of the heal phase
audit.jsonl         each committed change of a job, in commit order
snapshot.jsonl      every job after all processes have ended
samples.jsonl       WAL bytes, open files, threads over time
recovery.jsonl      each kill of a holder and the re-claim that followed
backups.jsonl       each backup that was made in the run: what its copy is and holds
db/                 the database, copied when all processes have ended
verdict.json        what the checkers found
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from killproof_evidence.contract import Contract
from killproof_evidence.records import RecordWriter, read_records
from killproof_evidence.target import JobRow


class StoreError(ValueError):
    """The folder is no store, or lacks a file; the message names the path and the remedy."""


class Store:
    """The paths of one run, and how its whole files are read and written."""

    def __init__(self, path: Path | str) -> None:
        """Open a store that exists; see `create` for a new one.

        Raises:
            StoreError: there is no such folder; definite.
        """
        self.path = Path(path)
        if not self.path.is_dir():
            raise StoreError(f"store {str(path)!r} does not exist: give the folder of a run")

    @classmethod
    def create(cls, path: Path | str) -> "Store":
        """Make the folders of a new store.

        Raises:
            StoreError: the folder holds something already, or cannot be made; definite.
        """
        place = Path(path)
        try:
            if place.exists() and (not place.is_dir() or any(place.iterdir())):
                raise StoreError(f"store {str(path)!r} is not empty: give a new folder")
            place.mkdir(parents=True, exist_ok=True)
            for name in ("history", "effects", "db"):
                (place / name).mkdir()  # Of two that have found it empty, one makes it.
        except FileExistsError:
            raise StoreError(f"store {str(path)!r} is in use: give a new folder") from None
        except OSError as error:
            raise StoreError(
                f"store {str(path)!r} cannot be made ({error.strerror}): give a new folder on a "
                "disk that can be written"
            ) from None
        return cls(place)

    @property
    def history(self) -> Path:
        """The folder of histories."""
        return self.path / "history"

    @property
    def effects(self) -> Path:
        """The folder of effects: `$KILLPROOF_EFFECTS`."""
        return self.path / "effects"

    @property
    def db(self) -> Path:
        """The folder of the copied database."""
        return self.path / "db"

    @property
    def nemesis(self) -> Path:
        """The log of faults."""
        return self.path / "nemesis.jsonl"

    @property
    def audit(self) -> Path:
        """The dumped audit."""
        return self.path / "audit.jsonl"

    @property
    def snapshot(self) -> Path:
        """The jobs at the end."""
        return self.path / "snapshot.jsonl"

    @property
    def samples(self) -> Path:
        """Resource samples."""
        return self.path / "samples.jsonl"

    @property
    def recovery(self) -> Path:
        """Kills of holders and the re-claims that followed."""
        return self.path / "recovery.jsonl"

    @property
    def backups(self) -> Path:
        """The facts of the backups that were made in the run."""
        return self.path / "backups.jsonl"

    @property
    def plan(self) -> Path:
        """The expanded plan."""
        return self.path / "plan.json"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def verdict(self) -> Path:
        """What the checkers found."""
        return self.path / "verdict.json"

    @property
    def run(self) -> Path:
        """How the run was made."""
        return self.path / "run.json"

    def history_file(self, process: str) -> Path:
        """Return where a process writes its history."""
        return self.history / f"{process}.jsonl"

    def history_files(self) -> list[Path]:
        """Return the history files in a fixed order."""
        return sorted(self.history.glob("*.jsonl"))

    def effect_files(self) -> list[Path]:
        """Return the effect files of handlers in a fixed order, without those of the sinks."""
        return sorted(p for p in self.effects.glob("*.jsonl") if p.stem not in {"table", "http"})

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file of records, under its path in the store."""
        whole = (self.nemesis, self.audit, self.snapshot, self.samples, self.recovery, self.backups)
        files = [path for path in whole if path.exists()]
        files += [*self.history_files(), *sorted(self.effects.glob("*.jsonl"))]
        return {path.relative_to(self.path).as_posix(): path.stat().st_size for path in files}

    def writer(self, path: Path) -> RecordWriter:
        """Open one of the logs for appending."""
        return RecordWriter(path)

    def read(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield (line number, record or None) of one of the logs; a missing one is empty."""
        return read_records(path)

    def write_run(self, run: dict[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        write_json(self.run, run)

    def read_run(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            StoreError: it is missing or no JSON object; definite.
        """
        return _object(self.run)

    def read_verdict(self) -> dict[str, Any]:
        """Read verdict.json.

        Raises:
            StoreError: the run was not judged yet; definite.
        """
        return _object(self.verdict)

    def write_contract(self, contract: Contract) -> None:
        """Write contract.toml."""
        (self.path / "contract.toml").write_text(contract.dump(), encoding="utf-8")

    def read_contract(self) -> Contract:
        """Read contract.toml.

        Raises:
            ContractError: it is missing or wrong; definite.
        """
        return Contract.load(self.path / "contract.toml")

    def write_snapshot(self, rows: Iterable[JobRow]) -> int:
        """Write snapshot.jsonl; return the number of jobs."""
        count = 0
        with open(self.snapshot, "w") as file:
            for row in rows:
                file.write(json.dumps(row.record(), separators=(",", ":")) + "\n")
                count += 1
        return count


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object in a fixed form, by renaming: a reader sees the old file or the new one."""
    # ASCII: a queue's error text may hold a lone surrogate, which UTF-8 cannot.
    text = json.dumps(value, indent=2) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        with suppress(OSError):  # What matters is why it could not be written.
            part.unlink(missing_ok=True)
        raise


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: {error}; is this the store of a finished run?") from None
    if not isinstance(value, dict):
        raise StoreError(f"{path}: no JSON object; is this the store of a finished run?")
    return value
