"""The lanes of the engine `crash`, as its supervisor sees them."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from killproof_chaos.engines.crash_process import last_line
from killproof_chaos.engines.crew import EngineFailed


class Pool:
    """The lanes: each answers one request at a time."""

    def __init__(self, name: str, place: Path, lanes: int) -> None:
        self._lanes: list[subprocess.Popen[bytes]] = []
        self._log = (place / "lanes.log").open("ab")
        try:
            for number in range(lanes):
                self._start(name, place, place / f"lane{number}")
        except BaseException:
            self.close()  # Ctrl-C here would leave lanes that nobody knows of.
            raise

    def _start(self, name: str, place: Path, folder: Path) -> None:
        folder.mkdir()
        words = (name, str(place / "templates"), str(folder), str(os.getpid()))
        self._lanes.append(
            subprocess.Popen(
                [sys.executable, "-m", "killproof_chaos.engines.crash_lane", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                process_group=0,  # Ctrl-C is for the supervisor, which tells what was done.
            )
        )

    def answers(
        self, requests: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], str]
    ) -> Iterable[tuple[str, dict[str, Any]]]:
        """Yield (key, answer) of each request, as they come.

        Raises:
            EngineFailed: a lane died.
        """
        waiting = deque(requests)
        under_way: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for number, lane in enumerate(self._lanes):
                assert lane.stdout is not None
                selector.register(lane.stdout, selectors.EVENT_READ, number)
                self._ask(number, waiting, under_way, key)
            while under_way:
                for ready, _ in selector.select():
                    number = ready.data
                    name = under_way.pop(number)
                    stdout = self._lanes[number].stdout
                    assert stdout is not None
                    line = stdout.readline()
                    if not line:
                        raise EngineFailed(f"a lane died at {name}: {self._last_words()}")
                    self._ask(number, waiting, under_way, key)
                    yield name, json.loads(line)

    def _ask(
        self,
        number: int,
        waiting: deque[dict[str, Any]],
        under_way: dict[int, str],
        key: Callable[[dict[str, Any]], str],
    ) -> None:
        if waiting:
            request = waiting.popleft()
            stdin = self._lanes[number].stdin
            assert stdin is not None
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            under_way[number] = key(request)

    def _last_words(self) -> str:
        text = Path(self._log.name).read_text(encoding="utf-8", errors="replace")
        return last_line(text) or "it said nothing, as when the target's code ends its process"

    def close(self) -> None:
        """End the lanes: their stdin closes; one that is at work is killed."""
        for lane in self._lanes:
            # With all that it has started: a process left behind would go on writing.
            with suppress(ProcessLookupError):
                os.killpg(lane.pid, signal.SIGKILL)
            lane.communicate()
        self._log.close()
