"""An adapter in Python for a queue that is a package of its own, in an environment of its own.

A subclass of `Adapter` with an instance named `target`, in one small file, is a target. The harness
reads its contract; the queue's own calls run in other processes, with the Python that has the
queue: `python -m killproof_evidence.adapter FILE ROLE PLACE`. There only this package and the
queue can be imported, so the file imports its queue inside the methods.

    connect    opens the queue, and makes it if there is none
    enqueue    puts a job in, by the queue's own call
    consume    is the queue's own worker loop, as its documents recommend it, until told to stop
    rows       reads every job; it runs in the harness, with the standard library alone

A queue for Node has a script beside the file, with its name and the suffix .mjs, in place of the
first three.
"""

import hashlib
import importlib
import inspect
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from killproof_evidence import command, effect, isolated
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping, Definite, JobRow, load_target

#: What an adapter's handler announces; its worker keeps no history, so there is nothing else.
SYNC_POINTS: Final = frozenset({"handler.start", "handler.effect", "handler.end"})


class Stopped(BaseException):
    """Raised in the main thread by SIGTERM, for worker loops that offer no other way to end.

    Like KeyboardInterrupt it is no `Exception`: no handler of the queue's takes it for a failure
    of the job.
    """


class Adapter:
    """A target in one class; what it does not override it has not."""

    name: ClassVar[str]
    contract: ClassVar[Contract]
    #: Where the queue's own documents make each promise: the contract's source.
    cites: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: The environment that has the queue, with its version pinned; None: the harness's own has it.
    peer: ClassVar[isolated.PythonPeer | isolated.NodePeer | None] = None
    audit: AuditMapping | None = None
    database: str = "queue.db"
    broken: bool = False
    sync_points: frozenset[str] = SYNC_POINTS

    # In a process of the queue.

    def connect(self, place: Path) -> Any:
        """Open the queue in this folder; make it if there is none."""
        raise NotImplementedError

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int | str:
        """Put a job in; return the queue's id.

        Raises:
            Definite: it is certainly not in the queue; any other error leaves that open.
        """
        raise NotImplementedError

    def consume(self, queue: Any, stop: "Stop") -> None:
        """Work until told to stop, by the queue's own loop; `handle` is the handler of each job."""
        raise NotImplementedError

    def cancel(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a job that has not started."""
        raise Definite(f"job {id}: {self.name} has no cancel")

    def replay(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Make a dead job available again."""
        raise Definite(f"job {id}: {self.name} has no replay")

    @staticmethod
    def handle(payload: dict[str, Any], **facts: Any) -> dict[str, Any]:
        """Be the handler of a job: what it does is on record, outside the queue.

        Raises:
            effect.ScriptedFailure: the attempt is to fail; let the queue see it.
        """
        return effect.run(payload, sync=_hook, **facts)

    # In the harness.

    def rows(self, db: sqlite3.Connection) -> Iterable[JobRow]:
        """Read every job in the contract's words, from the queue's own table."""
        raise NotImplementedError

    def snapshot(self, place: Path) -> Iterable[JobRow]:
        """Read every job."""
        with closing(sqlite3.connect(place / self.database)) as db:
            yield from self.rows(db)

    def prepare(self, place: Path) -> None:
        """Make an empty queue."""
        command.run(self._argv("prepare", place))

    def client(self, place: Path) -> command.CommandClient:
        """Start a producer."""
        return command.CommandClient(self._argv("client", place))

    def worker_argv(self, place: Path) -> list[str]:
        """Return the command line of a worker."""
        return self._argv("work", place)

    def _argv(self, role: str, place: Path) -> list[str]:
        """Return a command line in the environment of the queue, which is made if need be.

        Raises:
            isolated.NotInstalled: it cannot be made here.
        """
        file = inspect.getsourcefile(type(self))
        assert file is not None
        if isinstance(self.peer, isolated.NodePeer):
            return _node_argv(self.peer, Path(file).with_suffix(".mjs"), role, place)
        python, path = sys.executable, str(_seam())
        if self.peer is not None:
            python = str(isolated.ensure_python(self.peer).program)
        elif os.environ.get("PYTHONPATH"):  # What is found by it here is to be found there.
            path += os.pathsep + os.environ["PYTHONPATH"]
        # -P: an adapter that is named like its queue must not be found in its place.
        words = [python, "-P", "-m", "killproof_evidence.adapter", str(Path(file).resolve())]
        return ["env", f"PYTHONPATH={path}", *words, role, str(place)]


def _node_argv(peer: isolated.NodePeer, script: Path, role: str, place: Path) -> list[str]:
    """Return a command line of the script that lies beside a file of a queue for Node.

    It speaks the lines of `killproof_evidence.command`; `$KILLPROOF_NODE` is the folder from which
    it requires the queue. `killproof-effect` is found where this interpreter's programs are.
    """
    made = isolated.ensure_node(peer)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    words = ["env", f"PATH={path}", f"KILLPROOF_NODE={made.folder}", str(made.program)]
    return [*words, str(script.resolve()), role, str(place)]


def _seam() -> Path:
    """Return a folder from which another Python imports the harness's packages, and no others.

    They lie among all that the harness has installed, and a queue must not find its dependencies
    there. The folder holds links to the two.
    """
    packages = [Path(__file__).resolve().parent]
    packages.append(packages[0].with_name("killproof_chaos"))
    digest = hashlib.sha256(str(packages[0]).encode()).hexdigest()[:12]
    folder = isolated.default_folder().absolute() / f"seam-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        with suppress(FileExistsError):
            (folder / package.name).symlink_to(package)
    return folder


class Stop:
    """Whether a worker was told to stop; as a loop's condition, or as an exception."""

    def __init__(self) -> None:
        """Take over SIGTERM; Ctrl-C is the harness's, which sends SIGTERM."""
        self._told = False
        self._raises = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __call__(self) -> bool:
        """Say whether to stop."""
        return self._told

    def by(self, function: Callable[[], object]) -> None:
        """Call this when told to stop: the queue's own way to end its loop."""
        signal.signal(signal.SIGTERM, lambda _signal, _frame: function())
        if self._told:  # While the loop was being made.
            function()

    def by_exception(self) -> None:
        """Raise `Stopped` in the main thread when told to stop."""
        self._raises = True
        if self._told:
            raise Stopped

    def _on_signal(self, _signal: int, _frame: object) -> None:
        self._told = True
        if self._raises:
            raise Stopped


def main() -> None:
    """Be a process of the queue: `adapter FILE ROLE PLACE`."""
    file, role, place = sys.argv[1:]
    adapter: Any = load_target(file, {})
    if role == "work":
        stop = Stop()
        queue = adapter.connect(Path(place))
        _ready()
        try:
            adapter.consume(queue, stop)
        except Stopped:
            return
    elif role == "prepare":
        adapter.connect(Path(place))
    else:
        assert role == "client", role
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _serve(adapter, adapter.connect(Path(place)))


def _serve(adapter: Adapter, queue: Any) -> None:
    """Answer each request until the input ends."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What the queue prints must not look like an answer.
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["f"] == "enqueue":
                options = asked["options"]
                answer = {"ok": adapter.enqueue(queue, asked["kind"], asked["payload"], **options)}
            else:
                act = adapter.cancel if asked["f"] == "cancel" else adapter.replay
                answer = {"ok": act(queue, asked["id"])}
        except Definite as error:
            answer = {"fail": str(error)}
        except Exception as error:  # Whatever the queue raises: nobody knows what it did.
            answer = {"info": f"{type(error).__name__}: {error}"}
        told.write(json.dumps(answer) + "\n")
        told.flush()


def _hook(name: str) -> None:
    module = _sync_module()
    if module is not None:
        module.hook(name)


def _ready() -> None:
    module = _sync_module()
    if module is not None:
        module.ready()


def _sync_module() -> Any:
    """Return the harness's module of sync points, where a run has named one.

    It is reached by its name in the environment, as any queue reaches it: this package knows
    nothing of the harness.
    """
    name = os.environ.get("KILLPROOF_SYNC", "").partition(":")[0]
    return importlib.import_module(name) if name else None


if __name__ == "__main__":
    main()
