"""A server monitor: looks at the machine again and again, and calls when something is wrong.

    python server_monitor.py

The looks are a schedule in the file: one job for each slot, however many workers run, none on top
of one that has not ended, and none made up for what was missed while nobody was there; an old look
is worth nothing, so it also expires.  An alert is urgent, and one for each day because of its key.
The readings are this machine's own; the limits are so low that there is something to tell.
"""

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from killproof import Queue
from killproof.schedule import Schedules
from killproof.worker import Context, Handlers, Worker

LIMITS = {"disk_used": 0.0, "load": 1_000_000.0}


def readings() -> dict[str, float]:
    """What this machine says of itself."""
    disk = shutil.disk_usage("/")
    return {"disk_used": round(disk.used / disk.total, 3), "load": os.getloadavg()[0]}


def handlers_for(queue: Queue, alerts: list[str]) -> Handlers:
    """The handlers of the monitor; what they would send to a telephone goes into the list."""
    handlers = Handlers()

    @handlers("look", timeout=10.0)
    def look(context: Context) -> dict[str, float]:
        found = readings()
        day = context.job.created_ms // 86_400_000
        with context.completing(found) as tx:
            for name, value in found.items():
                if value > LIMITS[name]:
                    alert = {"name": name, "value": value, "limit": LIMITS[name]}
                    queue.enqueue("alert", alert, priority=0, key=f"{name}:{day}", tx=tx)
        return found

    @handlers("alert", timeout=10.0)
    def alert(context: Context) -> None:
        assert isinstance(context.payload, dict)
        text = "{name} is {value}, over {limit}".format(**context.payload)
        context.effect(context.effect_key, lambda key: alerts.append(text), in_doubt="again")

    return handlers


def main(folder: Path) -> tuple[int, list[str]]:
    """Look three times; return how often it looked, and the alerts."""
    alerts: list[str] = []
    with Queue(folder / "queue.db") as queue:
        Schedules(queue).every(
            "monitor", 0.1, "look", {}, missed="skip", overlap=False, deadline=60.0
        )
        worker = Worker(queue, handlers_for(queue, alerts), poll=0.02)

        def watch() -> None:
            while queue.counts()["succeeded"] < 4:  # Three looks and an alert.
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        succeeded = queue.counts()["succeeded"]
    looks = succeeded - len(alerts)
    print(f"{looks} looks; {'; '.join(alerts)}")
    return looks, alerts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
