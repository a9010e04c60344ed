"""Each broken queue is caught, by the property that it breaks; the control is not."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import gallery
from killproof_chaos.targets import minimal_queue
from killproof_chaos.targets.minimal_adapter import MinimalWorker
from killproof_chaos.targets.minimal_queue import MinimalQueue

SECONDS_MAX = 120.0
CONTROL_LINES_MAX = 150
FAULTS = [gallery.fault(name) for name in gallery.names()]
#: One run takes each kind of fault that a broken queue of the engine `proc` is caught by.
PROC_OPTIONS = sorted(
    {fault.options for fault in FAULTS if (fault.engine, fault.control) == ("proc", "minimal")}
)


def judged(place: Path, target: str, engine: str, *options: str) -> dict[str, Any]:
    command = "run" if engine == "proc" else engine
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", command, "--target", target, *options,
         "--json", *(() if engine == "crash" else ("--seed", "11"))],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    assert found, done.stderr
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_broken_queue_is_violated_by_the_property_that_it_breaks(
    place: Path, fault: gallery.Fault
) -> None:
    """Rule C1."""
    verdict = judged(place, fault.name, fault.engine, *fault.options)

    found = verdict["properties"][fault.promise]
    assert found["verdict"] == "violated"
    assert found["witnesses"], "a violation is proven by what it was seen in"


@pytest.mark.parametrize("options", PROC_OPTIONS, ids=" ".join)
def test_the_control_breaks_nothing_under_the_same_budget(
    place: Path, options: tuple[str, ...]
) -> None:
    found = judged(place, "minimal", "proc", *options)["properties"]

    assert "violated" not in {finding["verdict"] for finding in found.values()}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_broken_queue_is_described_whole_and_differs_by_its_fault_alone(
    fault: gallery.Fault,
) -> None:
    target = gallery.target(fault.name)
    module = inspect.getmodule(type(target)) if fault.control != "minimal" else None

    assert target.name == fault.name
    assert fault.engine in {"proc", "crash", "disk", "sim"}
    assert fault.promise in target.contract.promises
    assert all((fault.wrong, fault.kind, fault.right))
    if module is None:
        queue, worker = vars(target)["_queue"], vars(target)["_worker"]
        broken = queue if worker is None else worker
        assert broken.__mro__[1] is (MinimalQueue if worker is None else MinimalWorker)
        changed = [member for member in vars(broken) if not member.startswith("__")]
        assert len(changed) <= 5, f"{fault.name} changes {changed}"


def test_the_control_is_one_file_of_at_most_150_lines() -> None:
    assert minimal_queue.__file__ is not None
    lines = Path(minimal_queue.__file__).read_text(encoding="utf-8").splitlines()

    assert len(lines) <= CONTROL_LINES_MAX
