"""Record one concurrent run of a queue under the shim: what is written, synced and told.

Players and workers are real processes on a real folder; a further program checkpoints. Some of them
are killed now and then, and born again; in the middle all are killed at once, so that the queue is
opened on what dead processes left. The power cut comes later, at every point of the log.

Twice nobody is alive: after that kill of all, and at the end. Each time the files are copied. What
the log rebuilds must be these very files, or the log is not the whole truth.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from killproof_chaos.engines import disk_client, roles
from killproof_chaos.engines.crash_process import last_line, last_words
from killproof_chaos.engines.crew import Crew, EngineFailed, Process
from killproof_chaos.engines.disk_model import NOT_ON_DISK
from killproof_chaos.phases import Board
from killproof_chaos.shim.build import build
from killproof_chaos.shim.calls import File, Kind
from killproof_chaos.shim.control import Control
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import Begin, Blind, End, Note, Record, Torn, read_log
from killproof_chaos.workload import Operation, fitting
from killproof_evidence.store import Store, StoreError, write_json
from killproof_evidence.target import Target

LOG: Final = "disk.log"
#: Where a client in another language writes what it knows, each answer with one call.
NOTES: Final = "notes"
COPIES: Final = "copies"  #: folder of what the disk held while nobody was alive
INDEX: Final = "recording.json"
#: Folders that people may look into and change: nothing is judged by them.
FOR_PEOPLE: Final = frozenset({"db", "logs"})
#: Of recording.json.
PARTS: Final = frozenset({"root", "database", "kills", "names", "problems", "files"})
PLAYERS: Final = 2
WORKERS: Final = 3
#: A run that takes longer is stuck.
RUN_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 20.0
OPEN_SECONDS_MAX: Final = 30.0
TURN_SECONDS: Final = 0.002
#: For the jobs that are still in the queue; what is left then is left, a cut would do the same.
DRAIN_SECONDS: Final = 0.3
#: Between the last checkpoint and the kill of all.
OPERATIONS_MORE: Final = 6
#: Of renameat2, in linux/fs.h.
RENAME_EXCHANGE: Final = 2
#: Roles that end by themselves, while nobody else is alive.
ALONE: Final = frozenset({"prepare", "mark"})
#: Suffixes of files that a power cut takes nothing from.
NO_CONTENT: Final = ("-shm", ".turnstile", ".gate", ".workers")
#: Of a run that nobody sized, one kill for so many jobs; and at least so many.
JOBS_PER_KILL: Final = 12
KILLS_MIN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The files while nobody was alive."""

    seq: int  #: the record that marks the moment
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A process that was killed."""

    pid: int
    name: str  #: such as w2.1
    role: str
    time_ns: int  #: when it was sent, CLOCK_MONOTONIC
    dead_ns: int  #: when it was known to have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run left behind."""

    root: str  #: the folder that was watched; empty before the first record
    database: str  #: name of the database in it
    records: list[Record]
    copies: list[Copy]
    kills: list[Kill]
    names: dict[int, str]  #: what the harness called each process, by its pid
    problems: list[str]  #: why it is not the whole truth; a verdict on it is unknown


def record(name: str, target: Target, store: Store, *, seed: int, jobs: int) -> Recording:
    """Run the queue and return what was recorded; the log stays in the store as disk.log.

    Args:
        name: of the target, as the user typed it.
        target: the same, loaded.
        store: where all evidence goes.
        seed: decides jobs and kills.
        jobs: how many.

    Raises:
        ShimUnavailable: there is no compiler, or it failed.
        EngineFailed: a process could not do its part.
    """
    library = build()
    place = Path(os.path.realpath(store.db))
    lists = disk_client.operations(
        seed, PLAYERS, jobs,
        cancels=bool(target.contract.promised("P15")),
        replays=bool(target.contract.promised("P13")),
        tables=target.contract.promised("P6") == "transaction",
        fit=fitting(target.contract),
    )  # fmt: skip
    shared = store.path / "control"
    with (
        Control.create(
            shared, watch=place, log=store.path / LOG, notes=store.path / NOTES, armed=False
        ) as control,
        closing(Board(store.path / "phases.bin")) as board,
    ):
        beneath = preload_environment(control, library=library)
        crew = Crew(store, place, name, board, beneath=beneath)
        # One that lets another program make its file calls is never seen to open the queue.
        crew.are_workers_silent = not getattr(target, "sync_points", None)
        try:
            holds = disk_client.hosts_queue(target)
            most = target.contract.parameters.get("workers_max", WORKERS)
            run = _Run(
                crew=crew, control=control, store=store, place=place, lists=lists, seed=seed,
                holds=holds, workers=min(WORKERS, most),
            )  # fmt: skip
            database = run.play(max(KILLS_MIN, jobs // JOBS_PER_KILL))
        finally:
            crew.close()
        problems = control.problems()
    shared.unlink()
    kills = [asdict(kill) for kill in run.kills]
    index = {
        "root": str(place),
        "database": database,
        "kills": kills,
        "names": {str(pid): name for pid, name in run.names.items()},
        "problems": problems,
        "files": _sizes(store),
    }
    write_json(store.path / INDEX, index)
    return load(store)


def load(store: Store) -> Recording:
    """Return the recording that a store holds; what it has lost since is a problem of it.

    Raises:
        StoreError: it holds none that can be read; definite.
    """
    path = store.path / INDEX
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"store {str(store.path)!r} holds no recording: run it anew") from None
    except ValueError as error:
        raise StoreError(f"{path}: {error}: run it anew") from None
    if not isinstance(saved, dict) or not saved.keys() >= PARTS:
        raise StoreError(f"{path} lacks one of {', '.join(sorted(PARTS))}: run it anew")
    if not (store.path / LOG).is_file() or not (store.path / COPIES).is_dir():
        raise StoreError(f"store {str(store.path)!r} lacks {LOG} or {COPIES}: run it anew")
    changed = _changed(saved["files"], _sizes(store))
    records = list(read_log(store.path / LOG))
    copies, doubts = _copies(store, records)
    kills = [Kill(**kill) for kill in saved["kills"]]
    return Recording(
        root=saved["root"],
        database=saved["database"],
        records=records,
        copies=copies,
        kills=kills,
        names={int(pid): name for pid, name in saved["names"].items()},
        problems=[
            *saved["problems"],
            *changed,
            *doubts,
            *_doubts(records, saved["root"], len(kills)),
        ],
    )


def _sizes(store: Store) -> dict[str, int]:
    """Return the size in bytes of every file of evidence, under its path in the store."""
    files = {
        path.relative_to(store.path): path for path in sorted(store.path.rglob("*"))
        if path.is_file()
    }  # fmt: skip
    return {
        name.as_posix(): path.stat().st_size
        for name, path in files.items()
        if name.parts[0] not in FOR_PEOPLE
    }


def _changed(left: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Say which of the files that the run left are not there as it left them."""
    return [
        f"{name}: {f'{found[name]} bytes' if name in found else 'missing'}, and the run left "
        f"{size} bytes"
        for name, size in left.items()
        if found.get(name) != size
    ]


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run, as the supervisor steers it."""

    crew: Crew
    control: Control
    store: Store
    place: Path
    lists: Sequence[Sequence[Operation]]
    seed: int
    holds: bool  #: whether somebody claims and gives back, which not every target can
    workers: int
    kills: list[Kill] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    _database: Path = Path()
    _ended: set[str] = field(default_factory=set)  # Players that have done all of their list.
    _stopping: bool = False
    _copied: int = 0

    def play(self, kills: int) -> str:
        """Play the run to its end; return the name of the database."""
        self.crew.wait_until_warm()
        told = self.store.path / "prepared.json"
        self._alone(self.crew.spawn("prepare", "prepare", told=str(told)))
        found = roles.read_whole(told)
        if found is None:
            raise EngineFailed(
                "the target's prepare ended its process and did not return: take the exit out of it"
            )
        self._database = self.place / str(found["database"])
        for number, mine in enumerate(self.lists, 1):
            disk_client.write_operations(self.store, f"p{number}", mine)
        self.crew.board.hold(wanted=True)
        self._start()
        self._wait_until_open()
        self.crew.board.hold(wanted=False)
        self._strike(kills)
        self._wait(lambda: len(self._ended) == len(self.lists), RUN_SECONDS_MAX, "did not end")
        until = time.monotonic() + DRAIN_SECONDS
        self._wait(lambda: time.monotonic() > until, STOP_SECONDS_MAX, "did not drain")
        self._stop()
        self._copy()
        return str(found["database"])

    def _start(self) -> None:
        for number in range(1, self.workers + 1):
            self.crew.spawn(f"w{number}", "worker")
        self.crew.spawn("c1", "checkpoint", database=str(self._database))
        if self.holds:
            self.crew.spawn("h1", "holder")
        for number in range(1, len(self.lists) + 1):
            if f"p{number}" not in self._ended:
                self.crew.spawn(f"p{number}", "player", name=f"p{number}")

    def _strike(self, kills: int) -> None:
        """Kill somebody each time the players have come so far; in the middle, everybody."""
        source = random.Random(f"kills {self.seed}")
        total = sum(map(len, self.lists))
        marks = [total * (at + source.random()) / (kills + 1) for at in range(1, kills + 1)]
        marks[kills // 2] = total / 2
        for number, due in enumerate(sorted(marks)):
            self._get_on(due)
            if number == kills // 2:
                self._kill_all()
                continue
            born = [process for process in self.crew.alive.values() if self._is_open(process)]
            if born:
                self._kill(source.choice(sorted(born, key=lambda process: process.base)))

    def _get_on(self, due: float) -> None:
        """Wait until the players have begun so many operations, or no player is left."""
        # While everybody is about to be killed, a player that was killed before is not born again,
        # and the other one may be at its end.
        self._wait(
            lambda: self._progress() >= due or not self.crew.of_role("player"),
            RUN_SECONDS_MAX,
            "did not get on",
        )

    def _progress(self) -> int:
        """Return how many operations the players have begun."""
        done = 0
        for number, mine in enumerate(self.lists, 1):
            slot = self.crew.slot_of(f"p{number}")
            done += len(mine) if f"p{number}" in self._ended else self.crew.board.progress(slot)
        return done

    def _kill(self, process: Process) -> None:
        if process.send(signal.SIGKILL):
            process.doom = {"t": time.monotonic_ns()}

    def _kill_all(self) -> None:
        """Kill everybody, copy the files while nobody is alive, and begin again on them."""
        self._stopping = True
        self._wait(lambda: self.crew.all_born, OPEN_SECONDS_MAX, "were not born")
        # Who checkpoints first, so that the others write a log which nobody has copied back.
        for process in self.crew.of_role("checkpoint"):
            self._kill(process)
        self._get_on(self._progress() + OPERATIONS_MORE)
        for process in list(self.crew.alive.values()):
            self._kill(process)
        self._wait(lambda: not self.crew.alive, STOP_SECONDS_MAX, "outlived SIGKILL")
        self._copy()
        self._stopping = False
        self._start()

    def _copy(self) -> None:
        """Mark the moment in the log, and keep the files as they are now."""
        self._copied += 1
        self._alone(self.crew.spawn("mark", "mark", number=self._copied))
        folder = self.store.path / COPIES / str(self._copied)
        for path in sorted(self.place.rglob("*")):
            if path.is_file() and not path.name.endswith(NO_CONTENT):
                kept = folder / path.relative_to(self.place)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(path.read_bytes())

    def _stop(self) -> None:
        """Ask everybody to end in order, the last one closing the database."""
        self._stopping = True
        self._wait(lambda: self.crew.all_born, OPEN_SECONDS_MAX, "were not born")
        self._wait_until_open()
        for process in list(self.crew.alive.values()):
            process.told_stop_ns = time.monotonic_ns()
            process.send(signal.SIGTERM)
        self._wait(lambda: not self.crew.alive, STOP_SECONDS_MAX, "did not end after SIGTERM")

    def _alone(self, process: Process) -> None:
        """Wait until a process that is the only one has done its part."""
        self._wait(lambda: process.status is not None, OPEN_SECONDS_MAX, "did not end")

    def _wait_until_open(self) -> None:
        """Wait until all have opened the queue: who starts late was hardly concurrent."""
        self._wait(
            lambda: self.crew.all_born and all(map(self._is_open, self.crew.alive.values())),
            OPEN_SECONDS_MAX,
            "did not open the queue",
        )

    def _is_open(self, process: Process) -> bool:
        """Whether a process has opened the queue: it says so, or the shim has seen its calls."""
        if process.state == "running":
            return True
        seen = self.control.process(process.pid) if process.pid else None
        return seen is not None and seen.total > 0

    def _wait(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        """Let the run go on until something is reached.

        Raises:
            EngineFailed: it was not reached in time, or a process ended unasked.
        """
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                raise EngineFailed(f"processes {what}: see {self.store.path / 'logs'}")
            for process in self.crew.poll(TURN_SECONDS):
                self._on_end(process)

    def _on_end(self, process: Process) -> None:
        self.names[process.pid] = process.name
        killed = process.status is not None and os.WIFSIGNALED(process.status)
        if killed and process.doom:
            self.kills.append(
                Kill(
                    pid=process.pid, name=process.name, role=process.role,
                    time_ns=process.doom["t"], dead_ns=time.monotonic_ns(),
                )
            )  # fmt: skip
            if not self._stopping:
                self._again(process)
        elif process.status == 0 and process.role == "player" and not process.told_stop_ns:
            self._ended.add(process.base)
        elif process.status != 0 or not (process.told_stop_ns or process.role in ALONE):
            log = self.store.path / "logs" / f"{process.base}.log"
            words = last_line(last_words(log.parent, log.name))
            raise EngineFailed(
                f"{process.name} ended with wait status {process.status} and {words!r}; see {log}"
            )

    def _again(self, process: Process) -> None:
        rest = {"database": str(self._database)} if process.role == "checkpoint" else {}
        if process.role == "player":
            rest = {"name": process.base}
        self.crew.spawn(process.base, process.role, **rest)


def _copies(store: Store, records: Sequence[Record]) -> tuple[list[Copy], list[str]]:
    """Return the copies with their marks in the log, and what is wrong with them."""
    marks = {}
    for record_ in records:
        if isinstance(record_, Note) and (found := _marked(record_.text)) is not None:
            marks[found] = record_.seq
    folders = sorted((store.path / COPIES).iterdir(), key=lambda path: int(path.name))
    lost = [folder.name for folder in folders if int(folder.name) not in marks]
    doubts = [f"the log lacks the mark of copy {name}" for name in lost]
    copies = [
        Copy(
            seq=marks[int(folder.name)],
            files={
                str(path.relative_to(folder)): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            },
        )
        for folder in folders
        if folder.name not in lost
    ]
    return copies, doubts


def _marked(text: bytes) -> int | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_mark = isinstance(found, dict) and found.get("f") == disk_client.COPIED
    return int(found["number"]) if is_mark else None


def _doubts(records: Sequence[Record], root: str, killed: int) -> list[str]:
    found = []
    blind = {r.file.name.lower() for r in records if isinstance(r, Blind)}
    blind -= {file.name.lower() for file in NOT_ON_DISK - {File.DIRECTORY}}
    if blind:
        found.append(f"stores into mapped files are not seen: {', '.join(sorted(blind))}")
    # A process that is killed leaves one at most: appends to the log wait for each other.
    torn = sum(isinstance(record_, Torn) for record_ in records)
    if torn > killed:
        found.append(f"{torn} records of the disk's log are torn by {killed} kills")
    begins = [record_ for record_ in records if isinstance(record_, Begin)]
    known = {(begin.slot, begin.call) for begin in begins}
    if any(isinstance(r, End) and (r.slot, r.call) not in known for r in records):
        found.append("the log holds ends of calls whose begin it lacks")
    unknown = sorted({word for begin in begins if (word := unmodelled(begin, root)) is not None})
    if unknown:
        found.append(f"the model of the disk does not know {', '.join(unknown)}")
    return found


def unmodelled(begin: Begin, root: str) -> str | None:
    """Return in words what the model cannot rebuild of a call; None: it can."""
    if begin.kind == Kind.OPEN and begin.flags & os.O_DSYNC and begin.file not in NOT_ON_DISK:
        return "files that are opened with O_SYNC or O_DSYNC"
    if begin.kind == Kind.RMDIR or (begin.kind == Kind.RENAME and begin.file == File.DIRECTORY):
        return "folders that are removed or renamed"
    if begin.kind == Kind.RENAME and begin.flags & RENAME_EXCHANGE:
        return "names that are exchanged"
    if begin.kind in (Kind.RENAME, Kind.LINK) and not begin.path.startswith(f"{root}/"):
        return "files that come from another folder"
    if begin.kind == Kind.ALLOCATE and begin.flags:
        return "holes in files"
    return None
