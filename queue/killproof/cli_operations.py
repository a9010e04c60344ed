"""The commands for whoever keeps the file: look after it, copy it, empty it, watch it."""

import io
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, TextIO, cast

import typer

from killproof.cli_terminal import (
    DB_DEFAULT,
    EXIT_FAULT,
    AsJson,
    Db,
    Level,
    Steps,
    existing,
    plain,
    print_json,
    print_table,
    seconds_of,
    table_of,
)
from killproof.core.database import Durability
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue
from killproof.wording import count_of, size_of

app = typer.Typer()


@app.command()
def doctor(
    db: Db = DB_DEFAULT,
    repair: Annotated[
        bool, typer.Option("--repair", help="Bring a file back that a disk error has stopped.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the file, its place, this SQLite and the work on it; exit 1 when something is wrong."""
    from killproof import checklist, maintenance

    checks = maintenance.repair(db) if repair else maintenance.doctor(db)
    if not repair and not any(check.status == "fail" for check in checks):
        with existing(db) as queue:
            checks += checklist.checks(queue)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        table = table_of("check", "", "found, and what to do", right=())
        for check in checks:
            style = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
            remedy = f"\n-> {check.remedy}" if check.remedy else ""
            table.add_row(check.name, f"[{style}]{check.status}[/]", plain(check.text + remedy))
        print_table(table)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(EXIT_FAULT)


@app.command("metrics")
def print_metrics(
    db: Db = DB_DEFAULT,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="Times and rates are of jobs that ended within it.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Print the queue's numbers as OpenMetrics text, for a scraper."""
    from killproof import metrics

    with existing(db) as queue:
        families = metrics.collect(queue, window=seconds_of(window, "--window"))
    if as_json:
        print_json(
            {
                family.name: [
                    {"labels": dict(labels), "value": value} for labels, value in family.samples
                ]
                for family in families
            }
        )
    else:
        print(metrics.render(families), end="", file=_in_utf8(sys.stdout))


def _keep(state: str) -> object:
    text = f"Delete those that {state} longer ago than this: 30d, 12h."
    return typer.Option(metavar="TIME", help=text)


@app.command()
def prune(
    db: Db = DB_DEFAULT,
    succeeded: Annotated[str | None, _keep("succeeded")] = None,
    dead: Annotated[str | None, _keep("died")] = None,
    cancelled: Annotated[str | None, _keep("were cancelled")] = None,
    expired: Annotated[str | None, _keep("expired")] = None,
    effects: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Forget effects that were settled longer ago."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and delete nothing.")] = False,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="Then shrink the file; nobody else may have it open."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete jobs that ended long enough ago; never one that has not ended."""
    from killproof import maintenance, retention
    from killproof.payloads import Payloads

    given = {"succeeded": succeeded, "dead": dead, "cancelled": cancelled, "expired": expired}
    keep = {
        state: seconds_of(text, f"--{state}") for state, text in given.items() if text is not None
    }
    if compact and dry_run:
        raise ValueError("--compact changes the file, --dry-run nothing: leave one of them out")
    if not keep and effects is None and not compact:
        raise ValueError("say what to prune: --succeeded 30d, --dead 90d, --cancelled, --expired")
    with existing(db) as queue, Steps("deleted", "jobs") as steps:
        done = retention.prune(
            queue,
            keep,
            effects=None if effects is None else seconds_of(effects, "--effects"),
            dry_run=dry_run,
            progress=steps.show,
        )
        files = None if dry_run else Payloads(queue).collect()
    shrunk = maintenance.compact(queue.path) if compact else None
    if as_json:
        more = {"payloads": asdict(files)} if files and files.files else {}
        print_json(asdict(done) | more | ({"compacted": asdict(shrunk)} if shrunk else {}))
        return
    words = "would delete" if dry_run else "deleted"
    if keep:
        parts = ", ".join(f"{done.deleted[state]:,} {state}" for state in keep)
        runs = f", {count_of(done.deleted['runs'], 'run')} whole" if "runs" in done.deleted else ""
        total = count_of(sum(done.deleted[state] for state in keep), "job")
        print(f"{words} {total}: {parts}{runs}")
    if effects is not None:
        print(f"{words} {count_of(done.deleted['effects'], 'settled effect')}")
    if files is not None and files.files:
        print(f"removed {count_of(files.files, 'large payload')}, {size_of(files.bytes)}")
    if shrunk is not None:
        print(f"the file had {size_of(shrunk.before_bytes)}, it has {size_of(shrunk.after_bytes)}")


@app.command("backup")
def make_backup(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to; the name is made of the time.")
    ],
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy the file while it works, check the copy, and print its path."""
    from killproof.backup import backup

    with existing(db) as queue, Steps("copied", "bytes") as steps:
        done = backup(queue, folder, progress=steps.show)
    if as_json:
        print_json(asdict(done))
    else:
        text = f"{count_of(done.jobs, 'job')}, {size_of(done.bytes)}, integrity_check ok"
        text += f", {count_of(done.payloads, 'large payload')}" if done.payloads else ""
        print(f"killproof: {text}", file=sys.stderr)
        print(done.path)
    _say_lost(done.lost)


@app.command("restore")
def restore_backup(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `backup` printed.")],
    db: Db = DB_DEFAULT,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a file that nobody has open; it is kept beside."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the file from a backup: jobs that ended after it run again, later ones are gone."""
    from killproof.backup import restore

    with Steps("copied", "bytes") as steps:
        done = restore(source, db, force=force, progress=steps.show)
    if as_json:
        print_json(asdict(done))
        _say_lost(done.lost)
        return
    print(f"restored {count_of(done.jobs, 'job')} into {done.path}")
    if done.payloads:
        print(f"restored {count_of(done.payloads, 'large payload')}")
    if done.replaced is not None:
        print(f"what was there is kept as {done.replaced}")
    print("leases are ended; look before you start workers: killproof jobs, killproof doctor")
    _say_lost(done.lost)


def _say_lost(lost: tuple[str, ...]) -> None:
    """Say which large payloads are not in the copy, and end with 1 if there are any."""
    for text in lost:
        print(f"killproof: not in the copy: large payload of {text}", file=sys.stderr)
    if lost:
        raise typer.Exit(EXIT_FAULT)


@app.command("export")
def export_all(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file; - is standard output.")
    ] = Path("-"),
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write all jobs with their attempts as lines of JSON."""
    from killproof import transfer
    from killproof.payload_files import Folder

    is_stdout = str(file) == "-"
    if as_json and is_stdout:
        raise ValueError("--json and the lines can not share standard output: name a FILE")
    with (
        existing(db) as queue,
        nullcontext(_in_utf8(sys.stdout)) if is_stdout else _opened(file, "x") as stream,
    ):
        files = None if is_stdout else Folder(os.path.realpath(file), like=queue.path)
        number = transfer.export_jobs(queue, stream, files=files)
        if not is_stdout:
            os.fsync(stream.fileno())
    if as_json:
        print_json({"exported": number, "file": str(file)})
    else:
        print(f"killproof: exported {count_of(number, 'job')}", file=sys.stderr)


@app.command("import")
def import_all(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; - is standard input.")],
    db: Db = DB_DEFAULT,
    durability: Level = None,
    as_json: AsJson = False,
) -> None:
    """Put exported jobs in, each once however often it is run; the file is made if need be."""
    from killproof import transfer
    from killproof.payload_files import Folder

    source = nullcontext(_in_utf8(sys.stdin)) if str(file) == "-" else _opened(file, "r")
    with source as lines:
        first = next(lines, "")
        transfer.source_of(first)  # Before the queue: a mistyped name must not make one.
        with Queue(db, durability=cast(Durability | None, durability)) as queue:
            files = None if str(file) == "-" else Folder(os.path.realpath(file))
            done = transfer.import_jobs(queue, chain([first], lines), files=files)
    if as_json:
        print_json(asdict(done))
    else:
        print(f"imported {count_of(done.added, 'job')}, {done.known:,} were here already")
        for line, why in done.refused:
            print(f"killproof: line {line} is left out: {why}", file=sys.stderr)


def _in_utf8(stream: TextIO) -> TextIO:
    """Return a standard stream that speaks what the format says, whatever the terminal speaks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="strict")
    return stream


def _opened(file: Path, mode: Literal["r", "x"]) -> TextIO:
    """Open a file of lines; a new one must not exist, so that nothing is written over."""
    try:
        return file.open(mode, encoding="utf-8")
    except OSError as error:
        raise FileRefused(f"{file}: {error.strerror}: name another file") from error


@app.command("webhook")
def manage_webhooks(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Where to; without it they are listed.")
    ] = None,
    db: Db = DB_DEFAULT,
    remove: Annotated[bool, typer.Option("--remove", help="Send no more to this URL.")] = False,
    as_json: AsJson = False,
) -> None:
    """POST the news of every job that dies from now on; workers deliver it as a job."""
    from killproof import webhook

    if remove and url is None:
        raise ValueError("say which: killproof webhook URL --remove")
    with existing(db) as queue:
        if url is not None and remove:
            if not webhook.remove(queue, url):
                raise ValueError(f"nothing is sent to {url!r}: killproof webhook lists the URLs")
        elif url is not None:
            webhook.add(queue, url)
        found = webhook.urls(queue)
    if as_json:
        print_json(found)
    else:
        print("\n".join(found) if found else "no news of dead letters is sent")


@app.command()
def systemd_unit(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="As for killproof work.")],
    db: Annotated[
        Path | None,
        typer.Option("--db", metavar="FILE", help="The database; else in the state folder."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who runs it; else a user of its own.")
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where MODULE is.")] = Path("."),
    grace: Annotated[
        float, typer.Option(help="Seconds a running job has to end after SIGTERM.")
    ] = 30.0,
    slots: Annotated[int, typer.Option(help="Jobs at once, as for killproof work.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Print a unit file: hardened, with a watchdog, and time to drain.

    Save it as /etc/systemd/system/NAME.service, then: systemctl enable --now NAME.
    """
    from killproof import systemd

    text = systemd.unit(
        module=module,
        folder=os.path.abspath(folder),
        python=sys.executable,
        db=None if db is None else os.path.abspath(db),
        user=user,
        grace=grace,
        slots=slots,
    )
    if as_json:
        print_json({"unit": text})
    else:
        print(text, end="")
