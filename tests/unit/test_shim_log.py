"""The log's reader: each record as it was written, and torn ones told, not believed."""

from pathlib import Path

import pytest

from killproof_chaos.shim.calls import File, Kind, RecordType
from killproof_chaos.shim.control import MAGIC
from killproof_chaos.shim.log import (
    AFTER,
    HEAD,
    INJECTED,
    NO_KEY,
    TAIL,
    Begin,
    Blind,
    End,
    FileKey,
    Note,
    Record,
    Seen,
    Signal,
    Start,
    Torn,
    pair,
    read_log,
)

KEY = FileKey(1, 2, 3)


def packed(
    kind_of_record: RecordType,
    *,
    kind: Kind = Kind.NONE,
    file: File = File.NONE,
    marks: int = 0,
    slot: int = 0,
    call: int = 0,
    key: FileKey = NO_KEY,
    at: int = 0,
    length: int = 0,
    result: int = 0,
    error: int = 0,
    path: bytes = b"",
    target: bytes = b"",
    data: bytes = b"",
) -> bytes:
    """Return a record as the shim writes it."""
    head = HEAD.pack(
        MAGIC, HEAD.size + len(path) + len(target) + len(data) + len(TAIL),
        kind_of_record, kind, file, marks, slot, 70, 71, call, 5, 99, *key, at, length, result, 8,
        error, len(path), len(target), len(data), 0,
    )  # fmt: skip
    return head + path + target + data + TAIL


def records_of(tmp_path: Path, *parts: bytes) -> list[Record]:
    """Return what the reader makes of a log of these parts."""
    log = tmp_path / "log"
    log.write_bytes(b"".join(parts))
    return list(read_log(log))


BEGIN = packed(
    RecordType.BEGIN, kind=Kind.WRITE, file=File.WAL, call=4, key=KEY, at=32, length=3, data=b"abc"
)
END = packed(
    RecordType.END, kind=Kind.WRITE, file=File.WAL, call=4, key=KEY, at=32, length=3, result=3
)


def test_an_empty_log_has_no_records(tmp_path: Path) -> None:
    assert records_of(tmp_path) == []


def test_a_call_is_read_with_its_bytes_and_its_result(tmp_path: Path) -> None:
    begin, end = records_of(tmp_path, BEGIN, END)

    assert begin == Begin(
        seq=0, slot=0, pid=70, thread=71, time_ns=99, call=4, number=5, kind=Kind.WRITE,
        file=File.WAL, key=KEY, path="", target="", at=32, length=3, flags=8, data=b"abc",
    )  # fmt: skip
    assert end == End(
        seq=1, slot=0, pid=70, thread=71, time_ns=99, call=4, number=5, kind=Kind.WRITE,
        file=File.WAL, key=KEY, at=32, length=3, result=3, error=0, injected=False,
    )  # fmt: skip


def test_names_are_read_also_when_they_are_no_text(tmp_path: Path) -> None:
    (begin,) = records_of(
        tmp_path, packed(RecordType.BEGIN, kind=Kind.RENAME, path=b"/a/\xff", target=b"/b")
    )

    assert isinstance(begin, Begin)
    assert (begin.path, begin.target) == ("/a/\udcff", "/b")


def test_an_injected_failure_is_told_from_a_real_one(tmp_path: Path) -> None:
    ends = records_of(
        tmp_path,
        packed(RecordType.END, kind=Kind.FSYNC, result=-1, error=5, marks=INJECTED),
        packed(RecordType.END, kind=Kind.FSYNC, result=-1, error=5),
        packed(RecordType.END, kind=Kind.FSYNC),
    )

    assert [(end.injected, end.is_done) for end in ends if isinstance(end, End)] == [
        (True, False),
        (False, False),
        (False, True),
    ]


def test_every_other_record_says_who_and_what(tmp_path: Path) -> None:
    start, note, before, after, seen, blind = records_of(
        tmp_path,
        packed(RecordType.START, slot=3, data=b"python"),
        packed(RecordType.NOTE, slot=3, data=b"ack 7"),
        packed(RecordType.SIGNAL, kind=Kind.WRITE, file=File.WAL, call=4, result=9),
        packed(RecordType.SIGNAL, kind=Kind.WRITE, file=File.WAL, result=19, marks=AFTER),
        packed(RecordType.SEEN, file=File.WAL, key=KEY, path=b"/q.db-wal"),
        packed(RecordType.BLIND, kind=Kind.MAP, file=File.DATABASE, key=KEY),
    )

    assert start == Start(seq=0, slot=3, pid=70, time_ns=99, program="python")
    assert note == Note(seq=1, slot=3, pid=70, thread=71, time_ns=99, text=b"ack 7")
    assert isinstance(before, Signal)
    assert (before.signal, before.after, before.call, before.number) == (9, False, 4, 5)
    assert isinstance(after, Signal)
    assert (after.signal, after.after) == (19, True)
    assert seen == Seen(seq=4, slot=0, pid=70, file=File.WAL, key=KEY, path="/q.db-wal")
    assert blind == Blind(seq=5, slot=0, pid=70, file=File.DATABASE, key=KEY)


@pytest.mark.parametrize("length", [1, 8, 20, HEAD.size, len(BEGIN) - 1])
def test_a_torn_record_is_told_and_the_next_one_is_read(tmp_path: Path, length: int) -> None:
    torn, end, note = records_of(tmp_path, BEGIN[:length], END, packed(RecordType.NOTE))

    assert torn == Torn(seq=0, at=0, length=length)
    assert isinstance(end, End)
    assert isinstance(note, Note)


def test_a_torn_record_at_the_end_is_told(tmp_path: Path) -> None:
    assert records_of(tmp_path, END, BEGIN[:50])[1] == Torn(seq=1, at=len(END), length=50)


def test_a_record_without_a_type_is_no_log_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record 0 at byte 0 has no type"):
        records_of(tmp_path, packed(RecordType.NONE))


def test_a_call_that_never_ended_is_paired_with_nothing(tmp_path: Path) -> None:
    other = packed(RecordType.BEGIN, kind=Kind.FSYNC, slot=1, call=4)

    first, second = pair(records_of(tmp_path, other, BEGIN, END))

    assert (first.begin.kind, first.end) == (Kind.FSYNC, None)
    assert second.end is not None
    assert second.begin.call == second.end.call == 4


@pytest.mark.parametrize("parts", [(END,), (BEGIN, END, END)])
def test_an_end_without_its_begin_means_that_the_log_is_not_whole(
    tmp_path: Path, parts: tuple[bytes, ...]
) -> None:
    with pytest.raises(ValueError, match="ends a call that was not under way"):
        pair(records_of(tmp_path, *parts))
