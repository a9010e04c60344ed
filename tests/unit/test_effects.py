"""The effect ledger: once where that can be known, in doubt where it can not."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import LiteralString

import pytest

from killproof import (
    DatabaseBusy,
    FileRefused,
    Host,
    Lease,
    LeaseLost,
    ManualClock,
    Queue,
    Transaction,
    effects,
)
from killproof.effects import Effect, InDoubt, Ledger, Rejected, key_of
from killproof.handlers import Hold, RetryLater, Snooze


class Stand:
    """A queue with a job, the remote side, and the ledger of the current lease."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.queue = Queue(path, durability="process", host=Host(clock=self.clock))
        self.job_id = self.queue.enqueue("pay", None, max_attempts=9)
        self.lease = self.claim()
        self.applied: list[str] = []  # What the remote side has done.

    def claim(self) -> Lease:
        lease = self.queue.claim()
        assert lease is not None
        return lease

    def redeliver(self) -> None:
        """Let the lease die, as after a kill, and give the job to the next worker."""
        self.clock.advance(61)
        assert self.queue.reap() == 1
        self.clock.advance(3_600)
        self.lease = self.claim()

    def apply(
        self,
        function: Callable[[str], object] | None = None,
        *,
        in_doubt: InDoubt = "held",
        check: Callable[[str], bool | None] | None = None,
        scope: str = "card",
        lease: Lease | None = None,
    ) -> object:
        ledger = Ledger(self.queue, lease or self.lease, clock=self.clock)
        return ledger.apply(
            Effect(
                scope=scope,
                key="order:1",
                function=function or self.remote,
                in_doubt=in_doubt,
                check=check,
            )
        )

    def remote(self, key: str) -> object:
        self.applied.append(key)
        return {"receipt": len(self.applied)}

    def die_in_the_call(self) -> None:
        """Apply the effect, and lose the lease before it can be recorded."""

        def function(key: str) -> object:
            self.remote(key)
            self.redeliver()
            return None

        old = self.lease
        with pytest.raises(LeaseLost):
            self.apply(function, lease=old)

    def entry(self) -> tuple[object, ...]:
        with self.queue.transaction() as tx:
            row = tx.row("SELECT state, calls, result FROM effect")
        assert row is not None
        return row


@pytest.fixture
def stand(place: Path) -> Iterator[Stand]:
    stand = Stand(place / "queue.db")
    yield stand
    stand.queue.close()


def test_an_effect_is_applied_once_and_its_result_is_kept(stand: Stand) -> None:
    first = stand.apply()
    again = stand.apply()
    stand.redeliver()
    later = stand.apply()

    assert stand.applied == ["order:1"]
    assert first == again == later == {"receipt": 1}


def test_the_first_call_returns_what_every_later_one_returns(stand: Stand) -> None:
    """JSON makes a list of a tuple; a handler must not see the difference on a retry."""
    assert stand.apply(lambda key: (1, 2)) == [1, 2]
    assert stand.apply() == [1, 2]


def test_keys_of_different_scopes_never_meet(stand: Stand) -> None:
    stand.apply(scope="card")
    stand.apply(scope="mail")

    assert stand.applied == ["order:1", "order:1"]


def test_the_reservation_is_committed_and_no_transaction_open_during_the_call(
    stand: Stand,
) -> None:
    """Covers F42."""

    def function(key: str) -> object:
        stand.queue.enqueue("other", None)  # Refused as nested, or blocked, inside a transaction.
        reader = sqlite3.connect(stand.queue.path)
        state = reader.execute("SELECT state FROM effect").fetchone()[0]
        reader.close()
        return state

    assert stand.apply(function) == "reserved"


def test_a_rejected_effect_is_released_and_applied_by_the_next_attempt(stand: Stand) -> None:
    """Covers F40."""

    def refuse(key: str) -> object:
        raise Rejected("503")

    with pytest.raises(Rejected):
        stand.apply(refuse)
    assert stand.entry()[0] == "rejected"
    stand.redeliver()

    assert stand.apply() == {"receipt": 1}


def test_a_handlers_own_word_out_of_the_call_means_rejected(stand: Stand) -> None:
    def busy(key: str) -> object:
        raise RetryLater(60)

    with pytest.raises(RetryLater):
        stand.apply(busy)

    assert stand.entry()[0] == "rejected"


def test_any_other_error_leaves_the_effect_in_doubt(stand: Stand) -> None:
    def timeout(key: str) -> object:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        stand.apply(timeout)

    assert stand.entry()[0] == "unknown"
    with pytest.raises(Hold, match="left it unknown"):
        stand.apply()


def test_a_stale_lease_cannot_record(stand: Stand) -> None:
    stand.die_in_the_call()

    assert stand.entry()[0] == "reserved"


def test_a_stale_lease_cannot_reserve_and_nothing_is_called(stand: Stand) -> None:
    old = stand.lease
    stand.redeliver()
    with pytest.raises(LeaseLost):
        stand.apply(lease=old)

    assert stand.applied == []


def test_in_doubt_again_calls_with_the_same_key(stand: Stand) -> None:
    stand.die_in_the_call()
    result = stand.apply(in_doubt="again")

    assert stand.applied == ["order:1", "order:1"]
    assert result == {"receipt": 2}
    assert stand.entry()[:2] == ("applied", 2)


def test_in_doubt_skip_leaves_it_and_says_nothing(stand: Stand) -> None:
    stand.die_in_the_call()

    assert stand.apply(in_doubt="skip") is None
    assert stand.applied == ["order:1"]


def test_in_doubt_held_asks_a_person(stand: Stand) -> None:
    """Covers F39."""
    stand.die_in_the_call()
    with pytest.raises(Hold, match=r"card/order:1 is in doubt: job 1 \(fence 1\)"):
        stand.apply(in_doubt="held")

    assert stand.applied == ["order:1"]


def test_in_doubt_check_believes_the_remote_that_it_was_applied(stand: Stand) -> None:
    stand.die_in_the_call()

    assert stand.apply(in_doubt="check", check=lambda key: key in stand.applied) is None
    assert stand.applied == ["order:1"]
    assert stand.entry()[0] == "applied"


def test_in_doubt_check_believes_the_remote_that_it_was_not_applied(stand: Stand) -> None:
    def lost(key: str) -> object:
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError):
        stand.apply(lost)

    assert stand.apply(in_doubt="check", check=lambda key: key in stand.applied) == {"receipt": 1}


def test_a_check_that_cannot_tell_asks_a_person(stand: Stand) -> None:
    stand.die_in_the_call()
    with pytest.raises(Hold):
        stand.apply(in_doubt="check", check=lambda key: None)


def test_no_transaction_is_open_during_the_check(stand: Stand) -> None:
    stand.die_in_the_call()

    def check(key: str) -> bool:
        return stand.queue.enqueue("other", None) > 0

    assert stand.apply(in_doubt="check", check=check) is None


def test_an_effect_that_another_living_job_applies_is_waited_for(stand: Stand) -> None:
    stand.queue.enqueue("pay", None)
    other = stand.claim()

    def function(key: str) -> object:
        with pytest.raises(Snooze, match="job 1 is applying"):
            stand.apply(in_doubt="again", lease=other)
        return stand.remote(key)

    stand.apply(function)

    assert stand.applied == ["order:1"]
    assert stand.apply(lease=other) == {"receipt": 1}


def test_recording_an_applied_effect_is_tried_until_it_works(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect has happened: to fail the attempt now would repeat it."""
    transaction = stand.queue.transaction
    troubles = iter([None, DatabaseBusy("locked"), DatabaseBusy("locked"), None])

    def unwilling() -> object:
        trouble = next(troubles)
        if trouble is not None:
            raise trouble
        return transaction()

    monkeypatch.setattr(stand.queue, "transaction", unwilling)

    assert stand.apply() == {"receipt": 1}
    assert stand.applied == ["order:1"]


def test_recording_stops_trying_when_the_lease_is_lost(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = stand.queue.transaction
    first = [True]

    def unwilling() -> object:
        if first.pop() if first else False:
            return transaction()
        raise DatabaseBusy("locked")

    monkeypatch.setattr(stand.queue, "transaction", unwilling)
    ledger = Ledger(stand.queue, stand.lease, clock=stand.clock, lost=lambda: True)
    effect = Effect(scope="card", key="k", function=stand.remote, in_doubt="held")
    with pytest.raises(DatabaseBusy):
        ledger.apply(effect)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE effect (mine INTEGER)", "CREATE VIEW Effect AS SELECT 1"]
)
def test_a_foreign_table_of_the_same_name_is_refused(
    stand: Stand, statement: LiteralString
) -> None:
    with stand.queue.transaction() as tx:
        tx.execute(statement)
    with pytest.raises(FileRefused, match=r"queue.db has a table 'effect' .* rename it"):
        stand.apply()

    assert stand.applied == []


@pytest.mark.parametrize("name", ["RESERVE", "RECORD", "RESOLVE", "READ", "IS_CURRENT"])
def test_no_statement_of_the_ledger_scans_a_table(stand: Stand, name: str) -> None:
    stand.apply()
    statement = vars(Ledger).get(name) or vars(effects)[name]
    with closing(sqlite3.connect(stand.queue.path)) as connection:
        values = dict.fromkeys(re.findall(r":(\w+)", statement))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]

    assert all(step.startswith("SEARCH") for step in plan), plan


def test_a_newer_ledger_is_refused(stand: Stand) -> None:
    def raise_version(tx: Transaction) -> None:
        tx.change("UPDATE killproof_schema SET version = 2 WHERE component = 'effects'")

    stand.apply()
    with stand.queue.transaction() as tx:
        raise_version(tx)
    with pytest.raises(FileRefused, match="version 2, this killproof knows 1: upgrade"):
        stand.apply()


@pytest.mark.parametrize(
    ("in_doubt", "check"),
    [("check", None), ("again", lambda key: True), ("maybe", None)],
)
def test_a_policy_that_does_not_fit_is_refused(
    stand: Stand, in_doubt: InDoubt, check: Callable[[str], bool] | None
) -> None:
    with pytest.raises(ValueError, match="in_doubt"):
        stand.apply(in_doubt=in_doubt, check=check)


@pytest.mark.parametrize("key", ["", "x" * 501, "a\0b"])
def test_a_key_that_can_not_be_stored_is_refused(stand: Stand, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        Effect(scope="card", key=key, function=stand.remote, in_doubt="again")


def test_the_effect_of_a_job_is_named_by_its_key_or_by_what_no_other_job_has(
    stand: Stand,
) -> None:
    """Covers F43."""
    stand.queue.enqueue("pay", None, key="event:9")
    keyed = stand.claim().job

    assert key_of(keyed) == "event:9"
    assert key_of(stand.lease.job) == f"pay:1:{stand.lease.job.created_ms}"
