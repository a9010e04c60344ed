"""What other parts of the queue have to show on the page: limits, workflow runs, schedules.

Each tells by its own list, in the words of its own command with `--json`; a file in which it was
never used has nothing of the kind, and is not given any tables by somebody who looks.
"""

from dataclasses import asdict
from typing import Final

from killproof import workflow_view
from killproof.core.jobs import Queue
from killproof.limits import Limits
from killproof.limits_aging import ages
from killproof.schedule import Schedules
from killproof.wording import moment

#: Runs of one list: the latest ones.
RUNS_MAX: Final = 100


def limits(queue: Queue) -> dict[str, object]:
    """Return what `killproof limits --json` prints.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    return {"limits": [asdict(one) for one in Limits(queue).list()], "aging": ages(queue)}


def runs(queue: Queue, *, state: str | None = None) -> dict[str, object]:
    """Return the latest runs of workflows, without their steps.

    Raises:
        ValueError: the state is unknown; definite.
        KillproofError: as for `Queue.counts`.
    """
    found = workflow_view.runs(queue, state=state, limit=RUNS_MAX)
    return {"workflows": [_without_steps(run) for run in found]}


def run(queue: Queue, run_id: int) -> dict[str, object]:
    """Return what `killproof workflow show ID --json` prints.

    Raises:
        JobNotFound: there is no such run; definite.
        KillproofError: as for `Queue.counts`.
    """
    found = workflow_view.run(queue, run_id)
    steps = [asdict(step) | {"result": workflow_view.decoded(step)} for step in found.steps]
    return _without_steps(found) | {"steps": steps}


def _without_steps(run: workflow_view.Run) -> dict[str, object]:
    return {name: value for name, value in asdict(run).items() if name != "steps"}


def progress(queue: Queue, job_id: int) -> dict[str, object]:
    """Return what a job said of its progress, and the steps inside it that are done.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    told, stored = workflow_view.progress(queue, job_id)
    return {"progress": None if told is None else asdict(told), "stored_steps": stored}


def schedules(queue: Queue) -> dict[str, object]:
    """Return the schedules as `killproof schedules list --json` prints them.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    found = [
        asdict(one)
        | {
            "next": "" if one.next_ms is None else moment(one.next_ms),
            "last_slot": "" if one.last_slot_ms is None else moment(one.last_slot_ms),
        }
        for one in Schedules(queue).list()
    ]
    return {"schedules": found}
