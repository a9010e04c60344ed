"""Record the histories that `test_sensitivity.py` judges: `make histories`.

A real run of each queue with all faults off, and of that the first jobs, so that every single line
of it can be tried in a second or two. What belongs to the machine is left out.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from killproof_evidence.store import Store

HISTORIES: Final = Path(__file__).with_name("histories")
TARGETS: Final = ("killproof", "minimal")
JOBS: Final = 9
#: Of the operations of a process that are about no job, so many are kept: they are all alike.
IDLE_KEPT: Final = 2
RUN: Final = ("--nemesis", "none", "--seconds", "0.5", "--workers", "2", "--producers", "1")
RUN_MORE: Final = ("--kills", "0", "--pauses", "0", "--seed", "1", "--mix", "plain", "--no-report")
#: What run.json keeps: nothing of the machine, nothing of the day.
FACTS: Final = ("target", "engine", "seed", "contract", "obligations", "not_asked", "starved")

Record = dict[str, Any]


def asked() -> Iterator[Record]:
    """Yield jobs of two kinds, one of them delayed, one urgent and one with a key."""
    options: dict[int, Record] = {2: {"delay": 0.2}, 4: {"priority": 1}, 5: {"key": "a-key"}}
    for number in range(JOBS):
        kind = ("mail", "report")[number % 2]
        yield {"kind": kind, "payload": {"number": number}} | options.get(number, {})


def shortened(store: Store) -> dict[str, list[Record]]:
    """Return the records of the first jobs, file by file, numbered as if there were no others."""
    audit = read(store.audit)
    names = {record["job"]: record["harness_id"] for record in audit if record["old"] is None}
    ids = sorted(names)[:JOBS]
    wanted = {names[job] for job in ids}
    files = {
        "audit.jsonl": [record for record in audit if record["job"] in ids],
        "snapshot.jsonl": [record for record in read(store.snapshot) if record["id"] in ids],
        "nemesis.jsonl": read(store.nemesis),
        "samples.jsonl": read(store.samples),
    }
    for path in sorted(store.effects.glob("*.jsonl")):
        kept = [record for record in read(path) if record["job"] in wanted]
        files[f"effects/{path.name}"] = kept
    for path in store.history_files():
        files[f"history/{path.name}"] = _operations(read(path), set(ids), wanted)
    return {file: renumbered(file, records) for file, records in files.items()}


def _operations(records: list[Record], ids: set[int], names: set[str]) -> list[Record]:
    jobs = {record["n"]: record["job"] for record in records if "job" in record}
    asked_of = {r["n"]: r["value"]["id"] for r in records if (r["f"], r["type"]) == _ENQUEUE}
    about = {n for n, job in jobs.items() if job in ids}
    about |= {n for n, name in asked_of.items() if name in names}
    ended = {record["n"] for record in records if record["f"] == "exit"}
    idle = {record["n"] for record in records} - jobs.keys() - asked_of.keys() - ended
    kept = about | ended | set(sorted(idle)[:IDLE_KEPT])
    return [record for record in records if record["n"] in kept]


_ENQUEUE: Final = ("enqueue", "invoke")


def renumbered(file: str, records: Iterable[Record]) -> list[Record]:
    """Return copies of the records with numbers that have no gap, as their writer gives them."""
    found = [dict(record) for record in records]
    if file == "audit.jsonl":
        return [record | {"seq": seq} for seq, record in enumerate(found, 1)]
    if file.startswith("history/"):
        numbers: dict[int, int] = {}
        for record in found:
            record["n"] = numbers.setdefault(record["n"], len(numbers) + 1)
    elif file.startswith("effects/"):
        for n, record in enumerate((r for r in found if "n" in r), 1):
            record["n"] = n
    return found


def write(path: Path, records: Iterable[Record]) -> None:
    """Write records as the processes of a run write them."""
    lines = (json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")


def read(path: Path) -> list[Record]:
    """Read the records of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Record all of them."""
    for target in TARGETS:
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
            jobs, path = Path(folder, "jobs.jsonl"), Path(folder, "store")
            write(jobs, asked())
            command = [sys.executable, "-m", "killproof", "chaos", "run", "--target", target, *RUN]
            command += [*RUN_MORE, "--jobs", str(jobs), "--store", str(path)]
            # Without faults some promises have nothing to show: that is exit code 2.
            assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode in {0, 2}
            store = Store(path)
            shutil.rmtree(HISTORIES / target, ignore_errors=True)
            kept = Store.create(HISTORIES / target)
            for file, records in shortened(store).items():
                write(kept.path / file, records)
            kept.write_contract(store.read_contract())
            run = store.read_run()
            kept.write_run({name: run[name] for name in FACTS if name in run})
            kept.db.rmdir()


if __name__ == "__main__":
    main()
