"""What the gate makes of counts, trailers and layers: pure functions, made-up numbers."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from killproof_bench.gate import (
    blocks,
    checkout,
    counters,
    instructions,
    proof,
    report,
    report_proof,
    seeded,
    sequential,
    session,
)
from killproof_bench.gate.checkout import CheckoutError, Patch, Tree
from killproof_bench.gate.counters import Counts, compared
from killproof_bench.gate.recorder import Goal, Store
from killproof_bench.gate.result import (
    SCHEMA,
    CounterLayer,
    GateResult,
    Revision,
    TimingLayer,
    from_json,
    to_json,
)
from killproof_bench.result import Correctness, Noise

REVISION = Revision(name="main", commit="0" * 40, changed_files=0)


def counts(plans: dict[str, list[str]] | None = None, **values: Sequence[float]) -> Counts:
    """Return counts of the operation `claim`."""
    named = {name.replace("_", "-"): [*calls] for name, calls in values.items()}
    return Counts(values={"claim": named}, plans=plans or {}, syscalls_by="strace")


def layer(before: Counts, after: Counts, *trailers: str) -> CounterLayer:
    return compared(before, after, trailers, seconds=1.0)


def test_counts_that_are_equal_on_both_sides_pass() -> None:
    same = counts(frames_1k=[3, 3, 4], steps_1k=[100, 101, 99])

    assert layer(same, same).verdict == "pass"


def test_one_more_frame_in_the_usual_call_fails() -> None:
    found = layer(counts(frames_1k=[3, 3, 4]), counts(frames_1k=[4, 4, 4]))

    assert found.verdict == "fail"
    assert found.because == (
        "claim.frames-1k rose from 3.333 to 4 (WAL frames, 1,000 rows) for each call",
    )


def test_what_rises_now_and_then_fails_by_its_mean() -> None:
    found = layer(counts(fdatasync=[1] * 10), counts(fdatasync=[1] * 9 + [2]))

    assert found.verdict == "fail"


def test_a_step_more_of_hundreds_is_no_regression() -> None:
    assert layer(counts(steps_1k=[400]), counts(steps_1k=[403])).verdict == "pass"
    assert layer(counts(steps_1k=[400]), counts(steps_1k=[405])).verdict == "fail"


def test_what_falls_is_welcome() -> None:
    assert layer(counts(frames_1k=[4]), counts(frames_1k=[3])).verdict == "pass"


@pytest.mark.parametrize("trailer", ["claim.frames-1k", "claim"])
def test_a_trailer_excuses_what_it_names(trailer: str) -> None:
    found = layer(counts(frames_1k=[3]), counts(frames_1k=[4]), trailer)

    assert found.verdict == "pass"
    assert found.counters[0].rose
    assert found.counters[0].excused


@pytest.mark.parametrize("trailer", ["claim.frames", "ack", "frames-1k"])
def test_a_trailer_excuses_nothing_else(trailer: str) -> None:
    assert layer(counts(frames_1k=[3]), counts(frames_1k=[4]), trailer).verdict == "fail"


def test_a_plan_that_scans_fails_and_its_text_is_shown() -> None:
    plans = {"claim": ["SEARCH job USING INDEX job_available"]}, {"claim": ["SCAN job"]}

    found = layer(counts(plans[0], scans=[0]), counts(plans[1], scans=[1]))

    assert found.verdict == "fail"
    assert (found.plans[0].base, found.plans[0].head) == (
        ("SEARCH job USING INDEX job_available",),
        ("SCAN job",),
    )
    assert found.plans[0].rose


def test_an_operation_that_one_side_lacks_is_told_and_not_compared() -> None:
    before = Counts(values={"claim": {}}, plans={}, syscalls_by="strace")
    after = Counts(values={"claim": {}, "ack-many": {}}, plans={}, syscalls_by="strace")

    assert layer(before, after).absent == ("ack-many",)


def test_system_calls_are_counted_between_the_marks_alone() -> None:
    trace = """7 flock(3, LOCK_EX) = 0
7 access("/killproof-gate/begin", F_OK) = -1 ENOENT
7 pwrite64(4, "(\\"/x\\"", 24, 0) = 24
7 access("/killproof-gate/x.failed", F_OK) = -1 ENOENT
7 fdatasync(4 <unfinished ...>
7 <... fdatasync resumed>) = 0
7 access("/killproof-gate/end", F_OK) = -1 ENOENT
7 fdatasync(4) = 0
7 access("/killproof-gate/begin", F_OK) = -1 ENOENT
7 access("/killproof-gate/end", F_OK) = -1 ENOENT
""".splitlines()

    calls = counters.parse_trace(trace)

    assert [call.get("fdatasync", 0) for call in calls] == [1, 0]
    assert [call.get("pwrite64", 0) for call in calls] == [1, 0]
    assert [call.get("flock", 0) for call in calls] == [0, 0]
    assert counters.split(calls, ["claim", "ack"]) == {"claim": [calls[0]], "ack": [calls[1]]}
    with pytest.raises(CheckoutError, match="2 traced calls of 3 operations"):
        counters.split(calls, ["claim", "ack", "get"])


def test_three_percent_more_instructions_pass_and_more_fail() -> None:
    assert instructions.judged(1_000, 1_030, (), seconds=1.0).verdict == "pass"
    assert instructions.judged(1_000, 1_031, (), seconds=1.0).verdict == "fail"
    assert instructions.judged(1_000, 1_031, ("ack-and-claim",), seconds=1.0).verdict == "pass"


def test_callgrind_that_counted_nothing_says_its_last_word() -> None:
    with pytest.raises(CheckoutError, match="counted nothing: Killed"):
        instructions.collected("==7== hello\nKilled\n")


def test_layers_have_one_verdict() -> None:
    merged = session.merged

    assert merged(("pass", "pass", "pass"), interrupted=False) == "pass"
    assert merged(("fail", "pass", "inconclusive"), interrupted=True) == "fail"
    assert merged(("pass", "not measured", "not measured"), interrupted=False) == "pass"
    assert merged(("not measured",) * 3, interrupted=False) == "inconclusive"
    assert merged(("pass", "pass", "pass"), interrupted=True) == "inconclusive"


def test_an_anchor_that_has_moved_fails_loudly(tmp_path: Path) -> None:
    source = tmp_path / "base" / "queue" / "killproof"
    source.mkdir(parents=True)
    (source / "cli.py").write_text("one = 1\none = 1\n")
    tree = Tree(revision=REVISION, folder=tmp_path / "base")
    patch = Patch(file="queue/killproof/cli.py", anchor="one = 1", text="two = 2")

    with pytest.raises(CheckoutError, match="has 2 places that read 'one = 1': mend the anchor"):
        checkout.patched(tree, (patch,), tmp_path / "copy")


def test_every_seeded_regression_finds_its_place_in_this_source() -> None:
    root = Path(__file__).resolve().parents[2]
    patches = [regression.patch for regression in seeded.REGRESSIONS]

    for patch in (*patches, seeded.spin(10)):
        text = (root / patch.file).read_text(encoding="utf-8")
        assert text.count(patch.anchor) == 1, patch.anchor


def test_a_re_paired_sham_tosses_its_labels_and_a_slowdown_keeps_them() -> None:
    random = np.random.default_rng(1)
    slow = [0.1 + place / 1_000 for place in range(90)]

    kept = proof.repaired(slow, 20, random, toss=False)
    tossed = proof.repaired(slow, 20, random, toss=True)

    assert kept.shape == tossed.shape == (20, sequential.LOOKS[-1])
    assert (kept > 0).all()
    assert 0.4 < (tossed > 0).mean() < 0.6
    assert len({*kept[0]}) == sequential.LOOKS[-1], "a block stands in a run once"


def test_a_proof_needs_runs_to_meet_a_goal() -> None:
    nothing = proof.tally("live shams", [], [], goal="0 of 3 fail", is_met=lambda failed: True)
    clean = proof.tally(
        "live shams", ["pass"] * 3, [10] * 3, goal="0 of 3 fail", is_met=lambda failed: not failed
    )

    assert not nothing.met
    assert clean.met
    assert (clean.passed, clean.failed, clean.blocks_mean) == (3, 0, 10.0)


def test_a_regression_counts_as_caught_by_the_layer_named_alone() -> None:
    rows = proof.seeded_rows([{"name": "extra fsync", "rose": ["ack.fdatasync"]}], [], Goal())

    assert [row.name for row in rows if row.caught] == ["extra fsync"]
    assert rows[-1].named == "layer 2: time"


def test_the_length_of_an_arm_is_judged_by_power_for_its_time() -> None:
    record = {"slices": [[50] * 20, [50] * 10 + [60] * 10, [50] * 20, [50] * 20], "overhead": 1.0}

    lengths = proof.arm_lengths([record, record])

    assert lengths[0].sigma == 0.0
    assert lengths[-1].seconds == 1.0
    assert lengths[-1].sigma == pytest.approx(math.log(1.1) / 2)
    assert lengths[-1].block_seconds == 5.0


def test_a_store_leaves_out_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add("sham", {"d": 1})
    with (tmp_path / "store" / "sham.jsonl").open("a") as file:
        file.write('{"d": 2')

    assert store.read("sham") == [{"d": 1}]
    assert store.read("slow") == []


UNTIMED = session.untimed("not asked for")


def result(counted: CounterLayer, timed: TimingLayer = UNTIMED) -> GateResult:
    noise = Noise(
        noisy=False,
        because=(),
        steal=0.0,
        foreign_cpu=0.0,
        load_before=0.0,
        load_after=0.0,
        pressure_cpu_before=0.0,
        pressure_io_before=0.0,
        raw_spread=None,
    )
    instructed = instructions.judged(1_000, 1_001, (), seconds=2.0)
    verdict = session.merged(
        (counted.verdict, instructed.verdict, timed.verdict),
        interrupted=False,
        void=timed.correctness.verdict == "violated",
    )
    return GateResult(
        schema=SCHEMA,
        kind="gate",
        command="killproof bench gate --base main",
        started="2026-01-01T00:00:00+00:00",
        seconds=3.0,
        interrupted=False,
        verdict=verdict,
        sentence=session.sentence(verdict, counted, instructed, timed, interrupted=False),
        base=REVISION,
        head=dataclasses.replace(REVISION, changed_files=2),
        trailers=(),
        environment={},
        counters=counted,
        instructions=instructed,
        timing=timed,
        noise=noise,
    )


def test_a_recorded_result_comes_back_and_says_the_same() -> None:
    told = result(layer(counts(frames_1k=[3]), counts(frames_1k=[4])))

    assert from_json(to_json(told)) == told
    assert told.verdict == "fail"
    assert "layer 0: claim.frames-1k rose from 3 to 4" in report.terminal(told)
    assert "| claim.frames-1k | 3 | 4 | WAL frames, 1,000 rows | **yes** |" in report.markdown(told)
    assert "bench gate: fail" in report.summary(told)
    with pytest.raises(ValueError, match="not a result of the gate"):
        from_json("{}")


def test_junit_has_a_case_for_each_operation_and_each_layer_above() -> None:
    told = result(layer(counts(frames_1k=[3]), counts(frames_1k=[4])))

    suite = ElementTree.fromstring(report.junit(told))

    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failure = suite.find("testcase[@name='claim']/failure")
    assert failure is not None
    assert failure.get("message") == "claim.frames-1k: 3 -> 4 WAL frames, 1,000 rows"


def test_a_pass_says_which_layers_were_left_out() -> None:
    told = result(layer(counts(frames_1k=[3]), counts(frames_1k=[3])))

    assert told.verdict == "pass"
    assert told.sentence == "No counter rose; layer 2 not measured: not asked for."


WRONG = session.untimed(
    "an arm was wrong",
    Correctness(verdict="violated", because=("head: 2 jobs acked more than once",), jobs=5),
)


def test_an_arm_that_was_wrong_voids_the_run_in_every_form() -> None:
    # All other layers pass.
    told = result(layer(counts(frames_1k=[3]), counts(frames_1k=[3])), WRONG)

    assert told.verdict == "inconclusive"
    assert told.sentence == "Void: an arm was wrong: head: 2 jobs acked more than once."
    assert "bench gate: void" in report.summary(told)
    assert "**void**" in report.markdown(told)
    suite = ElementTree.fromstring(report.junit(told, doubt_passes=True))
    error = suite.find("testcase[@classname='layer 2']/error")
    assert error is not None
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    assert error.get("message") == "head: 2 jobs acked more than once"


@pytest.mark.parametrize(("doubt_passes", "kind"), [(False, "failure"), (True, "skipped")])
def test_a_case_of_junit_keeps_its_name_whatever_it_says(doubt_passes: bool, kind: str) -> None:
    doubtful = dataclasses.replace(UNTIMED, verdict="inconclusive", because=("a \x1b[1mword\x00",))
    told = result(layer(counts(frames_1k=[3]), counts(frames_1k=[3])), doubtful)

    # What XML cannot hold would make the whole file unreadable.
    suite = ElementTree.fromstring(report.junit(told, doubt_passes=doubt_passes))

    names = [(case.get("classname"), case.get("name")) for case in suite]
    assert names == [("layer 0", "claim"), ("layer 1", "instructions"), ("layer 2", "time")]
    assert suite.find(f"testcase[@name='time']/{kind}") is not None


def test_a_fail_stays_one_when_the_rest_is_interrupted() -> None:
    counted = layer(counts(frames_1k=[3]), counts(frames_1k=[4]))
    unmeasured = instructions.unmeasured("not asked for")

    told = session.sentence("fail", counted, unmeasured, UNTIMED, interrupted=True)

    assert told.startswith("Slower than the base. layer 0: claim.frames-1k rose")
    assert told.endswith("Interrupted: the rest was not measured.")


def test_what_could_not_be_measured_says_why_it_is_inconclusive() -> None:
    missing = instructions.unmeasured("valgrind is not there")

    told = session.sentence(
        "inconclusive", counters.unmeasured("not asked for"), missing, UNTIMED, interrupted=False
    )

    assert told == "Inconclusive: layer 1: valgrind is not there."


def test_an_arm_in_which_no_call_ended_is_slow_and_no_crash() -> None:
    stuck = blocks.Arm(ops=0, seconds=0.5, slices=(0,), jobs=1, hold_us=0.0, checkpoints=0)

    assert stuck.us_per_op == 500_000.0


def test_the_report_of_a_proof_names_what_it_does_not_show() -> None:
    assert "share their blocks" in report_proof.LIMITS
