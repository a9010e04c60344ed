"""Real runs of the harness, a few seconds each, on `minimal`: what they do, and what they leave."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from killproof import cli
from killproof_chaos import gallery
from killproof_chaos.engines.kernel import kernel_state
from killproof_chaos.shim.build import COMPILERS
from killproof_chaos.targets import public

SECONDS_MAX = 120.0
SHORT = ("--target", "minimal", "--seconds", "4", "--kills", "8", "--pauses", "4")
#: What a run says that had no time for something. The machine is somebody else's, and may be busy.
SLOW = re.compile(r"P\d+: |obligation missed: |the supervisor was starved of CPU")
#: A run without kills and failures has no evidence on these, and must not pass.
UNSEEN = {"P9", "P18"}


def chaos(
    place: Path, *words: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `killproof chaos ...` in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", *words],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def unseen(store: Path) -> set[str]:
    """Return the promises without evidence, of a run that has no other fault."""
    verdict = json.loads((store / "verdict.json").read_text())
    assert verdict["verdict"] == "unknown"
    assert faults_of(verdict) == []
    return {reason.split(":")[0] for reason in verdict["unknown_because"]}


def faults_of(verdict: dict[str, Any]) -> list[str]:
    """Return why a verdict is unknown, but for what a busy machine is a reason for."""
    return [reason for reason in verdict["unknown_because"] if not SLOW.match(reason)]


def family(pid: int) -> set[int]:
    """Return all descendants of a process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        try:
            text = Path(f"/proc/{waiting[-1]}/task/{waiting[-1]}/children").read_text()
        except FileNotFoundError:
            text = ""
        waiting.pop()
        children = set(map(int, text.split())) - found
        found |= children
        waiting.extend(children)
    return found


def test_a_short_run_finds_minimal_healthy_or_says_what_it_had_no_time_for(place: Path) -> None:
    """Covers the whole way: plan, kills, stops, heal, drain, judge, table, report, JUnit."""
    summary = place / "summary.md"
    done = chaos(
        place, "run", *SHORT, "--seed", "1", "--store", "run", "--report", "--junit", "junit.xml",
        environment={"GITHUB_STEP_SUMMARY": str(summary)},
    )  # fmt: skip

    verdict = json.loads((place / "run/verdict.json").read_text())
    assert faults_of(verdict) == []
    words = "unknown" if verdict["unknown_because"] else "no violation found"
    assert verdict["verdict"] == ("unknown" if verdict["unknown_because"] else "pass")
    assert done.returncode == (2 if verdict["unknown_because"] else 0), done.stdout + done.stderr
    assert f"minimal: {words}" in done.stdout
    assert "correct" not in done.stdout
    assert "report: run/report.html" in done.stdout
    assert "<testsuite" in (place / "junit.xml").read_text()
    assert words in summary.read_text()

    faults = records(place / "run/nemesis.jsonl")
    kinds = Counter(fault["fault"] for fault in faults)
    told = {reason.partition(": ")[2] for reason in verdict["unknown_because"]}
    assert told >= set(verdict["coverage"]["missed"])
    assert {"kill", "pause", "term", "heal"} <= set(kinds)
    heal = next(fault["t"] for fault in faults if fault["fault"] == "heal")
    assert all(fault["t"] < heal for fault in faults if fault["fault"] in {"kill", "pause"})

    again = chaos(place, "check", "run", "--json")
    assert again.returncode == done.returncode
    assert json.loads(again.stdout) == verdict


#: Notes which module of the harness opens a file of the database by its path.
WATCH = """
import os, sys
def watch(event, arguments):
    path = arguments[0] if event == "open" else None
    if isinstance(path, str) and path.endswith((".db", "-wal", "-shm")):
        frame = sys._getframe(1)
        while frame is not None and "killproof" not in frame.f_code.co_filename:
            frame = frame.f_back  # The standard library's copying, say.
        name = os.path.basename(frame.f_code.co_filename) if frame else "nobody of ours"
        opened = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(opened, f"{name}\\n".encode())
        os.close(opened)
sys.addaudithook(watch)
"""
#: They copy the file when every process has ended, and look into the copy.
AFTERWARDS = {"finish.py", "evidence.py"}


def test_without_faults_the_obligations_are_missed_and_the_verdict_is_unknown(
    place: Path,
) -> None:
    """The negative control of the vacuity guard: the nemeses chosen, and their faults left out.

    Rule C1.  Rule C15: no part of the harness opens a live file but through SQLite.
    """
    (place / "sitecustomize.py").write_text(WATCH)
    opened = place / "opened"
    words = ("--target", "minimal", "--seconds", "1", "--workers", "2", "--nemesis", "kill,pause")
    done = chaos(
        place, "run", *words, "--kills", "0", "--pauses", "0", "--seed", "1",
        environment={"PYTHONPATH": str(place), "OPENED": str(opened)},
    )  # fmt: skip

    assert done.returncode == 2, done.stdout + done.stderr
    assert "obligation missed: kill@claim.locked" in done.stdout
    assert "obligation missed: pause@handler.start" in done.stdout
    assert "minimal: unknown" in done.stdout
    assert set(opened.read_text().split()) == AFTERWARDS


def test_a_supervisor_that_is_killed_leaves_no_process_behind(place: Path) -> None:
    """Rule C5."""
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "killproof", "chaos", "run", *SHORT, "--seconds", "30"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + SECONDS_MAX
    children: set[int] = set()
    while len(children) < 11:  # The server, the sink, the workers and a producer at least.
        assert time.monotonic() < deadline
        assert supervisor.poll() is None
        children = family(supervisor.pid)
    watched = [os.pidfd_open(pid) for pid in children if kernel_state(pid)]
    supervisor.kill()
    supervisor.wait()

    for descriptor in watched:
        readable, _, _ = select.select([descriptor], [], [], SECONDS_MAX)
        assert readable, "a child outlived the supervisor"
        os.close(descriptor)


def test_ctrl_c_prints_what_there_is_and_ends_the_children(place: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "killproof", "chaos", "run", *SHORT, "--seconds", "30",
         "--store", "run"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    deadline = time.monotonic() + SECONDS_MAX
    nemesis = place / "run/nemesis.jsonl"
    while not nemesis.exists() or '"kill"' not in nemesis.read_text():
        assert time.monotonic() < deadline
        assert supervisor.poll() is None
    children = family(supervisor.pid)
    supervisor.send_signal(signal.SIGINT)
    out, errors = supervisor.communicate(timeout=SECONDS_MAX)

    assert supervisor.returncode == 2, out + errors
    assert "obligation missed: the run came to its end" in out
    assert "Traceback" not in errors
    assert not [pid for pid in children if kernel_state(pid) not in ("", "Z")]


def test_the_users_own_jobs_run_with_their_payloads_and_keys(place: Path) -> None:
    text = "x" * 200_000
    rows = [
        {"kind": "resize", "payload": {"picture": "ñandú.jpg"}, "key": "n", "sink": "http"},
        {"kind": "mail", "payload": text, "priority": 0, "script": ["raise", "ok"]},
        {"kind": "mail", "payload": None, "delay": 0.1, "sink": "table", "max_attempts": 3},
    ]
    (place / "mine.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    done = chaos(
        place, "run", "--target", "minimal", "--seconds", "1", "--workers", "2", "--nemesis",
        "none", "--jobs", "mine.jsonl", "--seed", "1", "--store", "run",
    )  # fmt: skip

    assert unseen(place / "run") >= UNSEEN - {"P9"}, done.stdout + done.stderr
    jobs = records(place / "run/snapshot.jsonl")
    assert {job["kind"] for job in jobs} == {"resize", "mail"}
    assert {job["state"] for job in jobs} == {"succeeded"}
    bodies = [job["payload"]["body"] for job in jobs]
    assert text in bodies
    assert {"picture": "ñandú.jpg"} in bodies
    assert "n" in {job["key"] for job in jobs}


#: Its workers are those of `minimal`, by the command line alone.
PLAIN = """
from killproof_chaos.targets import load
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

class Plain(MinimalTarget):
    work = None

    def worker_argv(self, place):
        return load("minimal").worker_argv(place)

target = Plain("minimal", MinimalQueue)
"""


def test_a_worker_that_is_started_by_its_command_line_is_judged_as_well(place: Path) -> None:
    """The general path of `worker_argv`: any language, forked and executed instead of warm."""
    (place / "plain.py").write_text(PLAIN, encoding="utf-8")
    done = chaos(
        place, "run", "--target", "plain.py", "--seconds", "1", "--workers", "2", "--nemesis",
        "none", "--seed", "1", "--store", "run",
    )  # fmt: skip

    assert unseen(place / "run") >= UNSEEN, done.stdout + done.stderr
    assert {job["state"] for job in records(place / "run/snapshot.jsonl")} == {"succeeded"}


FOREIGN = """
import json, os, sqlite3, sys, time
from contextlib import closing
from killproof_evidence.contract import Contract
from killproof_evidence.target import JobRow

WORKER = '''
import os, sqlite3, subprocess, sys, time
os.chdir("/")
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
while True:
    claim = "UPDATE job SET state = 'leased', until = ? WHERE id = (SELECT id FROM job WHERE " \\
            "state = 'available' OR until < ? ORDER BY id LIMIT 1) RETURNING id, payload"
    row = db.execute(claim, (time.time() + 1, time.time())).fetchone()
    if row is None:
        time.sleep(0.02)
        continue
    done = subprocess.run([sys.argv[2]], input=row[1], text=True, capture_output=True)
    state = "succeeded" if done.returncode == 0 else "available"
    db.execute("UPDATE job SET state = ?, until = NULL WHERE id = ?", (state, row[0]))
'''

class Foreign:
    name, broken, audit = "foreign", False, None
    contract = Contract(promises={"P1": "process", "P2": True}, parameters={"lease_ms": 1_000})

    def prepare(self, place):
        with closing(sqlite3.connect(place / "jobs")) as db:
            db.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, kind, payload, state, until)")
        (place / "worker.py").write_text(WORKER)

    def client(self, place):
        self.db = sqlite3.connect(place / "jobs", timeout=30, isolation_level=None)
        return self

    def enqueue(self, kind, payload, **options):
        sql = "INSERT INTO job (kind, payload, state) VALUES (?, ?, 'available') RETURNING id"
        return self.db.execute(sql, (kind, json.dumps(payload))).fetchone()[0]

    def close(self):
        self.db.close()

    def worker_argv(self, place):
        effect = os.path.join(os.path.dirname(sys.executable), "killproof-effect")
        return [sys.executable, str(place / "worker.py"), str(place / "jobs"), effect]

    def snapshot(self, place):
        with closing(sqlite3.connect(place / "jobs")) as db:
            for id, kind, payload, state in db.execute("SELECT id, kind, payload, state FROM job"):
                yield JobRow(id=id, kind=kind, state=state, payload=json.loads(payload))

target = Foreign()
"""


def test_a_queue_without_hooks_history_or_audit_is_killed_and_judged_on_what_it_promises(
    place: Path,
) -> None:
    """Level 0: a client, a command line that pipes payloads to `killproof-effect`, a snapshot."""
    (place / "foreign.py").write_text(FOREIGN, encoding="utf-8")
    done = chaos(
        place, "run", "--target", "foreign.py", "--seconds", "1", "--workers", "3", "--nemesis",
        "kill,pause,lock", "--kills", "5", "--pauses", "2", "--seed", "1", "--store", "run",
    )  # fmt: skip

    verdict = json.loads((place / "run/verdict.json").read_text())
    assert verdict["counts"]["kills"] >= 1, done.stdout + done.stderr
    assert verdict["counts"]["pauses"] >= 1
    assert verdict["faults"]["kill"] >= 1, "a worker that says nothing is struck as well"
    assert "SIGTERM" not in str(verdict["unknown_because"]), "and asked to stop at the end"
    assert verdict["properties"]["P1"]["verdict"] == "pass", done.stdout + done.stderr
    assert verdict["properties"]["P2"]["verdict"] == "pass"
    assert verdict["properties"]["P5"]["verdict"] == "not_promised"


def test_a_run_is_replayed_by_its_store_and_by_its_token_and_ci_decides_on_unknown(
    place: Path,
) -> None:
    """The same plan each time, judged anew; without faults each of the runs is unknown."""
    words = ("--target", "minimal", "--seconds", "0.5", "--workers", "1", "--nemesis", "none")
    run = chaos(place, "run", *words, "--seed", "5", "--store", "first")
    token = json.loads((place / "first/verdict.json").read_text())["replay"].split()[-1]
    by_store = chaos(place, "replay", "first", "--store", "second", "--unknown", "pass")
    by_token = chaos(place, "replay", token, "--store", "third", "--unknown", "fail")
    printed = chaos(place, "replay", "first", "--plan-only")

    codes = (run.returncode, by_store.returncode, by_token.returncode)
    assert codes == (2, 0, 1), run.stderr + by_store.stderr + by_token.stderr
    first = (place / "first/plan.json").read_bytes()
    assert (place / "second/plan.json").read_bytes() == first
    assert (place / "third/plan.json").read_bytes() == first
    assert printed.returncode == 0
    assert printed.stdout.startswith("killproof chaos run --target minimal --seed 5 --workers 1")
    assert not (place / "first/report.html").exists(), "pages are asked for"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--workers", "0"), "--workers 0 must be an integer from 1 to 64"),
        (("run", "--mix", "half"), "--mix 'half' is unknown: use full or plain"),
        (("run", "--producers", "17"), "--producers 17 must be an integer from 1 to 16"),
        (("run", "--kills", "-1"), "--kills -1 must be an integer from 0 to 100000"),
        (("run", "--seconds", "nan"), "--seconds nan must be a number from 0.5 to 3600"),
        (("run", "--seconds", "x"), "--seconds"),
        (("run", "--seed", "-3"), "--seed -3 must be an integer from 0"),
        (("run", "--nemesis", "fire"), "--nemesis 'fire' is unknown: use kill, pause, term"),
        (("run", "--nemesis", ","), "--nemesis ',' names none"),
        (("run", "--target", "nope"), "target 'nope' is unknown: use "),
        (("run", "--target", "nope.py"), "target file 'nope.py' does not exist"),
        (("run", "--target", "json:nope"), "target 'json:nope' cannot be loaded"),
        (("run", "--jobs", "nope.jsonl"), "--jobs 'nope.jsonl' cannot be read"),
        (("run", "--store", "full"), "store 'full' is not empty: give a new folder"),
        (("run", "--junit", "nowhere/x.xml"), "--junit 'nowhere/x.xml' cannot be written"),
        (("run", "--unknown", "maybe"), "--unknown"),
        (("check", "nope"), "store 'nope' does not exist: give the folder of a run"),
        (("check", "full"), "run.json"),
        (("replay", "nope"), "'nope' is neither a store nor a token"),
        (("replay", "full"), "is no plan"),
        (("fly",), "fly"),
    ],
)
def test_bad_input_is_one_line_with_the_value_and_exit_64(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    """In this process: to start an interpreter for each costs more than all that it does."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["killproof", "chaos", *words])
    (place / "full").mkdir()
    (place / "full/something").write_text("")
    code = cli.main()
    said = capsys.readouterr()

    assert code == 64, said.out + said.err
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_the_list_of_targets_says_which_are_broken_and_how(place: Path) -> None:
    done = chaos(place, "targets", "--json")

    listed = {row["name"]: row for row in json.loads(done.stdout)}
    own = {"killproof", "killproof-process", "minimal", "canary"}
    assert set(listed) == own | set(gallery.names()) | set(public.names())
    sound = {name for name, row in listed.items() if not row["broken"]}
    assert sound == {"killproof", "killproof-process", "minimal", *public.names()}
    assert listed["litequeue"]["about"].startswith("litequeue ")
    assert listed["ack-without-fence"]["property"] == "P5"
    assert listed["killproof"]["level"] == 3
    assert "P1" in listed["minimal"]["promises"]


@pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C compiler, and the doctor says so"
)
def test_the_doctor_finds_this_machine_fit(place: Path) -> None:
    done = chaos(place, "doctor")

    assert done.returncode == 0, done.stdout
    assert "BAD" not in done.stdout


def test_the_doctor_says_what_cannot_run_without_a_compiler_and_how_to_get_one(
    place: Path,
) -> None:
    nothing = {"PATH": "", "CC": "", "XDG_CACHE_HOME": str(place)}
    done = chaos(place, "doctor", environment=nothing)

    assert done.returncode == 1, done.stdout
    assert "BAD  chaos crash, chaos disk, and --nemesis clock and io cannot run" in done.stdout
    assert "apt-get install gcc" in done.stdout
