"""What `killproof bench peers` counts, compares and says, with made-up numbers."""

import ast
import subprocess
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from killproof_bench.measure import Samples
from killproof_bench.peers import catalog, judging, report
from killproof_bench.peers.drivers import loop
from killproof_bench.peers.processes import Contender, Outcome, environment
from killproof_bench.peers.result import Comparison, PeerCell, from_json
from killproof_bench.peers.run import Plan, order
from killproof_bench.result import Correctness, Figure, Verdict

MS = 1_000_000


def rows(*calls: tuple[int, int, int]) -> Samples:
    return np.array(calls, dtype=np.int64).reshape(-1, loop.COLUMNS)


def outcome(*calls: Samples, errors: int = 0) -> Outcome:
    return Outcome(calls=calls, facts={}, errors=errors, refused=0, empty=0, error_example="")


# The loop that drives every queue.


class Scripted:
    """A queue that answers what it was told to, and ends the run after its last answer."""

    def __init__(self, deadline: loop.Deadline, claims: list[Any], acks: list[Any]) -> None:
        self._deadline, self._claims, self._acks = deadline, claims, acks

    def claim(self) -> tuple[int, Any] | None:
        answer: tuple[int, Any] | None = self._answer(self._claims)
        return answer

    def ack(self, token: Any) -> None:
        self._answer(self._acks)

    def _answer(self, answers: list[Any]) -> Any:
        answer = answers.pop(0)
        if not self._claims:
            self._deadline.ns = 0
        if isinstance(answer, Exception):
            raise answer
        return answer

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        raise AssertionError

    def facts(self) -> Mapping[str, str]:
        raise AssertionError

    def account(self) -> Mapping[str, int]:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def driven(claims: list[Any], acks: list[Any]) -> tuple[loop.Ended, list[int]]:
    deadline = loop.Deadline()
    deadline.ns = 1 << 62
    calls = array("q", bytes(8 * loop.COLUMNS * 10))
    ended = loop.drive(Scripted(deadline, claims, acks), calls, deadline)
    return ended, calls[: ended.used * loop.COLUMNS].tolist()


def test_the_job_in_hand_is_finished_after_the_end() -> None:
    ended, calls = driven([(7, "token")], [None])

    assert (ended.used, calls[2]) == (1, 7)


def test_an_error_and_an_empty_answer_are_counted_and_their_time_is_the_jobs() -> None:
    ended, calls = driven([RuntimeError("locked"), None, (7, "a"), (8, "b")], [None, None])

    assert (ended.errors, ended.empty, ended.error_example) == (1, 1, "RuntimeError: locked")
    assert calls[2::3] == [7, 8]
    # The pause after the empty answer lies inside of the first job's time.
    assert calls[1] - calls[0] >= loop.EMPTY_SECONDS * 1e9


def test_a_refused_ack_is_no_finished_job() -> None:
    ended, calls = driven([(7, "a"), (8, "b")], [loop.Refused("7"), None])

    assert ended.refused == 1
    assert calls[2::3] == [8]


def test_a_failed_ack_is_tried_again() -> None:
    ended, calls = driven([(7, "a"), (8, "b")], [RuntimeError("locked"), None, None])

    assert ended.errors == 1
    assert calls[2::3] == [7, 8]


def test_a_job_that_was_asked_for_in_vain_until_the_end_is_recorded() -> None:
    ended, calls = driven([(7, "a"), None, RuntimeError("locked")], [None])

    assert calls[2::3] == [7, loop.UNFINISHED]
    assert ended.used == 2


# Counting.


def test_each_job_acked_once_is_right() -> None:
    calls = outcome(rows((0, 1, 1), (1, 2, 2)), rows((0, 1, 3), (1, 2, loop.UNFINISHED)))

    counted = judging.judge(calls, 10, {"waiting": 6, "claimed": 1}, ours=False)

    assert counted.correctness.verdict == "pass"
    assert (counted.acked_twice, counted.lost, counted.correctness.jobs) == (0, 0, 3)


def test_a_job_acked_twice_and_a_job_that_is_gone_are_counted_apart() -> None:
    calls = outcome(rows((0, 1, 1), (1, 2, 2)), rows((0, 1, 2)))

    counted = judging.judge(calls, 10, {"waiting": 7, "claimed": 0}, ours=False)

    assert (counted.acked_twice, counted.lost) == (1, 1)
    assert counted.correctness.because == (
        "1 jobs were acked more than once",
        "1 jobs are gone without an ack",
    )


def test_a_job_that_was_acked_and_is_still_there_is_wrong() -> None:
    counted = judging.judge(outcome(rows((0, 1, 1))), 10, {"waiting": 10, "claimed": 0}, ours=False)

    assert counted.correctness.because == ("1 jobs were acked and are still there",)


@pytest.mark.parametrize(("ours", "verdict"), [(True, "violated"), (False, "pass")])
def test_an_error_voids_our_own_run_and_is_told_of_another_queue(ours: bool, verdict: str) -> None:
    calls = outcome(rows((0, 1, 1)), errors=1)

    counted = judging.judge(calls, 10, {"waiting": 9, "claimed": 0}, ours=ours)

    assert counted.correctness.verdict == verdict


def test_a_file_that_ran_empty_tells_nothing() -> None:
    counted = judging.judge(outcome(rows((0, 1, 1))), 1, {"waiting": 0, "claimed": 0}, ours=True)

    assert counted.correctness.verdict == "unknown"


def test_a_job_that_never_ended_counts_with_its_time_and_for_no_rate() -> None:
    calls = [rows((0, 5 * MS, 1), (5 * MS, 6_000 * MS, loop.UNFINISHED)), rows((0, 3 * MS, 2))]

    cut = judging.cut(calls, 0, 2.0)

    assert cut.counts == (1, 1)
    assert max(cut.latencies) == 5_995 * MS


def test_what_ended_in_the_warm_up_is_cut_off() -> None:
    calls = [rows((0, 5 * MS, 1), (5 * MS, 20 * MS, 2))]

    assert judging.cut(calls, 10 * MS, 1.0).counts == (1,)


@pytest.mark.parametrize(
    ("mode", "synchronous", "level"),
    [
        ("wal", "FULL", "power"),
        ("delete", "EXTRA", "power"),
        ("wal", "NORMAL", "process"),
        ("wal", "OFF", "process"),
        ("memory", "OFF", "less"),
    ],
)
def test_the_level_is_what_was_read_back(mode: str, synchronous: str, level: str) -> None:
    facts = {"journal_mode": mode, "synchronous": synchronous}

    assert judging.level_of(facts) == level


@pytest.mark.parametrize("level", ["power", "process"])
def test_killproofs_level_is_what_it_found_in_its_file(level: str) -> None:
    facts = {"journal_mode": "wal", "synchronous": "NORMAL", "level": level}

    assert judging.level_of(facts) == level


def test_a_rounds_processes_share_the_hash_seed_that_was_drawn_for_it() -> None:
    told = Contender(peer=catalog.OURS[0], program=sys.executable, runtime="", packages=())
    command = told.command(loop.Spec(mode="work", arm="", folder="", level="power"))
    flags = command[: command.index(str(catalog.DRIVERS / "loop.py"))]

    def hashed(seed: int) -> str:
        program = [*flags, "-c", "print(hash('a'))"]
        return subprocess.run(
            program, env=environment(seed), capture_output=True, text=True, check=True
        ).stdout

    assert hashed(7) == hashed(7)


def cell(contender: str, verdict: Verdict) -> PeerCell:
    figure = Figure(value=1.0, low=None, high=None, n=1)
    return PeerCell(
        contender=contender,
        workers=16,
        level="power",
        jobs_per_s=figure,
        p50_ms=figure,
        p99_ms=figure,
        p999_ms=figure,
        longest_ms=1.0,
        fewest_over_most=1.0,
        acked_twice=0,
        lost=0,
        errors=0,
        empty=0,
        correctness=Correctness(verdict=verdict, because=(), jobs=1),
        card=cast(Any, None),
        rounds=(),
    )


def test_a_wrong_run_of_ours_stands_beside_nobody_and_meets_no_goal() -> None:
    theirs, right = cell("tinyjobs", "violated"), cell("killproof", "pass")
    wrong, reference = cell("killproof", "violated"), cell("reference", "violated")

    assert judging.compare([wrong, theirs]) == ()
    # What a peer does wrong is told beside its figure.
    assert [each.contender for each in judging.compare([right, reference, theirs])] == ["tinyjobs"]


def comparison(contender: str, **changed: Any) -> Comparison:
    values: dict[str, Any] = {
        "contender": contender,
        "workers": 16,
        "level": "power",
        "throughput": Figure(value=6.0, low=5.0, high=7.0, n=5),
        "p999": 0.05,
        "p999_is_bound": False,
        "longest": 0.01,
    }
    return Comparison(**(values | changed))


def test_a_goal_is_met_missed_or_not_told() -> None:
    slow = comparison("localqueue", throughput=Figure(value=4.0, low=3.0, high=5.0, n=5))

    found = judging.goals([comparison("tinyjobs"), slow], ["tinyjobs", "localqueue", "reference"])

    assert [goal.met for goal in found] == [True, True, True, False, True, True, None, None, None]


def test_a_bound_above_the_goal_tells_nothing() -> None:
    bound = comparison("tinyjobs", p999=0.2, p999_is_bound=True)

    assert judging.goals([bound], ["tinyjobs"])[1].met is None


# The plan and the catalog.


def test_every_round_runs_every_arm_once_in_an_order_of_its_own() -> None:
    plan = Plan(peers=(), workers=(1, 16), rounds=3)
    arms = [("killproof", "power"), ("tinyjobs", "power"), ("huey", "power")]

    steps = list(order(plan, arms))

    rounds = [
        [(s.contender, s.workers) for s in steps if s.number == number] for number in range(3)
    ]
    assert [sorted(each) for each in rounds] == [sorted(rounds[0])] * 3
    assert len({tuple(each) for each in rounds}) > 1
    assert [step.position for step in steps] == list(range(18))


@pytest.mark.parametrize("peer", catalog.OURS + catalog.ALL, ids=lambda peer: peer.name)
def test_each_driver_is_a_file_with_one_entrance(peer: catalog.Peer) -> None:
    tree = ast.parse(peer.driver_file.read_text(encoding="utf-8"))

    assert "open_queue" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("peer", catalog.ALL, ids=lambda peer: peer.name)
def test_what_a_queue_does_not_promise_names_its_source(peer: catalog.Peer) -> None:
    assert peer.packages is not None
    assert peer.gaps
    assert all(gap.text and gap.source for gap in peer.gaps)
    # A pin without a version would measure something else next week.
    assert all(package.version for package in peer.packages.packages)


def test_an_unknown_queue_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no such queue: celery; there are tinyjobs, localqueue"):
        catalog.named(["celery"])


def test_all_is_all_of_them() -> None:
    assert catalog.named(["all"]) == catalog.ALL


def test_nothing_measured_says_so() -> None:
    assert report.sentence((), (), ()) == "Nothing that could be compared was measured."


def test_a_result_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 1"):
        from_json('{"schema": 0}')
