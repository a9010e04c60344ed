"""A run in which the faults were announced and never made shows nothing, and must say so."""

from dataclasses import replace
from pathlib import Path

from killproof_chaos import coverage, plan, targets
from killproof_chaos.engines.proc import Engine
from killproof_chaos.plan import Options
from killproof_evidence.judge import judge
from killproof_evidence.store import Store


def test_a_run_whose_nemesis_was_off_is_unknown_and_names_what_it_missed(place: Path) -> None:
    """Rules C4, C12."""
    options = Options(
        target="minimal", workers=2, producers=1, seconds=0.5, kills=0, pauses=0, seed=1,
        nemeses=("kill", "pause"),
    )  # fmt: skip
    aims = coverage.aims(targets.load("minimal"), options)
    planned = replace(plan.make(options, aims), faults=())
    store = Store.create(place / "run")
    Engine(options, planned, store, lambda _progress: None).run()
    record = judge(store).record

    missed = record["coverage"]["missed"]
    assert record["verdict"] == "unknown"
    assert f"kill@{aims[0]}" in " ".join(missed)
    assert coverage.REDELIVERED in " ".join(missed)
