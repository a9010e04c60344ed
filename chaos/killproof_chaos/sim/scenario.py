"""A scenario: a few actors, the jobs they find, and the faults that may happen to them.

An actor is a function of one argument. What it is given records every call for the judge and goes
on calling the target's own client, so a scenario reads like the worker that it stands for:

    def work(me: Actor) -> None:
        if lease := me.claim():
            me.play(lease)
            me.ack(lease)
"""

import asyncio
import math
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from killproof_chaos.sim.runtime import BEGINS, ENDS, Crashed, Faults, Life, Runtime
from killproof_chaos.workload import Job
from killproof_evidence.target import Definite

#: An error's text in the history; enough to recognise it.
ERROR_CHARS_MAX: Final = 300
NO_FAULTS: Final = Faults()
RECORD_EFFECT: Final = "INSERT INTO chaos_effect (job, attempt, fence) VALUES (?, ?, ?)"


class Enough(BaseException):
    """Ends an actor before its next call, in order; not an Exception, so that few catch it."""


class Facts(NamedTuple):
    """What a lease says, whatever the target calls it."""

    job: int | str
    fence: int | None
    attempt: int | None
    payload: Any

    @property
    def name(self) -> str:
        """The harness's own name of the job."""
        return str(self.payload["id"]) if isinstance(self.payload, dict) else str(self.job)


def facts_of(lease: Any) -> Facts:
    """Read a lease: `lease.job.id` as killproof's, or `lease.id` as that of a small queue."""
    job = getattr(lease, "job", lease)
    fence = getattr(lease, "fence", None)
    return Facts(job.id, fence, getattr(job, "attempt", None), job.payload)


class Actor:
    """What the function of an actor is given: the target's calls, on record.

    A call returns what the target's own returns. A refusal that changed nothing (an error that the
    target calls definite: its `definite` is true, or it is a `Definite`) is recorded as `fail` and
    told by the returned value: False for an outcome, None otherwise. Any other error is recorded as
    `info` and raised; an actor that does not catch it dies of it, as a worker would.
    """

    def __init__(self, runtime: Runtime, life: Life, client: Any) -> None:
        """Record the calls of one life on the client that its process has opened."""
        self._runtime, self._life = runtime, life
        self._number = self._effects = self._deaths = 0
        self._file = f"history/{life.name}.jsonl"
        self.client = client  #: the target's own, for what has no method here
        self.ids: dict[str, Any] = {}  #: harness id -> the queue's, of the jobs that it knows
        self.lease = math.inf  #: seconds of one, as the contract has it
        self.calls_left: int | None = None  #: then it ends, in order; None: as its function does

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._life.name

    @property
    def run(self) -> object:
        """The schedule that is played: the same object for all actors, another in each run."""
        return self._runtime.choices

    # The queue.

    def enqueue(self, job: Job) -> Any:
        """Put a job in; return the queue's id."""
        client = self.client
        found = self.call(
            "enqueue",
            lambda: client.enqueue(job.kind, job.payload(), **job.options()),
            value=job.summary(),
            told=lambda found: {"job": found},
        )
        self.ids[job.id] = found
        return found

    def claim(self, kinds: Iterable[str] | None = None) -> Any:
        """Take a job, or return None."""
        client = self.client
        ask = client.claim if kinds is None else lambda: client.claim(kinds)
        return self.call("claim", ask, told=claimed)

    def extend(self, lease: Any) -> Any:
        """Prolong a lease; return what the target does, True if that is nothing; False: refused."""
        return self._outcome("extend", lease, lambda: self.client.extend(lease))

    def ack(self, lease: Any) -> bool:
        """Say that the job is done; False: refused."""
        return bool(self._outcome("ack", lease, lambda: self.client.ack(lease)))

    def nack(self, lease: Any, error: str = "scripted") -> bool:
        """Say that the attempt failed; False: refused."""
        return bool(self._outcome("nack", lease, lambda: self.client.nack(lease, error)))

    def release(self, lease: Any) -> bool:
        """Give the job back untouched; False: refused."""
        return bool(self._outcome("release", lease, lambda: self.client.release(lease)))

    def complete(self, lease: Any) -> bool:
        """Make the effect in the file and finish the job, in one transaction; False: refused."""
        facts = facts_of(lease)

        def run() -> None:
            with self.client.completing(lease) as tx:
                tx.execute(RECORD_EFFECT, (facts.name, facts.attempt, facts.fence))

        return bool(self._outcome("ack", lease, run))

    def cancel(self, id: Any) -> Any:  # noqa: A002 - the seam's name
        """Call a job off."""
        return self.call("cancel", lambda: self.client.cancel(id), job=id, told=_value)

    def replay(self, id: Any) -> Any:  # noqa: A002 - the seam's name
        """Make a dead job available again."""
        return self.call("replay", lambda: self.client.replay(id), job=id, told=_value)

    def reap(self) -> Any:
        """Take back what dead workers held and what ran out."""
        return self.call("reap", lambda: self.client.reap(), told=_value)

    # The work.

    def play(self, lease: Any) -> bool:
        """Run the handler: play the word of the job's script for this attempt; False: it failed."""
        self._take_call()
        facts = facts_of(lease)
        payload = facts.payload if isinstance(facts.payload, dict) else {}
        script = payload.get("script") or ["ok"]
        word = str(script[min(facts.attempt or 1, len(script)) - 1])
        self._effect("start", facts)
        self._runtime.point()
        fails = word in {"raise", "permanent"}
        if not fails and payload.get("sink") != "table":
            self._effect("effect", facts)
        self._effect("end", facts, outcome=word)
        return not fails

    @contextmanager
    def handling(self, lease: Any) -> Iterator[Any]:
        """Record a handler of one's own: its start before the block, its effect and end after."""
        self._take_call()
        facts = facts_of(lease)
        self._effect("start", facts)
        yield facts.payload
        self._effect("effect", facts)
        self._effect("end", facts, outcome="ok")

    def work(self) -> bool:
        """Claim, play, and tell the queue how it went; False: there was nothing to claim."""
        lease = self.claim()
        if lease is None:
            return False
        payload = facts_of(lease).payload
        if not self.play(lease):
            self.nack(lease)
        elif isinstance(payload, dict) and payload.get("sink") == "table":
            self.complete(lease)
        else:
            self.ack(lease)
        return True

    def sleep(self, seconds: float) -> None:
        """Let others run until the virtual clock has moved on by so much."""
        self._runtime.sleep(seconds)

    def moment(self) -> int:
        """Return the present of the virtual clock, for a later `call(..., since=)`."""
        return self._runtime.told_clock(self._runtime.now_ns)

    def point(self) -> None:
        """Let others run here, if the scheduler says so."""
        self._runtime.point()

    def wait_for(self, signal: str, seconds: float | None = None) -> bool:
        """Wait until another actor notifies this signal; False: the time passed, or it was lost."""
        limit = None if seconds is None else round(seconds * 1e9)
        return self._runtime.wait(limit, signal=signal)

    def notify(self, signal: str) -> None:
        """Wake all actors that wait for this signal now."""
        self._runtime.notify(signal)

    # Recording.

    def call(
        self,
        f: str,
        function: Callable[[], Any],
        *,
        job: Any = None,
        fence: int | None = None,
        value: Any = None,
        told: Callable[[Any], dict[str, Any]] = lambda _: {},
        refused: Any = None,
        since: int | None = None,
    ) -> Any:
        """Call a function of the target as operation `f` of the history.

        Args:
            f: one of `killproof_evidence.history.OPERATIONS`.
            function: the target's own call.
            job: the queue's id, where it is known beforehand.
            fence: of the lease that the call shows.
            value: what is asked, for the checkers.
            told: makes the fields of the completion from the answer.
            refused: what to return when the target refused, and changed nothing.
            since: the `moment` at which it began, where that was before this call: one call of the
                target may be two operations.
        """
        name, number = self._begin(f, job, fence, value, since)
        completion: dict[str, Any] = {"job": job, "fence": fence}
        try:
            answer = function()
            completion |= told(answer)
        except Exception as error:
            if not self._met(error, name, number, f):
                raise
            return refused
        self._append(name, number, f, "ok", completion)
        self._life.operation = ""
        return answer

    async def acall(
        self,
        f: str,
        function: Callable[[], Awaitable[Any]],
        *,
        job: Any = None,
        fence: int | None = None,
        value: Any = None,
        told: Callable[[Any], dict[str, Any]] = lambda _: {},
        refused: Any = None,
    ) -> Any:
        """Await a function of an asyncio target as operation `f`; the rest is as for `call`."""
        with self.during(f, job=job, fence=fence, value=value) as completion:
            answer = await function()
            completion |= told(answer)
            return answer
        return refused

    @contextmanager
    def during(
        self, f: str, *, job: Any = None, fence: int | None = None, value: Any = None
    ) -> Iterator[dict[str, Any]]:
        """Record operation `f` around a block; a refusal ends the block and is not raised."""
        name, number = self._begin(f, job, fence, value)
        completion: dict[str, Any] = {"job": job, "fence": fence}
        try:
            yield completion
        except Exception as error:
            if not self._met(error, name, number, f):
                raise
        else:
            self._append(name, number, f, "ok", completion)
            self._life.operation = ""

    def _begin(
        self, f: str, job: Any, fence: int | None, value: Any, since: int | None = None
    ) -> tuple[str, int]:
        """Record that an operation begins; return the process and the operation's number."""
        self._take_call()
        self._number += 1
        name = f"{self.name}~{self._deaths}" if self._deaths else self.name
        self._life.operation = f
        fields = {"job": job, "fence": fence, "value": value}
        self._append(name, self._number, f, "invoke", fields, since)
        return name, self._number

    def _met(self, error: Exception, name: str, number: int, f: str) -> bool:
        """Record how an operation failed; True: it was refused, and nothing was changed."""
        text = self._runtime.plain(f"{type(error).__name__}: {error}")[:ERROR_CHARS_MAX]
        is_refusal = is_definite(error)
        kind = "fail" if is_refusal else "info"
        self._append(name, number, f, kind, {"value": {"error": text}})
        self._life.operation = ""
        self._deaths += not is_refusal
        return is_refusal

    def finish(self) -> None:
        """Write that this process ended in order."""
        self._append(self.name, self._number + 1, "exit", "ok", {})

    def _take_call(self) -> None:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise Enough
            self.calls_left -= 1

    def _outcome(self, f: str, lease: Any, function: Callable[[], Any]) -> Any:
        facts = facts_of(lease)
        answer = self.call(f, function, job=facts.job, fence=facts.fence, refused=False)
        return True if answer is None else answer

    def _append(
        self,
        process: str,
        n: int,
        f: str,
        kind: str,
        fields: dict[str, Any],
        since: int | None = None,
    ) -> None:
        runtime, life = self._runtime, self._life
        record = {"pid": life.pid, "process": process, "n": n, "f": f, "type": kind}
        for name, value in fields.items():
            if value is not None:
                record[name] = value
        if life.is_dead:
            raise Crashed
        here = runtime.current
        if here is not life and here is not None:
            record["thread"] = here.name  # One process may have one operation open in each thread.
        moment = BEGINS if kind == "invoke" else ENDS
        runtime.record(self._file, record, moment, since=since)
        if runtime.keeps_trace:
            shown = {name: value for name, value in fields.items() if value is not None}
            runtime.note(kind, f, shown or None)

    def _effect(self, what: str, facts: Facts, **more: Any) -> None:
        self._effects += 1
        record = {
            "pid": self._life.pid,
            "n": self._effects,
            "job": facts.name,
            "attempt": facts.attempt,
            "fence": facts.fence,
            "queue_id": facts.job,
            "what": what,
        }
        moment = BEGINS if what == "start" else ENDS
        self._runtime.record(f"effects/{self._life.pid}.jsonl", record | more, moment)
        self._runtime.note(what, facts.name, more or None)


def is_definite(error: BaseException) -> bool:
    """Say whether an error says of itself that nothing was changed."""
    return isinstance(error, Definite) or bool(getattr(error, "definite", False))


def claimed(lease: Any) -> dict[str, Any]:
    """Return what the history keeps of a claim's answer: `told=claimed`."""
    if lease is None:
        return {}
    facts = facts_of(lease)
    value = {"id": facts.name, "attempt": facts.attempt}
    return {"job": facts.job, "fence": facts.fence, "value": value}


def _value(answer: Any) -> dict[str, Any]:
    return {"value": answer}


#: Of the file when all has ended: a sentence for each thing in it that breaks a promise.
FileCheck = Callable[[sqlite3.Connection], Iterable[str]]
Function = Callable[[Actor], Any]  #: of an actor; a coroutine function runs on a virtual loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """An actor that ends, in order, after so many calls: what comes later need not be told."""

    function: Function
    calls: int

    def __call__(self, me: Actor) -> Any:
        """Act until the calls are used up."""
        me.calls_left = self.calls
        try:
            done = self.function(me)
        except Enough:
            return None
        return _until_enough(done) if asyncio.iscoroutine(done) else None


async def _until_enough(done: Awaitable[Any]) -> None:
    with suppress(Enough):
        await done


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A race to look for: who takes part, what they find, and what may happen to them."""

    name: str
    text: str  #: the race in one sentence
    actors: Mapping[str, Function]  #: name -> what it does; the order is the default order
    jobs: tuple[Job, ...] = ()  #: in the queue when the actors begin
    #: Puts in what else is there when they begin, such as a limit: the stage calls it once, after
    #: the jobs, and whatever it leaves in the file is there again before each schedule.
    prepare: Function | None = None
    faults: Faults = NO_FAULTS
    #: Seconds that pass at once as a fault; None: the length of a lease and a little more.
    jump: float | None = None
    #: Only these promises are judged; None: all that the contract makes.
    promises: frozenset[str] | None = None
    #: Promises and parameters that the contract has besides, in this scenario.
    promised: Mapping[str, bool | str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Promises that the file itself tells about; the audit's table is in it.
    checks: Mapping[str, FileCheck] = field(default_factory=dict)
    #: Whether SQLite is asked how it would go about each statement: no walk through all jobs (P20).
    plans: bool = False
    #: Operations or capabilities that a target must have; one that lacks them is left out.
    needs: frozenset[str] = frozenset({"enqueue", "claim", "ack"})
    #: Whether the target's own sync points are scheduling points too.
    syncs: bool = False
    #: Whether a worker without faults drains the queue at the end, so that P17 can be judged.
    heals: bool = True
    #: Seconds that a job may wait then, besides those that the contract explains.
    patience: float = 0.0
    #: Actors share variables, which no state holds: then nothing is cut or left out as equal.
    shares_memory: bool = False
    before: Callable[[], None] | None = None  #: called before each schedule
    #: Called when a schedule has ended, however it did; what it raises is a violation.
    always: Callable[[], None] | None = None
