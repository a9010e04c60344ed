"""Every example is run: its `main` in this process, the producers as the programs they are.

They are real: real files, real local servers, and a worker each.  What stands in for the rest of
the world lies in the example itself, so that it ends by itself.
"""

import faulthandler
import importlib.util
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from killproof import Queue
from killproof.operations import hold
from killproof.payloads import Payloads

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
#: Modules for `killproof work`, which README.md, docs/operations.md or test_operations.py run.
HANDLER_MODULES = {"first_jobs", "daily_backup"}
SECONDS_MAX = 120.0


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """An example that does not end by itself shall not hold up all others for ever."""
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def example(name: str) -> ModuleType:
    """Import an example by its file, as a script's folder would have it."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_report_is_made_and_sent_once_although_the_server_was_down(place: Path) -> None:
    """Covers S0.2, S0.54, S0.84: the report script."""
    assert example("report_script").main(place) == ["ana@example.org-sales-48.csv"]
    with Queue(place / "queue.db") as queue:
        job = queue.get(1)

    assert job is not None
    assert [attempt.outcome for attempt in job.attempts] == ["failed", "succeeded"]


def test_seventeen_readings_over_the_limit_are_one_message(place: Path) -> None:
    """Covers S0.59, S0.84: the alert robot. F40: its first call failed, and was made again."""
    messages = example("alert_robot").main(place)

    assert messages == {"alert:db-1:2026-11-30": "db-1: 70 °C"}


def test_a_broken_row_does_not_hold_the_rows_behind_it(place: Path) -> None:
    """Covers S0.5, S0.84: the importer. F4: the same file a second time adds nothing."""
    assert example("importer").main(place) == (119, 1)


#: The program kills itself when a row in the middle has been committed.
KILLED_IN_THE_MIDDLE = """
import os, pathlib, runpy, signal, sys
from killproof.core import sync
rows = 0
def hook(point):
    global rows
    rows += point == "complete.committed"
    if rows == 40:
        os.kill(os.getpid(), signal.SIGKILL)
sync.hook = hook
runpy.run_path(sys.argv[1])["main"](pathlib.Path(sys.argv[2]))
"""


def test_an_importer_that_is_killed_in_the_middle_imports_every_row_once(place: Path) -> None:
    """Covers S0.1, S2.2. Method: SIGKILL after some rows; then the whole program once more."""
    command = [
        sys.executable,
        "-c",
        KILLED_IN_THE_MIDDLE,
        str(EXAMPLES / "importer.py"),
        str(place),
    ]
    killed = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX)
    with Queue(place / "queue.db") as queue:
        assert (killed.returncode, queue.counts()["succeeded"]) == (-signal.SIGKILL, 40)

    assert example("importer").main(place) == (119, 1)


def test_an_event_is_stored_before_it_is_answered_and_three_times_is_one_job(place: Path) -> None:
    """Covers S0.4, S0.31, S0.84: the webhook. F44, F68: deduped, and refused at the door."""
    assert example("webhook_receiver").main(place) == [202, 202, 202, 400, 400, 400]
    with Queue(place / "queue.db") as queue:
        assert queue.counts()["available"] == 1


def test_a_webhook_that_meets_a_locked_file_is_told_to_come_back(place: Path) -> None:
    """Covers S0.4. F19: the article's event was gone; here its sender knows, and has it still."""
    receiver = example("webhook_receiver")
    with (
        Queue(place / "queue.db", busy_limit=0.05) as queue,
        closing(sqlite3.connect(queue.path, isolation_level=None)) as other,
        ThreadingHTTPServer(("127.0.0.1", 0), receiver.receiver_of(queue)) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        other.execute("BEGIN IMMEDIATE")
        refused, _ = receiver.post(url, b'{"event_id": "evt_1"}')
        other.execute("ROLLBACK")
        taken, answer = receiver.post(url, b'{"event_id": "evt_1"}')
        server.shutdown()
        thread.join()

        assert (refused, taken, answer) == (503, 202, {"job": 1})


def test_instances_have_a_file_each_and_a_job_moves_between_them_once(place: Path) -> None:
    """Covers S2.6."""
    shards = example("shards")
    counts = shards.main(place)

    assert sum(states["available"] for states in counts.values()) == 40
    with shards.Router(place, ["lisboa", "porto", "recife", "goa"]) as router:
        old, new = router.queues["porto"], router.queues["goa"]
        large = "x" * 100_000
        job_id = Payloads(old).enqueue("invoice", large, deadline=4e9)
        assert hold(old, job_id)  # A first move was killed after its first commit ...
        for _ in range(2):  # ... and a second one after its second, and the job has run.
            shards.receive(old, new, old.get(job_id))
            if (lease := new.claim(["invoice"])) is not None:
                assert Payloads(new).payload(lease.job) == large
                assert lease.job.expires_ms == 4_000_000_000_000
                new.ack(lease)
        assert shards.move(old, new, job_id)
        assert new.counts()["succeeded"] == 1
        assert new.counts()["available"] == 0
        assert not shards.move(old, new, job_id)


def test_an_orchestrator_keeps_its_own_tables_in_the_queue_s_transactions(place: Path) -> None:
    """Covers S2.13, S2.33."""
    state, log = example("orchestrator").main(place)

    assert state == "done"
    assert (log[0], sorted(log[1:3]), log[3]) == (
        "extract done",
        ["clean done", "prices done"],
        "load done",
    )


def test_what_429_says_is_known_to_every_job_and_each_order_arrives_once(place: Path) -> None:
    """Covers S0.2, S0.84, S1.1: the API integrator. F35: nobody calls before its time."""
    assert example("api_integrator").main(place) == (10, 0)


def test_a_pipeline_fetches_parses_and_stores_every_page_once(place: Path) -> None:
    """Covers S0.84: the scraping pipeline."""
    assert example("scraping_pipeline").main(place) == 18


def test_a_robot_answers_each_message_once_and_leaves_who_has_blocked_it(place: Path) -> None:
    """Covers S0.59, S0.84: the WhatsApp robot."""
    assert example("whatsapp_robot").main(place) == [
        f"+55 11 90000-000{number}" for number in (1, 2, 4)
    ]


def test_a_monitor_looks_by_schedule_and_calls_once(place: Path) -> None:
    """Covers S0.84, S1.54: the server monitor."""
    looks, alerts = example("server_monitor").main(place)

    assert looks >= 3
    assert len(alerts) == 1


def test_an_article_waits_for_its_editor_and_one_that_is_turned_down_is_undone(
    place: Path,
) -> None:
    """Covers S0.6, S0.84: the publishing line."""
    assert example("publishing_line").main(place) == {"tea": "succeeded", "coffee": "compensated"}
    names = {path.name for path in place.iterdir()}

    assert {"tea.html", *(f"news-{name}-tea" for name in ("feed", "newsletter", "chat"))} <= names
    assert not any("coffee" in name for name in names)


def test_the_second_article_s_four_tasks_run_side_by_side(place: Path) -> None:
    """Covers S1.25, S1.41, S1.42, S1.43: each with the result that it returns."""
    results = example("article_tasks").main(place)

    assert list(results) == [
        *("0 enviar_relatorio", "1 scraping_produtos", "2 sincronizar_estoque"),
        *("3 backup_diario", "5 enviar_relatorio"),
    ]
    scraped, saved = results["1 scraping_produtos"], results["3 backup_diario"]
    assert scraped["products_scraped"] == 3
    assert scraped["source"].startswith("http://127.0.0.1:")
    (copy,) = (place / "backup").iterdir()
    assert saved == {"backup_file": str(copy), "size_mb": round(copy.stat().st_size / 1e6, 2)}
    assert re.fullmatch(r"main_\d{8}_\d{6}\.db", copy.name)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM produto").fetchone() == (0,)


def test_the_smallest_worker_says_its_slots_and_a_line_for_each_job(place: Path) -> None:
    """Covers S1.40, S2.37. A word in place of the article's icon, and the error's whole text."""
    shutil.copy(EXAMPLES / "first_jobs.py", place)
    with Queue(place / "queue.db") as queue:
        queue.enqueue("greet", {"name": "Ada"})
        queue.enqueue("greet", {}, max_attempts=1)
        command = [sys.executable, "-m", "killproof", "work", "first_jobs", "--slots", "3"]
        worker = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + SECONDS_MAX
        while queue.counts()["succeeded"] + queue.counts()["dead"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        worker.terminate()
        lines = worker.communicate(timeout=SECONDS_MAX)[1].splitlines()

    time_of_day = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert worker.returncode == 0
    assert re.fullmatch(rf"{time_of_day} INFO process \d+ works on: .*; jobs at once: 3", lines[0])
    done, failed = sorted(line for line in lines[1:] if "kind=greet" in line)
    assert re.fullmatch(rf"{time_of_day} INFO job_id=1 kind=greet .*: succeeded in .* s", done)
    assert re.fullmatch(rf"{time_of_day} WARNING job_id=2 kind=greet .*: KeyError: 'name'", failed)


def producer(place: Path, *command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=place,
        env=os.environ | {"PATH": path, "KILLPROOF_DB": str(place / "queue.db")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_the_producer_records_the_intention_once_and_says_so(place: Path) -> None:
    """Covers S0.32, S0.33, S0.35: with no worker and no mail server anywhere."""
    command = (sys.executable, str(EXAMPLES / "producer.py"), "ana@example.org", "1042")
    said = [producer(place, *command) for _ in range(2)]

    assert said == ["job enfileirado\n"] * 2
    with closing(sqlite3.connect(place / "queue.db")) as connection:
        found = connection.execute("SELECT kind, payload FROM job").fetchall()
    assert found == [("send_report", '{"email":"ana@example.org","report_id":"1042"}')]


def test_a_producer_in_bash_escapes_nothing_by_hand(place: Path) -> None:
    """Covers S0.31: by the command, and where sqlite3 is installed by the view."""
    subject = 'it\'s "50%" \\ $x é'
    producer(place, str(EXAMPLES / "producer.sh"), subject)
    with Queue(place / "queue.db") as queue:
        jobs = [job for job in (queue.get(1), queue.get(2)) if job]

    assert [job.payload for job in jobs] == [{"subject": subject}] * len(jobs)
    assert len(jobs) == 1 + (shutil.which("sqlite3") is not None)


def test_the_import_of_an_example_starts_nothing_and_makes_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: the second article's file enqueues its jobs again whenever somebody imports it."""
    monkeypatch.chdir(place)
    threads = threading.active_count()
    for path in EXAMPLES.glob("*.py"):
        example(path.stem)

    assert list(place.iterdir()) == []
    assert threading.active_count() <= threads


def test_every_example_is_run_by_a_test_and_on_the_list() -> None:
    names = {path.stem for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    text = Path(__file__).read_text(encoding="utf-8")
    run = {name for name in names if f'"{name}' in text}

    assert names - run - HANDLER_MODULES == set()
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert names - set(re.findall(r"(\w+)\.\w+", listed)) == set()


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_every_example_says_what_it_shows_and_how_to_run_it(name: str) -> None:
    doc = example(name).__doc__ or ""

    assert f"killproof work {name}" in doc or f"python {name}.py" in doc
