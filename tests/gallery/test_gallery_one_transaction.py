"""Four queues whose second transaction is their fault: without it they are healthy ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import gallery

SECONDS_MAX = 120.0
#: So many of all kills of the operation, drawn: a second fault would show at most of them.
POINTS = ("--points", "10", "--seed", "7")
#: What stands where a second transaction was begun, when it is a part of the first.
PUT = "            db.execute"
#: The broken lines, and what mends them.
MENDED = {
    "reserves-before-effect": (
        """        with self.writing("ack") as db:
            is_new = db.execute(self.RESERVE, (lease.id,)).rowcount == 1
        super().ack(lease, *(also if is_new else ()))
""",
        """        super().ack(lease, (self.RESERVE, (lease.id,)), *also)
""",
    ),
    "reserves-key-first": (
        '        with self.writing("enqueue") as db:\n            db.execute',
        PUT,
    ),
    "buries-in-two-transactions": (
        '        with self.writing("nack") as db:\n            db.execute',
        PUT,
    ),
    "retries-by-delete-and-insert": (
        """                job = db.execute(self.DELETE, (lease.id, lease.fence)).fetchone()
        if job is None:
            super().nack(lease, error, permanent)
            return
        due_ms = now_ms() + self.BACKOFF_MS * 2 ** (lease.attempt - 1)
        with self.writing("nack") as db:
            db.execute(self.AGAIN, (*job, due_ms, error))
""",
        """                job = db.execute(self.DELETE, (lease.id, lease.fence)).fetchone()
                if job is not None:
                    due_ms = now_ms() + self.BACKOFF_MS * 2 ** (lease.attempt - 1)
                    db.execute(self.AGAIN, (*job, due_ms, error))
        if job is None:
            super().nack(lease, error, permanent)
""",
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_with_its_fault_mended_a_queue_breaks_nothing_under_the_same_kills(
    place: Path, name: str
) -> None:
    broken, mended = MENDED[name]
    text = Path(gallery.__file__).with_name(f"{name.replace('-', '_')}.py").read_text("utf-8")
    assert text.count(broken) == 1
    (place / "mended.py").write_text(text.replace(broken, mended), "utf-8")

    found = judged(place, "mended.py", *gallery.fault(name).options, *POINTS)

    assert found["verdict"] == "pass", found["unknown_because"]


def judged(place: Path, target: str, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "crash", "--target", target, *options,
         "--json", "--no-report"],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    assert found, done.stderr
    return found
