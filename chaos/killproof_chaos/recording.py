"""Record what a client asks of the queue and what it is told, around the target's own calls.

The invocation is on record before the call and its completion after it, so a process killed in
between leaves an open operation: the judge then knows that nobody knows. An error that the target
calls definite is a `fail` (it did not happen); any other is `info` (it may have).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from killproof_chaos import hook
from killproof_chaos.shim.notes import Shim
from killproof_evidence.history import HistoryWriter
from killproof_evidence.store import Store
from killproof_evidence.target import Definite

#: An error's text in the history; enough to recognise it.
ERROR_CHARS_MAX: Final = 300
#: The note in the log of the disk that an enqueue was refused for good, such as for its key.
REFUSED: Final = "refused enqueue"

Result = TypeVar("Result")


class Recorder:
    """The history of this process; its threads share it."""

    def __init__(
        self, history: HistoryWriter, is_definite: Callable[[BaseException], bool]
    ) -> None:
        """Record into `history`; `is_definite` says of an error that nothing was changed."""
        self._history = history
        self._is_definite = is_definite
        self._shim = Shim()
        #: What a checker must know of an error besides its text.
        self.facts_of: Callable[[BaseException], dict[str, Any]] = lambda _error: {}

    def call(
        self,
        f: str,
        function: Callable[[], Result],
        *,
        job: object = None,
        fence: int | None = None,
        value: object = None,
        since: int | None = None,
        told: Callable[[Result], dict[str, Any]] = lambda _result: {},
    ) -> Result:
        """Call the function as operation `f`, and record both ends.

        Args:
            f: the operation's name in the history.
            function: the target's own call.
            job: the queue's id, where it is known beforehand.
            fence: of the lease that the call shows.
            value: what was asked, for the checkers.
            since: when it began, monotonic ns, if that was before this call.
            told: turns the result into the fields `job`, `fence`, `value` of the completion.
        """
        with self.during(f, job=job, fence=fence, value=value, since=since) as completion:
            result = function()
            completion |= told(result)
        return result

    @contextmanager
    def during(
        self,
        f: str,
        *,
        job: object = None,
        fence: int | None = None,
        value: object = None,
        since: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Record operation `f` around a block, which fills in the fields of the completion."""
        number = self._history.invoke(f, job=job, fence=fence, value=value, since=since)
        completion: dict[str, Any] = {}
        try:
            yield completion
        except BaseException as error:
            text = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]}
            text |= self.facts_of(error)
            if self._is_definite(error):
                self._history.fail(number, value=text)
                if f == "enqueue" and self._shim.is_loaded:
                    # Not of a job: it tells only that a key was asked for which a job has.
                    self._shim.note(json.dumps({"f": REFUSED, "asked": value}).encode())
            else:
                self._history.info(number, value=text)
            raise
        else:
            if self._shim.is_loaded:
                # From this place in the log of the disk on, a power cut must not take it back.
                facts = {"job": job, "fence": fence} | completion | {"f": f, "asked": value}
                self._shim.note(json.dumps(facts, ensure_ascii=False).encode())
            self._history.ok(number, **completion)
        finally:
            hook.leave()

    @contextmanager
    def together(
        self, f: str, asked: Sequence[Mapping[str, Any]]
    ) -> Iterator[list[dict[str, Any] | None]]:
        """Record one call that does something to several jobs: an operation `f` for each.

        The block gets a list of the completions' fields; None says of one that it was refused.
        """
        numbers = [self._history.invoke(f, **one, lane=n) for n, one in enumerate(asked)]
        told: list[dict[str, Any] | None] = [{} for _ in asked]
        try:
            yield told
        except BaseException as error:
            text = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]}
            text |= self.facts_of(error)
            tell = self._history.fail if self._is_definite(error) else self._history.info
            for number in numbers:
                tell(number, value=text)
            raise
        else:
            for number, one in zip(numbers, told, strict=True):
                if one is None:
                    self._history.fail(number, value={"error": "refused"})
                else:
                    self._history.ok(number, **one)
        finally:
            hook.leave()

    @contextmanager
    def doubted(self, f: str, asked: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Record operations `f` around a block that may do them and does not say whether it did."""
        numbers = [self._history.invoke(f, **one, lane=n) for n, one in enumerate(asked)]
        try:
            yield
        finally:
            hook.leave()
            for number in numbers:
                self._history.info(number, value={"error": "nobody was told"})

    def close(self) -> None:
        """Write that this process ended in order."""
        self._history.close()


def open_recorder(
    process: str, is_definite: Callable[[BaseException], bool] = lambda _error: False
) -> Recorder:
    """Open the history of this process, named by the supervisor, in the store of the run.

    Args:
        process: such as `w3.2`, the second life of the third worker.
        is_definite: in addition to `Definite` itself.
    """
    store = Store(Path(os.environ["KILLPROOF_STORE"]))
    history = HistoryWriter(store.history_file(process), process)
    return Recorder(history, lambda error: isinstance(error, Definite) or is_definite(error))


def process_name() -> str:
    """Return the name that the supervisor gave this life of this process."""
    return os.environ["KILLPROOF_PROCESS"]
