"""What a killed call did: told by a copy of the files, or by what was built on it."""

import pytest

from killproof_chaos.engines.disk_settle import PAGE_BYTES, settled
from killproof_chaos.shim.calls import File, Kind
from killproof_chaos.shim.log import NO_KEY, Begin, End, FileKey, Record

FILE = FileKey(1, 10, 1)
OTHER = FileKey(1, 10, 2)
KILLED = (0, 0)


def begin(
    seq: int, kind: Kind = Kind.WRITE, *, at: int = 0, data: bytes = b"", path: str = "",
    key: FileKey = FILE, file: File = File.WAL,
) -> Begin:  # fmt: skip
    return Begin(
        seq=seq, slot=0 if seq == 0 else 1, pid=1, thread=1, time_ns=0, call=seq, number=0,
        kind=kind, file=file, key=key, path=path, target="", at=at, length=len(data), flags=0,
        data=data,
    )  # fmt: skip


def opened(call: int, key: FileKey) -> list[Record]:
    asked = begin(call, Kind.OPEN, path="/q/q.db-wal", key=NO_KEY)
    end = End(
        seq=call + 1, slot=1, pid=1, thread=1, time_ns=0, call=call, number=0, kind=Kind.OPEN,
        file=File.WAL, key=key, at=0, length=0, result=3, error=0, injected=False,
    )  # fmt: skip
    return [asked, end]


@pytest.mark.parametrize(
    ("there", "done"), [(b"killed", 6), (b"other!", 0), (b"", 0), (b"kill", 0)]
)
def test_a_copy_of_the_file_says_whether_a_killed_write_happened(there: bytes, done: int) -> None:
    records: list[Record] = [begin(0, data=b"killed")]

    assert settled(records, [(1, {FILE: there})]).get(KILLED) == done


def test_a_killed_write_may_have_come_to_the_end_of_a_page() -> None:
    records: list[Record] = [begin(0, at=PAGE_BYTES - 2, data=b"killed")]
    half = bytes(PAGE_BYTES - 2) + b"ki"

    assert settled(records, [(1, {FILE: half})]).get(KILLED) == 2


def test_a_copy_says_nothing_of_what_was_overwritten_before_it() -> None:
    records: list[Record] = [begin(0, data=b"killed"), begin(1, at=3, data=b"later")]

    assert KILLED not in settled(records, [(2, {FILE: b"killater"})])


def test_a_copy_that_was_taken_before_the_write_says_nothing() -> None:
    records: list[Record] = [begin(0, data=b"killed")]

    assert KILLED not in settled(records, [(-1, {FILE: b"killed"})])


def test_a_log_that_was_written_behind_a_killed_write_holds_it() -> None:
    records: list[Record] = [begin(0, data=b"killed"), begin(1, at=6, data=b"next")]

    assert settled(records, []).get(KILLED) == 6


def test_a_log_that_was_written_in_its_place_tells_nothing() -> None:
    records: list[Record] = [begin(0, at=6, data=b"killed"), begin(1, at=6, data=b"next")]

    assert KILLED not in settled(records, [])


def test_only_a_log_has_no_holes() -> None:
    records: list[Record] = [
        begin(0, data=b"killed", file=File.DATABASE),
        begin(1, at=6, data=b"next", file=File.DATABASE),
    ]

    assert KILLED not in settled(records, [])


@pytest.mark.parametrize(("key", "done"), [(FILE, 0), (OTHER, 1)])
def test_the_next_open_says_whether_a_killed_unlink_happened(key: FileKey, done: int) -> None:
    unlink = begin(0, Kind.UNLINK, path="/q/q.db-wal")
    records: list[Record] = [unlink, *opened(1, key)]

    assert settled(records, []).get(KILLED) == done


def test_a_killed_unlink_after_which_nobody_opens_stays_unknown() -> None:
    records: list[Record] = [begin(0, Kind.UNLINK, path="/q/q.db-wal")]

    assert KILLED not in settled(records, [])
