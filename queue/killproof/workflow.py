"""Durable workflows: steps that are jobs of their own, and a run that goes on where it stopped.

    orders = Workflow("orders")

    @orders.step()
    def reserve(step): return {"shelf": find(step.payload["item"])}

    @orders.step(compensate=refund)          # needs the step above, unless it says needs=[...]
    def charge(step): return pay(step.results["reserve"], key=step.context.effect_key)

    Workflows(queue).start(orders, {"item": "book"}, key="order-17")
    Worker(queue, orders.handlers).run()     # or: killproof work my_orders, with handlers = ...

Starting is one transaction: the run, a job for each step (`blocked` until all that it needs has
succeeded), and the arrows between them.  From then on nobody has to watch: what the end of a step
means for the others is written by triggers in the transaction of that end (`workflow_tables.py`,
which is the next file to read).  A worker that dies loses its attempt at one step, never the run.

A step's result is the result of its job: kept with the run, and read by the steps that need it.
A step declared with `each="find"` is a fan-out: when `find` succeeds, one job for each item of the
list that it returned is put in, in the transaction of that success; a step that needs it is the
join, and waits for all of them.

What this is not: a scheduler of code across hosts, nor a promise that a step runs once.  A step is
a job: its handler may run again after a crash, and effects outside of the file need
`step.context.effect`.  For steps inside one handler see `memo` in `workflow_memo.py`.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from killproof import operations, spilling, workflow_tables
from killproof.core import model
from killproof.core.clock import SystemClock
from killproof.core.database import Transaction, Value
from killproof.core.errors import DatabaseBusy, JobNotFound, StorageFull
from killproof.core.jobs import Queue, new_job
from killproof.core.model import Lease
from killproof.handlers import TIMEOUT_SECONDS_DEFAULT, Handlers, Permanent
from killproof.workflow_memo import Memo, memo, report_progress

if TYPE_CHECKING:
    import sqlite3

    from killproof.worker import Context

__all__ = ["Memo", "Step", "Workflow", "Workflows", "memo"]

#: Steps of one run, those of its fan-outs included.  It bounds what one transaction may have to
#: move at once (a start, a failure, a cancellation): about 0.2 s under the write lock.
STEPS_MAX: Final = 5_000
#: Arrows between them.
NEEDS_MAX: Final = 20_000
NAME_CHARS_MAX: Final = 90
WORKFLOW_CHARS_MAX: Final = 100
#: Between tries to write a fan-out while the file is busy or full, in seconds.
PAUSE_SECONDS: Final = 0.1

StepFunction = TypeVar("StepFunction", bound="Callable[[Step], object]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step as its workflow declares it."""

    name: str
    kind: str
    needs: tuple[str, ...]
    each: str | None  #: one job for each item of that step's result
    undo_kind: str | None  #: the kind of job that compensates it
    delay_ms: int  #: from the success of its last need
    payload: object  #: of its job; None: the run and the step, for people
    options: dict[str, Any]  #: priority, max_attempts, lease, retry: as for `Queue.enqueue`


class Workflow:
    """A graph of steps; it is code, and nothing of it is in a file before a run is started.

    A run keeps the graph that it was started with.  Whoever renames a step keeps the old name for
    the runs under way: a job whose kind nobody handles waits, and `killproof explain` says so.
    """

    def __init__(self, name: str, handlers: Handlers | None = None) -> None:
        """Make a workflow without steps.

        Args:
            name: names its runs, and begins the kinds of its jobs.
            handlers: the registry that gets a handler for each step; None makes one.

        Raises:
            ValueError: the name is empty, too long, or not storable.
        """
        self.name = model.check_text(name, "workflow name", WORKFLOW_CHARS_MAX)
        self.handlers = Handlers() if handlers is None else handlers
        self._plans: dict[str, Plan] = {}

    def step(
        self,
        *,
        name: str | None = None,
        needs: Iterable["str | Callable[..., object]"] | None = None,
        each: "str | Callable[..., object] | None" = None,
        compensate: "Callable[[Step], object] | None" = None,
        delay: float = 0,
        timeout: float | None = TIMEOUT_SECONDS_DEFAULT,
        priority: int = 5,
        max_attempts: int = 5,
        lease: float = 60.0,
        retry: str = "article",
    ) -> Callable[[StepFunction], StepFunction]:
        """Declare the decorated function as a step.

        Args:
            name: the function's own name unless given.
            needs: steps, by name or function, that must have succeeded before; None is the step
                declared before this one, so that plain steps run in order; `[]` is none.
            each: a step that returns a list: this step is one job for each item, `step.item`.
            compensate: undoes the step when its run fails later; called as the step is.
            delay: seconds between the success of the last need and the step's due time.
            timeout: seconds that one execution may take; None is no limit.
            priority: as for `Queue.enqueue`, and so are the rest.
            max_attempts: executions in all.
            lease: seconds.
            retry: a policy by name.

        Raises:
            ValueError: an argument is wrong, or the name is taken.
        """

        def declare(function: StepFunction) -> StepFunction:
            plan = self.add(
                name or function.__name__,
                needs=needs,
                each=each,
                delay=delay,
                priority=priority,
                max_attempts=max_attempts,
                lease=lease,
                retry=retry,
            )
            self.handlers(plan.kind, timeout=timeout)(_handler(self, function))
            if compensate is not None:
                plan = replace(plan, undo_kind=f"{plan.kind}.undo")
                self._plans[plan.name] = plan
                self.handlers(f"{plan.kind}.undo", timeout=timeout)(_handler(self, compensate))
            return function

        return declare

    def add(
        self,
        name: str,
        *,
        kind: str | None = None,
        payload: object = None,
        needs: Iterable["str | Callable[..., object]"] | None = None,
        each: "str | Callable[..., object] | None" = None,
        compensate: str | None = None,
        delay: float = 0,
        **options: Any,
    ) -> Plan:
        """Declare a step whose jobs are of any kind, for a graph that is known at run time only.

        Args:
            name: unique in the workflow.
            kind: of its jobs, with a handler somewhere; `WORKFLOW.STEP` unless given.
            payload: of its job; None names the run and the step.
            needs: as for `step`; names of steps that are declared later are welcome.
            each: as for `step`; the item is in the payload of its jobs, as `item`.
            compensate: the kind of job that undoes it; its payload names the run and the step.
            delay: as for `step`.
            **options: `priority`, `max_attempts`, `lease`, `retry`, as for `Queue.enqueue`.

        Raises:
            ValueError: an argument is wrong, or the name is taken.
        """
        model.check_text(name, "step name", NAME_CHARS_MAX)
        if name in self._plans:
            raise ValueError(f"workflow {self.name!r} has a step {name!r} already")
        kind = model.check_text(kind or f"{self.name}.{name}", "kind", model.KIND_CHARS_MAX)
        if needs is None:
            needs = list(self._plans)[-1:] if each is None else ()
        elif isinstance(needs, str):
            raise ValueError(f"needs {needs!r} must be a list of steps: write [{needs!r}]")
        plan = Plan(
            name=name,
            kind=kind,
            needs=tuple(dict.fromkeys(_name_of(need) for need in needs)),
            each=None if each is None else _name_of(each),
            undo_kind=compensate,
            delay_ms=model.to_ms(delay, "delay"),
            payload=payload,
            options=options,
        )
        if plan.each is not None and plan.needs:
            raise ValueError(f"step {name!r} has each={plan.each!r}, which is all that it may need")
        self._row(plan, 0, payload, None)  # Wrong options show here, not when a run is started.
        self._plans[name] = plan
        return plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The steps in the order of their declaration."""
        return tuple(self._plans.values())

    def plan(self, name: str) -> Plan:
        """Return the step of this name."""
        return self._plans[name]

    def check(self) -> None:
        """Refuse a graph that could not be run.

        Raises:
            ValueError: a need is unknown, steps need each other in a circle, a fan-out over a
                fan-out, or more than `STEPS_MAX` steps or `NEEDS_MAX` needs.
        """
        plans = self._plans
        where = f"workflow {self.name!r}"
        if len(plans) > STEPS_MAX:
            raise ValueError(f"{where} has {len(plans):,} steps, over the limit of {STEPS_MAX:,}")
        if (number := sum(len(plan.needs) for plan in plans.values())) > NEEDS_MAX:
            raise ValueError(f"{where} has {number:,} needs, over the limit of {NEEDS_MAX:,}")
        for plan in plans.values():
            for need in (*plan.needs, *([plan.each] if plan.each else [])):
                if need not in plans:
                    known = ", ".join(list(plans)[:10])
                    raise ValueError(
                        f"{where}: step {plan.name!r} needs {need!r}, which is no step of it: "
                        f"use one of {known}"
                    )
            if plan.each and plans[plan.each].each:
                raise ValueError(
                    f"{where}: step {plan.name!r} spreads {plan.each!r}, which is spread itself: "
                    "let a join between them return the list"
                )
        if circle := _circle(plans):
            raise ValueError(f"{where}: steps {' -> '.join(circle)} need each other in a circle")

    def spread_by(self, name: str) -> tuple[Plan, ...]:
        """Return the steps that are one job for each item of this step's result."""
        return tuple(plan for plan in self._plans.values() if plan.each == name)

    def _row(
        self, plan: Plan, now_ms: int, payload: object, deadline: float | datetime | None
    ) -> dict[str, Value]:
        """Return the values of a step's job that may start at once."""
        options = dict(plan.options)
        policy = options.pop("retry", "article")
        if unknown := set(options) - {"priority", "max_attempts", "lease"}:
            raise ValueError(f"step {plan.name!r} has an unknown option {min(unknown)!r}")
        delay = plan.delay_ms / 1_000
        return new_job(
            now_ms, plan.kind, payload, delay=delay, deadline=deadline, policy=policy, **options
        )


def _payload(workflow: Workflow, plan: Plan) -> object:
    """Return the payload of a step's job: its own, or what a person looks for."""
    if plan.payload is not None:
        return plan.payload
    return {"workflow": workflow.name, "step": plan.name}


def _name_of(need: "str | Callable[..., object]") -> str:
    return need if isinstance(need, str) else str(getattr(need, "__name__", need))


def _circle(plans: dict[str, Plan]) -> list[str]:
    """Return the names of steps that need each other, the first one twice; empty if none do."""
    waiting = {
        name: {*plan.needs, *([plan.each] if plan.each else [])} for name, plan in plans.items()
    }
    users: dict[str, list[str]] = {name: [] for name in plans}
    for name, needs in waiting.items():
        for need in needs:
            users[need].append(name)
    free = [name for name, needs in waiting.items() if not needs]
    while free:
        done = free.pop()
        del waiting[done]
        for user in users[done]:
            waiting[user].discard(done)
            if not waiting[user]:
                free.append(user)
    if not waiting:
        return []
    path = [min(waiting)]  # Each that is left needs another that is left: follow until one repeats.
    while (need := min(waiting[path[-1]])) not in path:
        path.append(need)
    return [*path[path.index(need) :], need]


# What a step's function is given.


class Step:
    """One step at work: its run's payload, what the steps before it returned, and its context."""

    def __init__(self, context: "Context", workflow: Workflow) -> None:
        """Read what the step is; one short read, no lock.

        Raises:
            Permanent: the job belongs to no run.
        """
        self.context = context
        self._workflow = workflow
        self._queue = context._queue
        job = context.job
        found = None
        if self._queue.database.peek(workflow_tables.VERSION):
            found = self._queue.database.peek(self.WHO, {"id": job.id})
        if not found:
            raise Permanent(
                f"job {job.id} of kind {job.kind!r} is no step of a run: "
                "start one with Workflows(queue).start(...)"
            )
        (values,) = found
        self.run_id, self.name, item, self.undoes, payload, text = cast(Any, values)
        self.payload: Any = json.loads(payload)  #: what the run was started with
        #: the item of a fan-out that this job is for; None in a step that is none
        self.item: Any = json.loads(text).get("item") if item else None
        self._completed = False
        self._results: dict[str, Any] | None = None

    WHO: Final = """
        SELECT run_id, step.name, item, undoes, run.payload, job.payload
          FROM workflow_step AS step
          JOIN workflow_run AS run ON run.id = step.run_id
          JOIN job ON job.id = iif(undoes > 0, undoes, job_id)
         WHERE job_id = :id"""

    RESULT_OF: Final = "SELECT result FROM job WHERE id = :id"

    @property
    def undone(self) -> Any:
        """In a compensation: what the step returned that it undoes; None in any other step."""
        rows = self._queue.database.peek(self.RESULT_OF, {"id": self.undoes})
        return _value(self._queue, self.undoes, cast(str | None, rows[0][0])) if rows else None

    NEEDED: Final = """
        SELECT step.name, step.item, need.spread, job.id, job.result
          FROM workflow_need AS need
          JOIN workflow_step AS step ON step.job_id = need.needs_job_id
          JOIN job ON job.id = need.needs_job_id
         WHERE need.job_id = :id ORDER BY step.name, step.item"""

    @property
    def results(self) -> dict[str, Any]:
        """What the steps that it needs returned, by name; of a fan-out a list, in its order."""
        if self._results is None:
            self._results = {}
            job_id = self.undoes or self.context.job.id  # To undo takes what there was to do it.
            rows = self._queue.database.peek(self.NEEDED, {"id": job_id})
            for name, item, spread, need, text in cast(list[Any], rows):
                if spread:
                    self._results.setdefault(spread, [])
                elif item:
                    self._results.setdefault(name, []).append(_value(self._queue, need, text))
                else:
                    self._results[name] = _value(self._queue, need, text)
        return self._results

    OF_RUN: Final = """
        SELECT item, job.id, result FROM workflow_step JOIN job ON job.id = job_id
         WHERE run_id = :run_id AND name = :name AND undoes = 0 AND outcome = 'succeeded'
         ORDER BY item"""

    def result(self, name: str) -> Any:
        """Return what any step of the run returned that has succeeded, also a step far above.

        Raises:
            LookupError: it has not succeeded, or there is no such step.
        """
        values: dict[str, Value] = {"run_id": self.run_id, "name": name}
        rows = cast(list[Any], self._queue.database.peek(self.OF_RUN, values))
        if not rows:
            raise LookupError(f"step {name!r} of run {self.run_id} has not succeeded")
        found = [_value(self._queue, job_id, text) for _, job_id, text in rows]
        return found if rows[0][0] else found[0]

    def progress(self, done: float, total: float | None = None, note: str = "") -> bool:
        """Store how far this step is, for `killproof workflow show`; see `report_progress`."""
        return report_progress(self.context, done, total, note)

    @contextmanager
    def completing(self, result: object = None) -> Iterator[Transaction]:
        """Run the block's SQL and the step's success in one transaction, fan-outs included.

        The rest is as for `Context.completing`.  The run's state is derived in it as well: what the
        block writes is there exactly when the run knows of the step's success.
        """
        with self.context.completing(result) as tx:
            yield tx
            for plan in self._workflow.spread_by(self.name) if not self.undoes else ():
                _spread(self._queue, tx, self, plan, result)
        self._completed = True

    def finish(self, result: object) -> object:
        """Return the step's result to the worker, after its fan-outs were written, if it has any.

        A busy or full file is waited for while the lease lasts: the work is done, and failing now
        would repeat it.
        """
        if self._completed or self.undoes or not self._workflow.spread_by(self.name):
            return result
        while True:
            try:
                with self.completing(result):
                    return result
            except (DatabaseBusy, StorageFull):
                if self.context.lost:
                    raise
                SystemClock().sleep(PAUSE_SECONDS)


def _value(queue: Queue, job_id: int, text: str | None) -> Any:
    """Decode a job's result; a large one is read from its file."""
    value = None if text is None else json.loads(text)
    if not spilling.is_reference(value):
        return value
    from killproof import payloads  # For the few results that are too large for a row.

    return payloads.Payloads(queue).result(payloads.job_of(queue, job_id))


def _handler(workflow: Workflow, function: Callable[[Step], object]) -> "Callable[[Context], Any]":
    """Return the handler that gives a step's function its `Step`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(context: "Context") -> object:
            step = Step(context, workflow)
            result = await function(step)
            return await context._off_loop(lambda: step.finish(result))

        return run_async

    @functools.wraps(function)
    def run(context: "Context") -> object:
        step = Step(context, workflow)
        result = function(step)
        if inspect.isawaitable(result) or inspect.isgenerator(result):
            raise Permanent(f"step {step.name!r} returned {type(result).__name__}: nothing was run")
        return step.finish(result)

    return run


# A fan-out.

GROW: Final = """
    UPDATE workflow_run SET steps = steps + :number
     WHERE id = :run_id AND steps + :number <= :steps_max"""

JOINS: Final = """
    SELECT DISTINCT job_id FROM workflow_need WHERE needs_job_id = :id AND spread = :spread"""

WAIT_FOR_MORE: Final = "UPDATE workflow_step SET unmet = unmet + :number WHERE job_id = :id"

EXPIRES: Final = "SELECT expires_ms FROM workflow_run WHERE id = :run_id"


def _spread(queue: Queue, tx: Transaction, step: Step, plan: Plan, result: object) -> None:
    """Put in a job for each item, inside the transaction in which the step succeeds.

    The new jobs need this step alone, which succeeds with them; each join waits for all of them,
    and for this step until it has succeeded: so it can not start between the two.
    """
    if not isinstance(result, list | tuple):
        raise Permanent(
            f"step {step.name!r} returned {type(result).__name__}: "
            f"step {plan.name!r} needs a list, one job for each item"
        )
    job_id, now_ms = step.context.job.id, queue.host.clock.now_ms()
    values: dict[str, Value] = {
        "run_id": step.run_id,
        "id": job_id,
        "spread": plan.name,
        "number": len(result),
        "steps_max": STEPS_MAX,
    }
    if not tx.change(GROW, values):
        raise Permanent(
            f"step {step.name!r} returned {len(result):,} items: with them run {step.run_id} has "
            f"more than {STEPS_MAX:,} steps; let an item stand for many"
        )
    row = tx.row(EXPIRES, values)
    expires_ms = row[0] if row else None
    joins = [cast(int, found[0]) for found in tx.rows(JOINS, values)]
    number = step._workflow.plans.index(plan)
    for place, item in enumerate(result, 1):
        payload = {"run": step.run_id, "workflow": step._workflow.name, "step": plan.name}
        job = step._workflow._row(plan, now_ms, payload | {"item": item}, None)
        child = queue._enqueue(tx, job | {"expires_ms": expires_ms})
        _insert_step(tx, child, step.run_id, plan, number, unmet=0, item=place)
        tx.change(INSERT_NEED, {"id": child, "need": job_id, "spread": ""})
        for join in joins:
            tx.change(INSERT_NEED, {"id": join, "need": child, "spread": ""})
    for join in joins:
        tx.change(WAIT_FOR_MORE, {"id": join, "number": len(result)})


# Runs.

FIND_RUN: Final = "SELECT id FROM workflow_run WHERE name = :name AND key = :key"

INSERT_RUN: Final = """
    INSERT INTO workflow_run (name, key, state, steps, created_ms, checked_ms, expires_ms, payload)
    VALUES (:name, :key, 'running', :steps, :now_ms, :now_ms, :expires_ms, :payload)"""

INSERT_STEP: Final = """
    INSERT INTO workflow_step (job_id, run_id, name, number, item, unmet, delay_ms, undo_kind)
    VALUES (:id, :run_id, :name, :number, :item, :unmet, :delay_ms, :undo_kind)"""

INSERT_NEED: Final = "INSERT INTO workflow_need VALUES (:id, :need, :spread)"

CHECK_RUN: Final = "UPDATE workflow_run SET checked_ms = :now_ms WHERE id = :run_id"

STATE_OF_RUN: Final = "SELECT state FROM workflow_run WHERE id = :run_id"


class Workflows:
    """The runs in one file: start, cancel, replay.  Reading them is `killproof.workflow_view`."""

    def __init__(self, queue: Queue) -> None:
        """Prepare; the tables are made by the first start in the file."""
        self._queue = queue

    def start(
        self,
        workflow: Workflow,
        payload: object = None,
        *,
        key: str | None = None,
        deadline: float | datetime | None = None,
        tx: "Transaction | sqlite3.Connection | None" = None,
    ) -> int:
        """Start a run; return its id when it, its steps and its needs are durable.

        One transaction: another process sees all of it or nothing.  Repeating it with the same key
        returns the same run for as long as that is kept, also when it has ended: an order that is
        delivered twice is processed once.  (A job's key is free again when the job has ended; a
        run is worth more, and a failed one is replayed, not started again.)

        Args:
            workflow: its graph is kept with the run.
            payload: anything JSON holds, for all its steps; kept once.
            key: names the run among those of this workflow.
            deadline: the moment from which on none of its steps starts any more; those that wait
                then become `expired`, and the run fails.
            tx: joins the transaction of the caller, as for `Queue.enqueue`.

        Raises:
            ValueError: the graph can not be run, or an argument is wrong; definite.
            FileRefused: the application has tables of these names; definite.
            KillproofError: as for `Queue.enqueue`.
        """
        workflow.check()
        if key is not None:
            model.check_text(key, "key", model.KEY_CHARS_MAX)
        now_ms = self._queue.host.clock.now_ms()
        values: dict[str, Value] = {
            "name": workflow.name,
            "key": key,
            "now_ms": now_ms,
            "expires_ms": None if deadline is None else model.moment_ms(deadline),
            "payload": model.encode_payload(payload),
        }
        rows = {  # Before the lock is taken: half of the time of a large run.
            plan.name: workflow._row(plan, now_ms, _payload(workflow, plan), deadline)
            for plan in workflow.plans
            if plan.each is None
        }
        if tx is not None:
            return self._start(self._queue.database.joined(tx), workflow, values, rows)
        with self._queue.database.write("enqueue") as own:
            return self._start(own, workflow, values, rows)

    def _start(
        self,
        tx: Transaction,
        workflow: Workflow,
        values: dict[str, Value],
        rows: dict[str, dict[str, Value]],
    ) -> int:
        workflow_tables.ensure(tx)
        if values["key"] is not None and (found := tx.row(FIND_RUN, values)) is not None:
            return cast(int, found[0])
        run_id = tx.insert(INSERT_RUN, values | {"steps": len(rows)})
        assert run_id is not None
        now_ms, ids = values["now_ms"], dict[str, int]()
        for number, plan in enumerate(workflow.plans):
            if (row := rows.get(plan.name)) is None:
                continue  # A fan-out has no jobs yet.
            if plan.needs:
                row |= {"state": "blocked", "due_ms": now_ms}
            if plan.payload is None:
                row["payload"] = f'{{"run":{run_id},{str(row["payload"])[1:]}'
            ids[plan.name] = self._queue._enqueue(tx, row)
            _insert_step(tx, ids[plan.name], run_id, plan, number, unmet=len(plan.needs))
        for plan in workflow.plans:
            for need in plan.needs:
                # The join of a fan-out waits for what it spreads, until that has put its jobs in.
                each = workflow.plan(need).each
                need_id, spread = (ids[need], "") if each is None else (ids[each], need)
                tx.change(INSERT_NEED, {"id": ids[plan.name], "need": need_id, "spread": spread})
        # A run without steps succeeds here, in the words of the trigger like every other.
        tx.change(CHECK_RUN, {"run_id": run_id, "now_ms": now_ms})
        return run_id

    MARK_CANCELLED: Final = """
        UPDATE workflow_run SET cancelled = 1, undo = undo AND :undo WHERE id = :run_id"""

    SWEEP_RUN: Final = """
        UPDATE workflow_step SET outcome = 'cancelled', swept_by = 0
         WHERE run_id = :run_id AND outcome IS NULL
           AND EXISTS (SELECT 1 FROM job WHERE id = job_id AND state <> 'leased')"""

    CANCEL_SWEPT: Final = """
        UPDATE job SET state = 'cancelled', finished_ms = :now_ms, updated_ms = :now_ms
         WHERE id IN (SELECT job_id FROM workflow_step
                       WHERE run_id = :run_id AND undoes = 0 AND swept_by = 0
                         AND outcome IN ('dead', 'cancelled', 'expired'))
           AND +state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')"""

    OPEN_STEPS: Final = """
        SELECT job_id FROM workflow_step WHERE run_id = :run_id AND outcome IS NULL"""

    def cancel(self, run_id: int, *, compensate: bool = True) -> bool:
        """Call a run off; True if none of its steps starts any more, False if it had ended before.

        One transaction.  Steps that wait are cancelled, running ones learn it at their next
        heartbeat, and what has succeeded is compensated, where it has a compensation.

        Args:
            run_id: as `start` returned it.
            compensate: False leaves what was done as it is.

        Raises:
            JobNotFound: there is no such run; definite.
            ValueError: it is being compensated, which is not called off; definite.
            KillproofError: as for `Queue.cancel`.
        """
        with self._queue.database.write("cancel") as tx:
            state = self._state(tx, run_id)
            if state == "compensating":
                raise ValueError(f"run {run_id} is being compensated: cancel a step of it instead")
            if state != "running":
                return state == "cancelled"
            now_ms = self._queue.host.clock.now_ms()
            values: dict[str, Value] = {"run_id": run_id, "now_ms": now_ms, "undo": compensate}
            tx.change(self.MARK_CANCELLED, values)
            # The outcome first: the trigger then has nothing to do for each of the rows.
            tx.change(self.SWEEP_RUN, values)
            tx.change(self.CANCEL_SWEPT, values)
            for (job_id,) in cast(list[tuple[int]], tx.rows(self.OPEN_STEPS, values)):
                job = self._queue._read(tx, job_id)
                assert job.owner is not None, "what is open now is leased"
                lease = Lease(
                    job=job,
                    fence=job.fence,
                    owner=job.owner,
                    claimed_ms=job.claimed_ms or job.created_ms,
                    deadline_ns=0,
                )
                self._queue._end(tx, lease, "cancel", "cancelled", "cancelled")
            tx.change(CHECK_RUN, values)
        return True

    FAILED_STEPS: Final = """
        SELECT job_id FROM workflow_step
         WHERE run_id = :run_id AND (undoes > 0) = :undo AND unmet = 0
           AND outcome IN ('dead', 'cancelled', 'expired')
         ORDER BY job_id"""

    # Who replays the run asks for these again, though somebody called them off one by one.
    LET_COME_BACK: Final = """
        UPDATE workflow_step SET swept_by = 0
         WHERE run_id = :run_id AND undoes = 0 AND unmet > 0 AND swept_by IS NULL
           AND outcome = 'cancelled'"""

    def replay(self, run_id: int) -> tuple[int, ...]:
        """Let a run go on where it failed; return the ids of the steps that are available again.

        One transaction.  Steps that were cancelled because they need these come back when those
        have succeeded; what has succeeded is not run again.  A run whose compensation failed goes
        on with the compensation.

        Raises:
            JobNotFound: there is no such run; definite.
            ValueError: nothing of it has failed, or it was undone; definite.
            KillproofError: as for `Queue.cancel`.
        """
        with self._queue.transaction() as tx:
            state = self._state(tx, run_id)
            if state in ("compensating", "compensated"):
                raise ValueError(f"run {run_id} is {state}: what was undone is started anew")
            values: dict[str, Value] = {"run_id": run_id, "undo": state == "compensation_failed"}
            found = cast(list[tuple[int]], tx.rows(self.FAILED_STEPS, values))
            if not found:
                raise ValueError(f"run {run_id} is {state}: no step of it has failed")
            if not values["undo"]:
                tx.change(self.LET_COME_BACK, values)
            for (job_id,) in found:
                why = operations._replay(self._queue, tx, job_id)
                assert why is None, why
        return tuple(job_id for (job_id,) in found)

    def _state(self, tx: Transaction, run_id: int) -> str:
        model.check_count(run_id, "run", 1, (1 << 63) - 1)
        row = tx.row(STATE_OF_RUN, {"run_id": run_id}) if workflow_tables.exists(tx) else None
        if row is None:
            raise JobNotFound(
                f"there is no run {run_id} in {self._queue.path}: see killproof workflow list"
            )
        return str(row[0])


def _insert_step(
    tx: Transaction, job_id: int, run_id: int, plan: Plan, number: int, *, unmet: int, item: int = 0
) -> None:
    values: dict[str, Value] = {
        "id": job_id,
        "run_id": run_id,
        "name": plan.name,
        "number": number,
        "item": item,
        "unmet": unmet,
        "delay_ms": plan.delay_ms,
        "undo_kind": plan.undo_kind,
    }
    tx.change(INSERT_STEP, values)
