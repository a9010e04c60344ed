"""The processes of a recorded run: producers, and a program that checkpoints in between.

`python -m killproof_chaos.engines.disk_client produce TARGET PLACE` plays the operations of
the file `$KILLPROOF_OPERATIONS` as fast as the queue answers, once the file `$KILLPROOF_GO` is
there, and so everybody at work. `... checkpoint DATABASE` is another program: it copies the log
back and lets it start anew, which a queue with a large log would hardly do within a run of a
second. It is never PASSIVE, and never at synchronous=OFF.
"""

import json
import os
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.engines.roles import stop_on_sigterm
from killproof_chaos.recording import Recorder, open_recorder, process_name
from killproof_chaos.workload import Job
from killproof_evidence.evidence import payload_digest
from killproof_evidence.target import Client

CHECKPOINT_SECONDS: Final = 0.01
LOOK_SECONDS: Final = 0.005
#: Without work the first worker would take all jobs while the others still sleep.
WORK: Final = "sleep:0.003"
#: Between two operations of a producer, for the same reason.
THINK_SECONDS: Final = 0.002
MODES: Final = ("RESTART", "FULL", "TRUNCATE")


def operations(
    seed: int, producers: int, jobs: int, *, cancels: bool
) -> list[list[dict[str, Any]]]:
    """Return what each producer does, the same for the same seed.

    Every kind of acknowledgement occurs: plain jobs, jobs whose effect is a row, keys that two
    producers enqueue at once, failures that retry or are final, and cancelled ones.

    Args:
        seed: decides everything.
        producers: among how many the jobs are dealt.
        jobs: so many in all.
        cancels: whether the target can cancel.
    """
    source = random.Random(f"disk {seed}")
    lists: list[list[dict[str, Any]]] = [[] for _ in range(producers)]
    for number in range(jobs):
        mine = lists[number % producers]
        draw = source.random()
        # Dead letters late: each image that holds one costs a snapshot of all its jobs.
        last = ["permanent"] if number >= jobs * 3 // 4 and draw > 0.7 else [WORK]
        script = ["raise", WORK] if draw < 0.06 else last
        job: dict[str, Any] = {
            "id": f"j{number}",
            "kind": source.choice(("report", "webhook")),
            "script": script,
            "sink": "table" if source.random() < 0.4 else "log",
            "body_bytes": source.choice((20, 80, 400)),
        }
        if source.random() < 0.15:
            job["key"] = f"key-{number}"
            other = lists[(number + 1) % producers]
            other.append({"f": "enqueue", "job": job})
        mine.append({"f": "enqueue", "job": job})
        if cancels and source.random() < 0.1:
            later = job | {"id": f"c{number}", "delay_ms": 60_000}
            later.pop("key", None)
            mine += [{"f": "enqueue", "job": later}, {"f": "cancel", "of": later["id"]}]
    return lists


def produce(name: str, place: Path) -> None:
    """Play this producer's operations to the end."""
    stopped = stop_on_sigterm()
    path = Path(os.environ["KILLPROOF_OPERATIONS"])
    recorder = open_recorder(process_name())
    ids: dict[str, int | str] = {}
    go = Path(os.environ["KILLPROOF_GO"])
    with closing(targets.load(name).client(place)) as client:
        while not go.exists() and not stopped.wait(LOOK_SECONDS):
            pass
        for operation in json.loads(path.read_text(encoding="utf-8")):
            if stopped.wait(THINK_SECONDS):
                break
            _perform(client, recorder, operation, ids)
    recorder.close()


def _perform(
    client: Client, recorder: Recorder, operation: dict[str, Any], ids: dict[str, int | str]
) -> None:
    if operation["f"] == "cancel":
        known = ids.get(operation["of"])
        if known is not None:
            recorder.call(
                "cancel",
                lambda: client.cancel(known),
                job=known,
                told=lambda result: {"value": result},
            )
        return
    job = Job(**{**operation["job"], "script": tuple(operation["job"]["script"])})
    payload, options = job.payload(), job.options()
    ids[job.id] = recorder.call(
        "enqueue",
        lambda: client.enqueue(job.kind, payload, **options),
        value=job.summary() | {"digest": payload_digest(payload)},
        told=lambda result: {"job": result},
    )


def checkpoint(database: Path) -> None:
    """Checkpoint again and again until SIGTERM, each time in another mode."""
    stopped = stop_on_sigterm()
    number = 0
    with closing(sqlite3.connect(database, timeout=1, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = FULL")
        while not stopped.wait(CHECKPOINT_SECONDS):
            db.execute(f"PRAGMA wal_checkpoint({MODES[number % len(MODES)]})").fetchall()
            number += 1


def main() -> None:
    """Be the process that the command line names."""
    role, *rest = sys.argv[1:]
    if role == "checkpoint":
        checkpoint(Path(rest[0]))
    else:
        produce(rest[0], Path(rest[1]))


if __name__ == "__main__":
    main()
