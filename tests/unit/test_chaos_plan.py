"""The plan and the workload: pure functions of the seed and the options."""

import base64
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import plan, workload
from killproof_chaos.plan import Fault, Options, Plan, PlanInvalid
from killproof_chaos.workload import JobsInvalid, options_of
from killproof_evidence.contract import Contract

PHASES = ("claim.locked", "handler.start", "ack.written")


def lines(place: Path, *texts: str) -> Path:
    path = place / "jobs.jsonl"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="")
    return path


def test_the_same_seed_gives_the_same_plan_byte_for_byte(tmp_path: Path) -> None:
    options = Options(seed=7, seconds=3.0)
    plan.make(options, PHASES).write(tmp_path / "first.json")
    plan.make(options, PHASES).write(tmp_path / "second.json")
    plan.make(Options(seed=8, seconds=3.0), PHASES).write(tmp_path / "other.json")

    first = (tmp_path / "first.json").read_bytes()
    assert first == (tmp_path / "second.json").read_bytes()
    assert first != (tmp_path / "other.json").read_bytes()


def test_a_plan_survives_being_written_and_read(tmp_path: Path) -> None:
    made = plan.make(Options(seed=3, seconds=2.0), PHASES)
    made.write(tmp_path / "plan.json")

    read = Plan.read(tmp_path / "plan.json")
    assert read.options == made.options
    assert list(read.faults) == list(made.faults)
    assert [list(operations) for operations in read.operations] == made.operations


def test_each_phase_is_aimed_at_once_by_each_nemesis_however_few_faults_are_asked_for() -> None:
    made = plan.make(Options(kills=1, pauses=1), PHASES)

    for nemesis in ("kill", "pause"):
        aims = [fault.phase for fault in made.faults if fault.fault == nemesis and fault.phase]
        assert sorted(aims) == sorted(PHASES)


def test_a_kill_waits_for_an_idle_peer_only_where_workers_say_that_they_are_idle() -> None:
    silent = plan.make(Options(kills=9), PHASES)
    told = plan.make(Options(kills=9), (*PHASES, "worker.idle"))

    assert not any(fault.spare for fault in silent.faults)
    assert any(fault.spare for fault in told.faults)


def test_a_nemesis_that_is_not_chosen_makes_no_fault() -> None:
    made = plan.make(Options(nemeses=("pause", "lock")), PHASES)

    assert {fault.fault for fault in made.faults} == {"pause", "lock"}


def test_the_clock_is_set_back_and_is_forward_again_before_the_next_step() -> None:
    for seconds in (1.0, 4.0, 20.0):
        made = plan.make(Options(seconds=seconds, nemeses=("clock",)), PHASES)

        assert len(made.faults) >= plan.STEPS_MIN
        assert {fault.step_ms for fault in made.faults} == {3_600_000}
        for first, second in pairwise(made.faults):
            assert first.at_ms + first.length_ms <= second.at_ms


def test_where_the_clock_is_stepped_some_job_always_waits_for_its_time() -> None:
    made = plan.make(Options(seconds=2.0, nemeses=("clock",)), PHASES)

    jobs = [op for operations in made.operations for op in operations if op.job is not None]
    waits = sorted((op.at_ms, op.at_ms + op.job.delay_ms) for op in jobs if op.job)
    for moment in range(500, 2_000, 100):
        assert sum(start <= moment < end for start, end in waits) >= 3


def test_each_call_fails_with_each_error_however_short_the_run() -> None:
    made = plan.make(Options(seconds=1.0, nemeses=("io",)), PHASES)

    cells = sorted((fault.call, fault.error) for fault in made.faults)
    calls = ("open", "sync", "truncate", "write")
    assert cells == [(call, error) for call in calls for error in ("EIO", "ENOSPC")]


def test_a_longer_run_lets_calls_fail_on_each_of_their_files() -> None:
    made = plan.make(Options(seconds=20.0, nemeses=("io",)), PHASES)

    for call, files in plan.IO_FILES.items():
        assert {fault.file for fault in made.faults if fault.call == call} == set(files)


def test_a_run_that_asks_for_nothing_needs_no_compiler() -> None:
    assert {fault.fault for fault in plan.make(Options(), PHASES).faults} == {
        "kill", "kill-all", "pause", "term", "lock",
    }  # fmt: skip


def test_zero_kills_and_pauses_plan_none_of_them() -> None:
    made = plan.make(Options(kills=0, pauses=0), PHASES)

    assert {fault.fault for fault in made.faults} == {"term", "lock"}


def test_faults_come_in_the_order_of_their_times() -> None:
    times = [fault.at_ms for fault in plan.make(Options(), PHASES).faults]

    assert times == sorted(times)


def test_without_the_handler_nemesis_no_script_makes_trouble() -> None:
    made = plan.make(Options(nemeses=("kill",)), PHASES)

    jobs = [op.job for operations in made.operations for op in operations if op.job is not None]
    words = {word.partition(":")[0] for job in jobs for word in job.script}
    assert words == {"sleep"}


def test_with_it_every_kind_of_trouble_is_in_the_default_workload() -> None:
    made = plan.make(Options(), PHASES)

    jobs = [op.job for operations in made.operations for op in operations if op.job is not None]
    words = {word.partition(":")[0] for job in jobs for word in job.script}
    assert words == {"sleep", "raise", "permanent", "exit", "abort", "hang", "unjsonable"}
    assert {job.sink for job in jobs} == {"log", "table", "http"}
    assert min(job.body_bytes for job in jobs) == 20


def test_the_shortest_run_meets_each_kind_of_trouble_and_one_lost_enqueue_takes_none_away() -> None:
    made = workload.make(seed=1, producers=2, seconds=0.2, trouble=True)

    for operations in made:
        jobs = [op.job for op in operations if op.job is not None]
        words = {word.partition(":")[0] for job in jobs for word in job.script}
        assert words >= {"abort", "unjsonable", "exit", "hang", "permanent"}
        repeated = [job for job in jobs if job.script[0] in ("abort", "unjsonable")]
        assert {job.sink for job in repeated} == {"http"}
        assert all(job.script[0] == job.script[1] and job.priority == 0 for job in repeated)


def test_jobs_come_in_bursts_with_lulls_between_them() -> None:
    made = plan.make(Options(seconds=4.0), PHASES)

    times = [op.at_ms for ops in made.operations for op in ops if op.f == "enqueue" and op.at_ms]
    offsets = {at % workload.PERIOD_MS for at in times}
    assert max(offsets) < workload.PERIOD_MS * workload.BURST_SHARE + 100


def test_a_repeated_enqueue_asks_for_a_job_that_still_waits() -> None:
    made = plan.make(Options(), PHASES)

    for operations in made.operations:
        seen: dict[str, int] = {}
        for op in operations:
            if op.job is None:
                continue
            if op.job.id in seen:
                assert op.job.key is not None
                assert op.at_ms - seen[op.job.id] < op.job.delay_ms
            seen[op.job.id] = op.at_ms


def test_a_text_has_the_length_asked_for_and_is_the_same_for_the_same_name() -> None:
    assert workload.text_of("j1", 0) == ""
    assert len(workload.text_of("j1", 130_000)) == 130_000
    assert workload.text_of("j1", 50) == workload.text_of("j1", 50)
    assert workload.text_of("j1", 50) != workload.text_of("j2", 50)


def test_a_token_holds_all_options() -> None:
    options = Options(target="minimal", seed=9, kills=3, nemeses=("kill",), jobs="my.jsonl")

    assert Options.of_token(options.token()) == options


@pytest.mark.parametrize("token", ["", "kp1-", "kp1-!!!", "kp1-AAAA", "nonsense"])
def test_what_is_no_token_is_refused_with_the_remedy(token: str) -> None:
    with pytest.raises(PlanInvalid, match="neither a store nor a token: give the folder"):
        Options.of_token(token)


@pytest.mark.parametrize(
    "wrong", [{"workers": "x"}, {"kills": -1}, {"seconds": 0}, {"nemeses": ["fire"]}]
)
def test_a_token_with_an_option_of_no_use_is_refused(wrong: dict[str, Any]) -> None:
    text = json.dumps({"nemeses": ["kill"]} | wrong)
    token = plan.TOKEN_PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()

    with pytest.raises(PlanInvalid, match="is neither a store nor a token"):
        Options.of_token(token)


def test_the_command_line_of_a_run_names_only_what_differs_from_the_default() -> None:
    assert Options(seed=4).argv()[3:] == ["--target", "killproof", "--seed", "4"]
    assert Options(seed=4, kills=9, nemeses=()).argv()[7:] == ["--kills", "9", "--nemesis", "none"]


def test_a_plan_that_is_none_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")

    with pytest.raises(PlanInvalid, match=r"is no plan .*: give the folder of a run"):
        Plan.read(tmp_path / "plan.json")


def test_a_lock_is_longer_than_a_lease() -> None:
    locks = [fault for fault in plan.make(Options(), PHASES).faults if fault.fault == "lock"]

    assert locks
    assert all(isinstance(fault, Fault) and fault.length_ms > 500 for fault in locks)


def test_the_users_jobs_keep_what_they_say_and_get_the_rest_from_the_seed(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        '{"kind": "mail", "payload": {"to": "ß"}, "priority": 1, "delay": 1.5, "key": "m"}',
        '{"kind": "mail", "payload": null, "script": ["raise", "ok"], "sink": "http"}',
    )
    made = workload.make(
        seed=1, producers=1, seconds=0.1, trouble=False, jobs=workload.read_jobs(path)
    )

    jobs = [op.job for op in made[0] if op.f == "enqueue" and op.job is not None]
    first, second = (next(job for job in jobs if job.id == name) for name in ("j0", "j1"))
    assert (first.kind, first.priority, first.delay_ms, first.key) == ("mail", 1, 1_500, "m")
    assert first.payload()["body"] == {"to": "ß"}
    assert second.payload()["body"] is None
    assert (second.script, second.sink) == (("raise", "ok"), "http")


def test_a_large_payload_stands_once_in_the_plan_however_often_it_is_enqueued(
    tmp_path: Path,
) -> None:
    path = lines(tmp_path, json.dumps({"kind": "a", "payload": "x" * 200_000}))
    made = plan.make(Options(seconds=1.0), (), workload.read_jobs(path))
    made.write(tmp_path / "plan.json")

    assert (tmp_path / "plan.json").stat().st_size < 300_000
    read = Plan.read(tmp_path / "plan.json")
    assert [list(operations) for operations in read.operations] == made.operations


def test_a_file_that_is_repeated_gets_fresh_keys(tmp_path: Path) -> None:
    path = lines(tmp_path, '{"kind": "mail", "payload": 1, "key": "m"}')
    made = workload.make(
        seed=1, producers=1, seconds=0.1, trouble=False, jobs=workload.read_jobs(path)
    )

    keys = {op.job.id: op.job.key for op in made[0] if op.job is not None}
    assert keys == {"j0": "m", **{f"j{n}": f"m#{n + 1}" for n in range(1, 7)}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "a"}', "payload is missing: give any JSON value"),
        ('{"payload": 1}', "kind is missing: give a text of 1 to 200 characters"),
        ('{"kind": "", "payload": 1}', "kind is ''"),
        ('{"kind": "a", "payload": 1, "priority": 10}', "priority is 10: give 0 .urgent. to 9"),
        ('{"kind": "a", "payload": 1, "priority": true}', "priority is True"),
        ('{"kind": "a", "payload": 1, "delay": -1}', "delay is -1: give seconds, 0 to 86400"),
        ('{"kind": "a", "payload": 1, "max_attempts": 0}', "max_attempts is 0: give 1 to 100"),
        ('{"kind": "a", "payload": 1, "script": ["fly"]}', "script is .* give a list of abort"),
        ('{"kind": "a", "payload": 1, "script": ["sleep:x"]}', "script is"),
        ('{"kind": "a", "payload": 1, "script": []}', "script is"),
        ('{"kind": "a", "payload": 1, "sink": "fax"}', "sink is 'fax': give log, table, http"),
        ('{"kind": "a", "payload": 1, "colour": "red"}', "option 'colour' is unknown: use delay"),
        ('{"kind": "a", "payload": NaN}', "NaN is not JSON"),
        ('{"kind": "a", "payload": "\\ud800"}', "surrogates"),
        ("[1]", "not an object"),
        ("{", "not JSON"),
    ],
)
def test_a_wrong_job_is_refused_by_its_line_its_value_and_the_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    path = lines(tmp_path, '{"kind": "good", "payload": {}}', text)

    with pytest.raises(JobsInvalid, match=rf"jobs\.jsonl:2: .*{message}"):
        workload.read_jobs(path)


def test_a_file_without_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobsInvalid, match="holds no job"):
        workload.read_jobs(lines(tmp_path))


def test_the_example_file_is_what_it_promises() -> None:
    path = Path(__file__).parents[2] / "examples/jobs.jsonl"
    jobs = workload.read_jobs(path)

    sizes = [len(json.dumps(job["payload"], ensure_ascii=False).encode()) for job in jobs]
    assert {job["kind"] for job in jobs} == set(workload.KINDS)
    assert max(sizes) > 190 * 1024
    assert any(job.get("delay") for job in jobs)
    assert any(job.get("key") for job in jobs)
    assert len({job.get("priority", 5) for job in jobs}) > 5


# --- What is asked besides jobs.


def test_a_plan_without_capabilities_is_that_of_jobs_alone() -> None:
    plain = plan.make(Options(seconds=4.0), PHASES)
    full = plan.make(Options(seconds=4.0), PHASES, capabilities=workload.CAPABILITIES)

    assert "m1" not in plain.producers
    assert {op.f for ops in plain.operations for op in ops} == {
        "enqueue", "cancel", "replay", "reap",
    }  # fmt: skip
    jobs = {op.job.id: op.job for ops in full.operations for op in ops if op.job is not None}
    for operations in plain.operations:
        for operation in operations:
            assert operation.job is None or jobs[operation.job.id] == operation.job


def test_all_capabilities_are_in_a_plan_and_come_back_from_its_file(tmp_path: Path) -> None:
    made = plan.make(Options(seconds=4.0), PHASES, capabilities=workload.CAPABILITIES)
    made.write(tmp_path / "plan.json")
    operations = [op for ops in made.operations for op in ops]

    assert Plan.read(tmp_path / "plan.json") == made
    assert made.producers == ["p1", "p2", "m1"]
    assert made.workers == ["w1", "w2", "w3", "w4", "w5", "w6", "d1", "d2"]
    assert {"backup", "collect", "start"} <= {op.f for op in operations}
    assert any(op.job is not None and op.job.spill for op in operations)
    clumps = [op.at_ms for op in operations if op.job is not None and op.job.kind == workload.CLUMP]
    assert max(clumps.count(moment) for moment in clumps) == workload.CLUMP_JOBS
    assert any(op.job is not None and op.job.memo for op in operations)
    for operation in operations:
        names = {step.id for step in operation.steps}
        assert all(set(step.needs or ()) <= names for step in operation.steps)


def test_a_run_of_jobs_alone_has_its_word_in_command_and_token() -> None:
    options = Options(mix="plain")

    assert options.argv()[-2:] == ["--mix", "plain"]
    assert Options.of_token(options.token()) == options
    with pytest.raises(PlanInvalid):
        Options.of_token(Options(mix="half").token())


def test_a_queue_is_asked_for_no_option_that_its_contract_does_not_list() -> None:
    contract = Contract(parameters={"options": ["delay"], "max_attempts": 9})
    made = plan.make(Options(seed=3, seconds=4.0), PHASES, contract=contract)
    enqueues = [op.job for each in made.operations for op in each if op.job is not None]

    assert {(job.priority, job.key, job.max_attempts) for job in enqueues} == {(5, None, 9)}
    assert any(job.delay_ms for job in enqueues)
    # Without its key a job that is put in again would be a second one of the same name.
    assert len({job.id for job in enqueues}) == len(enqueues)
    assert options_of(contract) == {"delay", "spill"}
    assert options_of(Contract()) >= {"delay", "key", "priority", "max_attempts"}


def test_a_job_that_always_kills_its_worker_is_for_queues_that_bound_attempts_only() -> None:
    def last_words(promises: dict[str, bool | str]) -> set[str]:
        made = plan.make(Options(seconds=20.0), PHASES, contract=Contract(promises=promises))
        jobs = [op.job for each in made.operations for op in each if op.job is not None]
        return {job.script[-1] for job in jobs}

    assert "exit" in last_words({"P17": True, "P8": True})
    assert "exit" not in last_words({"P17": True})
    assert "raise" in last_words({"P17": True})


def test_an_effect_is_a_row_of_the_queue_only_where_its_transaction_is_promised() -> None:
    def sinks(contract: Contract) -> set[str]:
        made = plan.make(Options(seed=3, seconds=4.0), PHASES, contract=contract)
        return {op.job.sink for each in made.operations for op in each if op.job is not None}

    assert sinks(Contract(promises={"P6": "transaction"})) == {"log", "table", "http"}
    assert sinks(Contract(promises={"P6": True})) == {"log", "http"}
