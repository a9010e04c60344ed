"""The queues that `killproof bench peers` knows: what each is made of, asked, and does not promise.

To add one: an entry here, pins in `killproof_evidence.pins`, and a driver of about fifty lines in
`drivers/` (docs/bench.md, "Peers"). What a queue does not promise is told in our words, from its
own documentation or source, with the place; it is no reproach: a queue that says at-most-once and
keeps it has promised nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from killproof_bench.peers.result import Delivery, Gap, Role
from killproof_evidence import pins
from killproof_evidence.isolated import PythonPeer

DRIVERS = Path(__file__).parent / "drivers"

#: How an arm's durability is set: at FULL like all others, or left as the queue comes.
POWER = "power"
SHIPPED = "shipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One contender."""

    name: str
    url: str
    claim_call: str
    ack_call: str
    durability_how: str
    gaps: tuple[Gap, ...]
    packages: PythonPeer | None  #: None: this interpreter, which has killproof.
    driver: str = ""  #: Its file in `drivers`; the name where empty.
    role: Role = "peer"
    delivery: Delivery = "at-least-once"
    #: `shipped` too where FULL is not the queue's default and no documented option sets it.
    settings: tuple[str, ...] = (POWER,)

    @property
    def driver_file(self) -> Path:
        """Return its driver."""
        return DRIVERS / f"{self.driver or self.name.replace('-', '_')}.py"

    @property
    def version(self) -> str:
        """Return the pinned version; empty for killproof and the reference."""
        return "" if self.packages is None else self.packages.packages[0].version


OURS = (
    Peer(
        name="killproof",
        role="killproof",
        url="https://pypi.org/project/killproof/",
        claim_call="Queue.ack_and_claim(lease): one transaction acks a job and claims the next",
        ack_call="the same call",
        durability_how="the file's own level: power syncs after the commit, outside the lock; "
        "process does not sync",
        gaps=(
            Gap(
                text="At-least-once for effects outside the file: a worker that dies between "
                "effect and ack does it again.",
                source="docs/semantics.md",
            ),
            Gap(
                text="One host: the file must not lie on a network file system.",
                source="docs/semantics.md",
            ),
        ),
        packages=None,
        settings=(POWER, SHIPPED),
    ),
    Peer(
        name="reference",
        driver="killproof",
        role="reference",
        url="docs/bench.md",
        claim_call="killproof's own statements, with SQLite's busy handler and sync in place of "
        "the turnstile and the barrier",
        ack_call="the same call",
        durability_how="PRAGMA synchronous = FULL, or NORMAL at process",
        gaps=(),
        packages=None,
        settings=(POWER, SHIPPED),
    ),
)

#: Measured unless `--only` says otherwise.
MAIN = (
    Peer(
        name="tinyjobs",
        url="https://github.com/Piergiuseppe/tinyjobs",
        claim_call="backend.claim(limit=1)",
        ack_call="backend.complete(job)",
        durability_how="it sets synchronous=NORMAL and documents no option; at power FULL is set "
        "with PRAGMA on its own connection",
        gaps=(
            Gap(
                text="Left as it comes, the last acknowledged jobs can be lost at a power cut.",
                source="tinyjobs 0.6.0, tinyjobs/backends/sqlite/connection.py (FILE_PRAGMAS)",
            ),
            Gap(
                text="At-least-once; a time limit of a synchronous task stops waiting for it, not "
                "the task.",
                source="https://github.com/Piergiuseppe/tinyjobs#what-you-get",
            ),
        ),
        packages=PythonPeer(name="tinyjobs", python="3.13", packages=pins.TINYJOBS),
        settings=(POWER, SHIPPED),
    ),
    Peer(
        name="localqueue",
        url="https://github.com/brunoportis/localqueue",
        claim_call="SimpleQueue.get(timeout=0)",
        ack_call="SimpleQueue.ack(job)",
        durability_how="its option DurabilityMode.DURABLE is synchronous=FULL; RELAXED, its "
        "default, is NORMAL",
        gaps=(
            Gap(
                text="At-least-once; with the default RELAXED the last commits can be lost at a "
                "power cut.",
                source="https://github.com/brunoportis/localqueue#delivery-guarantees",
            ),
        ),
        packages=PythonPeer(name="localqueue", python="3.13", packages=pins.LOCALQUEUE),
    ),
    Peer(
        name="litequeue",
        url="https://github.com/litements/litequeue",
        claim_call="LiteQueue.pop()",
        ack_call="LiteQueue.done(message_id)",
        durability_how="it sets synchronous=NORMAL and documents no option; at power FULL is set "
        "with PRAGMA on its public `conn`",
        gaps=(
            Gap(
                text="No lease: what a killed worker had popped stays locked until the program "
                "looks for it (list_locked, retry).",
                source="litequeue 0.9, litequeue.py (LiteQueue.list_locked)",
            ),
            Gap(
                text="No fencing: whoever knows the id may mark it done. No retry policy and no "
                "bound on attempts.",
                source="litequeue 0.9, litequeue.py (LiteQueue.done, LiteQueue.retry)",
            ),
        ),
        packages=PythonPeer(name="litequeue", python="3.13", packages=pins.LITEQUEUE),
        settings=(POWER, SHIPPED),
    ),
    Peer(
        name="huey",
        url="https://huey.readthedocs.io/",
        claim_call="SqliteStorage.dequeue()",
        ack_call="none: the dequeue deletes",
        durability_how="its option fsync=True is synchronous=FULL",
        delivery="at-most-once",
        gaps=(
            Gap(
                text="At-most-once: a task is deleted when it is taken, and a consumer killed "
                "while it runs has lost it. One transaction per job is less work than two.",
                source="huey 3.5.4, huey/storage.py (SqliteStorage.dequeue)",
            ),
        ),
        packages=PythonPeer(name="huey", python="3.13", packages=pins.HUEY),
    ),
    Peer(
        name="persist-queue",
        url="https://github.com/peter-wangxu/persist-queue",
        claim_call="SQLiteAckQueue.get(block=False)",
        ack_call="SQLiteAckQueue.ack(id=...)",
        durability_how="SQLite's default FULL, which it leaves alone; auto_resume=False, because a "
        "process that opens with it takes back what others hold",
        gaps=(
            Gap(
                text="Promises safety among threads, not among processes: a get reads and then "
                "writes in a transaction of its own, so two processes can get the same item.",
                source="persist-queue 1.1.0, README.rst (thread-safe) and "
                "persistqueue/sqlackqueue.py (SQLiteAckQueue._pop)",
            ),
            Gap(
                text="No lease: what a killed process held comes back when a queue is opened with "
                "auto_resume. No bound on attempts.",
                source="persist-queue 1.1.0, persistqueue/sqlackqueue.py (resume_unack_tasks)",
            ),
        ),
        packages=PythonPeer(name="persist-queue", python="3.13", packages=pins.PERSIST_QUEUE),
    ),
    Peer(
        name="simplebroker",
        url="https://github.com/VanL/simplebroker",
        claim_call="Queue.read_one()",
        ack_call="none: the read commits before it returns",
        durability_how="its option BROKER_SYNC_MODE=FULL, also its default",
        delivery="at-most-once",
        gaps=(
            Gap(
                text="read_one is at-most-once for the work: it says itself that a delivery is no "
                "proof of processing. At-least-once is its generator with a batch per commit.",
                source="https://github.com/VanL/simplebroker#readme, 'Delivery guarantees' "
                "(SB-DELIVERY-1, SB-DELIVERY-5)",
            ),
            Gap(
                text="A message queue: no lease, no retry policy, no dead letters.",
                source="https://github.com/VanL/simplebroker#readme",
            ),
        ),
        packages=PythonPeer(name="simplebroker", python="3.13", packages=pins.SIMPLEBROKER),
    ),
    Peer(
        name="potatoq",
        url="https://github.com/anze3db/potatoq",
        claim_call="consumer.fetch(0)",
        ack_call="consumer.complete(delivery, None, [])",
        durability_how="its broker option durable=True is synchronous=FULL; its default is NORMAL",
        gaps=(
            Gap(
                text="Alpha by its own word; at-least-once; without durable=True the last commits "
                "can be lost when the operating system crashes.",
                source="https://github.com/anze3db/potatoq#readme and potatoq 26.1a8, "
                "potatoq/brokers/sqlite.py",
            ),
        ),
        packages=PythonPeer(name="potatoq", python="3.13", packages=pins.POTATOQ),
    ),
)

MORE = (
    Peer(
        name="gigq",
        url="https://github.com/kpouianou/gigq",
        claim_call="Worker.process_one()",
        ack_call="the same call",
        durability_how="SQLite's default FULL, which it leaves alone",
        gaps=(
            Gap(
                text="No heartbeat and no fencing: a stuck job is taken back by its time limit, "
                "and a completion is matched by the job's id alone.",
                source="gigq 0.5.1, gigq/worker.py (_check_for_timeouts, _complete_job)",
            ),
            Gap(
                text="Made for a few workers on one file.",
                source="https://github.com/kpouianou/gigq#when-to-use-gigq",
            ),
        ),
        packages=PythonPeer(name="gigq", python="3.13", packages=pins.GIGQ),
    ),
    Peer(
        name="spoolctl",
        url="https://github.com/Ozhiaki/spoolctl",
        claim_call="store.claim_next(...), as its worker calls it",
        ack_call="store.record_success(...), as its worker calls it",
        durability_how="it sets synchronous=NORMAL and documents no option; at power FULL is set "
        "with PRAGMA on its connection",
        gaps=(
            Gap(
                text="Runs commands, not functions; what is measured here starts none. "
                "At-least-once; the job of a worker that hangs without dying is not taken back.",
                source="https://github.com/Ozhiaki/spoolctl#limitations",
            ),
        ),
        packages=PythonPeer(name="spoolctl", python="3.13", packages=pins.SPOOLCTL),
        settings=(POWER, SHIPPED),
    ),
    Peer(
        name="firm-queue",
        url="https://github.com/h11t-labs/firm",
        claim_call="claim_ready(limit=1)",
        ack_call="execute_claimed(job)",
        durability_how="it sets synchronous=NORMAL; at power FULL is set by a connect listener on "
        "its public engine",
        gaps=(
            Gap(
                text="At-least-once; there is no lease per job: claims of a dead worker come back "
                "when the supervisor prunes the process by its heartbeat.",
                source="firm-queue 1.0.0, firm/queue/recovery.py",
            ),
        ),
        packages=PythonPeer(name="firm-queue", python="3.13", packages=pins.FIRM_QUEUE),
    ),
    Peer(
        name="ballast.py",
        driver="ballast",
        url="https://github.com/Vibecoder012/ballast",
        claim_call="lease_next_job(db)",
        ack_call="execute_job(db, job, handlers): the handler and the done mark in one transaction",
        durability_how="it sets synchronous=NORMAL and documents no option; at power FULL is set "
        "by a subclass of its Database; it opens a connection per transaction",
        gaps=(
            Gap(
                text="Made for one worker thread in one process; sixteen processes are outside of "
                "what it promises. Leases are not taken back while it runs, only at a start.",
                source="https://github.com/Vibecoder012/ballast#scope--non-goals and ballast.py "
                "0.1.1, ballast/jobs.py",
            ),
        ),
        packages=PythonPeer(name="ballast.py", python="3.13", packages=pins.BALLAST),
        settings=(POWER, SHIPPED),
    ),
    Peer(
        name="unhinged",
        url="https://github.com/amackera/unhinged",
        claim_call="Engine.claim_task(qty=1)",
        ack_call="Engine.complete_run(run)",
        durability_how='its option synchronous="full", also its default',
        gaps=(
            Gap(
                text="A durable-execution engine, which does more per job than a queue. A step "
                "whose lease was taken back runs again.",
                source="https://github.com/amackera/unhinged#how-it-works",
            ),
        ),
        packages=PythonPeer(name="unhinged", python="3.13", packages=pins.UNHINGED),
    ),
    Peer(
        name="cairnq",
        url="https://github.com/Jannchie/cairnq",
        claim_call="SQLiteStore.claim(limit=1)",
        ack_call="SQLiteStore.complete(task)",
        durability_how="SQLite's default FULL, which it leaves alone",
        gaps=(
            Gap(
                text="At-least-once: a task that lost its lease is running elsewhere already, and "
                "a handler with effects is to look (ctx.lost_lease).",
                source="https://github.com/Jannchie/cairnq, Python README, "
                "'Running it in production'",
            ),
        ),
        packages=PythonPeer(name="cairnq", python="3.13", packages=pins.CAIRNQ),
    ),
    Peer(
        name="pulse-queue",
        url="https://github.com/abhignan-rakshith/pulse-queue",
        claim_call="Store.lease_next_task(worker)",
        ack_call="Store.complete_task(id, worker, epoch)",
        durability_how="it sets synchronous=NORMAL and documents no option; at power FULL is set "
        "with PRAGMA on its connection",
        gaps=(
            Gap(
                text="At-least-once; left as it comes, the last acknowledged tasks can be lost at "
                "a power cut.",
                source="https://github.com/abhignan-rakshith/pulse-queue#delivery-semantics and "
                "pulse-queue 0.1.0, pulse_queue/store.py (PRAGMAS)",
            ),
        ),
        packages=PythonPeer(name="pulse-queue", python="3.13", packages=pins.PULSE_QUEUE),
        settings=(POWER, SHIPPED),
    ),
    Peer(
        name="qler",
        url="https://github.com/gabu-quest/qler",
        claim_call="Queue.claim_job(worker, queues)",
        ack_call="Queue.complete_job(job, worker)",
        durability_how="its default is synchronous=NORMAL; at power FULL is set on a database that "
        "the caller passes in",
        gaps=(
            Gap(
                text="A worker that has lost its job is not told: complete_job returns as if it "
                "had been accepted. Claim and attempt row are separate transactions.",
                source="qler 0.5.1, qler/queue.py (complete_job, claim_job)",
            ),
        ),
        packages=PythonPeer(name="qler", python="3.13", packages=pins.QLER),
    ),
)

ALL = MAIN + MORE


def named(names: Sequence[str]) -> tuple[Peer, ...]:
    """Return these peers, in the catalog's order.

    Raises:
        ValueError: A name that is not here; says which are.
    """
    if list(names) == ["all"]:
        return ALL
    known = {peer.name: peer for peer in ALL}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such queue: {', '.join(unknown)}; there are {', '.join(known)}, all")
    return tuple(peer for peer in ALL if peer.name in names)
