"""No line of a history is without weight: take any away, or write it twice, and it is missed.

On runs in which nothing went wrong: two that were recorded (`record.py`) and one that was made up.
Two ways of taking away. **Unwritten**: the process never wrote it, so the lines that follow have
the numbers as they would then be; this is a queue that did otherwise, and the checkers must accuse
it. **Cut**: the line is gone from the file, and the gap shows; this is evidence that nobody can
trust, which accuses nobody and lets nothing pass.
"""

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from killproof_evidence import synthetic
from killproof_evidence.evidence import Evidence
from killproof_evidence.judge import findings_of, judge
from killproof_evidence.store import Store
from tests.checkers.conftest import WITNESSES, is_of_a_test
from tests.checkers.record import HISTORIES, Record, read, renumbered, write

#: Promises to which a run without faults has something to show.
SHOWN: Final = {"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P10", "P11", "P12", "P14", "P17"}
#: A little later, ns: both ends of an operation that is written twice.
LATER: Final = 1_000

Lines = list[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One file of a history, changed in one place."""

    what: str  #: what was done to which kind of line
    file: str
    lines: Lines
    line: Record


@dataclass(eq=False, kw_only=True)
class Recording:
    """A history whose files can be changed, judged and put back."""

    store: Store
    files: dict[str, Lines] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> "Recording":
        """Read it, and ask from now on for what it shows alone: the rest has no evidence."""
        store = Store(path)
        files = ["audit.jsonl", "snapshot.jsonl"]
        files += [f"history/{found.name}" for found in store.history_files()]
        files += [f"effects/{found.name}" for found in sorted(store.effects.glob("*.jsonl"))]
        contract, findings = store.read_contract(), findings_of(Evidence(store))
        # Its lines say nothing of the database's file, and to look at that takes longest.
        passed = {n for n, found in findings.items() if found.verdict == "pass"} - {"P16"}
        promises = {number: contract.promises[number] for number in sorted(passed)}
        store.write_contract(replace(contract, promises=promises))
        return cls(store=store, files={file: read(path / file) for file in files})

    def judged(self, edit: Edit) -> tuple[str, set[str]]:
        """Return the verdict on the changed history, and the promises that it breaks."""
        write(self.store.path / edit.file, edit.lines)
        record = judge(self.store, write=False).record
        write(self.store.path / edit.file, self.files[edit.file])
        found = record["properties"].items()
        return record["verdict"], {n for n, p in found if p["verdict"] == "violated"}

    def verdicts(self, edits: Callable[["Recording"], Iterator[Edit]]) -> dict[str, Counter[str]]:
        """Return how often each kind of edit led to each verdict."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for edit in edits(self):
            verdict, _ = self.judged(edit)
            found[edit.what][verdict] += 1
        return dict(found)

    def places(self, *kinds: str) -> Iterator[tuple[str, Lines, int, str]]:
        """Yield each line of these kinds of file: the file, its lines, the index, the kind."""
        for file, lines in self.files.items():
            kind = kind_of(file)
            for index in range(len(lines) if kind in kinds else 0):
                yield file, lines, index, kind


def kind_of(file: str) -> str:
    folder, _, name = file.rpartition("/")
    if not folder or name in {"table.jsonl", "http.jsonl"}:
        return name.removesuffix(".jsonl")
    return folder


def told(kind: str, line: Record) -> str:
    """Name the kind of a line, as far as its weight depends on it."""
    if kind == "effects":
        failed = " of a failure" if line.get("outcome") in {"raise", "permanent"} else ""
        return f"effects {line['what']}{failed}"
    if kind == "history":
        idle = " of nothing" if line["f"] == "claim" and "job" not in line else ""
        return f"history {line['f']} {line['type']}{idle}"
    return kind


def without(lines: Lines, *indices: int) -> Lines:
    return [line for index, line in enumerate(lines) if index not in indices]


@pytest.fixture(scope="module", params=["made up", "killproof", "minimal"])
def recording(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    path = tmp_path_factory.mktemp("sensitivity") / "store"
    if request.param == "made up":
        synthetic.generate(path, records=123, seed=7, faults=False)
    else:
        shutil.copytree(HISTORIES / request.param, path)
    return Recording.of(path)


@pytest.fixture
def killproofs(tmp_path: Path) -> Recording:
    shutil.copytree(HISTORIES / "killproof", tmp_path / "store")
    return Recording.of(tmp_path / "store")


def test_a_run_in_which_nothing_went_wrong_passes(recording: Recording) -> None:
    verdict = judge(recording.store, write=False)

    assert verdict.verdict == "pass", verdict.record["unknown_because"]
    assert set(recording.store.read_contract().promises) >= SHOWN


# --- What the processes did not write, or wrote twice.


def unwritten_or_twice(recording: Recording) -> Iterator[Edit]:
    """Leave out each line that is a fact by itself, and write each twice."""
    for file, lines, index, kind in recording.places(
        "effects", "audit", "snapshot", "table", "http"
    ):
        line = lines[index]
        what = told(kind, line)
        again = line | {"t": line["t"] + LATER} if "t" in line else line
        fewer, more = without(lines, index), [*lines[: index + 1], again, *lines[index + 1 :]]
        for how, changed in (("unwritten", fewer), ("twice", more)):
            yield Edit(what=f"{what} {how}", file=file, lines=renumbered(file, changed), line=line)


def test_each_start_effect_commit_and_row_that_is_missing_or_doubled_is_a_violation(
    recording: Recording,
) -> None:
    """Rules C1, C9."""
    found = recording.verdicts(unwritten_or_twice)

    for what in ("effects end twice", "effects end of a failure twice"):
        # A second end is the one thing here that no handler can do: the log contradicts itself.
        assert set(found.pop(what, {"unknown"})) == {"unknown"}
    # A handler that its time limit has cut short fails and leaves no end.
    assert set(found.pop("effects end of a failure unwritten", {"pass"})) == {"pass"}
    assert {what: set(verdicts) for what, verdicts in found.items()} == {
        what: {"violated"} for what in found
    }
    assert {"effects start unwritten", "effects effect twice", "audit unwritten"} <= set(found)
    assert sum(map(Counter.total, found.values())) > 100


def unasked_or_asked_twice(recording: Recording) -> Iterator[Edit]:
    """Leave out each operation, both lines of it, and write each twice."""
    for file, lines, index, _ in recording.places("history"):
        line = lines[index]
        ends = [at for at, other in enumerate(lines) if at > index and other["n"] == line["n"]]
        if line["type"] != "invoke" or not ends:
            continue
        end = lines[ends[0]]
        idle = " of nothing" if "job" not in line | end and line["f"] != "enqueue" else ""
        idle = " under a key" if (line.get("value") or {}).get("key") else idle
        again = [line | {"t": end["t"] + LATER, "n": 0}, end | {"t": end["t"] + 2 * LATER, "n": 0}]
        fewer = without(lines, index, ends[0])
        more = [*lines[: ends[0] + 1], *again, *lines[ends[0] + 1 :]]
        for how, changed in (("unasked", fewer), ("asked twice", more)):
            what = f"{line['f']}{idle} {how}"
            yield Edit(what=what, file=file, lines=renumbered(file, changed), line=line)


#: What an operation leaves to nobody: it is gone without a trace, or may be there as often.
NOTHING_TELLS: Final = {
    "enqueue under a key asked twice": "that is what a key is for",
    "cancel asked twice": "of what is cancelled, a queue may say once more that it is",
    "claim of nothing": "a poll that found nothing moves nothing",
    "reap of nothing": "who looked and found nothing to reap moved nothing",
    "extend": "an extension only lengthens what the holder is known to have: without it less is "
    "claimed, and a holder may extend as often as it likes",
}


def test_each_operation_that_is_missing_or_doubled_is_missed(recording: Recording) -> None:
    """Rules C1, C9."""
    found = recording.verdicts(unasked_or_asked_twice)

    for what, verdicts in found.items():
        operation = what.removesuffix(" unasked").removesuffix(" asked twice")
        if operation in NOTHING_TELLS or what in NOTHING_TELLS:
            assert set(verdicts) == {"pass"}, (what, verdicts)
        elif what == "claim unasked":
            # The job ran all the same: by whose lease, nobody can tell.
            assert set(verdicts) == {"unknown"}, verdicts
        else:
            assert set(verdicts) == {"violated"}, (what, verdicts)
    assert {"enqueue unasked", "enqueue asked twice", "ack unasked", "ack asked twice"} <= set(
        found
    )


# --- What somebody took out of the files.


def cut_or_copied(recording: Recording) -> Iterator[Edit]:
    """Take each line of each file away as it is, and copy each."""
    for file, lines, index, kind in recording.places("effects", "audit", "history"):
        line = lines[index]
        what = told(kind, line)
        copied = [*lines[: index + 1], *lines[index:]]
        for how, changed in (("cut", without(lines, index)), ("copied", copied)):
            yield Edit(what=f"{what} {how}", file=file, lines=changed, line=line)


def test_no_line_can_be_cut_out_or_copied_and_the_run_still_pass(recording: Recording) -> None:
    """Goal: above all no acknowledgement. Rules C1, C9."""
    found = recording.verdicts(cut_or_copied)

    # As the last line of a file its end leaves no gap, and a time limit would leave none either:
    # it is by the sizes of the files, which run.json has, that the judge sees it.
    found.pop("effects end of a failure cut", None)
    assert {what for what, verdicts in found.items() if "pass" in verdicts} == set()
    assert {"history enqueue ok cut", "history ack ok copied", "history claim ok cut"} <= set(found)


# --- What a line says.


def altered(recording: Recording) -> Iterator[Edit]:
    """Change one field of each line, or exchange a line with the next."""
    last, names = _last_job(recording)
    for file, lines, index, kind in recording.places("audit", "snapshot", "effects", "history"):
        line = lines[index]
        changes = ALTERATIONS[kind](line, last, names[last])
        for what, change in changes.items():
            changed = [*lines[:index], line | change, *lines[index + 1 :]]
            yield Edit(what=f"{kind}: {what}", file=file, lines=changed, line=line)
        if kind == "audit" and index and _are_of_one_job(lines[index - 1], line):
            changed = [*lines[: index - 1], line, lines[index - 1], *lines[index + 1 :]]
            what = f"{kind}: two commits of a job exchanged"
            yield Edit(what=what, file=file, lines=renumbered(file, changed), line=line)


def _are_of_one_job(first: Record, second: Record) -> bool:
    return bool(first["job"] == second["job"])


def _last_job(recording: Recording) -> tuple[int, dict[int, str]]:
    born = [record for record in recording.files["audit.jsonl"] if record["old"] is None]
    names = {record["job"]: str(record["harness_id"]) for record in born}
    return max(names), names


def of_audit(line: Record, last: int, name: str) -> dict[str, Record]:
    if line["job"] == last:
        return {}
    moves = {state: {"new": state} for state in ("leased", "dead") if line["new"] != state}
    found: dict[str, Record] = {f"goes to {state}": change for state, change in moves.items()}
    found["is of another job"] = {"job": last}
    if line["new"] == "leased":
        more = {name: line[name] + 1 for name in ("fence", "attempts")}
        found |= {f"{name} one more": {name: value} for name, value in more.items()}
        found |= {"a second early": {"t_ms": line["t_ms"] - 1_000}}
        found |= {"a second late": {"t_ms": line["t_ms"] + 1_000}}
    if line["new"] == "succeeded":
        found["attempts one more at the end"] = {"attempts": line["attempts"] + 1}
    return found


def of_snapshot(line: Record, last: int, name: str) -> dict[str, Record]:
    if line["id"] == last:
        return {}
    found: dict[str, Record] = {
        f"is {state}": {"state": state} for state in ("available", "leased", "dead")
    }
    found |= {"attempts one more": {"attempts": line["attempts"] + 1}}
    found |= {"attempts one less": {"attempts": line["attempts"] - 1}}
    return found | {"another's payload": {"payload": {"id": name}}, "another's id": {"id": last}}


def of_effects(line: Record, last: int, name: str) -> dict[str, Record]:
    if line["job"] == name:
        return {}
    found: dict[str, Record] = {"is of another job": {"job": name, "queue_id": last}}
    found |= {"another token": {"fence": line["fence"] + 1}}
    if line["what"] == "end":
        found |= {"it failed": {"outcome": "raise"}, "no end but an effect": {"what": "effect"}}
    elif line["what"] == "effect":
        found["no effect but an end"] = {"what": "end"}
    return found


def of_history(line: Record, last: int, name: str) -> dict[str, Record]:
    f, job = line["f"], line.get("job")
    if line["type"] == "invoke" and f == "ack" and job != last:
        return {"ack of another job": {"job": last}, "ack of another token": {"fence": 99}}
    found: dict[str, Record] = {}
    if line["type"] != "ok" or f in {"exit", "extend", "reap"} or (f == "claim" and job is None):
        return found
    found[f"{f} was refused"] = {"type": "fail"}
    if job not in {None, last}:
        found[f"{f} is of another job"] = {"job": last}
    if f == "claim":
        found |= {
            "claim told nothing": {"job": None},
            "another token": {"fence": line["fence"] + 1},
        }
    return found


ALTERATIONS: Final[dict[str, Callable[[Record, int, str], dict[str, Record]]]] = {
    "audit": of_audit,
    "snapshot": of_snapshot,
    "effects": of_effects,
    "history": of_history,
}


def test_no_line_can_say_something_else_and_the_run_still_pass(killproofs: Recording) -> None:
    """Rule C1."""
    found = killproofs.verdicts(altered)

    assert {what for what, verdicts in found.items() if "pass" in verdicts} == set()
    assert "audit: two commits of a job exchanged" in found
    assert sum(map(Counter.total, found.values())) > 300


#: What nobody can see in one line, and why. Each is tried: who can be seen, stands here no longer.
BLIND: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "an ack of unknown outcome": (
        "history ack ok",
        {"type": "info"},
        "who was told nothing claims less than who was told ok: the audit says that it happened",
    ),
    "a claim of unknown outcome that found nothing": (
        "history claim ok of nothing",
        {"type": "info"},
        "as above",
    ),
    "an enqueue that is told no id": (
        "history enqueue ok",
        {"job": None},
        "the name in the payload ties the answer to the job: a queue may have no ids to tell",
    ),
    "a token that changes as the lease ends": (
        "audit succeeded",
        {"fence": 99},
        "the lease is known by the token that the claim gave; a queue may raise it at each change",
    ),
    "a priority that changes when the job is taken": (
        "audit leased",
        {"priority": 9},
        "the order of claims is judged by what stood there before the claim",
    ),
    "a due time that changes as the job is taken": (
        "audit leased",
        {"due_ms": 1},
        "as above: many a queue keeps the lease's deadline there",
    ),
}


@pytest.mark.parametrize("case", BLIND)
def test_what_one_line_cannot_tell_is_said(killproofs: Recording, case: str) -> None:
    wanted, change, why = BLIND[case]
    tried: list[str] = []
    for file, lines, index, kind in killproofs.places("audit", "history"):
        line = lines[index]
        idle = (
            " of nothing"
            if kind == "history" and "job" not in line and line["f"] == "claim"
            else ""
        )
        told = f"{line['f']} {line['type']}{idle}" if kind == "history" else str(line["new"])
        if f"{kind} {told}" == wanted:
            changed = [*lines[:index], line | change, *lines[index + 1 :]]
            edit = Edit(what=case, file=file, lines=changed, line=line)
            tried.append(killproofs.judged(edit)[0])

    assert set(tried) == {"pass"}, "it is seen now: take it from the list"
    assert why


def test_what_is_kept_of_a_test_that_is_gone_is_gone_too() -> None:
    kept = [name for entry in read(WITNESSES) for name in entry]

    assert [name for name in kept if not is_of_a_test(name)] == []
