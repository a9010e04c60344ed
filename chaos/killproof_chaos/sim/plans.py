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


def scans(
    database: sqlite3.Connection, table: str, asked: Mapping[str, tuple[str, Any]]
) -> Iterator[str]:
    """Yield a sentence for each statement of a job's life that walks through the jobs.

    Args:
        database: a connection that simulates nothing.
        table: where the jobs are.
        asked: statement -> the operation in which it was met first, and its values.
    """
    whole = re.compile(rf"SCAN (TABLE )?{re.escape(table)}\b(?!.* USING )")
    some = re.compile(rf"(SCAN|SEARCH) (TABLE )?{re.escape(table)}\b(?!.* INTEGER PRIMARY KEY)")
    for sql, (operation, values) in asked.items():
        if operation not in LIFE:
            continue
        plan: list[tuple[int, str]] = []
        with suppress(sqlite3.Error):  # Of many rows at once, or of no plan: a PRAGMA, a COMMIT.
            rows = database.execute(f"EXPLAIN QUERY PLAN {sql}", values)
            plan = [(parent, str(detail)) for _, parent, _, detail in rows]
        # What is sorted are the rows of the loops beside the sort, not those of a query inside.
        sorted_in = {parent for parent, step in plan if step == SORTS}
        text = " ".join(sql.split())
        if any(whole.match(step) for _, step in plan):
            yield f"{operation} walks through all jobs: {text}"
        elif any(parent in sorted_in and some.match(step) for parent, step in plan):
            yield f"{operation} sorts all jobs that it finds: {text}"
