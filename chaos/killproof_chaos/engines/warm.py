"""The warm server: a process that has imported everything and forks the others from itself.

A Python process needs 100 ms or more to start; two hundred kills a run would spend all their time
on imports. The server has imported the target beforehand, holds no database connection and no
thread, and so can fork a process that works after a few milliseconds. A target in another
language is started by its command line instead, by the same server.

Every child asks the kernel to be killed when the server dies, and the server when the supervisor
dies: whatever happens to the supervisor, nothing stays behind. The server reaps its children and
tells the supervisor how each ended, so that "killed" is what the wait status says.
"""

import json
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from killproof_chaos import hook
from killproof_chaos.engines import disk_client, roles
from killproof_chaos.shim.notes import Shim
from killproof_chaos.targets import load
from killproof_evidence import effect
from killproof_evidence.lifetime import die_with_parent
from killproof_evidence.store import Store
from killproof_evidence.target import Target

#: A request is small; only a plan is large, and that is a file.
REQUEST_BYTES_MAX: Final = 65_536
FAILED: Final = 3
#: Whose disk calls may be made to fail: an error of anybody else says nothing of the queue.
ARMED: Final = frozenset({"worker", "producer", "player"})


class WarmServer:
    """Forks processes on request; single-threaded, and without any connection."""

    def __init__(self, channel: socket.socket, target: Target, store: Store, place: Path) -> None:
        """Serve the requests that come over the channel."""
        self._channel = channel
        self._target = target
        self._store = store
        self._place = place
        self._selector = selectors.DefaultSelector()
        self._buffer = b""

    def serve(self) -> None:
        """Fork and reap until the channel is closed; then kill what is left."""
        self._selector.register(self._channel, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.fd, key.data)
                elif not self._read():
                    return

    def _read(self) -> bool:
        data = self._channel.recv(REQUEST_BYTES_MAX)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._spawn(json.loads(line))
        return bool(data)

    def _spawn(self, request: dict[str, Any]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(request, parent)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        self._tell({"spawned": request["number"], "pid": pid})

    def _reap(self, descriptor: int, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._tell({"ended": pid, "status": status})

    def _tell(self, record: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(record).encode() + b"\n")

    def _become(self, request: dict[str, Any], parent: int) -> None:
        """Be the child: never returns, and never runs what the server would do at its end."""
        status = FAILED
        try:
            die_with_parent(parent)
            os.environ.update(request["environment"])
            log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # An aborting handler leaves no core.
            self._channel.close()
            self._selector.close()
            hook.attach()
            if request["role"] not in ARMED:
                Shim().disarm()
            self._play(request)
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _play(self, request: dict[str, Any]) -> None:
        role, rest = request["role"], request.get("rest", {})
        store, place = self._store, self._place
        if role == "worker":
            work: Callable[[Path], None] | None = getattr(self._target, "work", None)
            if work is None:
                argv = self._target.worker_argv(place)
                os.environ[effect.WORKER] = str(os.getpid())
                os.execvp(argv[0], argv)
            work(place)
        elif role == "producer":
            roles.produce(self._target, place, store, rest["name"], rest["start_ns"])
        elif role == "prepare":
            disk_client.prepare(self._target, place, Path(rest["told"]))
        elif role == "player":
            disk_client.play(self._target, place, store, rest["name"])
        elif role == "holder":
            disk_client.hold(self._target, place)
        elif role == "mark":
            disk_client.mark(rest["number"])
        elif role == "checkpoint":
            disk_client.checkpoint(Path(rest["database"]))
        elif role == "sink":
            roles.serve_sink(store, Path(rest["told"]))
        elif role == "lock":
            roles.hold_lock(Path(rest["database"]), Path(rest["told"]), rest["length_ms"])
        else:
            assert role == "observer", role
            told, database = Path(rest["told"]), Path(rest["database"])
            roles.observe(database, rest["table"], rest["state"], told)


def main() -> None:
    """Run the server: channel descriptor, supervisor's pid, target, store, place."""
    descriptor, parent, name, store, place = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(descriptor))
    server = WarmServer(channel, load(name), Store(Path(store)), Path(place))
    channel.sendall(b'{"warm": true}\n')
    server.serve()


if __name__ == "__main__":
    main()
