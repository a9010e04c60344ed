"""The gate on real processes: small repositories, whole commands, nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from killproof_bench.gate import blocks, checkout
from killproof_bench.gate.checkout import Patch, Tree
from killproof_bench.gate.result import GateResult, Revision, from_json

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "queue"


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    done = subprocess.run(
        ["git", *named, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the queue's source as it is now, in one commit, and a second one."""
    folder = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("__pycache__", "*.orig", "*.rej")
    shutil.copytree(SOURCE / "killproof", folder / "queue" / "killproof", ignore=ignored)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=the queue")
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=more\n\nperf-ok: enqueue.fdatasync, get\n")
    checkout.compile_source(tree(folder))
    return folder


def tree(folder: Path) -> Tree:
    return Tree(revision=Revision(name="x", commit="", changed_files=0), folder=folder)


def test_uncommitted_changes_belong_to_the_head_and_nothing_is_left_behind(
    clone: Path, tmp_path: Path
) -> None:
    changed = clone / "queue" / "killproof" / "brand_new.py"
    changed.write_text("NEW = 1\n")
    removed = clone / "queue" / "killproof" / "first_run.py"
    kept = removed.read_text()
    removed.unlink()
    # A worktree of the user's on a disk that is away: git lists it, and is to go on doing so.
    git(clone, "worktree", "add", "--quiet", "--detach", str(tmp_path / "away"))
    shutil.rmtree(tmp_path / "away")
    try:
        with checkout.trees(tmp_path, "main~1", clone) as (base, head):
            assert len(str(base.folder)) == len(str(head.folder))
            assert head.revision.changed_files == 2
            assert (head.source / "killproof" / "brand_new.py").read_text() == "NEW = 1\n"
            assert not (head.source / "killproof" / "first_run.py").exists()
            assert (base.source / "killproof" / "first_run.py").exists()
            assert base.revision.commit == git(clone, "rev-parse", "main~1").strip()
            named = checkout.trailers(clone, base.revision.commit, head.revision.commit)
            assert named == ("enqueue.fdatasync", "get")
    finally:
        changed.unlink()
        removed.write_text(kept)

    listed = git(clone, "worktree", "list").splitlines()
    git(clone, "worktree", "prune")
    assert [Path(line.split()[0]).name for line in listed] == [clone.name, "away"]
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_revision_is_bad_input(clone: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="--base 'nowhere' is no revision"),
        checkout.trees(tmp_path, "nowhere", clone),
    ):
        raise AssertionError("nothing to compare")
    with (
        pytest.raises(ValueError, match="is not in a git checkout"),
        checkout.trees(tmp_path, "main", tmp_path),
    ):
        raise AssertionError("nothing to compare")


def test_a_block_is_four_arms_in_which_each_job_was_done_once(clone: Path, tmp_path: Path) -> None:
    side = tree(clone)
    load = blocks.Load(workers=1, durability="power", seconds=0.05, backlog=6_000)

    measured = blocks.run_block(tmp_path, side, side, load, Random(1), 0)

    assert measured.block.order in blocks.ORDERS
    assert min(measured.block.ops) > 0
    assert measured.jobs >= sum(measured.block.ops)
    assert list(tmp_path.iterdir()) == []


def test_an_arm_that_does_not_ack_what_it_says_voids_the_run(clone: Path, tmp_path: Path) -> None:
    anchor = "tx.change(self.RECORD, values)"
    patch = Patch(file="queue/killproof/core/jobs.py", anchor=anchor, text="pass")
    broken = checkout.patched(tree(clone), (patch,), tmp_path / "broken")
    load = blocks.Load(workers=1, durability="power", seconds=0.05, backlog=6_000)

    with pytest.raises(blocks.Incorrect, match=r"^broken: .*not stored as succeeded"):
        blocks.run_arm(tmp_path, broken, load, hash_seed=1, job_seed=1)


def test_a_worker_that_dies_says_whose_it_was_and_why_however_much_it_said(tmp_path: Path) -> None:
    package = tmp_path / "head" / "queue" / "killproof"
    package.mkdir(parents=True)
    # More than a pipe holds.
    program = (
        "import sys\nsys.stderr.write('x' * 100_000 + '\\n')\nraise RuntimeError('no queue')\n"
    )
    (package / "__init__.py").write_text(program)
    load = blocks.Load(workers=1, durability="power", seconds=0.05, backlog=10)

    with pytest.raises(blocks.ArmError, match=r"^head: a worker ended with status 1: .*no queue"):
        blocks.run_arm(tmp_path, tree(tmp_path / "head"), load, hash_seed=1, job_seed=1)


def test_the_whole_gate_finds_an_extra_sync_that_no_trailer_names_and_nothing_else(
    clone: Path,
) -> None:
    barrier = clone / "queue" / "killproof" / "core" / "barrier.py"
    kept = barrier.read_text()
    once = "            os.fdatasync(self._descriptor)\n"
    assert kept.count(once) == 1
    barrier.write_text(kept.replace(once, once + once))
    summary = clone.parent / "summary.md"
    options = ("--base", "main~1", "--layer", "0", "--json", "--junit", "../gate.xml")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "killproof", "bench", "gate", *options],
            cwd=clone,
            env=os.environ | {"GITHUB_STEP_SUMMARY": str(summary)},
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        barrier.write_text(kept)

    assert done.returncode == 1, done.stderr
    result = from_json(done.stdout)
    assert isinstance(result, GateResult)
    assert json.loads(done.stdout)["verdict"] == "fail"
    rose = {counter.name for counter in result.counters.counters if counter.rose}
    assert {"enqueue.fdatasync", "ack-and-claim.fdatasync"} <= rose
    # All else was counted equally to the last digit, by other processes at another path.
    differ = {counter.name for counter in result.counters.counters if counter.base != counter.head}
    assert {name.rpartition(".")[2] for name in differ} == {"fdatasync", "python-calls"}
    (each,) = (c for c in result.counters.counters if c.name == "ack-and-claim.transactions")
    assert each.base == each.head == 1
    excused = {counter.name for counter in result.counters.counters if counter.excused}
    assert "enqueue.fdatasync" in excused
    assert not any(reason.startswith("enqueue.fdatasync") for reason in result.counters.because)
    assert "bench gate: fail" in summary.read_text()
    assert "<failure" in (clone.parent / "gate.xml").read_text()
