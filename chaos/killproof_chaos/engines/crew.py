"""The processes of a run, as the supervisor sees them: born by the warm server, ended by a signal.

A signal goes through a pidfd, so it can only reach the process that it was meant for, never one
that got its number later. Every end is told by the server with its wait status.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from killproof.wording import one_line
from killproof_chaos.phases import Board
from killproof_evidence.store import Store

#: The server imports the target and all it needs; on a busy machine that takes seconds.
WARM_SECONDS_MAX: Final = 60.0

#: What a worker that says nothing is given to start.
SILENT_NS: Final = 200_000_000

State = Literal["starting", "running", "stopped", "dying", "ended"]


class EngineFailed(RuntimeError):
    """The harness itself could not do its work; no verdict on the queue follows from it."""

    def __str__(self) -> str:
        """Return the message in one line: the words of a target's own error may stand in it."""
        return one_line(super().__str__())


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """One life of one process."""

    base: str  #: such as w3
    name: str  #: such as w3.2: its second life
    role: str
    slot: int
    born_ns: int
    pid: int = 0
    pidfd: int = -1  #: -1 also when it had ended before it could be watched
    state: State = "starting"
    status: int | None = None  #: as waitpid told it
    told_stop_ns: int = 0  #: when it was sent SIGTERM; 0: never
    doom: dict[str, Any] = field(default_factory=dict)  #: the record of the kill under way

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this very process; False when it has ended already."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, signum)
        except ProcessLookupError:
            return False
        return True

    def unwatch(self) -> None:
        """Close the pidfd."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Crew:
    """Starts, watches and ends the processes; every method is called by the supervisor's loop."""

    def __init__(
        self,
        store: Store,
        place: Path,
        target: str,
        board: Board,
        *,
        beneath: Mapping[str, str] | None = None,
    ) -> None:
        """Start the warm server for this target; `warm` waits until it is ready.

        Args:
            store: of the run.
            place: the folder of the queue.
            target: its name.
            board: where the processes say what they do.
            beneath: environment that must be there before a process begins, such as the shim's.
        """
        self.board = board
        #: Workers in another language say nothing; they are at work when they must be.
        self.are_workers_silent = False
        self.alive: dict[int, Process] = {}
        self._store = store
        self._lives: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._waiting: dict[int, Process] = {}
        self._number = 0
        self._buffer = b""
        self._logs = store.path / "logs"
        self._logs.mkdir(exist_ok=True)
        self.environment = {
            "KILLPROOF_STORE": str(store.path.resolve()),
            "KILLPROOF_EFFECTS": str(store.effects.resolve()),
            "KILLPROOF_BOARD": str(board.path.resolve()),
            "KILLPROOF_SYNC": "killproof_chaos.hook:hook",
        }
        self._channel, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(os.getpid()), target, str(store.path), str(place)]
        with theirs, open(self._logs / "server.log", "ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "killproof_chaos.engines.warm", *words],
                pass_fds=[theirs.fileno()],
                env=os.environ | (beneath or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.warm = False

    def wait_until_warm(self) -> None:
        """Wait for the server's imports.

        Raises:
            EngineFailed: it ended, or did not get ready in time.
        """
        deadline = time.monotonic() + WARM_SECONDS_MAX
        while not self.warm:
            self.poll(0.1)
            if time.monotonic() > deadline:
                raise EngineFailed(f"the server is not ready after {WARM_SECONDS_MAX:g} s")

    def spawn(self, base: str, role: str, **rest: Any) -> Process:
        """Ask the server for a process; it is `running` once it has opened the queue."""
        life = self._lives[base] = self._lives.get(base, 0) + 1
        slot = self.slot_of(base)
        process = Process(
            base=base, name=f"{base}.{life}", role=role, slot=slot, born_ns=time.monotonic_ns()
        )
        self.board.clear(slot)
        self._number += 1
        self._waiting[self._number] = process
        environment = self.environment | {
            "KILLPROOF_PROCESS": process.name,
            "KILLPROOF_SLOT": str(slot),
        }
        request = {
            "number": self._number,
            "role": role,
            "environment": environment,
            "log": str(self._logs / f"{base}.log"),
            "rest": rest,
        }
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise EngineFailed(f"the server is gone: {error}; see {self._logs}") from error
        return process

    def poll(self, seconds: float) -> list[Process]:
        """Wait at most so long for news; return the processes that have ended."""
        ended: list[Process] = []
        for record in self._records(seconds):
            if "warm" in record:
                self.warm = True
            elif "spawned" in record:
                process = self._waiting.pop(record["spawned"])
                process.pid = record["pid"]
                with suppress(ProcessLookupError):
                    process.pidfd = os.pidfd_open(process.pid)
                self.alive[process.pid] = process
            else:
                process = self.alive.pop(record["ended"])
                process.unwatch()
                process.state, process.status = "ended", record["status"]
                ended.append(process)
        for process in self.alive.values():
            if process.state == "starting" and self._is_at_work(process):
                process.state = "running"
        return ended

    def _is_at_work(self, process: Process) -> bool:
        """Say whether a process has opened the queue; one that cannot tell has had its time."""
        if self.board.is_ready(process.slot, process.pid):
            return True
        silent = self.are_workers_silent and process.role == "worker"
        return silent and time.monotonic_ns() - process.born_ns > SILENT_NS

    def slot_of(self, base: str) -> int:
        """Return the slot that every life of this process has on the board."""
        return self._slots.setdefault(base, len(self._slots))

    @property
    def slots(self) -> list[int]:
        """The slots of all processes, also of those that have just ended and will live again."""
        return list(self._slots.values())

    @property
    def all_born(self) -> bool:
        """Say whether every process that was asked for exists."""
        return not self._waiting

    def of_role(self, *roles: str) -> list[Process]:
        """Return the living processes of these roles, in the order of their names."""
        found = [process for process in self.alive.values() if process.role in roles]
        return sorted(found, key=lambda process: process.slot)

    def close(self) -> None:
        """End the server and with it, by the kernel, every process that is left."""
        self._channel.close()
        if self._server.poll() is None:
            self._server.kill()
        self._server.wait()
        for process in self.alive.values():
            process.unwatch()
        self.alive.clear()

    def _records(self, seconds: float) -> Iterator[dict[str, Any]]:
        readable, _, _ = select.select([self._channel], [], [], seconds)
        if not readable:
            return
        data = self._channel.recv(1 << 20)
        if not data:
            raise EngineFailed(f"the server ended; see {self._logs / 'server.log'}")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        yield from map(json.loads, lines)
