"""The commands for limits: how many run, how often they start, who waits until when."""

import re
from dataclasses import asdict
from typing import Annotated, Final

import typer

from killproof.cli_terminal import (
    DB_DEFAULT,
    UNITS,
    AsJson,
    Db,
    existing,
    plain,
    print_json,
    print_table,
    seconds_of,
    shown,
    table_of,
)
from killproof.core.clock import SystemClock
from killproof.limits import Limits
from killproof.limits_aging import age, ages
from killproof.limits_reading import Limit
from killproof.wording import count_of, moment, printable, span

app = typer.Typer()
limits = typer.Typer(help="Limits that hold over all processes: slots, rates, closings, breakers.")
app.add_typer(limits, name="limits")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the resource.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help="A kind of job that uses it. May be repeated."),
]
#: Seconds in the unit of a rate; one letter stands for a minute too, as people write it.
RATE_UNITS: Final = UNITS | {"m": 60}


@limits.callback(invoke_without_command=True)
def list_limits(context: typer.Context, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """List the limits, and what is shut now; its subcommands set and change them."""
    if context.invoked_subcommand is not None:
        return
    with existing(db) as queue:
        found, aging = Limits(queue).list(), ages(queue)
    if as_json:
        print_json({"limits": [asdict(limit) for limit in found], "aging": aging})
        return
    if not found and not aging:
        print("no limits: killproof limits set NAME --kind KIND --running 3")
        return
    now_ms = SystemClock().now_ms()
    if found:
        table = table_of("limit", "kinds", "running", "tokens", "now", right=("running", "tokens"))
        for limit in found:
            most = "" if limit.running_max is None else f"/{limit.running_max}"
            tokens = "" if limit.tokens is None else f"{limit.tokens}/{limit.burst}"
            text = "; ".join(_gates(limit, now_ms)) or "open"
            table.add_row(
                plain(shown(limit.name)),
                plain(shown(", ".join(limit.kinds))),
                f"{limit.running}{most}",
                tokens,
                plain(printable(text)),
                style="" if text == "open" else "yellow",
            )
        print_table(table)
    for kind, seconds in aging.items():
        print(f"{printable(kind)} ages: priority 0 after {span(round(seconds * 1_000))}")


def _gates(limit: Limit, now_ms: int) -> list[str]:
    """Say of each rule that is shut what it waits for."""
    texts = []
    for gate in limit.gates:
        left = "" if gate.until_ms is None else f" for {span(gate.until_ms - now_ms)}"
        match gate.rule:
            case "running":
                texts.append("full")
            case "rate":
                texts.append(f"no token{left}")
            case "closed":
                until = "until it is opened" if gate.until_ms is None else left.strip()
                texts.append(f"closed {until} by {gate.closed_by}: {gate.why}")
            case "breaker":
                probe = limit.breaker.probe if limit.breaker else None
                texts.append(f"breaker open{left}" if probe is None else f"job {probe} tries")
    return texts


@limits.command("set")
def set_limit(
    name: Name,
    kind: Kinds = None,
    running: Annotated[
        int | None, typer.Option(metavar="N", help="Jobs that run at a time; 1 is a mutex.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/TIME", help="Starts in a time: 5/s, 100/min, 1000/h.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option(metavar="N", help="Starts at once after a rest.")
    ] = None,
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set all of a limit: what is left out is not limited; kinds are NAME unless given."""
    per_second = None if rate is None else _rate(rate)
    with existing(db) as queue:
        limit = Limits(queue).set(name, kinds=kind, running=running, rate=per_second, burst=burst)
    _say(limit, as_json)


def _rate(text: str) -> float:
    """Return starts per second.

    >>> _rate("5/s"), _rate("90/min")
    (5.0, 1.5)
    """
    units = "|".join(RATE_UNITS)
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?/ ?({units})", text.strip())
    if found is None:
        raise ValueError(f"--rate {shown(text)!r} is no rate: write 5/s, 100/min or 1000/h")
    return float(found[1]) / RATE_UNITS[found[2]]


@limits.command()
def breaker(
    name: Name,
    failures: Annotated[int, typer.Option(metavar="N", help="Failed attempts that open it.")] = 5,
    window: Annotated[str, typer.Option(metavar="TIME", help="Within this time.")] = "60s",
    pause: Annotated[
        str, typer.Option(metavar="TIME", help="Nothing starts for so long; then one job tries.")
    ] = "30s",
    kind: Kinds = None,
    off: Annotated[bool, typer.Option("--off", help="Take the breaker away.")] = False,
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let a resource rest when its jobs fail: a circuit breaker over all processes."""
    with existing(db) as queue:
        limit = Limits(queue).breaker(
            name,
            failures=None if off else failures,
            window=seconds_of(window, "--window"),
            pause=seconds_of(pause, "--pause"),
            kinds=kind,
        )
    _say(limit, as_json)


@limits.command("close")
def close_limit(
    name: Name,
    time: Annotated[
        str | None, typer.Argument(metavar="[TIME]", help="60s, 15min; left out: until opened.")
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; `killproof explain` shows it.")
    ] = "closed by hand",
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let nothing of a resource start for a time; what runs goes on."""
    seconds = None if time is None else seconds_of(time, "TIME")
    with existing(db) as queue:
        found = Limits(queue)
        found.close(name, seconds, reason)
        limit = found.get(name)
    assert limit is not None
    _say(limit, as_json)


@limits.command("open")
def open_limit(name: Name, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Open what somebody, or its breaker, has closed."""
    with existing(db) as queue:
        found = Limits(queue)
        was_shut = found.open(name)
        limit = found.get(name)
    if not was_shut:
        raise ValueError(f"limit {name!r} is not closed: nothing was changed")
    assert limit is not None
    _say(limit, as_json)


@limits.command("remove")
def remove_limit(name: Name, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Forget a resource and all its rules."""
    with existing(db) as queue:
        if not Limits(queue).remove(name):
            raise ValueError(f"there is no limit {name!r}: see killproof limits")
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        print(f"limit {printable(name)} is removed")


@limits.command("age")
def age_kind(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Of job.")],
    time: Annotated[
        str | None, typer.Argument(metavar="[TIME]", help="Of waiting, until priority 0: 1h.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="End it.")] = False,
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let jobs of a kind rise in priority while they wait, against starvation."""
    if (time is None) != off:
        raise ValueError("say after which time a job is urgent, such as 1h, or --off")
    seconds = None if time is None else seconds_of(time, "TIME")
    with existing(db) as queue:
        age(queue, kind, seconds)
    if as_json:
        print_json({"kind": kind, "seconds": seconds})
    elif seconds is None:
        print(f"{printable(kind)} does not age")
    else:
        print(f"{printable(kind)} ages: priority 0 after {span(round(seconds * 1_000))}")


def _say(limit: Limit, as_json: bool) -> None:
    """Say what a limit is now."""
    if as_json:
        print_json(asdict(limit))
        return
    rules = []
    if limit.running_max is not None:
        rules.append(f"{limit.running_max} run at a time")
    if limit.rate is not None:
        rules.append(f"{limit.rate:g} start per second, {limit.burst} at once")
    if limit.breaker is not None:
        one = limit.breaker
        many = count_of(one.failures, "failure")
        rules.append(f"{many} within {one.window:g} s rest it for {one.pause:g} s")
    kinds = ", ".join(limit.kinds)
    print(f"limit {printable(limit.name)} of {printable(kinds)}: {'; '.join(rules) or 'no rule'}")
    for gate in limit.gates:
        if gate.rule == "closed":
            until = "it is opened" if gate.until_ms is None else moment(gate.until_ms)
            print(f"closed until {until}: {printable(gate.why)}")
