"""P6, right beside a clause: what excuses one more run, and what only looks as if it did.

They were found by `make mutate-checkers`: without them the checker could be changed, and nothing
here would have gone red.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


@pytest.fixture
def job(run: "Run") -> "Job":
    return run.process("p1").enqueues("a")


@pytest.fixture
def worker(run: "Run", job: "Job") -> "Process":
    return run.process("w1")


def runs_again(worker: "Process", job: "Job") -> None:
    worker.claims(job)
    worker.runs(job)


@pytest.mark.parametrize(
    ("f", "to", "answer", "verdict"),
    [
        ("ack", None, "info", "pass"),
        ("nack", "retryable", "ok", "pass"),
        ("nack", None, "fail", "violated"),
        ("extend", None, "ok", "violated"),
    ],
)
def test_where_no_length_of_a_lease_is_declared_what_was_said_of_the_run_excuses_one_more(
    run: "Run", job: "Job", worker: "Process", f: str, to: str | None, answer: str, verdict: str
) -> None:
    """With a declared length the try to end the lease excuses it too: here nothing else does."""
    del run.parameters["lease_ms"]
    runs_again(worker, job)
    worker.settles(f, job, to, answer=answer)
    runs_again(run.process("w2"), job)

    assert run.verdict("P6") == verdict


def test_what_was_said_of_an_earlier_token_does_not_excuse_a_later_run_of_the_same_attempt(
    run: "Run", job: "Job", worker: "Process"
) -> None:
    """A release that is forgiven leaves the number of the attempt as it was."""
    runs_again(worker, job)
    worker.releases(job)
    runs_again(worker, job)
    runs_again(run.process("w2"), job)

    assert run.verdict("P6") == "violated"
