"""A campaign of real runs, as small as one can be: two engines' processes, one verdict."""

from pathlib import Path

from killproof_chaos.prove.dealing import Asked, Plan, Run
from killproof_chaos.prove_command import perform
from killproof_evidence.store import Store


def test_runs_of_several_processes_become_one_verdict_and_one_that_fails_leaves_it_unknown(
    place: Path,
) -> None:
    """A search that ends by itself, and one that its own command refuses."""
    words = ("--scenario", "claim", "--bound", "0", "--budget", "400s")
    whole = Run(name="01-sim", engine="sim", words=words, seconds=1.0, owed=True)
    wrong = Run(name="02-disk", engine="disk", words=("--points", "none"), seconds=1.0, owed=True)
    asked = Asked(target="minimal", budget=600.0, seed=1, engines=("sim", "disk"))
    plan = Plan(asked=asked, runs=(whole, wrong), left_out={})
    store = Store.create(place / "store")

    record = perform(plan, 1, store, lambda turn: None, report=False)

    assert [(row["run"]["name"], row["verdict"]) for row in record["runs"]] == [
        ("02-disk", "failed"),
        ("01-sim", "pass"),
    ]
    assert record["verdict"] == "unknown"
    assert record["properties"]["P4"] | {"checked": 1} == {
        "verdict": "pass", "checked": 1, "witnesses": [], "judged_by": {"sim": "pass"}
    }  # fmt: skip
    assert "--points 'none' is neither all nor a number from 1" in record["unknown_because"][0]
    assert Store(store.path / "runs/01-sim").read_verdict()["engine"] == "sim"
    assert store.read_verdict() == record
