"""P7, P13 and P15, right beside a clause: each history tells it from one that is nearly the same.

They were found by `make mutate-checkers`: without them the checkers could be changed, and nothing
here would have gone red.
"""

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


# --- P15.


def test_a_claim_after_the_cancel_is_shown_with_the_start_that_came_of_it_alone(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    run.reaps(job)
    producer.cancels(job)
    worker.claims(job)
    worker.starts(job)

    lines = run.finding("P15").witnesses[0].lines

    assert [line for line in lines if line[0].startswith("effects/")] == [("effects/101.jsonl", 2)]


# --- P13.


def test_each_dead_letter_is_counted(run: "Run", producer: "Process", worker: "Process") -> None:
    for name in ("a", "b"):
        job = producer.enqueues(name, max_attempts=1)
        worker.claims(job)
        worker.runs(job, "raise")
        worker.nacks(job, "dead")

    finding = run.finding("P13")

    assert (finding.verdict, finding.checked) == ("pass", 2)
