"""The words of the articles that the queue grew from: views on request, and their numbers.

Somebody who has scripts, reports and panels on the articles' tables keeps them: `create` makes
views with the articles' own names, columns, words and text times, and their queries run unchanged.
An INSERT becomes a proper job: checked, with all defaults, seen by every worker at once.  **No
other write is accepted**, because the articles' own updates are the faults that the queue is there
to prevent (a claim without a guard, an outcome without a fence); the refusal says what to call.

A view is made when somebody asks, and never over a name that exists; nothing of it is stored, so
there is nothing that a backup could miss or `drop` could lose.  By a mark in its text a view is
known as ours; a row elsewhere that says so could be wrong.

What a word stands for, and where the articles' own words end (a job may be `held` or `cancelled`,
which they do not know), is in docs/articles.md.  Each query reads the whole table: they are made
for people and reports; workers claim through the core.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, LiteralString, TypedDict

from killproof import effects, workflow_tables
from killproof.articles_sql import MARK, VIEWS
from killproof.core.database import Transaction
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue


class Options(TypedDict):
    """Arguments of `Queue.enqueue` that an article sets: `queue.enqueue(..., **JOBS)`."""

    max_attempts: int
    retry: str


#: Five executions; `min(3600, 2^n * 30) + rand(0..20)` seconds between them: also the defaults.
JOBS: Final[Options] = {"max_attempts": 5, "retry": "article"}
#: Three executions.  Its own text retries without any delay, which is a storm; the delay is ours.
TASKS: Final[Options] = {"max_attempts": 3, "retry": "article"}
#: Three retries after the first execution, again with a delay that its text does not have.
ORDERS: Final[Options] = {"max_attempts": 4, "retry": "article"}

#: Tasks that run at once in the second article: `Dispatcher(queue, handlers, slots=SLOTS)`.
SLOTS: Final = 3
#: Seconds after which the first article takes a running job for stuck.  Here a dead worker is
#: noticed at once; it is the time limit of a handler that sets none: a hung one ends then.
STALE_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view of an article in a file."""

    article: str
    name: str
    is_made: bool


#: Literal statements: a name can not be a value of one.
DROP: Final = {
    "jobs": "DROP VIEW IF EXISTS jobs",
    "job_effects": "DROP VIEW IF EXISTS job_effects",
    "tasks": "DROP VIEW IF EXISTS tasks",
    "orders": "DROP VIEW IF EXISTS orders",
    "order_tasks": "DROP VIEW IF EXISTS order_tasks",
}

FIND: Final = "SELECT type, sql FROM sqlite_schema WHERE lower(name) = :name"


def create(queue: Queue, articles: Iterable[str] | None = None) -> list[str]:
    """Make the views of these articles, all or none; return their names.

    What is there already is made anew, so that a later version brings its own.

    Args:
        queue: in its file.
        articles: of `VIEWS`; None is all of them.

    Raises:
        ValueError: there is no such article; definite.
        FileRefused: the file has something else of that name; nothing was made; definite.
        KillproofError: as for `Queue.cancel`.
    """
    wanted = _views(articles)
    with queue.transaction() as tx:
        for name in wanted:
            _refuse_foreign(tx, name)
        for name, statements in wanted.items():
            if name == "job_effects":
                effects._ensure_table(tx)
            elif name == "orders":
                workflow_tables.ensure(tx)
            tx.change(DROP[name])
            for statement in statements:
                tx.change(statement)
    return list(wanted)


def drop(queue: Queue, articles: Iterable[str] | None = None) -> list[str]:
    """Take the views of these articles away; return the names of those that were there.

    Raises:
        ValueError: there is no such article; definite.
        KillproofError: as for `Queue.cancel`.
    """
    wanted = _views(articles)
    with queue.transaction() as tx:
        gone = [name for name in wanted if _is_ours(tx, name)]
        for name in gone:
            tx.change(DROP[name])
    return gone


def views(queue: Queue) -> list[View]:
    """Return every view that there may be, and whether it is made in this file."""
    with queue.database.read() as tx:
        return [
            View(article=article, name=name, is_made=_is_ours(tx, name))
            for article, found in VIEWS.items()
            for name in found
        ]


def check(articles: Iterable[str]) -> list[str]:
    """Return the names of articles as a list.

    Raises:
        ValueError: there is no such article; the message names it; definite.
    """
    wanted = list(articles)
    for article in wanted:
        if article not in VIEWS:
            raise ValueError(f"article {article!r} is unknown: use {', '.join(VIEWS)}")
    return wanted


def _views(articles: Iterable[str] | None) -> dict[str, tuple[LiteralString, ...]]:
    wanted = check(VIEWS if articles is None else articles)
    return {name: sql for article in wanted for name, sql in VIEWS[article].items()}


def _is_ours(tx: Transaction, name: str) -> bool:
    row = tx.row(FIND, {"name": name})
    return row is not None and row[0] == "view" and MARK in str(row[1])


def _refuse_foreign(tx: Transaction, name: str) -> None:
    row = tx.row(FIND, {"name": name})
    if row is not None and not _is_ours(tx, name):
        what = str(row[0])
        raise FileRefused(
            f"{tx.path} has a {what} {name!r} that is not killproof's: rename it, "
            "or name the articles that you want, without this one"
        )
