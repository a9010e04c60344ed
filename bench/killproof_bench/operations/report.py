"""Turn the single figures into lines and a report: pure functions of the result."""

from killproof_bench.operations.result import Comparison, OperationsResult, Spending
from killproof_bench.report import markdown_table

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


def raw(each: Comparison) -> str:
    """Return the disk's own rate around a comparison."""
    return ", ".join(f"{rate:,.0f}" for rate in each.raw)


def markdown(result: OperationsResult) -> str:
    """Return the report."""
    return f"# {TITLE}\n\n{result.sentence}\n" + markdown_table(("", ""), [])
