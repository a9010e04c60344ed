"""The claim card of a timed layer: the conditions without which its ratio says nothing."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from killproof_bench.gate.blocks import ArmError, Load, environment
from killproof_bench.gate.checkout import Tree
from killproof_bench.gate.result import Block
from killproof_bench.result import ClaimCard, Correctness

#: Of a job's payload as JSON: what `arm.seed_jobs` puts in.
PAYLOAD_BYTES: Final = 96
_READ: Final = """
import json, sys, tempfile
from killproof import Host, Queue
from killproof.core import host
kept = []
def connect(path):
    kept.append(host.connect(path))
    return kept[-1]
with tempfile.TemporaryDirectory() as folder:
    with Queue(folder + "/q.db", durability="process", host=Host(connect=connect)) as queue:
        names = ("journal_mode", "synchronous", "wal_autocheckpoint")
        print(json.dumps([kept[-1].execute("PRAGMA " + name).fetchone()[0] for name in names]))
"""
_SYNCHRONOUS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")


def facts(tree: Tree) -> dict[str, str]:
    """Read back the pragmas of a connection as this revision opens it, in a process of its own.

    Raises:
        ArmError: The process failed.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", _READ],
        env=environment(tree, 0),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ArmError((done.stderr.strip().splitlines() or ["(no message)"])[-1])
    mode, synchronous, autocheckpoint = json.loads(done.stdout)
    return {
        "journal_mode": mode,
        "synchronous": _SYNCHRONOUS[synchronous],
        "autocheckpoint": str(autocheckpoint),
    }


def synced(filesystem: str) -> str:
    """Say what a sync costs where the arms ran.

    >>> synced("tmpfs"), synced("ext4")
    ('its code path alone: on a RAM file system a sync is free', 'its syncs are in the times')
    """
    if filesystem in ("tmpfs", "ramfs"):
        return "its code path alone: on a RAM file system a sync is free"
    return "its syncs are in the times"


def card(
    load: Load,
    kept: Sequence[Block],
    facts: dict[str, str],
    surroundings: dict[str, str],
    correctness: Correctness,
    *,
    checkpoints: int,
) -> ClaimCard:
    """Fill the card of all blocks that count."""
    return ClaimCard(
        operation="ack-and-claim: one transaction acks a job and claims the next",
        unit="ratio of microseconds per call, head over base",
        load_model="closed loop, no work between two calls",
        arrivals="none: all jobs are there before an arm begins",
        workers=f"{load.workers} x 1 process with one connection, fresh for each arm",
        batch=1,
        payload_bytes=PAYLOAD_BYTES,
        rows_live=load.backlog,
        rows_dead=0,
        journal_mode=facts["journal_mode"],
        synchronous=facts["synchronous"],
        autocheckpoint=int(facts["autocheckpoint"]),
        busy_policy="the revision's own",
        durability=f"{load.durability}, {synced(surroundings['filesystem'])}",
        filesystem=surroundings["filesystem"],
        cpu=surroundings["cpu"],
        python=surroundings["python"],
        sqlite=surroundings["sqlite"],
        seconds=4 * load.seconds * len(kept),
        n=sum(sum(block.ops) for block in kept),
        interval="95%, exact, of Walsh averages over blocks of four arms",
        checkpoints=checkpoints,
        late_or_skipped="not applicable: closed loop",
        steady=True,
        correctness=correctness.verdict,
    )
