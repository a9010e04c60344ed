"""Races of a workflow: what a step's end means for the others is written in that end's transaction.

The graph is a diamond: two steps that need the first, and one that needs both.  The two that are
done at once are the race: each ack must leave the last one blocked or let it go, exactly once.
"""

import sqlite3
from collections.abc import Iterator
from typing import Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Scenario
from killproof_chaos.sim.scenarios.core import work_once, work_twice
from killproof_chaos.workload import Job
from killproof_evidence.evidence import payload_digest

RUN: Final = "r1"
NEEDS: Final = {"first": (), "left": ("first",), "right": ("first",), "last": ("left", "right")}
LAST_ATTEMPTS: Final = 2


def _steps(max_attempts: int) -> list[Job]:
    return [
        Job(
            id=f"{RUN}.{name}",
            kind="report",
            max_attempts=max_attempts,
            needs=tuple(f"{RUN}.{need}" for need in needs),
        )
        for name, needs in NEEDS.items()
    ]


def start_diamond(me: Actor) -> None:
    """Start the run; in the history it is the enqueue of each of its steps."""
    from killproof.workflow import Workflow, Workflows

    steps, flow = _steps(LAST_ATTEMPTS), Workflow("chaos")
    for step in steps:
        options = {name: value for name, value in step.options().items() if name != "key"}
        flow.add(
            step.id.removeprefix(f"{RUN}."),
            kind=step.kind,
            payload=step.payload(),
            needs=[need.removeprefix(f"{RUN}.") for need in step.needs or ()],
            **options,
        )

    def start() -> dict[str, object]:
        number = Workflows(me.client).start(flow, key=RUN)
        rows = me.client.database.peek("SELECT name, job_id FROM workflow_step ORDER BY job_id")
        return {"run": number, "jobs": {f"{RUN}.{name}": job for name, job in rows}}

    asked = [step.summary() | {"digest": payload_digest(step.payload())} for step in steps]
    me.call(
        "start",
        start,
        value={"run": RUN, "steps": asked},
        told=lambda result: {"value": result},
    )


def start_and_do_the_first(me: Actor) -> None:
    """Start the run and do the step that the two in the middle wait for."""
    start_diamond(me)
    me.work()


def fail_then_work(me: Actor) -> None:
    """Fail what it claims first, for good, and work on the next."""
    if lease := me.claim():
        me.call(
            "nack",
            lambda: me.client.nack(lease, "on purpose", permanent=True),
            job=lease.job.id,
            fence=lease.fence,
            value={"permanent": True},
            refused=False,
        )
    me.work()


EARLY: Final = """
    SELECT step.name, needed.name
      FROM workflow_need AS need
      JOIN workflow_step AS step ON step.job_id = need.job_id
      JOIN workflow_step AS needed ON needed.job_id = need.needs_job_id
     WHERE (SELECT min(seq) FROM killproof_audit
             WHERE job = need.job_id AND new = 'leased')
           < coalesce((SELECT min(seq) FROM killproof_audit
                        WHERE job = need.needs_job_id AND new = 'succeeded'), 1e18)"""


def in_order(database: sqlite3.Connection) -> Iterator[str]:
    """Say which step was claimed before a need had succeeded, and what its run does not know."""
    from killproof.workflow_view import FAULTS

    for step, need in database.execute(EARLY):
        yield f"step {step!r} was claimed before {need!r}, which it needs, had succeeded"
    for text, statement in FAULTS:
        for row in database.execute(statement):
            yield text.format(row[0])


OPERATIONS: Final = frozenset({"enqueue", "claim", "ack", "workflow", "transaction"})

DIAMOND: Final = Scenario(
    name="diamond",
    text="two workers go through a run of four steps, two of which may be done at once",
    actors={"w1": work_twice, "w2": work_twice},
    prepare=start_diamond,
    checks={"P23": in_order},
    needs=OPERATIONS,
)
DIAMOND_LOST: Final = Scenario(
    name="diamond-lost",
    text="two workers do the steps in the middle; one dies, or is stopped past its lease",
    actors={"w1": work_once, "w2": work_twice},
    prepare=start_and_do_the_first,
    faults=Faults(crashes=1, passes=1),
    checks={"P23": in_order},
    needs=OPERATIONS,
)
DIAMOND_FAILED: Final = Scenario(
    name="diamond-failed",
    text="a step of such a run fails for good while another works",
    actors={"w1": fail_then_work, "w2": work_twice},
    prepare=start_diamond,
    checks={"P23": in_order},
    needs=OPERATIONS | {"nack"},
)
SCENARIOS: Final = (DIAMOND, DIAMOND_LOST, DIAMOND_FAILED)
