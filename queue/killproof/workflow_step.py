"""What a step's function is given, and how a fan-out is put in.

A `Step` reads: the run's payload, what the steps before it returned.  What it writes is its own
success, with the caller's SQL and with the jobs of its fan-outs, in one transaction.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from killproof import spilling, workflow_tables
from killproof.core.clock import SystemClock
from killproof.core.database import Transaction, Value
from killproof.core.errors import DatabaseBusy, PayloadInvalid, StorageFull
from killproof.core.jobs import Queue
from killproof.handlers import Hold, Permanent
from killproof.workflow_memo import report_progress
from killproof.workflow_tables import STEPS_MAX

if TYPE_CHECKING:
    from killproof.worker import Context
    from killproof.workflow_plan import Plan, Workflow

#: Between tries to write a fan-out while the file is busy or full, in seconds.
PAUSE_SECONDS: Final = 0.1


class Step:
    """One step at work: its run's payload, what the steps before it returned, and its context."""

    def __init__(self, context: "Context", workflow: "Workflow") -> None:
        """Read what the step is; one short read, no lock.

        Raises:
            Permanent: the job belongs to no run.
            Hold: a fan-out that its run waits for is gone from the code.
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
        self.run_id, self.name, item, self.undoes, payload, text, awaited = cast(Any, values)
        self.payload: Any = json.loads(payload)  #: what the run was started with
        #: the item of a fan-out that this job is for; None in a step that is none
        self.item: Any = json.loads(text).get("item") if item else None
        gone = {*json.loads(awaited)} - {plan.name for plan in workflow.spread_by(self.name)}
        if gone:
            raise Hold(
                f"steps of run {self.run_id} wait for {min(gone)!r}, one job for each item of "
                f"{self.name!r}, and the code has it no more: put it back, then killproof unhold "
                f"{job.id}"
            )
        self._completed = False
        self._results: dict[str, Any] | None = None

    WHO: Final = """
        SELECT run_id, step.name, item, undoes, run.payload, job.payload,
               (SELECT json_group_array(DISTINCT spread) FROM workflow_need
                 WHERE needs_job_id = :id AND spread <> '')
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
        """What the steps that it needs returned, by name; of a fan-out a list, in its order.

        Raises:
            Permanent: one of them returned what JSON does not hold.
        """
        if self._results is None:
            found: dict[str, Any] = {}
            job_id = self.undoes or self.context.job.id  # To undo takes what there was to do it.
            rows = self._queue.database.peek(self.NEEDED, {"id": job_id})
            for name, item, spread, need, text in cast(list[Any], rows):
                if spread:
                    found.setdefault(spread, [])
                elif item:
                    found.setdefault(name, []).append(_value(self._queue, need, text))
                else:
                    found[name] = _value(self._queue, need, text)
            self._results = found
        return self._results

    OF_RUN: Final = """
        SELECT item, job.id, result, state FROM workflow_step JOIN job ON job.id = job_id
         WHERE run_id = :run_id AND name = :name AND undoes = 0 ORDER BY item"""

    def result(self, name: str) -> Any:
        """Return what any step of the run returned that has succeeded, also a step far above.

        Of a fan-out it is a list, in its order, when all its jobs have succeeded.

        Raises:
            LookupError: it has not succeeded, or there is no such step.
        """
        rows = self._of_run(name)
        each = next((plan.each for plan in self._workflow.plans if plan.name == name), None)
        spread = [] if rows or each is None else self._of_run(each)  # Perhaps over an empty list.
        if not (rows or spread) or any(state != "succeeded" for *_, state in (*rows, *spread)):
            raise LookupError(f"step {name!r} of run {self.run_id} has not succeeded")
        found = [_value(self._queue, job_id, text) for _, job_id, text, _ in rows]
        return found if not rows or rows[0][0] else found[0]

    def _of_run(self, name: str) -> list[tuple[int, int, str | None, str]]:
        values: dict[str, Value] = {"run_id": self.run_id, "name": name}
        return cast(list[Any], self._queue.database.peek(self.OF_RUN, values))

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
    """Decode a job's result; a large one is read from its file.

    Raises:
        Permanent: the result was nothing that JSON holds; what is kept of it is for people.
    """
    value = None if text is None else json.loads(text)
    if isinstance(value, dict) and value.keys() == {"killproof_repr", "killproof_reason"}:
        raise Permanent(
            f"what job {job_id} returned was not kept ({value['killproof_reason']}): "
            "return what JSON holds, or nothing, and start the run anew"
        )
    if not spilling.is_reference(value):
        return value
    from killproof import payloads  # For the few results that are too large for a row.

    return payloads.Payloads(queue).result(payloads.job_of(queue, job_id))


def handler(workflow: "Workflow", function: Callable[[Step], object]) -> "Callable[[Context], Any]":
    """Return the handler that gives a step's function its `Step`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(context: "Context") -> object:
            step = await context._off_loop(lambda: Step(context, workflow))
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


INSERT_STEP: Final = """
    INSERT INTO workflow_step (job_id, run_id, name, number, item, unmet, delay_ms, undo_kind)
    VALUES (:id, :run_id, :name, :number, :item, :unmet, :delay_ms, :undo_kind)"""

INSERT_NEED: Final = "INSERT INTO workflow_need VALUES (:id, :need, :spread)"


def insert_step(
    tx: Transaction,
    job_id: int,
    run_id: int,
    plan: "Plan",
    number: int,
    *,
    unmet: int,
    item: int = 0,
) -> None:
    """Write which run a job belongs to; `unmet` needs are written by the caller, as arrows."""
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


# A fan-out.

GROW: Final = """
    UPDATE workflow_run SET steps = steps + :number
     WHERE id = :run_id AND steps + :number <= :steps_max"""

JOINS: Final = """
    SELECT DISTINCT job_id FROM workflow_need WHERE needs_job_id = :id AND spread = :spread"""

WAIT_FOR_MORE: Final = "UPDATE workflow_step SET unmet = unmet + :number WHERE job_id = :id"

EXPIRES: Final = "SELECT expires_ms FROM workflow_run WHERE id = :run_id"


def _spread(queue: Queue, tx: Transaction, step: Step, plan: "Plan", result: object) -> None:
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
        try:
            job = step._workflow.row(plan, now_ms, payload | {"item": item}, None)
            child = queue._enqueue(tx, job | {"expires_ms": expires_ms})
        except PayloadInvalid as error:
            # The next attempt would do the step's work again, and return the same.
            raise Permanent(f"item {place} of what step {step.name!r} returned: {error}") from error
        insert_step(tx, child, step.run_id, plan, number, unmet=0, item=place)
        tx.change(INSERT_NEED, {"id": child, "need": job_id, "spread": ""})
        for join in joins:
            tx.change(INSERT_NEED, {"id": join, "need": child, "spread": ""})
    for join in joins:
        tx.change(WAIT_FOR_MORE, {"id": join, "number": len(result)})
