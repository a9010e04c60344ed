"""Cut the measured time out of what the processes of a round wrote down; pure functions of arrays.

A call that ended in it counts for the rate. Its latency also counts if it was still waiting at the
end: to leave it out would hide exactly the worker that waited longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from killproof_bench.measure import Samples
from killproof_bench.recording import Call, Kind, Served

#: Rates and intervals rest on blocks of a second: long beside a call, short beside a round.
BLOCK_SECONDS = 1.0
#: The kinds of calls that end in a claim: what "claim call" means in every figure.
CLAIMS = (Kind.ACK_AND_CLAIM, Kind.CLAIM)
#: The kinds that finish jobs: what the rate counts.
ACKS = (Kind.ACK_AND_CLAIM, Kind.ACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The measured time of a round, in whole blocks."""

    from_ns: int
    blocks: int
    block_ns: int

    @property
    def until_ns(self) -> int:
        """When it ends."""
        return self.from_ns + self.blocks * self.block_ns

    def block_of(self, moments: Samples) -> Samples:
        """Return the block of each moment; what comes later belongs to the last."""
        return np.minimum((moments - self.from_ns) // self.block_ns, self.blocks - 1)


def window(from_ns: int, seconds: float) -> Window:
    """Return the measured time that begins at a moment."""
    blocks = max(1, round(seconds / BLOCK_SECONDS))
    return Window(from_ns=from_ns, blocks=blocks, block_ns=round(seconds * 1e9) // blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Latencies of one kind of one round."""

    latencies: Samples  #: ns.
    blocks: Samples  #: For each latency, the block in which the call ended.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The calls of one round that fell into its measured time."""

    latencies: Samples  #: ns, of the claim calls of all workers, from their begin.
    blocks: Samples  #: For each latency, the block in which the call ended.
    per_block: Samples  #: Jobs acked in each block.
    counts: tuple[int, ...]  #: Jobs acked, by worker.
    block_seconds: float


def sample(calls: Sequence[Samples], from_ns: int, seconds: float) -> Sample:
    """Return the claim calls of the workers and the jobs that they acked."""
    measured = window(from_ns, seconds)
    per_block = np.zeros(measured.blocks, dtype=np.int64)
    counts = []
    for call in calls:
        end, jobs = call[:, Call.END], call[:, Call.JOBS]
        acked = np.isin(call[:, Call.KIND], ACKS)
        acked &= (end >= measured.from_ns) & (end < measured.until_ns)
        places = measured.block_of(end[acked])
        per_block += np.bincount(places, weights=jobs[acked], minlength=measured.blocks).astype(
            np.int64
        )
        counts.append(int(jobs[acked].sum()))
    claims = series(calls, CLAIMS, measured)
    return Sample(
        latencies=claims.latencies,
        blocks=claims.blocks,
        per_block=per_block,
        counts=tuple(counts),
        block_seconds=measured.block_ns / 1e9,
    )


def series(
    calls: Sequence[Samples],
    kinds: Sequence[Kind],
    measured: Window,
    *,
    since: Call = Call.BEGIN,
) -> Series:
    """Return the latencies of some kinds of calls, from their begin or their intended time."""
    chosen = np.concatenate([call[np.isin(call[:, Call.KIND], kinds)] for call in calls])
    begin, end = chosen[:, since], chosen[:, Call.END]
    seen = (end >= measured.from_ns) & (begin < measured.until_ns)
    return Series(latencies=end[seen] - begin[seen], blocks=measured.block_of(end[seen]))


def time_to_claim(
    producers: Sequence[Samples], served: Sequence[Samples], measured: Window
) -> Series:
    """Return for each job how long after its intended enqueue the commit of its claim was.

    A job that nobody has claimed by the end counts with the time it has waited so far.
    """
    enqueues = np.concatenate([call[call[:, Call.KIND] == Kind.ENQUEUE] for call in producers])
    sizes = enqueues[:, Call.JOBS]
    # A batch has consecutive ids: it is inserted under one lock.
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    jobs = np.repeat(enqueues[:, Call.JOB], sizes) + within
    intended = np.repeat(enqueues[:, Call.INTENDED], sizes)
    taken = np.concatenate(list(served))
    taken = taken[np.argsort(taken[:, Served.JOB], kind="stable")]
    places = np.searchsorted(taken[:, Served.JOB], jobs)
    found = np.zeros(len(jobs), dtype=bool)
    known = places < len(taken)
    found[known] = taken[places[known], Served.JOB] == jobs[known]
    claimed = np.full(len(jobs), measured.until_ns, dtype=np.int64)
    claimed[found] = taken[places[found], Served.CLAIMED]
    seen = (claimed >= measured.from_ns) & (intended < measured.until_ns)
    return Series(latencies=claimed[seen] - intended[seen], blocks=measured.block_of(claimed[seen]))


def due(calls: Sequence[Samples], kinds: Sequence[Kind], measured: Window) -> int:
    """Return how many jobs the schedule wanted in the measured time, of the calls that were made.

    A call that took fewer jobs than it might have counts with those it took.
    """
    chosen = np.concatenate([call[np.isin(call[:, Call.KIND], kinds)] for call in calls])
    intended = chosen[:, Call.INTENDED]
    seen = (intended >= measured.from_ns) & (intended < measured.until_ns)
    return int(chosen[seen, Call.JOBS].sum())
