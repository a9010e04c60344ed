"""A peer of the process that dies: it has the queue open before, and lives on.

While anybody has the queue open nobody recovers its log: the index in shared memory, the locks and
the queue's own files stay as the dead process has left them. The peer must be able to go on.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_context import context_of, end
from killproof_chaos.engines.crash_process import Ended, TargetFailed, asking, start, wait
from killproof_chaos.engines.crash_scenarios import job
from killproof_evidence.store import Store

#: Put in by the peer when the other process is dead.
OF_PEER: Final = job("of-peer", sink="log")
REFUSED: Final = 5
READY: Final = b"r"
GO_ON: Final = b"g"


class Peer:
    """The process, as the lane sees it."""

    def __init__(self, target: Any, store: Store) -> None:
        """Start it, and wait until it has opened the queue."""
        self._target = target
        self._store = store
        self._log = store.path / "peer.log"
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = start(lambda: self._live(orders, answers), self._log)
        os.close(orders)
        os.close(answers)
        os.read(self._answers, 1)

    def go_on(self) -> None:
        """Have it put a job in, now that the other process is dead; it has when this returns."""
        with suppress(BrokenPipeError):
            os.write(self._orders, GO_ON)
        os.read(self._answers, 1)

    def close(self) -> Ended:
        """Have it close the queue; return how it ended."""
        os.close(self._orders)
        ended = wait(self._pid)
        os.close(self._answers)
        return ended

    def _live(self, orders: int, answers: int) -> int:
        # Of the pipes it inherits both ends; with the lane's own open it would wait for ever.
        os.close(self._orders)
        os.close(self._answers)
        context = context_of(self._target, self._store)
        try:
            with asking("open"):
                context.current = context.open("peer")
            os.write(answers, READY)
            if os.read(orders, 1) == GO_ON:
                with asking("enqueue"):
                    context.session.enqueue(OF_PEER)
                os.write(answers, READY)
                os.read(orders, 1)
            with asking("close"):
                end(context)
        except TargetFailed as failed:
            Path(self._store.path, "peer.failed").write_text(str(failed), encoding="utf-8")
            for recorder in context.memo["recorders"].values():
                recorder.close()
            return REFUSED
        return 0

    @property
    def failure(self) -> str:
        """Return what the queue refused it; empty: nothing."""
        path = self._store.path / "peer.failed"
        return path.read_text(encoding="utf-8") if path.exists() else ""
