"""The history: what each client process asked of the queue, and what it was told.

An operation is an `invoke` and, later, its completion: `ok` (it happened), `fail` (it did not) or
`info` (nobody knows: an error at commit, a timeout). An operation with no completion at all is
`info` too: its process was killed inside it. This is Jepsen's history model.

Each operating-system process writes one file, `<process>.jsonl`, and closes it with an `exit`
record when it ends in order. A file without one belongs to a process that was killed, and the
nemesis log must say so. Times are CLOCK_MONOTONIC nanoseconds, comparable between the processes
of one Linux boot.
"""

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from killproof_evidence.records import RecordWriter, without_alarms

if TYPE_CHECKING:
    from killproof_evidence.store import Store

#: Every operation that a history may hold. `exit` is the end of a process, in order.
OPERATIONS: Final = frozenset(
    {"enqueue", "claim", "extend", "ack", "nack", "release", "snooze", "hold"}
    | {"reap", "cancel", "replay", "backup", "collect", "start", "exit"}
)
COMPLETIONS: Final = frozenset({"ok", "fail", "info"})


class HistoryWriter:
    """Writes the history of one process. Threads may share it; a forked child must not.

    After an `info` the process goes on under a new name (`w3`, then `w3~1`): the unfinished
    operation stays concurrent with everything that follows, so one name never has two open.
    """

    def __init__(self, path: Path | str, process: str) -> None:
        """Open the file at `path` (by convention `store.history_file(process)`)."""
        self._records = RecordWriter(path)
        self._process = process
        self._pid = os.getpid()
        # One lock over numbering and writing: in the file, invokes then stand in the order of
        # their numbers, so that the reader sees a missing line as a gap.
        self._lock = threading.Lock()
        self._number = 0
        self._lives = 0
        self._open: dict[int, str] = {}
        # Thread and lane -> the number of its latest operation.
        self._latest: dict[tuple[int, int], int] = {}
        self._lanes: dict[int, int] = {}  # Of the open operations that are not in the first.

    def invoke(
        self,
        f: str,
        *,
        job: object = None,
        fence: int | None = None,
        value: object = None,
        since: int | None = None,
        lane: int = 0,
    ) -> int:
        """Record that operation `f` is about to begin; return its number for the completion.

        Args:
            f: one of OPERATIONS.
            job: the queue's id, where it is known beforehand.
            fence: of the lease that the call shows.
            value: what is asked, for the checkers.
            since: CLOCK_MONOTONIC ns at which it began, when that was earlier: the claim of an
                `ack_and_claim` is put on record after the ack that it shared a commit with.
            lane: tells the operations apart that one call of this thread makes at once.
        """
        assert f in OPERATIONS, f
        with without_alarms(), self._lock:
            self._abandon(self._latest.get((threading.get_ident(), lane), 0))
            self._number += 1
            self._open[self._number] = f
            self._latest[threading.get_ident(), lane] = self._number
            if lane:
                self._lanes[self._number] = lane
            self._append(self._number, f, "invoke", job, fence, value, since)
            return self._number

    def ok(
        self, n: int, *, job: object = None, fence: int | None = None, value: object = None
    ) -> None:
        """Record that operation `n` happened, as the queue said."""
        self._complete(n, "ok", job, fence, value)

    def fail(
        self, n: int, *, job: object = None, fence: int | None = None, value: object = None
    ) -> None:
        """Record that operation `n` certainly did not happen (a definite error, a refusal)."""
        self._complete(n, "fail", job, fence, value)

    def info(
        self, n: int, *, job: object = None, fence: int | None = None, value: object = None
    ) -> None:
        """Record that operation `n` may or may not have happened (an indefinite error)."""
        self._complete(n, "info", job, fence, value)

    def close(self) -> None:
        """Write the `exit` record that tells an orderly end from a kill."""
        with without_alarms(), self._lock:
            for n in sorted(self._open):
                self._abandon(n)
            self._number += 1
            self._append(self._number, "exit", "ok", None, None, None)
            self._records.close()

    def _abandon(self, n: int) -> None:
        """Complete an operation that an alarm tore out of its caller's hands, as `info`.

        A time limit may raise between the call and the record of its answer, where no handler can
        catch it. The writer knows that no answer will come; the reader could not tell it from a
        missing line.
        """
        if (f := self._open.pop(n, None)) is not None:
            self._append(n, f, "info", None, None, {"error": "interrupted"})
            self._lives += 1

    def _complete(self, n: int, kind: str, job: object, fence: int | None, value: object) -> None:
        with without_alarms(), self._lock:
            f = self._open.pop(n, None)
            if f is None:
                # It was abandoned, and stays `info`: that claims least.
                return
            self._append(n, f, kind, job, fence, value)
            if kind == "info":
                self._lives += 1

    def _append(
        self,
        n: int,
        f: str,
        kind: str,
        job: object,
        fence: int | None,
        value: object,
        since: int | None = None,
    ) -> None:
        assert os.getpid() == self._pid, "a forked child writes a history of its own"
        process = f"{self._process}~{self._lives}" if self._lives else self._process
        record: dict[str, Any] = {
            "t": time.monotonic_ns() if since is None else since,
            "pid": self._pid,
            "process": process,
            "n": n,
            "f": f,
            "type": kind,
        }
        # The reader allows one open operation per thread; the main thread needs no name.
        thread = ""
        if threading.current_thread() is not threading.main_thread():
            thread = threading.current_thread().name
        lane = self._lanes.get(n, 0) if kind == "invoke" else self._lanes.pop(n, 0)
        if lane:
            thread = f"{thread}/{lane}"
        if thread:
            record["thread"] = thread
        if job is not None:
            record["job"] = job
        if fence is not None:
            record["fence"] = fence
        if value is not None:
            record["value"] = value
        self._records.append(record)


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """One operation: its invocation and, where there is one, its completion."""

    file: str  #: relative to the store, such as `history/w3.jsonl`
    line: int  #: of the invocation, from 1
    line_end: int  #: of the completion; 0 where there is none
    process: str
    pid: int
    n: int
    f: str
    type: str  #: ok, fail or info (also when there is no completion)
    t: int  #: CLOCK_MONOTONIC ns of the invocation
    t_end: int | None  #: of the completion; None: never came
    job: str | None  #: the queue's id, as text
    fence: int | None
    value: Any  #: as invoked
    value_end: Any  #: as completed


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A line that is torn, missing, doubled or makes no sense: evidence that cannot be trusted."""

    file: str
    line: int
    reason: str


@dataclass(slots=True, kw_only=True)
class History:
    """All operations of a run, file by file, in the order of their invocations."""

    operations: list[Operation]
    malformed: list[Malformed]
    exited: dict[int, str]  #: pid -> process, of those that ended in order
    processes: dict[int, str]  #: pid -> process, of all
    ends: dict[int, tuple[str, int, int]]  #: pid -> file, line, t of its `exit`
    last: dict[int, tuple[str, int]]  #: pid -> file and line of its last record
    killed: frozenset[int]  #: pids whose kill the nemesis log holds: their last line may be torn


def read_history(store: "Store", *, killed: Iterable[int] = ()) -> History:
    """Read and pair the history of a store.

    Args:
        store: where the history lies.
        killed: pids whose torn last line is explained: the process was killed in the write.
    """
    history = History(
        operations=[],
        malformed=[],
        exited={},
        processes={},
        ends={},
        last={},
        killed=frozenset(killed),
    )
    for path in store.history_files():
        _File(f"history/{path.name}", history).read(store.read(path))
    return history


class _File:
    """Pairs the records of one file, which one process wrote from one thread or several."""

    def __init__(self, name: str, history: History) -> None:
        self._name = name
        self._history = history
        self._open: dict[int, Operation] = {}
        self._by_thread: dict[str, int] = {}
        self._expected = 1
        self._ended = False
        self._pid = 0
        self._names: dict[str, str] = {}

    def read(self, records: Iterable[tuple[int, dict[str, Any] | None]]) -> None:
        """Read the whole file into the history."""
        line = 0
        torn = 0
        for line, record in records:
            if torn:
                self._bad(torn, "not a JSON object")
            torn = 0
            if record is None:
                torn = line
                continue
            try:
                self._take(line, record)
            except (KeyError, TypeError, ValueError) as error:
                self._bad(line, f"a record with a missing or wrong field ({error})")
        if torn and self._pid not in self._history.killed:
            self._bad(torn, "torn")
        if self._ended:
            for operation in self._open.values():
                self._bad(operation.line, "its completion is missing, yet the process ended")
        elif self._pid:
            self._history.last[self._pid] = (self._name, line)

    def _take(self, line: int, record: dict[str, Any]) -> None:
        n, f, kind = record["n"], record["f"], record["type"]
        if self._ended:
            self._bad(line, "a record after the exit of its process")
        if not self._pid:
            self._pid = record["pid"]
            self._history.processes[self._pid] = record["process"]
        if kind == "invoke" or f == "exit":
            if n != self._expected:
                self._bad(line, f"operation {n} where {self._expected} was due")
            self._expected = max(n, self._expected) + 1
        if f == "exit":
            self._ended = True
            self._history.exited[self._pid] = record["process"]
            self._history.ends[self._pid] = (self._name, line, record["t"])
        elif kind == "invoke":
            self._invoke(line, n, f, record)
        else:
            self._complete(line, n, f, kind, record)

    def _invoke(self, line: int, n: int, f: str, record: dict[str, Any]) -> None:
        if f not in OPERATIONS:
            raise ValueError(f"unknown operation {f!r}")
        if n in self._open:
            return self._bad(line, f"operation {n} is doubled")
        thread = record.get("thread", "")
        if self._by_thread.get(thread) in self._open:
            self._bad(line, "the operation before it has no completion")
        self._by_thread[thread] = n
        job = record.get("job")
        process = record["process"]
        operation = Operation(
            file=self._name,
            line=line,
            line_end=0,
            process=self._names.setdefault(process, process),
            pid=self._pid,
            n=n,
            f=self._names.setdefault(f, f),
            type="info",
            t=int(record["t"]),
            t_end=None,
            job=None if job is None else str(job),
            fence=record.get("fence"),
            value=record.get("value"),
            value_end=None,
        )
        self._open[n] = operation
        self._history.operations.append(operation)
        return None

    def _complete(self, line: int, n: int, f: str, kind: str, record: dict[str, Any]) -> None:
        if kind not in COMPLETIONS:
            raise ValueError(f"unknown type {kind!r}")
        operation = self._open.pop(n, None)
        if operation is None or operation.f != f:
            return self._bad(line, f"completion of operation {n} ({f}), which is not open")
        operation.type = self._names.setdefault(kind, kind)
        operation.line_end = line
        operation.t_end = int(record["t"])
        operation.value_end = record.get("value")
        if (job := record.get("job")) is not None:
            operation.job = str(job)
        if (fence := record.get("fence")) is not None:
            operation.fence = fence
        return None

    def _bad(self, line: int, reason: str) -> None:
        self._history.malformed.append(Malformed(file=self._name, line=line, reason=reason))
