"""One verdict of many engines: how a budget is dealt, what shards add up to, what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from killproof_chaos import prove_command, resuming, targets
from killproof_chaos.cli import app
from killproof_chaos.prove import dealing, stores
from killproof_chaos.prove.dealing import Asked, Facts, Plan, Run
from killproof_chaos.prove.running import FAILED, Outcome
from killproof_chaos.prove.verdict import Case, Made, lacking, record_of
from killproof_chaos.report_prove import write_report
from killproof_chaos.targets import public
from killproof_evidence.contract import Contract
from killproof_evidence.finding import WITNESSES_MAX
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.records import RecordWriter
from killproof_evidence.store import Store, StoreError, write_json

FACTS = Facts(name="killproof", level=3, phases=54, operations=55, has_steps=True)
PUBLIC = Facts(name="litequeue", level=1, phases=3, operations=2, has_steps=False)
ASKED = Asked(target="killproof", budget=300.0, seed=7)
CONTRACT = Contract(promises={"P1": "process", "P6": True})
STARVED = "the supervisor was starved of CPU for 900 ms"


def verdict(engine: str, *, missed: Sequence[str] = (), because: Sequence[str] = (),
            **found: str) -> dict[str, Any]:  # fmt: skip
    """A verdict.json in which the promises of `found` have these words, and no other is made."""
    because = [*because, *(f"obligation missed: {name}" for name in missed)]
    words = set(found.values())
    word = "violated" if "violated" in words else "unknown" if because else "pass"
    return {
        "target": "queue", "engine": engine, "verdict": word, "unknown_because": because,
        "properties": {
            entry.number: {
                "verdict": found.get(entry.number, "not_promised"),
                "checked": 5,
                "witnesses": [{"job": "1", "story": f"<b>{entry.number} broke", "lines": []}]
                if found.get(entry.number) == "violated" else [],
            } | ({"reason": "no case"} if found.get(entry.number) == "unknown" else {})
            for entry in PROPERTIES
        },
        "coverage": {"obliged": 10, "hit": 10 - len(missed), "missed": list(missed)},
        "counts": {"kills": 3}, "jobs": {"enqueued": 20}, "faults": {"kill": 3},
        "recovery_ms": {}, "replay": f"killproof chaos {engine} --target queue",
    }  # fmt: skip


def run(engine: str, number: int = 1, *, owed: bool = True, shard: int = 1) -> Run:
    words = ("--seed", str(number))
    return Run(name=f"{number:02}-{engine}", engine=engine, words=words, seconds=9.0, owed=owed,
               shard=shard)  # fmt: skip


def made(of: Run, record: dict[str, Any] | None, why: str = "") -> Made:
    word = FAILED if record is None else record["verdict"]
    return Made(outcome=Outcome(run=of, verdict=word, began=0, seconds=8, why=why), record=record)


def case(*made: Made, owed: Sequence[Run] = (), contract: Contract = CONTRACT, shards: int = 1,
         here: Sequence[int] = (1,), **left_out: str) -> Case:  # fmt: skip
    runs = (*(one.outcome.run for one in made), *owed)
    asked = replace(ASKED, shards=shards)
    plan = Plan(asked=asked, runs=runs, left_out=left_out)
    return Case(plan=plan, target="queue", contract=contract, made=made, shards=here)


def test_a_promise_that_any_engine_found_violated_is_violated_and_can_be_replayed() -> None:
    found = record_of(
        case(
            made(run("proc"), verdict("proc", P1="pass", P6="pass")),
            made(run("disk", 2), verdict("disk", P1="violated", P6="pass")),
        )
    )

    assert (found["verdict"], found["properties"]["P1"]["verdict"]) == ("violated", "violated")
    assert found["properties"]["P1"]["found_by"] == ["disk"]
    assert found["properties"]["P1"]["judged_by"] == {"disk": "violated", "proc": "pass"}
    assert found["replays"] == [
        {"promise": "P1", "engine": "disk", "run": "02-disk",
         "command": "killproof chaos disk --target queue --fail-fast"}
    ]  # fmt: skip


def test_each_engine_that_shows_a_violation_keeps_a_witness_of_it() -> None:
    """Else the story of one engine would stand beside the command of another."""
    crowd, alone = verdict("proc", P1="violated"), verdict("crash", P1="violated")
    crowd["properties"]["P1"]["witnesses"] *= 2 * WITNESSES_MAX
    found = record_of(case(made(run("proc"), crowd), made(run("crash", 2), alone)))

    engines = [witness["engine"] for witness in found["properties"]["P1"]["witnesses"]]
    assert len(engines) == WITNESSES_MAX
    assert engines[:3] == ["proc", "crash", "proc"]


@pytest.mark.parametrize(("owed", "verdict_of_both"), [(6, "pass"), (7, "unknown")])
def test_the_kills_of_several_runs_add_up_to_those_that_are_owed(
    owed: int, verdict_of_both: str
) -> None:
    short = verdict("proc", P1="pass", P6="pass", missed=[f"{owed} kills that hit"])  # Of 3 kills.

    assert record_of(case(made(run("proc"), short)))["verdict"] == "unknown"
    both = record_of(case(made(run("proc"), short), made(run("proc", 2), short)))
    assert both["verdict"] == verdict_of_both


def test_what_only_one_engine_found_without_its_obligations_is_no_pass() -> None:
    missed = verdict("proc", P1="pass", P6="pass", missed=["kill@claim.locked"])
    short = record_of(case(made(run("proc"), missed)))
    met = verdict("proc", P1="pass", P6="pass")
    both = record_of(case(made(run("proc"), missed), made(run("proc", 2), met)))

    assert short["verdict"] == "unknown"
    assert "obligation missed: proc: kill@claim.locked" in short["unknown_because"]
    assert short["properties"]["P1"]["verdict"] == "unknown"
    assert (both["verdict"], both["coverage"]) == (
        "pass",
        {"obliged": 10, "hit": 10, "missed": []},
    )


def test_a_level_of_power_is_shown_by_the_engine_that_cuts_the_power_and_no_other() -> None:
    contract = Contract(promises={"P1": "power"})
    killed = made(run("proc"), verdict("proc", P1="pass"))
    without = record_of(case(killed, contract=contract))
    cut = made(run("disk", 2), verdict("disk", P1="pass"))
    whole = record_of(case(killed, cut, contract=contract))

    assert (without["verdict"], without["level"]) == ("unknown", "process")
    assert (whole["verdict"], whole["level"]) == ("pass", "power")


def test_a_promise_that_nobody_judged_and_a_run_that_was_owed_leave_it_unknown() -> None:
    judged = made(run("disk"), verdict("disk", P1="pass", P6="not_judged"))
    alone = record_of(case(judged))
    late = record_of(
        case(made(run("sim"), verdict("sim", P1="pass", P6="pass")), owed=[run("proc", 2)])
    )
    spare = run("proc", 2, owed=False)
    extra = record_of(case(made(run("sim"), verdict("sim", P1="pass", P6="pass")), owed=[spare]))
    failed = record_of(
        case(made(run("sim"), verdict("sim", P1="pass", P6="pass")),
             made(run("proc", 2), None, "it said nothing"))
    )  # fmt: skip

    assert alone["unknown_because"] == ["P6: no engine that was run judges it"]
    assert late["unknown_because"] == ["proc was not run: the time ended first"]
    assert failed["unknown_because"] == [
        "proc failed, which says nothing of the queue: it said nothing"
    ]
    assert (extra["verdict"], [one["name"] for one in extra["not_made"]]) == ("pass", ["02-proc"])


def test_a_machine_without_time_is_forgiven_where_a_run_of_the_engine_had_some() -> None:
    poor = made(run("proc"), verdict("proc", P1="pass", P6="pass", because=[STARVED]))
    other = made(run("sim", 2), verdict("sim", P1="pass", P6="pass"))
    again = made(run("proc", 3), verdict("proc", P1="pass", P6="pass"))

    assert record_of(case(poor, other))["unknown_because"] == [f"proc: {STARVED}"]
    assert lacking(case(poor, other)) == ["proc"]
    assert record_of(case(poor, other, again))["verdict"] == "pass"
    assert lacking(case(poor, other, again)) == []


def test_what_a_run_was_cut_short_of_is_met_by_one_that_was_not_and_by_nothing_else() -> None:
    """An engine whose every point is owed is run again for the machine's sake, not for its own."""
    cut = made(run("crash"), verdict("crash", P1="pass", P6="pass", missed=["ack 7"],
                                     because=["the run was interrupted"]))  # fmt: skip
    whole = made(run("crash", 2), verdict("crash", P1="pass", P6="pass"))
    short = made(run("crash", 2), verdict("crash", P1="pass", P6="pass", missed=["ack 7"]))

    assert record_of(case(cut))["verdict"] == "unknown"
    assert lacking(case(cut)) == ["crash"]
    assert record_of(case(cut, whole))["verdict"] == "pass"
    assert record_of(case(cut, whole))["coverage"] == {"obliged": 10, "hit": 10, "missed": []}
    assert record_of(case(short, whole))["verdict"] == "unknown"
    assert lacking(case(short)) == []


def test_a_budget_is_dealt_the_same_way_for_every_shard_and_each_run_once() -> None:
    alone = dealing.plan(ASKED, FACTS)
    shared = dealing.plan(replace(ASKED, shards=4), FACTS)
    parts = [shared.of_shard(number) for number in range(1, 5)]

    assert [one.engine for one in alone.runs if one.owed] == list(dealing.ENGINES)
    assert sum(one.seconds for one in alone.runs) <= ASKED.budget
    assert sorted(one.name for part in parts for one in part) == [one.name for one in shared.runs]
    assert all(sum(one.seconds for one in part) <= ASKED.budget for part in parts)
    assert len(shared.runs) > len(alone.runs)
    assert len({(one.engine, one.words) for one in shared.runs}) == len(shared.runs)
    assert dealing.plan(replace(ASKED, shards=4), FACTS).key == shared.key
    assert dealing.plan(replace(ASKED, seed=8, shards=4), FACTS).key != shared.key
    assert Plan.of_record(json.loads(json.dumps(shared.record()))) == shared


def test_what_does_not_fit_into_a_budget_or_cannot_judge_the_target_is_told() -> None:
    small = dealing.plan(replace(ASKED, budget=55.0), FACTS)

    assert list(small.left_out) == ["crash", "sim", "model"]
    assert [one.engine for one in small.runs] == ["proc", "disk"]
    assert dealing.able(PUBLIC) == ("proc", "crash", "disk")
    with pytest.raises(ValueError, match=r"--budget 2s is too small for any engine: give \d+s"):
        dealing.plan(replace(ASKED, budget=2.0), FACTS)
    with pytest.raises(ValueError, match="--engine 'sim' cannot judge litequeue: use proc, crash"):
        dealing.plan(replace(ASKED, engines=("sim",)), PUBLIC)


def shard_store(path: Path, number: int, record: dict[str, Any], **changes: Any) -> Path:
    """The store of one of two shards, with one run in it."""
    runs = tuple(run("proc", each, shard=each) for each in (1, 2))
    plan = Plan(asked=replace(ASKED, shards=2), runs=runs, left_out={})
    store = Store.create(path)
    store.write_contract(changes.pop("contract", CONTRACT))
    facts = {
        "target": "queue", "engine": "prove", "seed": 7, "started": 1.7e9, "ended": 1.7e9 + 60,
        "argv": ["killproof", "chaos", "prove", "queue", "--shard", f"{number}/2"],
        "plan": plan.record(), "shard": number, "version": "0", "code": "c",
        "replay": "killproof chaos prove queue", "interrupted": False,
    }  # fmt: skip
    store.write_run(facts | changes)
    of = runs[number - 1]
    (place := path / "runs" / of.name).mkdir(parents=True)
    write_json(place / "verdict.json", record)
    log = RecordWriter(path / "outcomes.jsonl")
    log.append(made(of, record).outcome.record())
    log.close()
    return path


def test_the_shards_of_a_campaign_make_one_verdict_and_a_missing_one_is_named(
    tmp_path: Path,
) -> None:
    good = verdict("proc", P1="pass", P6="pass")
    one, two = (shard_store(tmp_path / str(n), n, good) for n in (1, 2))
    bad = shard_store(tmp_path / "bad", 2, verdict("proc", P1="violated", P6="pass"))
    ask = CliRunner()

    def merge(into: str, *given: Path) -> Any:
        words = ["merge", *map(str, given), "--store", str(tmp_path / into), "--json", "--report"]
        return ask.invoke(app, words)

    whole, part, broken = merge("a", one, two), merge("b", one), merge("c", bad, one)
    told = json.loads(part.stdout.splitlines()[-1])

    assert (whole.exit_code, part.exit_code, broken.exit_code) == (0, 2, 1)
    assert json.loads(whole.stdout.splitlines()[-1])["counts"]["runs"] == 2
    assert "missing of 2 shards: 2" in told["unknown_because"]
    page = (tmp_path / "c/report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;P1 broke" in page
    assert "<b>P1" not in page
    assert "P1 broke" in (tmp_path / "c/prove.md").read_text(encoding="utf-8")
    assert ask.invoke(app, ["check", str(tmp_path / "c"), "--no-report"]).exit_code == 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"target": "another"}, "target"),
        ({"version": "1"}, "version of killproof"),
        ({"code": "d"}, "code"),
        ({"contract": Contract(promises={"P1": "power"})}, "contract"),
        ({"plan": Plan(asked=ASKED, runs=(), left_out={}).record()}, "plan"),
    ],
)
def test_a_shard_of_another_campaign_is_refused(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    good = verdict("proc", P1="pass", P6="pass")
    one, other = (
        shard_store(tmp_path / "1", 1, good),
        shard_store(tmp_path / "2", 2, good, **changes),
    )

    with pytest.raises(ValueError, match=f"is of another {word} than"):
        stores.refuse([stores.read(one), stores.read(other)])
    with pytest.raises(ValueError, match="shard 1 is there twice"):
        stores.refuse([stores.read(one), stores.read(one)])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", '{"engine": "prove", "plan": 3}'),
        ("run.json", '{"engine": "prove", "plan"'),
        ("outcomes.jsonl", "{}\n"),
        ("outcomes.jsonl", "rubbish\n{}\n"),
        ("outcomes.jsonl", '{"run": {"name": "../x"}}\n'),
        ("outcomes.jsonl", None),  # The line of the run twice: its kills would count double.
    ],
)
def test_a_shard_that_is_damaged_is_refused_by_its_name(
    tmp_path: Path, file: str, text: str | None
) -> None:
    place = shard_store(tmp_path / "one", 1, verdict("proc", P1="pass", P6="pass"))
    path = place / file
    path.write_text(path.read_text("utf-8") * 2 if text is None else text, "utf-8")

    with pytest.raises(StoreError, match="one"):
        stores.read(place)


def test_a_shard_whose_process_was_killed_or_whose_run_cannot_be_read_is_unknown(
    tmp_path: Path,
) -> None:
    good = verdict("proc", P1="pass", P6="pass")
    killed, unread = (shard_store(tmp_path / name, 1, good) for name in ("killed", "unread"))
    with (killed / "outcomes.jsonl").open("a") as log:
        log.write('{"run": {"na')
    (unread / "runs/01-proc/verdict.json").write_text("{}", "utf-8")

    told = [record_of(stores.case_of([stores.read(place)])) for place in (killed, unread)]

    assert [each["verdict"] for each in told] == ["unknown", "unknown"]
    assert "the run was interrupted" in told[0]["unknown_because"]
    assert any("lacks counts" in each for each in told[1]["unknown_because"])


def test_a_record_that_cannot_be_written_leaves_the_old_one_and_no_half(tmp_path: Path) -> None:
    """Here it cannot because a folder is in its place; a full disk ends it the same way."""
    (tmp_path / "verdict.json").mkdir()

    with pytest.raises(OSError, match=r"verdict\.json"):
        write_json(tmp_path / "verdict.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["verdict.json"]


def test_another_script_beside_an_adapter_is_other_code(tmp_path: Path) -> None:
    """What older code has found says nothing of this one, in whatever language that was."""
    adapter, script = tmp_path / "q.py", tmp_path / "q.mjs"
    adapter.write_text("target = None\n", encoding="utf-8")
    words = {prove_command.code_of(str(adapter))}
    for text in ("1;\n", "2;\n"):
        script.write_text(text, encoding="utf-8")
        words.add(prove_command.code_of(str(adapter)))
    folder = Path(next(iter(public.__path__)))
    kinds = {path.suffix for path in folder.iterdir() if path.is_file()}

    assert len(words) == 3
    assert {f"*{kind}" for kind in kinds} <= set(resuming.SOURCES)


def test_a_shard_alone_says_nothing_of_what_the_others_have(tmp_path: Path) -> None:
    judged = made(run("disk"), verdict("disk", P1="pass", P6="not_judged"))
    other = run("proc", 2, shard=2)
    found = record_of(replace(case(judged, owed=[other], shards=2), is_part=True))

    assert (found["verdict"], found["properties"]["P6"]["verdict"]) == ("pass", "not_judged")
    (tmp_path / "store").mkdir()
    path = shard_store(tmp_path / "store/1", 1, verdict("disk", P1="pass"))
    write_json(path / "verdict.json", found | {"version": "0", "started": 0.0, "budget": 60.0})
    assert "Shard 1 of 2: No violation" in write_report(path).read_text(encoding="utf-8")


def test_all_targets_have_a_plan() -> None:
    for name in ("killproof", "minimal", "litequeue"):
        facts = dealing.facts_of(targets.load(name))
        plan = dealing.plan(replace(ASKED, target=name), facts)

        assert {one.engine for one in plan.runs} == set(dealing.able(facts))
