"""What an idle worker does when a job comes; the module that `killproof work` is given.

Its result is the moment it began, in ns of perf_counter, which is one clock for all processes.
A worker of the bench ends with the bench, also when that is killed: nobody else would end it. So
importing this does what no other module's import does: it asks the kernel for that.
"""

import time

from killproof.handlers import Handlers
from killproof.worker import Context
from killproof_bench.seeding import KIND
from killproof_evidence.lifetime import die_with_parent

die_with_parent()
handlers = Handlers()


@handlers(KIND)
def begin(context: Context) -> int:
    """Say when the handler began."""
    return time.perf_counter_ns()
