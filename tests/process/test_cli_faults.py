"""A disk that fails under the command line: one line that says what to do, never a trace.

One process under the shim has imported the command line and forks each command, so that every
file call of a command can fail in its turn.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from killproof import Queue
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.calls import Action
from killproof_chaos.shim.control import Control, Rule
from killproof_chaos.shim.environment import preload_environment

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

DRIVER = """
import json, os, sys
from killproof import cli, worker, maintenance
from killproof_chaos.shim.notes import Shim
shim = Shim()
sys.path.insert(0, os.getcwd())
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["killproof", *json.loads(line)]
        shim.arm()
        code = 70
        try:
            code = cli.main()
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdout.flush(); sys.stderr.flush()
            os._exit(code)
    print(json.dumps([pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]), flush=True)
"""
#: Ends its worker after one job.
MODULE = """
import os, signal
from killproof.worker import Handlers
handlers = Handlers()
@handlers("report")
def report(context):
    os.kill(os.getpid(), signal.SIGTERM)
"""
#: Each command, and how far apart its calls are that fail here.
COMMANDS = {
    "enqueue": (["enqueue", "report", "{}"], 11),
    "status": (["status"], 13),
    "cancel": (["cancel", "1"], 13),
    "doctor": (["doctor"], 29),
    "work": (["work", "jobs_of_this_test", "--grace", "1", "--log-level", "error"], 37),
}


class Terminal:
    """Runs commands on a queue whose calls fail."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "template").mkdir()
        (place / "db").mkdir()
        (place / "jobs_of_this_test.py").write_text(MODULE)
        with Queue(place / "template/queue.db") as queue:
            queue.enqueue("report", {})
        self.control = Control.create(place / "control", watch=place / "db", armed=False)
        self.driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=place,
            env=os.environ | preload_environment(self.control) | {"KILLPROOF_DB": "db/queue.db"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, words: list[str], rule: Rule | None, *, anew: bool = True
    ) -> tuple[int, str, int]:
        """Run a command on fresh files; return its exit code, its stderr, and its calls."""
        if anew:
            shutil.rmtree(self.place / "db")
            shutil.copytree(self.place / "template", self.place / "db")
        self.control.clear_rules()
        if rule is not None:
            self.control.set_rule(rule)
        assert self.driver.stdin is not None
        assert self.driver.stdout is not None
        print(json.dumps(words), file=self.driver.stdin, flush=True)
        pid, code = json.loads(self.driver.stdout.readline())
        process = self.control.process(pid)
        assert process is not None
        return code, (self.place / "err").read_text(errors="replace"), process.calls

    def close(self) -> None:
        """End the driver."""
        self.driver.communicate(timeout=30)
        self.control.close()


@pytest.fixture
def terminal(place: Path) -> Iterator[Terminal]:
    """A terminal in a folder on a real disk."""
    opened = Terminal(place)
    yield opened
    opened.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_failing_disk_gives_one_line_and_an_exit_code_never_a_trace(
    terminal: Terminal, command: str
) -> None:
    words, step = COMMANDS[command]
    code, told, calls = terminal.run(words, None)
    assert code == 0, told
    assert calls > 10

    failed = 0
    for number in range(1, calls + 1, step):
        rule = Rule(action=Action.FAIL, value=ENOSPC if number % 2 else EIO, first=number)
        code, told, _ = terminal.run(words, rule)
        where = f"call {number} of {command}: exit {code}, {told}"
        assert code in (0, 1, 3, 64), where
        for word in ("Traceback", "internal error", "cannot rollback"):
            assert word not in told, where
        if code in (3, 64) and command != "work":
            failed += 1
            assert len(told.splitlines()) == 1, where
            code, told, _ = terminal.run(["enqueue", "report", "{}"], None, anew=False)
            assert code == 0 or "doctor --repair" in told, f"{where}; then {told}"
    assert failed or command == "work" or command == "doctor"
