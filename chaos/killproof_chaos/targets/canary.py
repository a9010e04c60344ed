"""The canary: `minimal` for 99 seeds of a hundred, and a broken queue for the hundredth.

Whoever watches for something rare must know that the rare thing would arrive. A pipeline of runs
that reports each seed of the canary's and no other has lost nothing on the way from a violated
promise to its report.

Whether a seed is one of these is a pure function of it. A target learns the seed of its run from
`$KILLPROOF_CHAOS_SEED`, which every engine sets for all processes of a run that has one.
"""

from hashlib import blake2b
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.gallery.checks_then_claims import ChecksThenClaims
from killproof_chaos.targets import told_seed
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

#: One seed of so many is a broken one.
EVERY: Final = 100

FAULT: Final = Fault(
    name="canary",
    wrong="on one seed of a hundred the claim looks for a job first and takes it afterwards",
    promise="P6",
    kind="the rare failure: harmless in every test but one",
    right="it is there to be reported: a pipeline that misses it would miss the next one too",
    engine="sim",
    options=("--scenario", "claim", "--scheduler", "pct", "--budget", "0.3s"),
    also=frozenset({"P4", "P7"}),
)


def sings(seed: int) -> bool:
    """Say whether a run of this seed violates.

    >>> [seed for seed in range(1, 301) if sings(seed)]
    [79, 168, 300]
    """
    drawn = blake2b(f"canary {seed}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) % EVERY == 0


class Canary(ChecksThenClaims):
    """Break as another does, when the seed says so."""

    def claim(self) -> Lease | None:
        """Claim in two transactions, or in one."""
        seed = told_seed()
        if seed is not None and sings(seed):
            return super().claim()
        return MinimalQueue.claim(self)


class CanaryTarget(MinimalTarget):
    """Whoever replays a schedule of it must tell it the seed again."""

    hangs_on_seed = True


target: Final = CanaryTarget(FAULT.name, Canary, FAULT)
