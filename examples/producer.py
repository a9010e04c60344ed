"""The first article's producer: it records the intention, and does none of the work.

    python producer.py ana@example.org 1042

puts a job in that `killproof work report_script` can do later, whoever is down by then: worker,
mail server, or both.  The same report for the same person is one job, however often this is run.
The database is `$KILLPROOF_DB`, else `queue.db`.
"""

import os
import sys

from killproof import Queue


def main(email: str, report_id: str) -> int:
    """Put the job in; return its id when it is on the disk."""
    with Queue(os.environ.get("KILLPROOF_DB", "queue.db")) as queue:
        job_id = queue.enqueue(
            "send_report",
            {"email": email, "report_id": report_id},
            key=f"report:{report_id}:{email}",
        )
    print("job enfileirado")
    return job_id


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python producer.py EMAIL REPORT_ID")
    main(*sys.argv[1:])
