"""Broken queue: each claim of a job gets the same token, so a fence lets everybody through."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="token-never-rises",
    wrong="the fencing token is the job and not the claim, so a stale outcome names the token of"
    " its successor",
    promise="P5",
    kind="a token that does not tell holders apart: the id of the job, of the worker, or of the "
    "host",
    right="fence = fence + 1 in the claim: no two holders ever have the same token",
    engine="sim",
    options=("--scenario", "stale-ack"),
    also=frozenset({"P4", "P6"}),
)


class TokenNeverRises(MinimalQueue):
    """Give the next holder the token of the last."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?, attempts = attempts + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts, fence"""


target: Final = MinimalTarget(FAULT.name, TokenNeverRises, FAULT)
