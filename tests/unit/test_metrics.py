"""The numbers are right, and the text is OpenMetrics by the word of another program."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from killproof import Lease, ManualClock, Queue, metrics
from killproof.alerts import Alert, alerts, limit
from killproof.core import model

Sql = Callable[..., list[tuple[object, ...]]]
#: Prometheus's own parser, which ships without types.
parse: Callable[[str], Iterable[Any]] = text_string_to_metric_families
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def scraped(queue: Queue, window: float = 3_600) -> Values:
    """Read the text as Prometheus's own parser does; it raises for what is no OpenMetrics."""
    text = metrics.render(metrics.collect(queue, window=window))
    return {
        (sample.name.removeprefix("killproof_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_an_empty_queue_is_valid_openmetrics(queue: Queue) -> None:
    found = scraped(queue)

    assert [found["jobs", (("state", state),)] for state in model.STATES] == [0] * 10
    assert found["oldest_waiting_seconds", ()] == 0
    assert found["lock_wait_seconds", ()] >= 0


def test_the_parser_of_this_test_refuses_what_is_no_openmetrics() -> None:
    with pytest.raises(ValueError, match="EOF"):
        list(parse("# TYPE killproof_jobs gauge\nkillproof_jobs 1\n"))


def test_times_are_means_by_kind_over_the_jobs_that_ended(queue: Queue, clock: ManualClock) -> None:
    """Covers S0.79, S1.56, S2.36: created to done, and the execution alone."""
    for wait, work in ((10, 1), (20, 3)):
        queue.enqueue("mail", 1)
        clock.advance(wait)
        lease = claimed(queue)
        clock.advance(work)
        queue.ack(lease)
    found = scraped(queue)

    assert found["created_to_done_mean_seconds", (("kind", "mail"),)] == (11 + 23) / 2
    assert found["execution_mean_seconds", (("kind", "mail"),)] == (1 + 3) / 2
    assert found["ended_jobs", (("kind", "mail"), ("state", "succeeded"))] == 2


def test_the_failure_rate_counts_executions_by_kind(queue: Queue, clock: ManualClock) -> None:
    """Covers S1.56: one job that failed once and then succeeded, one that died of its second."""
    for kind, succeeds in (("scrape", True), ("scrape", False), ("mail", True)):
        queue.enqueue(kind, 1, max_attempts=2)
        if kind == "scrape":
            queue.nack(claimed(queue), "no", delay=0)
        if succeeds:
            queue.ack(claimed(queue))
        else:
            queue.nack(claimed(queue), "no")
    found = scraped(queue)

    assert found["failure_ratio", (("kind", "scrape"),)] == 3 / 4
    assert found["failure_ratio", (("kind", "mail"),)] == 0
    assert found["ended_jobs", (("kind", "scrape"), ("state", "dead"))] == 1


def test_what_ended_before_the_window_does_not_count(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", 1)
    queue.ack(claimed(queue))
    clock.advance(120)

    assert ("failure_ratio", (("kind", "mail"),)) not in scraped(queue, window=60)


def test_depth_age_and_workers_are_of_this_moment(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", 1)
    clock.advance(90)
    queue.enqueue("mail", 1)
    queue.enqueue("scrape", 1, priority=0)
    claimed(queue)
    found = scraped(queue)

    assert found["waiting_jobs", (("kind", "mail"),)] == 2
    assert found["oldest_waiting_seconds", ()] == 90
    assert found["jobs", (("state", "leased"),)] == 1
    assert found["workers", (("state", "alive"),)] == 1
    assert found["file_bytes", (("file", "database"),)] > 0


def test_a_kind_of_any_text_is_a_label(queue: Queue) -> None:
    kind = 'a "b"\\ c\nd é'
    queue.enqueue(kind, 1)

    assert scraped(queue)["waiting_jobs", (("kind", kind),)] == 1


def test_a_held_lock_is_told_as_a_wait_and_not_as_an_error(
    queue: Queue, clock: ManualClock
) -> None:
    """The clock of the fixture moves with each pause, so the wait is the busy limit of 30 s."""
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = scraped(queue)
        other.execute("ROLLBACK")

    assert found["lock_wait_seconds", ()] >= 30


def test_a_scrape_changes_nothing(queue: Queue, sql: Sql) -> None:
    queue.enqueue("mail", 1)
    before = sql("SELECT * FROM job")
    scraped(queue)

    assert sql("SELECT * FROM job") == before


# Alerts.


@pytest.mark.parametrize(
    ("name", "most", "text"),
    [
        ("dead", 0, "dead: 2 jobs, over 0; look: killproof dead"),
        ("dead", 2, None),
        ("held", 0, None),
        ("available", 4, "available: 5 jobs, over 4; look: killproof jobs --state available"),
        ("age", 60, "age: the oldest waits for 1 min 30 s, over 1 min; look: killproof explain"),
        ("age", 90, None),
    ],
)
def test_an_alert_is_a_number_over_its_limit(name: str, most: float, text: str | None) -> None:
    """Covers S0.74."""
    counts = dict.fromkeys(model.STATES, 0) | {"dead": 2, "available": 5}
    found: list[Alert] = alerts([limit(name, most)], counts, 90_000)

    assert len(found) == (text is not None)
    assert all(alert.text.startswith(text or "") for alert in found)


@pytest.mark.parametrize(("name", "most"), [("failed", 0.0), ("dead", -1.0)])
def test_an_alert_of_nonsense_is_refused(name: str, most: float) -> None:
    with pytest.raises(ValueError, match=name):
        limit(name, most)
