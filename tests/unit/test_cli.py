"""The command line: what it prints, and what it says to bad input."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from killproof import Job, KillproofError, Queue, cli, cli_work
from killproof.cli_jobs import summary

Run = Callable[..., tuple[int, str, str]]


def test_enqueue_prints_the_id_and_makes_the_file(run: Run, place: Path) -> None:
    """Covers S0.35, S0.83, S1.24."""
    assert run("enqueue", "send_report", '{"id": 7}') == (0, "1\n", "")
    with Queue(place / "queue.db") as queue:
        job = queue.get(1)

    assert job is not None
    assert (job.kind, job.payload) == ("send_report", {"id": 7})


def test_the_level_of_a_new_file_can_be_asked_for(run: Run, place: Path) -> None:
    assert run("enqueue", "k", "1", "--durability", "process")[0] == 0
    with Queue(place / "queue.db") as queue:
        assert queue.durability == "process"
    code, _, err = run("enqueue", "k", "1", "--durability", "power")

    assert (code, "has durability 'process', not 'power'" in err) == (64, True)


def test_enqueue_takes_every_option(run: Run, place: Path) -> None:
    options = {"delay": "10min", "priority": 0, "key": "k1", "max-attempts": 3, "lease": 5}
    given = [f"--{name}={value}" for name, value in options.items()]
    run("enqueue", "k", "[]", "--db", "other.db", "--retry", "fixed:2", *given)
    with Queue(place / "other.db") as queue:
        job = queue.get(1)

    assert job is not None
    assert (job.state, job.priority, job.key) == ("scheduled", 0, "k1")
    assert job.due_ms - job.created_ms == 600_000
    assert (job.max_attempts, job.lease_ms, job.retry) == (3, 5_000, "fixed:2")


def test_enqueue_reads_the_payload_from_standard_input(run: Run, place: Path) -> None:
    """Covers S0.31: no escaping of JSON in a shell script."""
    assert run("enqueue", "k", "-", stdin='{"é": "\U0001f600"}'.encode())[0] == 0
    with Queue(place / "queue.db") as queue:
        job = queue.get(1)

    assert job is not None
    assert job.payload == {"é": "\U0001f600"}


def test_enqueue_takes_texts_of_a_shell_as_they_are(run: Run, place: Path) -> None:
    """Covers S0.31: whatever is in a variable, nothing in it has to be escaped."""
    text = """it's "50%" \\ é=1\n$(x)"""
    assert run("enqueue", "k", "--field", f"subject={text}", "--field", "to=")[0] == 0
    assert run("enqueue", "k", '{"n": 1}', "--field", "to=a")[0] == 0
    assert run("enqueue", "k")[0] == 64
    assert run("enqueue", "k", "[1]", "--field", "to=a")[0] == 64
    assert run("enqueue", "k", "--field", "to")[0] == 64
    with Queue(place / "queue.db") as queue:
        payloads = [job.payload for job in (queue.get(1), queue.get(2), queue.get(3)) if job]

    assert payloads == [{"subject": text, "to": ""}, {"n": 1, "to": "a"}]


def test_the_database_comes_from_the_option_or_the_variable(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLPROOF_DB", str(place / "variable.db"))
    run("enqueue", "k", "1")
    run("enqueue", "k", "1", "--db", str(place / "option.db"))

    assert (place / "variable.db").exists()
    assert (place / "option.db").exists()
    assert not (place / "queue.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["enqueue", "k", "{bad"], "payload '{bad' is not JSON"),
        (["enqueue", "k", "NaN"], "payload nan is not JSON"),
        (["enqueue", "k", "[" * 100_000], "is not JSON"),
        (["enqueue", "k", '"\\ud83d"'], "surrogate"),
        (["enqueue", "k", "1", "--delay", "-1"], "--delay '-1' is no time"),
        (["enqueue", "k", "1", "--priority", "10"], "priority 10 must be"),
        (["enqueue", "k", "1", "--retry", "often"], "retry policy 'often' is unknown"),
        (["enqueue", "k", "1", "--max-attempts", "0"], "max_attempts 0 must be"),
        (["enqueue", "k", "1", "--color", "red"], "No such option: --color"),
        (["enqueue", "k", "1", "--durability", "best"], "durability 'best' is unknown"),
        (["enqueue", "", "1"], "kind '' must be"),
        (["enqueue", "k"], "a job needs a payload"),
        (["enqueue", "k", "1", "--delay", "soon"], "--delay 'soon' is no time"),
        (
            ["enqueue", "k", "1", "--delay", "2h", "--deadline", "1h"],
            "--deadline 1h must be later than --delay 2h",
        ),
        (["enqueue", "k", "1", "--lease=-1"], "--lease '-1' is no time"),
        (["enqueue", "k", "1", "--db", "no/such/folder/queue.db"], "no/such/folder/queue.db"),
        (["status"], "queue.db does not exist: make it with killproof enqueue"),
        (["show", "1"], "queue.db does not exist"),
        (["show", "one"], "'ID'"),
        (["replay", "1"], "queue.db does not exist"),
        (["replay"], "--state dead"),
        (["cancel", "1"], "queue.db does not exist"),
        (["work", "no_such_module"], "there is no module 'no_such_module' here"),
        (["work", "no_such_package.jobs"], "there is no module 'no_such_package.jobs' here"),
        (["work", "my_jobs.py"], "'my_jobs.py' is a file: give the name of the module, 'my_jobs'"),
        (["work", "json"], "module 'json' has no Handlers named 'handlers'"),
        (["work", "json", "--log-level", "loud"], "log level 'loud' is unknown"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_bad_input_is_one_line_with_the_value_and_changes_nothing(
    run: Run, place: Path, arguments: list[str], said: str
) -> None:
    code, out, err = run(*arguments)

    assert (code, out) == (64, "")
    assert said in err
    assert err.startswith("killproof: ")
    assert err.count("\n") == 1
    assert not list(place.glob("*.db"))


def test_a_foreign_database_is_refused_in_a_line(run: Run, place: Path) -> None:
    (place / "queue.db").write_text("not a database, just text\n" * 100)
    code, out, err = run("status")

    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "name another file" in err


def test_a_payload_over_the_limit_is_refused_with_the_remedy(run: Run) -> None:
    code, _, err = run("enqueue", "k", "-", stdin=b'"' + b"x" * (1 << 20) + b'"')

    assert code == 64
    assert "over the limit of 1048576 bytes" in err


def test_status_counts_by_state_and_names_the_kinds_that_wait(run: Run) -> None:
    """Covers S0.60, S2.36."""
    run("enqueue", "mail", "1")
    run("enqueue", "mail", "1", "--delay", "60")
    code, out, _ = run("status")

    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["scheduled", "1"] in lines
    assert ["available", "1"] in lines
    assert lines[-1] == ["waiting", "kinds:", "mail"]


def test_status_as_json_holds_every_state(run: Run) -> None:
    run("enqueue", "mail", "1")
    report = json.loads(run("status", "--json")[1])

    assert report["counts"]["available"] == 1
    assert len(report["counts"]) == 10
    assert (report["durability"], report["waiting_kinds"]) == ("power", ["mail"])


class HTTPError(Exception):
    """An error of a client library."""


def fail_once(place: Path) -> None:
    with Queue(place / "queue.db") as queue:
        lease = queue.claim()
        assert lease is not None
        try:
            raise HTTPError("503")
        except HTTPError as error:
            queue.nack(lease, error, delay=58.9)


def test_show_says_what_comes_next_and_why(run: Run, place: Path) -> None:
    """Covers S0.73."""
    run("enqueue", "scrape", '{"url": "x"}', "--key", "k1")
    fail_once(place)
    code, out, _ = run("show", "1")

    assert code == 0
    assert "job 1 of kind scrape: next try in 58 s (failure 1 of 5: HTTPError: 503)" in out
    assert 'payload {"url": "x"}' in out
    assert "key k1" in out
    assert 'raise HTTPError("503")' in out


def test_show_as_json_holds_all_attempts(run: Run, place: Path) -> None:
    run("enqueue", "scrape", "1")
    fail_once(place)
    job = json.loads(run("show", "1", "--json")[1])

    assert (job["state"], job["attempt"], job["kind"]) == ("retryable", 1, "scrape")
    assert [attempt["outcome"] for attempt in job["attempts"]] == ["failed"]
    assert job["summary"].startswith("next try in 58 s")


def test_a_kind_or_a_key_moves_no_cursor(run: Run, place: Path) -> None:
    with Queue(place / "queue.db") as queue:
        queue.enqueue("k\x1b[2J", None, key="key\x1b[1A")
    shown, status = run("show", "1")[1], run("status")[1]

    assert "\x1b" not in shown + status
    assert "kind k\\x1b[2J" in shown
    assert "key key\\x1b[1A" in shown
    assert "waiting kinds: k\\x1b[2J" in status


def test_an_error_that_looks_like_markup_is_printed_as_it_is(run: Run, place: Path) -> None:
    run("enqueue", "k", "1")
    with Queue(place / "queue.db") as queue:
        lease = queue.claim()
        assert lease is not None
        queue.nack(lease, "[red]list[int] [/] \x1b[31m")

    assert run("show", "1")[1].count("[red]list[int] [/] \\x1b[31m") == 2  # Above and in the table.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "available"}, "waits for a worker"),
        (
            {"state": "available", "deliveries": 1, "error_class": "Crashed"},
            "waits for a worker, after 1 attempt: Crashed",
        ),
        ({"state": "scheduled", "due_ms": 1_000_000 + 3_725_000}, "due in 1 h 2 min"),
        ({"state": "scheduled", "due_ms": 999_000}, "due now"),
        (
            {
                "state": "retryable", "due_ms": 1_058_000, "deliveries": 1,
                "error_class": "HTTPError", "error_message": "503\nbody",
            },
            "next try in 58 s (failure 1 of 5: HTTPError: 503)",
        ),
        (
            {"state": "leased", "deliveries": 2, "claimed_ms": 997_000},
            "running for 3 s, attempt 2 of 5",
        ),
        ({"state": "succeeded", "deliveries": 1}, "succeeded, attempt 1 of 5"),
        (
            {"state": "dead", "deliveries": 5, "error_class": "Crashed"},
            "dead, attempt 5 of 5: Crashed; again: killproof replay 7",
        ),
        (
            {"state": "held", "error_class": "Hold", "error_message": "paid?"},
            "held: Hold: paid?; decide: killproof unhold 7, or cancel 7",
        ),
        ({"state": "held"}, "held; decide: killproof unhold 7, or cancel 7"),
        ({"state": "blocked"}, "waits for other jobs"),
        ({"state": "cancelled"}, "cancelled; again: killproof replay 7"),
        ({"state": "expired"}, "its deadline has passed; again: killproof replay 7"),
    ],
)  # fmt: skip
def test_every_state_is_explained_in_a_line(changes: dict[str, Any], said: str) -> None:
    job = Job(
        id=7, kind="k", state="available", payload=None, priority=5, due_ms=0, key=None,
        max_attempts=5, lease_ms=60_000, retry="article", fence=9, deliveries=0, forgiven=0,
        failures=0, crashes=0, owner=None, claimed_ms=None, created_ms=0, finished_ms=None,
        error_class=None, error_message=None, result=None,
    )  # fmt: skip

    assert summary(replace(job, **changes), 1_000_000) == said


def dead_letter(place: Path) -> None:
    with Queue(place / "queue.db") as queue:
        lease = queue.claim()
        assert lease is not None
        queue.nack(lease, "no", permanent=True)


def test_replay_moves_by_id_and_says_what_it_left(run: Run, place: Path) -> None:
    run("enqueue", "k", "1")
    dead_letter(place)

    assert run("replay", "1") == (0, "replayed 1 job: 1\n", "")
    code, out, err = run("replay", "1")
    assert (code, out) == (64, "replayed 0 jobs\n")
    assert "job 1: its state is 'available'" in err


def test_replay_by_state_moves_them_all(run: Run, place: Path) -> None:
    for _ in range(2):
        run("enqueue", "k", "1")
        dead_letter(place)

    assert run("replay", "--state", "dead")[1] == "replayed 2 jobs: 1, 2\n"


def test_cancel_reprioritise_hold_and_unhold_say_what_they_did(run: Run) -> None:
    run("enqueue", "k", "1")

    assert run("reprioritise", "1", "0") == (0, "job 1 has priority 0\n", "")
    assert run("hold", "1") == (0, "job 1 is held\n", "")
    assert run("unhold", "1") == (0, "job 1 is available\n", "")
    assert run("cancel", "1") == (0, "job 1 is cancelled\n", "")
    why = "killproof: job 1 is cancelled: nothing was changed; see killproof explain 1\n"
    assert run("hold", "1") == (64, "", why)
    assert run("cancel", "2")[0] == 64


def test_doctor_prints_each_check_and_fails_for_a_fault(run: Run, place: Path) -> None:
    run("enqueue", "k", "1")
    code, out, _ = run("doctor")
    assert code == 0
    assert "death lock" in out
    (place / "queue.db.failed").write_text("fdatasync failed\n")
    code, out, _ = run("doctor", "--json")

    assert code == 1
    assert {check["name"]: check["status"] for check in json.loads(out)}["marker"] == "fail"


def test_doctor_repairs_on_request(run: Run, place: Path) -> None:
    run("enqueue", "k", "1")
    (place / "queue.db.failed").write_text("fdatasync failed\n")
    code, _, err = run("enqueue", "k", "1")
    assert (code, err.count("\n")) == (3, 1)
    assert "doctor --repair" in err

    assert run("doctor", "--repair")[0] == 0
    assert run("enqueue", "k", "1")[0] == 0


def test_a_module_that_fails_is_named_with_the_place(run: Run, place: Path) -> None:
    (place / "broken_jobs.py").write_text("x = 1\nraise RuntimeError('no config')\n")
    code, _, err = run("work", "broken_jobs")

    assert code == 64
    assert "module 'broken_jobs' failed: RuntimeError: no config" in err
    assert "broken_jobs.py:2" in err


def test_a_module_that_exits_when_imported_is_no_worker_that_ended_in_order(
    run: Run, place: Path
) -> None:
    (place / "leaving_jobs.py").write_text("import sys\nsys.exit(0)\n")
    code, _, said = run("work", "leaving_jobs")

    assert code == 64
    assert "leaving_jobs.py:2" in said


def test_a_name_that_is_too_long_is_bad_input(run: Run) -> None:
    code, _, said = run("status", "--db", "x" * 300)

    assert code == 64
    assert "File name too long: name another file" in said


def test_a_module_whose_import_is_missing_names_that(run: Run, place: Path) -> None:
    (place / "needy_jobs.py").write_text("import no_such_library\n")

    assert "needs 'no_such_library': install it" in run("work", "needy_jobs")[2]


def test_help_lists_the_commands_of_other_packages_without_importing_them(run: Run) -> None:
    loaded = set(sys.modules)
    code, out, _ = run("--help")

    assert code == 0
    assert "chaos" in out
    assert "enqueue" in out
    assert not {name for name in set(sys.modules) - loaded if name.startswith("killproof_")}


@pytest.mark.parametrize("group", ["schedules", "workflow", "payloads", "chaos", "bench"])
def test_a_group_alone_is_wrong_usage_and_prints_its_help(run: Run, group: str) -> None:
    code, out, err = run(group)

    assert (code, f"Usage: killproof {group} [OPTIONS] COMMAND" in out) == (64, True)
    assert err == f"killproof: the name of its command is missing (see: killproof {group} --help)\n"


def test_the_harness_says_in_json_what_it_found_of_this_machine(run: Run) -> None:
    _, lines, _ = run("chaos", "doctor")
    found = json.loads(run("chaos", "doctor", "--json")[1])

    told = "".join(f"{'ok  ' if one['good'] else 'BAD '} {one['text']}\n" for one in found)
    # Between the two somebody else may have written to the disk.
    assert re.sub(r"\d+ MiB", "some", told) == re.sub(r"\d+ MiB", "some", lines)


def test_the_queues_own_commands_do_not_look_for_other_packages(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **group: pytest.fail("looked"))

    assert run("enqueue", "k", "1")[0] == 0


def test_a_package_that_is_not_installed_gives_the_line_that_installs_it() -> None:
    point = EntryPoint(name="chaos", value="no_such_package.cli:app", group=cli.PLUGINS)
    with pytest.raises(KillproofError, match=r"pip install 'killproof\[chaos\]'"):
        cli._load(point)


def test_a_late_import_that_only_an_extra_has_gives_the_line_that_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("killproof_bench.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)  # An import of it fails, as without it.
    code, out, err = run("bench", "startup")

    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith(
        "killproof: killproof bench needs its extra: pip install 'killproof[bench]'"
    )
    assert not cli._is_of_extra(ModuleNotFoundError("a fault of ours", name="no_such"), "bench")


def test_an_unexpected_error_is_a_line_and_a_hint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise LookupError("a fault of ours")

    run("enqueue", "k", "1")
    monkeypatch.setattr(cli_work, "Queue", broken)
    code, _, err = run("enqueue", "k", "1")

    assert (code, err.count("\n")) == (3, 1)
    assert "internal error: LookupError: a fault of ours (KILLPROOF_DEBUG=1" in err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AssertionError(), "killproof: internal error: AssertionError (KILLPROOF_DEBUG=1"),
        (ValueError("no\nsuch \x1b[31mqueue"), r"killproof: no\nsuch \x1b[31mqueue"),
    ],
)
def test_an_error_without_text_or_with_a_terminals_orders_is_a_plain_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(cli_work, "Queue", broken)
    _, _, err = run("enqueue", "k", "1")

    assert (err.count("\n"), "\x1b" in err) == (1, False)
    assert err.startswith(text)
