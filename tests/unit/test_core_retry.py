"""Retry policies: what each waits, for any number of attempts."""

import random

import pytest

from killproof.core import retry

POLICIES = {
    "article": 3_620_000,
    "exponential:0.1": 3_600_000,
    "exponential:2592000": 3_600_000,
    "exponential:0": 0,
    "fixed:0": 0,
    "fixed:0.0001": 1,
    "fixed:2592000": 2_592_000_000,
    "immediate": 0,
}


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_fails_or_passes_its_cap_in_a_hundred_thousand_attempts(policy: str) -> None:
    """Covers S0.45."""
    source = random.Random(1)
    delays = [retry.delay_ms(policy, attempt, source) for attempt in range(1, 100_001)]

    assert min(delays) >= 0
    assert max(delays) <= POLICIES[policy]
    assert all(type(delay) is int for delay in delays)


@pytest.mark.parametrize("attempt", [-5, 0, 10**30])
def test_no_number_of_attempts_is_too_odd_for_a_policy(attempt: int) -> None:
    for policy, cap_ms in POLICIES.items():
        assert 0 <= retry.delay_ms(policy, attempt, random.Random(2)) <= cap_ms


def test_the_default_is_the_formula_of_the_article() -> None:
    """Covers S0.44, S0.46."""
    for attempt in range(1, 12):
        base = min(3_600, 2**attempt * 30)
        delays = {retry.delay_ms("article", attempt, random.Random(i)) for i in range(400)}

        assert delays == {(base + jitter) * 1_000 for jitter in range(21)}


def test_the_exponential_policy_spreads_over_the_whole_of_its_window() -> None:
    """Covers S0.46, F36."""
    for attempt, window_ms in ((1, 2_000), (2, 4_000), (5, 32_000), (20, 3_600_000)):
        delays = [retry.delay_ms("exponential:2", attempt, random.Random(i)) for i in range(500)]

        assert max(delays) <= window_ms
        assert min(delays) < window_ms * 0.05
        assert max(delays) > window_ms * 0.95


@pytest.mark.parametrize(("policy", "delay_ms"), [("fixed:1.5", 1_500), ("fixed:0.0011", 2)])
def test_a_fixed_delay_is_rounded_up_never_down(policy: str, delay_ms: int) -> None:
    assert retry.delay_ms(policy, 3, random.Random(1)) == delay_ms


@pytest.mark.parametrize(
    "policy",
    [
        *(
            "",
            ":",
            "article:",
            "immediate:0",
            "fixed",
            "fixed:",
            "fixed:x",
            "fixed:-1",
            "fixed:nan",
        ),
        *("exponential", "exponential:inf", "exponential:-0.1", "fixed:2592001", "fixed:1:2"),
        *("Article", " article", None, 5, b"article"),
    ],
    ids=repr,
)
def test_a_policy_that_is_none_is_refused_by_its_value(policy: str) -> None:
    with pytest.raises(ValueError, match="is unknown: use article, exponential:BASE") as caught:
        retry.parse(policy)
    assert repr(policy) in str(caught.value)
