"""The page of a run of the engine `disk`: where acknowledgements were lost, and what was checked.

A pure function of the store, as every report: one HTML file that opens without a network. What the
store holds may be hostile, so every text passes through the template's escaping or `html.escape`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from killproof_chaos import report, report_words, summary
from killproof_chaos.engines import disk_words
from killproof_chaos.engines.disk import tapes_of
from killproof_chaos.engines.disk_check import read_told
from killproof_chaos.engines.disk_model import Change, Step, Sync, Tape, World
from killproof_chaos.engines.disk_record import Recording, load
from killproof_chaos.engines.disk_verdict import POINTS
from killproof_chaos.report_disk_plot import Mark, Moment, scene, strips
from killproof_chaos.shim.calls import SYNCS, File, Kind
from killproof_chaos.shim.log import Begin, End, Note
from killproof_evidence.finding import VIOLATED
from killproof_evidence.judge import render_rows
from killproof_evidence.store import Store

#: Of a scene: the calls before the cut, enough for the acknowledgement and the sync it lacked.
RECORDS_BEFORE: Final = 90
RECORDS_AFTER: Final = 12
RECORDS_AFTER_MAX: Final = 150
#: A scene of fewer processes is shown when there is none of so many.
ROWS_MIN: Final = 3
SCENES_MAX: Final = 300
WITNESSES_MAX: Final = 5
#: What the disk does with all that is pending.
POLICIES: Final = {
    "keep": "keeps all of it",
    "drop": "drops all of it",
    "subset": "keeps each write by a coin, and names up to a random one",
    "torn": "keeps each 512-byte sector by a coin, and names up to a random one",
    "metadata": "keeps the data and loses some names, sizes and truncations",
    "late": "keeps only the newest writes, from a random one on, and no names",
    "files": "keeps each file whole or not at all, by a coin",
}
#: What no run of this engine shows, whatever it found.
LIMITS: Final = (
    "A disk that lies: one that reports a flush and keeps the data in a volatile cache, or that "
    "loses what it had flushed. What a sync made durable is durable here.",
    "A sector that comes back as garbage, or an old one beside a new one inside 512 bytes: a "
    "sector holds what was there or what was written.",
    "A real power cut, a real file system. The disk is a model, stricter than ext4 (a name is "
    "durable only after a sync of its folder); xfs, btrfs and others were not tried.",
    "A write that reaches the disk across a later sync that succeeded: whatever had ended before "
    "that sync began is there in every image.",
    "Queues that write past the C library, through io_uring or into a map: their recordings are "
    "refused, not judged.",
    "Another schedule. One recording is one interleaving of real processes; each seed adds one.",
)


def write_report(store: Path) -> Path:
    """Write report.html into the store of a judged run; return its path.

    Raises:
        StoreError: the run was not judged yet, or holds no recording; definite.
    """
    opened = Store(store)
    part = opened.report.with_name(f".{opened.report.name}.part")
    part.write_text(render(opened), encoding="utf-8")
    part.replace(opened.report)
    return opened.report


def render(store: Store) -> str:
    """Return the page."""
    record, run = store.read_verdict(), store.read_run()
    recording = load(store)
    tapes, _ = tapes_of(recording)
    tape = tapes.get(World.HAPPENED) or next(iter(tapes.values()))
    saved = json.loads((store.path / POINTS).read_text(encoding="utf-8"))
    environment = report.pages()
    lost = record["properties"]["P1"].get("figures") or {}
    return environment.get_template("disk.html.j2").render(
        record=record,
        run=run,
        sentence=summary.headline(record),
        mark=report_words.mark,
        words=report_words.WORDS,
        rows=[row for row in render_rows(record) if row.verdict != "not_judged"],
        reasons=record["unknown_because"],
        lost=lost,
        broken=[
            (number, report_words.SENTENCES.get(number, number), found)
            for number, found in record["properties"].items()
            if found["verdict"] == VIOLATED
        ],
        witnesses_max=WITNESSES_MAX,
        environment=report_words.environment_rows(record, run),
        limits=LIMITS,
        command=" ".join(map(str, run.get("argv") or ())),
        started=report_words.started(run),
        # Made here; every text in them is escaped.
        strips=Markup(_strips(recording, tape, saved)),
        scene=Markup(_scene(recording, store)),
        parts=numbers(record),
    )


def _strips(recording: Recording, tape: Tape, saved: Mapping[str, Any]) -> str:
    moments = moments_of(recording, tape, saved)
    if not moments:
        return ""
    start = _start(recording, tape)
    kills = [(kill.time_ns - start) / 1e6 for kill in recording.kills]
    return strips(moments, saved["policies"], kills)


def moments_of(recording: Recording, tape: Tape, saved: Mapping[str, Any]) -> list[Moment]:
    """Return every point of the recording with what was found there."""
    policies = saved["policies"]
    found: dict[int, dict[str, int | None]] = {}
    for _world, step, _record, row in saved["points"]:
        left = found.setdefault(step, {})
        for policy, count in zip(policies, row, strict=True):
            # Of two worlds the worse is shown.
            left[policy] = _worse(left.get(policy), count)
    start, known = _start(recording, tape), 0
    moments = []
    for number, step in enumerate(tape.steps):
        notes = tape.notes_before(number)
        moments.append(
            Moment(
                ms=(_time(recording, step.seq) - start) / 1e6,
                record=step.seq,
                lane=_lane(recording, step),
                answers=notes - known,
                left=found.get(number, {}),
            )
        )
        known = notes
    return moments


def _worse(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other) if min(one, other) < 0 else max(one, other)


def _start(recording: Recording, tape: Tape) -> int:
    """Return when the first point was, ns."""
    return _time(recording, tape.steps[0].seq) if tape.steps else 0


def _time(recording: Recording, seq: int) -> int:
    """Return when a record was written, ns; of the few kinds that do not tell, 0."""
    return int(getattr(recording.records[seq], "time_ns", 0))


def _lane(recording: Recording, step: Step) -> str | None:
    if isinstance(step, Sync):
        return "sync"
    if not isinstance(step, Change):
        return None
    begin = recording.records[step.seq]
    file = begin.file if isinstance(begin, Begin | End) else File.NONE
    return {File.WAL: "log", File.DATABASE: "database"}.get(file)


def _scene(recording: Recording, store: Store) -> str:
    """Return the picture of a loss, the first that several processes were in; empty: there is none.

    A loss of somebody who was alone is told just as well by its sentence.
    """
    ends = {(r.slot, r.call): r for r in recording.records if isinstance(r, End)}
    best = ""
    seen: set[int] = set()
    for _, found in store.read(store.path / "lost.jsonl"):
        if found is None or found["record"] in seen:
            continue
        seen.add(found["record"])
        marks = _marks_around(recording, ends, found)
        rows = sorted({mark.row for mark in marks})
        if marks and (not best or len(rows) >= ROWS_MIN):
            best = scene(marks, found["record"], rows)
        if len(rows) >= ROWS_MIN or len(seen) >= SCENES_MAX:
            break
    return best


def _marks_around(
    recording: Recording, ends: Mapping[tuple[int, int], End], found: Mapping[str, Any]
) -> list[Mark]:
    """Return what happened around a loss, up to the end of the first sync that came too late."""
    cut = int(found["record"])
    gone = {fact["record"] for fact in found["acknowledged"]}
    low = max(0, min([*gone, cut]) - RECORDS_BEFORE)
    late = next(
        (
            record.seq
            for record in recording.records[cut + 1 : cut + RECORDS_AFTER_MAX]
            if isinstance(record, End) and record.kind in SYNCS and record.file == File.WAL
        ),
        cut,
    )
    shown = recording.records[low : max(late, cut + RECORDS_AFTER) + 1]
    marks = (_mark(record, recording.names, ends, gone) for record in shown)
    return [mark for mark in marks if mark is not None]


def _mark(
    record: object,
    names: Mapping[int, str],
    ends: Mapping[tuple[int, int], End],
    gone: set[int],
) -> Mark | None:
    if isinstance(record, Note):
        told = read_told(record.text)
        if told is None:
            return None
        kind = "gone" if record.seq in gone else "answer"
        title = f"record {record.seq}: {told.f} of job {told.job} is answered"
        row = names.get(record.pid, str(record.pid))
        return Mark(row=row, at=record.seq, until=None, kind=kind, title=title)
    if not isinstance(record, Begin) or record.file not in (File.WAL, File.DATABASE):
        return None
    if record.kind != Kind.WRITE and record.kind not in SYNCS:
        return None
    end = ends.get((record.slot, record.call))
    return Mark(
        row=names.get(record.pid, str(record.pid)),
        at=record.seq,
        until=end.seq if end is not None and record.kind in SYNCS else None,
        kind="write" if record.kind == Kind.WRITE else "sync",
        title=disk_words.describe(record, {}) + f" (record {record.seq})",
    )


def numbers(record: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the parts of the work on an image, ms, the largest first."""
    parts = sorted(record["checking_ms"].items(), key=lambda part: -part[1])
    return [(name, f"{ms:.2f}") for name, ms in parts]
