"""The judge: what makes a run pass, violated or unknown, and what it writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from killproof_evidence import synthetic
from killproof_evidence.checkers import CHECKERS
from killproof_evidence.contract import PROMISE_NAMES
from killproof_evidence.evidence import OF_THE_FILE, Evidence, happened
from killproof_evidence.finding import WITNESSES_MAX, Finding
from killproof_evidence.judge import HEADLINES, PROPERTIES, judge, render_rows
from killproof_evidence.store import Store

if TYPE_CHECKING:
    from tests.checkers.conftest import Run


def promised(run: "Run", *names: str) -> None:
    run.promises = dict.fromkeys(names, True)


def healthy(run: "Run") -> None:
    """A run that keeps P1, with one job that went its way."""
    promised(run, "P1")
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)


def losing(run: "Run") -> None:
    promised(run, "P1")
    run.process("p1").enqueues("a", exists=False)


def test_a_run_that_keeps_what_it_promises_passes(run: "Run") -> None:
    healthy(run)

    verdict = run.judged()

    assert verdict.verdict == "pass"
    assert verdict.record["unknown_because"] == []
    assert verdict.record["properties"]["P2"] == {
        "verdict": "not_promised",
        "checked": 0,
        "witnesses": [],
    }


def test_a_run_that_promises_nothing_does_not_pass(run: "Run") -> None:
    """Rule C7."""
    healthy(run)
    run.promises = {}

    verdict = run.judged()

    assert verdict.verdict == "unknown"
    assert verdict.record["unknown_because"] == [
        "the contract promises nothing that this engine judges"
    ]


def test_a_run_without_a_manifest_does_not_pass(run: "Run") -> None:
    """Rule C7."""
    healthy(run)
    del run.facts["obligations"]

    assert run.judged().record["unknown_because"] == [
        "run.json does not say what the run was obliged to hit"
    ]


@pytest.mark.parametrize("file", ["snapshot.jsonl", "history/p1.jsonl", "effects/101.jsonl"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_is_not_as_the_run_left_it_accuses_nobody(
    run: "Run", file: str, cut: bool
) -> None:
    """Goal: a store that lost a file, or the end of one, on its way is no fault of the queue."""
    healthy(run)
    store = run.store()
    store.write_run(run.facts | {"files": store.sizes()})
    path = store.path / file
    lines = path.read_text().splitlines(keepends=True)
    if cut:
        path.write_text("".join(lines[:-1]))
    else:
        path.unlink()

    verdict = judge(store)

    assert verdict.verdict == "unknown"
    assert f"first {file}:0" in verdict.record["unknown_because"][0]


def test_jobs_of_a_file_that_could_not_be_read_are_not_gone(run: "Run") -> None:
    """Whether it was the file or its reader that broke, P16 says, of the file itself."""
    promised(run, "P1", "P16")
    run.process("p1").enqueues("a").state = None
    run.facts["unread"] = OF_THE_FILE

    verdict = run.judged()

    assert verdict.record["properties"]["P1"]["verdict"] == "unknown"
    assert verdict.record["properties"]["P16"]["verdict"] == "pass"


def test_a_lone_surrogate_in_an_error_is_written_and_read(run: "Run") -> None:
    losing(run)
    run.facts["problems"] = ["half a pair: \ud800"]
    store = run.store()
    judge(store)

    assert "half a pair: \ud800" in store.read_verdict()["unknown_because"]


def test_one_broken_promise_breaks_the_run(run: "Run") -> None:
    losing(run)
    run.facts["obligations"] = {"obliged": ["a lease ran out"], "hit": []}

    assert run.judged().verdict == "violated"


def test_a_missed_obligation_makes_a_pass_unknown(run: "Run") -> None:
    healthy(run)
    run.facts["obligations"] = {"obliged": ["kill@ack.written", "a lease ran out"], "hit": []}
    run.facts["obligations"]["hit"] = ["a lease ran out"]

    record = run.judged().record

    assert record["verdict"] == "unknown"
    assert record["unknown_because"] == ["obligation missed: kill@ack.written"]
    assert record["coverage"] == {"obliged": 2, "hit": 1, "missed": ["kill@ack.written"]}


def test_a_promise_without_evidence_makes_a_pass_unknown(run: "Run") -> None:
    """Rule C4."""
    healthy(run)
    run.promises["P12"] = True

    record = run.judged().record

    assert record["verdict"] == "unknown"
    assert record["unknown_because"] == ["P12: no enqueue carried a key"]


def test_a_starved_supervisor_makes_a_pass_unknown(run: "Run") -> None:
    healthy(run)
    run.facts |= {"starved": True, "starved_ms": 812}

    record = run.judged().record

    assert record["verdict"] == "unknown"
    assert record["unknown_because"] == ["the supervisor was starved of CPU for 812 ms"]


@pytest.mark.parametrize(
    ("facts", "because"),
    [
        ({"interrupted": True}, "the run was interrupted"),
        ({"problems": ["w1 ended with status 1, unasked"]}, "w1 ended with status 1, unasked"),
    ],
)
def test_a_run_that_did_not_go_its_way_makes_a_pass_unknown(
    run: "Run", facts: dict[str, object], because: str
) -> None:
    healthy(run)
    run.facts |= facts

    record = run.judged().record

    assert record["verdict"] == "unknown"
    assert record["unknown_because"] == [because]


def test_a_starved_supervisor_accuses_nobody_of_being_slow(run: "Run") -> None:
    promised(run, "P17")
    run.facts["starved"] = True
    run.process("p1").enqueues("a")
    run.heals()
    run.passes(11_000)

    record = run.judged().record

    assert record["verdict"] == "unknown"
    assert record["properties"]["P17"]["verdict"] == "unknown"
    assert record["properties"]["P17"]["violations"] == 1


def test_a_starved_supervisor_still_sees_a_lost_job(run: "Run") -> None:
    losing(run)
    run.facts["starved"] = True

    assert run.judged().verdict == "violated"


def test_a_checker_that_throws_makes_its_promise_unknown(run: "Run") -> None:
    def throwing(_evidence: Evidence) -> Finding:
        raise ZeroDivisionError("a fault of the judge")

    healthy(run)

    record = run.judged(checkers={**CHECKERS, "P1": throwing}).record

    assert record["verdict"] == "unknown"
    assert record["properties"]["P1"]["reason"] == (
        "the checker failed: ZeroDivisionError('a fault of the judge')"
    )


def test_what_another_engine_judges_is_not_judged_here_and_breaks_nothing(run: "Run") -> None:
    healthy(run)
    run.promises |= {"P24": True}
    run.facts["engine"] = "crash"

    record = run.judged().record

    assert record["properties"]["P24"]["verdict"] == "not_judged"
    assert record["properties"]["P24"]["by"] == "proc"
    assert not [reason for reason in record["unknown_because"] if "P24" in reason]


def test_a_promise_that_the_run_left_out_is_not_judged_and_not_called_unpromised(
    run: "Run",
) -> None:
    healthy(run)
    run.facts["not_asked"] = ["P22"]

    record = run.judged().record

    assert record["verdict"] == "pass"
    assert record["properties"]["P22"]["verdict"] == "not_judged"
    assert record["properties"]["P24"]["verdict"] == "not_promised"
    detail = {row.names: row.detail for row in render_rows(record)}
    assert detail["P22"] == "the run did not ask for it"


def test_the_engine_of_the_run_decides_what_is_judged(run: "Run") -> None:
    healthy(run)
    run.promises["P18"] = True
    run.facts["engine"] = "sim"

    assert run.judged().record["properties"]["P18"]["by"] == "proc"


def test_a_death_that_nothing_explains_makes_a_pass_unknown(run: "Run") -> None:
    healthy(run)
    run.processes[1].alive = False

    record = run.judged().record

    assert record["verdict"] == "unknown"
    assert "its process ended here, and nothing tells why" in record["unknown_because"][0]


def test_a_death_that_nothing_explains_hides_no_violation(run: "Run") -> None:
    losing(run)
    run.processes[0].alive = False

    assert run.judged().verdict == "violated"


@pytest.mark.parametrize("fault", ["kill", "producer-kill", "term"])
def test_a_death_that_the_nemesis_log_explains_is_no_hole(run: "Run", fault: str) -> None:
    healthy(run)
    run.kills(run.processes[1], fault)

    assert run.judged().verdict == "pass"


@pytest.mark.parametrize("word", ["exit", "abort"])
def test_a_death_that_the_script_explains_is_no_hole(run: "Run", word: str) -> None:
    healthy(run)
    worker = run.process("w2")
    job = run.processes[0].enqueues("b")
    worker.claims(job)
    worker.runs(job, word)
    worker.alive = False

    assert run.judged().verdict == "pass"


# --- Lines that cannot be trusted.


def damaged(run: "Run", file: str, damage: Callable[[list[str]], list[str]]) -> str:
    """Judge a healthy store in which one file was changed; return why it is unknown."""
    promised(run, "P1", "P3", "P5")
    healthy(run)
    promised(run, "P1", "P3", "P5")
    run.strikes("heal")
    store = run.store()
    path = store.path / file
    lines = damage(path.read_text().splitlines(keepends=True))
    path.write_text("".join(lines))

    verdict = judge(store)

    assert verdict.verdict == "unknown", verdict.record
    return str(verdict.record["unknown_because"][0])


FILES = ["history/w1.jsonl", "effects/101.jsonl", "audit.jsonl", "nemesis.jsonl"]


@pytest.mark.parametrize("file", [*FILES, "snapshot.jsonl"])
def test_a_torn_line_makes_the_run_unknown(run: "Run", file: str) -> None:
    because = damaged(run, file, lambda lines: [*lines[:-1], lines[-1][:-10]])

    assert file in because
    assert "torn" in because


@pytest.mark.parametrize("file", FILES)
def test_a_line_that_is_no_json_makes_the_run_unknown(run: "Run", file: str) -> None:
    because = damaged(run, file, lambda lines: ["not json\n", *lines])

    assert f"{file}:1" in because


@pytest.mark.parametrize("file", FILES[:3])
@pytest.mark.parametrize("line", [0, 1])
def test_a_missing_line_makes_the_run_unknown(run: "Run", file: str, line: int) -> None:
    damaged(run, file, lambda lines: lines[:line] + lines[line + 1 :])


@pytest.mark.parametrize("file", FILES[:3])
@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_doubled_line_makes_the_run_unknown(run: "Run", file: str, line: int) -> None:
    damaged(run, file, lambda lines: lines[: line + 1] + lines[line:])


def test_a_line_after_the_exit_makes_the_run_unknown(run: "Run") -> None:
    because = damaged(run, "history/w1.jsonl", lambda lines: [lines[-1], *lines])

    assert "a record after the exit of its process" in because or "was due" in because


def test_a_record_without_its_fields_makes_the_run_unknown(run: "Run") -> None:
    because = damaged(run, "history/w1.jsonl", lambda lines: ['{"t":1}\n', *lines])

    assert "a record with a missing or wrong field" in because


@pytest.mark.parametrize("file", ["history/w2.jsonl", "effects/102.jsonl"])
def test_a_killed_process_may_leave_its_last_line_torn(run: "Run", file: str) -> None:
    healthy(run)
    worker = run.process("w2")
    job = run.processes[0].enqueues("b")
    worker.claims(job)
    worker.runs(job)
    run.kills(worker)
    store = run.store()
    path = store.path / file
    path.write_text(path.read_text()[:-10])

    assert judge(store).verdict == "pass"


# --- What it writes.


def test_judging_twice_gives_the_same_bytes(run: "Run") -> None:
    losing(run)
    store = run.store()

    judge(store)
    first = store.verdict.read_bytes()
    judge(Store(store.path))

    assert store.verdict.read_bytes() == first


def test_a_witness_cites_the_lines_that_prove_it(run: "Run") -> None:
    losing(run)

    [witness] = run.judged().record["properties"]["P1"]["witnesses"]

    assert witness["job"] == "1"
    assert [(line["file"], line["line"]) for line in witness["lines"]] == [
        ("history/p1.jsonl", 1),
        ("history/p1.jsonl", 2),
    ]
    assert json.loads(witness["lines"][1]["text"])["type"] == "ok"


def test_a_thousand_violations_keep_a_few_witnesses_and_their_number(run: "Run") -> None:
    promised(run, "P1")
    producer = run.process("p1")
    for number in range(100):
        producer.enqueues(f"j{number}", exists=False)

    found = run.judged().record["properties"]["P1"]

    assert found["violations"] == 100
    assert len(found["witnesses"]) == WITNESSES_MAX


def test_the_judge_can_leave_the_store_as_it_is(run: "Run") -> None:
    healthy(run)
    run.judged(write=False)

    assert not (run.folder / "verdict.json").exists()


def test_the_verdict_counts_jobs_and_faults(run: "Run") -> None:
    healthy(run)
    run.kills(run.process("w2"))
    run.heals()

    record = run.judged().record

    assert record["jobs"] == {"enqueued": 1, "ended": 1, "succeeded": 1}
    assert record["faults"] == {"kill": 1}
    assert record["counts"]["kills"] == 1


def test_the_audit_settles_what_nobody_answered(run: "Run") -> None:
    promised(run, "P1")
    producer, worker = run.process("p1"), run.process("w1")
    producer.enqueues("never", answer="info", exists=False)
    job, other = producer.enqueues("a", answer="info"), producer.enqueues("b")
    worker.claims(job)
    worker.acks(job, answer="info")
    worker.claims(other)
    worker.acks(other, answer="info", commits=False)
    worker.nacks(other, answer="info")
    producer.cancels(other, commits=False)
    producer.lines[-1]["type"] = "info"
    store = run.store()

    evidence = Evidence(store)
    answers = [
        (op.f, happened(story, op))
        for story in evidence.stories
        for op in (*story.enqueues, *story.outcomes, *story.controls)
        if op.type == "info"
    ]

    assert sorted(answers, key=str) == [
        ("ack", False),
        ("ack", True),
        ("cancel", False),
        ("enqueue", False),
        ("enqueue", True),
        ("nack", True),
    ]
    assert judge(store).record["counts"]["indefinite_settled"] == 6


# --- The table.


def test_every_promise_has_a_sentence_a_number_and_an_engine() -> None:
    assert tuple(entry.number for entry in PROPERTIES) == PROMISE_NAMES
    assert all(entry.sentence and entry.engines for entry in PROPERTIES)
    assert set(CHECKERS) == {entry.number for entry in PROPERTIES if "proc" in entry.engines}


def test_the_table_begins_with_what_people_ask_first(run: "Run") -> None:
    losing(run)

    rows = render_rows(run.judged().record)

    assert [(row.sentence, row.properties) for row in rows[:3]] == list(HEADLINES)
    assert rows[0].verdict == "violated"
    assert rows[0].detail == "job 1 was acknowledged, never ended, and is gone"
    assert {number for row in rows for number in row.properties} == set(PROMISE_NAMES)


def test_a_row_is_as_bad_as_its_worst_promise(run: "Run") -> None:
    healthy(run)
    run.promises["P17"] = True

    [first, *_] = render_rows(run.judged().record)

    assert first.verdict == "unknown"
    assert first.detail == "the run has no heal phase"


def test_a_pass_of_one_promise_does_not_read_as_a_pass_of_all(run: "Run") -> None:
    healthy(run)
    run.promises["P3"] = False
    record = run.judged().record
    record["properties"]["P17"] = {"verdict": "not_judged", "checked": 0, "by": "proc"}

    first, second, *_ = render_rows(record)

    assert (first.verdict, first.names) == ("pass", "P1 (P3 not promised; P17 by proc)")
    assert second.names == "P6"


# --- Sensitivity.


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy run of a few dozen jobs, with faults."""
    path = tmp_path_factory.mktemp("synthetic") / "store"
    synthetic.generate(path, records=400, seed=7)
    return path


def test_a_generated_run_is_healthy_in_every_promise_of_this_engine(generated: Path) -> None:
    record = judge(generated, write=False).record

    assert record["verdict"] == "pass", record["unknown_because"]
    passed = {name for name, found in record["properties"].items() if found["verdict"] == "pass"}
    assert passed == set(synthetic.CONTRACT.promises)
    assert passed <= set(CHECKERS)


def test_an_effect_that_vanishes_with_its_number_is_still_missed(generated: Path) -> None:
    """Goal: the checkers see it, not only the reader that counts lines. Method: renumber."""
    path = max((generated / "effects").glob("[0-9]*.jsonl"), key=lambda p: p.stat().st_size)
    original = path.read_text()
    records = [json.loads(line) for line in original.splitlines()]
    victim = next(r for r in records if r["what"] == "effect")
    for kept in ([r for r in records if r is not victim], [*records, victim]):
        ordered = sorted(kept, key=lambda record: record["t"])
        lines = [json.dumps(r | {"n": n}) + "\n" for n, r in enumerate(ordered, 1)]
        path.write_text("".join(lines))
        assert judge(generated, write=False).verdict == "violated"
    path.write_text(original)


def test_the_same_seed_generates_the_same_store(tmp_path: Path) -> None:
    first = synthetic.generate(tmp_path / "a", records=400, seed=3)
    second = synthetic.generate(tmp_path / "b", records=400, seed=3)

    for path in sorted(first.path.rglob("*.jsonl")):
        assert path.read_bytes() == (second.path / path.relative_to(first.path)).read_bytes()
