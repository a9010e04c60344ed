"""The seam between the harness and a queue under test.

A target is one small object. Its level is the highest whose members it gives: L0 any language
(enqueue, the command line of a worker, a snapshot), L1 a column mapping for the audit, L2 its own
code on an injected host, L3 named sync points.
"""

import difflib
import importlib
import importlib.util
import random
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from killproof_evidence.contract import STATES, Contract

#: So many names still make a line that somebody reads.
NAMES_MAX: Final = 5


class Definite(Exception):
    """The operation certainly did not happen: `fail` in the history."""


class Indefinite(Exception):
    """The operation may or may not have happened (an error at commit): `info` in the history."""


class TargetFailed(RuntimeError):
    """The target's own code failed where nothing can be judged of it; the message has its words."""


class TargetNotFound(ValueError):
    """No target of this name; the message says what names are possible."""


class TargetIncomplete(TargetNotFound):
    """It was found, and lacks members that every target has; the message names them."""


class Host(Protocol):
    """What a queue takes from its surroundings; the simulator gives its own."""

    @property
    def clock(self) -> Any:
        """Wall and monotonic time, and sleep."""

    @property
    def random(self) -> random.Random:
        """The only source of randomness."""

    @property
    def connect(self) -> Callable[..., Any]:
        """Opens a database connection."""

    @property
    def lock(self) -> Any:
        """Opens a kernel lock."""


class Client(Protocol):
    """What a producer does. Options that a queue does not have it refuses with Definite."""

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int | str:
        """Put a job in and return the queue's id.

        Options (all optional): priority 0 urgent to 9, delay seconds, key, max_attempts,
        lease seconds, retry policy.

        Raises:
            Definite: it is certainly not in the queue.
            Indefinite: it may be.
        """

    def cancel(self, id: int | str) -> bool:  # noqa: A002
        """Cancel a job that has not started; False when it is too late."""

    def replay(self, id: int | str) -> bool:  # noqa: A002
        """Make a dead job available again; False when it is not dead."""

    def close(self) -> None:
        """Give everything back."""


class WorkerClient(Client, Protocol):
    """L2: a client that also works; a lease is whatever the target's own claim returns."""

    def claim(self, kinds: Iterable[str] | None = None) -> Any: ...  # noqa: D102
    def extend(self, lease: Any) -> None: ...  # noqa: D102
    def ack(self, lease: Any, result: object = None) -> None: ...  # noqa: D102
    def nack(self, lease: Any, error: object) -> None: ...  # noqa: D102
    def release(self, lease: Any) -> None: ...  # noqa: D102
    def reap(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMapping:
    """How the harness finds a job's facts in the target's table.

    Each value is a column name, or an SQL expression over `NEW` (the generator makes the twin
    over `OLD`); None: the table has no such thing, and what needs it is not judged.
    """

    table: str
    id: str
    state: str
    states: Mapping[Any, str] = field(default_factory=dict)  #: the table's word -> contract's word
    fence: str | None = None
    attempts: str | None = None  #: starts counted so far, forgiven ones included
    forgiven: str | None = None
    priority: str | None = None  #: the smaller the sooner: negate it where the table's is not
    due_ms: str | None = None  #: wall clock, ms since 1970
    key: str | None = None
    kind: str | None = None
    payload: str | None = None  #: JSON text; only its `id` is taken, and only at insert


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMapping:
    """How the harness finds the runs of workflows in a table of their own; as `AuditMapping`."""

    table: str
    id: str
    state: str  #: running, succeeded, or a word for what becomes of a run of which a step failed
    name: str  #: under which the harness started it
    states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as the target tells it after all processes have ended."""

    id: int | str
    kind: str
    state: str  #: the contract's word
    attempts: int | None = None  #: starts counted, forgiven ones included
    payload: Any = None  #: decoded
    error: str | None = None  #: of the last failure
    forgiven: int = 0  #: starts that are no attempt (released, snoozed, before a replay)
    max_attempts: int | None = None
    priority: int | None = None
    key: str | None = None
    fence: int | None = None
    due_ms: int | None = None
    #: one entry for each ended delivery, oldest first: {"fence", "outcome", "error"}; None: unkept
    history: tuple[Mapping[str, Any], ...] | None = None

    def record(self) -> dict[str, Any]:
        """Return the row as a line of snapshot.jsonl."""
        return {name: getattr(self, name) for name in _ROW}


_ROW: Final = tuple(each.name for each in fields(JobRow))
_COUNTS: Final = ("attempts", "forgiven", "max_attempts", "priority", "fence", "due_ms")


def refuse_row(row: JobRow) -> None:
    """Refuse a row that no checker can read: it would pass for a queue's fault, or end a checker.

    Raises:
        TargetFailed: the message names the value and what it can be.
    """
    if not is_id(row.id):
        raise TargetFailed(f"the id {row.id!r} is neither an integer nor a text")
    if row.state not in STATES:
        raise TargetFailed(f"the state {row.state!r} is unknown: use {', '.join(STATES)}")
    for name in _COUNTS:
        value = getattr(row, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TargetFailed(f"{name} = {value!r} is no integer")


def is_id(value: object) -> bool:
    """Say whether it is an id: an integer or a text."""
    return isinstance(value, int | str) and not isinstance(value, bool)


@runtime_checkable
class Target(Protocol):
    """A queue under test, level L0. L1 to L3 add the members named in the functions below."""

    name: str
    broken: bool
    contract: Contract
    audit: AuditMapping | None

    def prepare(self, place: Path) -> None:
        """Make an empty queue in this folder."""

    def client(self, place: Path) -> Client:
        """Open the queue for a producer; called in the process that uses it."""

    def worker_argv(self, place: Path) -> list[str]:
        """Return the command line of one worker process that runs until SIGTERM."""

    def snapshot(self, place: Path) -> Iterable[JobRow]:
        """Read every job; called when all processes have ended."""


class HostedTarget(Target, Protocol):
    """L2: the target's own code runs on an injected host."""

    def open(self, place: Path, host: Host) -> WorkerClient:
        """Open the queue with this clock, randomness, connection factory and lock."""


class SteppedTarget(HostedTarget, Protocol):
    """L3: the target announces where it is."""

    sync_points: frozenset[str]


class MixedTarget(Target, Protocol):
    """Any level: the queue has more than jobs, and a run shall use it (`killproof chaos run`).

    Each word stands for a member of the client or of the worker that is called only where the word
    is announced: `backup`: `client.backup()` puts a copy of the open file into a folder `backups`
    below that of the queue, and returns the copy's path relative to the queue's folder; where a
    backup is more than its file, `backup_problems(copy)` says what else is wrong. `limits`:
    `prepare` has set the limits that `mix_parameters` declare. `schedule`: likewise the schedules;
    the audit and the snapshot give a job of one its key as the harness's name. `dispatcher`: a
    worker whose `$KILLPROOF_PROCESS` begins with d has several slots. `workflow`:
    `client.start(run, steps)` starts a run of that name in one transaction, each step an object
    with `id`, `kind`, `payload`, `needs` (ids) and the options of an enqueue, and returns `{"run":
    the queue's id, "jobs": {id: the queue's id}}`; `runs` says where the runs are found. `spill`:
    `enqueue` takes the option `spill`, which puts the payload into a file of its own, and
    `client.collect()` removes the files that no job needs and says how many; such a job's key is
    the harness's name.
    """

    capabilities: frozenset[str]
    #: By capability: parameters that the contract of a run has in addition when it is asked for.
    mix_parameters: Mapping[str, Mapping[str, Any]]


class RepairableTarget(Target, Protocol):
    """Any level: after a disk error the queue stops, and its documents tell how to bring it back.

    The engine `proc` uses both when it lets disk calls fail; a queue without them must go on by
    itself.
    """

    def stopped(self, place: Path) -> bool:
        """Say whether the queue has stopped; asked often, while its processes live.

        To be told from outside: a file's existence, never by opening the database.
        """

    def repair(self, place: Path) -> None:
        """Do what the documents tell an operator to do; nobody has the file open.

        Called after a stop and once at the end of the faults, so it must do nothing to a queue
        that has not stopped. Whatever it raises is reported, and no pass is possible then.
        """


def level(target: Target) -> int:
    """Return the highest level whose members the target gives, 0 to 3."""
    if getattr(target, "audit", None) is None:
        return 0
    if not callable(getattr(target, "open", None)):
        return 1
    return 3 if getattr(target, "sync_points", None) else 2


def keeps_history(target: Target) -> bool:
    """Say whether the target's workers tell what they were told: claims, and how each was ended.

    One that announces nothing but its handler, or is in another language, keeps no history.
    """
    points: frozenset[str] = getattr(target, "sync_points", frozenset())
    return any(not point.startswith("handler.") for point in points)


def rows_of(target: Target, place: Path) -> list[JobRow]:
    """Return the jobs that a target tells, when all its processes have ended.

    Raises:
        TargetFailed: its code raised, or a row is none; definite.
        sqlite3.DatabaseError: SQLite refuses the file, which is evidence.
    """
    try:
        rows = list(target.snapshot(place))
    except (sqlite3.DatabaseError, TargetFailed, MemoryError):
        raise
    except Exception as error:
        # Somebody's adapter: whatever it raises is its author's to read, and no verdict.
        raise TargetFailed(f"its snapshot raised {type(error).__name__}: {error}") from error
    for row in rows:
        refuse_row(row)
    return rows


def load_target(name: str, builtin: Mapping[str, Callable[[], Target]]) -> Target:
    """Find a target: a built-in name, `package.module:attribute`, `path.py` or `path.toml`.

    Of `path.py` it is the attribute `target`; `path.toml` describes a queue behind a command line
    (`killproof_evidence.command`).

    Args:
        name: as the user typed it.
        builtin: factories of the built-in targets, so that only the chosen one is imported.

    Raises:
        TargetNotFound: the message names the value and the remedy; definite.
    """
    if name in builtin:
        return builtin[name]()
    if name.endswith(".py"):
        found = _from_file(Path(name))
    elif name.endswith(".toml"):
        from killproof_evidence.command import CommandTarget  # It stands on this module.

        found = CommandTarget(Path(name))
    elif ":" in name:
        found = _from_module(name)
    else:
        raise TargetNotFound(
            f"target {name!r} is unknown: use {_choices(name, builtin)}, "
            "package.module:attribute, path.py or path.toml"
        )
    if isinstance(found, type):
        found = found()
    missing = [part for part in _MEMBERS if not hasattr(found, part)]
    if missing:
        raise TargetIncomplete(f"target {name!r} lacks {', '.join(missing)}")
    if not isinstance(found.contract, Contract):
        raise TargetIncomplete(
            f"target {name!r}: its contract is a {type(found.contract).__name__}: give "
            "Contract(...) or Contract.load(FILE)"
        )
    return found  # type: ignore[no-any-return]


def _choices(name: str, builtin: Iterable[str]) -> str:
    """Return all names, or of many those that are most like this one: an error is one line."""
    names = sorted(builtin)
    if len(names) <= NAMES_MAX:
        return ", ".join(names)
    close = difflib.get_close_matches(name, names, n=NAMES_MAX, cutoff=0.0)
    return f"{', '.join(close)} or another of `killproof chaos targets`"


_MEMBERS = ("name", "broken", "contract", "prepare", "client", "worker_argv", "snapshot")


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"killproof_target_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TargetNotFound(f"target file {str(path)!r} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        # A queue may lie beside its adapter, as beside a script. Last: an adapter that is named
        # like its queue must not be found in its place.
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # The user's file: whatever is wrong with it is for the user to read, in one line.  Also an
        # exit, which would else be the harness's own, and its code a verdict.
        raise TargetNotFound(
            f"target file {str(path)!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from None
    if not hasattr(module, "target"):
        raise TargetNotFound(f"target file {str(path)!r} defines no `target`")
    return module.target


def _from_module(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise TargetNotFound(
            f"target {name!r} cannot be loaded: {type(error).__name__}: {error}; use "
            "package.module:attribute"
        ) from None
