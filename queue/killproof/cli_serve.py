"""The commands around the page: serve it, tokens, its audit log; and pause and resume a kind."""

import contextlib
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from killproof import pausing, web_access, web_guard
from killproof.cli_terminal import (
    DB_DEFAULT,
    AsJson,
    Db,
    existing,
    plain,
    print_json,
    print_table,
    seconds_of,
    table_of,
)
from killproof.core.errors import FileRefused, KillproofError
from killproof.wording import moment, printable, shown

PORT_DEFAULT: Final = 8420

app = typer.Typer()
serving = typer.Typer(invoke_without_command=True, no_args_is_help=False)
tokens = typer.Typer(no_args_is_help=True, help="Make, list and remove tokens.")
app.add_typer(serving, name="serve")
serving.add_typer(tokens, name="token")

TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where the tokens are; else beside the database."),
]


@serving.callback()
def serve(
    context: typer.Context,
    db: Db = DB_DEFAULT,
    host: Annotated[
        str, typer.Option(help="The address to listen on; another than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = PORT_DEFAULT,
    token_file: TokenFile = None,
    is_private: Annotated[
        bool, typer.Option("--private", help="Reading needs a token as well.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name it is reached by. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a live page of the queue, with an API: read-only unless you give out tokens.

    It stops at SIGTERM or Ctrl-C. Exit codes: 0 stopped; 3 the port or the file failed; 64 refused.
    """
    if context.invoked_subcommand is not None:
        return
    with existing(db) as queue:  # A file that is no queue is told here, and not to a browser.
        path = queue.path
    web_tokens = web_access.Tokens(_token_file(db, token_file))
    has_tokens = web_tokens.exist()
    is_local = _is_loopback(host)
    if not is_local and not has_tokens:
        raise ValueError(
            f"--host {host} lets others in, and there is no token: make one first, "
            "killproof serve token add NAME --role admin, or leave --host out"
        )
    is_private = is_private or not is_local
    with _needing_web():
        from killproof.web import application
        from killproof.web_server import Server
    site = application(
        Path(path), web_tokens, is_private=is_private, hosts=_names(host, allow_host)
    )
    listening = _listening(host, port)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="killproof: %(message)s")
    server = Server(site)  # Before the address is told: who knows it may end the server at once.
    url = _url(host, listening.getsockname()[1])
    if as_json:
        print_json({"url": url, "path": path, "private": is_private})
    else:
        print(f"serving {printable(str(db))} at {url}")
        print(_access(has_tokens, is_private, is_local), file=sys.stderr)
    sys.stdout.flush()
    server.run(sockets=[listening])


def _names(host: str, allow_host: list[str] | None) -> frozenset[str]:
    """Return the names it is reached by: the one it listens on is one of them."""
    found = {web_guard.hostname(f"[{host}]" if ":" in host else host) or host}
    for given in allow_host or ():
        name = web_guard.hostname(given)
        if name is None:
            raise ValueError(f"--allow-host {given!r} is no name")
        found.add(name)
    return frozenset(found)


def _access(has_tokens: bool, is_private: bool, is_local: bool) -> str:
    """Say who may do what, and how to change it."""
    if not has_tokens:
        text = (
            "read-only: every user of this machine may read; "
            "to act, killproof serve token add NAME --role operator"
        )
    elif is_private:
        text = "a token is asked for to read and to act"
    else:
        text = "every user of this machine may read (--private asks for a token); a token acts"
    if not is_local:
        text += "; what is sent is not encrypted: put a proxy with TLS before it"
    return f"killproof: {text}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _listening(host: str, port: int) -> socket.socket:
    """Listen before anything is said: a port that is taken is an error of one line."""
    if not 0 <= port <= 65_535:
        raise ValueError(f"--port {port} must be from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise KillproofError(
            f"--host {host} --port {port}: {_reason(error)}: choose another, "
            "or --port 0 for any that is free"
        ) from error


def _reason(error: OSError) -> str:
    """Return what the system says, without what the library adds to it."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


@contextlib.contextmanager
def _needing_web() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise KillproofError(
            f"killproof serve needs its extra: pip install 'killproof[web]' ({error})"
        ) from error


@tokens.command("add")
def add_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for, in the audit log.")],
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="viewer reads; operator decides about single jobs; admin also about many at once.",
        ),
    ] = "viewer",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it is good for: 12h, 30d.")
    ] = None,
    db: Db = DB_DEFAULT,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: the file holds its hash alone."""
    path = _token_file(db, token_file)
    seconds = None if expires is None else seconds_of(expires, "--expires")
    token = web_access.add(path, name, role, seconds=seconds)
    if as_json:
        print_json({"name": name, "role": role, "token": token, "file": str(path)})
    else:
        print(token)
        print(f"killproof: shown this once; {role}: {_may(role)}", file=sys.stderr)


def _may(role: str) -> str:
    return web_access.ROLE_TEXT[role]


@tokens.command("list")
def list_tokens(db: Db = DB_DEFAULT, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List the names that have a token, with their roles."""
    found = web_access.entries(_token_file(db, token_file))
    if as_json:
        facts = [{k: v for k, v in asdict(entry).items() if k != "sha256"} for entry in found]
        print_json(facts)
        return
    if not found:
        print("no tokens: the page is read-only; killproof serve token add NAME")
        return
    table = table_of("name", "role", "made", "ends", right=())
    for entry in found:
        ends = "never" if entry.expires_ms is None else moment(entry.expires_ms)
        table.add_row(plain(printable(entry.name)), entry.role, moment(entry.created_ms), ends)
    print_table(table)


@tokens.command("remove")
def remove_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `list` shows it.")],
    db: Db = DB_DEFAULT,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Take a token back; a server that runs refuses it from the next request on."""
    path = _token_file(db, token_file)
    if not web_access.remove(path, name):
        raise ValueError(f"{name!r} has no token in {path}: killproof serve token list")
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        print(f"the token of {printable(name)} is removed")


def _token_file(db: Path, token_file: Path | None) -> Path:
    if token_file is not None:
        return token_file
    if not db.exists():
        raise FileRefused(f"{db} does not exist: name the queue with --db, or use --token-file")
    return web_access.file_of(os.path.realpath(db))


@serving.command("audit")
def print_audit(
    db: Db = DB_DEFAULT,
    limit: Annotated[int, typer.Option(metavar="N", help="Entries at most, up to 200.")] = 20,
    job: Annotated[
        int | None, typer.Option(metavar="ID", help="Only what was done to this job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List who did what through the page or its API, the latest first."""
    from killproof import web_audit

    with existing(db) as queue:
        found = web_audit.entries(queue, limit=limit, job_id=job)
    if as_json:
        print_json([asdict(entry) for entry in found])
        return
    if not found:
        print("nothing was done through the page")
        return
    table = table_of("when", "who", "role", "action", "job or kind", "outcome", right=())
    for column in table.columns[:4]:  # Words; what is long is the sentence at the end.
        column.no_wrap = True
    for entry in found:
        about = str(entry.job_id) if entry.job_id is not None else shown(entry.kind or "")
        outcome = f"{entry.outcome}: {shown(entry.said)}" if entry.said else entry.outcome
        table.add_row(
            moment(entry.at_ms),
            plain(printable(entry.who)),
            entry.role,
            entry.action,
            plain(about),
            plain(outcome),
        )
    print_table(table)


@app.command("pause")
def pause_kind(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Without it, what is closed is listed.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="It ends by itself after this: 15min, 2h."),
    ] = None,
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let no job of a kind start until it is resumed; what is running goes on."""
    if kind is None and time is not None:
        raise ValueError("say which kind: killproof pause KIND --for 15min")
    seconds = None if time is None else seconds_of(time, "--for")
    with existing(db) as queue:
        if kind is not None:
            closed = [pausing.pause(queue, kind, seconds)]
        else:
            closed = pausing.closed(queue)
    if as_json:
        print_json(asdict(closed[0]) if kind is not None else [asdict(one) for one in closed])
        return
    for one in closed:
        until = "until it is resumed" if one.until_ms is None else f"until {moment(one.until_ms)}"
        print(f"{shown(one.kind)}: {printable(one.reason)} {until}")
    if not closed:
        print("no kind is closed")


@app.command("resume")
def resume_kind(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="As `pause` lists it.")],
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """End the pause of a kind; a limit that closes it stays."""
    with existing(db) as queue:
        if not pausing.resume(queue, kind):
            raise ValueError(f"kind {kind!r} is not paused: killproof pause lists what is closed")
    if as_json:
        print_json({"kind": kind, "resumed": True})
    else:
        print(f"jobs of kind {printable(kind)} start again")
