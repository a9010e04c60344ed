"""The disk as a power cut may leave it, rebuilt from the shim's log: pure functions and values.

`compile_tape` turns the log into steps. A `Disk` plays them one after the other and gives, at any
of them, the files that a power cut would leave under a policy. The rules:

- The data of a write is durable when the write had *ended* before a sync of its file *began*, and
  that sync has ended without an error. A write that ended while the sync was under way may have
  missed it. Until then it is *pending*, from the moment it began: a policy decides what of it
  reached the disk.
- A name (open that creates, rename, unlink, link) is durable when a sync of its folder, begun after
  it, has ended. ext4 keeps more than that; a queue should not need it.
- A file is its key, not its name: a -wal that was deleted and made again is another file.
- A call without a logged end belongs to a killed process. What it did may be settled by other
  evidence (`disk_settle`); else two worlds are tried: it never happened, or it happened at once.
- A folder's name is pending like any other; without it goes all that is in it.
- What a failed sync was to write is never durable: the kernel reports the error once and forgets,
  and a second sync that succeeds says nothing of it.

What is not a disk's is left out: the -shm and the files that are only locks.
"""

import hashlib
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Final

from killproof_chaos.engines.disk_policy import Policy
from killproof_chaos.shim.calls import SYNCS, File, Kind
from killproof_chaos.shim.log import NO_KEY, Begin, End, FileKey, Note, Record, Seen

#: What a disk writes whole or not at all.
SECTOR_BYTES: Final = 512
#: Files that hold nothing which a power cut could take.
NOT_ON_DISK: Final = frozenset(
    {File.NONE, File.SHM, File.TURNSTILE, File.GATE, File.WORKERS, File.DIRECTORY}
)
NAMES: Final = frozenset({Kind.RENAME, Kind.UNLINK, Kind.LINK})


class World(StrEnum):
    """What a write without a logged end did."""

    HAPPENED = "happened"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A write, or a new size, of one file."""

    seq: int  #: record at which it began
    end: int  #: record at which it had ended; its begin where its process was killed in it
    key: FileKey
    at: int  #: offset of the data
    data: bytes
    size: int | None = None  #: of a truncate: the size that it makes
    grows: bool = False  #: of an allocation: it never makes a file shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of names: each name in `names` becomes a name of that key, or of none."""

    seq: int  #: record at which it began; of an open that creates, at which it had ended
    end: int  #: record at which it had ended
    names: tuple[tuple[str, FileKey | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A sync that has ended."""

    began: int
    seq: int  #: record at which it had ended
    key: FileKey
    folder: str | None = None  #: of a folder: its name, relative to the root, "" for the root
    failed: bool = False


Step = Change | Move | Sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """What happened, in order."""

    #: what was on the disk before the first record: name -> (key, content)
    initial: Mapping[str, tuple[FileKey, bytes]]
    steps: tuple[Step, ...]
    notes: tuple[Note, ...]
    unended: int  #: calls of which nobody knows what they did; with any, try both worlds
    made: frozenset[str] = frozenset()  #: folders that were made; without them goes what is in them

    def notes_before(self, step: int) -> int:
        """Return how many notes precede the step after this one: the disk is the same until it."""
        limit = self.steps[step + 1].seq if step + 1 < len(self.steps) else None
        if limit is None:
            return len(self.notes)
        low, high = 0, len(self.notes)
        while low < high:
            middle = (low + high) // 2
            if self.notes[middle].seq < limit:
                low = middle + 1
            else:
                high = middle
        return low


def compile_tape(
    records: Iterable[Record],
    *,
    root: str,
    initial: Mapping[str, tuple[FileKey, bytes]],
    world: World = World.HAPPENED,
    settled: Mapping[tuple[int, int], int] | None = None,
    deaths: Mapping[int, int] | None = None,
) -> Tape:
    """Turn the records into steps.

    Args:
        records: the whole log, in order.
        root: the folder that was watched, real path; names are relative to it.
        initial: the files that were there, and durable, before the first record.
        world: what a write without an end did.
        settled: of calls without an end, (slot, call) -> how many bytes they wrote after all, or 1
            for a name that they changed; the others are the world's.
        deaths: pid -> the record before which a killed process had ended, and so its last call.
    """
    everything = list(records)
    ends = {(r.slot, r.call): r for r in everything if isinstance(r, End)}
    compiler = _Compiler(
        root=root, ends=ends, world=world, settled=settled or {}, deaths=deaths or {},
        records=everything,
    )  # fmt: skip
    compiler.names = {name: key for name, (key, _) in initial.items()}
    for record in everything:
        compiler.take(record)
    notes = tuple(record for record in everything if isinstance(record, Note))
    return Tape(
        initial=dict(initial),
        steps=tuple(compiler.steps),
        notes=notes,
        unended=compiler.unended,
        made=frozenset(compiler.made),
    )


@dataclass(slots=True, kw_only=True)
class _Compiler:
    """The state of one pass over the log."""

    root: str
    ends: Mapping[tuple[int, int], End]
    world: World
    settled: Mapping[tuple[int, int], int]
    deaths: Mapping[int, int]
    records: Sequence[Record]
    names: dict[str, FileKey] = field(default_factory=dict)
    begins: dict[tuple[int, int], Begin] = field(default_factory=dict)
    folders: dict[FileKey, str] = field(default_factory=dict)
    gone: set[FileKey] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    unended: int = 0

    def take(self, record: Record) -> None:
        if isinstance(record, Begin):
            self.begins[record.slot, record.call] = record
            self._begin(record, self.ends.get((record.slot, record.call)))
        elif isinstance(record, End) and (record.is_done or record.kind in SYNCS):
            begin = self.begins.get((record.slot, record.call))
            if begin is not None:  # Else the log is not whole, and whoever reads it is told.
                self._end(begin, record)
        elif isinstance(record, Seen):
            name = self._name(record.path)
            if record.file == File.DIRECTORY:
                self.folders[record.key] = name
            elif record.file not in NOT_ON_DISK and self.names.get(name) != record.key:
                self._bind(record.seq, name, record.key)

    def _begin(self, begin: Begin, end: End | None) -> None:
        """Writes and sizes are pending from here on; one that failed did nothing."""
        if begin.file in NOT_ON_DISK or (end is not None and not end.is_done):
            return
        if begin.kind not in (Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE):
            # At once, not when its end was logged: another process may have bound the name since.
            if begin.kind in NAMES and (end is not None or self._happened(begin)):
                self._rename(begin, self._died(begin) if end is None else end.seq)
            return
        happened = 0 if end is not None else self._happened(begin)
        # Appended by a killed process: nobody knows where; it was never acknowledged either.
        if end is None and (not happened or (begin.kind == Kind.WRITE and begin.at < 0)):
            return
        ended = self._died(begin) if end is None else end.seq
        at = begin.at if end is None else end.at
        if begin.kind == Kind.WRITE:
            done = happened if end is None else end.result
            change = Change(seq=begin.seq, end=ended, key=begin.key, at=at, data=begin.data[:done])
        else:
            grows = begin.kind == Kind.ALLOCATE
            size = begin.length + (max(begin.at, 0) if grows else 0)
            change = Change(
                seq=begin.seq, end=ended, key=begin.key, at=0, data=b"", size=size, grows=grows
            )
        self.steps.append(change)

    def _died(self, begin: Begin) -> int:
        """Return a record before which a call without an end had ended with its process.

        Its locks were given back after its last call: where somebody else writes the same file of
        SQLite's, or where it is known to be dead.
        """
        died = self.deaths.get(begin.pid, len(self.records))
        if begin.file not in (File.DATABASE, File.WAL):
            return died
        for record in self.records[begin.seq + 1 : died]:
            if (
                isinstance(record, Begin)
                and record.kind == Kind.WRITE
                and record.key == begin.key
                and record.slot != begin.slot
            ):
                return record.seq
        return died

    def _happened(self, begin: Begin) -> int:
        """Return how much a call without an end did: bytes of a write, else 1 or 0."""
        known = self.settled.get((begin.slot, begin.call))
        if known is not None:
            return known
        self.unended += 1
        everything = len(begin.data) if begin.kind == Kind.WRITE else 1
        return everything if self.world is World.HAPPENED else 0

    def _end(self, begin: Begin, end: End) -> None:
        """Syncs and new names take effect where the call has returned."""
        if end.kind in SYNCS:
            folder = self.folders.get(begin.key)
            if begin.file == File.DIRECTORY or begin.file not in NOT_ON_DISK:
                self.steps.append(
                    Sync(
                        began=begin.seq, seq=end.seq, key=begin.key, folder=folder,
                        failed=not end.is_done,
                    )
                )  # fmt: skip
        elif end.kind == Kind.OPEN and begin.file == File.DIRECTORY:
            self.folders[end.key] = self._name(begin.path)
        elif end.kind == Kind.OPEN and begin.file not in NOT_ON_DISK:
            name = self._name(begin.path)
            if begin.flags & os.O_CREAT and self.names.get(name) != end.key:
                self._bind(end.seq, name, end.key)
            if begin.flags & os.O_TRUNC:
                self.steps.append(
                    Change(seq=end.seq, end=end.seq, key=end.key, at=0, data=b"", size=0)
                )
        elif end.kind == Kind.MKDIR:
            name = self._name(begin.path)
            self.made.add(name)
            self.folders[end.key] = name
            self.steps.append(Move(seq=end.seq, end=end.seq, names=((name, end.key),)))

    def _bind(self, seq: int, name: str, key: FileKey) -> None:
        # A file that lost its name gets none by an open: that open's end was only logged late.
        if key not in self.gone and key != NO_KEY:
            self.names[name] = key
            self.steps.append(Move(seq=seq, end=seq, names=((name, key),)))

    def _rename(self, begin: Begin, end: int) -> None:
        source, target, key = self._name(begin.path), self._name(begin.target), begin.key
        known = self.names.get(source, None if key == NO_KEY else key)
        changed: list[tuple[str, FileKey | None]] = []
        if begin.kind in (Kind.RENAME, Kind.UNLINK):
            self.names.pop(source, None)
            changed.append((source, None))
        replaced = self.names.get(target) if target else None
        if begin.kind in (Kind.RENAME, Kind.LINK):
            if known is not None:
                self.names[target] = known
            changed.append((target, known))
        for key_ in (known, replaced):
            if key_ is not None and key_ not in self.names.values():
                self.gone.add(key_)
        self.steps.append(Move(seq=begin.seq, end=end, names=tuple(changed)))

    def _name(self, path: str) -> str:
        return os.path.normpath(path).removeprefix(self.root).lstrip("/") if path else ""


@dataclass(slots=True)
class _Pending:
    change: Change
    durable: bool = False
    doomed: bool = False  #: a sync failed on it: the kernel forgets it, and no later one helps


@dataclass(slots=True)
class _Content:
    """One file: what is durable from its beginning on, then what came later, in order."""

    base: bytearray
    later: list[_Pending] = field(default_factory=list)

    def sync(self, began: int) -> None:
        for pending in self.later:
            if pending.change.end < began and not pending.doomed:
                pending.durable = True
        while self.later and self.later[0].durable:
            _apply(self.base, self.later.pop(0).change)

    def fail(self) -> None:
        for pending in self.later:
            pending.doomed = not pending.durable


class Disk:
    """Plays a tape forward; gives the files that a power cut would leave."""

    def __init__(self, tape: Tape) -> None:
        """Stand before the first step."""
        self._tape = tape
        self.step = -1  #: the step that was played last
        self._names = {name: key for name, (key, _) in tape.initial.items()}
        self._moves: list[Move] = []  # Those that no folder's sync has made durable.
        self._unsynced: dict[Move, set[str]] = {}  # Of each, the folders that are still to be.
        self._contents = {
            key: _Content(bytearray(content)) for key, content in tape.initial.values()
        }

    def play(self, step: int) -> None:
        """Play up to and with this step; never backwards."""
        assert step >= self.step
        while self.step < step:
            self.step += 1
            self._take(self._tape.steps[self.step])

    def image(self, policy: Policy, source: random.Random) -> dict[str, bytes]:
        """Return the files, by name relative to the root, that a power cut here would leave.

        Args:
            policy: what becomes of what is pending.
            source: of randomness, where the policy draws.
        """
        names = dict(self._names)
        for move in self._moves_kept(policy, source):
            _rebind(names, move)
        made = self._tape.made
        lost = [f"{name}/" for name in made if name not in names]
        late = self._late_from(source) if policy is Policy.LATE else 0
        return {
            name: _content(self._contents.get(key), policy, source, late)
            for name, key in sorted(names.items())
            if name not in made and not name.startswith(tuple(lost))
        }

    def keys(self) -> dict[str, FileKey]:
        """Return the file under each name, as a process sees them now."""
        names = dict(self._names)
        for move in self._moves:
            _rebind(names, move)
        return names

    @property
    def pending(self) -> int:
        """How many writes and sizes of files that have a name, and names, are not durable."""
        named = {*self._names.values(), *self.keys().values()}
        writes = sum(
            not pending.durable
            for key, content in self._contents.items()
            if content.later and key in named
            for pending in content.later
        )
        return writes + len(self._moves)

    def _take(self, step: Step) -> None:
        if isinstance(step, Change):
            content = self._contents.setdefault(step.key, _Content(bytearray()))
            content.later.append(_Pending(step))
        elif isinstance(step, Move):
            self._moves.append(step)
            self._unsynced[step] = {_folder(name) for name, _ in step.names}
        elif step.folder is not None:
            self._sync_folder(step)
        elif step.key in self._contents:
            content = self._contents[step.key]
            if step.failed:
                content.fail()
            else:
                content.sync(step.began)

    def _sync_folder(self, sync: Sync) -> None:
        if sync.failed:
            return
        for move in self._moves:
            if move.end < sync.began:
                self._unsynced[move].discard(str(sync.folder))
        # In order: a name that was bound again since is not taken back by what came before.
        left = []
        for move in self._moves:
            if self._unsynced[move]:
                left.append(move)
            else:
                del self._unsynced[move]
                _rebind(self._names, move)
        self._moves = left

    def _moves_kept(self, policy: Policy, source: random.Random) -> list[Move]:
        """Return which pending names are on the disk: a folder's changes get there in order."""
        if policy is Policy.KEEP:
            return self._moves
        if policy in (Policy.DROP, Policy.LATE) or not self._moves:
            return []
        return self._moves[: source.randint(0, len(self._moves))]

    def _late_from(self, source: random.Random) -> int:
        """Return the record of the first pending write that the policy `late` keeps."""
        found = sorted(
            pending.change.seq
            for content in self._contents.values()
            for pending in content.later
            if not pending.durable
        )
        return source.choice(found) if found else 0


def digest(image: Mapping[str, bytes]) -> bytes:
    """Return what two images share if and only if they are equal."""
    found = hashlib.blake2b(digest_size=16)
    for name, content in sorted(image.items()):
        found.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape"))
        found.update(content)
    return found.digest()


def _folder(name: str) -> str:
    parent = str(PurePath(name).parent)
    return "" if parent == "." else parent


def _rebind(names: dict[str, FileKey], move: Move) -> None:
    for name, key in move.names:
        if key is None:
            names.pop(name, None)
        else:
            names[name] = key


def _content(content: _Content | None, policy: Policy, source: random.Random, late: int) -> bytes:
    if content is None:
        return b""
    if not content.later:
        return bytes(content.base)
    made = bytearray(content.base)
    whole = policy is Policy.KEEP or (policy is Policy.FILES and source.random() < 0.5)
    for pending in content.later:
        if pending.durable or whole or (policy is Policy.LATE and pending.change.seq >= late):
            _apply(made, pending.change)
        elif policy is Policy.SUBSET:
            if source.random() < 0.5:
                _apply(made, pending.change)
        elif policy is Policy.TORN:
            _tear(made, pending.change, source)
        elif policy is Policy.METADATA and (pending.change.size is None or source.random() < 0.5):
            _apply(made, pending.change)
    if policy is Policy.METADATA:
        _forget_size(made, content, source)
    return bytes(made)


def _apply(made: bytearray, change: Change) -> None:
    if change.size is not None:
        if len(made) < change.size:
            made.extend(bytes(change.size - len(made)))
        elif not change.grows:
            del made[change.size :]
        return
    if len(made) < change.at:
        made.extend(bytes(change.at - len(made)))
    made[change.at : change.at + len(change.data)] = change.data


def _tear(made: bytearray, change: Change, source: random.Random) -> None:
    """Apply each sector of a write by a coin; a size changes whole or not at all."""
    if change.size is not None:
        if source.random() < 0.5:
            _apply(made, change)
        return
    at, end = change.at, change.at + len(change.data)
    while at < end:
        until = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
        if source.random() < 0.5:
            data = change.data[at - change.at : until - change.at]
            _apply(made, Change(seq=change.seq, end=change.end, key=change.key, at=at, data=data))
        at = until


def _forget_size(made: bytearray, content: _Content, source: random.Random) -> None:
    """Make what lies beyond the durable size missing, or zeros: the size came first."""
    durable = bytearray(content.base)
    for pending in content.later:
        if pending.durable:
            _apply(durable, pending.change)
    if len(made) <= len(durable):
        return
    draw = source.random()
    if draw < 0.5:
        del made[source.randint(len(durable), len(made)) :]
    elif draw < 0.75:
        made[len(durable) :] = bytes(len(made) - len(durable))
