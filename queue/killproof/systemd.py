"""Run under systemd: the messages to it, its watchdog, and a unit file that makes use of both.

`sd_notify` is a datagram to the socket that systemd names in the environment; without it nothing is
sent.  **The watchdog** is for the one death that nobody inside can see: a call in a handler that
holds the interpreter's lock stops every thread, the heartbeat's too.  The pings come from a thread
of their own, so they stop with the interpreter; and they stop when the worker's loop stands still
without a handler in it.  systemd then kills the process and starts another; the job comes back as
after any kill.

Source of the messages: sd_notify(3), "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=".
"""

import os
import re
import shlex
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Protocol, Self

from killproof.core import model

#: The watchdog thread looks up at least this often, to tell a stop without delay.
LOOK_SECONDS_MAX: Final = 1.0
#: How long a message waits for room in the manager's queue, which holds ten of them.
SEND_SECONDS: Final = 0.1
#: Seconds without a ping after which the unit's worker is killed.
WATCHDOG_SECONDS: Final = 120
#: As many as a dispatcher takes.
SLOTS_MAX: Final = 10_000
#: What a worker needs beyond its grace time: to leave a hung handler behind, and to write outcomes.
DRAIN_SECONDS: Final = 15.0


def notify(message: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send systemd a message; False if there is nobody to tell.

    It never raises: a service manager that went away is no reason to stop working.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # A name that is in no folder begins with a NUL.
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(SEND_SECONDS)
            sender.sendto(message.encode(), address)
    except OSError:
        return False
    return True


def ping_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return how often systemd wants a ping: twice within its limit; None without a watchdog."""
    asked = environment.get("WATCHDOG_USEC", "")
    whose = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not asked.isdecimal() or int(asked) == 0 or whose != str(os.getpid()):
        return None
    return int(asked) / 2_000_000


class Watched(Protocol):
    """What the watchdog asks of a worker."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""

    def is_well(self) -> bool:
        """Whether its loop moves, or a handler runs."""


class Supervision:
    """Tells systemd that a worker is ready, lives, and stops; a `with` block around its run."""

    def __init__(self, worker: Watched, environment: Mapping[str, str] = os.environ) -> None:
        self._worker = worker
        self._environment = environment
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="killproof-systemd", daemon=True)
        self._ping_seconds = ping_seconds(environment)
        self._said_stopping = False

    def __enter__(self) -> Self:
        if notify("READY=1", self._environment):
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_SECONDS_MAX)
            self.look()  # The worker may have left sooner than the thread looked.

    def look(self) -> None:
        """Send what is to be said now."""
        if self._worker.is_stopping and not self._said_stopping:
            self._said_stopping = notify("STOPPING=1", self._environment)
        if self._ping_seconds is not None and self._worker.is_well():
            notify("WATCHDOG=1", self._environment)

    def _watch(self) -> None:
        seconds = min(self._ping_seconds or LOOK_SECONDS_MAX, LOOK_SECONDS_MAX)
        self.look()
        while not self._over.wait(seconds):
            self.look()


def unit(
    *,
    module: str,
    folder: str,
    python: str,
    db: str | None,
    user: str | None,
    grace: float,
    slots: int = 1,
) -> str:
    """Return the text of a unit file for one worker.

    Args:
        module: as for `killproof work`.
        folder: where it is.
        python: the interpreter, an absolute path.
        db: the database; None puts it into the unit's state folder, away from the code.
        user: who runs it; None lets systemd make a user for the unit.
        grace: seconds that a running job has to end.
        slots: jobs at once; more than one runs a dispatcher.

    Raises:
        ValueError: slots, the user or a path has characters that a unit file does not take.
    """
    for name, text in (("folder", folder), ("python", python), ("db", db or "/")):
        if not text.startswith("/") or not text.isprintable():
            raise ValueError(f"{name} {text!r} must be an absolute path")
    if user is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", user):
        raise ValueError(f"user {user!r} is no name of a user")
    where = db or "%S/killproof/queue.db"
    command = [_quoted(python), "-m", "killproof", "work", _quoted(module)]
    command += ["--db", where if db is None else _quoted(where), "--grace", f"{grace:g}"]
    if model.check_count(slots, "slots", 1, SLOTS_MAX) > 1:
        command += ["--slots", str(slots)]
    # Everything else is read-only under ProtectSystem=strict.
    writable = "" if db is None else f"ReadWritePaths={_quoted(os.path.dirname(where))}\n"
    return UNIT.format(
        module=module.replace("%", "%%"),
        folder=folder.replace("%", "%%"),
        command=" ".join(command),
        stop=round(grace + DRAIN_SECONDS),
        watchdog=WATCHDOG_SECONDS,
        user="DynamicUser=yes" if user is None else f"User={user}",
        writable=writable,
    )


def _quoted(text: str) -> str:
    """Return a word of a command line in a unit: % and $ mean something there."""
    text = text.replace("%", "%%").replace("$", "$$")
    return text if shlex.quote(text) == text else '"' + text.replace('"', '\\"') + '"'


UNIT: Final = """\
[Unit]
Description=Killproof worker for {module}
# After= alone only orders; Wants= makes the network be waited for.
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart={command}
WorkingDirectory={folder}
StateDirectory=killproof
StateDirectoryMode=0700
UMask=0077
Environment=PYTHONUNBUFFERED=1
{user}
{writable}
# A worker that ends is started again, but for wrong usage (64) and a failed disk (3, see
# killproof doctor), which a start does not mend.
Restart=always
RestartSec=5
RestartPreventExitStatus=3 64
# SIGTERM goes to the worker alone: it lets the running job end within its grace time.
KillMode=mixed
TimeoutStopSec={stop}
# A call that holds the interpreter's lock stops the pings, and is ended from outside.
WatchdogSec={watchdog}

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged

[Install]
WantedBy=multi-user.target
"""
