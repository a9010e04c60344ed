"""The command `killproof chaos sim`, its store, and what `check` and `replay` make of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from killproof_chaos import targets
from killproof_chaos.cli import app
from killproof_chaos.report_schedules import write_markdown
from killproof_chaos.sim import Exploration, campaign, result
from killproof_chaos.sim.explore import Budget, explore, keep_shortest
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import Dfs, Walk
from killproof_chaos.sim.stage import Outcome
from killproof_chaos.sim.tokens import Token
from killproof_chaos.targets import load
from killproof_evidence.store import Store

#: Far more than a run here needs, for a crowded machine; each is exhausted or ends when it finds.
BUDGET = "1000s"  # Each ends long before: at what it finds, or at its bound.
WAIT_SECONDS = 120.0


def chaos(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def sim(store: Path, target: str, scenario: str, *words: str) -> Result:
    given = ["--target", target, "--scenario", scenario, "--budget", BUDGET]
    return chaos("sim", *given, "--store", str(store), *words)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A store in which a promise broke."""
    store = tmp_path_factory.mktemp("sim") / "store"
    return store, sim(store, "checks-then-inserts", "unique-key", "--report")


def test_a_broken_promise_is_told_as_a_story_with_its_token_and_exit_code_1(
    broken: tuple[Path, Result],
) -> None:
    store, result = broken

    assert result.exit_code == 1
    assert "  1. p1 begins to enqueue a job with key 'only-once'" in result.stdout
    assert "=> broken: One key has at most one live job (P12)" in result.stdout
    assert "story:  killproof chaos replay ks1-" in result.stdout
    record = json.loads((store / "verdict.json").read_text())
    assert record["verdict"] == "violated"
    assert record["properties"]["P12"]["witnesses"][0]["job"]
    assert record["counts"]["schedules"] >= record["scenarios"][0]["first"] >= 1
    assert not record["exhausted"]


def test_a_promise_that_the_smaller_schedule_no_longer_breaks_has_a_story_of_its_own(
    place: Path,
) -> None:
    """The schedule breaks P5 and P6; what is left of it when it is shrunk breaks P5 alone."""
    done = sim(place / "store", "ack-without-fence", "stale-ack", "--json", "--no-report")

    found = json.loads(done.stdout)["properties"]
    violated = {name: one for name, one in found.items() if one["verdict"] == "violated"}
    assert set(violated) == {"P5", "P6"}
    assert all(one["witnesses"] for one in violated.values())


def test_the_store_of_a_broken_promise_is_judged_again_from_its_records(
    broken: tuple[Path, Result],
) -> None:
    store, _ = broken
    before = (store / "verdict.json").read_bytes()

    again = chaos("check", str(store))

    assert again.exit_code == 1
    assert "One key has at most one live job" in again.stdout
    assert (store / "verdict.json").read_bytes() == before
    assert (store / "audit.jsonl").stat().st_size > 0
    assert (store / "db" / "queue.db").stat().st_size > 0


@pytest.mark.parametrize("lost", ["snapshot.jsonl", "history", "effects"])
def test_records_that_the_store_has_lost_accuse_nobody(
    broken: tuple[Path, Result], tmp_path: Path, lost: str
) -> None:
    store = tmp_path / "store"
    shutil.copytree(broken[0], store)
    before = json.loads(chaos("check", str(store), "--json").stdout)["properties"]
    if (store / lost).is_dir():
        shutil.rmtree(store / lost)
    else:
        (store / lost).unlink()

    again = json.loads(chaos("check", str(store), "--json").stdout)

    violated = {name for name, one in before.items() if one["verdict"] == "violated"}
    assert {
        name for name, one in again["properties"].items() if one["verdict"] == "violated"
    } <= violated
    assert any(
        lost in reason and "missing, and the run left" in reason
        for reason in again["unknown_because"]
    )


def test_a_store_and_its_token_are_replayed_to_the_same_story(broken: tuple[Path, Result]) -> None:
    store, _ = broken
    record = json.loads((store / "verdict.json").read_text())

    by_store = chaos("replay", str(store))
    by_token = chaos("replay", record["stories"][0]["token"], "--verbose")

    assert by_store.exit_code == by_token.exit_code == 1
    assert record["stories"][0]["text"].splitlines()[1:4] == by_store.stdout.splitlines()[1:4]
    assert "INSERT INTO job" in by_token.stdout
    assert "INSERT INTO job" not in by_store.stdout


def test_the_report_shows_the_story_in_lanes_and_loads_nothing(broken: tuple[Path, Result]) -> None:
    page = (broken[0] / "report.html").read_text()

    assert '<th scope="col">p1</th><th scope="col">p2</th>' in page
    assert "begins to enqueue a job with key" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "src=" not in page.replace("img-src", "")


RAISES = """
from killproof_chaos.targets import load

control = load("minimal")


class Target:
    def __getattr__(self, name):
        return getattr(control, name)

    def open(self, place, host):
        client = control.open(place, host)

        def ack(lease):
            raise RuntimeError("no ack today")

        client.ack = ack
        return client


target = Target()
"""


def test_an_error_that_nobody_expected_is_a_violation_in_every_form(place: Path) -> None:
    target, store, junit = place / "raises.py", place / "store", place / "junit.xml"
    target.write_text(RAISES)

    run = sim(store, str(target), "claim", "--junit", str(junit))
    again = chaos("check", str(store), "--junit", str(place / "again.xml"))

    for ended in (run, again, chaos("replay", str(store))):
        assert ended.exit_code == 1
        assert "w1 met RuntimeError: no ack today" in ended.stdout
    for report in (junit, place / "again.xml"):
        assert 'message="an error that nobody expected"' in report.read_text()


def test_a_clean_queue_is_exhausted_up_to_its_bound_in_two_processes(place: Path) -> None:
    store = place / "store"

    result = sim(store, "minimal", "claim", "--bound", "1", "--jobs", "2", "--json")

    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["exhausted"]
    assert record["bound"] == 1
    assert record["scenarios"][0]["verdict"] == "pass"
    assert record["replay"].startswith("killproof chaos sim --target minimal --scenario claim")
    refused = chaos("check", str(store))
    assert refused.exit_code != 0
    assert "found no violation" in str(refused.exception)
    assert "found no violation" in str(chaos("replay", str(store)).exception)


def test_a_random_search_says_how_many_schedules_differed_and_exhausts_nothing(
    place: Path,
) -> None:
    result = chaos(
        *("sim", "--target", "minimal", "--scenario", "claim", "--scheduler", "pct"),
        *("--seed", "3", "--budget", "1s", "--store", str(place / "store"), "--json"),
    )

    record = json.loads(result.stdout)
    assert result.exit_code == 0
    assert 0 < record["counts"]["distinct"] <= record["counts"]["schedules"]
    assert not record["exhausted"]
    assert record["seed"] == 3


def test_a_scenario_that_the_target_can_not_play_is_said_to_be_left_out(place: Path) -> None:
    result = sim(place / "store", "minimal", "snooze")

    assert result.exit_code == 2
    assert "left out: snooze, for the target has no snooze" in result.stdout
    assert "unknown because no promise was judged" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--scenario", "nope"), "--scenario 'nope' is unknown: use claim, "),
        (("--scheduler", "best"), "--scheduler 'best' is unknown: use dfs, pct, walk"),
        (("--bound", "-1"), "--bound -1 must be an integer from 0 to 20"),
        (("--budget", "soon"), "--budget 'soon' must be a time from 0.1s to 24h"),
        (("--crashes", "99"), "--crashes 99 must be an integer from 0 to 10"),
        (("--jobs", "0"), "--jobs 0 must be an integer from 1 to 64"),
    ],
)
def test_what_can_not_be_explored_is_refused_in_a_line(
    words: tuple[str, ...], says: str, place: Path
) -> None:
    result = chaos("sim", *words, "--store", str(place / "store"))

    assert isinstance(result.exception, ValueError)
    assert says in str(result.exception)
    assert not (place / "store").exists()


def test_a_replay_of_another_story_that_breaks_nothing_is_unknown(
    broken: tuple[Path, Result],
) -> None:
    record = json.loads((broken[0] / "verdict.json").read_text())
    token = Token.of_text(record["stories"][0]["token"])

    mended = chaos("replay", replace(token, target="minimal").text())
    changed = chaos("replay", replace(token, checksum=0).text())

    assert mended.exit_code == 2
    assert "this is not the story that the token was made from" in mended.stderr
    assert "killproof chaos sim --target minimal --scenario unique-key" in mended.stderr
    assert changed.exit_code == 1
    assert "this is not the story" in changed.stderr


def verdict_of(
    *rows: campaign.Row, scheduler: str = "dfs", target: str = "minimal"
) -> dict[str, Any]:
    """What a campaign of these rows says, without its stories."""
    options = campaign.Options(
        target=target, scenarios=tuple(row.scenario for row in rows), scheduler=scheduler
    )
    found = campaign.Campaign(
        options=options, rows={row.scenario: row for row in rows}, left_out={}
    )
    return result._verdict(found, load(target).contract, Store(Path()))


def row(scenario: str, **facts: Any) -> campaign.Row:
    usual: dict[str, Any] = {"schedules": 10, "bound": 2, "passed": {"P1", "P4", "P16"}}
    return campaign.Row(scenario=scenario, **usual | facts)


def test_a_search_that_has_not_exhausted_bound_0_is_unknown_whatever_it_has_seen() -> None:
    whole, cut = row("claim"), row("nack", bound=None, passed={"P4", "P9"})

    record = verdict_of(whole, cut)

    assert verdict_of(whole)["verdict"] == "pass"
    assert (cut.verdict, record["verdict"], record["bound"]) == ("unknown", "unknown", -1)
    assert "nack: the time ended within bound 0: give a longer --budget" in str(
        record["unknown_because"]
    )
    words = {n: record["properties"][n]["verdict"] for n in ("P1", "P4", "P9")}
    assert words == {"P1": "pass", "P4": "unknown", "P9": "unknown"}
    hung = verdict_of(row("claim", hung=1))
    assert (hung["verdict"], hung["properties"]["P4"]["verdict"]) == ("unknown", "unknown")


def test_a_search_that_ended_between_two_bounds_passes_at_the_lower_and_says_so() -> None:
    record = verdict_of(row("claim", bound=2, exhausted=True), row("nack", bound=0))

    assert record["verdict"] == "pass"
    assert (record["bound"], record["exhausted"]) == (0, False)
    assert "exhausted at bound 0 in all scenarios; bound 2 was asked for" in str(
        result.figures(record)
    )


def test_a_random_search_needs_no_bound() -> None:
    drawn = row("claim", bound=None, is_random=True)

    assert verdict_of(drawn, scheduler="pct")["verdict"] == "pass"
    assert row("claim", bound=None, is_random=True, schedules=0).verdict == "unknown"


def test_promises_on_which_the_search_stopped_are_unknown_in_a_violated_run() -> None:
    """One violation in each of two scenarios; a third was searched to its end."""
    record = verdict_of(
        row("claim", broken={"P6"}, bound=0),
        row("nack", broken={"P6", "P7"}, passed={"P1", "P4"}),
        row("unique-key", passed={"P1", "P6", "P12"}, schedules=7),
    )

    found = record["properties"]
    assert record["verdict"] == "violated"
    assert (found["P6"]["verdict"], found["P6"]["violations"], found["P6"]["checked"]) == (
        *("violated", 2, 27),
    )
    assert (found["P7"]["verdict"], found["P7"]["violations"]) == ("violated", 1)
    assert found["P12"]["verdict"] == "pass"
    assert [found[n]["verdict"] for n in ("P1", "P4")] == ["unknown", "unknown"]
    assert "the search of claim ended at what broke there" in found["P4"]["reason"]


def test_a_promise_that_a_scenario_has_a_check_of_its_own_for_is_judged_by_it() -> None:
    """No checker judges workflows in this engine; the scenarios about them do."""
    words = [
        verdict_of(row("diamond", **facts), target="killproof")["properties"]["P23"]["verdict"]
        for facts in ({}, {"passed": {"P23"}}, {"broken": {"P23"}})
    ]

    assert words == ["not_judged", "pass", "violated"]


def test_the_store_of_a_found_schedule_has_the_contract_with_what_its_scenario_adds(
    place: Path,
) -> None:
    asked = ("sim", "--target", "limit-per-process", "--scenario", "mutex")
    chaos(*asked, "--no-report", "--store", str(place / "store"))

    again = json.loads(chaos("check", str(place / "store"), "--json").stdout)["properties"]

    assert again["P22"]["verdict"] == "violated"


def test_a_search_that_goes_on_tells_each_promise_that_breaks_by_its_own_shortest_schedule(
    place: Path,
) -> None:
    """The first violation of this queue shows P6 and P7; its cause is P4."""
    asked = ("sim", "--target", "checks-then-claims", "--scenario", "claim", "--budget", "60s")

    first = chaos(*asked, "--json", "--no-report", "--store", str(place / "first"))
    whole = chaos(*asked, "--keep-going", "--json", "--no-report", "--store", str(place / "whole"))

    before, found = (json.loads(done.stdout)["properties"] for done in (first, whole))
    assert (first.exit_code, whole.exit_code) == (1, 1)
    assert (before["P4"]["verdict"], found["P4"]["verdict"]) == ("unknown", "violated")
    assert {n for n, each in found.items() if each["verdict"] == "violated"} == {"P4", "P6", "P7"}
    assert found["P1"]["verdict"] == "pass"
    record = json.loads(whole.stdout)
    assert [story["promise"] for story in record["stories"]] == ["P4", "P6"]
    assert record["scenarios"][0]["exhausted"]
    assert record["replay"].endswith(" --keep-going")
    for story in record["stories"]:
        told = chaos("replay", story["token"])
        assert told.exit_code == 1
        assert f"({story['promise']})" in told.stdout
    assert found["P7"]["witnesses"], "the story of P6 proves P7 as well"


def test_the_schedule_with_the_fewest_deviations_is_kept_whichever_task_finds_it() -> None:
    queue, scenario = load("checks-then-claims"), SCENARIOS["claim"]
    whole = Budget(seconds=None, violations=None)
    listed = explore(queue, scenario, Dfs(2), budget=whole).shortest
    drawn = explore(queue, scenario, Walk(seed=3, runs=60), budget=whole).shortest

    assert {name: len(each.choices) for name, each in listed.items()} == {"P4": 2, "P6": 1, "P7": 1}
    assert any(len(each.choices) > 2 for each in drawn.values()), "a random one is longer"
    for others in ((listed, drawn), (drawn, listed)):
        kept: dict[str, Outcome] = {}
        for each in others:
            keep_shortest(kept, each)
        assert kept == listed


def test_of_equal_schedules_the_same_is_kept_in_any_order() -> None:
    first, other = (
        Outcome(
            choices=((4, label),), steps=9, switches=1, stopped="", verdict=None, evidence=0,
            events=(), trace=(), finally_rows=(),
        )
        for label in "ab"
    )  # fmt: skip
    for order in ((first, other), (other, first)):
        kept: dict[str, Outcome] = {}
        for each in order:
            keep_shortest(kept, {"P4": each})
        assert kept["P4"] is first


def test_a_story_of_a_queue_that_hangs_on_the_seed_replays_with_it(place: Path) -> None:
    words = ("--scenario", "claim", "--scheduler", "pct", "--seed", "79", "--budget", "60s")
    done = chaos("sim", "--target", "canary", *words, "--json", "--no-report",
                 "--store", str(place / "store"))  # fmt: skip
    token = json.loads(done.stdout)["stories"][0]["token"]
    targets.tell_seed(None)  # Whoever replays it knows of none.

    assert chaos("replay", token).exit_code == 1


def test_a_search_that_draws_nothing_tells_no_seed() -> None:
    options = campaign.Options(target="canary", scenarios=("claim",), bound=0, seed=79)

    found = campaign.run(options, lambda _turn: None)

    assert targets.told_seed() is None
    assert not found.rows["claim"].broken


def test_a_lower_bound_that_ends_later_takes_nothing_back() -> None:
    known = row("claim", schedules=0, bound=None, passed=set())
    for bound, schedules in ((1, 84), (0, 8)):
        task = campaign.Task(
            target="minimal", scenario="claim", scheduler="dfs", bound=bound, depth=3,
            crashes=None, seed=1, seconds=1.0,
        )  # fmt: skip
        found = Exploration(
            target="minimal", scenario="claim", schedules=schedules, exhausted=True, hung=1,
            distinct=schedules // 2, passed={"P1"},
        )  # fmt: skip
        known.add(campaign.Answer(task=task, found=found, schedules=frozenset(), cpu_seconds=0.0))

    assert (known.bound, known.schedules, known.outcomes, known.hung) == (1, 84, 42, 1)


def test_every_scenario_is_listed_with_its_race() -> None:
    listed = chaos("sim", "--scenarios").stdout.splitlines()

    assert len(listed) == len(SCENARIOS)
    assert all(each.text in line for each, line in zip(SCENARIOS.values(), listed, strict=True))


def test_an_interrupted_run_tells_what_it_has_explored_and_is_unknown(place: Path) -> None:
    store = place / "store"
    command = "from killproof_chaos.cli import app; app()"
    words = [
        "sim",
        "--target",
        "minimal",
        "--budget",
        "500s",
        "--bound",
        "9",
        "--store",
        str(store),
    ]
    running = subprocess.Popen(
        [sys.executable, "-c", command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    for line in running.stderr:  # Until it says that it explores.
        if " schedules, " in line:
            break
    os.kill(running.pid, signal.SIGINT)
    stdout, _ = running.communicate(timeout=WAIT_SECONDS)

    assert running.returncode == 2
    assert "unknown because the run was interrupted after" in stdout
    record = json.loads((store / "verdict.json").read_text())
    assert record["interrupted"]
    assert not record["exhausted"]


def answer(task: campaign.Task | None, *, exhausted: bool) -> campaign.Answer:
    assert task is not None
    found = Exploration(target=task.target, scenario=task.scenario, exhausted=exhausted)
    return campaign.Answer(task=task, found=found, schedules=frozenset(), cpu_seconds=0.0)


def test_the_smallest_bounds_come_first_and_an_unfinished_one_again() -> None:
    """Two scenarios in two processes: one is exhausted at once, the other at its second try."""
    options = campaign.Options(
        target="minimal", scenarios=("claim", "nack"), bound=1, seconds=60, jobs=2
    )
    rows = {name: campaign.Row(scenario=name) for name in options.scenarios}
    plan = campaign._Plan(options, rows, campaign.Board(), lambda _turn: None)
    told: list[tuple[str, int]] = []

    def next_task() -> campaign.Task:
        task = plan.next()
        assert task is not None
        told.append((task.scenario, task.bound))
        return task

    claim, nack = next_task(), next_task()
    assert plan.next() is None  # Bound 1 of either waits for its bound 0.
    assert claim.seconds > 0.9 * options.seconds  # Both may run as long, side by side.
    for task, exhausted in ((claim, True), (nack, False)):
        ended = answer(task, exhausted=exhausted)
        rows[task.scenario].add(ended)
        plan.done(ended)
    again = [next_task(), next_task()]
    for task in again:
        ended = answer(task, exhausted=True)
        rows[task.scenario].add(ended)
        plan.done(ended)
    next_task()

    assert told == [("claim", 0), ("nack", 0), ("claim", 1), ("nack", 0), ("nack", 1)]
    assert plan.next() is None


def test_the_sweep_report_says_what_was_exhausted_what_broke_and_what_is_not_shown(
    broken: tuple[Path, Result], place: Path
) -> None:
    for part in ("exhaustive", "random", "naive"):
        copy = place / part / "1"
        copy.mkdir(parents=True)
        record: dict[str, Any] = json.loads((broken[0] / "verdict.json").read_text())
        record["crashes"] = 1
        (copy / "verdict.json").write_text(json.dumps(record))

    text = write_markdown(place, place / "out.md").read_text()

    assert "**0 of 1 scenarios were exhausted at bound 2; 1 broke a promise" in text
    assert "killproof chaos replay ks1-" in text
    assert "## What this does not show" in text
    with pytest.raises(ValueError, match="make report-schedules"):
        write_markdown(place / "naive", place / "none.md")


def test_progress_says_what_is_played_how_fast_and_how_long_it_still_takes() -> None:
    from killproof_chaos.sim_command import text_of

    turn = campaign.Turn(
        done=50, total=300, what="claim, bound 1", schedules=1_234, rate=617.0, left=25.0
    )

    assert text_of(turn) == "claim, bound 1: 1,234 schedules, 617/s, at most 25 s left"
