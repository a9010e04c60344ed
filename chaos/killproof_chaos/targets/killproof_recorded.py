"""A `Queue` whose calls are on record, for workers of a run and for the engine `crash`."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from killproof import DatabaseBusy, Host, Lease, LeaseLost, Queue
from killproof.core.database import Transaction
from killproof.payloads import Payloads, Reference
from killproof_chaos.recording import Recorder, Result
from killproof_evidence.records import without_alarms

#: Production has one checkpoint in hundreds of commits; a run of seconds must see dozens.
CHECKPOINT_COMMITS: Final = 25


class RecordedQueue(Queue):
    """A `Queue` whose calls are on record."""

    def __init__(self, path: Path, recorder: Recorder, *, host: Host | None = None) -> None:
        """Open the queue at `path`."""
        super().__init__(path, host=host)
        self.database.checkpoint_commits = CHECKPOINT_COMMITS
        self._recorder = recorder
        recorder.facts_of = self._facts_of
        self._held: dict[tuple[int, int], Lease] = {}  # Until their outcome is in the file.

    def claim(self, kinds: Iterable[str] | None = None) -> Lease | None:
        """Claim, on record."""
        claim = super().claim
        lease = self._recorder.call("claim", lambda: claim(kinds), told=claimed)
        self._hold_only(lease)
        return lease

    def close(self) -> None:
        """Close the queue, which gives back what this worker holds, if it still does.

        A worker that stopped trusting its lease tells the queue nothing; a renewal under way may
        have saved the lease all the same. Nobody knows, so the history says `info`.
        """
        held = [{"job": job, "fence": fence} for job, fence in self._held]
        with self._recorder.doubted("release", held):
            super().close()

    def ack_and_claim(
        self, lease: Lease, result: object = None, kinds: Iterable[str] | None = None
    ) -> Lease | None:
        """Ack and claim in one transaction: two operations of the history, one after the other."""
        ack = super().ack_and_claim
        since = time.monotonic_ns()
        following = self._outcome("ack", lambda: ack(lease, result, kinds), lease)
        self._recorder.call("claim", lambda: following, since=since, told=claimed)
        self._hold_only(following)
        return following

    def _hold_only(self, lease: Lease | None) -> None:
        self._held.clear()
        if lease is not None:
            self.hold(lease)

    def hold(self, lease: Lease) -> None:
        """Note that this process has the lease."""
        self._held[lease.job.id, lease.fence] = lease

    def forget(self, lease: Lease) -> None:
        """Note that the lease is no longer this process's."""
        self._held.pop((lease.job.id, lease.fence), None)

    def extend(self, lease: Lease) -> Lease:
        """Extend, on record."""
        extend = super().extend
        return self._recorder.call(
            "extend", lambda: extend(lease), job=lease.job.id, fence=lease.fence
        )

    def ack(self, lease: Lease, result: object = None) -> None:
        """Ack, on record."""
        ack = super().ack
        self._outcome("ack", lambda: ack(lease, result), lease)

    @contextmanager
    def completing(self, lease: Lease, result: object = None) -> Iterator[Transaction]:
        """Ack together with the caller's SQL, on record.

        It runs inside a handler, where the worker's alarm raises; its completion must not be cut.
        """
        with (
            without_alarms(),
            self._recorder.during("ack", job=lease.job.id, fence=lease.fence),
            super().completing(lease, result) as tx,
        ):
            yield tx
        self.forget(lease)

    def nack(
        self,
        lease: Lease,
        error: BaseException | str,
        *,
        delay: float | None = None,
        permanent: bool = False,
    ) -> None:
        """Nack, on record."""
        nack = super().nack
        value: dict[str, Any] = {"permanent": True} if permanent else {}
        if delay is not None:
            value["delay_ms"] = round(delay * 1_000)
        self._outcome(
            "nack",
            lambda: nack(lease, error, delay=delay, permanent=permanent),
            lease,
            value or None,
        )

    def release(self, lease: Lease) -> None:
        """Release, on record."""
        release = super().release
        self._outcome("release", lambda: release(lease), lease)

    def snooze(self, lease: Lease, delay: float) -> None:
        """Snooze, on record."""
        snooze = super().snooze
        self._outcome(
            "snooze",
            lambda: snooze(lease, delay),
            lease,
            {"delay_ms": round(delay * 1_000)},
        )

    def _facts_of(self, error: BaseException) -> dict[str, Any]:
        """Tell how long a call was ready to wait: a worker that stops waits less than others."""
        if not isinstance(error, DatabaseBusy):
            return {}
        return {"limit_ms": round(self.database.busy_limit * 1_000)}

    def _outcome(
        self,
        f: str,
        function: Callable[[], Result],
        lease: Lease,
        asked: dict[str, Any] | None = None,
    ) -> Result:
        """Tell the queue how a job ended, on record; after it the lease is no longer ours.

        What was asked stands in the record of the call: its answer may never be heard.
        """
        try:
            result = self._recorder.call(
                f, function, job=lease.job.id, fence=lease.fence, value=asked
            )
        except LeaseLost:
            self.forget(lease)
            raise
        self.forget(lease)
        return result


def whole(queue: Queue, lease: Lease | None) -> Lease | None:
    """Return a lease with the job's payload in it, also if that is in a file.

    A worker reads it when the handler asks; who has no worker has no other way.
    """
    if lease is None or Reference.of(lease.job.payload) is None:
        return lease
    return replace(lease, job=replace(lease.job, payload=Payloads(queue).payload(lease.job)))


def claimed(lease: Lease | None) -> dict[str, Any]:
    """Return what the history says of the answer to a claim."""
    if lease is None:
        return {}
    payload = lease.job.payload
    name = payload.get("id") if isinstance(payload, dict) else None
    value = {"id": name, "attempt": lease.job.attempt}
    return {"job": lease.job.id, "fence": lease.fence, "value": value}
