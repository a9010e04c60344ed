"""Judge whether what was acknowledged is in the file: each id once, in order, and nothing else.

Pure functions of the two accounts.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from killproof_bench.ledger import NAMED_MAX
from killproof_bench.result import Correctness


def judge(
    told: Sequence[Sequence[int]],
    stored: Sequence[int],
    *,
    unacknowledged: int = 0,
    integrity: str = "ok",
) -> Correctness:
    """Compare the ids that callers were told with the ids in the file.

    Args:
        told: By caller, in the order of its jobs.
        stored: The ids in the file.
        unacknowledged: Rows more that are there by right: their callers are told no ids.
        integrity: The answer of `PRAGMA integrity_check`, joined.
    """
    because = []
    acknowledged = Counter(job for ids in told for job in ids)
    because += _named("told to more than one caller", [j for j, n in acknowledged.items() if n > 1])
    because += _named("acknowledged, and not in the file", acknowledged.keys() - set(stored))
    if any(later <= earlier for ids in told for earlier, later in pairwise(ids)):
        because.append("a caller was told ids that are not in the order of its jobs")
    due = len(acknowledged) + unacknowledged
    if len(stored) != due:
        because.append(f"{due} jobs went in and {len(stored)} are stored")
    if integrity != "ok":
        because.append(f"integrity_check says {integrity}")
    return Correctness(
        verdict="violated" if because else "pass", because=tuple(because), jobs=len(stored)
    )


def _named(what: str, jobs: Sequence[int] | set[int]) -> list[str]:
    if not jobs:
        return []
    first = ", ".join(str(job) for job in sorted(jobs)[:NAMED_MAX])
    return [f"{len(jobs)} jobs {what}, the first: {first}"]
