"""How fast the judge judges: records per second and memory, on a generated history.

Question: can a long campaign be judged offline on an ordinary machine?
Primary figures: seconds and peak resident memory of one judgement of a million records. The history
is sound, so that every checker reads all of it; generating and judging are processes of their own,
so that the memory of one is not counted for the other.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from killproof_bench.crew import CrewError
from killproof_bench.result import CheckersResult

RECORDS = 1_000_000
SECONDS_GOAL = 30.0
RSS_GOAL_BYTES = 2 * 2**30


def run(store: Path, *, records: int = RECORDS) -> CheckersResult:
    """Generate a store of so many history records, and judge it.

    Raises:
        CrewError: Either process failed; its own words are on standard error.
    """
    generated = _in_process("generate", store, records)
    judged = _in_process("judge", store, records)
    return CheckersResult(
        records=records,
        generate_seconds=generated["seconds"],
        judge_seconds=judged["seconds"],
        records_per_s=records / judged["seconds"],
        peak_rss_bytes=judged["peak_rss_bytes"],
        verdict=judged["verdict"],
        properties=judged["properties"],
    )


def sentence(result: CheckersResult) -> str:
    """Say what was measured."""
    return (
        f"{result.records:,} history records judged in {result.judge_seconds:.1f} s "
        f"({result.records_per_s:,.0f} records/s) within "
        f"{result.peak_rss_bytes / 2**20:,.0f} MiB; verdict {result.verdict}; "
        f"generating them took {result.generate_seconds:.1f} s."
    )


def _in_process(what: str, store: Path, records: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", __name__, what, str(store), str(records)],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise CrewError(f"the process that should {what} ended with status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _main(what: str, store: Path, records: int) -> None:
    """Do one half, and print its seconds, its peak memory and what it found."""
    from killproof_evidence import judge, synthetic
    from killproof_evidence.store import Store

    begin = time.perf_counter()
    answer: dict[str, Any] = {}
    if what == "generate":
        synthetic.generate(store, records=records)
    else:
        verdict = judge.judge(Store(store))
        properties: dict[str, dict[str, Any]] = verdict.record["properties"]
        words = {number: found["verdict"] for number, found in properties.items()}
        answer = {"verdict": verdict.verdict, "properties": words}
    answer["seconds"] = time.perf_counter() - begin
    # Linux counts in KiB: getrusage(2).
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(answer))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
