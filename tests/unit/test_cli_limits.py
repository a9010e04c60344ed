"""`killproof limits`: what it prints, what it refuses, and that every form of it speaks JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from killproof import Queue
from killproof.limits import Limits

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def path(place: Path) -> Path:
    with Queue(place / "queue.db", durability="process") as queue:
        queue.enqueue_many([("scrape", None)] * 4)
    return place / "queue.db"


def test_limits_are_set_listed_and_removed_at_the_terminal(run: Run, path: Path) -> None:
    """Covers S1.39, S1.58."""
    assert run("limits") == (
        0,
        "no limits: killproof limits set NAME --kind KIND --running 3\n",
        "",
    )
    said = "limit shop of scrape, sync: 2 run at a time; 1.5 start per second, 10 at once\n"
    words = "limits set shop --kind scrape --kind sync --running 2 --rate 90/min --burst 10"
    assert run(*words.split()) == (0, said, "")
    assert run(*["limits", "age", "scrape", "1h"]) == (0, "scrape ages: priority 0 after 1 h\n", "")
    with Queue(path) as queue:
        assert len(queue.claim_many(9)) == 2
        _, listed, _ = run("limits")
    assert "shop    scrape, sync       2/2     8/10   full" in listed
    assert "scrape ages: priority 0 after 1 h" in listed

    assert run("limits", "age", "scrape", "--off") == (0, "scrape does not age\n", "")
    assert run("limits", "remove", "shop") == (0, "limit shop is removed\n", "")
    assert run("limits", "remove", "shop")[0] == 64


def test_a_resource_is_closed_and_opened_at_the_terminal(run: Run, path: Path) -> None:
    run("limits", "set", "shop", "--kind", "scrape")
    code, said, _ = run("limits", "close", "shop", "15min", "--reason", "HTTP 429\x1b[2J")
    assert code == 0
    assert said.startswith("limit shop of scrape: no rule\nclosed until 20")
    assert said.endswith(": HTTP 429\\x1b[2J\n")
    assert "closed for 14 min 59 s by process " in run("limits")[1]
    run("limits", "close", "shop")
    assert "closed until it is opened by process " in run("limits")[1]

    assert run("limits", "open", "shop")[:2] == (0, "limit shop of scrape: no rule\n")
    refused = "killproof: limit 'shop' is not closed: nothing was changed\n"
    assert run("limits", "open", "shop") == (64, "", refused)


def test_a_breaker_is_set_and_told_while_it_is_open(run: Run, path: Path) -> None:
    words = "limits breaker shop --kind scrape --failures 1 --window 2min --pause 90s"
    said = "limit shop of scrape: 1 failures within 120 s rest it for 90 s\n"
    assert run(*words.split()) == (0, said.replace("failures", "failure"), "")
    with Queue(path) as queue:
        lease = queue.claim()
        assert lease is not None
        queue.nack(lease, "no")
    assert "breaker open for 1 min " in run("limits")[1]
    assert run("limits", "breaker", "shop", "--off")[1] == "limit shop of scrape: no rule\n"


def test_every_form_of_the_command_prints_json(run: Run, path: Path) -> None:
    limit = json.loads(
        run("limits", "set", "shop", "--kind", "scrape", "--running", "1", "--json")[1]
    )
    assert (limit["name"], limit["kinds"], limit["running_max"]) == ("shop", ["scrape"], 1)
    closed = json.loads(run("limits", "close", "shop", "60", "--json")[1])
    assert [gate["rule"] for gate in closed["gates"]] == ["closed"]
    assert json.loads(run("limits", "open", "shop", "--json")[1])["gates"] == []
    broken = json.loads(run("limits", "breaker", "shop", "--json")[1])
    assert broken["breaker"]["state"] == "closed"
    aging = {"kind": "scrape", "seconds": 3600.0}
    assert json.loads(run("limits", "age", "scrape", "1h", "--json")[1]) == aging
    listed = json.loads(run("limits", "--json")[1])
    assert ([one["name"] for one in listed["limits"]], listed["aging"]) == (
        ["shop"],
        {"scrape": 3600.0},
    )
    removed = {"name": "shop", "removed": True}
    assert json.loads(run("limits", "remove", "shop", "--json")[1]) == removed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("set shop --rate 5", "--rate '5' is no rate: write 5/s, 100/min or 1000/h"),
        ("set shop --running 0", "running 0 must be an integer from 1 to 1000000"),
        ("close shop", "there is no limit 'shop': see killproof limits"),
        ("close shop soon", "TIME 'soon' is no time: write 90s, 15min, 12h, 30d or 2w"),
        ("age scrape", "say after which time a job is urgent, such as 1h, or --off"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_value_and_what_to_write(
    run: Run, path: Path, words: str, said: str
) -> None:
    assert run("limits", *words.split()) == (64, "", f"killproof: {said}\n")
    with Queue(path) as queue:
        assert Limits(queue).list() == ()
