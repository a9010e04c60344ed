"""The registry of handlers refuses what would do harm without a word."""

from collections.abc import Iterator
from typing import Any

import pytest

from killproof.worker import Context, Handlers, Permanent, RetryLater, Snooze


def work(context: Context) -> None:
    return None


def test_a_kind_has_one_handler_and_a_second_is_told_where_the_first_is() -> None:
    handlers = Handlers()
    handlers("k")(work)
    with pytest.raises(ValueError, match=r"kind 'k' has a handler already: work \(.*\.py:\d+\)"):
        handlers("k")(work)


def test_a_generator_is_refused_because_calling_it_runs_nothing() -> None:
    def generator(context: Context) -> Iterator[int]:
        yield 1

    with pytest.raises(ValueError, match="is a generator"):
        Handlers()("k")(generator)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300, "30"])
@pytest.mark.parametrize("name", ["timeout", "lease"])
def test_a_limit_is_a_positive_number_that_a_timer_can_hold(name: str, seconds: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Handlers()("k", **{name: seconds})(work)


@pytest.mark.parametrize("kind", ["", "x" * 201, "a\0b"])
def test_a_kind_that_can_not_be_stored_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        Handlers()(kind)(work)


def test_the_decorated_function_stays_what_it_was() -> None:
    handlers = Handlers()

    assert handlers("k", timeout=3)(work) is work
    assert handlers["k"].timeout == 3
    assert handlers.kinds == ("k",)


@pytest.mark.parametrize("word", [RetryLater, Snooze])
@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_delay_is_a_number_of_seconds(word: type[Exception], seconds: float) -> None:
    with pytest.raises(ValueError, match=word.__name__):
        word(seconds)


def test_the_words_of_a_handler_say_what_they_are_about() -> None:
    assert str(RetryLater(60)) == "asked to be retried after 60 s"
    assert str(Snooze(5, "429")) == "429"
    assert str(Permanent("no such address")) == "no such address"
