"""One step of a queue at a time, on record: what the engine `crash` asks of a target.

A `Session` is a process's whole view of a queue: a connection, a history, and the calls by name. A
target that has `steps(place, recorder)` gives one; those of the built-in targets stand beside this
module. What a queue does by chance or by the clock is fixed, so that the n-th file call of an
operation is the same call in every run.

Calls that few queues have are in `more`, by the name of their operation: one that a queue learns
is one entry there and one scenario.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from killproof import KillproofError
from killproof import LeaseLost as KillproofLeaseLost
from killproof_chaos.targets.minimal_queue import LeaseLost
from killproof_chaos.workload import Job
from killproof_evidence import effect
from killproof_evidence.history import HistoryWriter
from killproof_evidence.store import Store
from killproof_evidence.target import Definite, Indefinite

#: The lease of a holder that is going to be killed: a queue that waits for leases need not wait.
BRIEF_NS: Final = 20_000_000
RECORD_EFFECT: Final = "INSERT INTO chaos_effect (job, attempt, fence) VALUES (?, ?, ?)"


class Session(Protocol):
    """A queue in one process."""

    reaps: bool  #: taking back is a call of its own, which takes nothing out
    ids: dict[str, Any]  #: the harness's id -> the queue's, of what was enqueued

    @property
    def more(self) -> Mapping[str, Callable[[Any], object]]:
        """Further calls; each gets what its scenario gives, and False says that it did nothing."""

    def brief(self) -> None:
        """Make the leases short that are taken from now on, where only their end frees a job."""

    def enqueue(self, job: Job) -> None: ...  # noqa: D102
    def claim(self) -> Any: ...  # noqa: D102
    def extend(self, lease: Any) -> None: ...  # noqa: D102
    def ack(self, lease: Any) -> None: ...  # noqa: D102
    def nack(self, lease: Any, error: str, *, permanent: bool = False) -> None: ...  # noqa: D102
    def completing(self, lease: Any) -> None: ...  # noqa: D102
    def reap(self) -> int: ...  # noqa: D102

    def play(self, lease: Any) -> Exception | None:
        """Run the handler of a leased job; return how it failed."""

    def sink(self, lease: Any) -> str:
        """Return where the leased job's effect goes."""

    def tidy(self) -> None:
        """Do what waits for a person, such as letting go what is held."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read through the queue's own connection."""

    def extras(self) -> int:
        """Count what operations have changed in the file besides jobs."""

    def close(self) -> None:
        """Close the queue."""


def is_expected(error: BaseException) -> bool:
    """Say whether a caller may meet this error: the queue's own, not its driver's."""
    return isinstance(error, KillproofError | Definite | Indefinite | LeaseLost | ValueError)


def is_definite(error: BaseException) -> bool:
    """Say whether the error says that nothing was changed."""
    if isinstance(error, KillproofError):
        return error.definite
    return isinstance(error, Definite | LeaseLost | ValueError)


@contextmanager
def together(f: str, asked: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Record one call that does several things of one kind as an operation for each.

    A history has one open operation at a time, so each has a file of its own.

    Args:
        f: the operation.
        asked: for each the fields of its invocation.

    Yields:
        a list that the block fills with the fields of the completions; what it leaves out was
        answered, and there was nothing.
    """
    store = Store(os.environ["KILLPROOF_STORE"])
    names = [f"{f}{number}" for number in range(len(asked))]
    writers = [HistoryWriter(store.history_file(name), name) for name in names]
    opened = [writer.invoke(f, **one) for writer, one in zip(writers, asked, strict=True)]
    told: list[dict[str, Any]] = []
    try:
        yield told
    except BaseException as error:
        value = {"error": f"{type(error).__name__}: {error}"}
        for writer, number in zip(writers, opened, strict=True):
            (writer.fail if is_definite(error) else writer.info)(number, value=value)
        raise
    else:
        told += [{}] * (len(asked) - len(told))
        for writer, number, one in zip(writers, opened, told, strict=True):
            writer.ok(number, **one)
    finally:
        for writer in writers:
            writer.close()


def run_handler(payload: dict[str, Any], job: object, attempt: int, fence: int) -> Exception | None:
    """Run the handler of a job; return how it failed."""
    try:
        effect.run(payload, job=job, attempt=attempt, fence=fence)
    except effect.ScriptedFailure as error:
        return error
    return None


def settle(session: Session, lease: Any, failure: Exception | None) -> None:
    """Tell the queue how a job ended, as a worker does; a lease that is lost is lost."""
    with suppress(LeaseLost, KillproofLeaseLost):
        if failure is not None:
            permanent = isinstance(failure, effect.ScriptedPermanent)
            session.nack(lease, str(failure), permanent=permanent)
        elif session.sink(lease) == "table":
            session.completing(lease)
        else:
            session.ack(lease)


def wait_until(moment: float) -> None:
    """Wait until a moment of the wall clock, in seconds."""
    time.sleep(max(0.0, moment - time.time()))
