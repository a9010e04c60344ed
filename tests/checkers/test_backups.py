"""P24: a backup opens, is whole, and holds what was acknowledged before it began."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from killproof_evidence.audit import install_audit
from killproof_evidence.backups import read_backups
from killproof_evidence.target import AuditMapping, RunMapping

if TYPE_CHECKING:
    from tests.checkers.conftest import Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


def test_a_backup_that_shows_the_file_as_it_was_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    done, held = producer.enqueues("a"), producer.enqueues("b")
    worker.claims(done)
    worker.runs(done)
    worker.acks(done)
    worker.claims(held)
    producer.enqueues("c", delay_ms=50)
    producer.backs_up()
    worker.runs(held)
    worker.acks(held)
    producer.enqueues("d")
    producer.backs_up()

    finding = run.finding("P24")

    assert finding.verdict == "pass"
    assert finding.figures == {"backups": 2}


def test_a_job_that_was_acknowledged_before_must_be_in_it(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    seq = len(run.audit)
    producer.enqueues("b")
    producer.backs_up(seq=seq, jobs={1: "available"})

    assert "job 2 was acknowledged before backup backup-0 began, and is not" in run.story("P24")


def test_a_job_whose_enqueue_was_under_way_may_be_in_it_or_not(
    run: "Run", producer: "Process"
) -> None:
    other = run.process("p2")
    producer.enqueues("a")
    seq = len(run.audit)
    producer.invokes("enqueue", value=run.job("b").asked)
    other.backs_up(seq=seq, jobs={1: "available"})
    run.commits(run.jobs[1], "available")
    producer.hears("ok", job=run.jobs[1])

    assert run.verdict("P24") == "pass"


def test_an_ack_that_was_acknowledged_before_must_be_in_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    seq = len(run.audit)
    worker.runs(job)
    worker.acks(job)
    producer.backs_up(seq=seq, jobs={1: "available"})

    assert "the ack of job 1 was acknowledged before" in run.story("P24")


@pytest.mark.parametrize(
    ("jobs", "word"),
    [
        ({1: "succeeded"}, "was available when backup backup-0 was taken, and is succeeded"),
        ({1: "available", 9: "dead"}, "job 9 is dead in backup backup-0, and was not there"),
    ],
)
def test_what_never_was_must_not_be_in_it(
    run: "Run", producer: "Process", jobs: dict[int, str], word: str
) -> None:
    producer.enqueues("a")
    producer.backs_up(jobs=jobs)

    assert word in run.story("P24")


def test_a_job_that_went_before_it_must_not_be_in_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.edges["succeeded"] = ("deleted",)
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)
    run.commits(job, None)
    producer.backs_up(jobs={1: "succeeded"})

    assert "job 1 was gone when backup backup-0 was taken, and is succeeded" in run.story("P24")


def test_a_backup_that_does_not_open_is_seen(run: "Run", producer: "Process") -> None:
    producer.backs_up(jobs={}, opens=False, error="file is not a database")

    assert run.story("P24") == "backup backup-0 does not open: file is not a database"


def test_a_backup_that_is_not_whole_is_seen(run: "Run", producer: "Process") -> None:
    producer.backs_up(jobs={}, problems=["row 7 missing from index"])

    assert run.story("P24") == "backup backup-0 is not whole: row 7 missing from index"


def test_a_backup_that_a_later_one_has_replaced_is_seen(run: "Run", producer: "Process") -> None:
    name = producer.backs_up()
    producer.invokes("backup")
    producer.hears("ok", value={"backup": name})

    assert run.story("P24") == (
        "backup backup-0 was made twice: the later one has replaced the earlier"
    )


def test_backups_whose_names_are_not_told_are_not_taken_for_one(
    run: "Run", producer: "Process"
) -> None:
    for _ in range(2):
        producer.invokes("backup")
        producer.hears("ok")

    assert run.verdict("P24") == "unknown"


def test_a_backup_that_nobody_has_opened_leaves_it_unknown(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    producer.backs_up()
    run.backups.clear()

    finding = run.finding("P24")

    assert (finding.verdict, finding.checked) == ("unknown", 0)
    assert finding.reason == "backup backup-0 was made, and nobody has opened it"


def test_a_part_of_the_facts_is_no_evidence(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    producer.backs_up()
    run.backups.pop()

    assert run.verdict("P24") == "unknown"


def test_a_run_without_a_backup_leaves_it_unknown(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    run.process("p2").invokes("backup")

    assert run.verdict("P24") == "unknown"


def test_a_copy_of_an_untold_moment_leaves_it_unknown(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    producer.backs_up()
    run.backups[0].pop("seq")

    finding = run.finding("P24")

    assert finding.verdict == "unknown"
    assert finding.reason == "of what moment backup backup-0 is, nothing tells"


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [({"r": "running"}, "pass"), ({"r": "succeeded"}, "violated"), ({}, "violated"),
     ({"r": "running", "s": "running"}, "violated"), (None, "unknown")],
)  # fmt: skip
def test_a_run_is_in_a_copy_as_it_was_at_that_moment(
    run: "Run", producer: "Process", runs: dict[str, str] | None, verdict: str
) -> None:
    run.edges |= {"start": ("available", "blocked")}
    producer.starts_run("r", {"a": [], "b": ["a"]})
    producer.backs_up(runs=runs)
    run.commits_run("r", "cancelled")

    finding = run.finding("P24")

    assert finding.verdict == verdict, finding


def test_a_job_that_was_replayed_before_it_need_not_be_done_in_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)
    producer.replays(job)
    producer.backs_up()

    assert run.verdict("P24") == "pass"


@pytest.mark.parametrize(("state", "verdict"), [("retryable", "pass"), ("blocked", "violated")])
def test_what_was_leased_is_in_it_as_a_lease_may_end(
    run: "Run", producer: "Process", worker: "Process", state: str, verdict: str
) -> None:
    run.edges["start"] = ("available", "blocked")
    worker.claims(producer.enqueues("a"))
    producer.backs_up(jobs={1: state})

    assert run.verdict("P24") == verdict


def test_a_commit_before_it_that_nobody_was_told_of_must_be_in_it(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a", answer="info")
    producer.backs_up(jobs={})

    assert run.story("P24") == (
        "job 1 was available when backup backup-0 was taken, and is not there in it"
    )


def test_a_job_of_a_later_commit_must_not_be_in_it_and_that_commit_is_shown(
    run: "Run", producer: "Process"
) -> None:
    seq = len(run.audit)
    producer.enqueues("a", answer="info")
    producer.backs_up(seq=seq)

    assert ("audit.jsonl", seq + 1) in run.finding("P24").witnesses[0].lines


@pytest.mark.parametrize("may_go", [True, False])
def test_without_an_audit_a_job_may_be_missing_in_it_only_where_rows_go(
    run: "Run", producer: "Process", may_go: bool
) -> None:
    run.audited = False
    if may_go:
        run.edges["succeeded"] = ("deleted",)
    producer.enqueues("a")
    producer.backs_up(jobs={})
    run.backups[0].pop("seq")

    finding = run.finding("P24")

    assert finding.verdict == ("unknown" if may_go else "violated"), finding


def test_where_rows_go_a_job_that_has_not_gone_must_still_be_in_it(
    run: "Run", producer: "Process"
) -> None:
    run.edges["succeeded"] = ("deleted",)
    producer.enqueues("a")
    producer.backs_up(jobs={}, seq=0)

    assert "and is not in it" in run.story("P24")


def test_a_job_of_which_no_id_was_told_is_not_looked_for(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    producer.invokes("enqueue", value=run.job("b").asked)
    producer.hears("ok")
    producer.backs_up()

    assert run.verdict("P24") == "pass"


def test_a_job_that_is_not_asked_for_hides_no_other(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """The first was never acknowledged, and the second has gone."""
    producer.enqueues("a", answer="info")
    run.commits(producer.enqueues("b"), None)
    producer.enqueues("c")
    producer.backs_up(jobs={1: "available"}, seq=3)

    assert "job 3 was acknowledged before backup backup-0 began" in run.story("P24")


def test_a_job_that_is_younger_than_a_backup_must_be_in_a_later_one(
    run: "Run", producer: "Process"
) -> None:
    producer.backs_up()
    producer.enqueues("a")
    producer.backs_up(jobs={}, seq=0)

    assert "job 1 was acknowledged before backup backup-1 began" in run.story("P24")


def test_an_extension_before_it_does_not_say_how_a_job_ended(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.extends(job)
    producer.backs_up()
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P24") == "pass"


def test_the_first_five_problems_of_a_backup_are_told(run: "Run", producer: "Process") -> None:
    producer.backs_up(jobs={}, problems=list("abcdef"))

    assert run.story("P24") == "backup backup-0 is not whole: a; b; c; d; e"


def test_two_backups_of_one_moment_are_both_held_against_it(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a", answer="info")
    for _ in range(2):
        producer.backs_up(jobs={})

    assert run.finding("P24").violations == 2


def test_a_run_is_in_each_copy_as_its_last_change_before_it_left_it(
    run: "Run", producer: "Process"
) -> None:
    run.edges |= {"start": ("available", "blocked")}
    producer.starts_run("r", {"a": []})
    run.commits_run("r", "failed")
    run.commits_run("r", "running")
    producer.backs_up()
    run.commits_run("r", "succeeded")
    producer.backs_up()

    assert run.verdict("P24") == "pass"


# --- How the facts are got.

MAPPING = AuditMapping(table="job", id="id", state="state", states={"ready": "available"})


def a_queue(path: Path) -> sqlite3.Connection:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE job (id INTEGER PRIMARY KEY, state TEXT)")
    install_audit(path, MAPPING)
    return sqlite3.connect(path, isolation_level=None)


def test_a_copy_tells_its_jobs_and_the_last_commit_that_it_shares_with_the_original(
    tmp_path: Path,
) -> None:
    with closing(a_queue(tmp_path / "queue.db")) as db:
        db.execute("INSERT INTO job VALUES (1, 'ready'), (2, 'leased')")
        db.execute("CREATE TABLE flow (id INTEGER PRIMARY KEY, name TEXT, state TEXT)")
        db.execute("INSERT INTO flow VALUES (1, 'r', 'going')")
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            db.backup(copy)
            copy.execute("UPDATE job SET state = 'ready' WHERE state = 'leased'")
            copy.commit()
        db.execute("UPDATE job SET state = 'succeeded'")
        db.execute("UPDATE flow SET state = 'succeeded'")
    copies = [("b", tmp_path / "copy.db")]
    runs = RunMapping(
        table="flow", id="id", state="state", name="name", states={"going": "running"}
    )

    found = list(read_backups(tmp_path / "queue.db", MAPPING, copies, runs))

    assert found[0]["opens"]
    assert found[0]["runs"] == {"r": "running"}
    assert (found[0]["seq"], found[0]["jobs"], found[0]["problems"]) == (2, 2, [])
    assert [(row["job"], row["state"]) for row in found[1:]] == [
        ("1", "available"),
        ("2", "available"),
    ]


def test_a_copy_that_is_none_is_told_and_not_made(tmp_path: Path) -> None:
    a_queue(tmp_path / "queue.db").close()
    (tmp_path / "text.db").write_text("not a database, and long enough for a header" * 100)

    found = list(
        read_backups(
            tmp_path / "queue.db",
            MAPPING,
            [("text", tmp_path / "text.db"), ("gone", tmp_path / "gone.db")],
        )
    )

    assert [(row["backup"], row["opens"]) for row in found] == [("text", False), ("gone", False)]
    assert not (tmp_path / "gone.db").exists()
