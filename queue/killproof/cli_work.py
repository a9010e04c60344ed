"""The commands that put jobs in and work on them."""

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from killproof.cli_terminal import DB_DEFAULT, AsJson, Db, Level, print_json, seconds_of, shown
from killproof.core import model
from killproof.core.clock import SystemClock
from killproof.core.database import Durability
from killproof.core.jobs import Queue, new_job

if TYPE_CHECKING:
    from killproof.handlers import Handlers
    from killproof.panel import Panel

app = typer.Typer()

#: JSON that `enqueue --large` reads; a test compares it with what a file may hold.
LARGE_BYTES_MAX: Final = 1 << 30


@app.command()
def init(
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="Of the handler file to write.")
    ] = "my_jobs",
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write a handler file, run a job, and kill its worker before your eyes."""
    from killproof.first_run import first_run

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    done = first_run(Path.cwd(), module, db, say)
    if as_json:
        print_json(asdict(done))
        return
    print(f"next: read {module}.py; killproof show {done.job_id}; killproof work {module}")


@app.command()
def work(
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="A module with `handlers`, or module:name.")
    ],
    db: Db = DB_DEFAULT,
    grace: Annotated[
        float, typer.Option(help="Seconds a running job has to end after SIGTERM.")
    ] = 30.0,
    slots: Annotated[
        int, typer.Option(help="Jobs at once in this process; more than 1: on one event loop.")
    ] = 1,
    prefetch: Annotated[
        int, typer.Option(help="Jobs claimed at once and acked together, with one slot.")
    ] = 1,
    panel: Annotated[
        bool, typer.Option("--panel", help="Show the queue: live, or every 30 s in a pipe.")
    ] = False,
    nice: Annotated[
        int, typer.Option(help="Leave the CPU to others: 0 to 19, as nice(1) does.")
    ] = 0,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
    log_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="text, or json: an object a line.")
    ] = "text",
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append lines to it, not to stderr.")
    ] = None,
    durability: Level = None,
) -> None:
    """Work on jobs until SIGTERM; the current folder is searched for MODULE first.

    With --slots N, `async def` handlers share one event loop and plain ones have threads.
    A database file that is not there yet is made, so that the start order does not matter.
    Under systemd it says when it is ready and that it lives; see killproof systemd-unit.
    Exit codes: 0 stopped in order; 70 a handler hung, its attempt is recorded, start again;
    3 the disk failed, see killproof doctor; 143 or 130 left at once after a signal.
    """
    from killproof import webhook

    model.check_count(nice, "nice", 0, 19)
    with _shown(panel) as shown:
        _set_up_log(log_level, log_format, log_file, shown)
        handlers = _handlers(module)
        if len(handlers):  # A module without any is a mistake, and is told so by the worker.
            webhook.register(handlers)
        if not db.exists():
            print(f"killproof: {db} does not exist yet: making it", file=sys.stderr)
        if nice:
            os.nice(nice)
        with Queue(db, durability=cast(Durability | None, durability)) as queue:
            kinds = ", ".join(handlers.kinds)
            line = "process %d works on: %s; jobs at once: %d"
            logging.getLogger("killproof").info(line, os.getpid(), kinds, slots)
            _work(queue, handlers, slots=slots, grace=grace, panel=shown, prefetch=prefetch)


def _shown(is_wanted: bool) -> "AbstractContextManager[Panel | None]":
    if not is_wanted:
        return nullcontext()
    from killproof import cli_panel

    return cli_panel.shown()


def _work(
    queue: Queue,
    handlers: "Handlers",
    *,
    slots: int,
    grace: float,
    panel: "Panel | None",
    prefetch: int,
) -> None:
    """Run a plain worker, or a dispatcher where there is more than one slot."""
    from killproof.systemd import Supervision

    if slots != 1:
        if prefetch != 1:
            raise ValueError(f"--prefetch {prefetch} goes with one slot: leave --slots out")
        from killproof.dispatcher import Dispatcher

        dispatcher = Dispatcher(queue, handlers, slots, grace=grace, panel=panel)
        with Supervision(dispatcher):
            dispatcher.serve()
        return
    from killproof.panel import Showing
    from killproof.worker import Worker

    worker = Worker(queue, handlers, grace=grace, prefetch=prefetch)
    with Supervision(worker), nullcontext() if panel is None else Showing(queue, panel):
        worker.run()


def _set_up_log(level_name: str, form: str, file: Path | None, panel: "Panel | None") -> None:
    from killproof import logs

    level = logging.getLevelNamesMapping().get(level_name.upper())
    if level is None:
        raise ValueError(f"log level {level_name!r} is unknown: use debug, info, warning or error")
    if form not in ("text", "json"):
        raise ValueError(f"log format {form!r} is unknown: use text or json")
    to: int | Callable[[str], object] = 2
    if file is not None:
        to = logs.open_log(file)
    elif sys.stderr.isatty() and (write := getattr(panel, "write", None)) is not None:
        to = write  # Else the lines and the drawn panel would overwrite each other.
    logging.basicConfig(
        level=level, handlers=[logs.handler(cast(logs.Format, form), to)], force=True
    )


@app.command()
def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Names the handler.")],
    payload: Annotated[
        str | None,
        typer.Argument(metavar="[JSON]", help="The payload; - reads it from standard input."),
    ] = None,
    db: Db = DB_DEFAULT,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="A text of the payload, as it is: no quotes."),
    ] = None,
    delay: Annotated[
        str, typer.Option(metavar="TIME", help="From now; 90s or 10min: it never runs before.")
    ] = "0s",
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="From now; 10min: later it expires instead.")
    ] = None,
    priority: Annotated[int, typer.Option(help="0 (urgent) to 9.")] = 5,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: at most one live job has it.")
    ] = None,
    max_attempts: Annotated[int, typer.Option(help="Executions in all.")] = 5,
    lease: Annotated[
        str, typer.Option(metavar="TIME", help="How long a silent worker keeps it from others.")
    ] = "60s",
    retry: Annotated[
        str,
        typer.Option(
            help="article (1 min, then doubled), exponential:BASE, fixed:SECONDS or immediate."
        ),
    ] = "article",
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Before every other: priority 0.")
    ] = False,
    large: Annotated[
        bool,
        typer.Option("--large", help="Keep a payload over 64 KiB in a file beside the database."),
    ] = False,
    durability: Level = None,
    as_json: AsJson = False,
) -> None:
    """Put a job in and print its id; the file is made if there is none."""
    priority = 0 if urgent else priority
    value = _payload(payload, field or [], is_large=large)
    options: dict[str, Any] = {
        "delay": seconds_of(delay, "--delay"),
        "priority": priority,
        "key": key,
        "max_attempts": max_attempts,
        "lease": seconds_of(lease, "--lease"),
    }
    now_ms = SystemClock().now_ms()
    if deadline is not None:
        options["deadline"] = now_ms / 1_000 + _seconds_left(deadline, delay)
    # Before the file: a mistyped option must not make one.
    new_job(now_ms, kind, None if large else value, policy=retry, **options)
    # `Queue` refuses a level that there is not, with the value.
    with Queue(db, durability=cast(Durability | None, durability)) as queue:
        if large:
            from killproof.payloads import Payloads

            job_id = Payloads(queue).enqueue(kind, value, retry=retry, **options)
        else:
            job_id = queue.enqueue(kind, value, retry=retry, **options)
    if urgent:
        print(f"killproof: job {job_id} goes before every other", file=sys.stderr)
    if as_json:
        print_json({"id": job_id})
    else:
        print(job_id)


def _seconds_left(deadline: str, delay: str) -> float:
    """Return the seconds to the deadline, or say in the words that were typed what is wrong."""
    seconds = seconds_of(deadline, "--deadline")
    if seconds <= seconds_of(delay, "--delay"):
        raise ValueError(f"--deadline {shown(deadline)} must be later than --delay {shown(delay)}")
    return seconds


def _payload(text: str | None, fields: list[str], *, is_large: bool) -> object:
    """Return the payload of the argument, with the fields that were given one by one in it."""
    if text is None and not fields:
        raise ValueError("a job needs a payload: '{\"name\": 1}', - for standard input, or --field")
    value = {} if text is None else _parse(text, is_large=is_large)
    for field in fields:
        name, is_given, content = field.partition("=")
        if not is_given or not isinstance(value, dict):
            raise ValueError(
                f"--field {shown(field)!r} must be NAME=TEXT, beside a payload that is an object"
            )
        value[name] = content
    return value


def _parse(text: str, *, is_large: bool = False) -> object:
    """Return the payload that the command line or the standard input holds."""
    if text == "-":
        limit = LARGE_BYTES_MAX if is_large else model.PAYLOAD_BYTES_MAX
        raw = sys.stdin.buffer.read(limit + 1)
        if len(raw) > limit:
            raise ValueError(f"payload is over the limit of {limit} bytes: {_remedy(is_large)}")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"payload is not UTF-8: {error.reason} at {error.start}") from error
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"payload {shown(text)!r} is not JSON: {error}; quote it: '{{\"name\": 1}}'"
        ) from error


def _remedy(is_large: bool) -> str:
    return "enqueue its file's path" if is_large else "--large keeps it in a file"


def _handlers(name: str) -> "Handlers":
    """Import the module and return its handlers, or say in a line why that failed."""
    from killproof.handlers import Handlers

    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        meant = Path(module_name).stem
        raise ValueError(f"{module_name!r} is a file: give the name of the module, {meant!r}")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if f"{module_name}.".startswith(f"{error.name}."):  # It, or a package that it is in.
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
