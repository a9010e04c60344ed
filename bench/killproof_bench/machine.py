"""What the machine could do while the bench ran: raw syncs per second, and how quiet it was.

A rate of durable commits means nothing without the disk's own rate of the same minute, and a tail
means nothing when another program had the processor. Both are measured around every block.
"""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from killproof_bench.result import Noise

#: Long enough for about a thousand syncs of a good disk, short beside a round.
RAW_SECONDS = 0.3
RAW_BYTES = 4096
#: Above these shares the run wears the badge NOISY. Two idle cores stay below a twentieth.
STEAL_MAX = 0.02
FOREIGN_CPU_MAX = 0.10
#: A disk whose own rate moves by more than this between blocks moves every figure with it.
RAW_SPREAD_MAX = 1.5


def raw_syncs_per_second(folder: Path, seconds: float = RAW_SECONDS) -> float:
    """Return how often 4 KiB can be written and synced in this folder, by one process."""
    path = folder / "raw-sync"
    block = os.urandom(RAW_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The file gets its blocks first: a WAL in steady state overwrites, it does not grow.
        os.pwrite(descriptor, block * 64, 0)
        os.fdatasync(descriptor)
        count = 0
        begin = time.perf_counter_ns()
        while (spent := time.perf_counter_ns() - begin) < seconds * 1e9:
            os.pwrite(descriptor, block, count % 64 * RAW_BYTES)
            os.fdatasync(descriptor)
            count += 1
    finally:
        os.close(descriptor)
        path.unlink()
    return count / (spent / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Counters of the kernel at one moment; the difference of two tells what happened between."""

    busy_ticks: int  #: All CPU time but idle, in clock ticks.
    steal_ticks: int
    all_ticks: int
    own_seconds: float  #: CPU time of this process and of its children that have ended.
    load: float
    pressure_cpu: float
    pressure_io: float


def now() -> Moment:
    """Read the counters."""
    # Columns of the first line of /proc/stat: proc_stat(5).
    ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (
            resource.getrusage(resource.RUSAGE_SELF),
            resource.getrusage(resource.RUSAGE_CHILDREN),
        )
    )
    return Moment(
        busy_ticks=sum(ticks) - idle - ticks[7],
        steal_ticks=ticks[7],
        all_ticks=sum(ticks),
        own_seconds=own,
        load=os.getloadavg()[0],
        pressure_cpu=_pressure("cpu"),
        pressure_io=_pressure("io"),
    )


def noise(before: Moment, after: Moment, raw_rates: list[float]) -> Noise:
    """Say how quiet the machine was between two moments. All children must have ended by then."""
    ticks = max(1, after.all_ticks - before.all_ticks)
    steal = (after.steal_ticks - before.steal_ticks) / ticks
    own = (after.own_seconds - before.own_seconds) * os.sysconf("SC_CLK_TCK")
    foreign = max(0.0, after.busy_ticks - before.busy_ticks - own) / ticks
    slowest = min(raw_rates, default=0.0)
    spread = max(raw_rates) / slowest if slowest else None
    because = []
    if steal > STEAL_MAX:
        because.append(f"the hypervisor took {steal:.1%} of the processor")
    if foreign > FOREIGN_CPU_MAX:
        because.append(f"other processes and the kernel's own used {foreign:.1%} of the processor")
    if spread is not None and spread > RAW_SPREAD_MAX:
        because.append(f"the disk's own sync rate moved by a factor of {spread:.1f}")
    return Noise(
        noisy=bool(because),
        because=tuple(because),
        steal=steal,
        foreign_cpu=foreign,
        load_before=before.load,
        load_after=after.load,
        pressure_cpu_before=before.pressure_cpu,
        pressure_io_before=before.pressure_io,
        raw_spread=spread,
    )


def _pressure(resource_name: str) -> float:
    """Return how much of the last ten seconds somebody waited, in per cent; 0 without PSI."""
    try:
        text = Path("/proc/pressure", resource_name).read_text()
    except OSError:
        return 0.0
    return float(text.split("avg10=", 1)[1].split(None, 1)[0])
