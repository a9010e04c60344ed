"""The lease protocol as a table of small actions: who may do what, when, and what it changes.

Each action is one transaction, named like the operation. A state is a tuple: the rows of the jobs,
what each worker knows, what the reaper believes, and which producers do not know what became of
their call. Nothing else can influence a step.

What an actor has read is kept apart from what the row says now. A worker *looks* and claims later;
a reaper *suspects* and reaps later; a worker that was stopped past its lease wakes up and goes on.
What makes late acts harmless are the guards, and each of them can be taken away by its name.

Fields called ghosts are the truth, not columns: no guard reads them, only the promises of
`model_promises.py` do, and what the surroundings do to the holder of a lease (a crash, its time).

It is the protocol and not the code. It leaves out what the protocol does not rest on: the owner in
the statements' WHERE (the fence alone must do), due times and their order, and the SQL.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from killproof_evidence.contract import START, TERMINAL, Contract

#: Where a lease stands: it runs, its time is over, or its holder died and the kernel told.
LIVE: Final = "live"
EXPIRED: Final = "expired"
ORPHAN: Final = "orphan"
#: The truth about a lease that a worker holds.
STALE: Final = 0
CURRENT: Final = 1
ACKED: Final = 2  #: its own ack is in the file, and the worker was never told
WAITING: Final = frozenset({"blocked", "scheduled", "available", "retryable", "held"})
ALIVE: Final = WAITING | {"leased"}
#: Two attempts show a first one, a last one, and the bound; each more makes the space larger.
ATTEMPTS_MAX: Final = 2
UNLIMITED: Final = -1
NOBODY: Final = -1

#: Each guard, and what it keeps from happening.
GUARDS: Final[Mapping[str, str]] = {
    "claim.state": "a claim tests again that the job it saw is still available",
    "claim.count": "a claim counts itself",
    "claim.fence": "a claim raises the fence",
    "ack.fence": "an ack shows the fence of its lease",
    "ack.state": "an ack asks that the job is leased",
    "nack.fence": "a nack shows the fence of its lease",
    "nack.state": "a nack asks that the job is leased",
    "nack.bound": "the last failed attempt ends in the dead letters",
    "extend.fence": "an extension shows the fence of its lease",
    "extend.state": "an extension asks that the job is leased",
    "release.fence": "a release shows the fence of its lease",
    "release.state": "a release asks that the job is leased",
    "snooze.fence": "a snooze shows the fence of its lease",
    "snooze.state": "a snooze asks that the job is leased",
    "complete.fence": "effect and ack together show the fence of their lease",
    "complete.state": "effect and ack together ask that the job is leased",
    "complete.together": "the effect and the ack are one transaction",
    "hold_leased.fence": "who puts its job aside shows the fence of its lease",
    "hold_leased.state": "who puts its job aside asks that the job is leased",
    "reap.fence": "a reaper repeats which lease it believes lost",
    "reap.deadline": "a reaper repeats that the deadline has not moved",
    "reap.bound": "the last lost attempt ends in the dead letters",
    "reap.expiry": "a reaper looks at deadlines, not only for dead owners",
    "cancel.state": "a cancel leaves alone what has ended",
    "replay.state": "a replay moves dead letters and never a success",
    "replay.key": "a replay leaves alone a key that a living job has",
    "enqueue.key": "at most one living job has a key, whoever races",
}


class Job(NamedTuple):
    """A row, and three ghosts."""

    state: str = START  #: the contract's word
    fence: int = 0
    deliveries: int = 0
    forgiven: int = 0
    crashed: bool = False  #: a lease of it was lost before
    lease: str = ""  #: of a leased job: live, expired or orphan
    runs: int = 0  #: ghost: starts since it was put in or replayed, but for those given back
    called_off: bool = False  #: ghost: a cancel was acknowledged, and no replay since
    effects: int = 0  #: ghost: how often its effect is in the file

    @property
    def attempt(self) -> int:
        """The number of the current or latest attempt, 1-based; 0 before the first."""
        return self.deliveries - self.forgiven


class Look(NamedTuple):
    """A worker that saw a job available, and has not claimed it yet."""

    job: int


class Lease(NamedTuple):
    """What a worker has in hand; the row may have gone on."""

    job: int
    fence: int
    stopped: bool = False  #: SIGSTOP, a hang, a suspended machine: it does nothing until it wakes
    effected: bool = False  #: its effect is in the file; only where effect and ack are apart
    live: bool = True  #: ghost: its time runs, and nobody with a right to has ended it
    truth: int = CURRENT  #: ghost: CURRENT, STALE or ACKED


class Belief(NamedTuple):
    """A lease that the reaper read as lost."""

    job: int
    fence: int


class State(NamedTuple):
    """Everything that a step can depend on."""

    jobs: tuple[Job, ...]
    workers: tuple[Look | Lease | None, ...]
    belief: Belief | None = None
    doubts: tuple[int | None, ...] = ()  #: of each producer: the job of a call without an answer
    crashes: int = UNLIMITED  #: how many more may happen


class Move(NamedTuple):
    """One step that is possible."""

    actor: int  #: number of the worker or producer; NOBODY for the others
    job: int
    state: State  #: after it
    done: bool = True  #: False: refused, and told so


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol of one contract, with all its guards or without some."""

    contract: Contract  #: the target's own: its edges are those that P7 reads
    max_attempts: int
    retry: str  #: the state in which a failed attempt waits
    lost_again: str  #: the state of a job whose lease is lost, from the second time on
    without: frozenset[str] = frozenset()
    people: bool = True  #: whether people cancel, hold and replay
    words: frozenset[str] = field(default_factory=frozenset)  #: the contract's states

    @classmethod
    def of(
        cls,
        contract: Contract,
        *,
        without: frozenset[str] = frozenset(),
        max_attempts: int | None = None,
        people: bool = True,
    ) -> "Rules":
        """Take from the contract what its queue does, and in which words.

        A queue without the word `retryable` lets failures wait in `scheduled`, or offers them at
        once; one without `cancelled` is never asked to cancel. A contract without edges is read
        as one with all words.

        Args:
            contract: of the target.
            without: guards to take away.
            max_attempts: executions in all; None: the contract's own, at most ATTEMPTS_MAX.
            people: whether people cancel, hold and replay; without them fewer states are reached.

        Raises:
            ValueError: a guard is unknown; the message names it and the remedy.
        """
        for name in without:
            if name not in GUARDS:
                raise ValueError(f"guard {name!r} is unknown: use {', '.join(GUARDS)}")
        edges = contract.edges
        words = frozenset(edges) | {new for targets in edges.values() for new in targets}
        waits = [word for word in ("retryable", "scheduled") if word in words or not edges]
        retry = waits[0] if waits else "available"
        parameters = contract.parameters
        declared = parameters.get("max_attempts")
        own = declared if isinstance(declared, int) else ATTEMPTS_MAX
        return cls(
            contract=contract,
            max_attempts=max_attempts or max(1, min(own, ATTEMPTS_MAX)),
            retry=retry,
            lost_again="available" if parameters.get("crash_later") == "immediate" else retry,
            without=without,
            people=people,
            words=words,
        )

    def knows(self, *states: str) -> bool:
        """Say whether the contract has these words; without edges it has all."""
        return not self.contract.edges or self.words.issuperset(states)


Item = TypeVar("Item")
Moves = Callable[[Rules, State], Iterator[Move]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A row of the table."""

    name: str
    moves: Moves  #: all ways in which it can happen in a state
    #: What surely happens some day if it stays possible: actions of one word are one promise of the
    #: surroundings. None: it may happen, or not.
    must: str | None = None
    #: Whether it can still happen for ever once the faults, and the whims of people, have ended.
    lasting: bool = True
    words: tuple[str, ...] = ()  #: states that a contract needs for it
    person: bool = False  #: a person does it, or must decide about what it leaves


def put(row: tuple[Item, ...], index: int, value: Item) -> tuple[Item, ...]:
    """Return the tuple with one value replaced."""
    return (*row[:index], value, *row[index + 1 :])


def changed(state: State, number: int, job: Job) -> State:
    """Return the state with one job replaced."""
    jobs, workers, belief, doubts, crashes = state
    return State(put(jobs, number, job), workers, belief, doubts, crashes)


def known(state: State, who: int, what: Look | Lease | None) -> State:
    """Return the state with one worker's knowledge replaced."""
    jobs, workers, belief, doubts, crashes = state
    return State(jobs, put(workers, who, what), belief, doubts, crashes)


def ended(state: State, number: int, *, rightly: bool = False) -> State:
    """Return the state in which the lease on a job is no longer current.

    Args:
        state: before.
        number: the job's.
        rightly: it is over by right, not by a belief: it does not run on.
    """
    for who, worker in current(state, number):
        lost = worker._replace(truth=STALE, live=worker.live and not rightly)
        state = known(state, who, lost)
    return state


def current(state: State, number: int) -> list[tuple[int, Lease]]:
    """Return who has the current lease of a job in hand: nobody, or one."""
    return [
        (who, worker)
        for who, worker in enumerate(state.workers)
        if type(worker) is Lease and worker.job == number and worker.truth == CURRENT
    ]


def working(state: State) -> Iterator[tuple[int, Lease, Job]]:
    """Yield each worker that has a lease in hand and is not stopped."""
    for number, worker in enumerate(state.workers):
        if type(worker) is Lease and not worker.stopped:
            yield number, worker, state.jobs[worker.job]


def holder_runs(state: State, number: int) -> bool:
    """Say whether the holder of a job's lease lives and is not stopped."""
    return any(not lease.stopped for _, lease in current(state, number))


def accepted(rules: Rules, operation: str, job: Job, lease: Lease) -> bool:
    """Say whether the WHERE of an outcome finds its row."""
    return (job.fence == lease.fence or f"{operation}.fence" in rules.without) and (
        job.state == "leased" or f"{operation}.state" in rules.without
    )


# Putting in.


def enqueue(rules: Rules, state: State) -> Iterator[Move]:
    """Put a job in: without a key into the next row, or with a key that all producers share."""
    free = next((n for n, job in enumerate(state.jobs) if job.state == START), None)
    if state.doubts:
        yield from _enqueue_key(rules, state, free)
    elif free is not None:
        for word in ("available", "scheduled"):
            if rules.knows(word):
                yield Move(NOBODY, free, changed(state, free, Job(state=word)))


def _enqueue_key(rules: Rules, state: State, free: int | None) -> Iterator[Move]:
    """Put in under the key, or return the living job that has it; the answer may be lost."""
    living = next((n for n, job in enumerate(state.jobs) if job.state in ALIVE), None)
    for producer, doubt in enumerate(state.doubts):
        if living is not None and "enqueue.key" not in rules.without:
            number, after = living, state
        elif free is not None:
            number, after = free, changed(state, free, Job(state="available"))
        else:
            continue
        told = after._replace(doubts=put(state.doubts, producer, None))
        if told != state:
            yield Move(producer, number, told)
        if doubt is None:
            unheard = after._replace(doubts=put(state.doubts, producer, number))
            yield Move(producer, number, unheard, done=False)


def promote(rules: Rules, state: State) -> Iterator[Move]:
    """Make available what has fallen due."""
    for number, job in enumerate(state.jobs):
        if job.state in ("scheduled", "retryable"):
            yield Move(NOBODY, number, changed(state, number, job._replace(state="available")))


# Taking out.


def look(rules: Rules, state: State) -> Iterator[Move]:
    """See that a job is available; somebody else may be faster."""
    for number, job in enumerate(state.jobs):
        if job.state == "available":
            for who, worker in enumerate(state.workers):
                if worker is None:
                    yield Move(who, number, known(state, who, Look(number)))


def claim(rules: Rules, state: State) -> Iterator[Move]:
    """Take the job that was seen: raise its fence, count the delivery, start the lease."""
    for who, worker in enumerate(state.workers):
        if type(worker) is not Look:
            continue
        number = worker.job
        job = state.jobs[number]
        if job.state != "available" and "claim.state" not in rules.without:
            given_up = known(state, who, None)
            yield Move(who, number, given_up, done=False)
            continue
        taken = job._replace(
            state="leased",
            lease=LIVE,
            fence=job.fence + ("claim.fence" not in rules.without),
            deliveries=job.deliveries + ("claim.count" not in rules.without),
            runs=job.runs + 1,
        )
        after = changed(ended(state, number), number, taken)
        yield Move(who, number, known(after, who, Lease(number, taken.fence)))


# Working.


def _outcome(
    operation: str, end: Callable[[Rules, Job], Job]
) -> Callable[[Rules, State], Iterator[Move]]:
    """Make an outcome: the one way out of `leased`, refused where the WHERE finds no row."""

    def moves(rules: Rules, state: State) -> Iterator[Move]:
        for who, lease, job in working(state):
            done = accepted(rules, operation, job, lease)
            after = known(state, who, None)
            if done:
                over = end(rules, job)._replace(lease="")
                after = changed(ended(after, lease.job), lease.job, over)
            yield Move(who, lease.job, after, done)

    return moves


def _failed(rules: Rules, job: Job) -> Job:
    used_up = job.attempt >= rules.max_attempts and "nack.bound" not in rules.without
    return job._replace(state="dead" if used_up else rules.retry)


def _given_back(word: str) -> Callable[[Rules, Job], Job]:
    """Return what makes a delivery no attempt."""
    return lambda rules, job: job._replace(
        state=word, forgiven=job.forgiven + 1, runs=max(0, job.runs - 1)
    )


def ack(rules: Rules, state: State) -> Iterator[Move]:
    """Finish a job; repeated after a lost answer it changes nothing and is told yes."""
    for who, lease, job in working(state):
        idle = known(state, who, None)
        if accepted(rules, "ack", job, lease):
            over = job._replace(state="succeeded", lease="")
            yield Move(who, lease.job, changed(ended(idle, lease.job), lease.job, over))
        else:
            repeated = job.state == "succeeded" and job.fence == lease.fence
            yield Move(who, lease.job, idle, done=repeated)


def ack_unheard(rules: Rules, state: State) -> Iterator[Move]:
    """Finish a job, and never hear of it: the worker still has its lease in hand."""
    for who, lease, job in working(state):
        if accepted(rules, "ack", job, lease):
            over = job._replace(state="succeeded", lease="")
            after = changed(ended(state, lease.job), lease.job, over)
            truth = ACKED if lease.truth == CURRENT else lease.truth
            yield Move(who, lease.job, known(after, who, lease._replace(truth=truth, live=False)))


def extend(rules: Rules, state: State) -> Iterator[Move]:
    """Prolong a lease by its full length from now, also one whose time is over unnoticed."""
    for who, lease, job in working(state):
        if not accepted(rules, "extend", job, lease):
            lost = known(state, who, None)
            yield Move(who, lease.job, lost, done=False)
        elif job.lease != LIVE or lease.truth != CURRENT:
            longer = lease._replace(live=lease.live or lease.truth == CURRENT)
            after = known(state, who, longer)
            leased = job._replace(lease=LIVE) if job.state == "leased" else job
            yield Move(who, lease.job, changed(after, lease.job, leased))


def effect(rules: Rules, state: State) -> Iterator[Move]:
    """Make the effect before the ack, in a transaction of its own: what the guard forbids."""
    if "complete.together" in rules.without:
        for who, lease, job in working(state):
            if not lease.effected:
                made = job._replace(effects=job.effects + 1)
                after = known(state, who, lease._replace(effected=True))
                yield Move(who, lease.job, changed(after, lease.job, made))


def complete(rules: Rules, state: State) -> Iterator[Move]:
    """Make the effect and finish the job in one transaction."""
    apart = "complete.together" in rules.without
    for who, lease, job in working(state):
        if apart and not lease.effected:
            continue
        done = accepted(rules, "complete", job, lease)
        after = known(state, who, None)
        if done:
            over = job._replace(state="succeeded", lease="", effects=job.effects + (not apart))
            after = changed(ended(after, lease.job), lease.job, over)
        yield Move(who, lease.job, after, done)


# Death and silence.


def crash(rules: Rules, state: State) -> Iterator[Move]:
    """Kill a worker that has a lease in hand: its byte is free, and its successor knows nothing."""
    if state.crashes == 0:
        return
    left = state.crashes - (state.crashes != UNLIMITED)
    for who, lease in enumerate(state.workers):
        if type(lease) is Lease:
            dead = known(state, who, None)._replace(crashes=left)
            if lease.truth == CURRENT:
                job = state.jobs[lease.job]
                dead = changed(dead, lease.job, job._replace(lease=ORPHAN))
            yield Move(who, lease.job, dead)


def pause(rules: Rules, state: State) -> Iterator[Move]:
    """Stop a worker, perhaps for ever; one at least goes on, as P17 asks."""
    stopped = sum(type(worker) is Lease and worker.stopped for worker in state.workers)
    if stopped < len(state.workers) - 1:
        for who, lease, _ in working(state):
            yield Move(who, lease.job, known(state, who, lease._replace(stopped=True)))


def resume(rules: Rules, state: State) -> Iterator[Move]:
    """Let a stopped worker go on with what it knows."""
    for who, lease in enumerate(state.workers):
        if type(lease) is Lease and lease.stopped:
            yield Move(who, lease.job, known(state, who, lease._replace(stopped=False)))


def _expire(state: State, number: int) -> Move:
    over = changed(state, number, state.jobs[number]._replace(lease=EXPIRED))
    for who, lease in current(state, number):
        over = known(over, who, lease._replace(live=False))
    return Move(NOBODY, number, over)


def expire(rules: Rules, state: State) -> Iterator[Move]:
    """Let the time of a lease run out whose holder is stopped; of a dead one the kernel tells."""
    for number, job in enumerate(state.jobs):
        if job.lease == LIVE and not holder_runs(state, number):
            yield _expire(state, number)


def expire_running(rules: Rules, state: State) -> Iterator[Move]:
    """Let the time of a lease run out under a holder that works: its heartbeat came too late."""
    for number, job in enumerate(state.jobs):
        if job.lease == LIVE and holder_runs(state, number):
            yield _expire(state, number)


def suspect(rules: Rules, state: State) -> Iterator[Move]:
    """Read that a lease is lost: the byte of its owner is free, or its time is over."""
    if state.belief is None:
        for number, job in enumerate(state.jobs):
            late = job.lease == EXPIRED and "reap.expiry" not in rules.without
            if job.lease == ORPHAN or late:
                yield Move(NOBODY, number, state._replace(belief=Belief(number, job.fence)))


def reap(rules: Rules, state: State) -> Iterator[Move]:
    """Take a lost lease back, if what is believed is still so; it used up an attempt.

    A belief keeps the fence and no moment. A lease that was prolonged meanwhile, and is over again,
    is taken back here, and refused by a queue that repeats the old deadline: this is the weaker
    rule, so what never happens under it never happens under that.
    """
    if state.belief is None:
        return
    number, fence = state.belief
    job, after = state.jobs[number], state._replace(belief=None)
    same = (job.state == "leased" and job.fence == fence) or "reap.fence" in rules.without
    if not same or (job.lease == LIVE and "reap.deadline" not in rules.without):
        yield Move(NOBODY, number, after, done=False)
        return
    word = rules.lost_again if job.crashed else "available"
    if job.attempt >= rules.max_attempts and "reap.bound" not in rules.without:
        word = "dead"
    lost = job._replace(state=word, lease="", crashed=True)
    yield Move(NOBODY, number, changed(ended(after, number), number, lost))


# What a person does.


def cancel(rules: Rules, state: State) -> Iterator[Move]:
    """Call a job off, waiting or running; what has ended stays as it is."""
    for number, job in enumerate(state.jobs):
        lives = job.state in ALIVE
        if lives or ("cancel.state" in rules.without and job.state in TERMINAL - {"cancelled"}):
            off = job._replace(state="cancelled", lease="", called_off=True)
            yield Move(NOBODY, number, changed(ended(state, number, rightly=True), number, off))


def hold(rules: Rules, state: State) -> Iterator[Move]:
    """Put a waiting job aside."""
    for number, job in enumerate(state.jobs):
        if job.state in WAITING - {"held"}:
            yield Move(NOBODY, number, changed(state, number, job._replace(state="held")))


def unhold(rules: Rules, state: State) -> Iterator[Move]:
    """Let a held job run."""
    for number, job in enumerate(state.jobs):
        if job.state == "held":
            yield Move(NOBODY, number, changed(state, number, job._replace(state="available")))


def replay(rules: Rules, state: State) -> Iterator[Move]:
    """Give an ended job all its attempts again, unless a living job has its key."""
    living = any(job.state in ALIVE for job in state.jobs)
    for number, job in enumerate(state.jobs):
        ended_badly = job.state in TERMINAL and job.state != "succeeded"
        if not ended_badly and not (job.state == "succeeded" and "replay.state" in rules.without):
            continue
        if state.doubts and living and "replay.key" not in rules.without:
            continue
        again = job._replace(state="available", forgiven=job.deliveries, runs=0, called_off=False)
        yield Move(NOBODY, number, changed(state, number, again))


#: The protocol.
ACTIONS: Final = (
    Action(name="enqueue", moves=enqueue, lasting=False),
    Action(name="promote", moves=promote, must="due times come"),
    Action(name="look", moves=look, must="idle workers look for work"),
    Action(name="claim", moves=claim, must="who looks also claims"),
    Action(name="ack", moves=ack, must="handlers end"),
    Action(name="ack_unheard", moves=ack_unheard, lasting=False),
    Action(name="complete", moves=complete, must="handlers end"),
    Action(name="effect", moves=effect, must="handlers end"),
    Action(name="nack", moves=_outcome("nack", _failed), must="handlers end"),
    Action(name="release", moves=_outcome("release", _given_back("available")), lasting=False),
    Action(
        name="snooze",
        moves=_outcome("snooze", _given_back("scheduled")),
        lasting=False,
        words=("scheduled", "retryable"),
    ),
    Action(
        name="hold_leased",
        moves=_outcome("hold_leased", _given_back("held")),
        lasting=False,
        words=("held",),
        person=True,
    ),
    Action(name="extend", moves=extend),
    Action(name="crash", moves=crash, lasting=False),
    Action(name="pause", moves=pause, lasting=False),
    Action(name="resume", moves=resume),
    Action(name="expire", moves=expire, must="time passes"),
    Action(name="expire_running", moves=expire_running, lasting=False),
    Action(name="suspect", moves=suspect, must="somebody reaps"),
    Action(name="reap", moves=reap, must="somebody reaps"),
    Action(name="cancel", moves=cancel, lasting=False, words=("cancelled",), person=True),
    Action(name="hold", moves=hold, lasting=False, words=("held",), person=True),
    Action(
        name="unhold",
        moves=unhold,
        must="people decide on what is held",
        words=("held",),
        person=True,
    ),
    Action(name="replay", moves=replay, lasting=False, words=("dead", "cancelled"), person=True),
)


def offered(rules: Rules) -> tuple[Action, ...]:
    """Return the actions that a queue of this contract has."""
    return tuple(
        action
        for action in ACTIONS
        if rules.knows(*action.words) and (rules.people or not action.person)
    )
