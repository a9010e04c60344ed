"""The commands that look at jobs and decide about them."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from killproof import alerts, listing, metrics, operations, workflow_view
from killproof.cli_terminal import (
    DB_DEFAULT,
    EXIT_FAULT,
    SHOWN_JOBS_MAX,
    AsJson,
    Db,
    JobId,
    demand,
    error_line,
    existing,
    plain,
    print_json,
    print_table,
    seconds_of,
    shown,
    style_of,
    table_of,
)
from killproof.core.clock import SystemClock
from killproof.core.errors import JobNotFound
from killproof.core.model import STATES, Attempt, Job
from killproof.listing import summary as summary
from killproof.wording import count_of, printable, span

app = typer.Typer()


def _states(incomplete: str) -> list[str]:
    """Return what a shell may complete a state to."""
    return [state for state in STATES if state.startswith(incomplete)]


State = Annotated[
    str | None,
    typer.Option(metavar="STATE", help="Only in this state.", autocompletion=_states),
]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Only jobs of this kind.")]
Limit = Annotated[int, typer.Option(metavar="N", help="Jobs at most.")]


@app.command()
def status(
    db: Db = DB_DEFAULT,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=MOST]",
            help="Exit 1 if there are more than MOST (0) jobs in a state, or the oldest waits "
            "longer: dead, held=5, age=10min. May be repeated.",
        ),
    ] = None,
    is_watched: Annotated[
        bool, typer.Option("--watch", help="Look again and again, as killproof panel does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the jobs by state; with --alert, exit 1 when one of the limits is exceeded."""
    if is_watched:
        if alert:
            raise ValueError("--watch and --alert exclude each other: an alert is an exit code")
        from killproof.cli_panel import watch

        watch(db, every=None, is_once=False, as_json=as_json)
        return
    limits = [_limit(text) for text in alert or ()]
    with existing(db) as queue:
        counts = queue.counts()
        waiting = sorted(operations.waiting_kinds(queue))
        age_ms = metrics.oldest_ms(queue)
        path, durability = queue.path, queue.durability
    found = alerts.alerts(limits, counts, age_ms)
    if as_json:
        report: dict[str, object] = {"path": path, "durability": durability, "counts": counts}
        report |= {"waiting_kinds": waiting, "oldest_waiting_ms": age_ms}
        print_json(report | {"alerts": [asdict(one) for one in found]})
    else:
        table = table_of("state", "jobs")
        for state, count in counts.items():
            if count or state in ("available", "leased", "succeeded", "dead"):
                table.add_row(state, f"{count:,}", style=style_of(state, count))
        print_table(table)
        if waiting:
            print(f"oldest waiting: {span(age_ms)}")
            print(f"waiting kinds: {printable(', '.join(waiting))}")
        for one in found:
            print(f"ALERT {one.text}")
    if found:
        raise typer.Exit(EXIT_FAULT)


def _limit(text: str) -> alerts.Limit:
    """Return the limit that NAME or NAME=MOST stands for."""
    name, equals, most = text.partition("=")
    if not equals:
        return alerts.limit(name, 0)
    if name == alerts.AGE:
        return alerts.limit(name, seconds_of(most, f"--alert {name}"))
    if not most.isdecimal():
        raise ValueError(f"--alert {text!r}: write {name}=NUMBER")
    return alerts.limit(name, int(most))


@app.command("jobs")
def list_jobs(
    db: Db = DB_DEFAULT,
    state: State = None,
    kind: Kind = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, the latest first."""
    with existing(db) as queue:
        found = listing.jobs(queue, state=state, kind=kind, limit=limit)
    _print_jobs(found, as_json=as_json, name=f"{state} jobs" if state else "jobs")


@app.command()
def dead(
    db: Db = DB_DEFAULT, kind: Kind = None, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List the dead letters with their errors, the latest first."""
    with existing(db) as queue:
        found = listing.jobs(queue, state="dead", kind=kind, limit=limit)
    _print_jobs(found, as_json=as_json, name="dead letters")
    if found and not as_json:
        print("all attempts: killproof show ID; again: killproof replay ID, or --state dead")


def _print_jobs(jobs: list[Job], *, as_json: bool, name: str) -> None:
    now_ms = SystemClock().now_ms()
    if as_json:
        print_json([listing.as_row(job, now_ms) for job in jobs])
        return
    if not jobs:
        print(f"no {name}")
        return
    table = table_of("id", "kind", "state", "prio", "age", "what comes next", right=("id", "prio"))
    for job in jobs:
        table.add_row(
            str(job.id),
            plain(shown(job.kind)),
            job.state,
            str(job.priority),
            span(now_ms - (job.finished_ms or job.created_ms)),
            plain(printable(summary(job, now_ms))),
            style=style_of(job.state, 1),
        )
    print_table(table)


@app.command("explain")
def explain_job(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Say which rule keeps a job from running, and what to do about it."""
    from killproof.explain import explain

    with existing(db) as queue:
        found = explain(queue, job_id)
    if as_json:
        reasons = [asdict(reason) for reason in found.reasons]
        keeping = [reason.rule for reason in found.keeping]
        report = {"id": job_id, "kind": found.job.kind, "state": found.job.state}
        print_json(report | {"keeping": keeping, "reasons": reasons})
        return
    print(f"job {job_id} of kind {printable(found.job.kind)} is {found.job.state}")
    for reason in found.reasons:
        print(f"  {'-' if reason.keeps else '+'} {reason.rule}: {printable(reason.text)}")
        if reason.remedy:
            print(f"      -> {printable(reason.remedy)}")
    if not found.keeping:
        print("nothing keeps it: the next claim takes it")


@app.command()
def show(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Show one job: what happens next, and every attempt with its error."""
    with existing(db) as queue:
        job = queue.get(job_id)
        progress, stored = workflow_view.progress(queue, job_id)
    if job is None:
        raise JobNotFound(f"there is no job {job_id} in {db}: see killproof status --db {db}")
    now_ms = SystemClock().now_ms()
    if as_json:
        told = {"progress": None if progress is None else asdict(progress), "stored_steps": stored}
        print_json(listing.as_page(job, now_ms) | told)
        return
    print(f"job {job.id} of kind {printable(job.kind)}: {summary(job, now_ms)}")
    facts = [f"priority {job.priority}", f"enqueued {span(now_ms - job.created_ms)} ago"]
    facts += [f"retry {job.retry}", f"lease {span(job.lease_ms)}"]
    facts += [f"key {job.key}"] if job.key is not None else []
    print(printable(", ".join(facts)))
    print(f"payload {shown(json.dumps(job.payload, ensure_ascii=False))}")
    if job.result is not None:
        print(f"result {shown(json.dumps(job.result, ensure_ascii=False))}")
    if progress is not None:
        age = span(now_ms - progress.told_ms)
        print(f"progress {printable(progress.text)}, told {age} ago")
    if stored:
        print(f"stored steps: {shown(', '.join(stored))}")
    _show_attempts(job)


@app.command()
def replay(
    job_ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="Ids of ended jobs.")
    ] = None,
    db: Db = DB_DEFAULT,
    state: Annotated[
        str | None, typer.Option(help="All in this state: dead, cancelled or expired.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only jobs of this kind.")] = None,
    limit: Annotated[
        int, typer.Option(help="Jobs that are moved at most.")
    ] = operations.REPLAY_JOBS_MAX,
    as_json: AsJson = False,
) -> None:
    """Give ended jobs all their attempts again; what they went through stays on record."""
    if not job_ids and state is None:
        raise ValueError("name the jobs by id, or all of a state with --state dead")
    if job_ids and (state is not None or kind is not None):
        raise ValueError("name the jobs by id, or by --state and --kind, not by both")
    with existing(db) as queue:
        done = operations.replay(queue, job_ids or None, state=state, kind=kind, limit=limit)
    if as_json:
        print_json(asdict(done))
    else:
        ids = ", ".join(str(job_id) for job_id in done.moved[:SHOWN_JOBS_MAX])
        more = len(done.moved) - SHOWN_JOBS_MAX
        which = f": {ids}{f' and {more} more' if more > 0 else ''}" if done.moved else ""
        print(f"replayed {count_of(len(done.moved), 'job')}{which}")
    if done.refused:
        raise ValueError("; ".join(f"job {job_id}: {why}" for job_id, why in done.refused))


@app.command()
def reprioritise(
    job_id: JobId,
    priority: Annotated[int, typer.Argument(metavar="PRIORITY", help="0 (urgent) to 9.")],
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change the priority of a job that has not ended."""
    with existing(db) as queue:
        demand(operations.reprioritise(queue, job_id, priority), queue, job_id)
    _say_done(f"job {job_id} has priority {priority}", as_json, id=job_id, priority=priority)


@app.command()
def cancel(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Call a job off; a running one learns it at its next heartbeat."""
    with existing(db) as queue:
        demand(queue.cancel(job_id), queue, job_id)
    _say_done(f"job {job_id} is cancelled", as_json, id=job_id, state="cancelled")


@app.command()
def hold(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Put a waiting job aside."""
    with existing(db) as queue:
        demand(operations.hold(queue, job_id), queue, job_id)
    _say_done(f"job {job_id} is held", as_json, id=job_id, state="held")


@app.command()
def unhold(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Let a held job run now."""
    with existing(db) as queue:
        demand(operations.unhold(queue, job_id), queue, job_id)
    _say_done(f"job {job_id} is available", as_json, id=job_id, state="available")


def _say_done(text: str, as_json: bool, **facts: object) -> None:
    if as_json:
        print_json(facts)
    else:
        print(text)


def _show_attempts(job: Job) -> None:
    if not job.attempts:
        return
    table = table_of("fence", "outcome", "took", "worker", "error", right=("fence", "took"))
    for attempt in job.attempts:
        took = span(attempt.finished_ms - attempt.started_ms)
        error = (
            error_line(attempt.error_class, attempt.error_message) if attempt.error_class else ""
        )
        table.add_row(
            str(attempt.fence), attempt.outcome, took, attempt.worker[:8], plain(shown(error))
        )
    print_table(table)
    failed = [attempt for attempt in job.attempts if attempt.traceback]
    if failed:
        _show_traceback(failed[-1])


def _show_traceback(attempt: Attempt) -> None:
    print(f"\ntraceback of the attempt with fence {attempt.fence}:")
    print(printable(attempt.traceback or "").rstrip())
