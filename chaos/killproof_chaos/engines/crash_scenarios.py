"""The operations that the engine `crash` kills in: what stands before each, and the act itself.

`prepare` makes the template: it runs once, in a process that ends in order before any kill.
`before` runs in the process that will be killed, uncounted. `act` is the operation: every file
call in it is a point.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from killproof_chaos.engines.crash_session import BRIEF_NS, Session, wait_until
from killproof_chaos.workload import Job
from killproof_evidence.store import Store

#: The delay of a job that must have fallen due when the operation begins.
DELAY_MS: Final = 30


@dataclass(slots=True, kw_only=True)
class Context:
    """What a process of a scenario has in hand."""

    open: Callable[[str], Session]  #: opens the queue with a history of this name
    store: Store
    memo: dict[str, Any] = field(default_factory=dict)  #: from `prepare` to the others
    current: Session | None = None
    lease: Any = None

    @property
    def session(self) -> Session:
        """The queue, opened."""
        assert self.current is not None
        return self.current


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One operation, and what it needs."""

    operation: str
    act: Callable[[Context], object]  #: False: the queue says that it did nothing
    prepare: Callable[[Context], None] | None  #: None: there is no file yet
    before: Callable[[Context], None] | None = None
    opens: bool = False  #: the queue is opened by `before` or by the act itself
    tells: str = "ok"  #: what its caller is told when nothing befalls it
    changes: bool = True  #: it changes what other processes see
    peer: bool = False  #: another process has the queue open all the while
    base: str = ""  #: the operation that it is a variant of
    by_worker: bool = True  #: a worker of the target's can do the jobs of this one


def job(name: str, *, script: tuple[str, ...] = ("ok",), sink: str = "table", **more: Any) -> Job:
    """Return a small job; its effect is a row in the queue's file, where P6 is exact."""
    return Job(id=name, kind="report", script=script, sink=sink, body_bytes=20, **more)


#: Asked for twice by whoever recovers: its key makes that safe after an unknown outcome.
KEYED: Final = job("keyed", key="once")
#: Not asked for twice: only the queue itself can have made two of it.
KEYLESS: Final = job("keyless", sink="log")
#: Put in by a process that has just met an error: the next operation.
NEXT: Final = job("next", sink="log")
#: Put in by whoever recovers: the queue takes jobs again.
LATER: Final = job("later", sink="log")
#: Put in likewise, and dead soon: what is left of it is judged.
DOOMED: Final = job("doomed", script=("permanent",), sink="log")
#: Its payload goes into a file, and its key says its name where only the row is seen.
SPILLED: Final = job("spilled", key="spilled", sink="log")
#: A slot that never comes while this runs: in the year 2100.
SLOT_FAR: Final = 4_102_444_800.0
#: A step, and one that needs it; of the second run the first step fails for good.
RUN: Final = (job("a", sink="log", needs=()), job("b", sink="log", needs=("a",)))
FAILING_RUN: Final = (replace(RUN[0], script=("permanent",)), RUN[1])
#: For how long a resource is closed: whoever recovers has to wait for it.
CLOSED_SECONDS: Final = 0.02
#: `enqueue_many` takes no options, so its jobs have the queue's defaults.
BATCH: Final = tuple(job(f"batch{number}", sink="log") for number in range(3))


def _two_jobs(context: Context) -> None:
    context.session.enqueue(job("first"))
    context.session.enqueue(job("second", sink="log"))


def _two_logs(context: Context) -> None:
    """Put in jobs whose effect is not in the queue's file, so that a plain ack ends them."""
    context.session.enqueue(job("first", sink="log"))
    context.session.enqueue(job("second", sink="log"))


def _failing_job(context: Context) -> None:
    context.session.enqueue(job("first", script=("raise", "ok")))
    context.session.enqueue(job("second", sink="log"))


def _delayed_job(context: Context) -> None:
    context.session.enqueue(job("delayed", delay_ms=DELAY_MS))
    context.memo["due"] = time.time() + DELAY_MS / 1_000 + 0.002


def _ledger_job(context: Context) -> None:
    context.session.enqueue(job("paid", sink="ledger"))
    context.session.enqueue(job("second", sink="log"))


def _held_job(context: Context) -> None:
    _two_jobs(context)
    context.session.more["hold"]("second")


def _done_job(context: Context) -> None:
    """Let one job end well, and leave another."""
    session = context.session
    _two_logs(context)
    lease = session.claim()
    session.play(lease)
    session.ack(lease)


def _dropped_payload(context: Context) -> None:
    """Leave the file of a job that is gone, and that of one that waits."""
    _two_logs(context)
    session = context.session
    session.more["spill_enqueue"](SPILLED)
    for _ in range(3):
        lease = session.claim()
        session.play(lease)
        session.ack(lease)
    # Pruned is what ended before this millisecond, and an ack takes less than one.
    time.sleep(0.002)
    session.more["prune"](None)
    session.more["spill_enqueue"](job("waits", key="waits", sink="log"))


def _due_schedule(context: Context) -> None:
    """Make a schedule whose first slot is an hour from now; it is fired as if that had come."""
    _two_jobs(context)
    context.memo["slot"] = float(int(time.time()) + 3_600)
    context.session.more["schedule"](context.memo["slot"])


def _limited_jobs(context: Context) -> None:
    """Leave two jobs of which one may run at a time."""
    _two_logs(context)
    context.session.more["limit"](1)


def _run(context: Context) -> None:
    context.session.more["workflow_start"](RUN)


def _failing_run(context: Context) -> None:
    context.session.more["workflow_start"](FAILING_RUN)


def _doomed_job(context: Context) -> None:
    context.session.enqueue(job("first", script=("permanent",)))
    context.session.enqueue(job("second", sink="log"))


def _dead_job(context: Context) -> None:
    session = context.session
    session.enqueue(job("first", script=("permanent", "ok")))
    lease = session.claim()
    session.nack(lease, str(session.play(lease)), permanent=True)
    session.enqueue(job("second", sink="log"))


def _lost_lease(context: Context) -> None:
    """Let a worker lose a lease that it will still believe in."""
    session = context.session
    session.enqueue(job("first", script=("raise", "ok")))
    lease = session.claim()
    session.nack(lease, str(session.play(lease)))
    context.memo["lost"] = lease
    context.memo["due"] = time.time() + 0.06


def _hold(context: Context) -> None:
    context.session.brief()
    context.lease = context.session.claim()


def _hold_and_play(context: Context) -> None:
    _hold(context)
    context.memo["failure"] = context.session.play(context.lease)


def _pass_on(context: Context) -> None:
    """Let the job of the lost lease go to another worker, which holds it."""
    wait_until(context.memo["due"])
    other = context.open("other")
    other.brief()
    assert other.claim() is not None, "the job is due"
    context.memo["other"] = other


def _stop_file(context: Context) -> None:
    session, context.current = context.session, None
    context.memo["repair"] = session.more["repair"]("the disk failed in this scenario")


def _die_holding(context: Context) -> None:
    """Let another worker claim a job and be killed, and let its lease run out."""
    _death_of_a_holder(context)
    # Not before: a connection that is open at a fork is made anew, and would count as calls.
    context.current = context.open("child")


def _death_of_a_holder(context: Context) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            session = context.open("holder")
            session.brief()
            session.claim()
            log = context.store.writer(context.store.nemesis)
            log.append(
                {
                    "t": time.monotonic_ns(),
                    "fault": "kill",
                    "pid": os.getpid(),
                    "process": "holder",
                    "phase": "handler.start",
                    "hit": True,
                }
            )
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(time.time() + BRIEF_NS / 1e9)


def _hold_two(context: Context) -> None:
    session = context.session
    context.memo["leases"] = [session.claim(), session.claim()]
    for lease in context.memo["leases"]:
        session.play(lease)


def _wait_until_due(context: Context) -> None:
    wait_until(context.memo["due"])


def _open(context: Context) -> None:
    context.current = context.open("child")


def _reopen(context: Context) -> bool:
    """Open the queue after somebody else's death, and take back what was lost."""
    _open(context)
    return not context.session.reaps or context.session.reap() > 0


def _claim(context: Context) -> bool:
    context.session.brief()
    return context.session.claim() is not None


def _nack(context: Context) -> None:
    context.session.nack(context.lease, str(context.memo["failure"]))


def _fail(context: Context) -> None:
    context.session.nack(context.lease, str(context.memo["failure"]), permanent=True)


def _close(context: Context) -> None:
    session, context.current = context.session, None
    session.close()


def _more(operation: str, of: Callable[[Context], Any]) -> Callable[[Context], object]:
    """Return the act of a call that few queues have; `of` says what the call gets."""
    return lambda context: context.session.more[operation](of(context))


#: A call that few queues have: what its template holds, what comes before it, and what it gets.
FURTHER: Final = (
    ("enqueue_many", _two_jobs, None, lambda c: BATCH),
    ("enqueue_with_note", _two_jobs, None, lambda c: KEYED),
    ("claim_many", _two_jobs, None, lambda c: 2),
    ("ack_many", _two_logs, _hold_two, lambda c: c.memo["leases"]),
    ("ack_and_claim", _two_logs, _hold_and_play, lambda c: c.lease),
    ("release", _two_jobs, _hold, lambda c: c.lease),
    ("snooze", _two_jobs, _hold, lambda c: c.lease),
    ("hold_leased", _two_jobs, _hold, lambda c: c.lease),
    ("ledger", _ledger_job, _hold, lambda c: c.lease),
    ("cancel", _two_jobs, None, lambda c: "second"),
    ("replay", _dead_job, None, lambda c: "first"),
    ("hold", _two_jobs, None, lambda c: "second"),
    ("unhold", _held_job, None, lambda c: "second"),
    ("reprioritise", _two_jobs, None, lambda c: "second"),
    ("get", _two_jobs, None, lambda c: "second"),
    ("counts", _two_jobs, None, lambda c: None),
    ("checkpoint", _two_jobs, None, lambda c: KEYED),
    ("prune", _done_job, None, lambda c: None),
    ("backup", _two_jobs, None, lambda c: "backups"),
    ("spill_enqueue", _two_jobs, None, lambda c: SPILLED),
    ("spill_result", _two_logs, _hold_and_play, lambda c: c.lease),
    ("spill_collect", _dropped_payload, None, lambda c: None),
    ("schedule", _two_jobs, None, lambda c: SLOT_FAR),
    ("fire", _due_schedule, None, lambda c: c.memo["slot"]),
    ("limit", _two_logs, None, lambda c: 1),
    ("limit_close", _limited_jobs, None, lambda c: CLOSED_SECONDS),
    ("workflow_start", _two_logs, None, lambda c: RUN),
)
#: They only look, or write where no worker looks.
UNCHANGING: Final = frozenset({"get", "counts", "backup", "spill_collect", "schedule"})
ALONE: Final = (
    Scenario(operation="open_and_migrate", prepare=None, act=_open, opens=True, changes=False),
    Scenario(operation="open", prepare=_two_jobs, act=_open, opens=True, changes=False),
    Scenario(
        operation="reopen",
        prepare=_two_jobs,
        before=_death_of_a_holder,
        act=_reopen,
        opens=True,
        changes=False,  # Where only the end of a lease frees a job, an open frees none.
    ),
    Scenario(operation="enqueue", prepare=_two_jobs, act=lambda c: c.session.enqueue(KEYED)),
    Scenario(
        operation="enqueue_without_key",
        prepare=_two_jobs,
        act=lambda c: c.session.enqueue(KEYLESS),
    ),
    Scenario(operation="claim", prepare=_two_jobs, act=_claim),
    Scenario(
        operation="extend",
        prepare=_two_jobs,
        before=_hold,
        act=lambda c: c.session.extend(c.lease),
    ),
    Scenario(
        operation="ack",
        prepare=_two_logs,
        before=_hold_and_play,
        act=lambda c: c.session.ack(c.lease),
    ),
    Scenario(
        operation="completing",
        prepare=_two_jobs,
        before=_hold_and_play,
        act=lambda c: c.session.completing(c.lease),
    ),
    Scenario(operation="nack", prepare=_failing_job, before=_hold_and_play, act=_nack),
    Scenario(operation="dead_letter", prepare=_doomed_job, before=_hold_and_play, act=_fail),
    Scenario(
        operation="reap",
        prepare=_two_jobs,
        before=_die_holding,
        act=lambda c: c.session.reap() > 0,
        opens=True,
    ),
    Scenario(operation="promote", prepare=_delayed_job, before=_wait_until_due, act=_claim),
    Scenario(
        operation="late_ack",
        prepare=_lost_lease,
        before=_pass_on,
        act=lambda c: c.session.ack(c.memo["lost"]),
        tells="definite",
        changes=False,
    ),
    *(
        Scenario(
            operation=name,
            prepare=prepare,
            before=before,
            act=_more(name, of),
            changes=name not in UNCHANGING,
            by_worker=name != "ledger",
        )
        for name, prepare, before, of in FURTHER
    ),
    # Beside the job, what follows from it in the same transaction: a slot, a step, a run.
    Scenario(operation="limit_claim", prepare=_limited_jobs, act=_claim),
    Scenario(
        operation="limit_ack",
        prepare=_limited_jobs,
        before=_hold_and_play,
        act=lambda c: c.session.ack(c.lease),
    ),
    Scenario(
        operation="workflow_ack",
        prepare=_run,
        before=_hold_and_play,
        act=lambda c: c.session.ack(c.lease),
    ),
    Scenario(operation="workflow_fail", prepare=_failing_run, before=_hold_and_play, act=_fail),
    Scenario(
        operation="repair",
        prepare=_two_jobs,
        before=_stop_file,
        act=lambda c: c.memo["repair"](),
        changes=False,
    ),
    # Not every queue gives back what it holds when it is closed.
    Scenario(operation="close", prepare=_two_jobs, before=_hold, act=_close, changes=False),
)
#: Operations that are also killed beside a peer that lives on: then nobody recovers the log, and
#: its index, the locks and the queue's side files are as the dead process has left them.
BESIDE_A_PEER: Final = ("open", "enqueue", "claim", "completing", "reap", "checkpoint", "close")
SCENARIOS: Final = ALONE + tuple(
    replace(one, operation=f"{one.operation}_beside_a_peer", peer=True, base=one.operation)
    for one in ALONE
    if one.operation in BESIDE_A_PEER
)
BY_NAME: Final[Mapping[str, Scenario]] = {one.operation: one for one in SCENARIOS}
