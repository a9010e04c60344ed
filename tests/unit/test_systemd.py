"""What systemd is told, and the unit file that asks for it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from killproof import ManualClock, Queue, systemd
from killproof.core import sync
from killproof.systemd import Supervision, notify, ping_seconds
from killproof.worker import Context, Handlers, Worker


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        yield manager


@pytest.fixture
def environment(manager: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(manager.getsockname()), "WATCHDOG_USEC": "20000"}


class Watched:
    """A worker as far as the watchdog asks."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.well = True

    def is_well(self) -> bool:
        return self.well


def test_a_supervised_worker_says_ready_and_then_that_it_lives(
    manager: socket.socket, environment: dict[str, str]
) -> None:
    with Supervision(Watched(), environment):
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_worker_that_stands_still_is_not_vouched_for_and_a_stop_is_told_once(
    manager: socket.socket, environment: dict[str, str]
) -> None:
    worker = Watched()
    worker.well = False
    supervision = Supervision(worker, environment)
    supervision.look()
    worker.is_stopping = True
    supervision.look()
    worker.well = True
    supervision.look()

    assert [manager.recv(100), manager.recv(100)] == [b"STOPPING=1", b"WATCHDOG=1"]


def test_an_abstract_socket_is_found_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    name = f"killproof-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        assert notify("READY=1", {"NOTIFY_SOCKET": f"@{name}"})
        assert manager.recv(100) == b"READY=1"

    assert not notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert not notify("READY=1", {})


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_pinged_twice_within_its_limit_if_it_is_ours(
    environment: dict[str, str], seconds: float | None
) -> None:
    assert ping_seconds(environment) == seconds


# The unit.


def unit(**options: object) -> str:
    given = {"module": "my_jobs", "folder": "/srv/app", "python": "/usr/bin/python3", "db": None}
    given |= {"user": None}
    # What is wrong is handed in as well.
    return systemd.unit(**{**given, "grace": 30.0, **options})  # type: ignore[arg-type]


def test_a_unit_waits_for_the_network_drains_and_keeps_its_state_from_the_code() -> None:
    """Covers S0.66, S0.67, S0.65, F69: with what the article's own unit lacks."""
    text = unit()

    for line in (
        "Wants=network-online.target", "After=network-online.target", "Restart=always",
        "RestartSec=5", "WatchdogSec=120", "Type=notify", "WantedBy=multi-user.target",
        "StateDirectory=killproof", "ProtectSystem=strict", "DynamicUser=yes", "KillMode=mixed",
        "TimeoutStopSec=45", "Environment=PYTHONUNBUFFERED=1", "WorkingDirectory=/srv/app",
        "ExecStart=/usr/bin/python3 -m killproof work my_jobs --db %S/killproof/queue.db"
        " --grace 30",
    ):  # fmt: skip
        assert line in text.splitlines()
    given = unit(db="/data/my queue.db", user="automente", grace=90.0).splitlines()
    assert unit(slots=300).count(" --grace 30 --slots 300\n") == 1
    assert "TimeoutStopSec=105" in given
    assert "User=automente" in given
    assert "ReadWritePaths=/data" in given
    assert any('--db "/data/my queue.db"' in line for line in given)


@pytest.mark.parametrize(
    "options",
    [{"user": "a b"}, {"user": "x\nExecStartPre=/bin/sh"}, {"db": "queue.db"}, {"python": "p\n"}],
)
def test_what_would_break_out_of_its_line_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be an absolute path|no name of a user"):
        unit(**options)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_itself_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    """And rates its exposure under 2, where the article's unit has 9.2."""
    path = tmp_path / "killproof-test.service"
    path.write_text(unit(folder="/", python=shutil.which("python3") or "/usr/bin/python3"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True
    )
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", path],
        capture_output=True,
        text=True,
    )

    assert (verified.returncode, verified.stderr) == (0, "")
    assert rated.returncode == 0, rated.stdout


def test_a_worker_is_well_while_its_loop_moves_or_a_handler_runs(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler has limits of its own; a loop that stands still has nobody else to notice."""
    seen: list[bool] = []
    handlers = Handlers()

    @handlers("k")
    def handle(context: Context) -> None:
        seen.append(worker.is_well())

    worker = Worker(queue, handlers, clock=clock)

    def at_point(name: str) -> None:
        if name == "handler.start":
            clock.advance(20)  # Within the lease; the loop has not moved since.
        if name == "worker.idle":
            seen.append(worker.is_well())
            clock.advance(91)
            seen.append(worker.is_well())
            worker.stop()

    monkeypatch.setattr(sync, "hook", at_point)
    monkeypatch.setattr("killproof.worker.STILL_SECONDS_MAX", 10.0)
    queue.enqueue("k", None)
    worker.run()

    assert seen == [True, True, False]
    assert worker.is_stopping
