"""The model of the protocol against the queue itself: the same steps, the same states.

Goal: what the engine `model` shows is worth something only if the queue moves as the model does.
Method: a seeded walk picks steps of the model; each is done on a real file as well, by two real
workers under one manual clock; after each step every row must be as the model says (state, fence,
deliveries, forgiven, crashed, whether its lease runs), and so must what the caller was told. The
controls take each guard away, from the model and from the queue, and the two part.

A late act is worth most where one guard alone refuses it: the job runs under another's lease (the
fence), it has ended under the same one (the state), its lease was prolonged (the deadline). A walk
seeks those it has not met. In some walks both workers are slots of one process, so that the owner
in the statements can not stand in for the fence.

Time passes for one lease or one job at a time, as in the model: the clerk moves its deadline. A
claim also promotes and reaps; the model follows it. The reaper's belief is what the queue's own
reaper reads, and it acts on it in a later transaction. That a worker looks, or is stopped, is
nothing on the file: what it does later is.
"""

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from killproof import Host, Job, Lease, LeaseLost, ManualClock, Queue
from killproof.core.jobs import _Holder
from killproof.operations import hold, hold_leased, replay, unhold
from killproof_chaos.engines import model_protocol as protocol
from killproof_chaos.engines.model_protocol import (
    EXPIRED,
    GUARDS,
    LIVE,
    ORPHAN,
    STALE,
    Move,
    Rules,
)
from killproof_chaos.engines.model_search import Scope, first
from killproof_chaos.targets import load
from killproof_evidence.contract import START

#: Longer than all that passes in a walk: a lease or a delay ends only when the clerk says so.
LONG = 10_000.0
#: So that each claim that takes the lock also reaps.
SWEEP = 0.2
STEPS = 120
#: How often a step is chosen beside others (9): what ends a walk seldom, what begins one often.
SELDOM = (
    *("ack", "ack_unheard", "complete", "cancel", "hold", "release", "snooze", "hold_leased"),
    *("crash", "pause"),
)
OFTEN = {
    **{"look": 20, "claim": 30, "enqueue": 20, "expire_running": 30, "suspect": 20, "replay": 3},
    **dict.fromkeys(SELDOM, 1),
}
#: A late act that one guard alone refuses, when no walk has met it yet, and later.
SOUGHT, MET = 200, 1
OUTCOMES = ("ack", "nack", "extend", "release", "snooze", "hold_leased", "complete")

#: A late act, what alone refuses it, and whether the workers are slots of one process.
Late = tuple[str, str, bool]


class Walk:
    """A state of the model, and the file that must agree with it."""

    def __init__(
        self, place: Path, rules: Rules, scope: Scope, seed: int, met: Counter[Late]
    ) -> None:
        self.path = place / f"{seed}.db"
        self.rules, self.scope = rules, scope
        self.random = random.Random(seed)
        self.state = first(scope)
        self.clock = ManualClock()
        self.start_ns = self.clock.monotonic_ns()
        self.clerk = self.open()
        #: Nobody crashes where all are slots of one process.
        self.is_one_process = scope.crashes == 0
        self.workers = [self.open()]
        for _ in range(scope.workers - 1):
            self.workers.append(self.workers[0] if self.is_one_process else self.open())
        self.met = met
        self.belief: tuple[Job, str, int] | None = None
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
            weights = [self.weight(name, move) for name, move in steps]
            ((name, move),) = self.random.choices(steps, weights)
            self.seen[name, move.done] += 1
            if word := self.refusal(name, move):
                self.met[name, word, self.is_one_process] += 1
            self.do(name, move)
            self.compare(f"{name} by {move.actor} on job {move.job}")

    def weight(self, name: str, move: Move) -> int:
        """How often a step is chosen: what is sought, and what leads there, before the rest."""
        if word := self.refusal(name, move):
            return MET if self.met[name, word, self.is_one_process] else SOUGHT
        if name in ("look", "claim") and self.has_stale_holder(move.job):
            return SOUGHT  # Under the new lease the old one is refused by its fence alone.
        if name == "extend" and self.state.belief is not None:
            return SOUGHT  # The reaper that believes the lease lost is refused by the deadline.
        return OFTEN.get(name, 9)

    def has_stale_holder(self, number: int) -> bool:
        return any(
            isinstance(worker, protocol.Lease)
            and (worker.job, worker.truth) == (number, STALE)
            and not worker.stopped
            for worker in self.state.workers
        )

    def refusal(self, name: str, move: Move) -> str:
        """What alone refuses a late act; empty: nothing, or more than one guard.

        It looks at what the model holds and not at what the model would do: a model without the
        guard seeks the same.
        """
        job, hand = self.state.jobs[move.job], self.state.belief
        if name in OUTCOMES:
            worker = self.state.workers[move.actor]
            assert isinstance(worker, protocol.Lease)
            if (job.state == "leased") == (job.fence == worker.fence):
                return ""
            if name == "ack" and job.state == "succeeded":
                return ""  # A repeated ack is no late one.
            return "fence" if job.state == "leased" else "state"
        if name == "reap" and hand is not None and job.state == "leased":
            if job.fence != hand.fence:
                # A lease that is not over either would be refused by its deadline as well.
                return "" if job.lease == LIVE and self.belief_is_timed(move.job) else "fence"
            return "deadline" if job.lease == LIVE else ""
        return ""

    def belief_is_timed(self, number: int) -> bool:
        """Whether a reaper believes that the time of this job's lease is over."""
        believed = self.state.belief
        return (
            believed is not None
            and believed.job == number
            and self.belief is not None
            and self.belief[1] == "expired"
        )

    def do(self, name: str, move: Move) -> None:
        """Do the step on the file, and take it in the model."""
        if name in ("promote", "claim"):
            getattr(self, name)(move)
            return
        if name in ("suspect", "reap"):
            getattr(self, name)(move)
        if name in ("expire", "expire_running"):
            self.move_deadline(move.job)
        elif name == "enqueue":
            self.enqueue(move)
        elif name == "crash":
            self.crash(move.actor)
            if move.state.jobs[move.job].lease == ORPHAN and self.belief_is_timed(move.job):
                self.move_deadline(move.job)
        elif name in ("cancel", "hold", "unhold", "replay"):
            self.person(name, self.ids[move.job])
        elif name not in ("look", "pause", "resume", "suspect", "reap"):
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
        entered = False

        def complete() -> None:
            nonlocal entered
            with queue.completing(lease):
                entered = True

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
        tell(calls[name], move)
        assert entered == (name == "complete" and move.done), "a stale lease enters no block"

    def suspect(self, move: Move) -> None:
        """Read which leases are lost, as the queue's reaper does, and act on one of them later."""
        with self.clerk.transaction() as tx:
            holders = [_Holder(*cast(Any, row)) for row in tx.rows(Queue.HOLDERS)]
            lost = [
                each for holder in holders for each in self.clerk._lost(tx, holder, len(self.ids))
            ]
        believed = {job.id: (job, outcome, before_ns) for job, outcome, before_ns in lost}
        jobs = enumerate(self.state.jobs)
        assert set(believed) == {
            self.ids[number] for number, job in jobs if job.lease in (EXPIRED, ORPHAN)
        }
        self.belief = believed[self.ids[move.job]]

    def reap(self, move: Move) -> None:
        """Act on what was read, whatever has happened since."""
        assert self.belief is not None
        job, outcome, before_ns = self.belief

        def take_back() -> None:
            with self.clerk.transaction() as tx:
                self.clerk._take_back(tx, job, outcome, before_ns)

        tell(take_back, move)

    def move_deadline(self, number: int) -> None:
        """Let the time of a lease be over, since before anybody has read anything.

        The model's belief keeps no moment. Where a lease is prolonged and then runs out once more,
        or its holder dies, the queue refuses the older belief and the model does not, which is as
        safe: the lease is over.
        """
        values = {"id": self.ids[number], "now_ns": self.start_ns}
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

    def reap_all(self) -> None:
        """Take back, in the model, what a claim finds lost in the file; it asks no other reaper."""
        belief, self.state = self.state.belief, self.state._replace(belief=None)
        while (found := next(protocol.suspect(self.rules, self.state), None)) is not None:
            self.state = found.state
            self.state = self.the("reap").state
        self.state = self.state._replace(belief=belief)

    def the(self, name: str, actor: int | None = None) -> Move:
        """Return the only way in which an action can happen now."""
        moves: Iterator[Move] = getattr(protocol, name)(self.rules, self.state)
        (move,) = [move for move in moves if actor is None or move.actor == actor]
        return move


def tell(call: Callable[[], object], move: Move) -> None:
    """Make a call that the queue must refuse exactly when the model does."""
    if move.done:
        call()
    else:
        with pytest.raises(LeaseLost):
            call()


LEASES = Scope(workers=2, jobs=2)
SLOTS = Scope(workers=2, jobs=2, crashes=0)
KEYS = Scope(workers=1, jobs=3, producers=2)
SCOPES = (LEASES, SLOTS, LEASES, SLOTS, KEYS)
WALKS = tuple((seed, SCOPES[seed % len(SCOPES)]) for seed in range(30))


#: Every late act that one guard alone refuses, in two processes and in one.
LATE = {
    (name, word, slots)
    for slots in (False, True)
    for name, words in (
        *((outcome, ("fence", "state")) for outcome in OUTCOMES),
        ("reap", ("fence", "deadline")),
    )
    for word in words
}


class Walked(NamedTuple):
    """What some walks have met."""

    seen: Counter[tuple[str, bool]]
    met: Counter[Late]


def walk_all(place: Path, *without: str, only: str = "") -> Walked:
    """Walk all walks; where only one act is of interest, they seek no other."""
    rules = Rules.of(load("killproof").contract, without=frozenset(without))
    walked = Walked(Counter(), Counter(late for late in LATE if only not in ("", late[0])))
    for seed, scope in WALKS:
        walk = Walk(place, rules, scope, seed, walked.met)
        with closing(walk):
            walk.run()
        walked.seen.update(walk.seen)
    return walked


def test_the_queue_moves_as_the_model_does(place: Path) -> None:
    walked = walk_all(place)

    offered = {action.name for action in protocol.offered(Rules.of(load("killproof").contract))}
    assert {name for name, done in walked.seen if done} == offered - {"effect"}
    assert {"claim", "reap", *OUTCOMES} <= {name for name, done in walked.seen if not done}
    assert LATE - {*walked.met} == set()


#: What the walks can not show, and why.
NOT_WALKED = {
    "complete.together": "the queue has no way to make the effect apart from its ack",
}


@pytest.mark.parametrize("guard", [name for name in GUARDS if name not in NOT_WALKED])
def test_a_model_without_a_guard_parts_from_the_queue(place: Path, guard: str) -> None:
    """The same seeds as above: without the guard alone, one of the walks must differ."""
    with pytest.raises((AssertionError, LeaseLost, pytest.fail.Exception)):
        walk_all(place, guard, only=guard.partition(".")[0])


HOLDER = "AND fence = :fence AND owner = :worker AND state = 'leased'"
DEADLINE = "AND lease_deadline_ns <= :before_ns"
FENCED = HOLDER.replace("fence = :fence AND ", "")


@pytest.mark.parametrize(
    ("statement", "text", "instead", "only"),
    [
        # The owner goes as well: of another process it would say the same as the fence.
        ("EXTEND", HOLDER, "AND state = 'leased'", "extend"),
        ("IS_CURRENT", HOLDER, "AND state = 'leased'", "complete"),
        ("END", HOLDER, "AND state = 'leased'", "nack"),
        # Of two slots of one process the fence alone tells which is meant.
        ("EXTEND", HOLDER, FENCED, "extend"),
        ("IS_CURRENT", HOLDER, FENCED, "complete"),
        ("END", HOLDER, FENCED, "nack"),
        # A job that is not leased has no owner and no deadline: all of them say the same.
        ("EXTEND", HOLDER, "AND fence = :fence", "extend"),
        ("IS_CURRENT", HOLDER, "AND fence = :fence", "complete"),
        ("END", f"{HOLDER}\n           {DEADLINE}", "AND fence = :fence", "nack"),
        ("END", DEADLINE, "", "reap"),
        ("END", "forgiven + (:outcome IN ('released', 'snoozed', 'held'))", "forgiven", ""),
        ("CLAIM", "fence = fence + 1", "fence = max(fence, 1)", ""),
    ],
)
def test_a_queue_without_a_guard_parts_from_the_model(
    place: Path, statement: str, text: str, instead: str, only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = getattr(Queue, statement)
    assert text in sql, f"{statement} has no {text!r} any more: the table must follow the code"
    monkeypatch.setattr(Queue, statement, sql.replace(text, instead))

    with pytest.raises((AssertionError, LeaseLost, pytest.fail.Exception, sqlite3.IntegrityError)):
        walk_all(place, only=only)
