"""How evidence is written and read: histories, the effect log, the audit, and the store."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from killproof_evidence import effect
from killproof_evidence.audit import dump_audit, install_audit
from killproof_evidence.contract import Contract, ContractError
from killproof_evidence.environment import environment, file_system, wal_reset_affected
from killproof_evidence.evidence import payload_digest
from killproof_evidence.history import HistoryWriter, read_history
from killproof_evidence.records import RecordWriter, read_records, without_alarms
from killproof_evidence.store import Store, StoreError
from killproof_evidence.target import AuditMapping, JobRow, TargetNotFound, level, load_target


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- Records.


def test_records_of_any_text_come_back_line_by_line(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "log")
    written = [{"text": text} for text in ("ü", "a\nb", "\u2028", "\ud800", "")]
    for record in written:
        writer.append(record)
    writer.close()

    assert list(read_records(tmp_path / "log")) == list(enumerate(written, 1))


@pytest.mark.parametrize(
    "text", ['{"a":[1\n2]}\n', '{"a":1},{"b":2}\n{"c":\n', "[]\n", "7\n", "\n", '{"a":1}']
)
def test_what_is_no_json_object_is_never_joined_with_its_neighbours(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "log").write_text(text)

    assert all(record is None for _, record in read_records(tmp_path / "log"))


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "log")) == []


def test_an_alarm_waits_until_the_record_is_written() -> None:
    class Alarmed(Exception):
        pass

    def alarm(_signal: int, _frame: object) -> None:
        raise Alarmed

    written = []

    def write() -> None:
        with without_alarms():
            signal.raise_signal(signal.SIGALRM)  # To this thread: others do not mask it.
            written.append(1)

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(Alarmed):
            write()
    finally:
        signal.signal(signal.SIGALRM, before)

    assert written


# --- History.


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_an_operation_has_two_ends_and_its_process_an_exit(store: Store) -> None:
    writer = HistoryWriter(store.history_file("w1"), "w1")
    number = writer.invoke("ack", job=7, fence=3)
    writer.ok(number, value={"a": 1})
    writer.close()

    history = read_history(store)
    [op] = history.operations

    assert (op.f, op.type, op.job, op.fence, op.value_end) == ("ack", "ok", "7", 3, {"a": 1})
    assert (op.file, op.line, op.line_end) == ("history/w1.jsonl", 1, 2)
    assert op.t_end is not None
    assert op.t <= op.t_end
    assert history.malformed == []
    assert history.exited == {os.getpid(): "w1"}


def test_an_operation_without_a_completion_is_info(store: Store) -> None:
    """Rule C10."""
    HistoryWriter(store.history_file("w1"), "w1").invoke("claim")

    history = read_history(store)

    assert [op.type for op in history.operations] == ["info"]
    assert history.last == {os.getpid(): ("history/w1.jsonl", 1)}


def test_after_an_unknown_outcome_the_process_goes_on_under_a_new_name(store: Store) -> None:
    writer = HistoryWriter(store.history_file("w1"), "w1")
    writer.info(writer.invoke("ack", job=1, fence=1), value={"error": "disk I/O error"})
    writer.ok(writer.invoke("claim"))
    writer.close()

    assert [op.process for op in read_history(store).operations] == ["w1", "w1~1"]


def test_threads_may_have_operations_open_at_once(store: Store) -> None:
    writer = HistoryWriter(store.history_file("w1"), "w1")
    number = writer.invoke("ack", job=1, fence=1)
    thread = threading.Thread(
        target=lambda: writer.ok(writer.invoke("extend", job=1, fence=1)), name="heartbeat"
    )
    thread.start()
    thread.join()
    writer.ok(number)
    writer.close()

    history = read_history(store)

    assert history.malformed == []
    assert [op.f for op in history.operations] == ["ack", "extend"]


def test_operations_of_one_call_stand_side_by_side(store: Store) -> None:
    writer = HistoryWriter(store.history_file("d1"), "d1")
    numbers = [writer.invoke("ack", job=job, lane=lane) for lane, job in enumerate((7, 8, 9))]
    for number, tell in zip(numbers, (writer.ok, writer.fail, writer.ok), strict=True):
        tell(number)
    again = writer.invoke("ack", job=7, lane=1)
    writer.invoke("ack", job=7, lane=1)
    writer.close()
    history = read_history(store)

    assert again == 4
    assert not history.malformed
    assert [op.type for op in history.operations] == ["ok", "fail", "ok", "info", "info"]


def test_an_operation_that_was_interrupted_is_info(store: Store) -> None:
    writer = HistoryWriter(store.history_file("w1"), "w1")
    torn = writer.invoke("ack", job=1, fence=1)
    writer.ok(writer.invoke("claim"))
    writer.ok(torn)
    writer.invoke("claim")
    writer.close()

    history = read_history(store)

    assert history.malformed == []
    assert [(op.f, op.type) for op in history.operations] == [
        ("ack", "info"),
        ("claim", "ok"),
        ("claim", "info"),
    ]


def test_one_thread_has_one_operation_open(store: Store) -> None:
    writer = HistoryWriter(store.history_file("w1"), "w1")
    writer.ok(writer.invoke("claim"))
    writer.ok(writer.invoke("claim"))
    path = store.history_file("w1")
    kept = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept[:1] + kept[2:]))

    [malformed] = read_history(store).malformed

    assert malformed.reason == "the operation before it has no completion"


def test_a_claim_that_began_with_an_ack_has_its_time(store: Store) -> None:
    writer = HistoryWriter(store.history_file("w1"), "w1")
    writer.ok(writer.invoke("claim", since=5), job=1, fence=1)

    assert read_history(store).operations[0].t == 5


# --- Effects.


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "effects"
    monkeypatch.setenv("KILLPROOF_EFFECTS", str(folder))
    return folder


def test_an_attempt_leaves_start_effect_and_end(effects: Path) -> None:
    """Rule C9."""
    points: list[str] = []
    result = effect.run({"id": "a"}, job=7, attempt=1, fence=4, sync=points.append)

    found = lines(effects / f"{os.getpid()}.jsonl")

    assert result == {"id": "a", "attempt": 1, "outcome": "ok"}
    assert [record["what"] for record in found] == ["start", "effect", "end"]
    assert {(r["job"], r["attempt"], r["fence"], r["queue_id"]) for r in found} == {("a", 1, 4, 7)}
    assert points == ["handler.start", "handler.effect", "handler.end"]


@pytest.mark.parametrize("word", ["raise", "permanent", "hang:0"])
def test_a_scripted_failure_comes_before_the_effect(effects: Path, word: str) -> None:
    with pytest.raises(effect.ScriptedFailure, match=word.split(":")[0]) as caught:
        effect.run({"id": "a", "script": [word]}, attempt=1)

    found = lines(effects / f"{os.getpid()}.jsonl")

    assert [record["what"] for record in found] == ["start", "end"]
    assert isinstance(caught.value, effect.ScriptedPermanent) == (word == "permanent")


@pytest.mark.parametrize("word", ["ok", "sleep:0.001", "raise", "unjsonable"])
def test_a_coroutine_leaves_the_same_traces(effects: Path, word: str) -> None:
    found = []
    for play in ("plain", "coroutine"):
        payload = {"id": play, "script": [word]}
        with ThreadPoolExecutor(1) as threads, suppress(effect.ScriptedFailure):
            if play == "plain":
                effect.run(payload, attempt=1)
            else:
                asyncio.run(effect.run_async(payload, threads, attempt=1))
        found.append(
            [
                (record["what"], record.get("outcome"))
                for record in lines(effects / f"{os.getpid()}.jsonl")
                if record["job"] == play
            ]
        )

    assert found[0] == found[1]
    assert found[0][0] == ("start", None)


def test_a_step_of_a_workflow_tells_what_it_saw_and_what_it_returned(effects: Path) -> None:
    first = effect.run({"id": "a"}, attempt=1, saw={})
    effect.run({"id": "b"}, attempt=1, saw={"a": first})
    records = lines(effects / f"{os.getpid()}.jsonl")

    assert records[2]["result"] == records[3]["saw"]["a"] == effect.digest_of(first)


def test_the_last_word_of_a_script_repeats(effects: Path) -> None:
    payload = {"id": "a", "script": ["raise", "ok"]}

    with pytest.raises(effect.ScriptedFailure):
        effect.run(payload)
    outcomes = [effect.run(payload)["outcome"], effect.run(payload)["outcome"]]

    assert outcomes == ["ok", "ok"]


def test_starts_that_nobody_numbers_are_counted_on_disk(effects: Path) -> None:
    attempts = [effect.run({"id": "a/../b"})["attempt"] for _ in range(3)]

    assert attempts == [1, 2, 3]
    assert [path.name for path in (effects / "starts").iterdir()] == ["a%2F..%2Fb"]


def test_a_result_that_json_cannot_hold_comes_after_the_effect(effects: Path) -> None:
    result = effect.run({"id": "a", "script": ["unjsonable"]}, attempt=1)

    with pytest.raises(TypeError):
        json.dumps(result)
    assert [r["what"] for r in lines(effects / f"{os.getpid()}.jsonl")] == [
        "start",
        "effect",
        "end",
    ]


def test_a_table_s_effect_is_left_to_the_target(effects: Path) -> None:
    effect.run({"id": "a", "sink": "table"}, attempt=1)

    assert [r["what"] for r in lines(effects / f"{os.getpid()}.jsonl")] == ["start", "end"]


def command(effects: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from killproof_evidence.effect import main; main()"],
        input=text,
        env=os.environ | {"KILLPROOF_EFFECTS": str(effects)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"id": "a"}', 0),
        ('{"id": "a", "script": ["raise"]}', 1),
        ('{"id": "a", "script": ["unjsonable"]}', 1),
        ('{"id": "a", "script": ["exit"]}', effect.EXIT_STATUS),
        ('{"id": "a", "script": ["abort"]}', -signal.SIGABRT),
        ("[]", 64),
        ("no json", 64),
        ("{}", 64),
    ],
)
def test_the_command_tells_the_outcome_by_its_exit_status(
    tmp_path: Path, text: str, status: int
) -> None:
    done = command(tmp_path, text)

    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("word", "what"), [("exit", ["start", "end"]), ("abort", ["start", "effect", "end"])]
)
def test_a_handler_that_ends_its_process_says_so_first(
    tmp_path: Path, word: str, what: list[str]
) -> None:
    command(tmp_path, json.dumps({"id": "a", "script": [word]}))
    [path] = tmp_path.glob("*.jsonl")

    assert [record["what"] for record in lines(path)] == what
    assert lines(path)[-1]["outcome"] == word


# --- Audit.

MAPPING = AuditMapping(
    table="task",
    id="number",
    state="status",
    states={"queued": "available", "running": "leased", "done": "succeeded"},
    fence="token",
    attempts="tries",
    due_ms="NEW.run_at * 1000",
    payload="body",
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TABLE task (number INTEGER PRIMARY KEY, status TEXT, token INTEGER, "
            "tries INTEGER DEFAULT 0, run_at INTEGER, body TEXT, note TEXT)"
        )
    return path


def change(path: Path, *statements: str, commit: bool = True) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        if commit:
            db.commit()


INSERT = """INSERT INTO task VALUES (1, 'queued', NULL, 0, 7, '{"id": "a"}', NULL)"""


def test_the_audit_holds_every_move_in_the_contract_s_words(database: Path, tmp_path: Path) -> None:
    install_audit(database, MAPPING)
    change(
        database,
        INSERT,
        "UPDATE task SET status = 'running', token = 5, tries = 1",
        "UPDATE task SET note = 'of no interest'",
        "UPDATE task SET status = 'done', token = NULL",
        "DELETE FROM task",
    )

    count = dump_audit(database, MAPPING, tmp_path / "audit.jsonl")
    found = lines(tmp_path / "audit.jsonl")

    assert count == 4
    assert [(r["old"], r["new"]) for r in found] == [
        (None, "available"),
        ("available", "leased"),
        ("leased", "succeeded"),
        ("succeeded", None),
    ]
    assert [record["seq"] for record in found] == [1, 2, 3, 4]
    assert [record.get("fence") for record in found] == [None, 5, 5, None]
    assert found[0]["harness_id"] == "a"
    assert {record["due_ms"] for record in found} == {7_000}


def test_a_change_that_is_rolled_back_leaves_no_trace(database: Path, tmp_path: Path) -> None:
    install_audit(database, MAPPING)
    change(database, INSERT, commit=False)
    change(database, INSERT)
    dump_audit(database, MAPPING, tmp_path / "audit.jsonl")

    assert [record["seq"] for record in lines(tmp_path / "audit.jsonl")] == [1]


@pytest.mark.parametrize("wrong", [{"table": "job"}, {"id": "nope"}, {"key": "NEW.nope"}])
def test_a_wrong_mapping_is_refused_and_leaves_nothing(
    database: Path, wrong: dict[str, str]
) -> None:
    named: dict[str, Any] = {"table": "task", "id": "number", "state": "status"} | wrong

    with pytest.raises((sqlite3.Error, ValueError)):
        install_audit(database, AuditMapping(**named))
    with closing(sqlite3.connect(database)) as db:
        assert [row[0] for row in db.execute("SELECT name FROM sqlite_master")] == ["task"]


# --- Contract, target, store, environment.


def test_a_contract_comes_back_from_its_own_text() -> None:
    contract = Contract(
        promises={"P1": "power", "P2": True, "P6": False},
        parameters={"lease_ms": 500, "retry": "fixed:0.05", "limits": {"k": 2}},
        edges={"start": ("available",), "available": ("leased", "deleted")},
    )

    assert Contract.parse(contract.dump()) == contract
    assert contract.promised("P1") == "power"
    assert not contract.promised("P6")
    assert not contract.promised("P9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[promises]\nP99 = true", "promise 'P99' is unknown"),
        ("[edges]\navailable = ['done']", "state 'done' is unknown"),
        ("[promises", "contract.toml"),
    ],
)
def test_a_wrong_contract_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "contract.toml").write_text(text)

    with pytest.raises(ContractError, match=message):
        Contract.load(tmp_path / "contract.toml")


TARGET = """
from killproof_evidence.contract import Contract
class target:
    name, broken, contract, audit = "mine", False, Contract(), None
    prepare = client = worker_argv = snapshot = None
"""


def test_a_target_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TARGET)

    target = load_target(str(path), {})

    assert target.name == "mine"
    assert level(target) == 0


def test_a_contract_of_another_kind_is_told_and_no_error_in_the_middle_of_a_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TARGET.replace("Contract(), None", "{}, None"))

    with pytest.raises(TargetNotFound, match="its contract is a dict: give Contract"):
        load_target(str(path), {})


def test_of_many_targets_those_are_named_that_are_most_like_the_wrong_one() -> None:
    builtin = dict.fromkeys((f"queue-{number}" for number in range(100)), lambda: pytest.fail("no"))
    with pytest.raises(TargetNotFound) as refused:
        load_target("queu-42", builtin)

    assert "use queue-42, " in str(refused.value)
    assert "or another of `killproof chaos targets`" in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "'nope' is unknown: use a, b, package.module:attribute, path.py or path.toml"),
        ("nope.py", "target file 'nope.py' does not exist"),
        ("json:nope", "target 'json:nope' cannot be loaded"),
        ("json:dumps", "target 'json:dumps' lacks name, broken"),
        (":target", "target ':target' cannot be loaded: ValueError: Empty module name"),
    ],
)
def test_a_target_that_is_none_is_named(name: str, message: str) -> None:
    with pytest.raises(TargetNotFound, match=message):
        load_target(name, dict.fromkeys(["b", "a"], lambda: pytest.fail("not asked for")))


@pytest.mark.parametrize("text", ["def (", "raise RuntimeError('boom')"])
def test_a_target_file_that_fails_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)

    with pytest.raises(TargetNotFound, match=r"mine.py' cannot be loaded: (Syntax|Runtime)Error"):
        load_target(str(path), {})


def test_a_store_that_cannot_be_made_is_named() -> None:
    with pytest.raises(
        StoreError, match=r"store '/proc/x' cannot be made \(.*\): give a new folder"
    ):
        Store.create("/proc/x")


def test_of_two_that_have_found_a_folder_empty_one_makes_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.create(tmp_path)
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(()))  # As the other has seen it.

    with pytest.raises(StoreError, match="is in use: give a new folder"):
        Store.create(tmp_path)


def test_a_store_is_made_only_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="is not empty: give a new folder"):
        Store.create(tmp_path)
    with pytest.raises(StoreError, match="does not exist: give the folder of a run"):
        Store(tmp_path / "nowhere")


def test_a_store_that_was_never_judged_says_so(store: Store) -> None:
    with pytest.raises(StoreError, match="is this the store of a finished run"):
        store.read_verdict()


def test_a_snapshot_keeps_what_the_target_told(store: Store) -> None:
    row = JobRow(id=1, kind="k", state="dead", history=({"outcome": "failed"},))

    assert store.write_snapshot([row]) == 1
    assert lines(store.snapshot)[0]["history"] == [{"outcome": "failed"}]


def test_a_payload_has_one_digest_however_its_keys_are_ordered() -> None:
    assert payload_digest({"a": 1, "b": "ü"}) == payload_digest({"b": "ü", "a": 1})
    assert payload_digest({"a": 1}) != payload_digest({"a": "1"})


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.52.0", True),
        ("3.53.0", False),
        ("3.54.1", False),
    ],
)
def test_the_wal_reset_fault_is_known_by_version(version: str, affected: bool) -> None:
    assert wal_reset_affected(version) == affected


def test_the_environment_names_what_a_verdict_depends_on(tmp_path: Path) -> None:
    found = environment(tmp_path, durability="power")

    assert found["sqlite"] == sqlite3.sqlite_version
    assert found["durability"] == "power"
    assert found["cores"] >= 1
    assert found["fs"] == file_system(tmp_path)
