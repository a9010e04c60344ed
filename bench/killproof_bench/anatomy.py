"""Where the time of a claim goes, from the points that every call of every process passed.

SQLite has one write lock, so at each moment it is held by one call or by nobody. The workers wrote
down when each call asked for its turn, when it had the lock and when it had committed; laid beside
each other, these intervals tell how long the lock was held, and how long it lay idle *while
somebody waited for it*: the handover gap. That gap is what a way of waiting costs: a sleeper that
has not noticed yet, a waiter that was woken and has no processor.

Pure functions of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from killproof_bench.load import Ended
from killproof_bench.measure import Samples
from killproof_bench.recording import Call
from killproof_bench.result import Anatomy


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Who had the lock and who wanted it, over the measured time of one round."""

    moments: Samples  #: Ascending; between two of them nothing changes.
    idle_before: Samples  #: ns up to each moment in which nobody had the lock.
    held_ns: int
    wanted_idle_ns: int  #: Nobody had it, and somebody waited.


def timeline(calls: Sequence[Samples], from_ns: int, until_ns: int) -> Timeline:
    """Lay the calls of all processes of one round beside each other."""
    timed = np.concatenate([call[call[:, Call.LOCK] > 0] for call in calls])
    # A checkpoint follows its commit at once, under the same lock.
    freed = timed[:, Call.COMMITTED] + timed[:, Call.CHECKPOINT]
    asked, lock = timed[:, Call.ASKED], timed[:, Call.LOCK]
    one = np.ones(len(timed), dtype=np.int64)
    none = np.zeros_like(one)
    at = np.concatenate([asked, lock, lock, freed, [from_ns, until_ns]])
    order = np.argsort(at, kind="stable")
    moments = at[order]
    wanted = np.cumsum(np.concatenate([one, -one, none, none, [0, 0]])[order])
    held = np.cumsum(np.concatenate([none, none, one, -one, [0, 0]])[order])
    inside = np.clip(moments, from_ns, until_ns)
    lasting = np.diff(inside, append=until_ns)
    idle = np.where(held == 0, np.diff(moments, append=moments[-1]), 0)
    return Timeline(
        moments=moments,
        idle_before=np.concatenate([[0], np.cumsum(idle)[:-1]]),
        held_ns=int(lasting[held > 0].sum()),
        wanted_idle_ns=int(lasting[(held == 0) & (wanted > 0)].sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The timed calls of one round, split; one number per call and part, in ns."""

    total: Samples
    python: Samples
    wait: Samples
    wait_idle: Samples  #: The part of `wait` in which nobody had the lock.
    sql: Samples
    commit: Samples
    checkpoint: Samples
    sync: Samples
    retries: int
    line: Timeline
    window_ns: int


def parts(
    workers: Sequence[Samples], others: Sequence[Samples], from_ns: int, until_ns: int
) -> Parts | None:
    """Split the calls of the workers that ended in the measured time; `None` if none was timed.

    Args:
        workers: What each worker recorded.
        others: What producers recorded: they hold the same lock.
        from_ns: Begin of the measured time.
        until_ns: Its end.
    """
    of_workers = np.concatenate(list(workers))
    ended = (of_workers[:, Call.END] >= from_ns) & (of_workers[:, Call.END] < until_ns)
    calls = of_workers[ended & (of_workers[:, Call.LOCK] > 0)]
    if not len(calls):
        return None
    line = timeline([*workers, *others], from_ns, until_ns)
    begin, asked, lock, written, committed, synced, end = (
        calls[:, column]
        for column in (
            *(Call.BEGIN, Call.ASKED, Call.LOCK, Call.WRITTEN),
            *(Call.COMMITTED, Call.SYNCED, Call.END),
        )
    )
    idle = np.interp(lock, line.moments, line.idle_before) - np.interp(
        asked, line.moments, line.idle_before
    )
    return Parts(
        total=end - begin,
        python=(asked - begin) + (end - synced),
        wait=lock - asked,
        wait_idle=idle.astype(np.int64),
        sql=written - lock,
        commit=committed - written,
        checkpoint=calls[:, Call.CHECKPOINT],
        sync=synced - committed - calls[:, Call.CHECKPOINT],
        retries=int(of_workers[ended, Call.RETRIES].sum()),
        line=line,
        window_ns=until_ns - from_ns,
    )


def anatomy(
    rounds: Sequence[Parts], ended: Sequence[Ended], jobs: int, *, counts_retries: bool
) -> Anatomy | None:
    """Put the rounds of one cell together; `None` without any.

    Args:
        rounds: The split calls of each.
        ended: What every worker of every round said at its end.
        jobs: How many jobs they acked, warm-up included, as their processor time does.
        counts_retries: Whether pauses before the lock were seen: the reference's are not.
    """
    if not rounds:
        return None

    def joined(name: str) -> Samples:
        return np.concatenate([getattr(part, name) for part in rounds])

    def mean(name: str) -> float:
        return float(joined(name).mean()) / 1e6

    wait, hold = joined("wait"), joined("sql") + joined("commit")
    window = sum(part.window_ns for part in rounds)
    calls = len(wait)
    return Anatomy(
        calls=calls,
        total_ms=mean("total"),
        python_ms=mean("python"),
        wait_held_ms=mean("wait") - mean("wait_idle"),
        wait_idle_ms=mean("wait_idle"),
        sql_ms=mean("sql"),
        commit_ms=mean("commit"),
        checkpoint_ms=mean("checkpoint"),
        sync_ms=mean("sync"),
        lock_wait_p50_ms=_at(wait, 50),
        lock_wait_p99_ms=_at(wait, 99),
        lock_hold_p50_ms=_at(hold, 50),
        lock_hold_p99_ms=_at(hold, 99),
        retries=sum(part.retries for part in rounds) / calls if counts_retries else None,
        lock_held=sum(part.line.held_ns for part in rounds) / window,
        idle_while_wanted=sum(part.line.wanted_idle_ns for part in rounds) / window,
        user_us=sum(each.user_ns for each in ended) / 1e3 / max(1, jobs),
        system_us=sum(each.system_ns for each in ended) / 1e3 / max(1, jobs),
        run_delay_us=sum(each.run_delay_ns for each in ended) / 1e3 / max(1, jobs),
        switches=sum(each.switches for each in ended) / max(1, jobs),
    )


def _at(samples: Samples, percent: int) -> float:
    # The sample of that rank, as everywhere: an interpolation is a time that nobody waited.
    return float(np.percentile(samples, percent, method="inverted_cdf")) / 1e6
