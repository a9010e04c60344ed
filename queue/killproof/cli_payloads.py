"""The commands `killproof payloads ...`: large payloads, in files beside the database."""

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from killproof.cli_terminal import (
    DB_DEFAULT,
    EXIT_FAULT,
    AsJson,
    Db,
    JobId,
    Steps,
    existing,
    print_json,
)
from killproof.payloads import Payloads, job_of
from killproof.wording import count_of, printable, size_of

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Large payloads, in files beside the database.")
app.add_typer(group, name="payloads")


@group.command()
def check(
    db: Db = DB_DEFAULT,
    is_whole: Annotated[
        bool, typer.Option("--whole", help="Also read each file, and prove its content.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look whether the file of each large payload is there; exit 1 when one is not."""
    with existing(db) as queue:
        found = Payloads(queue).check(whole=is_whole)
    if as_json:
        print_json(asdict(found))
    else:
        proven = "proven" if is_whole else "there"
        files = found.files - len(found.lost)
        print(f"{count_of(files, 'large payload')} {proven}, {size_of(found.bytes)} in all")
        for job_id, why in found.lost:
            print(f"job {job_id}: {printable(why)}; restore it from a backup")
        if found.orphans:
            print(f"{count_of(found.orphans, 'file')} without a job: killproof payloads collect")
    if found.lost:
        raise typer.Exit(EXIT_FAULT)


@group.command()
def collect(db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Remove the files that no job relies on any more; prune does it as well."""
    with existing(db) as queue, Steps("removed", "files") as steps:
        done = Payloads(queue).collect(progress=steps.show)
    if as_json:
        print_json(asdict(done))
    elif done.busy:
        print("nothing was removed: a backup copies, or another collection runs; try again later")
    else:
        print(f"removed {count_of(done.files, 'file')}, {size_of(done.bytes)}")


@group.command()
def show(
    job_id: JobId,
    db: Db = DB_DEFAULT,
    is_result: Annotated[
        bool, typer.Option("--result", help="Of its result, not of its payload.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a job's payload to standard output, whole: bytes as they are, all else as JSON."""
    with existing(db) as queue:
        payloads, job = Payloads(queue), job_of(queue, job_id)
        value = payloads.result(job) if is_result else payloads.payload(job)
    if isinstance(value, bytes):
        if as_json:
            raise ValueError(f"the payload of job {job_id} is bytes, no JSON: leave --json out")
        sys.stdout.flush()
        with os.fdopen(os.dup(1), "wb") as out:
            out.write(value)
    else:
        print(json.dumps(value, ensure_ascii=True, indent=2 if as_json else None))
