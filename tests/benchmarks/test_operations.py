"""What one call of enqueue, claim and ack costs a single process; printed, never asserted.

At durability `process`, so that the figures are of the queue and not of the disk. Few rounds: the
whole suite stays quick, and a comparison between versions is a job for interleaved runs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from killproof import Lease, Queue

ROUNDS = 50
PAYLOAD = {"id": "a-webhook", "body": "x" * 80}


@pytest.fixture
def queue(place: Path) -> Iterator[Queue]:
    with Queue(place / "queue.db", durability="process") as queue:
        for _ in range(4 * ROUNDS):
            queue.enqueue("bench", PAYLOAD)
        yield queue


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def measure(
    benchmark: BenchmarkFixture,
    call: Callable[..., object],
    setup: Callable[[], object] | None = None,
) -> int:
    """Measure a call; return how often it ran: once where tests run side by side."""
    benchmark.pedantic(call, setup=setup, rounds=ROUNDS)  # type: ignore[no-untyped-call]  # Theirs.
    return ROUNDS if benchmark.enabled else 1


def test_enqueue_puts_in_one_job_per_call(queue: Queue, benchmark: BenchmarkFixture) -> None:
    """Covers S1.49. Rule H7."""
    before = queue.counts()["available"]

    rounds = measure(benchmark, lambda: queue.enqueue("bench", PAYLOAD))

    assert queue.counts()["available"] == before + rounds


def test_claim_takes_one_job_per_call(queue: Queue, benchmark: BenchmarkFixture) -> None:
    """Covers S1.49, S2.15. Rule H7."""
    rounds = measure(benchmark, lambda: claimed(queue))

    assert queue.counts()["leased"] == rounds


def test_ack_finishes_one_job_per_call(queue: Queue, benchmark: BenchmarkFixture) -> None:
    """Rule H7."""

    def prepared() -> tuple[tuple[Lease], dict[str, object]]:
        return (claimed(queue),), {}

    rounds = measure(benchmark, queue.ack, setup=prepared)

    assert queue.counts()["succeeded"] == rounds


def test_ack_and_claim_finishes_one_job_and_takes_the_next(
    queue: Queue, benchmark: BenchmarkFixture
) -> None:
    """Rule H7."""
    held = [claimed(queue)]

    def once() -> None:
        following = queue.ack_and_claim(held[0])
        assert following is not None
        held[0] = following

    rounds = measure(benchmark, once)

    counts = queue.counts()
    assert (counts["succeeded"], counts["leased"]) == (rounds, 1)
