"""The two nemeses that need the shim: a wall clock that is stepped, and calls that fail.

Both act through memory that every process of the run shares, so they hit any program that uses a
dynamically linked SQLite, in whatever language. Neither needs the process to stand still: a step
is seen at the next reading of the clock, a rule at the next call that it is for.

Failing calls are *armed* and then awaited: the rule hits the first worker or producer that makes
such a call, and tells which. Where a queue never makes the call on the file that was chosen, the
rule is widened to any file. Other programs of the run (observer, sink, the one that locks) are not
armed: their errors would say nothing of the queue.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from killproof_chaos.plan import Fault
from killproof_chaos.shim.calls import ALL_FILES, SYNCS, Action, File, Kind
from killproof_chaos.shim.control import RULES, Control, Rule
from killproof_evidence.wall_clock import CLOCK

#: A step waits at most so long for a worker that holds a lease.
BUSY_WAIT_MS: Final = 1_500
#: So long a rule waits for its file; then any file will do.
WIDEN_MS: Final = 700
#: The words of a plan, and the kinds of calls that they stand for.
CALLS: Final = {
    "open": frozenset({Kind.OPEN}),
    "write": frozenset({Kind.WRITE}),
    "sync": SYNCS,
    "truncate": frozenset({Kind.TRUNCATE}),
}
SIDE_FILES: Final = frozenset({File.TURNSTILE, File.GATE, File.WORKERS, File.JOURNAL, File.OTHER})
FILES: Final = {
    "database": frozenset({File.DATABASE}),
    "log": frozenset({File.WAL}),
    "index": frozenset({File.SHM}),
    "side": SIDE_FILES,
    "any": ALL_FILES,
}

Write = Callable[[dict[str, Any]], None]
NameOf = Callable[[int], tuple[str, str]]


class ClockNemesis:
    """Sets the wall clock of all processes back, and after a while forward again.

    Never ahead of the true time: a job scheduled while the clock is an hour ahead is due an hour
    after it was set back, and no run waits for that. To a queue both steps are as good as any
    others of their size, since it only knows the time that it is told.
    """

    def __init__(self, control: Control, write: Write) -> None:
        """Step the clock of this control; each step is written with both clocks."""
        self._control = control
        self._write = write
        self._waiting: list[Fault] = []
        self._until_ns = 0
        self.hits = 0

    @property
    def exhausted(self) -> bool:
        """Say whether no step is under way or to come."""
        return not self._waiting and not self._control.clock_offset_ns

    def admit(self, fault: Fault) -> None:
        """Take a planned fault: back by its step, and forward again after its length."""
        self._waiting.append(fault)

    def step(self, elapsed_ms: int, holders: int) -> None:
        """Do what is due; a step waits until somebody holds a lease, or long enough."""
        now = time.monotonic_ns()
        if self._control.clock_offset_ns:
            if now >= self._until_ns and (holders or now > self._until_ns + BUSY_WAIT_MS * 10**6):
                self._set(0, holders)
        elif self._waiting:
            fault = self._waiting[0]
            if holders or elapsed_ms - fault.at_ms > BUSY_WAIT_MS:
                self._waiting.pop(0)
                self._until_ns = now + fault.length_ms * 1_000_000
                self._set(-fault.step_ms, holders)

    def heal(self) -> None:
        """Tell the true time from now on."""
        self._waiting.clear()
        if self._control.clock_offset_ns:
            self._set(0, 0)

    def _set(self, offset_ms: int, holders: int) -> None:
        before_ms = self._control.clock_offset_ns // 1_000_000
        wall_ms, start = time.time_ns() // 1_000_000, time.monotonic_ns()
        self._control.clock_offset_ns = offset_ms * 1_000_000
        self.hits += holders > 0
        self._write(
            {"t": start, "t_end": time.monotonic_ns(), "fault": CLOCK, "wall_ms": wall_ms}
            | {"before_ms": before_ms, "offset_ms": offset_ms}
            | {"holders": holders, "hit": holders > 0}
        )


@dataclass(slots=True, kw_only=True)
class _Armed:
    """A rule in force."""

    fault: Fault
    rule: Rule
    since_ns: int
    looked_ns: int  #: it had not hit yet: whoever it hits certainly lived then
    is_widened: bool = False


class IoNemesis:
    """Lets chosen calls fail, once each, in whichever worker or producer makes them first."""

    def __init__(self, control: Control, write: Write) -> None:
        """Arm rules of this control."""
        self._control = control
        self._write = write
        self._armed: dict[int, _Armed] = {}
        self._waiting: list[Fault] = []
        self.hits = 0
        #: pid -> when the first failure came: an end with an error needs no other explanation.
        self.victims: dict[int, int] = {}

    @property
    def exhausted(self) -> bool:
        """Say whether every failure has been made."""
        return not self._waiting and not self._armed

    def admit(self, fault: Fault) -> None:
        """Take a planned failure; it is armed as soon as a rule is free."""
        self._waiting.append(fault)

    def wants_births(self) -> bool:
        """Say whether a failing open waits in vain: files are opened when processes begin."""
        return any(
            armed.is_widened and armed.fault.call == "open" for armed in self._armed.values()
        )

    def step(self, name_of: NameOf) -> None:
        """Look which rules have hit, and arm what waits."""
        now = self.look(name_of)
        free = [number for number in range(RULES) if number not in self._armed]
        for number, fault in zip(free, list(self._waiting), strict=False):
            self._waiting.remove(fault)
            self._arm(number, fault, now)

    def look(self, name_of: NameOf) -> int:
        """Look which rules have hit; return when, monotonic ns.

        Also before an end is judged: its process may have been hit since the last look.

        Args:
            name_of: the name and the phase of a process, for the log.
        """
        now = time.monotonic_ns()
        for number, armed in list(self._armed.items()):
            victim = self._control.victim(number)
            if victim is not None:
                del self._armed[number]
                self._tell(armed, victim.pid, victim.file, name_of)
            elif not armed.is_widened and now - armed.since_ns > WIDEN_MS * 1_000_000:
                armed.is_widened = True
                armed.rule = replace(armed.rule, files=ALL_FILES)
                self._control.set_rule(armed.rule, number=number)
            armed.looked_ns = now
        return now

    def heal(self, name_of: NameOf) -> None:
        """Let every call succeed from now on."""
        self._control.clear_rules()
        self.look(name_of)  # The last hits; a rule that is widened now would be in force again.
        self._control.clear_rules()
        self._waiting.clear()
        self._armed.clear()

    def _arm(self, number: int, fault: Fault, now: int) -> None:
        rule = Rule(
            action=Action.FAIL,
            value=getattr(errno, fault.error),
            kinds=CALLS[fault.call],
            files=FILES[fault.file],
        )
        self._armed[number] = _Armed(fault=fault, rule=rule, since_ns=now, looked_ns=now)
        self._control.set_rule(rule, number=number)

    def _tell(self, armed: _Armed, pid: int, file: File, name_of: NameOf) -> None:
        self.hits += 1
        self.victims.setdefault(pid, armed.looked_ns)
        process, phase = name_of(pid)
        self._write(
            {"t": armed.looked_ns, "t_end": time.monotonic_ns(), "fault": "io", "pid": pid}
            | {"process": process, "phase": phase, "hit": True}
            | {"call": armed.fault.call, "error": armed.fault.error, "file": file.name.lower()}
        )
