"""Judge whether a measured run was right: the verdict that stands beside every figure.

The worker processes write down each job that the queue said they had acked, the producers each id
that they were given; the database is read when all have ended. Both must tell the same story: each
acked job acked once, by one worker, stored as succeeded with one attempt by that worker, and no job
too many or too few. In a batch each job counts by itself.
A pure function of the two accounts. A fast queue that does a job twice has no speed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from killproof_bench.result import Correctness

#: A verdict names at most so many jobs per sentence; the count is always whole.
NAMED_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one worker process wrote down."""

    worker: str | None  #: The identity the queue gave it; `None` where it never claimed.
    acked: Sequence[int]  #: Job ids in the order of their acks.
    error: str | None  #: An error that reached the worker ends its run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the database holds when all workers have ended."""

    counts: Mapping[str, int]  #: Jobs by state.
    done: Mapping[int, str]  #: For each succeeded job the worker of its one successful attempt.
    attempts: int  #: Rows in `attempt`: deliveries that ended.
    deliveries: int  #: Sum over all jobs.
    integrity: str  #: The answer of `PRAGMA integrity_check`, joined.
    waiting: Set[int] = frozenset()  #: Jobs that are available.


def judge(
    backlog: int, accounts: Sequence[Account], stored: Stored, *, enqueued: Sequence[int] = ()
) -> Correctness:
    """Compare what the workers and the producers were told with what is stored.

    Args:
        backlog: Jobs that were available when the run began.
        accounts: One per process.
        stored: The database afterwards.
        enqueued: The ids that producers were given, in any order; nothing else was added.
    """
    because = [f"a worker met an error: {a.error}" for a in accounts if a.error is not None]
    acks = Counter(job for account in accounts for job in account.acked)
    owners = {job: account.worker for account in accounts for job in account.acked}
    twice = [job for job, count in acks.items() if count > 1]
    because += _named("acked more than once", twice)
    because += _named("acked, and not stored as succeeded", acks.keys() - stored.done.keys())
    because += _named("stored as succeeded, and acked by nobody", stored.done.keys() - acks.keys())
    other = [job for job, worker in stored.done.items() if owners.get(job, worker) != worker]
    because += _named("acked by one worker and stored as another's", other)

    given = Counter(enqueued)
    because += _named("enqueued more than once", [job for job, count in given.items() if count > 1])
    lost = given.keys() - stored.done.keys() - stored.waiting
    because += _named("enqueued, and not stored", lost)
    total = sum(stored.counts.values())
    went_in = backlog + len(enqueued)
    if total != went_in:
        because.append(f"{went_in} jobs went in and {total} are stored")
    succeeded = stored.counts.get("succeeded", 0)
    if set(stored.counts) - {"available", "succeeded"}:
        because.append(f"states nobody asked for: {dict(stored.counts)}")
    if not succeeded == stored.attempts == stored.deliveries:
        because.append(
            f"{succeeded} jobs succeeded with {stored.deliveries} deliveries and "
            f"{stored.attempts} ended attempts; one each was due"
        )
    if stored.integrity != "ok":
        because.append(f"integrity_check says {stored.integrity}")
    return Correctness(
        verdict="violated" if because else "pass", because=tuple(because), jobs=len(acks)
    )


def merged(parts: Sequence[Correctness]) -> Correctness:
    """Return one verdict for several runs: violated if any is, unknown without a run."""
    because = tuple(reason for part in parts for reason in part.because)
    verdicts = {part.verdict for part in parts}
    if "violated" in verdicts:
        return Correctness(verdict="violated", because=because, jobs=sum(p.jobs for p in parts))
    if "unknown" in verdicts or not parts:
        return Correctness(verdict="unknown", because=because, jobs=sum(p.jobs for p in parts))
    return Correctness(verdict="pass", because=because, jobs=sum(p.jobs for p in parts))


def _named(what: str, jobs: Sequence[int] | set[int]) -> list[str]:
    if not jobs:
        return []
    first = ", ".join(str(job) for job in sorted(jobs)[:NAMED_MAX])
    return [f"{len(jobs)} jobs {what}, the first: {first}"]
