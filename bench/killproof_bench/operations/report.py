"""Turn the single figures into lines and a report: pure functions of the result."""

from killproof_bench.operations.result import Comparison, Idle, OperationsResult, Spending
from killproof_bench.report import figure, markdown_table

TITLE = "Operations: one worker, one enqueue, one idle worker"


def terminal(result: OperationsResult) -> str:
    """Return what the command prints."""
    lines = [result.sentence]
    for each in result.comparisons:
        lines.append(f"{each.operation}, {each.durability}; raw syncs/s {raw(each)}")
        for arm in each.arms:
            lines.append(f"  {arm.arm:<28} {arm.per_s.value:>10,.0f} {arm.card.unit}")
        for ratio in each.ratios:
            repeats = " ".join(f"{value:.2f}" for value in ratio.repeats)
            lines.append(f"  over {ratio.against:<23} {ratio.value.value:>10.3f} ({repeats})")
    for spent in result.spending:
        lines += ["", *spending(spent)]
    if result.idle is not None:
        lines += ["", *idle_lines(result.idle)]
    for goal in result.goals:
        met = {True: "yes", False: "NO", None: "void"}[goal.met]
        lines.append(f"{met:<4} {goal.what}: {goal.measured}, asked {goal.asked}")
    return "\n".join(lines)


def spending(spent: Spending) -> list[str]:
    """Return where a job's time goes, part by part."""
    bare = {cost.part: cost for cost in spent.bare}
    lines = [f"{spent.operation}, {spent.durability}: us of a job (calls)  killproof | bare"]
    for cost in spent.killproof:
        beside = bare.get(cost.part)
        other = "-" if beside is None else f"{beside.us:8.1f} ({beside.calls:.2f})"
        lines.append(f"  {cost.part:<28} {cost.us:8.1f} ({cost.calls:.2f}) | {other}")
    lines.append("  functions by their own time, under a profiler:")
    lines += [f"    {f.us:7.1f} ({f.calls:.1f})  {f.part}" for f in spent.functions]
    return lines


def idle_lines(idle: Idle) -> list[str]:
    """Return what idle workers cost and how soon they start."""
    cpu = idle.cpu_per_worker
    return [
        f"{idle.files} files with {idle.workers} idle workers each, {idle.durability}",
        f"  start after the call of enqueue: p50 {figure(idle.start_p50_ms)} ms, "
        f"p99 {figure(idle.start_p99_ms)} ms, longest {idle.start_max_ms:.2f} ms, "
        f"n {idle.start_p50_ms.n:,}",
        f"  start after its return: p50 {figure(idle.committed_p50_ms)} ms",
        f"  idle for {idle.idle_seconds:.1f} s: {cpu.value:.2%} of a core each "
        f"({cpu.low:.2%} to {cpu.high:.2%}), {idle.voluntary_switches_per_s:.1f} wake-ups/s",
        f"  write transactions {idle.write_transactions}, logs changed {idle.log_changes}, "
        f"locks seen {idle.write_locks_seen} of {idle.lock_samples:,} looks",
    ]


def raw(each: Comparison) -> str:
    """Return the disk's own rate around a comparison."""
    return ", ".join(f"{rate:,.0f}" for rate in each.raw)


def markdown(result: OperationsResult) -> str:
    """Return the report."""
    return f"# {TITLE}\n\n{result.sentence}\n" + markdown_table(("", ""), [])
