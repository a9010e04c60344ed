"""The command `killproof`: put jobs in, work on them, look at them, and bring them back.

Results go to stdout, everything else to stderr; an error is one line that names the value and the
remedy.  Exit codes: 0 done; 1 `doctor` found a fault; 3 the queue or the disk failed; 64 wrong
usage or bad input (the command-line library's own 2 would mean "unknown" here).

Other packages add commands through the entry-point group `killproof.commands`.  They are imported
when one of them is asked for, and never before: `killproof enqueue` in a shell script is called
often.  For the same reason tables are imported by the commands that print one.
"""

import errno
import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from killproof import operations
from killproof.core import model
from killproof.core.clock import SystemClock
from killproof.core.database import Durability
from killproof.core.errors import FileRefused, JobNotFound, KillproofError
from killproof.core.jobs import Queue, new_job
from killproof.core.model import Attempt, Job

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rich.table import Table

    from killproof.handlers import Handlers

EXIT_FAULT: Final = 1
EXIT_FAILED: Final = 3
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130  # As a shell reports a death by SIGINT.

PLUGINS: Final = "killproof.commands"
PLUGIN_HELP: Final = {
    "chaos": "Kill a queue for real, and judge its promises from what was recorded.",
    "bench": "Measure a queue, with the conditions of each number.",
}
#: The library's two classes of wrong usage; it exports only their descendant.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
ClickError: type[Exception] = UsageError.__bases__[0]

#: Characters of an error or a payload in one line of a table.
SHOWN_CHARS_MAX: Final = 120
SHOWN_JOBS_MAX: Final = 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Db = Annotated[
    Path, typer.Option("--db", metavar="FILE", envvar="KILLPROOF_DB", help="The database file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[int, typer.Argument(metavar="ID", help="The job's id, as `enqueue` printed it.")]
Level = Annotated[
    str | None,
    typer.Option(
        "--durability", metavar="LEVEL", help="Of a new file: power (the default) or process."
    ),
]
DB_DEFAULT: Final = Path("queue.db")


def main() -> int:
    """Run the command line of this process; return the exit code."""
    arguments = sys.argv[1:] or ["--help"]
    _open_streams()
    try:
        command = typer.main.get_command(_with_plugins(arguments))
        code = command.main(args=arguments, prog_name="killproof", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _leave_pipe()
    except SystemExit as error:
        # Both libraries make an exit of 1 of a broken pipe; here 1 is a fault that was found.
        if isinstance(error.__context__, OSError) and error.__context__.errno == errno.EPIPE:
            return _leave_pipe()
        raise
    except ClickError as error:
        return _complain(_usage(error), EXIT_USAGE)
    except (ValueError, FileRefused, JobNotFound) as error:
        return _complain(str(error), EXIT_USAGE)
    except (KillproofError, OSError) as error:
        return _complain(str(error), EXIT_FAILED)
    except Exception as error:  # A fault of ours: a line for the user, the trace for who asks.
        if os.environ.get("KILLPROOF_DEBUG"):
            raise
        text = f"internal error: {type(error).__name__}: {error} (KILLPROOF_DEBUG=1 shows where)"
        return _complain(text, EXIT_FAILED)


def _open_streams() -> None:
    """Make the standard streams usable: one may be closed, or unable to show a character.

    The number of a closed one would go to the next file that is opened, and that is the queue's.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _leave_pipe() -> int:
    """End in order: the reader of a pipe has seen enough."""
    # Else the interpreter would complain at its own flush.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


# Commands.


@app.command()
def work(
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="A module with `handlers`, or module:name.")
    ],
    db: Db = DB_DEFAULT,
    grace: Annotated[
        float, typer.Option(help="Seconds a running job has to end after SIGTERM.")
    ] = 30.0,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
    durability: Level = None,
) -> None:
    """Work on jobs until SIGTERM; the current folder is searched for MODULE first.

    A database file that is not there yet is made, so that the start order does not matter.
    Exit codes: 0 stopped in order; 70 a handler hung, its attempt is recorded, start again;
    3 the disk failed, see killproof doctor; 143 or 130 left at once after a signal.
    """
    from killproof.worker import Worker

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise ValueError(f"log level {log_level!r} is unknown: use debug, info, warning or error")
    handlers = _handlers(module)
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    if not db.exists():
        print(f"killproof: {db} does not exist yet: making it", file=sys.stderr)
    with Queue(db, durability=cast(Durability | None, durability)) as queue:
        worker = Worker(queue, handlers, grace=grace)
        kinds = ", ".join(handlers.kinds)
        logging.getLogger("killproof").info("process %d works on: %s", os.getpid(), kinds)
        worker.run()


@app.command()
def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Names the handler.")],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="The payload; - reads it from standard input.")
    ],
    db: Db = DB_DEFAULT,
    delay: Annotated[float, typer.Option(help="Seconds before which it never runs.")] = 0.0,
    priority: Annotated[int, typer.Option(help="0 (urgent) to 9.")] = 5,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: at most one live job has it.")
    ] = None,
    max_attempts: Annotated[int, typer.Option(help="Executions in all.")] = 5,
    lease: Annotated[
        float, typer.Option(help="Seconds a silent worker keeps the job from others.")
    ] = 60.0,
    retry: Annotated[
        str, typer.Option(help="article, exponential:BASE, fixed:SECONDS or immediate.")
    ] = "article",
    durability: Level = None,
) -> None:
    """Put a job in and print its id; the file is made if there is none."""
    value = _parse(payload)
    options: dict[str, Any] = {
        "delay": delay,
        "priority": priority,
        "key": key,
        "max_attempts": max_attempts,
        "lease": lease,
    }
    # Before the file: a mistyped option must not make one.
    new_job(SystemClock().now_ms(), kind, value, policy=retry, **options)
    # `Queue` refuses a level that there is not, with the value.
    with Queue(db, durability=cast(Durability | None, durability)) as queue:
        job_id = queue.enqueue(kind, value, retry=retry, **options)
    print(job_id)


@app.command()
def status(db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Count the jobs by state."""
    with _existing(db) as queue:
        counts = queue.counts()
        waiting = sorted(operations.waiting_kinds(queue))
        path, durability = queue.path, queue.durability
    if as_json:
        _print_json(
            {"path": path, "durability": durability, "counts": counts, "waiting_kinds": waiting}
        )
        return
    table = _table("state", "jobs")
    for state, count in counts.items():
        if count or state in ("available", "leased", "succeeded", "dead"):
            table.add_row(state, f"{count:,}", style=_style(state, count))
    _print_table(table)
    if waiting:
        print(f"waiting kinds: {_printable(', '.join(waiting))}")


@app.command()
def show(job_id: JobId, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Show one job: what happens next, and every attempt with its error."""
    with _existing(db) as queue:
        job = queue.get(job_id)
    if job is None:
        raise JobNotFound(f"there is no job {job_id} in {db}: see killproof status --db {db}")
    now_ms = SystemClock().now_ms()
    if as_json:
        _print_json(asdict(job) | {"attempt": job.attempt, "summary": summary(job, now_ms)})
        return
    print(f"job {job.id} of kind {_printable(job.kind)}: {summary(job, now_ms)}")
    facts = [f"priority {job.priority}", f"enqueued {_span(now_ms - job.created_ms)} ago"]
    facts += [f"retry {job.retry}", f"lease {_span(job.lease_ms)}"]
    facts += [f"key {job.key}"] if job.key is not None else []
    print(_printable(", ".join(facts)))
    print(f"payload {_shown(json.dumps(job.payload, ensure_ascii=False))}")
    if job.result is not None:
        print(f"result {_shown(json.dumps(job.result, ensure_ascii=False))}")
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
) -> None:
    """Give ended jobs all their attempts again; what they went through stays on record."""
    if not job_ids and state is None:
        raise ValueError("name the jobs by id, or all of a state with --state dead")
    if job_ids and (state is not None or kind is not None):
        raise ValueError("name the jobs by id, or by --state and --kind, not by both")
    with _existing(db) as queue:
        done = operations.replay(queue, job_ids or None, state=state, kind=kind, limit=limit)
    shown = ", ".join(str(job_id) for job_id in done.moved[:SHOWN_JOBS_MAX])
    more = len(done.moved) - SHOWN_JOBS_MAX
    listing = f": {shown}{f' and {more} more' if more > 0 else ''}" if done.moved else ""
    print(f"replayed {_count(len(done.moved), 'job')}{listing}")
    if done.refused:
        raise ValueError("; ".join(f"job {job_id}: {why}" for job_id, why in done.refused))


@app.command()
def reprioritise(
    job_id: JobId,
    priority: Annotated[int, typer.Argument(metavar="PRIORITY", help="0 (urgent) to 9.")],
    db: Db = DB_DEFAULT,
) -> None:
    """Change the priority of a job that has not ended."""
    with _existing(db) as queue:
        _demand(operations.reprioritise(queue, job_id, priority), queue, job_id)
    print(f"job {job_id} has priority {priority}")


@app.command()
def cancel(job_id: JobId, db: Db = DB_DEFAULT) -> None:
    """Call a job off; a running one learns it at its next heartbeat."""
    with _existing(db) as queue:
        _demand(queue.cancel(job_id), queue, job_id)
    print(f"job {job_id} is cancelled")


@app.command()
def hold(job_id: JobId, db: Db = DB_DEFAULT) -> None:
    """Put a waiting job aside."""
    with _existing(db) as queue:
        _demand(operations.hold(queue, job_id), queue, job_id)
    print(f"job {job_id} is held")


@app.command()
def unhold(job_id: JobId, db: Db = DB_DEFAULT) -> None:
    """Let a held job run now."""
    with _existing(db) as queue:
        _demand(operations.unhold(queue, job_id), queue, job_id)
    print(f"job {job_id} is available")


@app.command()
def doctor(
    db: Db = DB_DEFAULT,
    repair: Annotated[
        bool, typer.Option("--repair", help="Bring a file back that a disk error has stopped.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the file, its place and this SQLite; exit 1 when something is wrong."""
    from killproof import maintenance

    checks = maintenance.repair(db) if repair else maintenance.doctor(db)
    if as_json:
        _print_json([asdict(check) for check in checks])
    else:
        table = _table("check", "", "found, and what to do", right=())
        for check in checks:
            style = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
            remedy = f"\n-> {check.remedy}" if check.remedy else ""
            table.add_row(check.name, f"[{style}]{check.status}[/]", _plain(check.text + remedy))
        _print_table(table)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(EXIT_FAULT)


# What the commands share.


def summary(job: Job, now_ms: int) -> str:
    """Say in a line where a job stands and what comes next."""
    attempt = f"attempt {job.attempt} of {job.max_attempts}"
    error = _error(job.error_class, job.error_message)
    wait_ms = job.due_ms - now_ms
    due = f"in {_span(wait_ms)}" if wait_ms > 0 else "now"
    match job.state:
        case "retryable":
            return f"next try {due} (failure {job.attempt} of {job.max_attempts}: {error})"
        case "scheduled":
            return f"due {due}"
        case "leased":
            return f"running for {_span(now_ms - (job.claimed_ms or now_ms))}, {attempt}"
        case "succeeded":
            return f"succeeded, {attempt}"
        case "dead":
            return f"dead, {attempt}: {error}; again: killproof replay {job.id}"
        case "held":
            why = f": {error}" if job.error_class else ""
            return f"held{why}; decide: killproof unhold {job.id}, or cancel {job.id}"
        case "available":
            before = f", after {_count(job.attempt, 'attempt')}: {error}" if job.attempt else ""
            return f"waits for a worker{before}"
        case "blocked":
            return "waits for other jobs"
        case "cancelled":
            return f"cancelled; again: killproof replay {job.id}"
        case "expired":
            return f"its deadline has passed; again: killproof replay {job.id}"
    raise AssertionError(job.state)


def _show_attempts(job: Job) -> None:
    if not job.attempts:
        return
    table = _table("fence", "outcome", "took", "worker", "error", right=("fence", "took"))
    for attempt in job.attempts:
        took = _span(attempt.finished_ms - attempt.started_ms)
        error = _error(attempt.error_class, attempt.error_message) if attempt.error_class else ""
        table.add_row(
            str(attempt.fence), attempt.outcome, took, attempt.worker[:8], _plain(_shown(error))
        )
    _print_table(table)
    failed = [attempt for attempt in job.attempts if attempt.traceback]
    if failed:
        _show_traceback(failed[-1])


def _show_traceback(attempt: Attempt) -> None:
    print(f"\ntraceback of the attempt with fence {attempt.fence}:")
    print(_printable(attempt.traceback or "").rstrip())


def _existing(db: Path) -> Queue:
    """Open a queue that must be there: a look at a mistyped name must not make a file."""
    try:
        found = db.exists()
    except OSError as error:  # A name that is too long, a folder that may not be searched.
        raise FileRefused(f"{db}: {error.strerror}: name another file") from error
    if not found:
        raise FileRefused(
            f"{db} does not exist: make it with killproof enqueue KIND JSON --db {db}, "
            "or name another file with --db or $KILLPROOF_DB"
        )
    return Queue(db)


def _demand(changed: bool, queue: Queue, job_id: int) -> None:
    """Complain if a command changed nothing, and say in which state the job is."""
    if not changed:
        job = queue.get(job_id)
        raise ValueError(f"job {job_id} is {job.state if job else 'gone'}: nothing was changed")


def _parse(text: str) -> object:
    """Return the payload that the command line or the standard input holds."""
    if text == "-":
        limit = model.PAYLOAD_BYTES_MAX
        raw = sys.stdin.buffer.read(limit + 1)
        if len(raw) > limit:
            raise ValueError(f"payload is over the limit of {limit} bytes: enqueue its file's path")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"payload is not UTF-8: {error.reason} at {error.start}") from error
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"payload {_shown(text)!r} is not JSON: {error}; quote it: '{{\"name\": 1}}'"
        ) from error


def _handlers(name: str) -> "Handlers":
    """Import the module and return its handlers, or say in a line why that failed."""
    from killproof.handlers import Handlers

    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            raise ValueError(f"there is no module {module_name!r} here: {os.getcwd()}") from error
        raise ValueError(f"module {module_name!r} needs {error.name!r}: install it") from error
    except (Exception, SystemExit) as error:  # The user's module: named by place.
        raise ValueError(f"module {module_name!r} failed: {_last_place(error)}") from error
    handlers = getattr(module, attribute or "handlers", None)
    if not isinstance(handlers, Handlers):
        raise ValueError(
            f"module {module_name!r} has no Handlers named {attribute or 'handlers'!r}: "
            "handlers = killproof.worker.Handlers()"
        )
    return handlers


def _last_place(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _with_plugins(arguments: list[str]) -> typer.Typer:
    """Return the commands; with those of other packages if one of them may be meant."""
    own = {_command_name(command.callback) for command in app.registered_commands}
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    if wanted in own:
        return app
    from importlib.metadata import entry_points  # 30 ms that `enqueue` does not pay.

    whole = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    whole.registered_commands = list(app.registered_commands)
    for point in sorted(entry_points(group=PLUGINS), key=lambda point: point.name):
        if point.name == wanted:
            whole.add_typer(_load(point), name=point.name)
        elif point.name not in own:
            text = PLUGIN_HELP.get(point.name, f"Commands of {point.module}.")
            whole.command(point.name, help=text)(_only_listed)
    return whole


def _load(point: "EntryPoint") -> typer.Typer:
    """Import the commands of another package.

    Raises:
        KillproofError: what it needs is not installed.
    """
    try:
        found = point.load()
    except ImportError as error:
        package = point.dist.name if point.dist else "killproof"
        extra = f"{package}[{point.name}]"
        raise KillproofError(
            f"killproof {point.name} needs its extra: pip install '{extra}' ({error})"
        ) from error
    if not isinstance(found, typer.Typer):
        raise KillproofError(f"{point.value} is no typer application: update its package")
    return found


def _only_listed() -> None:
    """Stand in the help for a command whose package was not imported."""


def _command_name(callback: Callable[..., object] | None) -> str:
    assert callback is not None
    return callback.__name__.replace("_", "-")


def _usage(error: Exception) -> str:
    """Return one line about wrong usage, with the command whose help to read."""
    message = str(getattr(error, "format_message", lambda: error)())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "killproof"
    return f"{' '.join(message.split())} (see: {path} --help)"


def _complain(text: str, code: int) -> int:
    print(f"killproof: {text}", file=sys.stderr)
    return code


def _print_json(value: object) -> None:
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not is_unicode, indent=2))


def _table(*columns: str, right: Iterable[str] = ("jobs",)) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    return table


def _print_table(table: "Table") -> None:
    from rich.console import Console

    Console(highlight=False).print(table)


def _plain(text: str) -> str:
    """Return text that a table does not take for markup."""
    from rich.markup import escape

    return escape(text)


def _style(state: str, count: int) -> str:
    """Return the colour of a state; without colours the word alone says it."""
    if not count:
        return "dim"
    return {"dead": "red", "held": "yellow", "retryable": "yellow", "succeeded": "green"}.get(
        state, ""
    )


def _error(error_class: str | None, message: str | None) -> str:
    """Return the first line of an error, cut."""
    first = (message or "").strip().splitlines()[:1]
    return _shown(" ".join([error_class or "Error", *first]))


def _shown(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 3]}..."


def _printable(text: str) -> str:
    """Return text that moves no cursor: an error, a kind, a key come from anywhere."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _span(ms: int) -> str:
    """Return a duration in its two largest units, rounded down.

    >>> _span(58_400), _span(420), _span(3_725_000)
    ('58 s', '0.42 s', '1 h 2 min')
    """
    if ms < 1_000:
        return f"{ms / 1_000:g} s"
    seconds = ms // 1_000
    parts = [
        f"{count} {unit}"
        for count, unit in (
            (seconds // 86_400, "d"),
            (seconds // 3_600 % 24, "h"),
            (seconds // 60 % 60, "min"),
            (seconds % 60, "s"),
        )
        if count
    ]
    return " ".join(parts[:2])
