"""Each broken queue is caught, by the property that it breaks; the control is not.

All runs of the module are made at once, before its first test, in processes that have imported
everything: one interpreter for each of sixty queues would take minutes. Of the engine `proc` there
are a few; `killproof chaos power` runs all of them, twenty times.
"""

import inspect
import io
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from killproof_chaos import gallery, gallery_command
from killproof_chaos.power import running, trials
from killproof_chaos.power.trials import Asked, Outcome, Trial
from killproof_chaos.targets import minimal_queue
from killproof_chaos.targets.minimal_adapter import MinimalWorker
from killproof_chaos.targets.minimal_queue import MinimalQueue

CONTROL_LINES_MAX = 150
FAULTS = [gallery.fault(name) for name in gallery.names()]
ASKED = Asked(is_slice=True)
CAUGHT = {trial.target: trial for trial in trials.trials(ASKED) if trial.part == "intended"}
HEALTHY = [trial for trial in trials.trials(ASKED) if trial.part == "healthy"]
CANARY = [trial for trial in trials.trials(ASKED) if trial.part == "canary"]
#: No run of this module takes so long on a machine that does anything else but stand still.
SECONDS_MAX = 3_600.0
#: Real processes meet the fault on almost every seed: on a machine that starves them, on the next.
SEEDS = (2, 3)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    on_disk: Callable[[Path], Path],
) -> Mapping[str, Outcome]:
    """What came of each trial that a test of this run asks for."""
    asked = [
        item.callspec.params["trial"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "outcomes" in item.fixturenames
    ]
    wanted = [trial for trial in asked if isinstance(trial, Trial)]
    folder = on_disk(tmp_path_factory.mktemp("power"))
    found = made(wanted, folder)
    for seed in SEEDS:
        left = [
            trials.intended(gallery.fault(trial.target), seed)
            for trial in wanted
            if trial.part == "intended"
            and trial.engine == "proc"
            and gallery.fault(trial.target).promise not in found[trial.target].broken
        ]
        found |= {outcome.trial.target: outcome for outcome in made(left, folder).values()}
    return found


def made(wanted: list[Trial], folder: Path) -> dict[str, Outcome]:
    """Make trials; of a broken queue by its name, of the others by their key."""
    outcomes = running.make(
        wanted, folder, seconds=SECONDS_MAX, lanes=2, show=lambda _turn: None
    ).outcomes
    return {name_of(outcome.trial): outcome for outcome in outcomes}


def name_of(trial: Trial) -> str:
    return trial.target if trial.part == "intended" else trial.key


def told(outcome: Outcome) -> str:
    """How a failure reads: what was run, and what was found."""
    command = shlex.join(["killproof", "chaos", *outcome.trial.argv()])
    found = ", ".join(outcome.broken) or "nothing"
    return f"{command}: {outcome.verdict}, found {found} {outcome.why}"


@pytest.mark.parametrize("trial", CAUGHT.values(), ids=CAUGHT)
def test_a_broken_queue_is_violated_by_the_property_that_it_breaks(
    outcomes: Mapping[str, Outcome], trial: Trial
) -> None:
    """Rule C1."""
    outcome, promise = outcomes[trial.target], gallery.fault(trial.target).promise

    assert promise in outcome.broken, f"{promise} was not found by {told(outcome)}"
    assert promise not in outcome.unproven, f"{promise} has no witness: {told(outcome)}"


@pytest.mark.parametrize(
    "trial", HEALTHY, ids=lambda trial: "-".join((trial.target, trial.engine, str(trial.seed)))
)
def test_the_control_breaks_nothing(outcomes: Mapping[str, Outcome], trial: Trial) -> None:
    outcome = outcomes[trial.key]

    assert outcome.verdict in ("pass", "unknown"), told(outcome)


@pytest.mark.parametrize("trial", CANARY, ids=lambda trial: str(trial.seed))
def test_the_canary_is_reported_on_its_seed_and_on_no_other(
    outcomes: Mapping[str, Outcome], trial: Trial
) -> None:
    outcome = outcomes[trial.key]

    assert (outcome.verdict == "violated") == (trial.seed == 79), told(outcome)


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
    # Those of the articles are whole queues, each with the faults that it came with.
    if module is None and not fault.name.startswith("article-"):
        queue, worker = vars(target)["_queue"], vars(target)["_worker"]
        broken = queue if worker is None else worker
        assert broken.__mro__[1] is (MinimalQueue if worker is None else MinimalWorker)
        changed = [member for member in vars(broken) if not member.startswith("__")]
        assert len(changed) <= 5, f"{fault.name} changes {changed}"


def test_what_a_broken_queue_breaks_in_some_runs_only_is_not_told_as_certain() -> None:
    shown = io.StringIO()
    Console(file=shown, width=200).print(
        gallery_command.whole(gallery.fault("opens-its-own-files"))
    )
    (line,) = [each for each in shown.getvalue().splitlines() if each.strip().startswith("breaks")]

    assert "(may break too: P" in line


def test_the_control_is_one_file_of_at_most_150_lines() -> None:
    assert minimal_queue.__file__ is not None
    lines = Path(minimal_queue.__file__).read_text(encoding="utf-8").splitlines()

    assert len(lines) <= CONTROL_LINES_MAX
