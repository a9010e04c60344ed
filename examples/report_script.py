"""A report script: made and sent by a worker, once for each report, however the night went.

    python report_script.py

The report is a file in a folder, and so is the outbox that stands in for a mail server.  The server
is down at first: the job fails, waits, and is tried again.  A second order for the same report is
the same job, and `context.effect` sees to it that a report which was sent is not sent again.
"""

import csv
import sys
import tempfile
import threading
import time
from pathlib import Path

from killproof import Queue
from killproof.effects import Rejected
from killproof.worker import Context, Handlers, Worker

SALES = [("2026-11-28", "tea", 410), ("2026-11-28", "cups", 95), ("2026-11-29", "tea", 380)]


def handlers_for(folder: Path) -> Handlers:
    """The handlers of this script; the folder has the reports and the outbox."""
    handlers = Handlers()

    @handlers("send_report", timeout=30.0)
    def send_report(context: Context) -> dict[str, object]:
        assert isinstance(context.payload, dict)
        email, report_id = context.payload["email"], context.payload["report_id"]
        report = folder / f"{report_id}.csv"
        with report.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out).writerows(SALES)

        def send(key: str) -> str:
            server = folder / "outbox"
            if not server.exists():  # As a connection that was refused: certainly not sent.
                server.mkdir()
                raise Rejected("the mail server is down")
            (server / f"{email}-{report.name}").write_bytes(report.read_bytes())
            return key

        sent = context.effect(f"report:{report_id}:{email}", send, in_doubt="again")
        return {"rows": len(SALES), "message": sent}

    return handlers


def work_until_all_has_ended(queue: Queue, handlers: Handlers) -> None:
    """Run a worker that leaves when there is nothing to do; a real one runs until SIGTERM."""
    worker = Worker(queue, handlers, poll=0.02)

    def watch() -> None:
        # One count for all states: between two, a job could go from one to the other unseen.
        while any(map(queue.counts().get, ("available", "retryable", "leased"))):
            time.sleep(0.02)
        worker.stop()

    threading.Thread(target=watch, daemon=True).start()
    worker.run()


def main(folder: Path) -> list[str]:
    """Order a report twice; return what is in the outbox."""
    with Queue(folder / "queue.db") as queue:
        for _ in range(2):
            job_id = queue.enqueue(
                "send_report",
                {"email": "ana@example.org", "report_id": "sales-48"},
                key="report:sales-48:ana@example.org",
                retry="fixed:0.05",  # The default waits a minute, which an example does not.
            )
        work_until_all_has_ended(queue, handlers_for(folder))
        job = queue.get(job_id)
        assert job is not None
        for attempt in job.attempts:
            print(f"job {job.id}: {attempt.outcome} {attempt.error_message or ''}")
    sent = sorted(path.name for path in (folder / "outbox").iterdir())
    print(f"outbox: {', '.join(sent)}")
    return sent


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
