"""Processes that are started side by side, and all ended when one fails or the user interrupts."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from killproof_bench.gate.checkout import CheckoutError

Value = TypeVar("Value")
#: Counts do not depend on who else runs; more than this would only wait for each other.
SIDE_BY_SIDE = 2


class Processes:
    """The processes that are running now, each the head of a group of its own."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, what: str, seconds: float
    ) -> str:
        """Run one to its end; return what it printed.

        Raises:
            CheckoutError: It failed, or took longer than so many seconds.
        """
        with self._guard:
            if self._stopped:
                raise CheckoutError(f"{what} was not begun")
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            process.communicate()
            raise CheckoutError(f"{what} took more than {seconds:g} s") from error
        finally:
            with self._guard:
                self._running.discard(process)
        if process.returncode:
            lines = err.strip().splitlines() or ["(no message)"]
            raise CheckoutError(f"{what} failed with status {process.returncode}: {lines[-1]}")
        return out

    def stop(self) -> None:
        """End all, and let none begin."""
        with self._guard:
            self._stopped = True
            for process in self._running:
                _kill(process)


def side_by_side(jobs: Sequence[Callable[[Processes], Value]]) -> list[Value]:
    """Run the jobs, two at a time; return their answers in order."""
    processes = Processes()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        futures = [pool.submit(job, processes) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # Also for Ctrl-C: leaving the pool waits for its threads, and they for the processes.
            processes.stop()
            raise


def _kill(process: "subprocess.Popen[str]") -> None:
    # The group: a tracer that dies alone leaves the traced process running.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
