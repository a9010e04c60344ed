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

from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

from killproof import operations, workflow_tables
from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import JobNotFound
from killproof.core.jobs import Queue
from killproof.core.model import Lease
from killproof.workflow_memo import Memo, memo
from killproof.workflow_plan import Plan, Workflow, payload_of
from killproof.workflow_step import INSERT_NEED, Step, insert_step
from killproof.workflow_tables import NEEDS_MAX, STEPS_MAX

if TYPE_CHECKING:
    import sqlite3

__all__ = ["NEEDS_MAX", "STEPS_MAX", "Memo", "Plan", "Step", "Workflow", "Workflows", "memo"]

FIND_RUN: Final = "SELECT id FROM workflow_run WHERE name = :name AND key = :key"

INSERT_RUN: Final = """
    INSERT INTO workflow_run (name, key, state, steps, created_ms, checked_ms, expires_ms, payload)
    VALUES (:name, :key, 'running', :steps, :now_ms, :now_ms, :expires_ms, :payload)"""

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
            plan.name: workflow.row(plan, now_ms, payload_of(workflow, plan), deadline)
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
            insert_step(tx, ids[plan.name], run_id, plan, number, unmet=len(plan.needs))
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
