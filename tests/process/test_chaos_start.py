"""What a command of `killproof chaos` waits for before it acts: what it needs, and no more."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from killproof import cli

JUDGE = ("killproof_evidence.checkers", "killproof_evidence.judge")
#: What takes long to import, and what only one command acts with.
HEAVY = {
    *("bokeh", "greenlet", "jinja2", "multiprocessing", "numpy", "psutil", "rich.progress"),
    *("scipy", "killproof_chaos.coverage", "killproof_chaos.doctor", "killproof_chaos.grading"),
    *("killproof_chaos.engines.crash", "killproof_chaos.engines.crew"),
    *("killproof_chaos.engines.disk", "killproof_chaos.engines.disk_model"),
    *("killproof_chaos.engines.model", "killproof_chaos.engines.proc"),
    *("killproof_chaos.power.trials", "killproof_chaos.report", "killproof_chaos.report_crash"),
    *("killproof_chaos.sim", "killproof_chaos.summary", *JUDGE),
    *cli.MODULES,  # The queue's own commands.
}
#: What each engine brings of it: the crew is how processes are started, coverage what they owe.
SIM = ("greenlet", "killproof_chaos.sim", "killproof_chaos.coverage", "multiprocessing")


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["targets"], ()),
        (["gallery", "acks-at-claim"], JUDGE),
        (["model", "--guards"], ("killproof_chaos.engines.model", *JUDGE)),
        (["sim", "--scenarios"], (*SIM, "killproof_chaos.engines.crew", *JUDGE)),
    ],
    ids=["targets", "gallery", "model", "sim"],
)
def test_a_command_waits_for_no_import_of_another(
    place: Path, command: list[str], needed: tuple[str, ...]
) -> None:
    gone = {name for name in HEAVY if find_spec(name) is None}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "killproof", "chaos", *command],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    assert not gone, "a name that is no module any more guards nothing"
    assert (done.returncode, "killproof_chaos.command" in imported) == (0, True)
    assert imported & HEAVY == set(needed)
