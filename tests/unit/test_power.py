"""Detection power: what the outcomes of many runs add up to, and how it is told."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import gallery, report_power
from killproof_chaos.power import running, trials
from killproof_chaos.power.lane import FAILED, is_expected, outcome_of
from killproof_chaos.power.matrix import record_of
from killproof_chaos.power.trials import Asked, Outcome, Trial
from killproof_chaos.resuming import CODE, alone, place_of
from killproof_chaos.sim_command import seconds_of
from killproof_chaos.targets.canary import sings

NAME = "reads-then-writes"
PROMISE = gallery.fault(NAME).promise
ASKED = Asked(seeds=20, only=(NAME,), cross=0, healthy=False)


def outcome(trial: Trial, *broken: str, **changes: Any) -> Outcome:
    verdict = "violated" if broken else "pass"
    facts: dict[str, Any] = {"verdict": verdict, "broken": broken, "seconds": 0.5}
    return Outcome(trial=trial, **facts | changes)


def caught(planned: Sequence[Trial]) -> list[Outcome]:
    return [outcome(trial, PROMISE) for trial in planned]


def whole(record: dict[str, Any]) -> dict[str, Any]:
    """The record with what the command adds to it."""
    return record | {
        "argv": ["killproof", "chaos", "power"],
        "lanes": 2,
        "earlier": 0,
        "files_in": "/dev/shm",
        "started": 1_700_000_000.0,
        "ended": 1_700_000_600.0,
        "version": "0",
        "environment": {"python": "3.11", "sqlite": "3.40", "wal_reset_affected": True},
    }


def test_a_queue_that_is_caught_on_every_seed_is_a_pass_with_its_interval() -> None:
    planned = trials.trials(ASKED)
    record = record_of(ASKED, planned, caught(planned))
    (queue,) = record["queues"]

    assert record["verdict"] == "pass"
    assert (queue["rate"]["count"], queue["rate"]["of"]) == (20, 20)
    assert 0.83 < queue["rate"]["low"] < 0.85
    assert queue["alone"]
    assert [row["only"] for row in record["checkers"] if row["property"] == PROMISE] == [[NAME]]


def test_one_missed_seed_of_twenty_is_told_and_is_no_pass() -> None:
    planned = trials.trials(ASKED)
    made = caught(planned)
    made[7] = outcome(planned[7])
    record = record_of(ASKED, planned, made)

    assert record["verdict"] == "violated"
    assert record["missed"] == [NAME]
    assert record["queues"][0]["missed_seeds"] == [planned[7].seed]


def test_what_is_found_beside_the_intended_property_does_not_count_as_found() -> None:
    planned = trials.trials(ASKED)
    record = record_of(ASKED, planned, [outcome(trial, "P1") for trial in planned])
    (queue,) = record["queues"]

    assert record["verdict"] == "violated"
    assert (queue["rate"]["count"], queue["incidental"]) == (0, 20)
    assert not queue["alone"]


@pytest.mark.parametrize("count", [0, 19])
def test_runs_that_were_not_made_are_no_pass(count: int) -> None:
    planned = trials.trials(ASKED)
    record = record_of(ASKED, planned, caught(planned)[:count], interrupted="somebody came")

    assert record["verdict"] == "unknown"
    assert record["problems"] == [f"{20 - count} runs were not made: somebody came"]
    assert report_power.tiles(record)[0] == ("broken queues", "1", f"{min(count, 1)} never missed")


def test_a_run_that_somebody_ended_is_no_pass_though_only_other_engines_are_left() -> None:
    asked = Asked(seeds=20, only=(NAME,), healthy=False)
    planned = trials.trials(asked)
    made = caught([trial for trial in planned if trial.part == "intended"])
    ended = record_of(asked, planned, made, interrupted="somebody came")
    out_of_time = record_of(asked, planned, made)

    assert ended["verdict"] == "unknown"
    assert out_of_time["verdict"] == "pass"
    assert report_power.crossed_lines(out_of_time)[0].startswith("3 runs of other engines")


def test_a_run_that_failed_is_neither_found_nor_missed() -> None:
    planned = trials.trials(ASKED)
    made = caught(planned)
    made[3] = outcome(planned[3], verdict=FAILED, why="no compiler")
    record = record_of(ASKED, planned, made)

    assert record["verdict"] == "unknown"
    assert "no compiler" in record["problems"][0]
    assert (record["queues"][0]["runs"], record["queues"][0]["missed_seeds"]) == (19, [])
    assert "on each of 19 seeds" in report_power.headline(record)


def test_a_run_that_found_it_after_its_budget_is_censored_and_not_missed() -> None:
    planned = trials.trials(ASKED)
    late = 2 * gallery.fault(NAME).seconds
    made = [outcome(t, PROMISE, seconds=late if t.seed > 9 else 0.5) for t in planned]
    (queue,) = record_of(ASKED, planned, made)["queues"]

    assert queue["missed_seeds"] == []
    assert (queue["in_budget"], queue["seconds"]["censored"]) == (9, 11)
    assert queue["seconds"]["median"] is None, "more than half are only known to be longer"


def test_a_run_that_saw_everything_early_and_found_nothing_makes_no_time_look_surer() -> None:
    planned = trials.trials(ASKED)
    made = [outcome(t, seconds=0.1) if t.seed > 10 else outcome(t, PROMISE) for t in planned]
    (queue,) = record_of(ASKED, planned, made)["queues"]

    assert queue["seconds"]["median"] == 0.5, "ten of twenty found it"
    assert queue["seconds"]["p95"] is None, "ten never will"


def test_seeds_that_draw_nothing_are_told_as_the_same_run_and_have_no_rate() -> None:
    planned = trials.trials(ASKED)
    record = record_of(ASKED, planned, caught(planned))
    drawn = [replace(trial, options=(*trial.options, "--scheduler", "pct")) for trial in planned]
    other = record_of(ASKED, drawn, caught(drawn))

    assert (record["queues"][0]["differ"], other["queues"][0]["differ"]) == (1, 20)
    assert report_power.rate_of(record["queues"][0], "84 to 100%") == "same"
    assert report_power.rate_of(other["queues"][0], "84 to 100%") == "84 to 100%"
    assert "seeds draw nothing for 1 of 1 queues" in report_power.seeds_lines(record)[0]
    assert report_power.seeds_lines(other) == []


def test_a_run_that_judged_nothing_is_neither_clean_nor_a_miss() -> None:
    (trial,) = trials.trials(Asked(seeds=1, only=(NAME,), cross=0, healthy=False))
    found = {
        word: outcome_of(
            trial,
            {
                "verdict": "unknown",
                "unknown_because": ["no C compiler found"],
                "properties": {"P1": {"verdict": word}, "P2": {"verdict": "not_judged"}},
            },
            seconds=1.0,
            cpu_seconds=1.0,
        )
        for word in ("unknown", "pass")
    }

    assert (found["unknown"].verdict, found["unknown"].why) == (FAILED, "no C compiler found")
    assert found["pass"].verdict == "unknown"


def test_an_accused_healthy_queue_is_a_false_alarm() -> None:
    asked = Asked(only=(NAME,), seeds=1, cross=0, engines=("sim",))
    planned = trials.trials(asked)
    made = [
        outcome(trial, PROMISE)
        if trial.part == "intended" or (trial.part == "canary" and sings(trial.seed))
        else outcome(trial)
        for trial in planned
    ]
    clean = record_of(asked, planned, made)
    number = next(n for n, one in enumerate(made) if one.trial.part == "healthy")
    made[number] = outcome(made[number].trial, "P4")
    accused = record_of(asked, planned, made)

    assert (clean["verdict"], clean["counts"]["alarms"]) == ("pass", 0)
    assert (accused["verdict"], accused["counts"]["alarms"]) == ("violated", 1)
    assert "P4" in "\n".join(report_power.healthy_lines(accused))


@pytest.mark.parametrize("reported", [[], [79], [78, 79, 168]])
def test_a_canary_that_is_not_reported_on_its_seeds_alone_is_no_pass(reported: list[int]) -> None:
    asked = Asked(only=(NAME,), seeds=1, cross=0, engines=("sim",))
    planned = [trial for trial in trials.trials(asked) if trial.part != "healthy"]
    made = [
        outcome(trial, PROMISE)
        if trial.part == "intended" or trial.seed in reported
        else outcome(trial)
        for trial in planned
    ]
    record = record_of(asked, planned, made)

    assert record["canary"]["expected"] == [79, 168]
    assert record["canary"]["wrong"]
    assert record["verdict"] == "violated"


def test_healthy_runs_are_three_hundred_and_begin_with_the_commands_of_the_gallery() -> None:
    runs = list(trials.healthy(Asked()))
    mine = {trial.options for trial in runs if (trial.target, trial.engine) == ("minimal", "sim")}
    wanted = {
        gallery.fault(name).options
        for name in gallery.names()
        if (gallery.fault(name).control, gallery.fault(name).engine) == ("minimal", "sim")
    }

    assert len(runs) == 300
    assert len({trial.key for trial in runs}) == 300
    assert len(mine & wanted) == min(len(wanted), 50)


def test_a_slice_has_every_quick_queue_once_and_a_few_with_processes() -> None:
    found = trials.faults(Asked(is_slice=True))
    quick = [name for name in gallery.names() if gallery.fault(name).engine != "proc"]

    assert {fault.name for fault in found} >= set(quick)
    assert sum(fault.engine == "proc" for fault in found) == trials.SLICE_PROC_MAX


def test_what_a_slice_must_find_has_time_on_a_slow_machine_and_ends_before_it_is_killed() -> None:
    planned = trials.trials(Asked(is_slice=True))
    must = [t for t in planned if t.part == "intended" or (t.part == "canary" and sings(t.seed))]
    searches = [trial for trial in must if trial.engine == "sim"]

    assert {trial.part for trial in searches} == {"intended", "canary"}
    assert all(trial.options[-2:] == trials.PATIENCE for trial in searches)
    assert seconds_of(trials.PATIENCE[1]) < trials.LIMIT_SECONDS_MIN


def test_a_run_goes_on_where_it_was_interrupted(place: Path) -> None:
    planned = trials.trials(ASKED)
    lines = [json.dumps(one.record()) for one in caught(planned)]
    (place / running.OUTCOMES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = running.make(planned, place, seconds=60, lanes=0, show=lambda _turn: None)

    assert record_of(ASKED, planned, made.outcomes)["verdict"] == "pass"


def test_a_run_for_which_the_machine_had_no_time_is_made_again_and_no_other() -> None:
    (trial,) = trials.trials(Asked(seeds=1, only=(NAME,), cross=0, healthy=False))
    why = "the supervisor was starved of CPU for 978 ms"

    assert running.is_starved(outcome(trial, verdict="unknown", why=why))
    assert not running.is_starved(outcome(trial, verdict="unknown", why="nothing was checked"))
    assert not running.is_starved(outcome(trial, PROMISE))


def test_a_run_for_which_there_never_was_time_is_no_miss_and_one_made_again_is_told() -> None:
    planned = trials.trials(ASKED)
    made = caught(planned)
    why = "the supervisor was starved of CPU"
    made[3] = running.settled(outcome(planned[3], verdict="unknown", why=why), 3)
    made[4] = running.settled(made[4], 2)
    record = record_of(ASKED, planned, made)

    assert (record["verdict"], record["missed"]) == ("unknown", [])
    assert "starved of CPU, 3 times" in record["problems"][0]
    assert any("3 runs found nothing while" in line for line in report_power.seeds_lines(record))


def test_a_store_of_other_code_or_of_something_else_is_refused(place: Path) -> None:
    (place / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="is not empty: give a new folder"):
        place_of(place)
    (place / CODE).write_text("of old", encoding="utf-8")
    with pytest.raises(ValueError, match="other code"):
        place_of(place)
    with pytest.raises(ValueError, match="cannot be made"):
        place_of(place / "mine.txt")


def test_two_runs_do_not_share_a_store(place: Path) -> None:
    folder = place_of(place)

    with alone(folder), pytest.raises(ValueError, match="in use by another run"), alone(folder):
        pass
    with alone(folder):
        pass


def test_engines_that_must_find_none_of_the_queues_are_refused_and_no_pass() -> None:
    with pytest.raises(ValueError, match="add --engine sim"):
        trials.faults(Asked(only=(NAME,), engines=("proc",)))


def test_an_unknown_queue_is_refused_with_the_way_to_the_list() -> None:
    with pytest.raises(ValueError, match=r"--only 'nosuch' is no broken queue: .*gallery"):
        trials.faults(Asked(only=("nosuch",)))


def test_evidence_is_kept_of_what_nobody_expected_alone() -> None:
    (trial,) = trials.trials(Asked(seeds=1, only=(NAME,), cross=0, healthy=False))
    healthy = next(trials.healthy(Asked()))

    assert is_expected(outcome(trial, PROMISE))
    assert not is_expected(outcome(trial))
    assert is_expected(outcome(healthy))
    assert not is_expected(outcome(healthy, "P1"))


def test_the_report_names_command_machine_and_limits_and_loads_nothing(place: Path) -> None:
    planned = trials.trials(ASKED)
    made = caught(planned)
    made[7] = outcome(planned[7])
    record = whole(record_of(ASKED, planned, made))
    page = report_power.write_reports(record, place / "power.md").read_text(encoding="utf-8")
    text = (place / "power.md").read_text(encoding="utf-8")

    for told in (text, page):
        assert "killproof chaos power" in told
        assert "3.40" in told
        assert "What this does not show" in told
        assert "19/20" in told
    assert "✗ 19/20" in page, "what a colour says, a sign says too"
    assert re.search(r"(src|href)=\"(https?:)?//", page) is None
    assert "<script" not in page
