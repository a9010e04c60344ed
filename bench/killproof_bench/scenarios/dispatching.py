"""The processes of the dispatcher's scenario: the dispatcher that is measured, and who writes.

Run as `python -m killproof_bench.scenarios.dispatching ROLE FOLDER NUMBER SECONDS`; each prints one
JSON object when it ends.
"""

import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof import Queue
from killproof.dispatcher import Dispatcher
from killproof.worker import Context, Handlers

#: Between two looks at the loop; a look that comes late by so much is the loop's lag.
LOOK_SECONDS: Final = 0.005
#: Jobs of the busy part wait so long each, as for small requests.
REQUEST_SECONDS: Final = (0.02, 0.2)


class Lag:
    """How late the loop calls what is due, looked at all the time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(LOOK_SECONDS)
            self.seconds.append(max(0.0, time.perf_counter() - begin - LOOK_SECONDS))

    def summary(self) -> dict[str, float]:
        """Return what the result says of it, in milliseconds."""
        ordered = sorted(self.seconds)
        return {
            "lag_p50_ms": ordered[len(ordered) // 2] * 1e3,
            "lag_p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3,
            "lag_max_ms": ordered[-1] * 1e3,
            "looks": len(ordered),
        }


def waiting(folder: Path, number: int, seconds: float) -> dict[str, float]:
    """Run jobs that wait, one slot for each; from `run` to the last outcome in the file."""
    handlers = Handlers()

    @handlers("wait")
    async def wait(context: Context) -> None:
        await asyncio.sleep(seconds)

    with Queue(folder / "queue.db") as queue:
        _fill(queue, "wait", number)
        dispatcher = Dispatcher(queue, handlers, number)

        def is_over(moves: int) -> bool:
            return moves > 1 and not dispatcher.slots_used

        took, lag = asyncio.run(_run(dispatcher, is_over))
        counts = queue.counts()
    return {"seconds": took, "rss_bytes": _rss_bytes(), "succeeded": counts["succeeded"]} | lag


def busy(folder: Path, number: int, seconds: float) -> dict[str, float]:
    """Keep slots full of small requests for so long, while others write to the file."""
    handlers = Handlers()

    @handlers("request")
    async def request(context: Context) -> object:
        await asyncio.sleep(random.uniform(*REQUEST_SECONDS))
        return {"status": 200}

    with Queue(folder / "queue.db") as queue:
        dispatcher = Dispatcher(queue, handlers, number)
        end = time.perf_counter() + seconds
        took, lag = asyncio.run(_run(dispatcher, lambda _: time.perf_counter() > end))
        counts = queue.counts()
    return {"seconds": took, "rss_bytes": _rss_bytes(), "succeeded": counts["succeeded"]} | lag


async def _run(
    dispatcher: Dispatcher, is_over: Callable[[int], bool]
) -> tuple[float, dict[str, float]]:
    """Run until it is over; return the seconds until then, and the lag."""
    lag = Lag()
    watching = asyncio.create_task(lag.watch())
    begin = time.perf_counter()
    running = asyncio.create_task(dispatcher.run())
    used, moves = 0, 0
    while not is_over(moves):
        await asyncio.sleep(LOOK_SECONDS)
        moves += dispatcher.slots_used != used
        used = dispatcher.slots_used
    took = time.perf_counter() - begin
    watching.cancel()
    dispatcher.stop()
    await running
    return took, lag.summary()


def writing(folder: Path, number: int, seconds: float) -> dict[str, float]:
    """Put jobs in without a pause: half of them for the dispatcher, half for nobody."""
    enqueued = 0
    with Queue(folder / "queue.db") as queue:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            queue.enqueue("request" if enqueued % 2 else "nobody", {"number": enqueued})
            enqueued += 1
    return {"enqueued": enqueued}


def _fill(queue: Queue, kind: str, number: int) -> None:
    for first in range(0, number, 1_000):
        queue.enqueue_many([(kind, n) for n in range(first, min(first + 1_000, number))])


def _rss_bytes() -> int:
    """Return the most memory this process had: `ru_maxrss` would be its parent's as well."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1_024
    return 0


def main() -> None:
    """Play the role that the command line names."""
    logging.disable(logging.WARNING)  # That nobody works on half of the writers' jobs is wanted.
    role, folder, number, seconds = sys.argv[1:5]
    play = {"waiting": waiting, "busy": busy, "writing": writing}[role]
    print(json.dumps(play(Path(folder), int(number), float(seconds))))


if __name__ == "__main__":
    main()
