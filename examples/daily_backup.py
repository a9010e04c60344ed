"""A backup as a job: `killproof work daily_backup`, and from cron, once a day:

    killproof enqueue backup '{"folder": "/backups"}' --key "backup:$(date +%F)"

The key makes a second enqueue of the same day the same job.  The copy is made while the other
workers go on, and is believed when it was read back; see docs/operations.md.
"""

import os
from pathlib import Path

from killproof import Queue
from killproof.backup import backup
from killproof.worker import Context, Handlers, Permanent

handlers = Handlers()


@handlers("backup", timeout=3_600.0)
def back_up(context: Context) -> dict[str, object]:
    """Copy the queue's file into the payload's folder, or the one that `db` names."""
    assert isinstance(context.payload, dict)

    folder = Path(context.payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    db = context.payload.get("db", os.environ.get("KILLPROOF_DB", "queue.db"))
    if not Path(db).is_file():
        raise Permanent(f"{db} does not exist")
    with Queue(db) as queue:
        done = backup(queue, folder)
    return {"backup_file": done.path, "size_mb": round(done.bytes / 1e6, 2)}
