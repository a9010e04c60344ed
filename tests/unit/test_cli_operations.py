"""The commands of operation: what they print, for people and as JSON, and when they exit 1."""

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from killproof import Queue, cli, cli_terminal
from killproof.backup import Backup

Run = Callable[..., tuple[int, str, str]]


def as_json(answer: tuple[int, str, str]) -> Any:
    assert answer[0] == 0, answer
    return json.loads(answer[1])


@pytest.fixture
def dead_one(run: Run, place: Path) -> int:
    """A job of kind `mail` that is a dead letter; no test here needs the disk to be waited for."""
    with Queue(place / "queue.db", durability="process") as queue:
        job_id = queue.enqueue("mail", {"to": "x"})
        lease = queue.claim()
        assert lease is not None
        queue.nack(lease, ValueError("no such address"), permanent=True)
    return job_id


def test_the_dead_letters_are_listed_with_their_errors_and_what_to_do(
    run: Run, dead_one: int
) -> None:
    """Covers S0.77, S1.55, S1.46, S0.34."""
    code, out, _ = run("dead")

    assert code == 0
    assert (
        "dead, attempt 1 of 5: ValueError: no such address; again: killproof replay 1"
        in " ".join(out.split())
    )
    (job,) = as_json(run("dead", "--json"))
    assert (job["id"], job["kind"], job["error_class"]) == (dead_one, "mail", "ValueError")
    assert run("dead", "--kind", "other") == (0, "no dead letters\n", "")


def test_jobs_are_listed_latest_first_by_state_and_kind(run: Run, dead_one: int) -> None:
    run("enqueue", "mail", "1")
    run("enqueue", "scrape", "1")

    assert [job["id"] for job in as_json(run("jobs", "--json"))] == [3, 2, 1]
    assert [
        job["id"] for job in as_json(run("jobs", "--kind", "mail", "--limit", "1", "--json"))
    ] == [2]
    assert run("jobs", "--state", "held") == (0, "no held jobs\n", "")
    lines = run("jobs")[1].splitlines()
    assert lines[2].split()[:3] == ["3", "scrape", "available"]


def test_explain_names_the_rule_and_the_remedy(run: Run) -> None:
    run("enqueue", "mail", "1", "--delay", "3600")
    code, out, _ = run("explain", "1")

    assert code == 0
    assert out.startswith("job 1 of kind mail is scheduled\n  - due: it is due in 59 min")
    assert "-> start one that has a handler for 'mail': killproof work MODULE" in out
    assert as_json(run("explain", "1", "--json"))["keeping"] == ["due", "worker"]
    assert run("explain", "9")[0] == 64


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--alert", "dead"], 1),
        (["--alert", "dead=1"], 0),
        (["--alert", "held", "--alert", "age=10min"], 0),
        (["--alert", "dead=1", "--alert", "dead=0"], 1),
    ],
)
def test_an_alert_is_an_exit_code_for_cron(
    run: Run, dead_one: int, arguments: list[str], code: int
) -> None:
    """Covers S0.74: 1 is an alert, as everywhere; other troubles have codes of their own."""
    got, out, _ = run("status", *arguments)

    assert got == code
    assert ("ALERT dead: 1 job, over 0; look: killproof dead" in out) == bool(code)
    report = json.loads(run("status", *arguments, "--json")[1])
    assert [alert["name"] for alert in report["alerts"]] == ["dead"] * code


def test_an_alert_of_a_missing_file_is_no_alert(run: Run) -> None:
    assert run("status", "--alert", "dead")[0] == 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--alert", "failed"], "alert 'failed' is unknown"),
        (["status", "--alert", "dead=many"], "write dead=NUMBER"),
        (["status", "--alert", "age=soon"], "--alert age 'soon' is no time"),
        (["prune"], "say what to prune"),
        (["prune", "--dead", "yesterday"], "--dead 'yesterday' is no time"),
        (["jobs", "--state", "done"], "state 'done' is unknown"),
        (["metrics", "--window", "0"], "window 0.0 must be"),
        (["export", "--json"], "can not share standard output"),
        (["export", "queue.db"], "File exists"),
        (["import", "nothing.jsonl"], "No such file"),
        (["backup", "nowhere"], "nowhere: No such file or directory: name another folder"),
        (["restore", "nowhere.db"], "nowhere.db does not exist: name a backup"),
        (["webhook", "mailto:me"], "must be an http or https address"),
        (["webhook", "--remove"], "say which"),
        (["webhook", "http://x/", "--remove"], "nothing is sent to 'http://x/'"),
        (["enqueue", "k", "1", "--deadline", "soon"], "--deadline 'soon' is no time"),
        (["work", "json", "--nice", "-5"], "nice -5 must be"),
        (["work", "json", "--log-format", "xml"], "log format 'xml' is unknown"),
        (["systemd-unit", "my_jobs", "--user", "a b"], "user 'a b' is no name"),
        (["init", "my-jobs"], "module 'my-jobs' is no name"),
    ],
)
def test_bad_input_is_one_line_with_the_value(
    run: Run, dead_one: int, arguments: list[str], said: str
) -> None:
    code, out, err = run(*arguments)

    assert (code, out) == (64, "")
    assert said in err
    assert err.count("\n") == 1


def test_what_is_no_export_makes_no_queue(run: Run, place: Path) -> None:
    (place / "notes.txt").write_text("milk\n")
    (place / "empty.jsonl").touch()
    for name in ("notes.txt", "empty.jsonl"):
        code, _, err = run("import", name, "--db", "new.db")
        assert (code, "line 1 is not JSON" in err) == (64, True)

    assert not (place / "new.db").exists()


def test_prune_says_what_it_deletes_and_a_dry_run_what_it_would(run: Run, dead_one: int) -> None:
    assert run("prune", "--dead", "1h", "--dry-run")[1] == "would delete 0 jobs: 0 dead\n"
    assert run("prune", "--dead", "0", "--dry-run")[1] == "would delete 1 job: 1 dead\n"
    assert as_json(run("prune", "--dead", "0s", "--json")) == {
        "deleted": {"dead": 1},
        "dry_run": False,
    }
    assert run("jobs") == (0, "no jobs\n", "")
    assert run("prune", "--effects", "1h")[1] == "deleted 0 settled effects\n"


def test_a_backup_prints_its_path_and_restores_into_a_new_file(
    run: Run, dead_one: int, place: Path
) -> None:
    code, path, said = run("backup", ".")
    assert code == 0
    assert said.startswith("killproof: 1 job, ")
    assert run("restore", path.strip()) == (
        64,
        "",
        f"killproof: {place / 'queue.db'} exists: name a file that does not, or end all processes"
        " of the queue and give --force; what is there is kept beside it\n",
    )
    assert (
        f"restored 1 job into {place / 'new.db'}"
        in run("restore", path.strip(), "--db", "new.db")[1]
    )
    done = as_json(run("restore", path.strip(), "--force", "--json"))

    assert os.path.exists(done["replaced"])
    assert set(as_json(run("backup", ".", "--json"))) == set(Backup.__dataclass_fields__)


def test_an_export_goes_in_once_from_a_file_or_a_pipe(run: Run, dead_one: int, place: Path) -> None:
    assert as_json(run("export", "all.jsonl", "--json")) == {"exported": 1, "file": "all.jsonl"}
    code, lines, said = run("export")
    assert (code, lines, said) == (
        0,
        (place / "all.jsonl").read_text(),
        "killproof: exported 1 job\n",
    )
    first = run("import", "-", "--db", "new.db", stdin=lines.encode())
    assert first[1] == "imported 1 job, 0 were here already\n"

    assert as_json(run("import", "all.jsonl", "--db", "new.db", "--json"))["known"] == 1
    assert as_json(run("dead", "--db", "new.db", "--json"))[0]["error_class"] == "ValueError"


def test_metrics_are_text_for_a_scraper_or_json(run: Run, dead_one: int) -> None:
    code, out, _ = run("metrics")

    assert (code, out.endswith("# EOF\n")) == (0, True)
    assert 'killproof_jobs{state="dead"} 1' in out
    assert as_json(run("metrics", "--json"))["failure_ratio"] == [
        {"labels": {"kind": "mail"}, "value": 1.0}
    ]


def test_the_doctor_goes_through_the_checklist_too(run: Run, dead_one: int) -> None:
    checks = {check["name"]: check for check in as_json(run("doctor", "--json"))}

    assert checks["alert"]["status"] == "warn"
    assert {"volume", "backup", "rescue", "integrity", "death lock"} <= set(checks)


def test_webhooks_are_added_listed_and_removed(run: Run, dead_one: int) -> None:
    assert run("webhook") == (0, "no news of dead letters is sent\n", "")
    assert run("webhook", "http://127.0.0.1:9/") == (0, "http://127.0.0.1:9/\n", "")
    assert as_json(run("webhook", "--json")) == ["http://127.0.0.1:9/"]
    assert as_json(run("webhook", "http://127.0.0.1:9/", "--remove", "--json")) == []


def test_a_unit_names_this_interpreter_and_absolute_paths(run: Run, place: Path) -> None:
    text = as_json(run("systemd-unit", "my_jobs", "--db", "queue.db", "--json"))["unit"]

    assert f"ExecStart={sys.executable} -m killproof work my_jobs --db {place}/queue.db" in text
    assert run("systemd-unit", "my_jobs", "--db", "queue.db")[1] == text


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["reprioritise", "2", "0"], {"id": 2, "priority": 0}),
        (["hold", "2"], {"id": 2, "state": "held"}),
        (["cancel", "2"], {"id": 2, "state": "cancelled"}),
        (["replay", "1"], {"moved": [1], "refused": []}),
        (["enqueue", "k", "1"], {"id": 3}),
    ],
)
def test_what_people_decide_is_told_as_json(
    run: Run, dead_one: int, command: list[str], expected: object
) -> None:
    run("enqueue", "mail", "1")

    assert as_json(run(*command, "--json")) == expected


def test_an_urgent_job_goes_before_every_other_and_says_so(run: Run, place: Path) -> None:
    """Covers S1.27."""
    run("enqueue", "k", "1", "--priority", "1")

    assert run("enqueue", "k", "2", "--urgent") == (
        0,
        "2\n",
        "killproof: job 2 goes before every other\n",
    )
    with Queue(place / "queue.db") as queue:
        lease = queue.claim()
        assert lease is not None
        assert lease.job.payload == 2


def test_a_deadline_is_counted_from_now(run: Run, place: Path) -> None:
    run("enqueue", "k", "1", "--deadline", "10min")
    with Queue(place / "queue.db") as queue:
        job = queue.get(1)

    assert job is not None
    assert job.expires_ms is not None
    assert 590_000 < job.expires_ms - job.created_ms <= 600_000


# The command line itself.


def test_each_command_is_where_the_table_says() -> None:
    for module, (_, names) in cli.MODULES.items():
        app = cli._typer_of(module)
        registered = [cli._name(command) for command in app.registered_commands]
        registered += [str(group.name) for group in app.registered_groups]
        assert sorted(registered) == sorted(names)


def test_every_command_but_a_long_running_one_speaks_json(run: Run) -> None:
    for module in cli.MODULES:
        app = cli._typer_of(module)
        words = [(cli._name(command),) for command in app.registered_commands] + [
            (str(group.name), cli._name(command))
            for group in app.registered_groups
            if group.typer_instance is not None
            for command in group.typer_instance.registered_commands
        ]
        for command in words:
            assert ("--json" in run(*command, "--help")[1]) == (command != ("work",)), command


def test_a_command_imports_its_own_module_and_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in cli.MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    run("enqueue", "k", "1")

    assert [module for module in cli.MODULES if module in sys.modules] == ["killproof.cli_work"]


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version", "status")[1].startswith("killproof ")


def test_a_shell_is_told_the_commands_that_fit(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(cli.COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "killproof re")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit) as left:
        run()

    assert left.value.code == 0
    assert capsys.readouterr().out.split() == ["replay", "reprioritise", "restore", "resume"]
    monkeypatch.setenv("COMP_WORDS", "killproof jobs --state s")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit):
        run()

    assert sorted(capsys.readouterr().out.split()) == ["scheduled", "succeeded"]


def test_a_long_command_says_how_far_it_is_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 4.0, 4.5, 8.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    with cli_terminal.Steps("copied", "bytes") as steps:
        for done in (1, 2 << 20, 3 << 20, 4 << 20):
            steps.show(done, 8 << 20)

    assert capsys.readouterr().err.replace("\r", "") == (
        "killproof: copied 2.0 MiB of 8.0 MiB, about 12 s left   "
        "killproof: copied 4.0 MiB of 8.0 MiB, about 8 s left   \n"
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_goes_to_a_file_in_the_form_asked_for(
    run: Run, place: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is told to stop before it begins: what it logs is its first line."""
    from killproof import worker

    (place / "stopping_jobs.py").write_text(
        "from killproof.worker import Handlers\nhandlers = Handlers()\n"
        "@handlers('k')\ndef k(context): return None\n"
    )
    monkeypatch.setattr(worker.Worker, "run", lambda self: None)
    monkeypatch.setattr(logging.root, "handlers", [])
    code, _, _ = run(
        "work", "stopping_jobs", "--log-format", form, "--log-file", "work.log", "--nice", "0"
    )
    (line,) = (place / "work.log").read_text().splitlines()

    assert code == 0
    assert "works on: k, killproof.webhook" in line
    assert line.startswith("{") == (form == "json")
