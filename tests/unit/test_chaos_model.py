"""The engine `model`: each guard missed, each promise judged, symmetry and termination sound."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import killproof.core
from killproof.core.model import EDGES
from killproof_chaos.cli import app
from killproof_chaos.engines import model
from killproof_chaos.engines.model_promises import CHECKS, JUDGED
from killproof_chaos.engines.model_protocol import (
    ACTIONS,
    GUARDS,
    STALE,
    Job,
    Lease,
    Rules,
    State,
    offered,
)
from killproof_chaos.engines.model_search import (
    Found,
    Scope,
    Step,
    components,
    first,
    key,
    search,
)
from killproof_chaos.engines.model_words import diagram, numbered, story, told
from killproof_chaos.report_model import write_markdown
from killproof_chaos.targets import load
from killproof_evidence.contract import DELETED, TERMINAL, Contract
from killproof_evidence.store import Store

CONTRACT = load("killproof").contract
LEASES = Scope(workers=2, jobs=1)
KEYS = Scope(workers=1, jobs=2, producers=2)


def searched(
    *without: str,
    contract: Contract = CONTRACT,
    promises: tuple[str, ...] = JUDGED,
    scope: Scope = LEASES,
) -> Found:
    return search(Rules.of(contract, without=frozenset(without)), scope, promises)


def way(found: Found, promise: str) -> list[str]:
    """The actions on the shortest way to a broken promise."""
    return [step.action for step in found.broken[promise].steps]


# The protocol as it stands.


@pytest.fixture(scope="module")
def sound() -> Found:
    return searched()


def test_the_protocol_keeps_every_promise_in_every_state(sound: Found) -> None:
    assert sound.exhausted
    assert sound.broken == {}
    assert sound.states > 500


def test_keys_shared_by_two_producers_keep_every_promise() -> None:
    found = searched(scope=KEYS)

    assert found.exhausted
    assert found.broken == {}
    assert found.seen["enqueue", False] > 0  # Answers were lost.


def test_every_action_of_the_protocol_happens_and_every_guard_refuses(sound: Found) -> None:
    done = {name for name, was_done in sound.seen if was_done}
    refused = {name for name, was_done in sound.seen if not was_done}

    assert done == {action.name for action in ACTIONS} - {"effect"}
    assert refused == set(model.REFUSED)


# Each guard.

MISSED = {
    "claim.state": "P7",
    "claim.count": "P8",
    "claim.fence": "P5",
    "ack.fence": "P5",
    "ack.state": "P5",
    "nack.fence": "P5",
    "nack.state": "P5",
    "nack.bound": "P8",
    "extend.fence": "P5",
    "extend.state": "P5",
    "release.fence": "P5",
    "release.state": "P5",
    "snooze.fence": "P5",
    "snooze.state": "P5",
    "complete.fence": "P5",
    "complete.state": "P5",
    "complete.together": "P6",
    "hold_leased.fence": "P5",
    "hold_leased.state": "P5",
    "reap.fence": "P7",
    "reap.deadline": "P4",
    "reap.bound": "P8",
    "reap.expiry": "P17",
    "cancel.state": "P7",
    "replay.state": "P7",
    "replay.key": "P12",
    "enqueue.key": "P12",
}


@pytest.mark.parametrize("guard", GUARDS)
def test_the_fault_is_found_when_a_guard_is_gone(guard: str) -> None:
    found = searched(guard, scope=KEYS if guard.endswith(".key") else LEASES)

    assert MISSED[guard] in found.broken
    assert len(way(found, MISSED[guard])) <= 12


#: For each promise, a guard without which it alone would tell.
ALONE = {
    "P4": "reap.deadline",
    "P5": "ack.fence",
    "P6": "complete.together",
    "P7": "cancel.state",
    "P8": "claim.count",
    "P12": "enqueue.key",
    "P15": "claim.state",
    "P17": "nack.bound",
}


@pytest.mark.parametrize("promise", JUDGED)
def test_each_promise_alone_sees_what_breaks_it(promise: str) -> None:
    guard = ALONE[promise]
    scope = KEYS if guard.endswith(".key") else LEASES

    assert set(searched(guard, promises=(promise,), scope=scope).broken) == {promise}


def test_a_zombie_that_acks_after_its_successor_claimed_is_the_shortest_way() -> None:
    found = searched("ack.fence", contract=load("minimal").contract)

    assert way(found, "P5") == [
        *("enqueue", "look", "look", "claim", "expire_running", "suspect", "reap", "claim", "ack"),
    ]


def test_a_reaper_that_does_not_repeat_the_deadline_takes_a_lease_that_was_prolonged() -> None:
    found = searched("reap.deadline")

    assert way(found, "P4")[-4:] == ["suspect", "extend", "reap", "claim"]


def test_without_a_crash_the_effect_apart_from_the_ack_still_happens_twice() -> None:
    """A stopped worker is enough; no crash is allowed here."""
    found = searched("complete.together", scope=replace(LEASES, crashes=0))

    assert "P6" in found.broken
    assert found.seen["crash", True] == 0


def test_crashes_are_counted_when_they_are_bounded() -> None:
    assert searched(scope=replace(LEASES, crashes=0)).seen["crash", True] == 0
    once = searched(scope=replace(LEASES, crashes=1))

    assert once.seen["crash", True] > 0
    assert once.exhausted
    assert once.broken == {}


def test_without_people_nobody_cancels_and_no_cancel_is_judged() -> None:
    rules = Rules.of(CONTRACT, people=False)
    found = search(rules, LEASES, JUDGED)

    assert found.exhausted
    assert {"cancel", "hold", "hold_leased", "unhold", "replay"}.isdisjoint(
        {name for name, _ in found.seen}
    )
    assert set(JUDGED) - set(model.promises_of(rules)) == {"P15"}


def test_the_search_ends_with_the_states_as_deep_as_the_first_fault() -> None:
    found = searched("cancel.state")

    assert len(way(found, "P7")) == 5
    assert found.depth == 5
    assert not found.exhausted


# Termination.


def test_a_job_that_is_retried_for_ever_never_ends() -> None:
    """A circle, not a dead end: something always goes on."""
    found = searched("nack.bound", promises=("P17",))

    assert "may never end: all goes round for ever" in found.broken["P17"].sentence


def test_a_stopped_worker_holds_its_job_for_ever_when_nobody_looks_at_deadlines() -> None:
    found = searched("reap.expiry")

    assert way(found, "P17")[-2:] == ["pause", "expire"]
    assert found.broken["P17"].sentence.startswith("job 1 is leased")


def test_a_circle_without_progress_is_fair_only_if_nothing_is_left_out() -> None:
    """Who extends for ever ends some day: the same circle without that word is a fault."""
    assert searched(promises=("P17",)).broken == {}
    assert sorted(map(sorted, components([[0, 1], [2], [1], []]))) == [[0], [1, 2], [3]]


# Soundness of the reductions.


def states_of(scope: Scope, rules: Rules, enough: int = 1_000) -> list[State]:
    """The states of a scope that are reached first, one of each family."""
    found = {key(rules, first(scope)): first(scope)}
    todo = list(found.values())
    for state in todo:
        for action in offered(rules):
            for move in action.moves(rules, state):
                if found.setdefault(key(rules, move.state), move.state) is move.state:
                    todo.append(move.state)
        if len(todo) > enough:
            break
    return todo


def following(rules: Rules, state: State) -> set[tuple[str, bool, object]]:
    return {
        (action.name, move.done, key(rules, move.state))
        for action in offered(rules)
        for move in action.moves(rules, state)
    }


def renamed(state: State, jobs: tuple[int, ...], workers: tuple[int, ...]) -> State:
    """The state with jobs and workers swapped, and all fences raised by 7."""
    moved = {old: new for new, old in enumerate(jobs)}
    raised = [state.jobs[old] for old in jobs]
    hands = [state.workers[old] for old in workers]
    belief = state.belief
    return state._replace(
        jobs=tuple(job._replace(fence=job.fence + 7) for job in raised),
        workers=tuple(
            None
            if hand is None
            else hand._replace(job=moved[hand.job], fence=hand.fence + 7)
            if isinstance(hand, Lease)
            else hand._replace(job=moved[hand.job])
            for hand in hands
        ),
        belief=belief and belief._replace(job=moved[belief.job], fence=belief.fence + 7),
        doubts=tuple(None if doubt is None else moved[doubt] for doubt in state.doubts)[::-1],
    )


@pytest.mark.parametrize("scope", [LEASES, Scope(workers=2, jobs=2), KEYS])
def test_states_that_differ_by_names_and_fences_alone_go_on_alike(scope: Scope) -> None:
    rules = Rules.of(CONTRACT)
    for state in states_of(scope, rules)[::3]:
        for jobs in permutations(range(scope.jobs)):
            for workers in permutations(range(scope.workers)):
                other = renamed(state, jobs, workers)
                assert key(rules, other) == key(rules, state)
                assert following(rules, other) == following(rules, state)


def test_how_many_attempts_an_ended_job_had_changes_nothing_that_follows() -> None:
    """The control: of a job that can still run it does."""
    rules = Rules.of(CONTRACT)

    def with_attempts(word: str, count: int) -> State:
        job = Job(state=word, fence=5, deliveries=5, forgiven=5 - count, runs=count)
        return State(jobs=(job,), workers=(Lease(0, 4, truth=STALE, live=False), None))

    for word in ("succeeded", "dead", "cancelled"):
        one, two = with_attempts(word, 1), with_attempts(word, 2)
        assert key(rules, one) == key(rules, two)
        assert following(rules, one) == following(rules, two)
    assert key(rules, with_attempts("available", 0)) != key(rules, with_attempts("available", 1))


def test_states_that_differ_in_what_can_follow_have_different_keys() -> None:
    """The control: a stale lease, a lease about to run out and a used-up attempt all count."""
    rules = Rules.of(CONTRACT)
    job = Job(state="leased", fence=1, deliveries=1, lease="live", runs=1)
    plain = State(jobs=(job,), workers=(Lease(0, 1), None))
    others = [
        plain._replace(workers=(Lease(0, 0), None)),
        plain._replace(workers=(Lease(0, 1, stopped=True), None)),
        plain._replace(jobs=(job._replace(lease="expired"),)),
        plain._replace(jobs=(job._replace(deliveries=2),)),
        plain._replace(crashes=1),
    ]

    assert len({key(rules, state) for state in [plain, *others]}) == 6


# The contract.


def test_the_edges_are_the_contract_s_own_object_and_the_queue_s_own_data() -> None:
    rules = model.rules_of(model.Options(target="killproof"), CONTRACT)

    assert rules.contract is CONTRACT
    assert {
        (None if old == "start" else old, new)
        for old, targets in CONTRACT.edges.items()
        for new in targets
    } == EDGES | {(state, DELETED) for state in TERMINAL}  # What has ended may be pruned.


def test_the_edges_are_those_that_the_schema_tells() -> None:
    """Of the header's diagram, what stands in words: `held -> available | cancelled | dead`."""
    schema = (Path(killproof.core.__file__).parent / "schema.sql").read_text(encoding="utf-8")
    told = {
        (old, new)
        for olds, news in re.findall(r"^--[ +-]+>? ?([a-z, ]+) -> ([a-z |]+)", schema, re.MULTILINE)
        for old in olds.split(", ")
        for new in news.removesuffix(" by replay only").split(" | ")
    }

    assert len(told) == 20
    for old, new in told:
        assert CONTRACT.allows(old, new), (old, new)
    for old in ("blocked", "held", "dead", "cancelled", "expired"):
        assert {to for at, to in told if at == old} == set(CONTRACT.edges[old]) - {DELETED}


def without_edge(old: str, new: str) -> Contract:
    edges = {**CONTRACT.edges, old: tuple(to for to in CONTRACT.edges[old] if to != new)}
    return replace(CONTRACT, edges=edges)


@pytest.mark.parametrize(("old", "new"), [("leased", "dead"), ("retryable", "available")])
def test_a_step_that_the_contract_forbids_is_a_broken_p7(old: str, new: str) -> None:
    found = searched(contract=without_edge(old, new))

    assert set(found.broken) == {"P7"}
    assert f"from {old} to {new}" in found.broken["P7"].sentence


def test_a_queue_with_fewer_words_is_asked_for_less() -> None:
    rules = Rules.of(load("minimal").contract)
    names = {action.name for action in offered(rules)}

    assert (rules.retry, rules.lost_again) == ("scheduled", "available")
    assert names.isdisjoint({"cancel", "snooze", "hold", "replay"})
    assert searched(contract=rules.contract, promises=model.promises_of(rules)).exhausted


def test_a_contract_without_edges_is_unknown_not_broken(tmp_path: Path) -> None:
    target = tmp_path / "mine.py"
    target.write_text(MINE)
    done = command("--target", str(target), "--jobs", "1", "--store", str(tmp_path / "store"))

    assert done.exit_code == 2
    assert "unknown because P7: the contract declares no edges" in done.output


MINE = """
from killproof_chaos.report_model import write_markdown
from killproof_chaos.targets import load
from killproof_evidence.contract import DELETED, TERMINAL, Contract

target = load("minimal")
target.contract = Contract(promises={"P5": True, "P7": True})
"""


def test_only_promises_that_are_made_are_judged() -> None:
    contract = replace(CONTRACT, promises={"P5": True, "P6": "key", "P9": True})

    assert model.promises_of(Rules.of(contract)) == ("P5",)
    assert set(CHECKS) < set(JUDGED)


# Words.


def test_a_story_says_who_did_what_and_what_was_refused() -> None:
    rules = Rules.of(CONTRACT, without=frozenset({"reap.deadline"}))
    found = search(rules, LEASES, JUDGED)

    lines = [numbered(line) for line in story(rules, found.broken["P4"])]

    assert lines == [
        "  1  p1       enqueues job 1: available",
        "  2  w1       sees job 1 available",
        "  3  w2       sees job 1 available",
        "  4  w1       claims job 1: fence 1, attempt 1 of 2",
        "  5  time     the lease on job 1 runs out: the heartbeat of its holder is late",
        "  6  reaper   sees that the lease on job 1 is lost: its time is over",
        "  7  w1       extends its lease on job 1 with fence 1",
        "  8  reaper   takes job 1 back, believing in fence 1: leased -> available",
        "  9  w2       claims job 1: fence 2, attempt 2 of 2",
    ]
    assert found.broken["P4"].sentence == ("w2 holds job 1, and the lease of w1 on it still runs")


def test_every_step_has_words(sound: Found) -> None:
    """Also those that are on no shortest way."""
    rules = Rules.of(CONTRACT)
    for scope in (LEASES, KEYS):
        for state in states_of(scope, rules)[::2]:
            for action in offered(rules):
                for move in action.moves(rules, state):
                    assert len(told(rules, Step(action.name, state, move))) > 8
    assert diagram(sound.edges).startswith("stateDiagram-v2\n    available --> cancelled: cancel")


def test_the_same_search_gives_the_same_bytes_under_another_hash_seed() -> None:
    script = (
        "from killproof_chaos.engines.model_promises import JUDGED\n"
        "from killproof_chaos.engines.model_protocol import Rules\n"
        "from killproof_chaos.engines.model_search import Scope, search\n"
        "from killproof_evidence.contract import Contract\n"
        "rules = Rules.of(Contract(edges={}), without=frozenset({'claim.count', 'ack.state'}))\n"
        "found = search(rules, Scope(workers=2, jobs=2), JUDGED)\n"
        "print(found.seen, sorted(found.edges), found.broken)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(printed) == 1
    assert b"'P5'" in printed.pop()


# The command.


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["model", *words])


def test_a_clean_search_ends_with_0_and_says_what_it_does_not_show(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = command("--target", "minimal", "--jobs", "1", "--store", str(store), "--diagram")

    assert done.exit_code == 0, done.output
    assert "no violation found in" in done.output
    assert "this is the protocol, not the code" in done.output
    assert "leased --> succeeded: ack, complete" in done.output
    assert "No job is lost" not in done.output  # Nothing here would bear that out.
    record = Store(store).read_verdict()
    assert (record["engine"], record["exhausted"], record["verdict"]) == ("model", True, "pass")
    assert record["coverage"]["missed"] == []
    assert record["properties"]["P9"]["verdict"] == "not_judged"
    assert Store(store).read_contract().edges == load("minimal").contract.edges


def test_a_broken_promise_ends_with_1_and_its_story(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = command("--jobs", "1", "--without", "cancel.state", "--store", str(store), "--json")

    assert done.exit_code == 1
    record = json.loads(done.stdout)
    (witness,) = record["properties"]["P7"]["witnesses"]
    assert "from succeeded to cancelled" in witness["story"]
    assert [line["line"] for line in witness["lines"]] == [1, 2, 3, 4, 5]
    assert len((store / "traces/P7.jsonl").read_text().splitlines()) == 5
    again = CliRunner().invoke(app, ["check", str(store)])
    assert again.exit_code == 1
    assert "violated P7" in again.output
    refused = CliRunner().invoke(app, ["replay", str(store)])
    assert isinstance(refused.exception, ValueError)
    assert "--without cancel.state" in str(refused.exception)


def test_the_report_tells_each_search_and_each_guard(tmp_path: Path) -> None:
    for name, words in (("whole", ()), ("without", ("--without", "reap.deadline"))):
        command("--target", "minimal", "--jobs", "1", "--store", str(tmp_path / name), *words)
    write_markdown([tmp_path / "whole", tmp_path / "without"], tmp_path / "model.md")

    text = (tmp_path / "model.md").read_text()
    assert "| leases | 2 | 1 | 0 | yes | pass |" in text
    assert "| `reap.deadline` | a reaper repeats that the deadline has not moved | P4 | 9 |" in text
    assert "  9  w2       claims job 1: fence 2, attempt 2 of 2" in text
    assert "That the code does what the protocol says" in text


@pytest.mark.parametrize("words", [("--crashes", "0"), ("--workers", "1"), ("--no-people",)])
def test_a_small_world_owes_only_what_can_happen_in_it(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = command("--target", "minimal", "--jobs", "1", "--store", str(tmp_path / "store"), *words)

    assert done.exit_code == 0, done.output


def test_every_form_of_a_verdict_says_that_it_is_not_about_the_code(tmp_path: Path) -> None:
    """The code of this queue has no fence, and its contract says that it has one."""
    store, junit = tmp_path / "store", tmp_path / "junit.xml"
    summary = tmp_path / "summary.md"
    words = ["--target", "ack-without-fence", "--jobs", "1", "--store", str(store)]
    done = CliRunner().invoke(
        app,
        ["model", *words, "--junit", str(junit)],
        env={"GITHUB_STEP_SUMMARY": str(summary), "COLUMNS": "200"},
    )

    assert done.exit_code == 0
    assert "its code does not run here" in done.output
    headline = "of the protocol that its contract describes, not of its code"
    row = "One worker at a time holds a job, in the contract's protocol"
    assert headline in " ".join(done.output.split())
    assert headline in summary.read_text()
    for text in (done.output, junit.read_text(), summary.read_text()):
        assert row in text
    record = Store(store).read_verdict()
    assert f"of {record['about']}" == headline
    judged = [found for found in record["properties"].values() if found["verdict"] == "pass"]
    assert {found["about"] for found in judged} == {record["about"]}


def test_a_search_that_is_cut_short_is_unknown(tmp_path: Path) -> None:
    done = command("--states", "100", "--store", str(tmp_path / "store"))

    assert done.exit_code == 2
    assert "more than 100 states: raise --states" in done.output


@pytest.mark.parametrize(
    ("words", "named"),
    [(("--without", "nope"), "nope"), (("--workers", "9"), "9"), (("--jobs", "0"), "0")],
)
def test_wrong_input_is_named_and_nothing_is_written(
    words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    done = command(*words, "--store", str(store))

    assert isinstance(done.exception, ValueError)
    assert named in str(done.exception)
    assert not store.exists()


def test_the_guards_are_listed_with_what_they_prevent() -> None:
    listed = command("--guards").output.splitlines()

    assert [line.split()[0] for line in listed] == list(GUARDS)
