"""How the engine `crash` starts a process, waits for its end, and tells what became of it."""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_session import is_definite, is_expected
from killproof_chaos.engines.warm import FAILED
from killproof_evidence.lifetime import die_with_parent

#: A process that has not ended by then hangs: it is killed, and that is what is told of it.
PROCESS_SECONDS: Final = 30.0
#: An order to stop that is not obeyed by then is followed by SIGKILL.
STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended."""

    pid: int
    status: int  #: as `waitpid` tells it
    hung: bool = False  #: it did not end by itself in time

    @property
    def killed(self) -> bool:
        """Say whether the kernel says that SIGKILL ended it, and nobody had to help."""
        return not self.hung and self.signal == signal.SIGKILL

    @property
    def signal(self) -> int:
        """Return the signal that ended it; 0: none did."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0

    @property
    def words(self) -> str:
        """Return how it ended, for a sentence."""
        if self.hung:
            return f"did not end within {PROCESS_SECONDS:g} s"
        if self.signal:
            return f"was ended by {signal.Signals(self.signal).name}"
        return f"ended with status {os.waitstatus_to_exitcode(self.status)}"


def start(body: Callable[[], int], log: Path) -> int:
    """Run the body in a child, with its output in the log; return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = FAILED
        try:
            die_with_parent(parent)
            output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = body()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def wait(pid: int, seconds: float = PROCESS_SECONDS) -> Ended:
    """Wait for a child's end; one that hangs is killed."""
    descriptor = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return Ended(pid=pid, status=status, hung=not ready)
    finally:
        os.close(descriptor)


def wait_while(pid: int, goes_on: Callable[[], bool], *, pause: float) -> Ended | None:
    """Wait for a child's end for as long as the question is answered with yes.

    Returns:
        how it ended; None: it lives, and the answer was no.
    """
    descriptor = os.pidfd_open(pid)
    try:
        while not select.select([descriptor], [], [], pause)[0]:
            if not goes_on():
                return None
        _, status = os.waitpid(pid, 0)
        return Ended(pid=pid, status=status)
    finally:
        os.close(descriptor)


def stop(pid: int) -> Ended:
    """Ask a child to end, as a service manager does, and wait for it."""
    os.kill(pid, signal.SIGTERM)
    return wait(pid, STOP_SECONDS)


class TargetFailed(Exception):
    """A call of the target raised where no fault was made: its own doing, not the harness's."""

    def __init__(self, doing: str, error: BaseException) -> None:
        """Keep what was being done, and the error's text."""
        super().__init__(f"{doing}: {text_of(error)}")
        self.doing = doing


@contextmanager
def asking(doing: str) -> Iterator[None]:
    """Call the target; whatever it raises is told as what it failed in."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        raise TargetFailed(doing, error) from error


def word_of(error: BaseException | None) -> str:
    """Return what a caller was told, in a word; `raw` is an error that no caller should meet."""
    if error is None:
        return "ok"
    if not is_expected(error):
        return "raw"
    return "definite" if is_definite(error) else "indefinite"


def text_of(error: BaseException | None) -> str:
    """Return the error as its caller sees it."""
    return "" if error is None else f"{type(error).__name__}: {error}"


class Budget:
    """Time that counts only as it passes for a process that gets the CPU.

    Each pass of a loop counts for a moment at most, so that a process that was not scheduled for
    seconds, or was stopped, still gets its passes.
    """

    def __init__(self, seconds: float, pass_seconds_max: float) -> None:
        """Count from now on."""
        self._left = seconds
        self._most = pass_seconds_max
        self._latest = time.monotonic()

    def is_left(self) -> bool:
        """Count the pass that ends here; say whether there is time for another."""
        now = time.monotonic()
        self._left -= min(now - self._latest, self._most)
        self._latest = now
        return self._left > 0


def last_words(folder: Path, *names: str) -> str:
    """Return the ends of the logs of these names."""
    texts = []
    for name in names:
        path = folder / name
        if path.exists():
            texts.append(path.read_text(encoding="utf-8", errors="replace")[-600:])
    return "".join(texts)


def last_line(text: str) -> str:
    """Return the last line that says something; of a stack that is the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def environment_of(store: Any) -> dict[str, str]:
    """Return what every process of a point finds in its environment."""
    return {"KILLPROOF_STORE": str(store.path), "KILLPROOF_EFFECTS": str(store.effects)}
