"""What a report says in words, and Markdown that no store can break out of."""

from typing import Any

import pytest

from killproof_chaos import report_words
from killproof_chaos.report_figures import Figures, Spread
from killproof_chaos.report_markdown import markdown, plain

PROMISES = tuple(f"P{number}" for number in range(1, 25))
NOTHING = Spread(values=())
EMPTY = Figures(
    seconds=0.0,
    bins=(),
    faults=(),
    heal=None,
    stalls=(),
    claims=NOTHING,
    jobs=NOTHING,
    recovery_idle=NOTHING,
    recovery_busy=NOTHING,
    never_reclaimed=0,
    heats=(),
)
RUN = {
    "argv": ["killproof", "chaos", "run", "--seed", "7"],
    "started": 1_790_000_000.0,
    "ended": 1_790_000_031.0,
    "chosen_nemeses": ["kill", "pause", "term", "handler", "lock"],
    "obligations": {"obliged": [], "hit": []},
}


def record(verdict: str = "pass", **changes: Any) -> dict[str, Any]:
    """Return a verdict.json in which every promise was kept."""
    properties = {
        number: {"verdict": "pass", "checked": 10, "witnesses": []} for number in PROMISES
    }
    return {
        "schema": 1,
        "target": "killproof",
        "engine": "proc",
        "seed": 7,
        "level": "process",
        "verdict": verdict,
        "unknown_because": [],
        "properties": properties,
        "faults": {"kill": 212, "pause": 44},
        "coverage": {"obliged": 68, "hit": 68, "missed": []},
        "counts": {"kills": 212, "pauses": 44},
        "exhausted": False,
        "jobs": {"enqueued": 1312, "ended": 1312, "succeeded": 1300, "dead": 12},
        "recovery_ms": {"p50": 21.0, "p99": 180.0, "max": 410.0},
        "environment": {"python": "3.11.7", "sqlite": "3.40.1", "wal_reset_affected": True,
                        "durability": "power", "cores": 2, "fs": "ext4", "kernel": "6.1"},
        "replay": "killproof chaos replay kp1-abc",
    } | changes  # fmt: skip


def violated(*numbers: str, story: str = "job 7 is gone") -> dict[str, Any]:
    """Return a verdict.json in which these promises were broken."""
    broken = record("violated")
    line = {"file": "audit.jsonl", "line": 3, "text": '{"seq":3}'}
    witness = {"job": "7", "story": story, "lines": [line]}
    for number in numbers:
        broken["properties"][number] = {
            "verdict": "violated", "checked": 10, "violations": 1, "witnesses": [witness],
        }  # fmt: skip
    return broken


def test_the_sentence_of_a_clean_run_says_how_much_it_has_been_through() -> None:
    sentence = report_words.verdict_sentence(record())

    assert sentence == "No violation found in 212 kills, 44 pauses, 1,312 jobs."


def test_the_sentence_of_a_violated_run_counts_the_broken_promises() -> None:
    one = report_words.verdict_sentence(violated("P5"))
    two = report_words.verdict_sentence(violated("P1", "P5"))

    assert one == "1 promise was broken in 212 kills, 44 pauses, 1,312 jobs."
    assert two == "2 promises were broken in 212 kills, 44 pauses, 1,312 jobs."


def test_the_sentence_of_an_unknown_run_is_no_pass() -> None:
    sentence = report_words.verdict_sentence(record("unknown", counts={"kills": 1}))

    assert sentence == (
        "Unknown: no violation found in 1 kill, 0 pauses, 1,312 jobs, "
        "but the evidence is not enough."
    )


def test_missed_obligations_are_one_reason_that_names_the_first() -> None:
    missed = [f"kill@claim.{number}" for number in range(6)]
    because = [*(f"obligation missed: {name}" for name in missed), "P18: nobody was killed"]
    coverage = {"obliged": 68, "hit": 62, "missed": missed}

    found, left_out = report_words.reasons(
        record("unknown", unknown_because=because, coverage=coverage)
    )

    assert left_out == 0
    assert found == [
        "P18: nobody was killed",
        "6 of 68 obligations missed, and what was not hit has not been shown to be harmless: "
        "kill@claim.0; kill@claim.1; kill@claim.2; kill@claim.3 and 2 more",
    ]


def test_more_reasons_than_fit_are_counted() -> None:
    because = [f"P{number}: no evidence" for number in range(1, 21)]

    found, left_out = report_words.reasons(record("unknown", unknown_because=because))

    assert len(found) == 12
    assert left_out == 8


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({}, "A power cut."),
        ({}, "less often than 1 job in 437"),
        ({}, "or another file system than ext4"),
        ({}, "not the order in which real processes run"),
        ({}, "they are no benchmark"),
        ({}, "stepping the wall clock; letting disk calls fail"),
    ],
)
def test_every_report_names_what_its_engine_leaves_open(
    changed: dict[str, Any], limit: str
) -> None:
    limits = "\n".join(report_words.limits(record(**changed), RUN))

    assert limit in limits


def test_a_level_power_run_does_not_disclaim_the_power_cut() -> None:
    limits = report_words.limits(record(level="power", engine="disk"), RUN)

    assert not [limit for limit in limits if "power cut" in limit.lower()]


def test_a_violated_run_does_not_speak_of_unseen_faults() -> None:
    limits = report_words.limits(violated("P1"), RUN)

    assert not [limit for limit in limits if "has no fault" in limit]


def test_faults_that_were_not_chosen_are_named() -> None:
    run = RUN | {"chosen_nemeses": ["kill", "handler"]}

    limits = "\n".join(report_words.limits(record(), run))

    assert "stopping processes past their lease" in limits
    assert "another program that holds the write lock" in limits
    assert "killing workers" not in limits


def test_what_is_not_promised_or_not_judged_here_is_named() -> None:
    changed = record()
    changed["properties"]["P22"] = {"verdict": "not_judged", "by": "sim", "checked": 0}
    changed["properties"]["P13"] = {"verdict": "not_promised", "checked": 0}

    limits = "\n".join(report_words.limits(changed, RUN))

    assert "What only the engine sim can judge: Limits hold" in limits
    assert "does not promise, and was not asked: A dead job keeps everything" in limits


def test_a_starved_or_interrupted_run_says_so() -> None:
    limits = "\n".join(
        report_words.limits(record("unknown"), RUN | {"starved": True, "interrupted": True})
    )

    assert "the supervisor itself was starved of CPU" in limits
    assert "the run was interrupted" in limits


def test_operations_without_an_answer_are_counted() -> None:
    counts = {"indefinite": 158, "indefinite_settled": 59}

    assert report_words.unanswered(record()) == ""
    assert report_words.unanswered(record(counts=counts)).startswith(
        "158 operations got no answer, or one that left open what happened; the audit settles 59"
    )


def test_the_environment_says_whether_sqlite_has_the_wal_reset_fault() -> None:
    """Rule C14."""
    affected = dict(report_words.environment_rows(record(), RUN))
    fixed = dict(
        report_words.environment_rows(
            record(environment={"sqlite": "3.53.0", "wal_reset_affected": False}), RUN
        )
    )

    assert affected["SQLite's WAL-reset fault"] == "yes: two connections can lose committed frames"
    assert affected["durability of the file"] == "power"
    assert fixed["SQLite's WAL-reset fault"] == "no"


def test_the_markdown_report_says_how_it_was_made_and_what_it_does_not_show() -> None:
    text = markdown([(record(), RUN)], EMPTY, "chaos-proc.html")

    assert text.startswith("# Chaos: killproof under the engine proc\n\n**No violation found in")
    for part in (
        "Command: `killproof chaos run --seed 7`",
        "| seed | 7 |",
        "| machine | 2 cores |",
        "| python | 3.11.7 |",
        "| sqlite | 3.40.1 |",
        "(chaos-proc.html)",
        "## What this does not show",
        "killproof chaos replay kp1-abc",
    ):
        assert part in text


def test_the_first_rows_of_the_markdown_table_are_what_people_ask_first() -> None:
    text = markdown([(record(), RUN)], EMPTY, "x.html")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "no violation" in line]

    assert rows[:3] == [
        "| No job is lost | ✓ no violation | 30 | P1 P3 P17 |",
        "| No effect happens twice | ✓ no violation | 10 | P6 |",
        "| Retries are bounded | ✓ no violation | 20 | P8 P9 |",
    ]


def test_a_broken_promise_stands_in_markdown_with_the_lines_that_prove_it() -> None:
    text = markdown([(violated("P1"), RUN)], EMPTY, "x.html")

    assert "- broken: An acknowledged job is never lost (P1)" in text
    assert "job 7 is gone." in text
    assert 'audit.jsonl:3  {"seq":3}' in text


def test_several_seeds_stand_in_one_table() -> None:
    runs = [(record(seed=seed), RUN) for seed in range(1, 11)]
    runs[3] = (record("unknown", seed=4, recovery_ms={}), RUN | {"ended": None})

    text = markdown(runs, EMPTY, "x.html")

    assert "10 runs, one seed each: 9 without a violation" in text
    assert "## 10 seeds" in text
    assert (
        "| 1 | ✓ no violation | 212 | 44 | 1,312 | 68 of 68 | 21 ms | 180 ms | 410 ms | 31 s |"
        in text
    )
    assert "| 4 | ? unknown | 212 | 44 | 1,312 | 68 of 68 | n/a | n/a | n/a | n/a |" in text


def test_hostile_text_stays_text_in_markdown() -> None:
    story = "a | b\n\n# Pwned\n```\n<script>alert(1)</script> [x](http://x) \u202e"
    broken = violated("P1", story=story)
    broken["properties"]["P1"]["witnesses"][0]["lines"][0]["text"] = "```\n# Pwned"
    broken["target"] = "x`y"

    text = markdown([(broken, RUN | {"argv": ["a`b"]})], EMPTY, "x.html")

    assert "<script>" not in text
    assert "\u202e" not in text
    assert not [line for line in text.splitlines() if line.startswith("# ")][1:]
    assert "[x](http" not in text
    assert text.count("```") % 2 == 0
    assert plain("a|b") == "a\\|b"


def test_no_report_calls_a_queue_correct() -> None:
    """Rule C11."""
    texts = [
        markdown([(found, RUN)], EMPTY, "x.html").lower()
        for found in (record(), record("unknown"), violated("P1"))
    ]

    assert not [text for text in texts if "correct" in text]


def test_what_the_run_did_not_ask_for_is_no_gap_in_the_promises_of_the_queue() -> None:
    found = record()
    found["properties"]["P22"] = {"verdict": "not_judged", "checked": 0, "witnesses": []}

    told = " ".join(report_words.limits(found, RUN))

    assert "What the queue promises, and this run did not ask for: Limits hold" in told
