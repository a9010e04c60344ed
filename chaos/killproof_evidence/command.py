"""A queue behind a command line: any language can be judged through argv and JSON lines.

Four commands, each with the folder of the queue as its last argument:

    prepare    makes an empty queue in this folder, and ends
    client     is a producer: it answers each line of standard input with one on standard output
    worker     is one worker process, until SIGTERM; it runs each job's payload through
               `killproof-effect`, or writes the effect log itself
    snapshot   prints every job, one JSON object a line, with the fields of `JobRow`

A request of a producer is `{"f": "enqueue", "kind", "payload", "options"}`, or `{"f": "cancel" |
"replay" | "reap", "id"}`. The answer is `{"ok": result}`, `{"fail": text}` when it certainly did
not happen, or `{"info": text}` when nobody knows. At the end of its input the client ends.

All four may be one program, and `prepare` may be left out where the client makes what it misses.
"""

import json
import os
import shlex
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from killproof_evidence.contract import Contract
from killproof_evidence.lifetime import die_with_parent
from killproof_evidence.target import (
    AuditMapping,
    Definite,
    Indefinite,
    JobRow,
    TargetIncomplete,
    TargetNotFound,
)

#: Of what a command has written to standard error, for the message.
WORDS_MAX: Final = 300
#: How long a client that was told to end gets for it.
CLOSE_SECONDS: Final = 10.0
_COMMANDS: Final = ("prepare", "client", "worker", "snapshot")
_ROW: Final = frozenset(each.name for each in fields(JobRow))
_AUDIT: Final = frozenset(each.name for each in fields(AuditMapping))


class CommandFailed(RuntimeError):
    """A command of the target failed; the message has its last words."""


class CommandClient:
    """A producer in a process of its own, in whatever language.

    It is killed by the kernel with the process that uses it: a producer that is killed in the
    middle of its enqueue is then killed where the queue's own code was.
    """

    def __init__(self, argv: Sequence[str], *, folder: Path | None = None) -> None:
        """Start it.

        Args:
            argv: the command line, the folder of the queue included.
            folder: to start it in.
        """
        self._argv = argv
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # Between fork and exec: one system call, in a process that has one thread.
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int | str:
        """Put a job in.

        Raises:
            Definite: the client says that it did not happen.
            Indefinite: the client does not know, or ended before it said so.
        """
        request = {"f": "enqueue", "kind": kind, "payload": payload, "options": options}
        found: int | str = self._ask(request)
        return found

    def cancel(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a job that has not started."""
        return bool(self._ask({"f": "cancel", "id": id}))

    def replay(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Make a dead job available again."""
        return bool(self._ask({"f": "replay", "id": id}))

    def close(self) -> None:
        """End the client, in order if it can; kill it if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(CLOSE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError) as error:
            raise Indefinite(f"{shlex.join(self._argv)} did not answer: {error}") from error
        match _answer_of(line):
            case {"ok": found}:
                return found
            case {"fail": text}:
                raise Definite(str(text))
            case {"info": text}:
                raise Indefinite(str(text))
        # Who has printed something else may answer this request behind it, and that would be taken
        # for the answer to the next: a queue would be accused of giving two jobs each other's ids.
        self._process.kill()
        said = f"an answer that is none: {line.strip()[:WORDS_MAX]}" if line else "it has ended"
        raise Indefinite(f"{shlex.join(self._argv)} did not answer: {said}")


class CommandTarget:
    """A queue described by a file: `--target FILE.toml`.

    The file has `name`, optionally `database` (the file that the queue makes in its folder), the
    table `commands` with the four command lines, the three tables of a contract, and optionally
    `audit`, the columns of the queue's own table. Commands start in the folder of the file.
    """

    broken = False
    audit: AuditMapping | None = None
    database: str

    def __init__(self, file: Path) -> None:
        """Read the file.

        Raises:
            TargetNotFound: it cannot be used; the message names the value and the remedy.
        """
        self._folder = file.resolve().parent
        try:
            text = file.read_text(encoding="utf-8")
            told = tomllib.loads(text)
            self.contract = Contract.parse(text)
        except (OSError, ValueError) as error:
            raise TargetNotFound(f"target file {str(file)!r}: {error}") from None
        self.name = str(told.get("name", file.stem))
        self._commands = _commands_of(file, told.get("commands", {}))
        if "database" in told:
            self.database = str(told["database"])
        if "audit" in told:
            self.audit = _audit_of(file, told["audit"])
            if "database" not in told:
                raise TargetNotFound(f"target file {str(file)!r}: [audit] needs `database` as well")

    def prepare(self, place: Path) -> None:
        """Make an empty queue.

        Raises:
            CommandFailed: the command did.
        """
        if "prepare" in self._commands:
            run(self._argv("prepare", place), folder=self._folder)
        else:
            self.client(place).close()

    def client(self, place: Path) -> CommandClient:
        """Start a producer."""
        return CommandClient(self._argv("client", place), folder=self._folder)

    def worker_argv(self, place: Path) -> list[str]:
        """Return the command line of a worker."""
        return ["env", "-C", str(self._folder), *self._argv("worker", place)]

    def snapshot(self, place: Path) -> Iterable[JobRow]:
        """Read every job.

        Raises:
            CommandFailed: the command did, or printed something else.
        """
        return rows_of(run(self._argv("snapshot", place), folder=self._folder))

    def _argv(self, command: str, place: Path) -> list[str]:
        return [*self._commands[command], str(place.resolve())]


def run(argv: Sequence[str], *, folder: Path | None = None) -> str:
    """Run a command to its end; return its standard output.

    Raises:
        CommandFailed: it cannot be started, or its exit code is not 0.
    """
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{shlex.join(argv)}: {error}") from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-WORDS_MAX:]
        raise CommandFailed(f"{shlex.join(argv)} ended with {done.returncode}: {words}")
    return done.stdout


def rows_of(text: str) -> list[JobRow]:
    """Read what a snapshot prints.

    Raises:
        CommandFailed: a line is no object, or has a field that a row has not.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            told = json.loads(line)
            unknown = sorted(told.keys() - _ROW)
            if unknown:
                raise ValueError(f"unknown field {unknown[0]!r}: use {', '.join(sorted(_ROW))}")
            rows.append(JobRow(**{"kind": "", **told}))
        except (ValueError, TypeError, AttributeError) as error:
            raise CommandFailed(f"line {number} of the snapshot: {error}") from None
    return rows


def _answer_of(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _commands_of(file: Path, table: Mapping[str, Any]) -> dict[str, list[str]]:
    """Check and return the command lines; a text is split as a shell would."""
    unknown = sorted(table.keys() - set(_COMMANDS))
    if unknown:
        raise TargetNotFound(
            f"target file {str(file)!r}: command {unknown[0]!r} is unknown: "
            f"use {', '.join(_COMMANDS)}"
        )
    missing = [name for name in _COMMANDS[1:] if not table.get(name)]
    if missing:
        raise TargetIncomplete(f"target file {str(file)!r}: [commands] lacks {', '.join(missing)}")
    return {
        name: shlex.split(words) if isinstance(words, str) else [os.fspath(word) for word in words]
        for name, words in table.items()
    }


def _audit_of(file: Path, table: Mapping[str, Any]) -> AuditMapping:
    unknown = sorted(table.keys() - _AUDIT)
    missing = [name for name in ("table", "id", "state") if name not in table]
    if unknown or missing:
        word = f"has no column {unknown[0]!r}" if unknown else f"lacks {', '.join(missing)}"
        raise TargetNotFound(
            f"target file {str(file)!r}: [audit] {word}: use {', '.join(sorted(_AUDIT))}"
        )
    return AuditMapping(**table)
