"""Each broken queue is caught, by the property that it breaks; the control is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from killproof_chaos.gallery import Fault, adapter
from killproof_chaos.targets import minimal_queue
from killproof_chaos.targets.minimal_queue import MinimalQueue

SECONDS_MAX = 120.0
BUDGET = ("--seconds", "2.5", "--kills", "10", "--pauses", "5")
CONTROL_LINES_MAX = 150


@pytest.mark.parametrize(
    "fault",
    [fault for fault, _ in adapter.QUEUES if fault.engine == "proc"],
    ids=lambda fault: str(fault.name),
)
def test_a_broken_queue_is_violated_by_the_property_that_it_breaks(
    place: Path, fault: Fault
) -> None:
    """Rule C1."""
    nemesis = ("--nemesis", fault.nemesis) if fault.nemesis else ()
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "run", "--target", fault.name, *BUDGET,
         *nemesis, "--seed", "11", "--store", "run", "--json"],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    found = verdict["properties"][fault.promise]
    assert found["verdict"] == "violated"
    assert found["witnesses"][0]["lines"], "a violation is proven by the lines it was seen in"


def test_what_only_killproof_has_is_caught_when_it_is_broken(place: Path) -> None:
    """P22, P23 and P24 are seen violated by a run, without any fault but the queue's own."""
    words = ("--seconds", "2", "--nemesis", "none", "--workers", "4", "--seed", "11", "--json")
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "killproof", "chaos", "run", "--target", fault.name, *words],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for fault, _ in adapter.MIXED
    ]
    told = [run.communicate(timeout=SECONDS_MAX)[0] for run in runs]

    for (fault, _), text in zip(adapter.MIXED, told, strict=True):
        properties = json.loads(text)["properties"]
        violated = [name for name, found in properties.items() if found["verdict"] == "violated"]
        assert fault.promise in violated, fault.name
        assert properties[fault.promise]["witnesses"][0]["lines"], fault.name


@pytest.mark.parametrize("nemesis", sorted({fault.nemesis for fault, _ in adapter.QUEUES}))
def test_the_control_breaks_nothing_under_the_same_budget(place: Path, nemesis: str) -> None:
    chosen = ("--nemesis", nemesis) if nemesis else ()
    done = subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", "run", "--target", "minimal", *BUDGET,
         *chosen, "--seed", "11", "--store", "run", "--json"],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip

    found = json.loads(done.stdout)["properties"]
    assert "violated" not in {finding["verdict"] for finding in found.values()}, done.stderr


@pytest.mark.parametrize(
    ("name", "queue"), [(fault.name, queue) for fault, queue in adapter.QUEUES]
)
def test_a_broken_queue_differs_from_the_control_by_its_fault_alone(
    name: str, queue: type[MinimalQueue]
) -> None:
    assert queue.__mro__[1] is MinimalQueue
    changed = [member for member in vars(queue) if not member.startswith("__")]
    assert len(changed) <= 5, f"{name} changes {changed}"


def test_the_control_is_one_file_of_at_most_150_lines() -> None:
    assert minimal_queue.__file__ is not None
    lines = Path(minimal_queue.__file__).read_text(encoding="utf-8").splitlines()

    assert len(lines) <= CONTROL_LINES_MAX
