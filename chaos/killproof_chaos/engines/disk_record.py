"""Record one concurrent run of a queue under the shim: what is written, synced and told.

Producers and workers are real processes on a real folder; a further program checkpoints. Nobody is
killed: the power cut comes later, at every point of the log.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines import disk_client
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.engines.disk_model import NOT_ON_DISK
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.shim.build import build
from killproof_chaos.shim.calls import File
from killproof_chaos.shim.control import Control
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import Blind, FileKey, Record, Torn, file_key, read_log
from killproof_evidence.store import Store, StoreError, write_json
from killproof_evidence.target import Target

LOG: Final = "disk.log"
SQLITE_HEAD: Final = b"SQLite format 3\0"
INITIAL: Final = "initial"  #: folder of the files that were there before the first record
INITIAL_INDEX: Final = "files.json"
PRODUCERS: Final = 2
WORKERS: Final = 3
#: A run that takes longer is stuck.
PRODUCE_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 20.0
OPEN_SECONDS_MAX: Final = 30.0
OPEN_LOOK_SECONDS: Final = 0.01
#: For the jobs that are still in the queue; what is left then is left, a cut would do the same.
DRAIN_SECONDS: Final = 0.4
#: Suffixes of files that a power cut takes nothing from.
NO_CONTENT: Final = ("-shm", ".turnstile", ".gate", ".workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run left behind."""

    root: str  #: the folder that was watched
    initial: dict[str, tuple[FileKey, bytes]]  #: its files before the run
    records: list[Record]
    problems: list[str]  #: why it is not the whole truth; a verdict on it is unknown


def record(target: Target, store: Store, *, seed: int, jobs: int) -> Recording:
    """Run the queue and return what was recorded; the log stays in the store as disk.log.

    Raises:
        ShimUnavailable: there is no compiler, or it failed.
        EngineFailed: a process could not do its part.
    """
    library = build()
    place = Path(os.path.realpath(store.db))
    _prepare(target, place)
    initial = _files(place, library)
    promised = bool(target.contract.promised("P15"))
    lists = disk_client.operations(seed, PRODUCERS, jobs, cancels=promised)
    shared = store.path / "control"
    with Control.create(shared, watch=place, log=store.path / LOG, armed=False) as control:
        environment = os.environ | preload_environment(control, library=library)
        _run(target, store, place, control, environment, lists)
        problems = control.problems()
    shared.unlink()
    _save(store, str(place), initial, problems)
    return _recording(store, str(place), initial, problems)


def load(store: Store) -> Recording:
    """Return the recording that the store of an earlier run holds.

    Raises:
        StoreError: it holds none; definite.
    """
    try:
        saved = json.loads((store.path / INITIAL / INITIAL_INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"store {str(store.path)!r} holds no recording: run it anew") from None
    initial = {
        name: (FileKey(*key), (store.path / INITIAL / name).read_bytes())
        for name, key in saved["files"].items()
    }
    return _recording(store, saved["root"], initial, list(saved["problems"]))


def _save(
    store: Store, root: str, initial: dict[str, tuple[FileKey, bytes]], problems: Sequence[str]
) -> None:
    """Keep what the disk held before the run: without it the log rebuilds nothing."""
    for name, (_, content) in initial.items():
        path = store.path / INITIAL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    keys = {name: list(key) for name, (key, _) in initial.items()}
    index = {"root": root, "files": keys, "problems": list(problems)}
    write_json(store.path / INITIAL / INITIAL_INDEX, index)


def _recording(
    store: Store, root: str, initial: dict[str, tuple[FileKey, bytes]], problems: list[str]
) -> Recording:
    records = list(read_log(store.path / LOG))
    return Recording(
        root=root, initial=initial, records=records, problems=problems + _doubts(records)
    )


def _prepare(target: Target, place: Path) -> None:
    try:
        target.prepare(place)
    except Exception as error:
        raise EngineFailed(f"{target.name} makes no queue in {place}: {error}") from error
    if target.contract.promised("P6") == "transaction":
        with closing(sqlite3.connect(_database(target, place))) as db:
            db.execute(EFFECT_TABLE)
            db.commit()


def database_name(target: Target, files: Mapping[str, bytes]) -> str:
    """Return the name of the database among these files: the target's word, or the first that is.

    Raises:
        EngineFailed: the target made none.
    """
    named = getattr(target, "database", None)
    if named is not None:
        return str(named)
    for name, content in sorted(files.items()):
        if content.startswith(SQLITE_HEAD):
            return name
    raise EngineFailed(f"{target.name} made no SQLite file: this engine has nothing to cut")


def _database(target: Target, place: Path) -> Path:
    """Return the database; only while nobody has it open, for its head may be read."""
    files = {
        str(path.relative_to(place)): path.read_bytes()[: len(SQLITE_HEAD)]
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
    return place / database_name(target, files)


def _files(place: Path, library: Path) -> dict[str, tuple[FileKey, bytes]]:
    """Return the files as they are while nobody has them open."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and not path.name.endswith(NO_CONTENT):
            key = file_key(path, library=library)
            assert key is not None
            found[str(path.relative_to(place))] = (key, path.read_bytes())
    return found


def _run(
    target: Target,
    store: Store,
    place: Path,
    control: Control,
    environment: dict[str, str],
    lists: Sequence[list[dict[str, Any]]],
) -> None:
    """Start everybody, wait for the producers, stop the rest."""
    (store.path / "logs").mkdir()
    base = environment | {
        "KILLPROOF_STORE": str(store.path.resolve()),
        "KILLPROOF_EFFECTS": str(store.effects.resolve()),
        "KILLPROOF_GO": str(store.path.resolve() / "go"),
    }
    client = [sys.executable, "-m", disk_client.__name__]
    producers, others = [], []
    database = _database(target, place)
    try:
        for number in range(1, WORKERS + 1):
            argv = target.worker_argv(place)
            others.append(_start(f"w{number}.1", argv, base, store))
        others.append(_start("checkpoint.1", [*client, "checkpoint", str(database)], base, store))
        for number, operations in enumerate(lists, 1):
            path = store.path / f"operations-{number}.json"
            path.write_text(json.dumps(operations, ensure_ascii=False), encoding="utf-8")
            argv = [*client, "produce", target.name, str(place)]
            told = base | {"KILLPROOF_OPERATIONS": str(path.resolve())}
            producers.append(_start(f"p{number}.1", argv, told, store))
        _wait_until_open(control, [*producers, *others], store)
        (store.path / "go").touch()
        _wait(producers, PRODUCE_SECONDS_MAX, store)
        time.sleep(DRAIN_SECONDS)
        for process in others:
            process.send_signal(signal.SIGTERM)
        _wait(others, STOP_SECONDS_MAX, store)
    finally:
        for process in (*producers, *others):
            if process.poll() is None:
                process.kill()
                process.wait()


def _start(
    name: str, argv: Sequence[str], environment: dict[str, str], store: Store
) -> "subprocess.Popen[bytes]":
    with open(store.path / "logs" / f"{name}.log", "wb") as out:
        return subprocess.Popen(
            argv,
            env=environment | {"KILLPROOF_PROCESS": name},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def _wait_until_open(
    control: Control, processes: Sequence["subprocess.Popen[bytes]"], store: Store
) -> None:
    """Wait until each has opened the queue: a run in which one starts late is hardly concurrent."""
    deadline = time.monotonic() + OPEN_SECONDS_MAX
    while True:
        opened = {process.pid for process in control.processes() if process.total}
        missing = [process for process in processes if process.pid not in opened]
        if not missing:
            return
        if any(process.poll() is not None for process in missing):
            raise EngineFailed(f"a process ended before it began: see {store.path / 'logs'}")
        if time.monotonic() > deadline:
            raise EngineFailed(f"a process did not open the queue: see {store.path / 'logs'}")
        time.sleep(OPEN_LOOK_SECONDS)


def _wait(processes: Sequence["subprocess.Popen[bytes]"], seconds: float, store: Store) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            status = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise EngineFailed(
                f"a process did not end within {seconds:g} s: see {store.path / 'logs'}"
            ) from None
        if status != 0:
            raise EngineFailed(f"a process ended with status {status}: see {store.path / 'logs'}")


def _doubts(records: Sequence[Record]) -> list[str]:
    found = []
    blind = {r.file.name.lower() for r in records if isinstance(r, Blind)}
    blind -= {file.name.lower() for file in NOT_ON_DISK - {File.DIRECTORY}}
    if blind:
        found.append(f"stores into mapped files are not seen: {', '.join(sorted(blind))}")
    torn = sum(isinstance(record, Torn) for record in records)
    if torn:
        found.append(f"{torn} records of the disk's log are torn")
    return found
