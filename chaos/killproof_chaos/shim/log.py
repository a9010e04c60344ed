"""Read the shim's log: what all processes did to the disk, and what they knew, in one order.

The order is that of the file. A call's effect lies between its Begin and its End. For whoever
rebuilds a disk from it:

- A sync makes durable the writes whose End stands before the sync's *Begin*, once its own End says
  that it succeeded (`is_done`). An injected failure reached no disk.
- A Begin without an End belongs to a process that was killed in between: the call may have happened
  or not (a long write also in part, page by page), and each must be tried.
- A Torn record is one that a process was killed in. It was a Begin, whose call was then never made,
  or an End, and then its Begin stands without one.
- Files are told apart by `FileKey`, not by name: a deleted and re-created -wal is another file. A
  name is bound to a key by the End of the open that follows it (with O_CREAT in the Begin's flags
  it may have been created there: it was, if the name was not bound to that key), by rename, link
  and mkdir, and by Seen (a descriptor that was inherited, or opened through a symbolic link).
- Open with O_TRUNC in its flags truncates to nothing. An End of an open carries the size
  at that moment, in which a write of another process may count whose End comes later.
- The offset of a write stands in its End; in its Begin it is -1 when the descriptor appends.
- Blind says that a file was mapped for writing: images of it mean nothing from there on.
"""

import ctypes
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from killproof_chaos.shim.build import build
from killproof_chaos.shim.calls import File, Kind, RecordType
from killproof_chaos.shim.control import MAGIC

HEAD: Final = struct.Struct("<QI4H3I3Q3QqQqIi4I")
MAGIC_BYTES: Final = MAGIC.to_bytes(8, "little")
TAIL: Final = b"DONE"
INJECTED: Final = 1
AFTER: Final = 2

assert HEAD.size == 128


class FileKey(NamedTuple):
    """A file; not another one that was given its inode number later."""

    device: int
    inode: int
    generation: int


NO_KEY: Final = FileKey(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process began: it was executed or forked."""

    seq: int  #: the record's place in the order, from 0
    slot: int  #: the process; unlike the pid never used again within a run
    pid: int
    time_ns: int  #: CLOCK_MONOTONIC; for people, the order is seq's
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A call is about to be made."""

    seq: int
    slot: int
    pid: int
    thread: int
    time_ns: int
    call: int  #: numbers the calls of a process; with slot it finds the End
    number: int  #: since the process was armed, from 1; 0 when it is not
    kind: Kind
    file: File
    key: FileKey  #: NO_KEY: the name does not exist yet
    path: str  #: absolute; empty where the call is on a descriptor
    target: str  #: of rename and link: the name it makes
    at: int  #: offset of a write; -1: at the end. Of a lock: its start
    length: int  #: bytes of a write; the size of a truncate
    flags: int  #: of open, rename, allocate; of a lock: command | type << 16, or flock's operation
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The call has returned, or was made to fail."""

    seq: int
    slot: int
    pid: int
    thread: int
    time_ns: int
    call: int
    number: int
    kind: Kind
    file: File
    key: FileKey  #: of an open or mkdir: what the name now is
    at: int  #: of a write: where it wrote
    length: int  #: of an open: the file's size
    result: int
    error: int  #: errno; 0 when it succeeded
    injected: bool  #: the shim's doing: the call was not made, or a write was cut short

    @property
    def is_done(self) -> bool:
        """Whether the call succeeded, in whole or in part."""
        return self.error == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a client knew after all calls that its thread had ended."""

    seq: int
    slot: int
    pid: int
    thread: int
    time_ns: int
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A rule killed or stopped the process before or after this call."""

    seq: int
    slot: int
    pid: int
    thread: int
    time_ns: int
    call: int
    number: int
    kind: Kind
    file: File
    signal: int
    after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A descriptor that no recorded open made is of this file, under this name."""

    seq: int
    slot: int
    pid: int
    file: File
    key: FileKey
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """A file was mapped so that stores change it unseen."""

    seq: int
    slot: int
    pid: int
    file: File
    key: FileKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """A process was killed while it recorded something."""

    seq: int
    at: int  #: byte of the log
    length: int  #: bytes that are no record


Record = Start | Begin | End | Note | Signal | Seen | Blind | Torn


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call's two records; `end` is None when the process was killed in between."""

    begin: Begin
    end: End | None


def read_log(path: Path) -> Iterator[Record]:
    """Yield every record in the log now, in the one order, with little of it in memory."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            yield from _records(memory)


def file_key(path: Path, *, library: Path | None = None) -> FileKey | None:
    """Return the key that the log gives to the file of this name; None when there is none.

    For the files that were there before the recording began. The file is not opened, so no lock of
    this process is dropped.

    Raises:
        ShimUnavailable: the library is not given and cannot be built.
    """
    shim = ctypes.CDLL(str(library or build()))
    parts = (ctypes.c_uint64 * 3)()
    found = shim.killproof_file_key(ctypes.c_char_p(os.fsencode(path)), parts)
    return FileKey(*parts) if found else None


def pair(records: Iterable[Record]) -> list[Call]:
    """Return the calls in the order of their Begins.

    Raises:
        ValueError: an End has no Begin, or a second one; the log is not whole.
    """
    begins: dict[tuple[int, int], Begin] = {}
    ends: dict[tuple[int, int], End] = {}
    for record in records:
        if isinstance(record, Begin):
            begins[record.slot, record.call] = record
        elif isinstance(record, End):
            at = record.slot, record.call
            if at not in begins or at in ends:
                raise ValueError(f"record {record.seq} ends a call that was not under way")
            ends[at] = record
    return [Call(begin=begin, end=ends.get(at)) for at, begin in begins.items()]


def _records(memory: mmap.mmap) -> Iterator[Record]:
    seq, at, size = 0, 0, len(memory)
    while at < size:
        length = _whole_record(memory, at)
        if length:
            yield _parse(memory, at, seq)
        else:
            # Another process appended right behind the torn record: go on at the next magic.
            found = memory.find(MAGIC_BYTES, at + 1)
            length = (found if found >= 0 else size) - at
            yield Torn(seq=seq, at=at, length=length)
        seq += 1
        at += length


def _whole_record(memory: mmap.mmap, at: int) -> int:
    """Return the length of the record here; 0 when it is torn."""
    if memory[at : at + 8] != MAGIC_BYTES or at + HEAD.size + len(TAIL) > len(memory):
        return 0
    length = int.from_bytes(memory[at + 8 : at + 12], "little")
    whole = length >= HEAD.size + len(TAIL) and at + length <= len(memory)
    return length if whole and memory[at + length - len(TAIL) : at + length] == TAIL else 0


def _parse(memory: mmap.mmap, start: int, seq: int) -> Record:
    (
        _, _, type_, kind, file, marks, slot, pid, thread, call, number, time_ns,
        device, inode, generation, at, length, result, flags, error,
        path_bytes, target_bytes, data_bytes, _,
    ) = HEAD.unpack_from(memory, start)  # fmt: skip
    path_at = start + HEAD.size
    target_at = path_at + path_bytes
    data_at = target_at + target_bytes
    path = memory[path_at:target_at].decode(errors="surrogateescape")
    data = memory[data_at : data_at + data_bytes]
    key = FileKey(device, inode, generation)
    match RecordType(type_):
        case RecordType.BEGIN:
            return Begin(
                seq=seq, slot=slot, pid=pid, thread=thread, time_ns=time_ns, call=call,
                number=number, kind=Kind(kind), file=File(file), key=key, path=path,
                target=memory[target_at:data_at].decode(errors="surrogateescape"), at=at,
                length=length, flags=flags, data=data,
            )  # fmt: skip
        case RecordType.END:
            return End(
                seq=seq, slot=slot, pid=pid, thread=thread, time_ns=time_ns, call=call,
                number=number, kind=Kind(kind), file=File(file), key=key, at=at, length=length,
                result=result, error=error, injected=bool(marks & INJECTED),
            )  # fmt: skip
        case RecordType.NOTE:
            return Note(seq=seq, slot=slot, pid=pid, thread=thread, time_ns=time_ns, text=data)
        case RecordType.SIGNAL:
            return Signal(
                seq=seq, slot=slot, pid=pid, thread=thread, time_ns=time_ns, call=call,
                number=number, kind=Kind(kind), file=File(file), signal=result,
                after=bool(marks & AFTER),
            )  # fmt: skip
        case RecordType.START:
            program = data.decode(errors="surrogateescape")
            return Start(seq=seq, slot=slot, pid=pid, time_ns=time_ns, program=program)
        case RecordType.SEEN:
            return Seen(seq=seq, slot=slot, pid=pid, file=File(file), key=key, path=path)
        case RecordType.BLIND:
            return Blind(seq=seq, slot=slot, pid=pid, file=File(file), key=key)
        case RecordType.NONE:
            raise ValueError(f"record {seq} at byte {start} has no type")
