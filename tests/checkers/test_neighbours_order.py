"""Histories right beside a clause of P11 and P12, as in `test_neighbours.py`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


# --- P11.


def test_ids_that_are_no_numbers_give_no_order(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    for name in ("a", "b"):
        run.job(name).id = f"id-{name}"  # type: ignore[assignment]
    for job in run.jobs:
        producer.invokes("enqueue", value=job.asked)
        job.due_ms = 5
        run.commits(job, "available")
        producer.hears("ok", job=job)
    run.passes(20)
    worker.claims(run.jobs[1])

    assert run.verdict("P11") == "pass"
