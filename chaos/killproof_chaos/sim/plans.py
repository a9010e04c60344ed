"""P20: what is asked in the life of a job costs the same with one job and with a million.

A simulated run has few jobs, and its clock no cost. So SQLite is asked instead how it would go
about each statement: whoever walks through the whole table, or sorts it, does so under the write
lock, and all others wait as long as the backlog is.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

#: Calls that happen for each job; what a dashboard or an operator asks may cost more.
LIFE: Final = frozenset({"enqueue", "claim", "extend", "ack", "nack"})
SORTS: Final = "USE TEMP B-TREE FOR ORDER BY"
#: Words of a statement that need not see all that it could.
STOPS: Final = re.compile(r"\b(LIMIT|EXISTS)\b", re.IGNORECASE)
#: What one row of many may be.
ROWS: Final = (tuple, list, dict)


def scans(
    database: sqlite3.Connection, table: str, asked: Mapping[tuple[str, str], Any]
) -> Iterator[str]:
    """Yield a sentence for each statement of a job's life that walks through the jobs.

    Args:
        database: a connection that simulates nothing.
        table: where the jobs are.
        asked: operation and statement -> the values that it was met with first.
    """
    for (operation, sql), values in asked.items():
        if operation not in LIFE:
            continue
        jobs = "|".join(map(re.escape, _names(table, sql)))
        # An index is walked through as well, unless the statement stops at what it looked for.
        way = "(?!.* USING )" if STOPS.search(sql) else ""
        whole = re.compile(rf"SCAN (TABLE )?({jobs})\b{way}")
        some = re.compile(rf"(SCAN|SEARCH) (TABLE )?({jobs})\b(?!.* INTEGER PRIMARY KEY)")
        # Of many rows at once the first will do.
        is_many = isinstance(values, list) and bool(values) and isinstance(values[0], ROWS)
        plan: list[tuple[int, str]] = []
        with suppress(sqlite3.Error):  # What has no plan: a PRAGMA, a COMMIT.
            asks = database.execute(f"EXPLAIN QUERY PLAN {sql}", values[0] if is_many else values)
            plan = [(parent, str(detail)) for _, parent, _, detail in asks]
        # What is sorted are the rows of the loops beside the sort, not those of a query inside.
        sorted_in = {parent for parent, step in plan if step == SORTS}
        text = " ".join(sql.split())
        if any(whole.match(step) for _, step in plan):
            yield f"{operation} walks through all jobs: {text}"
        elif any(parent in sorted_in and some.match(step) for parent, step in plan):
            yield f"{operation} sorts all jobs that it finds: {text}"


def _names(table: str, sql: str) -> list[str]:
    """Return how SQLite may name the table in a plan: by the names that the statement gives it."""
    given = re.findall(
        rf"\b{re.escape(table)}[\"\]`]?\s+(?:AS\s+)?[\"\[`]?(\w+)", sql, re.IGNORECASE
    )
    return [table, *given]  # A word that is no name, as WHERE, is in no plan.
