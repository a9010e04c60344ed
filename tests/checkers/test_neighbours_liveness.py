"""Histories right beside a clause of P17, P18 and P19, as in `test_neighbours.py`."""

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


# --- P17.


@pytest.mark.parametrize(
    ("state", "due_ms", "verdict"),
    [
        ("available", 3_600_000, "pass"),
        ("leased", 3_600_000, "violated"),
        ("available", None, "violated"),
    ],
)
def test_a_job_that_was_put_off_need_not_end_unless_somebody_has_it(
    run: "Run", producer: "Process", state: str, due_ms: int | None, verdict: str
) -> None:
    job = producer.enqueues("a")
    run.commits(job, state)
    job.row["due_ms"] = None if due_ms is None else run.wall_ms + due_ms
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == verdict
