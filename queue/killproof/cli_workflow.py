"""The commands for workflows: which runs there are, where one stands, and what to do with it."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Final

import typer

from killproof import workflow_memo, workflow_view
from killproof.cli_terminal import (
    DB_DEFAULT,
    AsJson,
    Db,
    JobId,
    error_line,
    existing,
    plain,
    print_json,
    print_table,
    seconds_of,
    shown,
    table_of,
)
from killproof.core.clock import SystemClock
from killproof.wording import count_of, moment, printable, span
from killproof.workflow import Workflows
from killproof.workflow_view import Run, StepView

app = typer.Typer()
workflow = typer.Typer(
    no_args_is_help=True, help="Runs of workflows: steps in order or as a graph, each a job."
)
app.add_typer(workflow, name="workflow")

RunId = Annotated[int, typer.Argument(metavar="RUN", help="The run's id: killproof workflow list.")]
#: Jobs of one fan-out that are shown one by one; of more, those that need a look.
ITEMS_SHOWN_MAX: Final = 5
#: Columns beyond which a branch is not set in any more.
DEPTH_MAX: Final = 20
STYLES: Final = {
    **{"failed": "red", "dead": "red", "compensation_failed": "red", "succeeded": "green"},
    **{"held": "yellow", "retryable": "yellow", "cancelled": "dim", "expired": "red"},
    **{"blocked": "dim", "compensating": "yellow", "compensated": "yellow", "leased": "bold"},
}
#: Of a line that stands for many steps.
MANY: Final = "≡"
MARKS: Final = {
    **{"succeeded": "●", "leased": "◐", "dead": "✗", "expired": "✗", "cancelled": "-"},
    **{"held": "!", "retryable": "◌"},
}


@workflow.command("list")
def list_runs(
    db: Db = DB_DEFAULT,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only runs in this state.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs of this workflow.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Runs at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first."""
    with existing(db) as queue:
        found = workflow_view.runs(queue, state=state, name=name, limit=limit)
    if as_json:
        print_json([_fields(run) for run in found])
        return
    if not found:
        print(f"no {state} runs" if state else "no runs")
        return
    now_ms = SystemClock().now_ms()
    table = table_of("run", "workflow", "key", "state", "steps", "took", right=("run", "steps"))
    for run in found:
        table.add_row(
            str(run.id),
            plain(shown(run.name)),
            plain(shown(run.key or "")),
            run.state,
            f"{run.succeeded}/{run.total}",
            span((run.finished_ms or now_ms) - run.created_ms),
            style=STYLES.get(run.state, ""),
        )
    print_table(table)


@workflow.command()
def show(run_id: RunId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Show one run: its steps in order, branches set in, with states, times and results."""
    with existing(db) as queue:
        run = workflow_view.run(queue, run_id)
    if as_json:
        steps = [asdict(step) | {"result": workflow_view.decoded(step)} for step in run.steps]
        print_json(_fields(run) | {"steps": steps})
        return
    now_ms = SystemClock().now_ms()
    key = f" with key {printable(run.key)}" if run.key else ""
    print(f"run {run.id} of {printable(run.name)}{key} is {run.state}: {_standing(run, now_ms)}")
    table = table_of("step", "job", "state", "took", "after", "what", right=("job", "took"))
    names = {step.job_id: step.name for step in run.steps}
    for mark, label, step, text in _lines(run, now_ms):
        after = sorted({names[need] for need in step.needs if need in names})
        table.add_row(
            plain(f"{mark} {printable(label)}"),
            *(
                ("", "", "")
                if mark == MANY
                else (str(step.job_id), step.state, _took(step, now_ms))
            ),
            plain(shown(", ".join(after))),
            plain(shown(text)),
            style="" if mark == MANY else STYLES.get(step.state, ""),
        )
    print_table(table)
    for remedy in _remedies(run):
        print(remedy)


def _fields(run: Run) -> dict[str, object]:
    fields = asdict(run)
    del fields["steps"]
    return fields


def _standing(run: Run, now_ms: int) -> str:
    text = f"{run.succeeded} of {count_of(run.total, 'step')} succeeded"
    text += f", {'took' if run.finished_ms else 'for'} "
    text += span((run.finished_ms or now_ms) - run.created_ms)
    if run.expires_ms is not None and run.finished_ms is None:
        left_ms = run.expires_ms - now_ms
        text += f", deadline {f'in {span(left_ms)}' if left_ms > 0 else moment(run.expires_ms)}"
    return text


def _lines(run: Run, now_ms: int) -> list[tuple[str, str, StepView, str]]:
    """Return what is shown of each step, long fan-outs as one line and those that need a look."""
    found: list[tuple[str, str, StepView, str]] = []
    depths = depths_of(run)
    items = Counter(step.name for step in run.steps if step.item and not step.undoes)
    said: set[str] = set()
    for step in run.steps:
        indent = "  " * depths[step.job_id]
        many = items[step.name] > ITEMS_SHOWN_MAX and not step.undoes
        if many and step.name not in said:
            said.add(step.name)
            same = [one.state for one in run.steps if one.name == step.name and not one.undoes]
            counts = ", ".join(f"{number:,} {state}" for state, number in Counter(same).items())
            found.append((MANY, f"{indent}{step.name} x{len(same)}", step, counts))
        needs_a_look = step.state in ("dead", "expired", "held", "retryable", "leased")
        if not many or (needs_a_look and len(found) < 10 * ITEMS_SHOWN_MAX):
            mark = MARKS.get(step.state, "○")
            found.append((mark, f"{indent}{_label(step)}", step, _what(step, now_ms)))
    return found


def depths_of(run: Run) -> dict[int, int]:
    """Return how far each step is set in: a branch by one, a join back to where it branched.

    A sequence stays in its column, however long it is.
    """
    steps = {step.job_id: step for step in run.steps}
    users: dict[int, list[int]] = {job_id: [] for job_id in steps}
    missing: dict[int, int] = {}
    for step in run.steps:
        needs = [need for need in step.needs if need in steps]
        missing[step.job_id] = len(needs)
        for need in needs:
            users[need].append(step.job_id)
    depths: dict[int, int] = {}
    free = [job_id for job_id, number in missing.items() if not number]
    while free:
        job_id = free.pop()
        step = steps[job_id]
        known = [depths[need] for need in step.needs if need in depths]
        if len(known) == 1:
            branches = len(users[step.needs[0]]) > 1 or step.item > 0
            depths[job_id] = min(known[0] + branches, DEPTH_MAX)
        else:
            depths[job_id] = max(min(known) - 1, 0) if known else 0
        for user in users[job_id]:
            missing[user] -= 1
            if not missing[user]:
                free.append(user)
    return depths


def _label(step: StepView) -> str:
    name = f"{step.name} {step.item}" if step.item else step.name
    return f"undo {name}" if step.undoes else name


def _took(step: StepView, now_ms: int) -> str:
    if step.claimed_ms is None:
        return ""
    if step.state == "leased":
        return span(now_ms - step.claimed_ms)
    return span(step.finished_ms - step.claimed_ms) if step.finished_ms else ""


def _what(step: StepView, now_ms: int) -> str:
    """Say what a person wants to know of a step."""
    attempts = f"attempt {step.attempt} of {step.max_attempts}"
    error = error_line(step.error_class, step.error_message) if step.error_class else ""
    match step.state:
        case "succeeded":
            return step.result or ""
        case "leased":
            return f"{attempts}{_progress(step)}"
        case "retryable":
            wait_ms = step.due_ms - now_ms
            when = f"in {span(wait_ms)}" if wait_ms > 0 else "now"
            return f"next try {when}, after {attempts}: {error}"
        case "scheduled":
            return f"due in {span(max(step.due_ms - now_ms, 0))}"
        case "dead":
            return f"{attempts}: {error}"
        case "cancelled":
            return "with what it needs" if step.is_swept else "called off"
        case "held":
            return error
    return ""


def _progress(step: StepView) -> str:
    told = step.progress
    if told is None or not told.is_current:
        return ""
    return f", {told.text}"


def _remedies(run: Run) -> list[str]:
    match run.state:
        case "failed" | "cancelled":
            return [f"go on where it stopped: killproof workflow replay {run.id}"]
        case "compensation_failed":
            return [f"go on with the compensation: killproof workflow replay {run.id}"]
        case "running":
            held = [step.job_id for step in run.steps if step.state == "held"]
            return [f"job {job_id} is held: killproof explain {job_id}" for job_id in held[:3]]
    return []


@workflow.command()
def cancel(
    run_id: RunId,
    db: Db = DB_DEFAULT,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not compensate what has succeeded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Call a run off: nothing of it starts any more, and what was done is compensated."""
    with existing(db) as queue:
        changed = Workflows(queue).cancel(run_id, compensate=not keep)
        run = workflow_view.run(queue, run_id)
    if not changed:
        raise ValueError(f"run {run_id} is {run.state}: nothing was changed")
    if as_json:
        print_json(_fields(run))
    else:
        print(f"run {run_id} is {run.state}")


@workflow.command()
def replay(run_id: RunId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Let a run go on where it failed; what has succeeded is not run again."""
    with existing(db) as queue:
        moved = Workflows(queue).replay(run_id)
        run = workflow_view.run(queue, run_id)
    if as_json:
        print_json(_fields(run) | {"moved": moved})
        return
    ids = ", ".join(str(job_id) for job_id in moved[:20])
    print(f"run {run_id} is {run.state}: replayed {count_of(len(moved), 'step')} (job {ids})")


@workflow.command("report")
def print_report(
    db: Db = DB_DEFAULT,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="Means are of runs that succeeded since then.")
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Count the runs of each workflow by state, with the mean times of runs and steps."""
    seconds = seconds_of(window, "--window")
    with existing(db) as queue:
        found = workflow_view.report(queue, window=seconds)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        print("no runs")
        return
    table = table_of("workflow", "step", "runs", "mean", right=("mean",))
    for one in found:
        counts = ", ".join(f"{number:,} {state}" for state, number in one.counts.items())
        mean = "" if one.mean_ms is None else span(round(one.mean_ms))
        table.add_row(plain(shown(one.name)), "", counts, mean)
        for step in one.steps:
            table.add_row(
                "", plain(shown(step.name)), f"{step.number:,}", span(round(step.mean_ms))
            )
    print_table(table)


@workflow.command()
def forget(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Forget the stored steps of a handler that uses `memo`: its next attempt begins anew."""
    with existing(db) as queue:
        number = workflow_memo.forget(queue, job_id)
    if as_json:
        print_json({"id": job_id, "forgotten": number})
    else:
        print(f"forgot {count_of(number, 'step')} of job {job_id}")
