"""A queue behind a command line: argv, JSON lines, and what becomes of both when somebody dies."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from killproof_evidence import command, effect
from killproof_evidence.command import CommandClient, CommandFailed, CommandTarget
from killproof_evidence.contract import TERMINAL
from killproof_evidence.target import (
    Definite,
    Indefinite,
    JobRow,
    TargetNotFound,
    level,
    load_target,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_SECONDS = 60.0
LEAST = '[commands]\nclient = "c"\nworker = "w"\nsnapshot = "s"\n'


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for something that can be seen."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def client_of(script: str) -> CommandClient:
    """A client in Python, which stands for one in any language."""
    return CommandClient([sys.executable, "-c", script])


def test_a_queue_in_shell_is_a_target_by_its_file_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLPROOF_EFFECTS", str(place))
    scripts = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    target = load_target(str(EXAMPLES / "shell_queue" / "target.toml"), {})
    assert (target.name, level(target)) == ("shell-queue", 1)

    target.prepare(place)
    with closing(target.client(place)) as client:
        quoted = {"id": "it's", "script": ["raise", "ok"], "body": 'a "b" ü\n'}
        first = client.enqueue("report", quoted, priority=5, max_attempts=5)
        with pytest.raises(Definite, match="no keys"):
            client.enqueue("report", {"id": "k"}, key="once")
        with pytest.raises(Definite):
            client.cancel(first)
    rows = list(target.snapshot(place))
    assert rows == [
        JobRow(id=first, kind="report", state="available", attempts=0, payload=quoted,
               priority=5, max_attempts=5, fence=0, due_ms=rows[0].due_ms)
    ]  # fmt: skip

    worker = subprocess.Popen(target.worker_argv(place))
    try:
        wait_until(lambda: next(iter(target.snapshot(place))).state == "succeeded")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(DEADLINE_SECONDS)
    assert next(iter(target.snapshot(place))).attempts == 2


@pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("sqlite3")), reason="it needs node and sqlite3"
)
def test_a_queue_for_node_keeps_its_keys_and_ends_on_sigterm(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLPROOF_EFFECTS", str(place))
    scripts = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    target = load_target(str(EXAMPLES / "node_queue" / "target.toml"), {})

    target.prepare(place)
    with closing(target.client(place)) as client:
        quoted = {"id": "it's", "body": 'a "b" ü 🙂\n'}
        first = client.enqueue("report", quoted, key="k'1")
        assert client.enqueue("report", {"id": "other"}, key="k'1") == first
        later = client.enqueue("report", {"id": "later"}, delay=600)
        assert client.cancel(later)
        assert not client.replay(later)

    worker = subprocess.Popen(target.worker_argv(place))
    try:
        wait_until(lambda: {row.state for row in target.snapshot(place)} <= {*TERMINAL})
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_SECONDS) == 0
    rows = {row.id: row for row in target.snapshot(place)}
    assert (rows[first].state, rows[first].payload) == ("succeeded", quoted)
    assert (rows[later].state, len(rows)) == ("cancelled", 2)


def test_an_answer_says_done_not_done_or_unknown() -> None:
    answers = [{"ok": 7}, {"fail": "full"}, {"info": "at the commit"}, {"else": 1}]
    script = f"import json\nfor a in {answers}: input(); print(json.dumps(a), flush=True)"
    with closing(client_of(script)) as client:
        assert client.enqueue("report", {"id": "a"}) == 7
        with pytest.raises(Definite, match="full"):
            client.enqueue("report", {"id": "b"})
        with pytest.raises(Indefinite, match="at the commit"):
            client.enqueue("report", {"id": "c"})
        with pytest.raises(Indefinite, match="an answer that is none"):
            client.enqueue("report", {"id": "d"})


@pytest.mark.parametrize("words", ["queue 1.0 ready", "17", '"ok"', '{"else": 1}', "[]"])
def test_what_a_client_prints_beside_its_answers_never_gives_a_job_the_id_of_another(
    words: str,
) -> None:
    """One line too many, and each answer would be taken for the next request's."""
    script = (
        f"print({words!r})\nfor n in range(9): input(); print('{{\"ok\": %d}}' % n, flush=True)"
    )
    with closing(client_of(script)) as client:
        for name in "abc":
            with pytest.raises(Indefinite, match="did not answer"):
                client.enqueue("report", {"id": name})


def test_a_client_that_ends_before_its_answer_leaves_the_outcome_unknown() -> None:
    with closing(client_of("input()")) as client, pytest.raises(Indefinite, match="did not answer"):
        client.enqueue("report", {"id": "a"})


def test_a_handler_that_is_a_program_knows_whether_its_worker_is_dead_whoever_adopted_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is no sign of that: here it is not the worker, as where another adopted it."""
    worker = subprocess.Popen(["sleep", "600"])
    monkeypatch.setenv("KILLPROOF_EFFECTS", str(place))
    monkeypatch.setenv(effect.WORKER, str(worker.pid))

    def handle() -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"id": "a", "script": ["ok"]}'))
        effect.main()
        [log] = place.glob("*.jsonl")
        lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
        return [int(line["worker"]) for line in lines if line["what"] == "start"][-1]

    try:
        assert handle() == worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert handle() == 0  # A zombie.
    finally:
        worker.kill()
        worker.wait()
    assert handle() == 0


def test_the_kernel_kills_a_client_with_the_process_that_uses_it(place: Path) -> None:
    told = place / "pid"
    child = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    script = (
        "import sys, time\n"
        "from killproof_evidence.command import CommandClient\n"
        f"CommandClient([sys.executable, '-c', {child!r}])\n"
        "time.sleep(600)\n"
    )
    user = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_until(lambda: told.exists() and bool(told.read_text()))
    finally:
        user.kill()
        user.wait()

    pid = int(told.read_text())
    wait_until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lacks client, worker, snapshot"),
        ("[commands]\nrun = 'x'\n", "command 'run' is unknown: use prepare, client"),
        (LEAST + "[promises]\nP99 = true\n", "promise 'P99' is unknown"),
        (LEAST + "[audit]\ntable = 'job'\n", "lacks id, state"),
        (LEAST + "[audit]\ntable='j'\nid='i'\nstate='s'\nx='y'\n", "has no column 'x'"),
        (LEAST + "[audit]\ntable='j'\nid='i'\nstate='s'\n", "needs `database` as well"),
        ("not toml", "Expected '='"),
        ("commands = 'x'\n", "[commands]"),
        (LEAST.replace('"c"', "3"), "the command client = 3"),
        (LEAST.replace('"c"', '"c \'"'), "No closing quotation"),
        (LEAST.replace('"c"', '" "'), "the command client = ' '"),
        (LEAST.replace('"c"', "[3]"), "the command client = [3]"),
        ("audit = 3\n" + LEAST, "[audit]"),
        ("database = '/etc/passwd'\n" + LEAST, "database = '/etc/passwd' must be"),
        ("database = '../q.db'\n" + LEAST, "database = '../q.db' must be"),
        ("promises = 3\n" + LEAST, "promises = 3 must be a table"),
        (LEAST + "[edges]\nstart = 'dead'\n", "edges.start = 'dead' must be a list"),
        (LEAST + "[edges]\nstart = [['dead']]\n", "must be a list"),
    ],
)
def test_a_file_that_is_no_target_is_refused_with_the_remedy(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "target.toml"
    file.write_text(text)
    with pytest.raises(TargetNotFound) as refused:
        CommandTarget(file)
    assert says in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": 1, "state": "dead", "colour": 2}', "unknown field 'colour'"),
        ('{"id": 1}', "state"),
        ("[]", "line 1"),
        ('{"id": [1], "state": "dead"}', "is neither an integer nor a text"),
        ('{"id": 1, "state": "frob"}', "the state 'frob' is unknown"),
        ('{"id": 1, "state": "dead", "attempts": "x"}', "attempts = 'x' is no integer"),
        ("nothing", "line 1"),
    ],
)
def test_a_snapshot_that_is_none_is_told_by_its_line(line: str, says: str) -> None:
    with pytest.raises(CommandFailed, match=says):
        command.rows_of(line)


def test_a_command_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(CommandFailed, match="ended with 3: no disk"):
        command.run(["sh", "-c", "echo no disk >&2; exit 3"])
    assert json.loads(command.run(["sh", "-c", "echo 1"])) == 1


def test_a_queue_beside_its_adapter_is_found_and_one_that_is_not_is_told_with_the_line(
    tmp_path: Path, place: Path
) -> None:
    (tmp_path / "own_little_queue.py").write_text("def make(path): path.touch()\n")
    adapter = tmp_path / "adapter.py"
    adapter.write_text(
        "from killproof_evidence.adapter import Adapter\n"
        "from killproof_evidence.contract import Contract\n"
        "class target(Adapter):\n"
        "    name, contract = 'q', Contract()\n"
        "    def connect(self, place):\n"
        "        import own_little_queue\n"
        "        own_little_queue.make(place / 'queue.db')\n"
        "        import no_such_queue\n"
    )

    with pytest.raises(CommandFailed) as caught:
        load_target(str(adapter), {}).prepare(place)

    assert (place / "queue.db").exists()
    told = "ModuleNotFoundError: No module named 'no_such_queue' (File"
    assert f'{told} "{adapter}", line 8, in connect)' in str(caught.value)


@pytest.mark.parametrize(
    "says",
    [
        "print('ready'); [print('{\"ok\": 7}') for _ in sys.stdin]",  # A line before its first.
        '[print(\'{"ok": 7}\\n{"ok": 7}\') for _ in sys.stdin]',  # Each twice.
        "[print('[]') for _ in sys.stdin]",
        "sys.stdout.buffer.write(b'\"\\xff\"\\n')",
        "print('x' * 2_000_000)",
        "[print('{\"ok\": [7]}') for _ in sys.stdin]",  # No id.
    ],
)
def test_an_answer_is_never_taken_for_that_of_another_job(says: str) -> None:
    with closing(
        client_of(f"import sys; sys.stdout.reconfigure(line_buffering=True); {says}")
    ) as it:
        told = []
        for name in "abc":
            try:
                told.append(it.enqueue("report", {"id": name}))
            except Indefinite:
                continue
    assert len(told) <= 1


def test_a_client_that_never_answers_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.05)
    silent = client_of("import sys; sys.stdin.read()")
    with closing(silent), pytest.raises(Indefinite, match="nothing came within"):
        silent.enqueue("report", {"id": "a"})


def test_a_command_that_does_not_end_or_leaves_a_child_behind_holds_nobody_up(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a child that has the output open, which a reader of a pipe would wait for."""
    assert command.run(["sh", "-c", f"sleep 600 & echo $! > {place}/child; echo 1"]) == "1\n"
    child = int((place / "child").read_text())
    wait_until(lambda: not _lives(child))
    monkeypatch.setattr(command, "RUN_SECONDS", 0.05)
    with pytest.raises(CommandFailed, match="did not end within"):
        command.run(["sleep", "600"])


def test_a_command_that_is_not_there_is_told_by_its_name() -> None:
    for start in (command.run, CommandClient):
        with pytest.raises(CommandFailed, match="no-such-program"):
            start(["no-such-program"])
