"""The nemeses: each fault is a function with its aim, its effect asserted, and its way back.

A fault counts only when its effect was seen: a kill when the wait status says SIGKILL, a pause
when the kernel says that the process is stopped and, later, that it runs again. Where it landed
is what shared memory says at that moment; an aimed fault waits until some process stands still
at the phase, so it cannot miss.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crew import Crew, Process
from killproof_chaos.engines.kernel import holds_write_lock, wait_for_kernel_state, wal_bytes
from killproof_chaos.engines.roles import read_whole
from killproof_chaos.nemesis_shim import ClockNemesis, IoNemesis
from killproof_chaos.phases import IDLE, LOCKED
from killproof_chaos.plan import Fault
from killproof_chaos.shim.control import Control
from killproof_evidence.effect import EXIT_STATUS
from killproof_evidence.records import RecordWriter

#: Three of eight workers may be stopped at once: the others must still be seen to work.
STOPPED_SHARE_MAX: Final = 3 / 8
#: A process without a lease has nothing to outlive; it is stopped long enough to be noticed.
PAUSE_SHORT_MS: Final = 120
#: Past the lease by so much that a reaper has certainly looked.
PAUSE_BEYOND_LEASE_MS: Final = 80
#: Operations whose process holds no lease, at every moment or until the commit.
WITHOUT_LEASE: Final = ("enqueue.", "cancel.", "reap.", "promote.", "worker.", "checkpoint.")
WITHOUT_LEASE_YET: Final = frozenset({"claim.begin", "claim.locked", "claim.written"})
#: A random fault waits at most so long for a busy victim, and then takes an idle one.
BUSY_WAIT_MS: Final = 150
#: A kill that wants an idle peer waits for the next lull, the first ones as long as it takes: the
#: job of one may be at its last attempt, and the peer of another may take a job that kills it.
SPARE_WAIT_MS: Final = 4_000
SPARED_MIN: Final = 3
#: So often an idle peer is left alone until it can have taken over: recovery is measured so.
SHELTERS_MAX: Final = 5
SHELTER_BEYOND_LEASE_MS: Final = 300
#: Such a kill has a moment to itself: the peer that takes over must not be struck as well.
SPARE_CALM_NS: Final = 60_000_000
#: Between two stops that hold the write lock everybody gets a turn: else it is one long stop.
LOCK_CALM_NS: Final = 150_000_000
#: A busy queue has no lull of its own: the producers make one after so long.
IDLE_WAIT_MS: Final = 1_500
#: A foreign lock that nobody had to wait for is taken again, at most so often.
LOCKS_AGAIN_MAX: Final = 3
#: Everybody is killed while the log holds something, if it does within this time.
LOG_WAIT_MS: Final = 4_000
#: A worker that has worked so long on one job will still hold it when the grace time is over.
LONG_WORK_NS: Final = 120_000_000


@dataclass(slots=True, kw_only=True, eq=False)
class Pause:
    """A process that is stopped, and when it goes on."""

    process: Process
    until_ns: int
    record: dict[str, Any]
    holds_lock: bool


class Nemesis:
    """Applies the planned faults to the crew; one step for each turn of the supervisor's loop."""

    def __init__(
        self,
        crew: Crew,
        log: RecordWriter,
        faults: Sequence[Fault],
        *,
        database: Path,
        wire: Path,
        lease_ms: int,
        blind: bool,
        shim: Control | None = None,
    ) -> None:
        """Take the faults in their order.

        Args:
            crew: whom to strike.
            log: the nemesis log.
            faults: as planned.
            database: only looked at through the kernel.
            wire: where the foreign program says when it had the lock.
            lease_ms: how long a pause must be to outlive a lease.
            blind: the target has no sync points, so that every living process counts as hit.
            shim: what the processes run under, where the faults need it.
        """
        self._crew = crew
        self._board = crew.board
        self._log = log
        self._planned = deque(faults)
        self._database = database
        self._wire = wire
        self._lease_ms = lease_ms
        self._blind = blind
        self._aims: dict[str, deque[Fault]] = {}
        self._random: list[Fault] = []
        self._pauses: list[Pause] = []
        self._locks: dict[str, tuple[Process, Fault]] = {}
        self._lock_met = False  # Somebody was waiting when a foreign lock was last seen.
        self._locks_again = LOCKS_AGAIN_MAX
        self._clock = ClockNemesis(shim, self._write) if shim is not None else None
        self._io = IoNemesis(shim, self._write) if shim is not None else None
        self._working_since: dict[int, int] = {}
        self._killed_ns = 0
        self._spared = 0  # So often somebody was killed while a peer was idle.
        self._shelters = 0
        self._sheltered: tuple[str, int] = ("", 0)  # Who shall not be struck, and until when.
        self._lock_freed_ns = 0
        self.healed = False
        #: The queue has stopped itself after a failed call, and everybody may end.
        self.is_stopped = False
        self.hits = {"kill": 0, "pause": 0, "term": 0, "lock": 0, "clock": 0, "io": 0}
        self.cells: set[str] = set()

    @property
    def exhausted(self) -> bool:
        """Say whether every planned fault has been made."""
        waiting = self._planned or self._random or any(self._aims.values()) or self._locks
        through_shim = [each for each in (self._clock, self._io) if each is not None]
        return not waiting and not self._pauses and all(each.exhausted for each in through_shim)

    def add_random(self, fault: str, elapsed_ms: int, draw: float) -> None:
        """Plan one more: those of the plan have been made, and some of them missed."""
        self._planned.append(Fault(fault=fault, at_ms=elapsed_ms, draw=draw))

    def step(self, elapsed_ms: int) -> None:
        """Do what is due so long after the start."""
        self._end_pauses()
        self._gather_locks()
        while self._planned and self._planned[0].at_ms <= elapsed_ms:
            self._admit(self._planned.popleft())
        self._serve_arrivals()
        self._step_shim(elapsed_ms)
        self._drive_stops()
        self._drive_idleness(elapsed_ms)
        self._random = [
            fault for fault in self._random if not self._strike_at_random(fault, elapsed_ms)
        ]

    def heal(self) -> None:
        """Make no more faults: let everybody go on, and say so in the log."""
        self._planned.clear()
        self._random.clear()
        for phase in list(self._aims):
            self._arm(phase, False)
        self._aims.clear()
        for pause in list(self._pauses):
            self._resume(pause)
        if self._clock is not None:
            self._clock.heal()
        self.end_failures()
        self.healed = True
        self._board.hold(False)
        self._write({"t": time.monotonic_ns(), "fault": "heal"})

    def end_failures(self) -> None:
        """Let every call of the processes succeed from now on."""
        if self._io is not None:
            self._io.heal(self._name_of)

    def on_end(self, process: Process) -> bool:
        """Account for a process that has ended; False when nothing that was done explains it."""
        assert process.status is not None
        if self._io is not None:
            self._io.look(self._name_of)
        self._working_since.pop(process.slot, None)
        for pause in [p for p in self._pauses if p.process is process]:
            # It was killed while it stood still: nobody has seen it go on, so it does not count.
            self._pauses.remove(pause)
            self._write_pause(pause, hit=False)
        status = process.status
        if process.doom:
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if killed:  # Otherwise it ended by itself a moment before.
                self._count("kill", process.doom)
                self._write(process.doom)
                return True
        asked = os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGTERM
        if process.told_stop_ns and asked and not (status and self._hurt(process)):
            return True  # Whether in time and in order, says P21.
        if process.role == "producer" and status == 0:
            return True  # It has done all of its list.
        return self._explains_itself(process, status)

    # --- Each fault.

    def kill(self, process: Process, phase: str) -> bool:
        """SIGKILL; it counts when the wait status has said so."""
        assert process.state in ("starting", "running", "stopped"), process.state
        assert not process.doom
        process.doom = {
            "t": time.monotonic_ns(),
            "fault": "producer-kill" if process.role == "producer" else "kill",
            "pid": process.pid,
            "process": process.name,
            "phase": phase,
            "hit": self._is_hit(phase),
            "idle_peers": [peer for peer in self._idle() if peer != process.name],
            "wal_bytes": wal_bytes(self._database),
        }
        if not process.send(signal.SIGKILL):
            process.doom = {}
            return False
        process.state = "dying"
        self._killed_ns = time.monotonic_ns()
        return True

    def pause(self, process: Process, phase: str) -> bool:
        """SIGSTOP, seen to be effective; SIGCONT follows from `step`."""
        assert process.state == "running", process.state
        if not process.send(signal.SIGSTOP) or not wait_for_kernel_state(process.pid, True):
            process.send(signal.SIGCONT)
            return False
        now = time.monotonic_ns()
        process.state = "stopped"
        held = holds_write_lock(process.pid, self._database)
        # Who holds the write lock cannot lose its lease: nobody else can write that down. Its stop
        # is everybody's, so it is short; the foreign program's is the long one.
        leased = not (held or phase.startswith(WITHOUT_LEASE) or phase in WITHOUT_LEASE_YET)
        length_ms = self._lease_ms + PAUSE_BEYOND_LEASE_MS if leased else PAUSE_SHORT_MS
        record = {
            "t": now,
            "fault": "pause",
            "pid": process.pid,
            "process": process.name,
            "phase": phase,
            "hit": self._is_hit(phase),
        }
        until_ns = now + length_ms * 1_000_000
        pause = Pause(process=process, until_ns=until_ns, record=record, holds_lock=held)
        self._pauses.append(pause)
        return True

    def _resume(self, pause: Pause) -> None:
        """SIGCONT, seen to be effective; the pause counts now."""
        assert pause.process.state in ("stopped", "dying"), pause.process.state
        self._pauses.remove(pause)
        pause.process.send(signal.SIGCONT)
        seen = pause.process.state == "stopped"
        if seen and wait_for_kernel_state(pause.process.pid, False):
            pause.process.state = "running"
            self._count("pause", pause.record)
        self._write_pause(pause, hit=seen and pause.record["hit"])

    def _write_pause(self, pause: Pause, *, hit: bool) -> None:
        now = time.monotonic_ns()
        more = {"t_end": now, "held_write_lock": pause.holds_lock, "hit": hit}
        self._write(pause.record | more)
        if pause.holds_lock:
            self._lock_freed_ns = now
            self._write({"t": pause.record["t"], "fault": "stall", "t_end": now, "cause": "pause"})

    def term(self, process: Process, phase: str) -> None:
        """SIGTERM: the process is asked to end in order, and P21 judges how it does."""
        assert process.state == "running", process.state
        process.told_stop_ns = time.monotonic_ns()
        record = {
            "t": process.told_stop_ns,
            "fault": "term",
            "pid": process.pid,
            "process": process.name,
            "phase": phase,
            "hit": self._is_hit(phase),
        }
        if process.send(signal.SIGTERM):
            self._count("term", record)
            self._write(record)

    def lock(self, fault: Fault) -> None:
        """Let another program hold the write lock, longer than a lease."""
        told = str(self._wire / f"lock-{time.monotonic_ns()}.json")
        process = self._crew.spawn(
            "lock", "lock", database=str(self._database), told=told, length_ms=fault.length_ms
        )
        self._locks[told] = process, fault

    def kill_all(self) -> None:
        """Kill all workers and producers at once: the next to open the file must recover it."""
        for process in self._crew.of_role("worker", "producer"):
            if not process.doom:
                self.kill(process, self._board.phase(process.slot))
        record = {"t": time.monotonic_ns(), "fault": "kill-all", "hit": True}
        self._write(record | {"wal_bytes": wal_bytes(self._database)})

    def kill_the_newborn(self) -> None:
        """Kill who was asked for before, and was born after, everybody was killed."""
        for process in self._crew.of_role("worker", "producer", "lock"):
            if not process.doom:
                self.kill(process, "")

    # --- Aims.

    def _admit(self, fault: Fault) -> None:
        if fault.fault == "lock":
            if self._database.exists():  # Where the target says which file that is.
                self.lock(fault)
        elif fault.fault == "clock":
            assert self._clock is not None, "a step of the clock needs the shim"
            self._clock.admit(fault)
        elif fault.fault == "io":
            assert self._io is not None, "a failing call needs the shim"
            self._io.admit(fault)
        elif fault.phase is None:
            self._random.append(fault)
        else:
            self._aims.setdefault(fault.phase, deque()).append(fault)
            self._arm(fault.phase, True)

    def _arm(self, phase: str, armed: bool) -> None:
        # Also where nobody lives right now: the next life is aimed at as well.
        for slot in self._crew.slots:
            self._board.arm(slot, phase, armed)

    def _serve_arrivals(self) -> None:
        """Strike whoever stands still at a phase that is aimed at; let everybody else go on."""
        for process in self._crew.of_role("worker", "producer"):
            for lane, phase in self._board.arrived(process.slot):
                aims = self._aims.get(phase)
                may = process.state == "running" and not self._is_sheltered(process)
                if aims and may and self._strike(process, phase, aims[0]):
                    aims.popleft()
                    if not aims:
                        self._arm(phase, False)
                if process.state != "dying":
                    self._board.let_go(process.slot, lane)

    def _strike(self, process: Process, phase: str, fault: Fault) -> bool:
        if fault.fault == "kill":
            return self.kill(process, phase)
        return self._may_pause(process, phase) and self.pause(process, phase)

    def _may_pause(self, process: Process, phase: str) -> bool:
        """Say whether enough others still work, and the lock is not held by a stopped one."""
        if any(pause.holds_lock for pause in self._pauses):
            return False
        if any(fault.fault == "kill-all" for fault in self._random):
            return False  # It waits until nobody stands still.
        if phase in LOCKED and time.monotonic_ns() - self._lock_freed_ns < LOCK_CALM_NS:
            return False
        if process.told_stop_ns:
            # Only phases of the stop itself are left to it; its grace time is judged without us.
            return len(self._pauses) == 0
        workers = len(self._crew.of_role("worker"))
        return len(self._pauses) < max(1, int(workers * STOPPED_SHARE_MAX))

    def _strike_at_random(self, fault: Fault, elapsed_ms: int) -> bool:
        """Make a fault wherever the victim is; False: try again in the next turn."""
        if fault.fault == "kill-all":
            # Nobody else may have the file open: only then is the log recovered, not just read.
            waits = self._pauses or self._locks or self._is_sheltered(None)
            if waits or not self._crew.all_born:
                return False
            empty = self._database.exists() and not wal_bytes(self._database)
            if empty and elapsed_ms - fault.at_ms < LOG_WAIT_MS:
                return False
            self.kill_all()
            return True
        roles = ("worker",) if fault.fault == "term" else ("worker", "producer")
        victims = [
            process
            for process in self._crew.of_role(*roles)
            if process.state == "running"
            and not process.told_stop_ns
            and not self._is_sheltered(process)
        ]
        phases = {process: self._board.phase(process.slot) for process in victims}
        waited_ms = elapsed_ms - fault.at_ms
        busy = [process for process in victims if phases[process] not in ("", IDLE)]
        if fault.spare and (waited_ms < SPARE_WAIT_MS or self._spared < SPARED_MIN):
            idle = self._idle()  # Once: a worker may find a job between two looks.
            calm = bool(idle) and time.monotonic_ns() - self._killed_ns > SPARE_CALM_NS
            busy = [p for p in victims if calm and phases[p].startswith("handler.")]
            if not busy:
                return False
            self._spared += calm
            self._shelter(idle[0] if calm else "")
        if not busy and (not victims or waited_ms < BUSY_WAIT_MS):
            return False
        choice = busy or victims
        process = choice[int(fault.draw * len(choice))]
        phase = phases[process]
        if fault.fault == "kill":
            self.kill(process, phase)
        elif fault.fault == "term":
            self.term(process, phase)
        elif not self._may_pause(process, phase) or not self.pause(process, phase):
            return False
        return True

    def _step_shim(self, elapsed_ms: int) -> None:
        """Step the clock and let calls fail, as planned."""
        if self._clock is None or self._io is None or self.healed:
            return
        self._clock.step(elapsed_ms, len(self._holders()))
        self._io.step(self._name_of)
        self.hits["clock"], self.hits["io"] = self._clock.hits, self._io.hits

    def _shelter(self, name: str) -> None:
        """Leave an idle worker alone until it can have taken over what a killed one held."""
        if name and self._shelters < SHELTERS_MAX:
            self._shelters += 1
            length_ns = (self._lease_ms + SHELTER_BEYOND_LEASE_MS) * 1_000_000
            self._sheltered = (name, time.monotonic_ns() + length_ns)

    def _is_sheltered(self, process: Process | None) -> bool:
        """Say whether this process is left alone now; None: whether anybody is."""
        name, until_ns = self._sheltered
        return time.monotonic_ns() < until_ns and (process is None or process.name == name)

    def _drive_stops(self) -> None:
        """Ask workers to stop while a phase of stopping is aimed at: nobody gets there otherwise.

        A release needs a worker that will still be busy when its grace time is over.
        """
        now = time.monotonic_ns()
        wanted = [phase for phase, aims in self._aims.items() if aims]
        workers = [
            process
            for process in self._crew.of_role("worker")
            if process.state == "running" and not self._is_sheltered(process)
        ]
        for process in workers:
            if self._board.phase(process.slot) == "handler.start":
                self._working_since.setdefault(process.slot, now)
            else:
                self._working_since.pop(process.slot, None)
        releases = any(phase.startswith("release.") for phase in wanted)
        births = self._io is not None and self._io.wants_births()
        if not releases and not births and "worker.stop" not in wanted:
            return
        if any(p.told_stop_ns for p in self._crew.of_role("worker")):
            return  # One at a time: the others must go on working.
        for process in workers:
            since = self._working_since.get(process.slot, now)
            if now - since > LONG_WORK_NS or not releases:
                self.term(process, self._board.phase(process.slot))
                return

    def _drive_idleness(self, elapsed_ms: int) -> None:
        """Hold the producers back while a fault waits in vain for a worker without work."""
        waiting = list(self._aims.get(IDLE, ()))
        if self._spared < SPARED_MIN:
            waiting += [fault for fault in self._random if fault.spare]
        late = any(elapsed_ms - fault.at_ms > IDLE_WAIT_MS for fault in waiting)
        # While the write lock is held nobody gets idle, and less to do would not help.
        stalled = bool(self._locks) or any(pause.holds_lock for pause in self._pauses)
        self._board.hold(late and not stalled and not self.healed and not self._idle())

    def _end_pauses(self) -> None:
        now = time.monotonic_ns()
        for pause in [p for p in self._pauses if p.until_ns <= now]:
            self._resume(pause)

    def _gather_locks(self) -> None:
        for told, (process, fault) in list(self._locks.items()):
            record = read_whole(Path(told))
            if record is None and process.state != "ended":
                self._lock_met = self._blind or self._is_somebody_waiting()
                continue
            del self._locks[told]
            had_it = record is not None and record["t_end"]  # Else it was killed in an outage.
            if not (had_it and self._lock_met) and self._locks_again:
                self._locks_again -= 1
                self._planned.append(fault)
            if record is None or not had_it:
                continue
            times = {"t": record["t"], "t_end": record["t_end"]}
            lock = times | {"fault": "lock", "pid": process.pid, "phase": "locked", "hit": True}
            self._count("lock", lock)
            self._write(lock)
            self._write(times | {"fault": "stall", "cause": "lock"})

    def _is_somebody_waiting(self) -> bool:
        """Say whether some process has begun an operation and does not have the lock yet."""
        return any(
            self._board.phase(process.slot).endswith(".begin")
            for process in self._crew.of_role("worker", "producer")
            if process.state == "running"
        )

    # --- What was seen.

    def _count(self, fault: str, record: dict[str, Any]) -> None:
        self.hits[fault] += bool(record["hit"])
        self.cells.add(f"{fault}@{record['phase']}")

    def _explains_itself(self, process: Process, status: int) -> bool:
        """Say whether a handler's script or a failed call ended the process, and write it down."""
        word = ""
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
            word = "abort"
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == EXIT_STATUS:
            word = "exit"
        elif self._hurt(process):
            # Whether it should have ended is not judged here; what it told its callers is.
            word = "io"
        fault = {"": "died", "io": "io-end"}.get(word, f"handler-{word}")
        record = {"t": time.monotonic_ns(), "fault": fault, "pid": process.pid}
        record |= {"process": process.name, "phase": self._board.phase(process.slot)}
        self._write(record | {"hit": bool(word), "status": status})
        return bool(word)

    def _hurt(self, process: Process) -> bool:
        """Say whether a failed call may have ended the process: its own, or the queue's stop."""
        return self._io is not None and (process.pid in self._io.victims or self.is_stopped)

    def _holders(self) -> list[Process]:
        """Return who holds a lease; where nobody tells, every running worker may."""
        return [
            process
            for process in self._crew.of_role("worker")
            if process.state == "running"
            and (self._blind or self._board.phase(process.slot).startswith("handler."))
        ]

    def _name_of(self, pid: int) -> tuple[str, str]:
        """Return the name and the phase of a process, empty where the crew does not know it."""
        process = self._crew.alive.get(pid)
        return ("", "") if process is None else (process.name, self._board.phase(process.slot))

    def _is_hit(self, phase: str) -> bool:
        return self._blind or phase not in ("", IDLE)

    def _idle(self) -> list[str]:
        """Return the names of the workers that have nothing to do."""
        return [
            process.name
            for process in self._crew.of_role("worker")
            if process.state == "running" and self._board.phase(process.slot) == IDLE
        ]

    def _write(self, record: dict[str, Any]) -> None:
        self._log.append(record)
