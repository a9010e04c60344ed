"""A queue behind a command line: any language can be judged through argv and JSON lines.

Four commands, each with the folder of the queue as its last argument:

    prepare    makes an empty queue in this folder, and ends
    client     is a producer: it answers each line of standard input with one on standard output
    worker     is one worker process, until SIGTERM; it runs each job's payload through
               `killproof-effect`, or writes the effect log itself
    snapshot   prints every job, one JSON object a line, with the fields of `JobRow`

A request of a producer is `{"f": "enqueue", "kind", "payload", "options"}`, or `{"f": "cancel" |
"replay", "id"}`. The answer is `{"ok": result}`, `{"fail": text}` when it certainly did not happen,
or `{"info": text}` when nobody knows. At the end of its input the client ends.

All four may be one program, and `prepare` may be left out where the client makes what it misses.
What prepare and snapshot leave running when they end is killed.
"""

import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from killproof_evidence.contract import Contract
from killproof_evidence.lifetime import die_with_parent, has_ended
from killproof_evidence.target import (
    AuditMapping,
    Definite,
    Indefinite,
    JobRow,
    TargetFailed,
    TargetIncomplete,
    TargetNotFound,
    is_id,
    refuse_row,
)

#: Of what a command has written to standard error, for the message.
WORDS_MAX: Final = 300
#: How long a client that was told to end gets for it.
CLOSE_SECONDS: Final = 10.0
#: How long an answer may take: four times the longest wait for SQLite's lock, on a busy machine.
ANSWER_SECONDS: Final = 120.0
#: How long an answer may be; it is an id, or a few words.
ANSWER_BYTES_MAX: Final = 1_048_576
#: How long prepare and snapshot may take: longer than any that has ended, on a busy machine.
RUN_SECONDS: Final = 600.0
_COMMANDS: Final = ("prepare", "client", "worker", "snapshot")
_ANSWERS: Final = frozenset({"ok", "fail", "info"})
_ROW: Final = frozenset(each.name for each in fields(JobRow))
_AUDIT: Final = frozenset(each.name for each in fields(AuditMapping))


class CommandFailed(TargetFailed):
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

        Raises:
            CommandFailed: it cannot be started.
        """
        self._argv = argv
        self._told = b""  # What has come of a line that has not ended.
        self._lost = ""  # Why no answer can be told from another any more.
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                # Between fork and exec: one system call, in a process that has one thread.
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except (OSError, ValueError) as error:
            raise CommandFailed(f"{shlex.join(argv)}: {error}") from None

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int | str:
        """Put a job in.

        Raises:
            Definite: the client says that it did not happen.
            Indefinite: the client does not know, or ended before it said so.
        """
        request = {"f": "enqueue", "kind": kind, "payload": payload, "options": options}
        found: int | str = self._ask(request)
        if not is_id(found):
            raise Indefinite(f"{shlex.join(self._argv)} answered with {found!r}, which is no id")
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
        """Ask, and take the answer apart.

        A client that says something else, or more, or nothing in time, is not asked again: its
        next answer would be taken for that of another job, and the queue for one that loses jobs.
        """
        if self._lost:
            raise Indefinite(self._lost)
        try:
            if self._told or self._has_said():
                raise ValueError(f"more than one answer: {self._line()[:WORDS_MAX]!r}")
            assert self._process.stdin is not None
            unsent = json.dumps(request).encode() + b"\n"
            while unsent:  # A signal may cut a write short.
                unsent = unsent[self._process.stdin.write(unsent) :]
            line = self._line()
            answer = _answer_of(line)
        except (OSError, ValueError) as error:
            self._process.kill()
            self._lost = f"{shlex.join(self._argv)} did not answer: {error}"
            raise Indefinite(self._lost) from error
        match answer:
            case {"ok": found}:
                return found
            case {"fail": text}:
                raise Definite(str(text))
            case _:
                raise Indefinite(str(answer["info"]))

    def _line(self) -> bytes:
        """Read a line, or what there is of one when the client ends.

        Raises:
            ValueError: it does not come, or does not end.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_SECONDS
        parts = [self._told]
        size = len(self._told)
        while b"\n" not in parts[-1]:
            if not self._has_said(max(0.0, deadline - time.monotonic())):
                raise ValueError(f"nothing came within {ANSWER_SECONDS:.0f} s")
            parts.append(self._process.stdout.read(ANSWER_BYTES_MAX))
            size += len(parts[-1])
            if size > ANSWER_BYTES_MAX:
                raise ValueError(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
            if not parts[-1]:
                break
        line, _, self._told = b"".join(parts).partition(b"\n")
        return line

    def _has_said(self, seconds: float = 0.0) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])


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
        for table in ("commands", "audit"):
            if not isinstance(told.get(table, {}), dict):
                raise TargetNotFound(f"target file {str(file)!r}: [{table}] must be a table")
        self.name = str(told.get("name", file.stem))
        self._commands = _commands_of(file, told.get("commands", {}))
        if "database" in told:
            self.database = _inside(file, told["database"])
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

    Files and no pipes: what the command leaves running would hold a pipe open for ever.

    Raises:
        CommandFailed: it cannot be started, does not end, or its exit code is not 0.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except (OSError, ValueError) as error:
            raise CommandFailed(f"{shlex.join(argv)}: {error}") from None
        try:
            if not has_ended(process.pid, RUN_SECONDS):
                raise CommandFailed(f"{shlex.join(argv)} did not end within {RUN_SECONDS:.0f} s")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # Not reaped yet: the number is its own.
            process.wait()
        said, words = (_read(file) for file in (out, err))
    if process.returncode:
        last = _last_words((words or said).decode(errors="replace"))
        raise CommandFailed(f"{shlex.join(argv)} ended with {process.returncode}: {last}")
    try:
        return said.decode()
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{shlex.join(argv)}: {error}") from None


def _last_words(said: str) -> str:
    """Return the end of what a process has said; of Python's trace the error and its place."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith('File "')]
    if places and any(line.startswith("Traceback (most recent call last)") for line in lines):
        return f"{lines[-1][:WORDS_MAX]} ({places[-1]})"
    return " ".join(" ".join(lines).split())[-WORDS_MAX:]


def _read(file: Any) -> bytes:
    file.seek(0)
    said: bytes = file.read()
    return said


def rows_of(text: str) -> list[JobRow]:
    """Read what a snapshot prints.

    Raises:
        CommandFailed: a line is no object, or has a field or a value that a row has not.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            told = json.loads(line)
            unknown = sorted(told.keys() - _ROW)
            if unknown:
                raise ValueError(f"unknown field {unknown[0]!r}: use {', '.join(sorted(_ROW))}")
            rows.append(JobRow(**{"kind": "", **told}))
            refuse_row(rows[-1])
        except (ValueError, TypeError, AttributeError, TargetFailed) as error:
            raise CommandFailed(f"line {number} of the snapshot: {error}") from None
    return rows


def _answer_of(line: bytes) -> dict[str, Any]:
    """Return the answer that a line is.

    Raises:
        ValueError: it is none.
    """
    if not line:
        raise ValueError("it has ended")
    said = f"an answer that is none: {line[:WORDS_MAX].decode(errors='replace').strip()}"
    try:
        answer = json.loads(line)
    except ValueError:
        raise ValueError(said) from None
    if not isinstance(answer, dict) or not answer.keys() & _ANSWERS:
        raise ValueError(said)
    return answer


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
    return {name: _words_of(file, name, words) for name, words in table.items()}


def _words_of(file: Path, name: str, told: Any) -> list[str]:
    words, why = told, "is no command line"
    if isinstance(told, str):
        try:
            words = shlex.split(told)
        except ValueError as error:
            why = f"cannot be split: {error}"
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not is_list or not words or not words[0] or any("\0" in word for word in words):
        raise TargetNotFound(
            f"target file {str(file)!r}: the command {name} = {told!r} {why}: give a text as for "
            "a shell, or a list of words"
        )
    return list(words)


def _inside(file: Path, told: Any) -> str:
    """Check the database's name: the harness puts triggers into that file, so it must be ours."""
    path = Path(told) if isinstance(told, str) and told else None
    if path is None or path.is_absolute() or ".." in path.parts or not path.name:
        raise TargetNotFound(
            f"target file {str(file)!r}: database = {told!r} must be a file's name in the folder "
            "of the queue"
        )
    return str(path)


def _audit_of(file: Path, table: Mapping[str, Any]) -> AuditMapping:
    unknown = sorted(table.keys() - _AUDIT)
    missing = [name for name in ("table", "id", "state") if name not in table]
    if unknown or missing:
        word = f"has no column {unknown[0]!r}" if unknown else f"lacks {', '.join(missing)}"
        raise TargetNotFound(
            f"target file {str(file)!r}: [audit] {word}: use {', '.join(sorted(_AUDIT))}"
        )
    for name, value in table.items():
        if not isinstance(value, dict if name == "states" else str):
            raise TargetNotFound(
                f"target file {str(file)!r}: [audit] {name} = {value!r} must be "
                f"{'a table' if name == 'states' else 'a text'}"
            )
    return AuditMapping(**table)
