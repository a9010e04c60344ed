"""What a call did whose process was killed in it: nobody says, but the files may tell.

A write without a logged end may have happened or not, or in part. Often it can be settled: the
files were copied while nobody was alive, or what came later is only possible on one of the two.
What is not settled is tried both ways (`disk_model.World`).

Believing the wrong one invents losses. A log's frame that was taken for unwritten, and on which the
next opener built, leaves a hole in the log, and everything behind the hole is gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from killproof_chaos.shim.calls import File, Kind
from killproof_chaos.shim.log import Begin, End, FileKey, Record

#: Of a copy: the record that marks it, and its files by key.
Look = tuple[int, Mapping[FileKey, bytes]]
#: What the kernel copies at once: a kill may come between two of them.
PAGE_BYTES: Final = 4096


def settled(records: Sequence[Record], looks: Iterable[Look]) -> dict[tuple[int, int], int]:
    """Return (slot, call) -> how many bytes were written, or for an unlink 1 or 0.

    Args:
        records: the whole log.
        looks: what the files held at some records, nobody being alive.
    """
    ends = {(r.slot, r.call): r for r in records if isinstance(r, End)}
    unended = [r for r in records if isinstance(r, Begin) and (r.slot, r.call) not in ends]
    copies = sorted(looks, key=lambda look: look[0])
    found = {}
    for begin in unended:
        if begin.kind == Kind.WRITE and begin.at >= 0:
            done = _written(begin, records, copies)
        elif begin.kind == Kind.UNLINK:
            done = _unlinked(begin, records, ends)
        else:
            done = None
        if done is not None:
            found[begin.slot, begin.call] = done
    return found


def _written(begin: Begin, records: Sequence[Record], copies: Sequence[Look]) -> int | None:
    """Return how much of a write the file holds; None when nothing tells."""
    end = begin.at + len(begin.data)
    later = [
        r
        for r in records[begin.seq + 1 :]
        if isinstance(r, Begin) and r.key == begin.key and _changes(r)
    ]
    look = next((look for look in copies if look[0] > begin.seq), None)
    if look is not None and begin.key in look[1]:
        between = [r for r in later if r.seq < look[0]]
        if not any(_meets(r, begin.at, end) for r in between):
            return _prefix(begin, look[1][begin.key][begin.at : end])
    following = next((r for r in later if r.kind == Kind.WRITE), None)
    if begin.file == File.WAL and following is not None and following.at >= end:
        return len(begin.data)  # A log has no holes: whoever wrote behind it found it there.
    return None


def _changes(begin: Begin) -> bool:
    return begin.kind in (Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE)


def _meets(begin: Begin, at: int, end: int) -> bool:
    """Whether a call may have changed these bytes."""
    if begin.kind != Kind.WRITE or begin.at < 0:
        return True
    return begin.at < end and at < begin.at + begin.length


def _prefix(begin: Begin, there: bytes) -> int:
    """Return how many bytes arrived: all, or what ends where a page of the kernel's ends."""
    ends = [len(begin.data)]
    ends += range(begin.at - begin.at % PAGE_BYTES, begin.at + len(begin.data), PAGE_BYTES)[::-1]
    for end in ends[:1] + [end - begin.at for end in ends[1:] if end > begin.at]:
        if there[:end] == begin.data[:end]:
            return end
    return 0


def _unlinked(
    begin: Begin, records: Sequence[Record], ends: Mapping[tuple[int, int], End]
) -> int | None:
    """Return 1 when a name was taken away, 0 when a later open found the same file under it."""
    for record in records[begin.seq + 1 :]:
        if not isinstance(record, Begin) or record.kind != Kind.OPEN or record.path != begin.path:
            continue
        end = ends.get((record.slot, record.call))
        if end is not None and end.is_done:
            return int(end.key != begin.key)
    return None
