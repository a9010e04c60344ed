"""Each guard of killproof's SQL is taken away in a copy of the sources, and the simulator sees it.

Goal: a guard that nothing misses would be decoration. Method: a text of the copy is replaced, a
process of its own explores the shipped scenario that needs the guard, the smallest bound first, and
shrinks what it finds. Where two tests of a statement say the same in different words (the owner of
a job is NULL unless its state is leased, for one), both are the guard, and both go.

No schedule can miss one of two questions that the same transaction asks: the state in CANCEL, which
has just been read, and IS_CURRENT, for the ack at the end of the block asks again. There both go as
well. That a stale lease does not even enter the block is shown by
`tests/stateful/test_model_and_queue.py`.

Every outcome ends its lease by the one statement END. What each call does with its answer is a
guard of its own: a stale worker must be told. Only a stale release is told nothing that anybody
could miss: its lease has ended as a release would have ended it.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BOUND_MAX = 2
#: Far more than any needs, and at a thousand a second less than the ten seconds that it may take.
SCHEDULES_MAX = 2_000
STEPS_MAX = 12
SECONDS_MAX = 300

PROGRAM = """
import json, sys
import killproof
from killproof_chaos.sim import Budget, Dfs, explore
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.shrink import shrink
from killproof_chaos.targets import load

name, bound_max, schedules = json.loads(sys.argv[1])
target, scenario = load("killproof"), SCENARIOS[name]
for bound in range(bound_max + 1):
    budget = Budget(seconds=None, schedules=schedules)
    found = explore(target, scenario, Dfs(bound), budget=budget)
    if found.violations:
        break
told = {"file": killproof.__file__, "broken": sorted(found.broken), "steps": [], "text": ""}
if found.violations:
    shrunk = shrink(target, scenario, found.violations[0])
    told |= {"steps": [s.text for s in shrunk.story.steps], "text": shrunk.story.text()}
print(json.dumps(told))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A guard, the race that needs it, and a promise that breaks without it."""

    name: str
    scenario: str
    promise: str
    texts: tuple[tuple[str, str, str], ...]  #: file, what stands there, and what instead


def word(operation: str, scenario: str, promise: str, text: str) -> Guard:
    """Return the guard of a call that passes on what it hears: the lease is lost."""
    unheard = text.replace("self._", "with suppress(LeaseLost): self._", 1)
    return Guard(
        name=f"the word to a stale {operation}",
        scenario=scenario,
        promise=promise,
        texts=(("jobs.py", text, unheard),),
    )


GUARDS = (
    Guard(
        name="the fence of an outcome",
        scenario="two-slots",
        promise="P5",
        texts=(
            (
                "jobs.py",
                "AND fence = :fence AND owner = :worker AND state = 'leased'\n"
                "           AND lease_deadline_ns",
                "AND owner = :worker AND state = 'leased'\n           AND lease_deadline_ns",
            ),
        ),
    ),
    Guard(
        name="the fence of an extension",
        scenario="stale-extend",
        promise="P4",
        texts=(
            (
                "jobs.py",
                """SET lease_deadline_ns = :deadline_ns, updated_ms = :now_ms
         WHERE id = :id AND fence = :fence AND owner = :worker AND state = 'leased'""",
                """SET lease_deadline_ns = :deadline_ns, updated_ms = :now_ms
         WHERE id = :id AND state = 'leased'""",
            ),
        ),
    ),
    Guard(
        name="the outcome that a repeated ack asks for",
        scenario="stale-ack",
        promise="P5",
        texts=(
            (
                "jobs.py",
                """if tx.row(self.OUTCOME_OF, _fenced(lease)) != ("succeeded",):
                raise""",
                "pass",
            ),
        ),
    ),
    Guard(
        name="the state test of an outcome",
        scenario="extend-against-reap",
        promise="P5",
        texts=(
            (
                "jobs.py",
                " AND owner = :worker AND state = 'leased'\n"
                "           AND lease_deadline_ns <= :before_ns",
                "",
            ),
        ),
    ),
    Guard(
        name="the transaction that is IMMEDIATE",
        scenario="cancel-against-claim",
        promise="P16",
        texts=(
            (
                "connection.py",
                'partial(connection.execute, "BEGIN IMMEDIATE")',
                'partial(connection.execute, "BEGIN")',
            ),
        ),
    ),
    Guard(
        name="the count at a claim",
        scenario="claim",
        promise="P8",
        texts=(
            ("jobs.py", "deliveries = deliveries + 1", "deliveries = deliveries"),
            # The schema would set aside a job that is leased and was never delivered.
            ("schema.sql", "forgiven BETWEEN 1 AND", "forgiven BETWEEN 0 AND"),
            ("schema.sql", "OR deliveries >= 1", "OR deliveries >= 0"),
        ),
    ),
    Guard(
        name="the unique index of keys",
        scenario="unique-key",
        promise="P12",
        texts=(
            ("schema.sql", "CREATE UNIQUE INDEX job_key", "CREATE INDEX job_key"),
            (
                "jobs.py",
                """
            ON CONFLICT (key) WHERE key IS NOT NULL
                AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')
            DO NOTHING""",
                "",
            ),
        ),
    ),
    Guard(
        name="the deadline that bounds a reap",
        scenario="two-slots",
        promise="P4",
        texts=(
            ("jobs.py", "owner = :owner AND lease_deadline_ns <= :before_ns", "owner = :owner"),
            ("jobs.py", "\n           AND lease_deadline_ns <= :before_ns", ""),
        ),
    ),
    word("ack that claims", "ack-and-claim", "P5", "self._ack(tx, lease, text)\n            taken"),
    word(
        operation="nack",
        scenario="nack",
        promise="P9",
        text='self._end(tx, lease, "nack", "retryable", "failed", wait_ms, failure)',
    ),
    word(
        operation="snooze",
        scenario="snooze",
        promise="P9",
        text='self._end(tx, lease, "snooze", "scheduled", "snoozed", wait_ms)',
    ),
    Guard(
        name="the fence of an effect in the file",
        scenario="completing",
        promise="P6",
        texts=(
            ("jobs.py", "if not tx.row(self.IS_CURRENT, _fenced(lease)):", "if False:"),
            (
                "jobs.py",
                "yield tx\n            self._ack",
                "yield tx\n            with suppress(LeaseLost): self._ack",
            ),
        ),
    ),
    Guard(
        name="the state test of a cancellation",
        scenario="cancel-against-claim",
        promise="P7",
        texts=(
            ("jobs.py", "if job.state in model.TERMINAL:", "if False:"),
            (
                "jobs.py",
                "id AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')"
                '"""\n\n    def cancel(',
                'id"""\n\n    def cancel(',
            ),
        ),
    ),
)


def explored(queue: Path, guard: Guard) -> Any:
    """Explore the guard's race on the queue whose sources lie there."""
    task = json.dumps([guard.scenario, BOUND_MAX, SCHEDULES_MAX])
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, task],
        env={**os.environ, "PYTHONPATH": str(queue)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert Path(told["file"]).is_relative_to(queue)
    return told


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_that_is_taken_away_is_missed_in_a_short_story(guard: Guard, place: Path) -> None:
    queue = place / "queue"
    shutil.copytree(ROOT / "queue", queue, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text, instead in guard.texts:
        file = queue / "killproof" / "core" / name
        source = file.read_text(encoding="utf-8")
        assert text in source, f"{name} has no {text!r} any more: the table must follow the code"
        file.write_text(source.replace(text, instead), encoding="utf-8")

    told = explored(queue, guard)

    assert guard.promise in told["broken"]
    assert 1 <= len(told["steps"]) <= STEPS_MAX, told["text"]
