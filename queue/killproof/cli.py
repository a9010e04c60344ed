"""The command `killproof`: put jobs in, work on them, look at them, and bring them back.

Results go to stdout, everything else to stderr; an error is one line that names the value and the
remedy.  Exit codes: 0 done; 1 `doctor` found a fault, or an alert; 3 the queue or the disk failed;
64 wrong usage or bad input (the command-line library's own 2 would mean "unknown" here).

The commands are in modules of their own (`cli_work`, `cli_jobs`, `cli_operations`), and only the
module of the command that is asked for is imported: `killproof enqueue` in a shell script is called
often.  Other packages add commands through the entry-point group `killproof.commands`; those too
are imported when one of them is asked for, and never before; then none of the queue's own are.
"""

import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof.core.errors import FileRefused, JobNotFound, KillproofError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXIT_FAILED: Final = 3
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130  # As a shell reports a death by SIGINT.

#: Where each command is defined; a test compares it with what the modules register.
MODULES: Final = {
    "killproof.cli_work": ("Work", ("init", "enqueue", "work")),
    "killproof.cli_jobs": (
        "Jobs",
        (
            *("status", "jobs", "dead", "show", "explain"),
            *("replay", "reprioritise", "cancel", "hold", "unhold"),
        ),
    ),
    "killproof.cli_panel": ("Jobs", ("panel",)),
    "killproof.cli_operations": (
        "Operations",
        (
            *("doctor", "metrics", "prune", "backup", "restore"),
            *("export", "import", "webhook", "systemd-unit"),
        ),
    ),
    "killproof.cli_serve": ("Operations", ("serve", "pause", "resume")),
    "killproof.cli_articles": ("Above the queue", ("articles",)),
    "killproof.cli_limits": ("Above the queue", ("limits",)),
    "killproof.cli_payloads": ("Above the queue", ("payloads",)),
    "killproof.cli_schedules": ("Above the queue", ("schedules",)),
    "killproof.cli_workflow": ("Above the queue", ("workflow",)),
}
#: The heading of what other packages add, at the end of the help.
HEADING_OTHERS: Final = "Proof and figures"
PLUGINS: Final = "killproof.commands"
PLUGIN_HELP: Final = {
    "chaos": "Kill a queue for real, and judge its promises from what was recorded.",
    "bench": "Measure a queue, with the conditions of each number.",
}
#: The variable through which a shell asks for completions; the words are in others.
COMPLETE: Final = "_KILLPROOF_COMPLETE"
#: The library's two classes of wrong usage; it exports only their descendant.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
ClickError: type[Exception] = UsageError.__bases__[0]


def main() -> int:
    """Run the command line of this process; return the exit code."""
    arguments = sys.argv[1:]
    if not arguments and COMPLETE not in os.environ:
        arguments = ["--help"]
    _open_streams()
    try:
        command = typer.main.get_command(_commands(arguments))
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
        if _is_of_extra(error, arguments[0]):
            return _complain(_needed(arguments[0], "killproof", error), EXIT_FAILED)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        text = f"internal error: {said} (KILLPROOF_DEBUG=1 shows where)"
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


# Which commands there are.


def _commands(arguments: list[str]) -> typer.Typer:
    """Return the command that is meant, or all of them with those of other packages.

    All are needed for the help, for a shell's completions, and to say what a mistyped one is not.
    """
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for module, (_, names) in MODULES.items():
        if wanted in names:
            return _app([module], is_whole=False)
    from importlib.metadata import entry_points  # 30 ms that `enqueue` does not pay.

    points = sorted(entry_points(group=PLUGINS), key=lambda point: point.name)
    # Only where it stands first: what stands before it may ask for the help of everything.
    for point in points:
        if arguments[:1] == [point.name]:
            alone = _app([], is_whole=False)
            alone.add_typer(_load(point), name=point.name)
            return alone
    whole = _app(MODULES, is_whole=True)
    own = {name for _, names in MODULES.values() for name in names}
    for point in points:
        if point.name == wanted:
            whole.add_typer(_load(point), name=point.name)
        elif point.name not in own:
            text = PLUGIN_HELP.get(point.name, f"Commands of {point.module}.")
            listed = whole.command(point.name, help=text, rich_help_panel=HEADING_OTHERS)
            listed(_only_listed)
    return whole


def _app(modules: Iterable[str], *, is_whole: bool) -> typer.Typer:
    """Import the modules and return their commands, each under its heading in the help.

    A command is a function of the module's application, or a group of them that was added to it.
    """
    app = typer.Typer(add_completion=is_whole, pretty_exceptions_enable=False)
    for module in modules:
        heading, names = MODULES[module]
        found = _typer_of(module)
        commands = {_name(command): command for command in found.registered_commands}
        groups = {group.name: group for group in found.registered_groups}
        for name in names:
            if name in commands:
                commands[name].rich_help_panel = heading
                app.registered_commands.append(commands[name])
            else:
                groups[name].rich_help_panel = heading
                app.registered_groups.append(groups[name])
    app.callback()(_root)
    return app


def _typer_of(module: str) -> typer.Typer:
    found = importlib.import_module(module).app
    assert isinstance(found, typer.Typer)
    return found


def _name(command: "typer.models.CommandInfo") -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        print(f"killproof {version('killproof')}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and leave.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """A job queue on one SQLite file: --db FILE, else $KILLPROOF_DB, else ./queue.db."""


def _load(point: "EntryPoint") -> typer.Typer:
    """Import the commands of another package.

    Raises:
        KillproofError: what it needs is not installed.
    """
    try:
        found = point.load()
    except ImportError as error:
        package = point.dist.name if point.dist else "killproof"
        raise KillproofError(_needed(point.name, package, error)) from error
    if not isinstance(found, typer.Typer):
        raise KillproofError(f"{point.value} is no typer application: update its package")
    return found


def _needed(command: str, package: str, error: Exception) -> str:
    return f"killproof {command} needs its extra: pip install '{package}[{command}]' ({error})"


def _is_of_extra(error: Exception, command: str) -> bool:
    """Tell whether the command has just missed, at its late import, what its extra installs."""
    if not isinstance(error, ModuleNotFoundError) or command not in PLUGIN_HELP:
        return False
    from importlib.metadata import requires

    missing = (error.name or "").partition(".")[0]
    asked = [text for text in requires("killproof") or () if f"extra == '{command}'" in text]
    return missing in [re.split(r"[^\w-]", text, maxsplit=1)[0] for text in asked]


def _only_listed() -> None:
    """Stand in the help for a command whose package was not imported."""


# What is said when it goes wrong.


def _usage(error: Exception) -> str:
    """Return one line about wrong usage, with the command whose help to read."""
    message = str(getattr(error, "format_message", lambda: error)())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "killproof"
    # The library has printed a group's help, and has no words for why.
    said = " ".join(message.split()) or "the name of its command is missing"
    return f"{said} (see: {path} --help)"


def _complain(text: str, code: int) -> int:
    from killproof.wording import one_line  # Here: what succeeds need not wait for it.

    print(f"killproof: {one_line(text)}", file=sys.stderr)
    return code
