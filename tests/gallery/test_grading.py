"""A repaired gallery queue passes its grading; a broken one, a cheat and a slip do not.

The grading forks, so it is asked in a process of its own, which grades all files of a kind: each of
them is the copy that `--copy` makes, with a few lines changed.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from killproof_chaos import gallery, gallery_command, grading, grading_command, targets
from killproof_evidence.target import TargetNotFound

SECONDS_MAX: Final = 600.0
Changes = tuple[tuple[str, str], ...]  #: text of the copy -> what a reader makes of it
NEVER_REAPS: Final = 'REAP = "UPDATE job SET error = error WHERE FALSE AND deadline_ns <= ?"'

#: The exercise of each lesson, and one repair of it, which the lessons do not show.
REPAIRS: Final[dict[str, Changes]] = {
    "rescues-by-id": (
        ("WHERE id = ?", "WHERE id = ? AND state = 'leased' AND deadline_ns <= ?"),
        ("for found in lost", "for (job,) in lost"),
        ("(self.RESCUE, found)", "(self.RESCUE, (job, time.monotonic_ns()))"),
    ),
    "reaps-at-start-only": (
        (
            'AT_START, REAP = MinimalQueue.REAP, "UPDATE job SET error = error WHERE FALSE AND '
            'fence = ?"',
            "AT_START = MinimalQueue.REAP",
        ),
    ),
    "extend-without-fence": (("? > 0", "fence = ?"),),
    "reaper-forgets-the-bound": (
        ("state = 'available'", "state = iif(attempts < max_attempts, 'available', 'dead')"),
    ),
    "reserves-after-effect": (
        ("INSERT INTO applied", "INSERT OR IGNORE INTO applied"),
        (
            """            with self.writing("ack") as db:
                for statement in also:
                    db.execute(*statement)
            also = ((self.APPLIED, (lease.id,)),)
""",
            "            also = (*also, (self.APPLIED, (lease.id,)))\n",
        ),
    ),
    "frees-key-at-claim": (("key = NULL,", ""),),
    "due-in-local-time": ((", '+1 hour'", ""),),
    "one-failure-stops-all": (
        ("CLAIM = MinimalQueue.CLAIM.replace(", "BEFORE = MinimalQueue.CLAIM.replace("),
    ),
    "fails-fast": (("busy_timeout = 0", "busy_timeout = 30000"),),
    "limit-never-given-back": (("NEW.state = ''succeeded''", "NEW.state <> ''leased''"),),
}
#: Of these the whole search takes too long for a test; so much of it catches the broken one, too.
SHORTER: Final = {"limit-never-given-back": ("--bound", "1")}
#: Likewise, where what must catch the broken one takes longer than a test may: shorter options that
#: catch it too.
SLOW_REPAIRS: Final[dict[str, tuple[Changes, tuple[str, ...]]]] = {
    "acknowledges-before-fsync": (
        (
            (
                """        if os.path.exists(self.log):
            descriptor = os.open(self.log, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.close(descriptor)
        with super().writing(operation) as db:
            yield db
""",
                """        try:
            with super().writing(operation) as db:
                yield db
        finally:  # A refusal may rest on what another has committed a moment ago.
            descriptor = os.open(self.log, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.close(descriptor)
""",
            ),
        ),
        ("disk", "--points", "20", "--jobs", "20", "--seed", "11"),
    ),
    "copies-without-log": (
        (
            ("import shutil\n", "import sqlite3\nfrom contextlib import closing\n"),
            (
                "        shutil.copyfile(self._queue.path, copy)\n",
                """        with (
            closing(sqlite3.connect(self._queue.path)) as live,
            closing(sqlite3.connect(copy)) as to,
        ):
            live.backup(to)
""",
            ),
        ),
        ("run", "--seconds", "2", "--nemesis", "none", "--workers", "2", "--seed", "11"),
    ),
}

#: What a learner may hand in for `never-reaps` instead of a repair, and what he is told.
CHEATS: Final[dict[str, tuple[Changes, str]]] = {
    "promises less": (
        (
            ("target: Final = ", "target = "),
            (
                "NeverReaps, FAULT)",
                "NeverReaps, FAULT)\ntarget.contract = type(target.contract)(\n    promises={**"
                'target.contract.promises, "P17": False},\n    parameters=target.contract.'
                "parameters,\n    edges=target.contract.edges,\n)",
            ),
        ),
        "P17 was True and is False",
    ),
    "allows more": (
        (
            ("target: Final = ", "target = "),
            (
                "NeverReaps, FAULT)",
                "NeverReaps, FAULT)\ntarget.contract = type(target.contract)(\n    promises="
                "target.contract.promises,\n    parameters={**target.contract.parameters, "
                '"lease_ms": 9_000_000},\n    edges=target.contract.edges,\n)',
            ),
        ),
        "lease_ms = 9000000 where it said 500",
    ),
    "is not audited": (
        (("NeverReaps, FAULT)", "NeverReaps, FAULT)\ntarget.audit = None"),),
        "audit mapping",
    ),
    "does nothing": (
        ((NEVER_REAPS, "def claim(self):\n        return None"),),
        "`claim` gives None",
    ),
    "refuses all work": (
        (
            (
                NEVER_REAPS,
                "def enqueue(self, *values, **options):\n        from killproof_evidence.target "
                'import Definite\n        raise Definite("no")',
            ),
        ),
        "refuses all work",
    ),
    "misspells a name": (
        ((NEVER_REAPS, "def claim(self):\n        return nonsense"),),
        ", in claim: NameError",
    ),
    "never ends": (
        ((NEVER_REAPS, "def claim(self):\n        while True:\n            self.db"),),
        "line 2",
    ),
}
#: Which has a daemon left of each process that has loaded it, and does not repair anything.
DAEMONS: Final[Changes] = (
    (
        "target: Final",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
        "    os._exit(0)\ntarget: Final",
    ),
)
#: A repair of `never-reaps` that hears zombies.
BREAKS_ANOTHER: Final[Changes] = (
    (NEVER_REAPS, ""),
    (
        '"""Trust every worker to come back."""',
        "ACK = MinimalQueue.ACK.replace('fence = ?', '? > 0')",
    ),
)
#: Files that are no queue at all, and what is said of them.
UNUSABLE: Final[dict[str, tuple[str, str]]] = {
    "has a slip": ("x = 1\ny = (\n", "line 2"),
    "has no target": ("x = 1\n", "defines no `target`"),
    "breaks at import": ("x = 1\nx = x / 0\n", "line 2, in <module>: ZeroDivisionError"),
    "exits": ("raise SystemExit(0)\n", "SystemExit"),
    "is no text": ("x = 1\n\0", "is no text in Python"),
    "prints without end": ("while True:\n    print('x' * 1_000_000)\n", "line 2"),
    "takes all memory": (  # It asks, and touches none of it.
        "import mmap\nmmap.mmap(-1, 5 * 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n",
        "line 2, in <module>: OSError: [Errno 12]",
    ),
}


def changed(name: str, changes: Changes) -> str:
    """Return the copy that a reader begins with, repaired as these changes say."""
    fault = gallery.fault(name)
    text = gallery_command.file_of(fault).read_text(encoding="utf-8")
    text = grading_command.without_answer(text)
    for before, after in changes:
        assert before in text, f"{name} has no {before!r} any more"
        text = text.replace(before, after)
    return text


ASK: Final = """
import json, sys
from killproof_chaos import gallery, grading
import psutil
from dataclasses import replace
from killproof_chaos import grading_process
grading.LOOK_CPU_SECONDS_MAX = 1  # Of the processor, so a busy machine does not matter.
for line in sys.stdin:
    name, file, stages, more = json.loads(line)
    fault = gallery.fault(name)
    fault = replace(fault, options=(*fault.options, *more))
    found = grading.grade(fault, file, stages_max=stages).record()
    print(json.dumps(found | {"left": [each.pid for each in psutil.Process().children()]}))
"""


@pytest.fixture(scope="module")
def graded(
    on_disk: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the grading says of every file above: of a repair, by what must catch the broken one."""
    place = on_disk(tmp_path_factory.mktemp("grading"))
    asked: dict[str, tuple[str, str, int]] = {}
    for name, changes in REPAIRS.items():
        asked[name] = (name, changed(name, changes), 1)
    asked["daemons"] = ("never-reaps", changed("never-reaps", DAEMONS), 1)
    asked["breaks another"] = ("never-reaps", changed("never-reaps", BREAKS_ANOTHER), 2)
    for cheat, (changes, _) in CHEATS.items():
        asked[cheat] = ("never-reaps", changed("never-reaps", changes), 0)
    for kind, (text, _) in UNUSABLE.items():
        asked[kind] = ("never-reaps", text, 0)
    lines = []
    for case, (name, text, stages) in asked.items():
        file = place / f"{case.replace(' ', '_')}.py"
        file.write_text(text, encoding="utf-8")
        lines.append(json.dumps((name, file.name, stages, SHORTER.get(case, ()))))
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input="\n".join(lines),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    kept = {Path(each["evidence"]).parent.name for each in found if each["evidence"]}
    assert {each.name for each in (place / "killproof-store").iterdir()} == kept
    return dict(zip(asked, found, strict=True))


def command(place: Path, *words: str, group: str = "gallery") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "killproof", "chaos", group, *words],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


@pytest.mark.parametrize("name", REPAIRS)
def test_the_exercise_of_a_lesson_can_be_repaired(graded: dict[str, Any], name: str) -> None:
    assert (graded[name]["verdict"], graded[name]["broken"]) == ("pass", []), graded[name]
    assert len(graded[name]["steps"]) == 2


@pytest.mark.parametrize("name", SLOW_REPAIRS)
def test_the_exercise_about_disks_or_backups_can_be_repaired(place: Path, name: str) -> None:
    """With the same options the broken one is violated; a machine too slow to see is no failure."""
    changes, (engine, *options) = SLOW_REPAIRS[name]
    (place / "mine.py").write_text(changed(name, changes), encoding="utf-8")

    done = command(place, "--target", "mine.py", *options, "--json", "--no-report", group=engine)

    found = json.loads(done.stdout)
    assert found["properties"][gallery.fault(name).promise]["verdict"] in {"pass", "unknown"}
    assert found["verdict"] != "violated", found


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_is_no_repair_does_not_pass_and_is_told_why(
    graded: dict[str, Any], cheat: str
) -> None:
    found = graded[cheat]

    assert (found["verdict"], found["is_unusable"]) == ("violated", False)
    assert CHEATS[cheat][1] in found["steps"][-1]["said"]


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_file_that_is_no_queue_is_refused_with_its_line(
    graded: dict[str, Any], kind: str
) -> None:
    assert graded[kind]["is_unusable"]
    assert UNUSABLE[kind][1] in graded[kind]["steps"][-1]["said"]


def test_a_repair_passes_all(place: Path) -> None:
    good = changed("never-reaps", ((NEVER_REAPS, ""),))
    (place / "good.py").write_text(good, encoding="utf-8")

    passed = command(place, "never-reaps", "--grade", "good.py")

    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "passed: never-reaps is repaired" in passed.stdout
    assert [word in passed.stdout for word in ("(sim)", "(disk)", "(crash)")] == [True] * 3


def test_a_repair_that_breaks_something_else_does_not_pass(
    graded: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = dict(graded["breaks another"])
    del found["left"]
    steps = [grading.Step(**step) for step in found.pop("steps")]
    fault = gallery.fault("never-reaps")

    assert [step.verdict for step in steps] == ["pass", "pass", "violated"]
    grading_command.tell(grading.Grade(**found, steps=steps), fault, hint=True)
    told = capsys.readouterr().out
    assert re.search("not yet: P[35] is broken now", told), told
    assert f"right: {fault.right}" in told


def test_what_a_graded_file_has_started_is_ended_with_it(graded: dict[str, Any]) -> None:
    assert graded["daemons"]["broken"] == ["P17"]
    assert [each["left"] for each in graded.values()] == [[]] * len(graded)


def test_a_grading_that_is_killed_takes_its_processes_along(place: Path) -> None:
    waits = "import time\nprint('waits', flush=True)\ntime.sleep(600)\n"
    (place / "waits.py").write_text(waits, encoding="utf-8")
    grading_alone = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "killproof",
            "chaos",
            "gallery",
            "never-reaps",
            "--grade",
            "waits.py",
        ],
        cwd=place,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + SECONDS_MAX
    while not any("waits" in log.read_text() for log in place.glob("killproof-store/*/look")):
        assert time.monotonic() < until
        time.sleep(0.02)
    [child] = psutil.Process(grading_alone.pid).children()

    grading_alone.kill()
    grading_alone.wait()

    child.wait(SECONDS_MAX)


def test_a_copy_has_no_answer_and_overwrites_nothing(place: Path) -> None:
    fault = gallery.fault("never-reaps")
    copy = place / "mine.py"

    grading_command.copy(fault, copy)

    assert fault.right not in copy.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.py' exists"):
        grading_command.copy(fault, copy)
    with pytest.raises(ValueError, match="cannot be written"):
        grading_command.copy(fault, place / "nowhere" / "mine.py")
    with pytest.raises(ValueError, match="a name that ends in"):
        grading_command.copy(fault, place / "mine.txt")


def test_a_copy_for_which_the_disk_has_no_room_is_not_left_half(place: Path) -> None:
    """The kernel refuses a file of more than a few bytes, as it does when the disk is full."""
    code = """if True:
        import pathlib, resource
        from killproof_chaos import gallery, grading_command
        fault = gallery.fault("never-reaps")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            grading_command.copy(fault, pathlib.Path("half.py"))
        except ValueError as error:
            print(error)
    """
    told = subprocess.check_output([sys.executable, "-c", code], cwd=place, text=True)

    assert "'half.py' cannot be written (File too large)" in told
    assert not (place / "half.py").exists()


def test_every_gallery_file_can_be_copied_and_loaded_from_there(place: Path) -> None:
    for name in gallery.names():
        copy = place / f"{name}.py"
        grading_command.copy(gallery.fault(name), copy)
        try:
            target: Any = targets.load(str(copy))
        except TargetNotFound as error:
            pytest.fail(f"{name}: {error}")
        assert target.name == name


def test_the_worker_of_a_copy_is_the_copy_and_not_the_queue_whose_name_it_kept(
    place: Path,
) -> None:
    copy = place / "mine.py"
    grading_command.copy(gallery.fault("never-reaps"), copy)
    target: Any = targets.load(str(copy))

    assert target.worker_argv(place)[-2:] == [str(copy), str(place)]
    assert gallery.target("never-reaps").worker_argv(place)[-2] == "never-reaps"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"copy": Path("x.py")}, "need the NAME"),
        ({"grade": Path("x.py")}, "need the NAME"),
        ({"name": "never-reaps", "copy": Path("x.py"), "grade": Path("y.py")}, "two commands"),
        ({"name": "never-reaps", "hint": True}, "--hint needs --grade"),
        ({"name": "never-reaps", "grade": Path("no.py")}, "is no Python file"),
    ],
)
def test_options_that_do_not_go_together_say_what_to_do(
    options: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ValueError, match=remedy):
        gallery_command.show(**({"name": None} | options))


def test_every_engine_that_draws_is_asked_with_several_seeds() -> None:
    for name in gallery.names():
        stages = grading.catching(gallery.fault(name))
        drawn = [stage for stage in stages if "--seed" in stage.argv]

        if gallery.fault(name).engine in grading.DRAWN:
            assert len({stage.argv for stage in drawn}) >= 3, name
