"""The power is cut for real recordings: the healthy queue loses nothing, the hasty ones are caught.

Goal: the engine sees what no kill can show, and believes no recording that is not whole. Method:
the command is run on each queue with few points; one recording is spoiled in every way that could
make a verdict empty. The shim's absence is a PATH without a compiler and an empty cache.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from killproof_chaos import command, disk_command, targets
from killproof_chaos.cli import app
from killproof_chaos.engines import disk
from killproof_chaos.engines.disk_policy import Policy
from killproof_chaos.engines.disk_record import Recording, load, record
from killproof_chaos.engines.disk_verdict import Options
from killproof_chaos.memory import MEMORY, PREFIX
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.calls import SYNCS, File, Kind
from killproof_chaos.shim.log import Begin, End, Note
from killproof_evidence.store import Store, StoreError

SECONDS_MAX = 120.0
SMALL = ("--points", "40", "--jobs", "40", "--seed", "3")
COMMAND = [sys.executable, "-m", "killproof", "chaos"]
UNSYNCED = Path(__file__).with_name("unsynced.py")


@pytest.fixture(name="compiled", scope="module")
def _compiled() -> None:
    """Skip where the shim cannot be built."""
    try:
        build()
    except ShimUnavailable as unavailable:
        pytest.skip(str(unavailable))


@pytest.fixture(name="spot", scope="module")
def _spot(
    tmp_path_factory: pytest.TempPathFactory, on_disk: Callable[[Path], Path]
) -> Iterator[Path]:
    """A folder on a real disk that the tests of this module share."""
    folder = on_disk(tmp_path_factory.mktemp("disk"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def cut(place: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, "disk", "--store", "run", "--json", *arguments],
        cwd=place,
        env=os.environ | {"NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait until something is reached, for as long as the slowest machine may take."""
    deadline = time.monotonic() + SECONDS_MAX
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def verdict_of(done: "subprocess.CompletedProcess[str]", code: int) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Run:
    """A recorded run of a hasty queue, and its verdict."""

    place: Path  #: its store is `run` in it
    verdict: dict[str, Any]


@pytest.fixture(name="hasty", scope="module")
def _hasty(compiled: None, spot: Path) -> Run:
    """The verdict on a queue that answers before its sync, recorded once for several tests."""
    place = spot / "hasty"
    place.mkdir()
    return Run(
        place, verdict_of(cut(place, "--target", "synchronous-normal", "--report", *SMALL), 1)
    )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("target", ["minimal", "killproof"])
def test_a_queue_that_syncs_before_it_answers_loses_nothing(place: Path, target: str) -> None:
    """Covers S2.4."""
    verdict = verdict_of(cut(place, "--target", target, *SMALL), 0)

    assert verdict["properties"]["P1"]["verdict"] == "pass"
    assert verdict["properties"]["P1"]["figures"]["images_lost"] == 0
    # As many again where a kill cut a call off: it had an effect, or it had none.
    assert verdict["counts"]["images"] in {40 * len(Policy), 2 * 40 * len(Policy)}
    assert 1 < verdict["counts"]["distinct"] <= verdict["counts"]["images"]
    assert verdict["coverage"]["missed"] == []
    assert verdict["faults"]["kill"] > 1


def test_a_queue_that_answers_before_its_sync_is_caught_with_the_job_that_is_gone(
    hasty: Run,
) -> None:
    found = hasty.verdict["properties"]["P1"]

    assert found["verdict"] == "violated"
    witness = found["witnesses"][0]
    assert witness["job"] is not None
    assert "gone" in witness["story"]
    assert any("knows" in line["text"] for line in witness["lines"])
    lost = [json.loads(line) for line in (hasty.place / "run/lost.jsonl").read_text().splitlines()]
    assert lost[0]["acknowledged"]
    points = json.loads((hasty.place / "run/points.json").read_text())
    assert sum(left > 0 for *_, row in points["points"] for left in row) == len(lost)


@pytest.mark.usefixtures("compiled")
def test_the_first_violation_ends_the_run_when_it_is_asked_to(place: Path) -> None:
    target = ("--target", "acknowledges-before-fsync", "--fail-fast")
    verdict = verdict_of(cut(place, *target, "--points", "all", *SMALL[2:]), 1)

    assert verdict["properties"]["P1"]["verdict"] == "violated"
    assert verdict["counts"]["images"] < verdict["counts"]["points"]
    assert not verdict["exhausted"]
    assert "--fail-fast" in verdict["replay"]
    words = {one["verdict"] for one in verdict["properties"].values()}
    assert "pass" not in words, "what the later images would have shown nobody knows"
    assert verdict["unknown_because"] == []


@pytest.mark.usefixtures("compiled")
def test_killproof_without_the_barrier_of_one_operation_is_caught(place: Path) -> None:
    arguments = ("--target", str(UNSYNCED), "--fail-fast", "--points", "all", "--seed", "3")
    verdict = verdict_of(cut(place, *arguments, KILLPROOF_UNSYNCED="claim"), 1)

    assert "the claim of job" in verdict["properties"]["P1"]["witnesses"][0]["story"]


def test_the_page_of_a_run_shows_the_losses_and_asks_nothing_of_a_network(hasty: Run) -> None:
    page = (hasty.place / "run/report.html").read_text(encoding="utf-8")

    assert 'class="gone"' in page
    assert "A loss, record by record" in page
    assert hasty.verdict["replay"] in page
    assert not re.search(r"<script|<link|\ssrc=|@import|url\(|https?://", page)
    assert len(page.encode()) < 2 * 1024 * 1024


def test_a_recorded_run_is_judged_again_from_its_log_alone(hasty: Run) -> None:
    again = subprocess.run(
        [*COMMAND, "check", "run", "--json"],
        cwd=hasty.place,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert verdict_of(again, 1)["properties"] == hasty.verdict["properties"]


@pytest.mark.parametrize(
    "lost", ["history", "notes", "phases.bin", "prepared.json", "copies/1", "contract.toml"]
)
def test_a_recording_that_has_lost_a_part_is_unknown_and_names_it(
    hasty: Run, tmp_path: Path, lost: str
) -> None:
    store = tmp_path / "run"
    shutil.copytree(hasty.place / "run", store)
    run = json.loads((store / "run.json").read_text())
    run["options"] |= {"points": 1, "policies": ["keep"]}
    (store / "run.json").write_text(json.dumps(run))
    if (store / lost).is_dir():
        shutil.rmtree(store / lost)
    else:
        (store / lost).unlink()

    again = CliRunner().invoke(app, ["check", str(store), "--json"])

    assert again.exit_code == 2
    reasons = json.loads(again.stdout)["unknown_because"]
    assert any(reason.startswith(lost) and "missing" in reason for reason in reasons)


def test_a_recorded_run_has_no_plan_and_says_how_it_is_repeated(hasty: Run) -> None:
    done = subprocess.run(
        [*COMMAND, "replay", "run"],
        cwd=hasty.place,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert done.returncode == 64
    assert hasty.verdict["replay"] in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("compiled")
def test_losses_at_level_process_are_told_and_break_no_promise(place: Path) -> None:
    verdict = verdict_of(cut(place, "--target", "killproof-process", *SMALL), 0)

    found = verdict["properties"]["P1"]
    assert found["verdict"] == "not_judged"
    assert found["level"] == "process"
    assert found["figures"]["images_lost"] > 0


@pytest.mark.usefixtures("compiled")
def test_ctrl_c_leaves_a_verdict_on_what_had_been_seen(place: Path) -> None:
    """The signal comes with the first word on images; all of them would take far longer."""
    argv = [*COMMAND, "disk", "--store", "run", "--json", "--target", "minimal", "--points", "all"]
    with subprocess.Popen(
        argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        told = next(line for line in process.stderr if "images" in line)
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=SECONDS_MAX)

    verdict = json.loads(out)
    assert process.returncode == 2, told + rest
    assert verdict["verdict"] == "unknown"
    assert not verdict["exhausted"]
    assert "stopped by a signal after" in verdict["unknown_because"][0]
    assert verdict["properties"]["P1"]["verdict"] == "unknown"
    assert verdict["properties"]["P1"]["checked"] > 0
    assert "Traceback" not in rest


@pytest.mark.usefixtures("compiled")
def test_a_recording_that_was_cut_short_stays_unknown_when_it_is_judged_again(place: Path) -> None:
    """The signal comes with the first record; of so many jobs it leaves most undone."""
    argv = [*COMMAND, "disk", "--store", "run", "--json", "--target", "minimal", "--jobs", "5000"]
    log = place / "run" / "disk.log"
    with subprocess.Popen(
        argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        wait_until(lambda: log.exists() and log.stat().st_size > 0)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 2

    again = CliRunner().invoke(app, ["check", str(place / "run"), "--json"])

    assert again.exit_code == 2
    reasons = json.loads(again.stdout)["unknown_because"]
    assert reasons == json.loads(out)["unknown_because"]
    assert "while the run was being recorded" in reasons[0]


@pytest.mark.usefixtures("compiled")
def test_who_checks_images_dies_with_the_command_that_is_killed(place: Path) -> None:
    argv = [*COMMAND, "disk", "--store", "run", *SMALL[2:], "--points", "all"]
    with subprocess.Popen(
        argv, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        lent = f"{PREFIX}disk-{process.pid}-*"
        wait_until(lambda: any([*MEMORY.glob(f"{lent}/*"), *place.glob(f"run/{lent}/*")]))
        children = children_of(process.pid)
        process.kill()

    assert children
    try:
        wait_until(lambda: not any(map(is_running, children)))
    finally:
        for pid in filter(is_running, children):
            os.kill(pid, signal.SIGKILL)
        for folder in MEMORY.glob(lent):
            shutil.rmtree(folder)


@dataclass(frozen=True)
class Recorded:
    """A recording of `minimal`, to be spoiled."""

    store: Store
    recording: Recording

    def judged(self, recording: Recording) -> dict[str, Any]:
        options = Options(
            target="minimal", points=12, policies=(Policy.KEEP, Policy.DROP), seed=3, jobs=40
        )
        target = targets.load("minimal")
        return disk.judged(options, target, recording, self.store, lambda _turn: None)


@pytest.fixture(name="recorded", scope="module")
def _recorded(compiled: None, spot: Path) -> Recorded:
    store = Store.create(spot / "recorded")
    recording = record("minimal", targets.load("minimal"), store, seed=3, jobs=40)
    return Recorded(store, recording)


def without(recording: Recording, spoiled: Any) -> Recording:
    return replace(recording, records=[r for r in recording.records if not spoiled(r)])


@pytest.mark.parametrize(
    ("name", "text"),
    [("recording.json", "{}"), ("recording.json", '{"root": '), ("disk.log", None)],
)
def test_a_store_without_a_readable_recording_is_refused_by_name(
    recorded: Recorded, tmp_path: Path, name: str, text: str | None
) -> None:
    store = tmp_path / "run"
    shutil.copytree(recorded.store.path, store)
    if text is None:
        (store / name).unlink()
    else:
        (store / name).write_text(text)

    with pytest.raises(StoreError, match=f"{re.escape(name)}.*run it anew"):
        load(Store(store))


def test_a_recording_that_is_whole_passes(recorded: Recorded) -> None:
    verdict = recorded.judged(recorded.recording)

    assert (verdict["verdict"], verdict["unknown_because"]) == ("pass", [])


def test_a_recording_without_answers_is_no_pass(recorded: Recorded) -> None:
    verdict = recorded.judged(
        without(recorded.recording, lambda r: isinstance(r, Note) and b'"f": "enqueue"' in r.text)
    )

    assert verdict["verdict"] == "unknown"
    assert "obligation missed: an enqueue was acknowledged" in verdict["unknown_because"]


def test_a_recording_without_syncs_is_no_pass(recorded: Recorded) -> None:
    spoiled = without(recorded.recording, lambda r: isinstance(r, Begin | End) and r.kind in SYNCS)

    assert recorded.judged(spoiled)["verdict"] != "pass"


def test_a_recording_that_lacks_a_write_does_not_rebuild_the_files_and_proves_nothing(
    recorded: Recorded,
) -> None:
    writes = [
        r
        for r in recorded.recording.records
        if isinstance(r, Begin) and r.kind == Kind.WRITE and r.file == File.DATABASE
    ]
    # Of each page the newest is what the copies hold.
    newest = list({write.at: write for write in writes}.values())
    lost = random.Random(3).choice(newest)
    verdict = recorded.judged(
        without(recorded.recording, lambda r: getattr(r, "call", 0) == lost.call
                and getattr(r, "slot", -1) == lost.slot)
    )  # fmt: skip

    assert verdict["verdict"] == "unknown"
    assert "the log does not rebuild the files" in verdict["unknown_because"][0]
    assert verdict["properties"]["P1"]["verdict"] == "unknown"


def test_a_recording_in_which_nobody_was_killed_is_no_pass(recorded: Recorded) -> None:
    verdict = recorded.judged(replace(recorded.recording, kills=[]))

    assert verdict["unknown_because"] == ["obligation missed: a process was killed"]


def test_a_run_of_which_no_image_was_checked_is_no_pass(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "sampled", lambda _tape, _points: [])
    verdict = recorded.judged(recorded.recording)

    assert verdict["verdict"] == "unknown"
    assert verdict["properties"]["P1"]["reason"] == "no image was checked"


@pytest.mark.usefixtures("compiled")
def test_a_target_whose_prepare_ends_its_process_is_told_so(place: Path) -> None:
    target = place / "leaves.py"
    target.write_text(
        "from killproof_chaos.targets import load\n"
        "target = load('minimal')\n"
        "target.prepare = lambda place: exit(0)\n"
    )
    done = cut(place, "--target", str(target), *SMALL)

    assert done.returncode == 3
    assert "the target's prepare ended its process" in done.stderr


def test_without_a_compiler_the_verdict_is_unknown_and_names_the_remedy(place: Path) -> None:
    (place / "empty").mkdir()
    done = cut(
        place, *SMALL, PATH=str(place / "empty"), XDG_CACHE_HOME=str(place / "cache"), CC=""
    )  # fmt: skip

    verdict = verdict_of(done, 2)
    assert "install a C compiler" in verdict["unknown_because"][0]
    assert verdict["properties"]["P1"]["verdict"] == "unknown"
    assert verdict["coverage"]["hit"] == 0 < verdict["coverage"]["obliged"]


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: command.points_of("0"), "--points '0' is neither all nor a number from 1"),
        (lambda: disk_command.policies_of("melt"), "--policy 'melt' is unknown: use keep, drop"),
        (lambda: disk_command.policies_of(","), "--policy ',' names none"),
    ],
)
def test_a_wrong_word_is_refused_with_the_value_and_the_remedy(
    ask: Callable[[], object], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        ask()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--jobs", "1"), "--jobs 1 must be an integer from 20"),
        (("--target", "nothing"), "target 'nothing' is unknown"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_value_and_the_remedy(
    place: Path, arguments: tuple[str, ...], text: str
) -> None:
    done = cut(place, *arguments)

    assert done.returncode == 64
    assert text in done.stderr
    assert "Traceback" not in done.stderr
