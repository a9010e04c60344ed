"""Runs as people see them: lists, one run with its steps, what a step waits for, and means.

Everything here is one short read, without a lock: it is advice for people, and may be a moment old.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString, cast

from killproof import workflow_memo, workflow_tables
from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import JobNotFound
from killproof.core.jobs import Queue

RUNS_MAX: Final = 10_000
#: Characters of a step's result that are read; `killproof show JOB` has all of it.
RESULT_CHARS_MAX: Final = 1_000
#: Runs whose steps make the means of a report, the latest.
REPORT_RUNS_MAX: Final = 1_000
#: Needs of a blocked step that are named.
UNMET_MAX: Final = 5

STATES: Final = (
    *("running", "compensating", "succeeded", "failed"),
    *("cancelled", "compensated", "compensation_failed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job said it is."""

    done: float
    total: float | None
    note: str
    told_ms: int
    is_current: bool  #: told by the latest delivery

    @property
    def text(self) -> str:
        """What a person reads: 40 of 100: rows."""
        amount = f"{self.done:g}" + ("" if self.total is None else f" of {self.total:g}")
        return f"{amount}: {self.note}" if self.note else amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step, and the job that it is."""

    job_id: int
    name: str
    number: int  #: its place in the definition
    item: int  #: 1 and up: one of a fan-out, its place in the list
    undoes: int  #: the job that it compensates, else 0
    kind: str
    state: str  #: of the job
    is_swept: bool  #: cancelled with a step that it needs: comes back when that has succeeded
    needs: tuple[int, ...]
    attempt: int
    max_attempts: int
    due_ms: int
    claimed_ms: int | None
    finished_ms: int | None
    error_class: str | None
    error_message: str | None
    result: str | None  #: JSON, cut to `RESULT_CHARS_MAX` characters
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run; `steps` is filled by `run` only."""

    id: int
    name: str
    key: str | None
    state: str
    total: int  #: steps, without compensations
    succeeded: int
    created_ms: int
    finished_ms: int | None
    expires_ms: int | None
    steps: tuple[StepView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMean:
    """What one step took, over the runs of a report."""

    name: str
    number: int  #: executions that succeeded
    mean_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One workflow: its runs by state, and what those took that succeeded."""

    name: str
    counts: dict[str, int]
    mean_ms: float | None  #: from start to success
    steps: list[StepMean] = field(default_factory=list)


ALL: Final = """
    SELECT id, name, key, state, steps, succeeded, created_ms, finished_ms, expires_ms
      FROM workflow_run
     WHERE name = coalesce(:name, name) ORDER BY id DESC LIMIT :limit"""

IN_STATE: Final = """
    SELECT id, name, key, state, steps, succeeded, created_ms, finished_ms, expires_ms
      FROM workflow_run
     WHERE state = :state AND name = coalesce(:name, name)
     ORDER BY finished_ms DESC, id DESC LIMIT :limit"""

ONE: Final = """
    SELECT id, name, key, state, steps, succeeded, created_ms, finished_ms, expires_ms
      FROM workflow_run WHERE id = :id"""


def runs(
    queue: Queue, *, state: str | None = None, name: str | None = None, limit: int = 20
) -> list[Run]:
    """Return runs, the latest first, without their steps.

    Raises:
        ValueError: the state is unknown, or the limit is not from 1 to `RUNS_MAX`; definite.
        KillproofError: as for `Queue.counts`.
    """
    model.check_count(limit, "limit", 1, RUNS_MAX)
    if state is not None and state not in STATES:
        raise ValueError(f"state {state!r} is unknown: use one of {', '.join(STATES)}")
    statement: LiteralString = ALL if state is None else IN_STATE
    with queue.database.read() as tx:
        if not workflow_tables.exists(tx):
            return []
        found = tx.rows(statement, {"state": state, "name": name, "limit": limit})
    return [_run(row) for row in found]


STEPS: Final = """
    SELECT step.job_id, step.name, number, item, undoes, kind, state, swept_by IS NOT NULL,
           deliveries - forgiven, max_attempts, due_ms, claimed_ms, finished_ms,
           error_class, error_message, substr(result, 1, :chars_max)
      FROM workflow_step AS step JOIN job ON job.id = step.job_id
     WHERE run_id = :id ORDER BY undoes > 0, iif(undoes > 0, job_id, number), item, job_id"""

NEEDS: Final = """
    SELECT DISTINCT step.job_id, needs_job_id
      FROM workflow_step AS step JOIN workflow_need AS need ON need.job_id = step.job_id
     WHERE run_id = :id AND spread = '' ORDER BY needs_job_id"""

PROGRESS: Final = """
    SELECT step.job_id, done, total, note, told_ms, job.fence = told.fence
      FROM workflow_step AS step
      JOIN workflow_progress AS told ON told.job_id = step.job_id
      JOIN job ON job.id = step.job_id
     WHERE run_id = :id"""


def run(queue: Queue, run_id: int) -> Run:
    """Return a run with its steps: those of the definition in its order, then compensations.

    Raises:
        JobNotFound: there is no such run; definite.
        KillproofError: as for `Queue.counts`.
    """
    model.check_count(run_id, "run", 1, (1 << 63) - 1)
    values: dict[str, Value] = {"id": run_id, "chars_max": RESULT_CHARS_MAX}
    with queue.database.read() as tx:
        row = tx.row(ONE, values) if workflow_tables.exists(tx) else None
        if row is None:
            raise JobNotFound(
                f"there is no run {run_id} in {queue.path}: see killproof workflow list"
            )
        rows = tx.rows(STEPS, values)
        needs: dict[int, list[int]] = {}
        for job_id, need in cast(list[tuple[int, int]], tx.rows(NEEDS, values)):
            needs.setdefault(job_id, []).append(need)
        told: dict[int, Progress] = {}
        if workflow_memo.exists(tx):
            told = {cast(int, one[0]): _progress(one[1:]) for one in tx.rows(PROGRESS, values)}
    steps = tuple(_step(step, needs, told) for step in cast(list[tuple[Any, ...]], rows))
    return _run(row, steps)


def _run(row: tuple[Value, ...], steps: tuple[StepView, ...] = ()) -> Run:
    run_id, name, key, state, total, succeeded, created_ms, finished_ms, expires_ms = cast(Any, row)
    return Run(
        id=run_id,
        name=name,
        key=key,
        state=state,
        total=total,
        succeeded=succeeded,
        created_ms=created_ms,
        finished_ms=finished_ms,
        expires_ms=expires_ms,
        steps=steps,
    )


def _step(row: tuple[Any, ...], needs: dict[int, list[int]], told: dict[int, Progress]) -> StepView:
    return StepView(
        job_id=row[0],
        name=row[1],
        number=row[2],
        item=row[3],
        undoes=row[4],
        kind=row[5],
        state=row[6],
        is_swept=bool(row[7]),
        needs=tuple(needs.get(row[0], ())),
        attempt=row[8],
        max_attempts=row[9],
        due_ms=row[10],
        claimed_ms=row[11],
        finished_ms=row[12],
        error_class=row[13],
        error_message=row[14],
        result=row[15],
        progress=told.get(row[0]),
    )


def _progress(row: tuple[Any, ...]) -> Progress:
    return Progress(done=row[0], total=row[1], note=row[2], told_ms=row[3], is_current=bool(row[4]))


PROGRESS_OF: Final = """
    SELECT done, total, note, told_ms, job.fence = told.fence
      FROM workflow_progress AS told JOIN job ON job.id = told.job_id
     WHERE told.job_id = :id"""

MEMO_OF: Final = "SELECT name FROM workflow_memo WHERE job_id = :id ORDER BY place"


def progress(queue: Queue, job_id: int) -> tuple[Progress | None, tuple[str, ...]]:
    """Return what a job said of its progress, and the memoised steps that it has done."""
    if not queue.database.peek(workflow_memo.VERSION):
        return None, ()
    told = queue.database.peek(PROGRESS_OF, {"id": job_id})
    names = tuple(str(name) for (name,) in queue.database.peek(MEMO_OF, {"id": job_id}))
    return (_progress(told[0]) if told else None), names


WAITS_FOR: Final = """
    SELECT step.name, step.item, job.id, job.state
      FROM workflow_need AS need
      JOIN workflow_step AS step ON step.job_id = need.needs_job_id
      JOIN job ON job.id = need.needs_job_id
     WHERE need.job_id = :id AND job.state <> 'succeeded'
     ORDER BY job.id LIMIT :limit"""

#: States of a run in which what has been done is taken back.
UNDOING: Final = frozenset({"compensating", "compensated", "compensation_failed"})

BELONGS_TO: Final = """
    SELECT run.id, run.name, run.state, step.name, step.unmet, step.swept_by, step.undoes
      FROM workflow_step AS step JOIN workflow_run AS run ON run.id = step.run_id
     WHERE step.job_id = :id"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job stands in its run."""

    run_id: int
    workflow: str
    run_state: str
    step: str
    unmet: int
    swept_by: int | None
    is_compensation: bool
    waits_for: tuple[tuple[str, int, str], ...]  #: (step, job, its state), `UNMET_MAX` at most

    @property
    def may_be_replayed(self) -> bool:
        """Whether the trigger `workflow_step_guard` would let it go again."""
        is_undone = not self.is_compensation and self.run_state in UNDOING
        return not self.unmet and not is_undone


def place_of(tx: Transaction, job_id: int) -> Place | None:
    """Return where a job stands in its run; None if it is outside of any."""
    if not workflow_tables.exists(tx):
        return None
    row = cast(Any, tx.row(BELONGS_TO, {"id": job_id}))
    if row is None:
        return None
    unmet = tx.rows(WAITS_FOR, {"id": job_id, "limit": UNMET_MAX})
    return Place(
        run_id=row[0],
        workflow=row[1],
        run_state=row[2],
        step=row[3],
        unmet=row[4],
        swept_by=row[5],
        is_compensation=row[6] != 0,
        waits_for=tuple(
            (f"{name} {item}" if item else name, need, state)
            for name, item, need, state in cast(list[tuple[str, int, int, str]], unmet)
        ),
    )


COUNT: Final = "SELECT name, state, count(*) FROM workflow_run GROUP BY name, state"

LATEST: Final = """
    SELECT name, avg(finished_ms - created_ms)
      FROM (SELECT name, finished_ms, created_ms FROM workflow_run
             WHERE state = 'succeeded' AND finished_ms >= :since_ms
             ORDER BY finished_ms DESC LIMIT :limit)
     GROUP BY name"""

STEP_MEANS: Final = """
    SELECT run.name, step.name, count(*), avg(attempt.finished_ms - attempt.started_ms)
      FROM (SELECT id, name FROM workflow_run
             WHERE state = 'succeeded' AND finished_ms >= :since_ms
             ORDER BY finished_ms DESC LIMIT :limit) AS run
      JOIN workflow_step AS step ON step.run_id = run.id
      JOIN attempt ON attempt.job_id = step.job_id AND attempt.outcome = 'succeeded'
     GROUP BY run.name, step.name ORDER BY run.name, min(step.number)"""


def report(queue: Queue, *, window: float = 7 * 86_400.0, with_steps: bool = True) -> list[Report]:
    """Return each workflow with its runs by state and the mean times of those that succeeded.

    Args:
        queue: where they are.
        window: seconds; means are of runs that succeeded since then, the latest 1,000 of them.
        with_steps: False leaves out the means of steps, which read every attempt of those runs.

    Raises:
        ValueError: the window is no time; definite.
        KillproofError: as for `Queue.counts`.
    """
    since_ms = queue.host.clock.now_ms() - model.to_ms(window, "window")
    values: dict[str, Value] = {"since_ms": since_ms, "limit": REPORT_RUNS_MAX}
    with queue.database.read() as tx:
        if not workflow_tables.exists(tx):
            return []
        counted = cast(list[tuple[str, str, int]], tx.rows(COUNT))
        means = dict(cast(list[tuple[str, float]], tx.rows(LATEST, values)))
        rows = tx.rows(STEP_MEANS, values) if with_steps else []
        steps = cast(list[tuple[str, str, int, float]], rows)
    found: dict[str, Report] = {}
    for name, state, number in counted:
        one = found.setdefault(name, Report(name=name, counts={}, mean_ms=means.get(name)))
        one.counts[state] = number
    for name, step, number, mean_ms in steps:
        found[name].steps.append(StepMean(name=step, number=number, mean_ms=mean_ms))
    return list(found.values())


def decoded(step: StepView) -> object:
    """Return a step's result; None for none, and for one that was cut."""
    if step.result is None or len(step.result) >= RESULT_CHARS_MAX:
        return None
    return json.loads(step.result)


FAULTS: Final[tuple[tuple[str, LiteralString], ...]] = (
    (
        "step {} has another outcome than its job",
        """SELECT job_id FROM workflow_step JOIN job ON job.id = job_id
            WHERE coalesce(outcome, '') <> iif(finished_ms IS NULL, '', state)""",
    ),
    (
        "step {} counts other unmet needs than it has",
        """SELECT job_id FROM workflow_step AS step
            WHERE unmet <> (SELECT count(*) FROM workflow_need AS need
                              LEFT JOIN job ON job.id = need.needs_job_id
                             WHERE need.job_id = step.job_id
                               AND coalesce(job.state, '') <> 'succeeded')""",
    ),
    (
        "step {} is blocked and waits for nothing",
        """SELECT job_id FROM workflow_step JOIN job ON job.id = job_id
            WHERE state = 'blocked' AND unmet = 0""",
    ),
    (
        "step {} goes on before its needs have succeeded",
        """SELECT job_id FROM workflow_step JOIN job ON job.id = job_id
            WHERE unmet > 0 AND state IN ('available', 'scheduled', 'leased', 'retryable',
                                          'succeeded', 'dead')""",
    ),
    (
        "run {} is in another state than its steps say",
        """SELECT id FROM workflow_run AS run
            WHERE (state IN ('running', 'compensating'))
                  <> EXISTS (SELECT 1 FROM workflow_step
                              WHERE run_id = run.id AND outcome IS NULL)
               OR (state = 'succeeded')
                  <> NOT EXISTS (SELECT 1 FROM workflow_step
                                  WHERE run_id = run.id AND undoes = 0
                                    AND coalesce(outcome, '') <> 'succeeded')
               OR (state IN ('compensating', 'compensated', 'compensation_failed'))
                  <> EXISTS (SELECT 1 FROM workflow_step WHERE run_id = run.id AND undoes > 0)""",
    ),
    (
        "run {} counts other steps than it has",
        """SELECT id FROM workflow_run AS run
            WHERE steps <> (SELECT count(*) FROM workflow_step
                             WHERE run_id = run.id AND undoes = 0)
               OR succeeded <> (SELECT count(*) FROM workflow_step
                                 WHERE run_id = run.id AND undoes = 0
                                   AND outcome = 'succeeded')""",
    ),
)


def faults(queue: Queue) -> list[str]:
    """Compare what the tables of workflows repeat with the jobs; return what does not agree.

    It reads every step that is in the file: for `doctor` and for tests.
    """
    with queue.database.read() as tx:
        if not workflow_tables.exists(tx):
            return []
        return [text.format(row[0]) for text, statement in FAULTS for row in tx.rows(statement)]
