"""Where each process is: one slot of shared memory per process, written at named sync points.

A process that is killed cannot say where it was, so it says so beforehand: the hook writes the
number of each sync point into the process's slot of a mapped file, which outlives it. The same
slot lets the supervisor *arm* a phase: a process that arrives there says so and stands still
until it is let go, so that a signal is certain to find it there. Nothing is locked: one byte is
written whole, and whoever writes last is right.

A slot has two lanes. The main thread has the first; all other threads share the second, so that an
extension in the background does not hide the handler it belongs to. A worker has one such thread.
A dispatcher has several, and the byte says which point any of them passed last; those that stand
still are let go together.
"""

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final

OPERATIONS: Final = (
    "enqueue", "claim", "extend", "ack", "nack", "release", "reap", "promote", "cancel", "complete",
)  # fmt: skip
MOMENTS: Final = ("begin", "locked", "written", "committed", "synced")
OTHERS: Final = (
    "handler.start", "handler.effect", "handler.end", "worker.idle", "worker.stop",
    "checkpoint.begin", "checkpoint.end",
)  # fmt: skip
#: Every phase that the harness can be obliged to hit; DESIGN's list, in the order of the bytes.
PHASES: Final = tuple(f"{op}.{moment}" for op in OPERATIONS for moment in MOMENTS) + OTHERS
#: Known and told, but nobody's obligation.
EXTRAS: Final = tuple(f"snooze.{moment}" for moment in MOMENTS)
NAMES: Final = ("", *PHASES, *EXTRAS)
NUMBERS: Final = {name: number for number, name in enumerate(NAMES)}

IDLE: Final = "worker.idle"
#: Inside these the process holds SQLite's write lock, so a stop there stops everybody.
LOCKED: Final = frozenset(f"{op}.{moment}" for op in OPERATIONS for moment in ("locked", "written"))

SLOT_BYTES: Final = 256
SLOTS: Final = 128
#: The last slot is nobody's; its first byte asks the producers to hold back.
HOLD_AT: Final = (SLOTS - 1) * SLOT_BYTES
PHASE_AT: Final = 0  #: two bytes, one for each lane
ARRIVED_AT: Final = 2  #: two bytes: the number of the armed phase at which the lane stands still
READY_AT: Final = 4  #: one byte: the process has opened the queue
PID_AT: Final = 8  #: four bytes
PROGRESS_AT: Final = 12  #: four bytes: a producer's next operation
ARMED_AT: Final = 64  #: one flag for each phase number
#: A lane that nobody releases goes on by itself: the supervisor is gone or stuck.
ARRIVED_SECONDS_MAX: Final = 10.0
ARRIVED_POLL_SECONDS: Final = 0.0005

assert ARMED_AT + len(NAMES) <= SLOT_BYTES


class Board:
    """The mapped file with all slots, as the supervisor and each process see it."""

    def __init__(self, path: Path) -> None:
        """Map the file, and make it when it is missing."""
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, SLOT_BYTES * SLOTS)
            self._memory = mmap.mmap(descriptor, SLOT_BYTES * SLOTS)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()

    def clear(self, slot: int) -> None:
        """Forget the process that had this slot; what is armed stays armed."""
        base = slot * SLOT_BYTES
        self._memory[base : base + PROGRESS_AT] = bytes(PROGRESS_AT)

    def enter(self, slot: int, lane: int, number: int) -> None:
        """Write that a lane of this process is at a phase, and stand still if it is armed."""
        memory, base = self._memory, slot * SLOT_BYTES
        memory[base + PHASE_AT + lane] = number
        if memory[base + ARMED_AT + number]:
            memory[base + ARRIVED_AT + lane] = number
            deadline = time.monotonic() + ARRIVED_SECONDS_MAX
            while memory[base + ARRIVED_AT + lane] and time.monotonic() < deadline:
                time.sleep(ARRIVED_POLL_SECONDS)

    def leave(self, slot: int, lane: int) -> None:
        """Write that a lane is at no phase: its operation has returned."""
        self._memory[slot * SLOT_BYTES + PHASE_AT + lane] = 0

    def ready(self, slot: int, pid: int) -> None:
        """Write that the process has opened the queue and begins to work."""
        base = slot * SLOT_BYTES
        struct.pack_into("<I", self._memory, base + PID_AT, pid)
        self._memory[base + READY_AT] = 1

    def is_ready(self, slot: int, pid: int) -> bool:
        """Say whether this very process has begun to work."""
        base = slot * SLOT_BYTES
        (found,) = struct.unpack_from("<I", self._memory, base + PID_AT)
        return bool(self._memory[base + READY_AT]) and found == pid

    def phase(self, slot: int) -> str:
        """Return where the process is: the second lane's operation if one is under way."""
        base = slot * SLOT_BYTES + PHASE_AT
        return NAMES[self._memory[base + 1] or self._memory[base]]

    def arm(self, slot: int, phase: str, armed: bool) -> None:
        """Make the process stand still when it next arrives at the phase, or no longer."""
        self._memory[slot * SLOT_BYTES + ARMED_AT + NUMBERS[phase]] = armed

    def arrived(self, slot: int) -> list[tuple[int, str]]:
        """Return each lane that stands still, and where."""
        base = slot * SLOT_BYTES + ARRIVED_AT
        return [
            (lane, NAMES[self._memory[base + lane]]) for lane in (0, 1) if self._memory[base + lane]
        ]

    def let_go(self, slot: int, lane: int) -> None:
        """Let a lane that stands still go on."""
        self._memory[slot * SLOT_BYTES + ARRIVED_AT + lane] = 0

    def hold(self, wanted: bool) -> None:
        """Ask the producers to enqueue nothing for a while, or to go on."""
        self._memory[HOLD_AT] = wanted

    def is_held(self) -> bool:
        """Say whether producers shall hold back."""
        return bool(self._memory[HOLD_AT])

    def progress(self, slot: int) -> int:
        """Return how many operations of its list a producer has begun."""
        return int(struct.unpack_from("<I", self._memory, slot * SLOT_BYTES + PROGRESS_AT)[0])

    def set_progress(self, slot: int, count: int) -> None:
        """Write how many operations of its list a producer has begun."""
        struct.pack_into("<I", self._memory, slot * SLOT_BYTES + PROGRESS_AT, count)


def lane_of_this_thread() -> int:
    """Return 0 in the main thread, 1 in any other."""
    return 0 if threading.get_ident() == threading.main_thread().ident else 1
