"""The bench itself, run small on real processes and real files."""

import dataclasses
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from killproof import Queue, cli
from killproof_bench import anatomy, command, lines, report, sampling
from killproof_bench import cli as bench_cli
from killproof_bench.crew import Crew, CrewError, Outcome, specs
from killproof_bench.ledger import Account
from killproof_bench.load import Deadline, Loop
from killproof_bench.recording import Call, Kind, Recorder
from killproof_bench.result import BenchResult, ClaimCard, from_json
from killproof_bench.scenarios import claim, rows, stopped

DEADLINE_SECONDS = 120.0


def bench(*arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "killproof", "bench", *arguments, "--dir", str(place)],
        capture_output=True,
        text=True,
        cwd=place,
        timeout=600,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchResult, str]:
    """One run of two workers at `process`, which every file system can keep; and its report."""
    place = tmp_path_factory.mktemp("bench")
    done = bench(
        *("claim", "--workers", "2", "--seconds", "0.5", "--warmup", "0.1", "--rounds", "1"),
        *("--durability", "process", "--seed", "3", "--json", "--report", "report.md"),
        place=place,
    )
    assert done.returncode == 0, done.stderr
    assert not list(place.glob(".killproof-bench-*")), "the scratch folder is left behind"
    return from_json(done.stdout), (place / "report.md").read_text(encoding="utf-8")


def test_a_run_is_judged_and_each_job_was_done_exactly_once(
    small: tuple[BenchResult, str],
) -> None:
    """Rules H3, H9."""
    result, _ = small

    assert result.verdict == "pass"
    assert {cell.arm for cell in result.cells} == {"killproof", "reference"}
    for cell in result.cells:
        assert cell.correctness.verdict == "pass"
        assert cell.correctness.jobs >= cell.jobs_per_s.n > 0
        assert len(cell.rounds[0].counts) == 2
        assert cell.anatomy is not None
        assert cell.anatomy.calls > 0


def test_every_figure_carries_a_whole_claim_card(small: tuple[BenchResult, str]) -> None:
    """Rules H2, H4, H5, H12b."""
    result, text = small

    for cell in result.cells:
        for name, value in report.card_lines(cell):
            assert value != "", name
            assert f"| {name} |" in text
    ours, reference = (cell.card for cell in result.cells)
    assert len(dataclasses.fields(ClaimCard)) == len(report.card_lines(result.cells[0]))
    assert (ours.journal_mode, reference.journal_mode) == ("wal", "wal")
    assert (ours.autocheckpoint, reference.autocheckpoint) == (0, 1_000)
    assert (ours.synchronous, reference.synchronous) == ("NORMAL", "NORMAL")
    assert ours.n == result.cells[0].jobs_per_s.n


def test_the_report_says_how_to_repeat_it_and_what_it_does_not_show(
    small: tuple[BenchResult, str],
) -> None:
    _, text = small

    assert "Command: `killproof bench claim --workers 2" in text
    assert "| seed | 3 |" in text
    assert "## What this does not show" in text


def one_round(place: Path, arm: str, *, durability: claim.Durability) -> Outcome:
    place.joinpath("run").mkdir()
    template = claim.make_template(place, durability, 2_000)
    template.rename(place / "run" / "queue.db")
    told = specs(place / "run", arm, 2, backlog=2_000, synchronous="FULL")
    with Crew(told, hash_seed=1) as crew:
        crew.wait_until_ready()
        crew.go(0.2)
        return crew.finish()


def test_the_reference_at_power_syncs_by_itself(place: Path) -> None:
    """Rule H8."""
    outcome = one_round(place, "reference", durability="power")

    assert outcome.facts["synchronous"] == "FULL"
    assert outcome.facts["autocheckpoint"] == "1000"
    assert claim.verdict(place / "run/queue.db", 2_000, outcome).verdict == "pass"


def test_a_ledger_in_which_one_job_is_done_twice_voids_the_figures(place: Path) -> None:
    """Rules H6, H13; a backlog that ran dry proves nothing."""
    outcome = one_round(place, "killproof", durability="process")
    second, first = sorted(outcome.accounts, key=lambda account: len(account.acked))
    assert claim.verdict(place / "run/queue.db", 2_000, outcome).verdict == "pass"
    dry = dataclasses.replace(outcome, ran_dry=True)
    assert claim.verdict(place / "run/queue.db", 2_000, dry).verdict == "unknown"

    doctored = (
        first,
        Account(worker=second.worker, acked=[*second.acked, first.acked[0]], error=None),
    )
    verdict = claim.verdict(
        place / "run/queue.db", 2_000, dataclasses.replace(outcome, accounts=doctored)
    )

    assert verdict.verdict == "violated"
    assert "acked more than once" in verdict.because[0]


def round_of(place: Path, plan: claim.Plan) -> tuple[Outcome, int]:
    """Run one round of killproof; return it with the begin of its measured time."""
    place.joinpath("run").mkdir()
    template = claim.make_template(
        place,
        plan.durability,
        plan.backlog,
        finished=plan.finished,
        payload_bytes=plan.payload_bytes,
    )
    template.rename(place / "run" / "queue.db")
    step = claim.Step(position=0, workers=2, arm="killproof", hash_seed=1, timed=True)
    with Crew(claim.processes(place / "run", plan, step), hash_seed=1) as crew:
        crew.wait_until_ready()
        start_ns = crew.go(plan.seconds)
        return crew.finish(), start_ns


def test_an_open_loop_is_judged_with_what_its_producers_put_in(place: Path) -> None:
    plan = claim.Plan(loop="open", rate_per_s=200.0, producers=1, seconds=0.5, durability="process")
    outcome, start_ns = round_of(place, plan)
    workers, producers = outcome.calls[:2], outcome.calls[2:]
    measured = sampling.window(start_ns, plan.seconds)
    latencies = claim.series_of(plan.setup, workers, producers, outcome, measured)
    split = anatomy.parts(workers, producers, measured.from_ns, measured.until_ns)

    assert claim.verdict(place / "run/queue.db", 0, outcome).verdict == "pass"
    assert outcome.enqueued
    assert {kind for kind, _ in latencies} == {"ack call", "enqueue commit", "time to claim"}
    assert all(latencies["time to claim", "intended"].latencies > 0)
    assert split is not None
    assert (split.wait >= split.wait_idle).all()
    assert (split.sql > 0).all()
    lost = dataclasses.replace(outcome, enqueued=(*outcome.enqueued, 999_999))
    assert "enqueued, and not stored" in (claim.verdict(place / "run/queue.db", 0, lost).because[0])


def test_batches_on_an_old_file_are_judged_job_by_job(place: Path) -> None:
    plan = claim.Plan(
        call="claim-then-ack",
        batch=5,
        jobs=3_000,
        finished=50,
        payload_bytes=500,
        seconds=0.3,
        durability="process",
    )
    outcome, start_ns = round_of(place, plan)
    cut = sampling.sample(outcome.calls, start_ns, plan.seconds)
    verdict = claim.verdict(place / "run/queue.db", 3_000, outcome, finished=50)

    assert (verdict.verdict, verdict.because) == ("pass", ())
    assert verdict.jobs == sum(len(jobs) for jobs in outcome.served)
    assert sum(cut.counts) == 5 * sum(
        int(((call[:, Call.KIND] == Kind.ACK) & (call[:, Call.END] < start_ns + 3e8)).sum())
        for call in outcome.calls
    )


@pytest.fixture
def _sigterm_restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm_restored")
@pytest.mark.parametrize(("batch", "job_ms"), [(5, 10.0), (1, 20_000.0)])
def test_work_takes_its_time_for_each_job_of_a_batch_and_ends_with_the_run(
    batch: int, job_ms: float, place: Path
) -> None:
    file = claim.make_template(place, "process", 500)
    told = dataclasses.replace(
        specs(place, "killproof", 1, backlog=500, synchronous="NORMAL")[0],
        batch=batch,
        job_ms=job_ms,
    )
    recorder = Recorder(calls_max=500, jobs_max=500, stopwatch=None)
    deadline = Deadline()
    with Queue(file) as queue:
        begin_ns = time.perf_counter_ns()
        deadline.ns = begin_ns + 200_000_000
        Loop(queue, told, recorder, deadline, start_ns=begin_ns).run()
        spent_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        done = queue.counts()["succeeded"]

    # What is in hand at the end is finished without its work, and so is what is claimed with it.
    assert 0 < done <= spent_ms / job_ms + 2 * batch
    assert spent_ms < 20_000


def test_a_process_that_was_killed_is_told_by_its_status_and_not_by_its_pipe() -> None:
    """A broken pipe that got out would end the command as if its reader had gone: exit 0."""
    process = subprocess.Popen(
        [sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.kill()
    process.wait()

    with pytest.raises(CrewError, match="ended with status -9"):
        lines.tell(process, "go")
    lines.end([process])


def test_a_worker_process_that_cannot_open_the_file_fails_the_tool(place: Path) -> None:
    told = specs(place / "nowhere", "killproof", 1, backlog=10, synchronous="FULL")

    with Crew(told, hash_seed=1) as crew, pytest.raises(CrewError, match="ended with status 1"):
        crew.wait_until_ready()


def test_a_killed_bench_takes_its_stopped_worker_with_it(place: Path) -> None:
    """SIGKILL leaves no time to clean up, and who is stopped reads no end of a pipe."""
    program = (
        "import sys; from pathlib import Path; from killproof_bench.crew import Crew, specs\n"
        "told = specs(Path(sys.argv[1]), 'killproof', 1, backlog=1, synchronous='FULL')\n"
        "print(Crew(told, hash_seed=1).workers[0].pid, flush=True); sys.stdin.read()"
    )
    bench = subprocess.Popen(
        [sys.executable, "-c", program, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bench.stdout
    worker = int(bench.stdout.readline())
    watched = os.pidfd_open(worker)
    os.kill(worker, signal.SIGSTOP)

    bench.kill()
    bench.communicate()

    ended = bool(select.select([watched], [], [], 30)[0])
    os.close(watched)
    if not ended:
        os.kill(worker, signal.SIGKILL)
    assert ended


def test_a_worker_stopped_at_the_turnstile_holds_it_and_the_others_go_on(place: Path) -> None:
    result = stopped.run(
        place, durability="process", workers=3, pairs=1, window_seconds=0.5, tick=lambda: None
    )

    assert result.correctness.verdict == "pass"
    assert result.holding[0] > 0
    assert result.undisturbed[0] > 0


def test_steps_per_call_do_not_depend_on_the_rows_in_other_states(place: Path) -> None:
    """Covers S0.30, F54. Rule H6."""
    result = rows.run(place, rows=3_000, tick=lambda _: None)

    assert {cost.operation for cost in result.costs} == set(rows.OPERATIONS)
    for cost in result.costs:
        assert cost.steps_small > 0
        assert abs(cost.steps_large / cost.steps_small - 1) <= report.STEPS_GOAL, cost
    with Queue(place / "large.db") as queue:
        counts = queue.counts()
    assert counts["dead"] == 3_000
    assert counts["succeeded"] >= 3_000


def wait_for_workers(process: subprocess.Popen[str], place: Path) -> None:
    """Wait until the second round, or a later one, has begun: then the first is worth reporting."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not list(place.glob(".killproof-bench-*/round-[1-9]*/queue.db-shm")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sigterm_ends_a_run_as_ctrl_c_does(place: Path) -> None:
    """It is what a pipeline sends when its time is over."""

    def run() -> None:
        with command.scratch(place) as folder:
            (folder / "queue.db").touch()
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run()

    assert list(place.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_full_disk_is_told_with_the_folder_that_is_full(place: Path) -> None:
    def run() -> None:
        with command.scratch(place):
            raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(OSError, match=r"--dir '.*': database or disk is full"):
        run()
    assert list(place.iterdir()) == []


def test_ctrl_c_reports_the_rounds_that_had_ended_and_leaves_nothing_behind(place: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "killproof", "bench", "claim", "--workers", "1", "--json"),
            *("--seconds", "0.2", "--warmup", "0", "--rounds", "50", "--durability", "process"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=place,
    )
    wait_for_workers(process, place)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    result: dict[str, Any] = json.loads(output)

    assert process.returncode == 2
    assert (result["interrupted"], result["verdict"]) == (True, "unknown")
    assert len(result["cells"]) >= 1
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("claim", "--workers", "0"), "--workers '0': give numbers from 1 to 256"),
        (("claim", "--workers", "many"), "--workers 'many': give numbers"),
        (("claim", "--seconds", "-1"), "--seconds -1: give a number from 0.1"),
        (("claim", "--rounds", "0"), "--rounds 0: give a number from 1"),
        (("claim", "--rows", "0"), "--rows 0: give a number from 1"),
        (("claim", "--report", "nowhere/x.md"), "make the folder first"),
        (("claim", "--report", "."), "--report '.' is a folder: give a file"),
        (("capacity", "--report", "x.json"), "name it FILE.md, what ends in .json comes beside it"),
        (("idle", "--report", "/proc/x.md"), "its folder takes no files"),
        (("rows", "--dir", "nowhere"), "--dir 'nowhere' is no folder: make it first"),
        (("rows", "--dir", "/proc"), "--dir '/proc' takes no files: give a folder of yours"),
        (("checkers", "--records", "0"), "--records 0: give a number from 1"),
        (("claim", "--durability", "hope"), "--durability 'hope': give power, process, or"),
        (("claim", "--loop", "open"), "--loop open: say how many jobs/s it offers"),
        (("claim", "--rate", "5"), "--rate '5': a closed loop has none, add --loop open"),
        (("claim", "--batch", "1,0"), "--batch '1,0': give numbers from 1 to 1000"),
        (("claim", "--payload", "5"), "--payload '5': give numbers from 16"),
        (("claim", "--goals", "--workers", "3"), "--goals chooses the cells itself: leave out"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_value(
    arguments: tuple[str, ...],
    complaint: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: to start an interpreter for each costs more than all that it does."""
    monkeypatch.chdir(place)
    told = ["killproof", "bench", arguments[0], "--dir", str(place), *arguments[1:]]
    monkeypatch.setattr(sys, "argv", told)
    code = cli.main()
    said = capsys.readouterr()

    assert code == 64
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_every_command_and_option_of_the_bench_is_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    commands: dict[str, Any] = vars(typer.main.get_command(bench_cli.app))["commands"]

    missing = [name for name in commands if f"killproof bench {name}" not in page]
    missing += [
        f"{name} {parameter.opts[0]}"
        for name, each in commands.items()
        for parameter in each.params
        if parameter.param_type_name == "option"
        and not any(option in page for option in (*parameter.opts, *parameter.secondary_opts))
    ]
    assert missing == []


def test_watchers_are_measured_beside_the_same_workers_without_them(place: Path) -> None:
    done = bench(
        *("watch", "--workers", "2", "--watchers", "3", "--seconds", "0.6", "--warmup", "0.1"),
        *("--rounds", "1", "--durability", "process", "--report", "watching.md"),
        place=place,
    )
    report_text = (place / "watching.md").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stderr
    assert "3 clients watch while 2 workers run at process: a claim takes" in done.stdout
    assert "correctness: pass" in done.stdout
    for word in ("Command: `killproof bench watch", "| seed | 1 |", "## What this does not show"):
        assert word in report_text
