"""Environments of their own, made of local packages; and a queue driven inside one. No network."""

import base64
import hashlib
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from killproof_bench.peers import judging, run
from killproof_bench.peers.catalog import Peer
from killproof_bench.peers.drivers.loop import Spec, count
from killproof_bench.peers.processes import Contender, PeerFailed, Workers
from killproof_bench.peers.run import Bench, Plan
from killproof_chaos import targets
from killproof_chaos.lint import surroundings
from killproof_evidence import isolated
from killproof_evidence.isolated import Installed, NodePeer, NotInstalled, Package, PythonPeer

#: Generous: what is waited for comes in milliseconds on a quiet machine.
DEADLINE_SECONDS = 60.0
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

#: A queue of somebody else: one table, a claim and an ack. Its moods are what is to be noticed.
FAKE = """
import os, sqlite3

class Queue:
    def __init__(self, path, mood):
        self.mood = mood
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, state INTEGER)")
        self.db.execute("CREATE TABLE IF NOT EXISTS acks (n INTEGER)")

    def put(self, numbers):
        self.db.executemany("INSERT INTO t VALUES (?, 0)", [(n,) for n in numbers])

    def take(self):
        self.db.execute("BEGIN IMMEDIATE")
        row = self.db.execute("SELECT min(n) FROM t WHERE state = 0").fetchone()
        if row[0] is not None and self.mood != "repeats":
            self.db.execute("UPDATE t SET state = 1 WHERE n = ?", row)
        if row[0] is not None and self.mood == "loses" and row[0] % 2:
            self.db.execute("DELETE FROM t WHERE n = ?", row)
            row = (None,)
        self.db.execute("COMMIT")
        return row[0]

    def finish(self, n):
        self.db.execute("INSERT INTO acks VALUES (?)", (n,))
        if self.mood != "repeats":
            self.db.execute("UPDATE t SET state = 2 WHERE n = ?", (n,))
"""

DRIVER = """
import tinyfake
from killproof_bench.peers.drivers.loop import count, pragmas, set_synchronous

class Driver:
    def __init__(self, spec):
        self.path = spec.folder + "/fake.db"
        self.queue = tinyfake.Queue(self.path, spec.arm)
        set_synchronous(self.queue.db, spec)
    def seed(self, payloads):
        self.queue.put([payload["n"] for payload in payloads])
    def facts(self):
        return pragmas(self.queue.db)
    def claim(self):
        n = self.queue.take()
        return None if n is None else (n, n)
    def ack(self, token):
        self.queue.finish(token)
    def account(self):
        return {"waiting": count(self.path, "t", "state = 0"),
                "claimed": count(self.path, "t", "state = 1")}
    def close(self):
        self.queue.db.close()

def open_queue(spec):
    return Driver(spec)
"""


def wheel(folder: Path, name: str, source: str) -> Path:
    """Make a wheel by hand: a build would ask an index for its tools."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items()
    )
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(file, text)
    return path


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Shelf:
    """A folder of wheels, one of environments, and what was made twice over at once."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.environments = folder / "wheels", folder / "environments"
        self.wheels.mkdir()
        self.log = folder / "pip.log"
        self.file = wheel(self.wheels, "tinyfake", FAKE)
        digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        self.peer = PythonPeer(
            name="tinyfake",
            python=PYTHON,
            packages=(Package(name="tinyfake", version="1.0", sha256=(digest,)),),
            pip_options=("--no-index", f"--find-links={self.wheels}", f"--log={self.log}"),
        )
        # What a builder that was killed leaves behind: a folder, and no mark.
        self.half = isolated._place(self.environments, "tinyfake", repr(self.peer))
        (self.half / "bin").mkdir(parents=True)
        (self.half / "bin" / "leftover").touch()
        forged = replace(
            self.peer,
            name="forged",
            packages=(Package(name="tinyfake", version="1.0", sha256=("0" * 64,)),),
        )
        with ThreadPoolExecutor(3) as pool:
            made = [
                pool.submit(isolated.ensure_python, peer, folder=self.environments)
                for peer in (self.peer, self.peer, forged)
            ]
            self.made: list[Installed] = [each.result() for each in made[:2]]
            # Made here: of the two above one only waits, and pip takes its time.
            self.refusal = made[2].exception()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    with pytest.MonkeyPatch.context() as patch:
        # Whatever index this machine is told to use: none is asked.
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        yield Shelf(tmp_path_factory.mktemp("shelf"))


def test_two_that_ask_at_once_get_one_environment_and_what_was_half_made_is_gone(
    shelf: Shelf,
) -> None:
    assert shelf.made[0] == shelf.made[1]
    assert dict(shelf.made[0].versions) == {"tinyfake": "1.0"}
    assert shelf.log.read_text().count("Successfully installed") == 1
    assert not (shelf.half / "bin" / "leftover").exists()


def test_the_second_use_starts_nothing(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)

    assert isolated.ensure_python(shelf.peer, folder=shelf.environments) == shelf.made[0]


def test_an_environment_whose_python_is_gone_is_not_ready(shelf: Shelf, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(shelf.made[0].folder / isolated.MARK, copy)

    assert isolated._ready(copy) is None


def test_a_file_of_another_hash_is_refused_in_one_line_and_leaves_nothing(shelf: Shelf) -> None:
    assert isinstance(shelf.refusal, NotInstalled)
    assert re.fullmatch(r"pip install of forged failed: [^\n]+", str(shelf.refusal))
    assert [path.suffix for path in shelf.environments.glob("forged-*")] == [".lock"]


def test_an_environment_whose_mark_a_power_cut_emptied_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / isolated.MARK).touch()

    assert isolated._ready(tmp_path) is None


def test_a_python_that_is_not_here_is_named_with_the_remedy() -> None:
    with pytest.raises(NotInstalled, match=r"Python 3\.99 is not here: .*pyenv install 3\.99"):
        isolated.find_python("3.99")


def test_what_a_dead_builder_left_running_still_holds_the_name(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "for f in os.listdir('/proc/self/fd'):\n"
        "    try: print(os.readlink('/proc/self/fd/' + f))\n"
        "    except OSError: pass\n"
    )
    place = tmp_path / "peer-1"

    with isolated._alone(place) as lock:
        seen = isolated._run([sys.executable, "-c", program], "a builder's child", lock)

    assert f"{place}.lock" in seen.split()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(NotInstalled, match=r"set \$KILLPROOF_PEERS"), isolated._alone(file / "x"):
        raise AssertionError


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"KILLPROOF_PEERS": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/killproof/peers"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/killproof/peers"),
    ],
)
def test_the_cache_lies_where_the_user_said(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KILLPROOF_PEERS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert isolated.default_folder() == Path(folder)


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_a_node_package_is_installed_into_a_folder_of_its_own(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "package.json").write_text(json.dumps({"name": "tinyfake", "version": "1.0.0"}))
    peer = NodePeer(
        name="node-fake",
        packages=(Package(name="tinyfake", version=f"file:{source}"),),
        npm_options=("--offline", f"--cache={tmp_path / 'npm'}"),
    )

    made = isolated.ensure_node(peer, folder=tmp_path / "environments")

    assert dict(made.versions) == {"tinyfake": "1.0.0"}
    assert (made.folder / "node_modules" / "tinyfake" / "package.json").exists()
    assert isolated.ensure(peer, folder=tmp_path / "environments") == made


# A queue in such an environment, driven as all others are.


def contender(shelf: Shelf, folder: Path, mood: str) -> Contender:
    driver = folder / "tinyfake_driver.py"
    driver.write_text(DRIVER)
    peer = Peer(
        name=mood,
        url="",
        claim_call="take",
        ack_call="finish",
        durability_how="",
        gaps=(),
        packages=shelf.peer,
        driver=str(driver.with_suffix("")),
    )
    made = shelf.made[0]
    return Contender(peer=peer, program=str(made.program), runtime=made.runtime, packages=())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def one_round(told: Contender, folder: Path, *, jobs: int) -> judging.Counted:
    place = folder / "queue"
    place.mkdir()
    spec = Spec(
        mode="seed",
        arm=told.peer.name,
        folder=str(place),
        level="seed",
        jobs=jobs,
        payload_bytes=100,
        calls_max=1_000_000,
    )
    told.ask(spec)
    with ExitStack() as stack:
        workers = stack.enter_context(
            Workers(told, replace(spec, mode="work", level="power"), 1, 1)
        )
        workers.wait_until_ready()
        workers.go(DEADLINE_SECONDS)
        wait_until(lambda: count(f"{place}/fake.db", "acks") >= 2)
        workers.stop()
        outcome = workers.finish()
    assert outcome.facts["synchronous"] == "FULL"
    left = told.ask(replace(spec, mode="account", level="power"))
    return judging.judge(outcome, jobs, left, ours=False)


def test_a_queue_that_hands_a_job_out_again_is_seen(shelf: Shelf, tmp_path: Path) -> None:
    counted = one_round(contender(shelf, tmp_path, "repeats"), tmp_path, jobs=500)

    assert counted.acked_twice == 1
    assert counted.correctness.verdict == "violated"


def test_a_queue_that_loses_jobs_is_seen(shelf: Shelf, tmp_path: Path) -> None:
    counted = one_round(contender(shelf, tmp_path, "loses"), tmp_path, jobs=500)

    assert counted.lost > 0
    assert "are gone without an ack" in counted.correctness.because[0]


def test_a_process_that_fails_says_why(shelf: Shelf, tmp_path: Path) -> None:
    told = contender(shelf, tmp_path, "honest")
    broken = Spec(mode="account", arm="honest", folder=str(tmp_path / "nowhere"), level="power")

    with pytest.raises(PeerFailed, match="unable to open database file"):
        told.ask(broken)


def test_a_run_puts_killproof_the_reference_and_a_queue_beside_each_other(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(isolated.FOLDER_VARIABLE, str(shelf.environments))
    # Nothing is compared here, so nothing has to settle between rounds.
    monkeypatch.setattr(run, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(run, "RAW_SECONDS", 0.01)
    honest = contender(shelf, tmp_path, "honest").peer
    absent = replace(honest, name="absent", packages=replace(shelf.peer, python="3.99"))
    plan = Plan(peers=(honest, absent), workers=(1,), seconds=0.1, warmup_seconds=0.0, rounds=1)
    folder = tmp_path / "run"
    folder.mkdir()

    bench = Bench(plan, folder, {"filesystem": "", "cpu": ""})
    bench.prepare(lambda text: None)
    bench.run(lambda step, seconds: None)

    cells = {cell.contender: cell for cell in bench.cells()}
    assert set(cells) == {"killproof", "reference", "honest"}
    assert {cell.level for cell in cells.values()} == {"power"}
    assert {cell.correctness.verdict for cell in cells.values()} <= {"pass", "unknown"}
    assert {each.contender for each in judging.compare(bench.cells())} == {"reference", "honest"}
    states = {each.name: (each.state, each.because) for each in bench.contenders()}
    assert states["honest"] == ("measured", "")
    assert states["absent"][0] == "not installed"
    assert "Python 3.99 is not here" in states["absent"][1]


@pytest.mark.parametrize("name", ["plainjob", "litequeue"])
def test_where_an_environment_of_either_kind_cannot_be_made_the_lint_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target = targets.load(name)
    (tmp_path / "file").touch()
    monkeypatch.setenv(isolated.FOLDER_VARIABLE, str(tmp_path / "file"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    [remark] = surroundings.remarks(target, Path.cwd())

    assert (remark.where, remark.weight) == ("surroundings", "problem")
    assert "the queue's environment cannot be made: " in remark.text
