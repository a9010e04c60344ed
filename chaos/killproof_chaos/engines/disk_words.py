"""What the engine `disk` says: the point, the acknowledgement that is gone, the records around."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from killproof_chaos.engines.disk_check import Told
from killproof_chaos.engines.disk_client import PREPARED_NOTE
from killproof_chaos.engines.disk_model import Tape
from killproof_chaos.engines.disk_pool import Image
from killproof_chaos.engines.disk_record import Recording
from killproof_chaos.shim.calls import SYNCS, File, Kind
from killproof_chaos.shim.log import Begin, End, Note, Record

#: Of the log, before the point: a commit and the sync before it fit.
RECORDS_BEFORE: Final = 8
RECORDS_AFTER: Final = 3
#: The head of a log: SQLite writes it, and only it, at offset 0 of a log that starts anew.
LOG_HEAD_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a witness is told from."""

    recording: Recording
    tape: Tape
    told: Sequence[Told | None]

    @property
    def prepared(self) -> int:
        """The number of the note at which the queue had been made; 0 when there is none."""
        for number, note in enumerate(self.tape.notes):
            if note.text == PREPARED_NOTE:
                return number
        return 0

    def told_job(self, number: int) -> str | None:
        """Return the queue's id of the job that this note is about."""
        told = self.told[number]
        return told.job if told is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What happened in a run, as far as it decides whether the run means anything."""

    writers: int  #: processes that wrote the log
    database_writes: int
    log_starts: int


def seen(recording: Recording, tape: Tape) -> Seen:
    """Count what a run must have seen."""
    writes = [r for r in recording.records if isinstance(r, Begin) and r.kind == Kind.WRITE]
    log = [write for write in writes if write.file == File.WAL]
    ended = {(r.slot, r.call): r for r in recording.records if isinstance(r, End)}
    heads = [
        write
        for write in log
        if write.length == LOG_HEAD_BYTES
        and (end := ended.get((write.slot, write.call))) is not None
        and end.at == 0
    ]
    return Seen(
        writers=len({write.slot for write in log}),
        database_writes=sum(write.file == File.DATABASE for write in writes),
        log_starts=len(heads),
    )


def moment(facts: Facts, image: Image) -> int:
    """Return the record that the cut comes behind: the last note of which the disk is as here."""
    at = facts.tape.steps[image.step].seq
    return max(at, facts.tape.notes[image.notes - 1].seq) if image.notes else at


def fact(facts: Facts, number: int) -> dict[str, Any]:
    """Return an acknowledgement as an object of lost.jsonl."""
    told = facts.told[number]
    note = facts.tape.notes[number]
    found: dict[str, Any] = {"record": note.seq, "pid": note.pid}
    if told is not None:
        found |= {"f": told.f, "job": told.job, "fence": told.fence}
    return found


def loss(facts: Facts, image: Image, gone: Sequence[int]) -> str:
    """Say in one sentence which acknowledgement a cut took, and when it had been given."""
    told, note = facts.told[gone[0]], facts.tape.notes[gone[0]]
    assert told is not None
    what = f"{told.f} of job {told.job}"
    if told.asked is not None and "id" in told.asked:
        what += f" ({told.asked['id']})"
    if told.fence is not None:
        what += f" under fence {told.fence}"
    at = moment(facts, image)
    more = f" and {len(gone) - 1} more are" if len(gone) > 1 else " is"
    return (
        f"the power is cut after record {at} (policy {image.policy}): the {what}, "
        f"acknowledged at record {note.seq} by process {note.pid},{more} gone"
    )


def witness(
    facts: Facts, image: Image, job: str | None, story: str, note: int | None = None
) -> dict[str, Any]:
    """Return a witness as verdict.json holds it: the story, and the records around the point."""
    at = moment(facts, image)
    if note is None:
        story = f"the power is cut after record {at} (policy {image.policy}): {story}"
    records = facts.recording.records
    shown = [r for r in records[max(0, at - 4 * RECORDS_BEFORE) : at + 1] if _is_disk(r)]
    around = shown[-RECORDS_BEFORE:]
    around += [r for r in records[at + 1 : at + 1 + 4 * RECORDS_AFTER] if _is_disk(r)][
        :RECORDS_AFTER
    ]
    if note is not None:
        around.append(facts.tape.notes[note])
    begins = {(r.slot, r.call): r for r in records[: at + 64] if isinstance(r, Begin)}
    unique = {record.seq: record for record in around}
    return {
        "job": job,
        "story": story,
        "lines": [
            {"file": "disk.log", "line": seq, "text": describe(unique[seq], begins)}
            for seq in sorted(unique)
        ],
    }


def describe(record: Record, begins: dict[tuple[int, int], Begin]) -> str:
    """Return one record of the log in words."""
    if isinstance(record, Note):
        return f"process {record.pid} knows: {record.text.decode(errors='replace')[:300]}"
    if isinstance(record, Begin):
        where = f" {record.length} bytes at {record.at}" if record.kind == Kind.WRITE else ""
        return (
            f"process {record.pid} begins {record.kind.name.lower()} of "
            f"{record.file.name.lower()}{where}"
        )
    if isinstance(record, End):
        begin = begins.get((record.slot, record.call))
        since = f" begun at record {begin.seq}" if begin is not None else ""
        how = f"fails with errno {record.error}" if record.error else "has ended"
        return (
            f"process {record.pid}: {record.kind.name.lower()} of {record.file.name.lower()}"
            f"{since} {how}"
        )
    return type(record).__name__


def _is_disk(record: Record) -> bool:
    """Whether a reader of a witness wants to see it: what changes a file, syncs it, or tells."""
    if isinstance(record, Note):
        return True
    return isinstance(record, Begin | End) and (
        record.kind in SYNCS or record.kind in (Kind.WRITE, Kind.TRUNCATE, Kind.UNLINK, Kind.RENAME)
    )
