"""The model of the protocol against the queue itself: the same steps, the same states.

Goal: what the engine `model` shows is worth something only if the queue moves as the model does.
Method: a seeded walk picks steps of the model; each is done on a real file as well, by two real
workers under one manual clock; after each step every row must be as the model says (state, fence,
deliveries, forgiven, crashed, whether its lease runs), and so must what the caller was told. The
control takes a guard away from the model, and the two part.

Time passes for one lease or one job at a time, as in the model: the clerk moves its deadline. A
claim also promotes and reaps; the model follows it.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from killproof import Host, Lease, LeaseLost, ManualClock, Queue
from killproof.operations import hold, hold_leased, replay, unhold
from killproof_chaos.engines import model_protocol as protocol
from killproof_chaos.engines.model_protocol import LIVE, ORPHAN, Move, Rules
from killproof_chaos.engines.model_search import Scope, first
from killproof_chaos.targets import load
from killproof_evidence.contract import START

#: Longer than all that passes in a walk: a lease or a delay ends only when the clerk says so.
LONG = 10_000.0
#: So that each claim that takes the lock also reaps.
SWEEP = 0.2
STEPS = 90
#: How often a step is chosen beside others (3): what ends a walk seldom, what begins one often.
SELDOM = ("ack", "ack_unheard", "complete", "cancel", "hold", "release", "snooze", "hold_leased")
OFTEN = {"look": 6, "claim": 9, "nack": 6, "enqueue": 9} | dict.fromkeys(SELDOM, 1)


class Walk:
    """A state of the model, and the file that must agree with it."""

    def __init__(self, place: Path, rules: Rules, scope: Scope, seed: int) -> None:
        self.path = place / f"{seed}.db"
        self.rules, self.scope = rules, scope
        self.random = random.Random(seed)
        self.state = first(scope)
        self.clock = ManualClock()
        self.clerk = self.open()
        self.workers = [self.open() for _ in range(scope.workers)]
        self.leases: dict[int, Lease] = {}
        self.ids: dict[int, int] = {}
        self.seen: Counter[tuple[str, bool]] = Counter()

    def open(self) -> Queue:
        host = Host(clock=self.clock, random=random.Random(1))
        return Queue(self.path, durability="process", host=host)

    def close(self) -> None:
        for queue in (self.clerk, *self.workers):
            queue.close()

    # The walk.

    def run(self) -> None:
        for _ in range(STEPS):
            steps = [
                (action.name, move)
                for action in protocol.offered(self.rules)
                for move in action.moves(self.rules, self.state)
            ]
            if not steps:
                return  # Every job has succeeded.
            weights = [OFTEN.get(name, 3) if move.done else 6 for name, move in steps]
            ((name, move),) = self.random.choices(steps, weights)
            self.seen[name, move.done] += 1
            self.do(name, move)
            self.compare(f"{name} by {move.actor} on job {move.job}")

    def do(self, name: str, move: Move) -> None:
        """Do the step on the file, and take it in the model."""
        if name in ("promote", "claim", "suspect"):
            getattr(self, name)(move)
            return
        if name in ("expire", "expire_running"):
            self.move_deadline(move.job)
        elif name == "enqueue":
            self.enqueue(move)
        elif name == "crash":
            self.crash(move.actor)
        elif name in ("cancel", "hold", "unhold", "replay"):
            self.person(name, self.ids[move.job])
        elif name not in ("look", "pause", "resume"):
            self.outcome(name, move)
        self.state = move.state

    def compare(self, step: str) -> None:
        for number, job in enumerate(self.state.jobs):
            if job.state == START:
                continue
            found = self.clerk.get(self.ids[number])
            assert found is not None
            got = (found.state, found.fence, found.deliveries, found.forgiven, found.crashes > 0)
            assert got == job[:5], step
            if job.state == "leased" and job.lease != ORPHAN:
                runs = self.deadline(number) > self.clock.monotonic_ns()
                assert runs == (job.lease == LIVE), step

    # Steps on the file.

    def enqueue(self, move: Move) -> None:
        new = self.state.jobs[move.job].state == START
        free = move.job if new else sum(job.state != START for job in self.state.jobs)
        scheduled = move.state.jobs[move.job].state == "scheduled" and new
        job_id = self.clerk.enqueue(
            f"kind{free}",
            {},
            delay=LONG if scheduled else 0,
            key="k" if self.state.doubts else None,
            max_attempts=self.rules.max_attempts,
            lease=LONG,
            retry=f"fixed:{LONG}",
        )
        assert self.ids.setdefault(move.job, job_id) == job_id

    def crash(self, who: int) -> None:
        """Drop a worker as the kernel does: its byte is free, nothing is given back."""
        victim = self.workers[who]
        if victim.database.liveness is not None:
            victim.database.liveness.close()
        victim._identity = None
        victim.close()
        self.workers[who] = self.open()

    def person(self, name: str, job_id: int) -> None:
        if name == "cancel":
            assert self.clerk.cancel(job_id)
        elif name == "replay":
            assert replay(self.clerk, [job_id]).moved == (job_id,)
        else:
            assert {"hold": hold, "unhold": unhold}[name](self.clerk, job_id)

    def outcome(self, name: str, move: Move) -> None:
        """Tell the queue how a job ended; it must refuse exactly when the model does."""
        queue, lease = self.workers[move.actor], self.leases[move.actor]

        def complete() -> None:
            with queue.completing(lease) as tx:
                tx.execute("SELECT 1")

        calls: dict[str, Callable[[], object]] = {
            "ack": lambda: queue.ack(lease),
            "ack_unheard": lambda: queue.ack(lease),
            "complete": complete,
            "nack": lambda: queue.nack(lease, "no"),
            "release": lambda: queue.release(lease),
            "snooze": lambda: queue.snooze(lease, LONG),
            "hold_leased": lambda: hold_leased(queue, lease, "in doubt"),
            "extend": lambda: queue.extend(lease),
        }
        if move.done:
            calls[name]()
        else:
            with pytest.raises(LeaseLost):
                calls[name]()

    def move_deadline(self, number: int) -> None:
        values = {"id": self.ids[number], "now_ns": self.clock.monotonic_ns()}
        with self.clerk.transaction() as tx:
            tx.execute("UPDATE job SET lease_deadline_ns = :now_ns WHERE id = :id", values)

    def deadline(self, number: int) -> int:
        with self.clerk.transaction() as tx:
            cursor = tx.execute(
                "SELECT lease_deadline_ns FROM job WHERE id = :id", {"id": self.ids[number]}
            )
            (found,) = cursor.fetchone()
        return int(found)

    # Steps that do more on the file than in the model.

    def promote(self, move: Move) -> None:
        values = {"id": self.ids[move.job], "now_ms": self.clock.now_ms()}
        with self.clerk.transaction() as tx:
            tx.execute("UPDATE job SET due_ms = :now_ms WHERE id = :id", values)
        self.clock.advance(SWEEP)
        assert self.clerk.claim(["a kind that nobody has"]) is None
        self.state = move.state
        self.reap_all()

    def claim(self, move: Move) -> None:
        self.clock.advance(SWEEP)
        self.reap_all()
        lease = self.workers[move.actor].claim([f"kind{move.job}"])
        now = self.the("claim", actor=move.actor)
        assert (lease is not None) == now.done
        if lease is not None:
            assert lease.job.id == self.ids[move.job]
            self.leases[move.actor] = lease
        self.state = now.state

    def suspect(self, move: Move) -> None:
        assert self.clerk.reap() == self.reap_all()

    def reap_all(self) -> int:
        """Take back, in the model, what a reaper finds in the file."""
        reaped = 0
        self.state = self.state._replace(belief=None)
        while (found := next(protocol.suspect(self.rules, self.state), None)) is not None:
            self.state = found.state
            self.state = self.the("reap").state
            reaped += 1
        self.seen["reap", True] += reaped > 0
        return reaped

    def the(self, name: str, actor: int | None = None) -> Move:
        """Return the only way in which an action can happen now."""
        moves: Iterator[Move] = getattr(protocol, name)(self.rules, self.state)
        (move,) = [move for move in moves if actor is None or move.actor == actor]
        return move


@contextmanager
def walking(place: Path, scope: Scope, seed: int, *without: str) -> Iterator[Walk]:
    contract = load("killproof").contract
    with ExitStack() as stack:
        walk = Walk(place, Rules.of(contract, without=frozenset(without)), scope, seed)
        stack.callback(walk.close)
        yield walk


LEASES = Scope(workers=2, jobs=2)
KEYS = Scope(workers=1, jobs=3, producers=2)
WALKS = tuple((seed, KEYS if seed % 4 == 3 else LEASES) for seed in range(20))


def test_the_queue_moves_as_the_model_does(place: Path) -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for seed, scope in WALKS:
        with walking(place, scope, seed) as walk:
            walk.run()
            seen += walk.seen

    offered = {action.name for action in protocol.offered(walk.rules)}
    assert {name for name, done in seen if done} == offered - {"effect"}
    refused = {"claim", "ack", "nack", "extend", "release", "snooze", "hold_leased", "complete"}
    assert refused <= {name for name, done in seen if not done}


@pytest.mark.parametrize(
    "guard",
    ["claim.count", "claim.fence", "nack.bound", "reap.bound", "nack.state", "cancel.state"],
)
def test_a_model_without_a_guard_parts_from_the_queue(place: Path, guard: str) -> None:
    """The walks are those of the test above: without the guard alone, one of them must differ."""

    def walk_all() -> None:
        for seed, scope in WALKS:
            with walking(place, scope, seed, guard) as walk:
                walk.run()

    with pytest.raises((AssertionError, LeaseLost)):
        walk_all()
