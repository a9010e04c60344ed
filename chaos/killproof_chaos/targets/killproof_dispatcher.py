"""A dispatcher in place of a worker: one process with several slots, every call of it on record.

What it writes for several jobs at once is one transaction, and in the history an operation for each
job.  Of a process with several slots the phase that it was in says which sync point it passed last;
a fault that was aimed finds the thread that stands still there, as in any other process.
"""

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from killproof import Lease, Queue, roster, settling
from killproof.core.host import Host
from killproof.dispatcher import Dispatcher
from killproof.handlers import Handlers
from killproof.settling import Settlement
from killproof.worker import Context
from killproof_chaos import hook
from killproof_chaos.recording import Recorder
from killproof_chaos.targets import killproof_played
from killproof_chaos.targets.killproof_adapter import GRACE_SECONDS, TIMEOUT_SECONDS
from killproof_chaos.targets.killproof_recorded import RecordedQueue, claimed

SLOTS: Final = 4
#: The others have plain handlers, which run in threads.
COROUTINE_KINDS: Final = frozenset({"webhook", "report", "scrape"})
#: Threads in which coroutines ask the HTTP sink: few, so that they are there from early on.
POSTERS: Final = 2


class DispatchedQueue(RecordedQueue):
    """A queue of which one call takes several jobs."""

    def __init__(
        self, path: Path, recorder: Recorder, kinds: Iterable[str], *, host: Host | None
    ) -> None:
        """Open the queue at `path`; `kinds` are all that are worked on."""
        super().__init__(path, recorder, host=host)
        self._all_kinds = set(kinds)

    def claim_many(self, limit: int, kinds: Iterable[str] | None = None) -> list[Lease]:
        """Claim, on record: an operation for each job, or one that got nothing."""
        claim, since = super().claim_many, time.monotonic_ns()
        wanted = None if kinds is None or set(kinds) == self._all_kinds else sorted(kinds)
        value = None if wanted is None else {"kinds": wanted}
        with self._recorder.during("claim", value=value) as completion:
            found = claim(limit, kinds)
            completion |= claimed(found[0] if found else None)
        for lease in found[1:]:
            with self._recorder.during("claim", value=value, since=since) as completion:
                completion |= claimed(lease)
        for lease in found:
            self.hold(lease)
        return found


class Instruments:
    """Puts on record what the dispatcher writes for several jobs in one transaction."""

    def __init__(self, recorder: Recorder) -> None:
        """Record into the history of this process."""
        self._recorder = recorder
        self._extend_many = roster.extend_many

    def install(self) -> None:
        """Take the places of the functions themselves, for the life of this process."""
        setattr(settling, "ack_many", self._settling("ack", settling.ack_many))  # noqa: B010
        release = self._settling("release", settling.release_many)
        setattr(settling, "release_many", release)  # noqa: B010 - mypy knows no such assignment
        setattr(roster, "extend_many", self.extend_many)  # noqa: B010

    def _settling(
        self, f: str, write: Callable[[Queue, Sequence[Settlement]], None]
    ) -> Callable[[Queue, Sequence[Settlement]], None]:
        def recorded(queue: Queue, settlements: Sequence[Settlement]) -> None:
            assert isinstance(queue, RecordedQueue)
            leases = [one.tenure.lease for one in settlements]
            with self._recorder.together(f, [_facts(lease) for lease in leases]):
                write(queue, settlements)
            for lease in leases:
                queue.forget(lease)

        return recorded

    def extend_many(self, queue: Queue, leases: Sequence[Lease]) -> set[tuple[int, int]]:
        """Extend, on record: who is refused was told so, whatever became of the others."""
        with self._recorder.together("extend", [_facts(lease) for lease in leases]) as told:
            refused = self._extend_many(queue, leases)
            for number, lease in enumerate(leases):
                if (lease.job.id, lease.fence) in refused:
                    told[number] = None
        return refused


def _facts(lease: Lease) -> dict[str, Any]:
    return {"job": lease.job.id, "fence": lease.fence}


_threads: Final = ThreadPoolExecutor(POSTERS, "chaos-sink")


async def play(context: Context) -> object:
    """Do what the job's script says, as a coroutine."""
    return await killproof_played.play_async(context, _threads)


def work(path: Path, recorder: Recorder, kinds: Sequence[str], host: Host | None) -> None:
    """Be a dispatcher until SIGTERM."""
    handlers = Handlers()
    for kind in kinds:
        is_coroutine = kind in COROUTINE_KINDS
        handlers(kind, timeout=TIMEOUT_SECONDS)(play if is_coroutine else killproof_played.play)
    Instruments(recorder).install()
    queue = DispatchedQueue(path, recorder, kinds, host=host)
    dispatcher = Dispatcher(queue, handlers, slots=SLOTS, grace=GRACE_SECONDS)
    # `serve` handles signals from its beginning; ready is said before, and a stop may be early.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: dispatcher.stop())
    hook.ready()
    dispatcher.serve()
    queue.close()
    recorder.close()
