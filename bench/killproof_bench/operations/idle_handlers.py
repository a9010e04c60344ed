"""What an idle worker does when a job comes; the module that `killproof work` is given.

Its result is the moment it began, in ns of perf_counter, which is one clock for all processes.
"""

import time

from killproof.handlers import Handlers
from killproof.worker import Context
from killproof_bench.seeding import KIND

handlers = Handlers()


@handlers(KIND)
def begin(context: Context) -> int:
    """Say when the handler began."""
    return time.perf_counter_ns()
