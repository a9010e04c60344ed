"""One process of the bench: `python -m killproof_bench.load SPEC`, a worker or a producer.

It opens its arm's queue, says it is ready, waits for the moment to start, and then makes one call
after the other until it is told to stop. In a closed loop each call follows the last at once; in an
open loop each has its intended time. What is written down of a call, `recording` says; nothing is
computed while the clock runs, and the garbage collector is off: it would put its pauses into the
tail.

The protocol on standard input and output is one JSON line each way, then one more line at the end;
the tables go to files. The process imports neither numpy nor the command line.
"""

import dataclasses
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from killproof import Lease, Queue
from killproof.core import sync
from killproof_bench.arms import open_arm
from killproof_bench.pacing import LATE_NS, Arrivals, Pacer, schedule
from killproof_bench.recording import Kind, Recorder, Stopwatch
from killproof_bench.seeding import KIND, PAYLOAD_BYTES, payload_of

_NANOSECONDS: Final = 1_000_000_000
#: How long a worker that is fed waits for work before it looks whether its time is over.
_WAIT_SECONDS: Final = 0.1
#: Of a handler's sleep, at most: a run that is told to stop ends within it.
_WORK_SECONDS: Final = 0.1
#: Beside two calls for each job: empty polls of a worker that is fed, and the first and last calls.
_CALLS_MORE: Final = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one process is told at its start."""

    arm: str
    database: str
    synchronous: str  #: Of the reference.
    calls_file: str  #: The jobs' table goes to a file of this name and `.jobs`.
    calls_max: int  #: Jobs that this process may at most see: no run has more than its backlog.
    stoppable: bool = False
    role: Literal["worker", "producer"] = "worker"
    #: `open`: each call of a worker has an intended time, as each enqueue of a producer always has.
    loop: Literal["closed", "open"] = "closed"
    rate_per_s: float = 0.0  #: Of an open loop, and of a producer: this process's share, in calls.
    arrivals: Arrivals = "poisson"
    batch: int = 1  #: Jobs per call; above 1 the calls are those that end in `_many`.
    job_ms: float = 0.0  #: The handler's time for each job: a sleep outside any transaction.
    #: One transaction that acks the jobs in hand and claims the next, or one for each.
    call: Literal["ack-and-claim", "claim-then-ack"] = "ack-and-claim"
    fed: bool = False  #: Producers add jobs: an empty queue is waited on, and does not end the run.
    payload_bytes: int = PAYLOAD_BYTES  #: Of what a producer enqueues.
    seed: int = 1  #: Of the schedule.
    timed: bool = False  #: Whether the points of the protocol are timed, see `recording.Stopwatch`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one process says at its end."""

    worker: str | None
    error: str | None
    ran_dry: bool  #: No job was left before the time was over: the figures are of an empty queue.
    late: int  #: Calls of an open loop that began over `pacing.LATE_NS` after their time.
    skipped: int  #: Calls that were due, and that no time was left to begin.
    user_ns: int  #: Processor time of the loop.
    system_ns: int
    run_delay_ns: int  #: Time in which the process could have run and had no processor.
    switches: int  #: Voluntary context switches: how often it slept.


class Deadline:
    """When to stop; SIGTERM brings it forward to now."""

    def __init__(self) -> None:
        self.ns = 0
        signal.signal(signal.SIGTERM, self.expire)

    def expire(self, _signal: int = 0, _frame: object = None) -> None:
        """Stop after the call in flight."""
        self.ns = 0


def main(argument: str) -> None:
    """Run one process."""
    spec = Spec(**json.loads(argument))
    stopwatch = Stopwatch() if spec.timed else None
    recorder = Recorder(
        calls_max=2 * spec.calls_max + _CALLS_MORE, jobs_max=spec.calls_max, stopwatch=stopwatch
    )
    deadline = Deadline()
    arm = open_arm(
        spec.arm,
        spec.database,
        synchronous=spec.synchronous,
        stoppable=spec.stoppable,
        told_of_pauses=recorder,
    )
    sync.hook = stopwatch
    with arm.queue as queue:
        _say(arm.connections.facts())
        line = sys.stdin.readline()
        if not line:
            return  # The parent is gone.
        order = json.loads(line)
        gc.collect()
        gc.freeze()
        gc.disable()
        deadline.ns = order["stop_ns"]
        time.sleep(max(0, order["start_ns"] - time.perf_counter_ns()) / _NANOSECONDS)
        loop = Loop(queue, spec, recorder, deadline, start_ns=order["start_ns"])
        ended = loop.run()
        # Only when all have stopped does anybody close: a close moves the log, which would
        # stand in the way of a call that is still being measured.
        _say(dataclasses.asdict(ended))
        sys.stdin.readline()
    with open(spec.calls_file, "wb") as calls, open(f"{spec.calls_file}.jobs", "wb") as served:
        recorder.save(calls, served)


class Loop:
    """The calls of one process, from the start to the deadline."""

    def __init__(
        self, queue: Queue, spec: Spec, recorder: Recorder, deadline: Deadline, *, start_ns: int
    ) -> None:
        """Prepare.

        Args:
            queue: An open queue.
            spec: What to do.
            recorder: Where to write it down.
            deadline: When to stop.
            start_ns: What the schedule counts from, perf_counter_ns.
        """
        self._queue = queue
        self._spec = spec
        self._recorder = recorder
        self._deadline = deadline
        self._held: list[Lease] = []
        self._claimed = 0  #: When the jobs held were claimed.
        self._ran_dry = False
        self._late = 0
        self._pacer: Pacer | None = None
        if spec.loop == "open" or spec.role == "producer":
            offsets = schedule(spec.arrivals, spec.rate_per_s, seed=spec.seed)
            self._pacer = Pacer(offsets, start_ns=start_ns, until_ns=lambda: deadline.ns)

    def run(self) -> Ended:
        """Make all calls; return how it ended."""
        before, delay = resource.getrusage(resource.RUSAGE_SELF), _run_delay_ns()
        error: str | None = None
        try:
            if self._spec.role == "producer":
                self._produce()
            else:
                self._work()
                # The jobs in hand are finished too, so that every count can be checked.
                if self._held:
                    self._ack()
        except Exception as caught:  # Whatever a process meets voids the run, by name.
            error = f"{type(caught).__name__}: {caught}"
        after = resource.getrusage(resource.RUSAGE_SELF)
        return Ended(
            worker=self._queue.worker_id,
            error=error,
            ran_dry=self._ran_dry,
            late=self._late,
            skipped=0 if self._pacer is None else self._pacer.skipped,
            user_ns=round((after.ru_utime - before.ru_utime) * _NANOSECONDS),
            system_ns=round((after.ru_stime - before.ru_stime) * _NANOSECONDS),
            run_delay_ns=_run_delay_ns() - delay,
            switches=after.ru_nvcsw - before.ru_nvcsw,
        )

    def _turns(self) -> Iterator[int]:
        """Yield the intended time of each turn, when it is due; in a closed loop that is now."""
        while True:
            if self._pacer is None:
                intended = time.perf_counter_ns()
                if intended >= self._deadline.ns:
                    return
            else:
                due = self._pacer.wait()
                if due is None:
                    return
                intended = due
                self._late += time.perf_counter_ns() - due > LATE_NS
            yield intended

    def _work(self) -> None:
        joined = self._spec.call == "ack-and-claim"
        if joined and not self._spec.fed:
            # The first call of the loop acks already: every turn of the schedule is the same.
            self._take(time.perf_counter_ns())
        for intended in self._turns():
            if self._held:
                self._handle()
                self._ack_and_claim(intended)
                continue
            if not self._take(intended):
                if not self._spec.fed:
                    self._ran_dry = True
                    return
                left = (self._deadline.ns - time.perf_counter_ns()) / _NANOSECONDS
                self._queue.wait(seconds=max(0.0, min(left, _WAIT_SECONDS)))
                self._recorder.retries = 0  # It slept for want of work, not before a lock.
            elif not joined:
                self._handle()
                self._ack()

    def _take(self, intended: int) -> bool:
        begin = time.perf_counter_ns()
        if self._spec.batch == 1:
            lease = self._queue.claim()
            held = [] if lease is None else [lease]
        else:
            held = self._queue.claim_many(self._spec.batch)
        end = time.perf_counter_ns()
        self._held, self._claimed = held, end
        self._recorder.call(
            Kind.CLAIM if held else Kind.EMPTY,
            intended=intended,
            begin=begin,
            end=end,
            job=held[0].job.id if held else 0,
            jobs=len(held),
        )
        return bool(held)

    def _ack(self) -> None:
        held = self._held
        begin = time.perf_counter_ns()
        if len(held) == 1:
            self._queue.ack(held[0])
        else:
            self._queue.ack_many(held)
        end = time.perf_counter_ns()
        self._held = []
        self._recorder.call(
            Kind.ACK, intended=begin, begin=begin, end=end, job=held[0].job.id, jobs=len(held)
        )
        self._recorder.served(held, claimed=self._claimed, acked=end)

    def _ack_and_claim(self, intended: int) -> None:
        held, size = self._held, self._spec.batch
        begin = time.perf_counter_ns()
        if size == 1:
            lease = self._queue.ack_and_claim(held[0])
            following = [] if lease is None else [lease]
        else:
            following = self._queue.ack_and_claim_many(held, size)
        end = time.perf_counter_ns()
        self._recorder.call(
            # A call that found no next job was an ack.
            Kind.ACK_AND_CLAIM if following else Kind.ACK,
            intended=intended,
            begin=begin,
            end=end,
            job=held[0].job.id,
            jobs=len(held),
        )
        self._recorder.served(held, claimed=self._claimed, acked=end)
        self._held, self._claimed = following, end

    def _handle(self) -> None:
        """Work on each job in hand; not beyond the deadline, for what ends then is not measured."""
        if not self._spec.job_ms:
            return
        work_ns = round(self._spec.job_ms * 1e6) * len(self._held)
        until_ns = time.perf_counter_ns() + work_ns
        while (left := min(until_ns, self._deadline.ns) - time.perf_counter_ns()) > 0:
            # In parts: a signal that brings the deadline forward does not end a sleep.
            time.sleep(min(left / _NANOSECONDS, _WORK_SECONDS))

    def _produce(self) -> None:
        payload, size = payload_of(self._spec.payload_bytes), self._spec.batch
        for intended in self._turns():
            begin = time.perf_counter_ns()
            if size == 1:
                first = self._queue.enqueue(KIND, payload)
            else:
                first = self._queue.enqueue_many([(KIND, payload)] * size)[0]
            self._recorder.call(
                Kind.ENQUEUE,
                intended=intended,
                begin=begin,
                end=time.perf_counter_ns(),
                job=first,
                jobs=size,
            )


def _run_delay_ns() -> int:
    """Return how long this process has waited for a processor; 0 where the kernel does not tell."""
    try:
        # proc_pid_schedstat(5): time on the processor, time waiting for one, time slices.
        return int(Path(f"/proc/{os.getpid()}/schedstat").read_text().split()[1])
    except OSError:
        return 0


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
