"""The memory that the supervisor shares with every process under the shim.

One mapped file: what to watch, the rules, the shift of the wall clock, and for each process a slot
with its counters. A process is given its slot when it begins (a forked child gets its own); the
slot outlives it, so that a killed process can still be asked what it was doing. Nothing is locked:
each field has one writer, and the counters that have several are atomic in C.

The classes below with a leading underscore mirror the structs of `preload.c`, byte for byte.
"""

import ctypes
import mmap
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof_chaos.shim.calls import ALL_FILES, ALL_KINDS, DISK_KINDS, Action, File, Kind, mask

MAGIC: Final = 0x314B4F4F5250504B
PATH_BYTES: Final = 4096
PAGE_BYTES: Final = 4096
RULES: Final = 16
KINDS: Final = 20
FILES: Final = 12
#: Room for so many processes in one run; a slot that is not used takes no memory.
SLOTS: Final = 8192
FOREVER: Final = 2**64 - 1
#: In a rule's pid: what follows is the number of a slot.
SLOT_RULE: Final = 0x8000_0000


class _Rule(ctypes.Structure):
    _fields_ = (
        ("enabled", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("kinds", ctypes.c_uint32),
        ("files", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("value", ctypes.c_int64),
        ("first", ctypes.c_uint64),
        ("times", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("victim", ctypes.c_uint64),
    )


class _Slot(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint32),
        ("armed", ctypes.c_uint32),
        ("calls", ctypes.c_uint64),
        ("total", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("matches", ctypes.c_uint64 * RULES),
        ("counts", (ctypes.c_uint64 * FILES) * KINDS),
        ("spare", ctypes.c_uint8 * (PAGE_BYTES - 32 - 8 * RULES - 8 * KINDS * FILES)),
    )


class _Head(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("slots", ctypes.c_uint32),
        ("start_armed", ctypes.c_uint32),
        ("record", ctypes.c_uint32),
        ("used", ctypes.c_uint32),
        ("clock_ns", ctypes.c_int64),
        ("lost", ctypes.c_uint64),
        ("spare", ctypes.c_uint8 * (PAGE_BYTES - 40 - 64 * RULES)),
        ("rules", _Rule * RULES),
        ("prefix", ctypes.c_char * PATH_BYTES),
        ("log", ctypes.c_char * PATH_BYTES),
        ("notes", ctypes.c_char * PATH_BYTES),
    )


assert (ctypes.sizeof(_Rule), ctypes.sizeof(_Slot), ctypes.sizeof(_Head)) == (64, 4096, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What befalls which call; applied in armed processes only."""

    action: Action
    value: int  #: the signal, the errno, or the bytes of a short write (0: half)
    kinds: frozenset[Kind] = ALL_KINDS
    files: frozenset[File] = ALL_FILES
    first: int = 1  #: from the first-th matching call of a process since it was armed, from 1
    times: int = 1  #: how often it fires, over all processes together; FOREVER
    pid: int = 0  #: this process only; 0 for any
    slot: int | None = None  #: the process that gets this slot only, before it has a pid

    def __post_init__(self) -> None:
        """Refuse what the shim would take for something else."""
        if self.first < 1 or self.times < 1:
            raise ValueError(f"first {self.first} and times {self.times} must be 1 or more")
        signals = (Action.SIGNAL_BEFORE, Action.SIGNAL_AFTER)
        if self.action in signals and self.value not in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"signal {self.value} is neither SIGKILL nor SIGSTOP")
        if self.action == Action.FAIL and self.value < 1:
            raise ValueError(f"errno {self.value} is none")


def kill(number: int, *, after: bool = False, pid: int = 0) -> Rule:
    """Return the rule that kills a process before or after its call of this number, from 1."""
    action = Action.SIGNAL_AFTER if after else Action.SIGNAL_BEFORE
    return Rule(action=action, value=signal.SIGKILL, first=number, pid=pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a process has done, as it wrote it down itself; it may be long dead."""

    slot: int  #: unlike the pid never used again within a run
    pid: int
    armed: bool
    calls: int  #: since it was armed: the numbers that rules and records name
    total: int  #: since it began
    counts: dict[tuple[Kind, File], int]  #: since it was armed, without zeros
    last: tuple[Kind, File] | None  #: the newest call on a watched file
    inside: bool  #: that call had not returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Whom a rule hit; the process may be dead by now."""

    pid: int
    file: File


class Control:
    """The mapped file, as the supervisor sees it. Close it, or use a with block."""

    def __init__(self, path: Path) -> None:
        """Map a file that `create` has made.

        Raises:
            ValueError: it is not one.
        """
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < ctypes.sizeof(_Head):
                raise ValueError(f"{path} is no control file: it is too short")
            self._memory = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._head = _Head.from_buffer(self._memory)
        if self._head.magic != MAGIC:
            self.close()
            raise ValueError(f"{path} is no control file: make it with Control.create")

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        watch: Path,
        log: Path | None = None,
        notes: Path | None = None,
        record: frozenset[Kind] = DISK_KINDS,
        armed: bool = True,
    ) -> "Control":
        """Make the file, an empty log and an empty file of notes; map it.

        Args:
            path: the control file; replaced when it is there.
            watch: a folder, with all below it, or a file, with all whose names begin with its own.
            log: where all processes record; None records nothing.
            notes: a file whose writes are notes; None for none.
            record: the kinds of calls that go into the log.
            armed: whether a process begins armed, or arms itself (`notes.arm`).
        """
        head = _Head()
        head.magic, head.slots = MAGIC, SLOTS
        head.start_armed, head.record = armed, mask(record)
        real = os.path.realpath(watch)
        head.prefix = os.fsencode(f"{real}/" if os.path.isdir(real) else real)
        for place in (log, notes):
            if place is not None:
                place.write_bytes(b"")
        head.log = os.fsencode(os.path.realpath(log)) if log else b""
        head.notes = os.fsencode(os.path.realpath(notes)) if notes else b""
        path.unlink(missing_ok=True)  # A process of an earlier run may still have it mapped.
        with path.open("xb") as file:
            file.write(bytes(head))
            file.truncate(ctypes.sizeof(_Head) + SLOTS * ctypes.sizeof(_Slot))
        return cls(path)

    def __enter__(self) -> "Control":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unmap."""
        self.close()

    def close(self) -> None:
        """Unmap the file; the processes keep theirs."""
        if hasattr(self, "_head"):
            del self._head
            self._memory.close()

    @property
    def log(self) -> Path | None:
        """Where the processes record."""
        name = bytes(self._head.log)
        return Path(os.fsdecode(name)) if name else None

    @property
    def notes(self) -> Path | None:
        """The file whose writes are notes."""
        name = bytes(self._head.notes)
        return Path(os.fsdecode(name)) if name else None

    # Rules.

    def set_rule(self, rule: Rule, *, number: int = 0) -> None:
        """Put a rule in force, in place of the one with this number; its counts start anew.

        Of several rules that would fire at one call, the lowest number does.
        """
        place = self._head.rules[number]
        place.enabled = 0  # First, so that nobody applies half of the old and half of the new.
        place.epoch = place.epoch % 0xFFFF + 1
        place.kinds, place.files = mask(rule.kinds), mask(rule.files)
        place.pid = rule.pid if rule.slot is None else SLOT_RULE | rule.slot
        place.action, place.value = rule.action, rule.value
        place.first, place.times = rule.first, rule.times
        place.hits = place.victim = 0
        place.enabled = 1

    def set_record(self, kinds: frozenset[Kind]) -> None:
        """Say which kinds of calls go into the log from now on; signals and notes always do."""
        self._head.record = mask(kinds)

    def clear_rules(self) -> None:
        """Heal: no rule applies from now on. How often each fired stays readable."""
        for place in self._head.rules:
            place.enabled = 0

    def hits(self, number: int = 0) -> int:
        """Return how often the rule has fired, over all processes."""
        return int(self._head.rules[number].hits)

    def victim(self, number: int = 0) -> Victim | None:
        """Return whom the rule hit last, and at which file; None: nobody yet."""
        packed = int(self._head.rules[number].victim)
        return Victim(pid=packed & 0xFFFFFFFF, file=File(packed >> 32)) if packed else None

    # The clock.

    @property
    def clock_offset_ns(self) -> int:
        """What is added to the wall clock of every process, in ns; may be set while they run."""
        return int(self._head.clock_ns)

    @clock_offset_ns.setter
    def clock_offset_ns(self, value: int) -> None:
        self._head.clock_ns = value

    # Processes.

    def set_start_armed(self, armed: bool) -> None:
        """Say whether processes that begin from now on begin armed."""
        self._head.start_armed = armed

    @property
    def begun(self) -> int:
        """How many processes have begun: the slot of the one that begins next."""
        return int(self._head.used)

    def processes(self) -> list[Process]:
        """Return every process that has begun under this control, the oldest first."""
        used = min(int(self._head.used), SLOTS)
        return [self._process(number) for number in range(used) if self._slot(number).pid]

    def process(self, pid: int) -> Process | None:
        """Return the newest process of this pid; None when none has begun."""
        # From the newest on: a run of thousands of processes asks for the last one each time.
        for number in reversed(range(min(int(self._head.used), SLOTS))):
            if int(self._slot(number).pid) == pid:
                return self._process(number)
        return None

    def arm(self, process: Process) -> None:
        """Arm a process from outside, while it makes no calls."""
        slot = self._slot(process.slot)
        slot.armed = 0
        ctypes.memset(ctypes.addressof(slot.matches), 0, ctypes.sizeof(slot.matches))
        ctypes.memset(ctypes.addressof(slot.counts), 0, ctypes.sizeof(slot.counts))
        slot.calls = 0
        slot.armed = 1

    def disarm(self, process: Process) -> None:
        """Let the process go on uncounted and unharmed; what was counted stays."""
        self._slot(process.slot).armed = 0

    def problems(self) -> list[str]:
        """Return why what was observed is not the whole truth; a verdict on it is `unknown`."""
        lost, unseen = int(self._head.lost), int(self._head.used) - SLOTS
        found = []
        if lost:
            found.append(f"{lost} records could not be written: is there room for {self.log}?")
        if unseen > 0:
            found.append(f"{unseen} processes found no slot: at most {SLOTS} in one run")
        return found

    def _slot(self, number: int) -> _Slot:
        at = ctypes.sizeof(_Head) + number * ctypes.sizeof(_Slot)
        return _Slot.from_buffer(self._memory, at)

    def _process(self, number: int) -> Process:
        slot = self._slot(number)
        counts = {
            (kind, file): count
            for kind in Kind
            for file in File
            if (count := int(slot.counts[kind][file]))
        }
        last = int(slot.last)
        return Process(
            slot=number,
            pid=int(slot.pid),
            armed=bool(slot.armed),
            calls=int(slot.calls),
            total=int(slot.total),
            counts=counts,
            last=(Kind(last & 0xFF), File(last >> 8 & 0xFF)) if last else None,
            inside=bool(last >> 16),
        )
