"""What can be asked, and how a question that cannot be read is refused."""

import pytest

from killproof_bench.capacity import question
from killproof_bench.capacity.result import Question


def ask(
    *slos: str,
    rate: str | None = None,
    peak: float = 1.0,
    growth: str | None = None,
    workers: int | None = None,
) -> Question:
    return question.question(
        slos=slos, rate_text=rate, peak=peak, job_ms=5.0, workers=workers, growth_text=growth
    )


def test_without_a_limit_the_default_ones_are_asked() -> None:
    assert [question.slo_text(each) for each in ask().slos] == [
        "claim.p99<50ms",
        "time_to_claim.p99<200ms",
    ]


@pytest.mark.parametrize(
    "text", ["claim.p99<50ms", "claim.p99 < 50 ms", "claim.p99<=50ms", "claim.p99<0.05s"]
)
def test_a_limit_is_read_however_it_is_spaced(text: str) -> None:
    assert question.slo_text(question.slo(text)) == "claim.p99<50ms"


@pytest.mark.parametrize(
    "text",
    ["claim<50ms", "claim.p97<50ms", "ack.p99<5ms", "claim.p99<50", "claim.p99<\u06650ms", ""],
)
def test_a_limit_that_cannot_be_read_is_shown_with_its_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it as 'claim\.p99<50ms'") as refusal:
        question.slo(text)
    assert repr(text) in str(refusal.value)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        question.slo("claim.p99<0ms")


def test_two_limits_of_one_quantile_are_refused() -> None:
    with pytest.raises(ValueError, match="one limit for each quantile"):
        ask("claim.p99<50ms", "claim.p99<80ms")


@pytest.mark.parametrize(
    ("text", "per_s"), [("12/s", 12.0), ("90/min", 1.5), ("7200 / h", 2.0), ("1728000/d", 20.0)]
)
def test_a_rate_is_read_in_any_unit(text: str, per_s: float) -> None:
    assert question.rate(text) == pytest.approx(per_s)


@pytest.mark.parametrize(
    "text", ["12", "12/week", "-3/s", "many/s", "nan/s", "inf/s", "\u0661\u0662/s"]
)
def test_a_rate_that_cannot_be_read_is_shown_with_its_form(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 12/s"):
        question.rate(text)


@pytest.mark.parametrize("text", ["0/s", "9999999/s", f"{'9' * 400}/s"])
def test_a_rate_beyond_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give more than 0"):
        question.rate(text)


def test_growth_by_the_year_is_that_by_the_month_twelve_times() -> None:
    assert (1 + question.growth("80%/year")) ** 12 == pytest.approx(1.8)
    with pytest.raises(ValueError, match="10%/month"):
        question.growth("10%")
    with pytest.raises(ValueError, match="a month"):
        question.growth("2000%/month")


def test_a_peak_or_a_growth_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="give --rate"):
        ask(peak=3.0)
    with pytest.raises(ValueError, match="give --rate"):
        ask(growth="10%/month")
    with pytest.raises(ValueError, match="from 1 to"):
        ask(rate="12/s", peak=0.5)
    with pytest.raises(ValueError, match="from 1 to"):
        ask(rate="12/s", peak=float("nan"))
    assert ask(rate="12/s", peak=3.0, growth="10%/month").growth == 0.1


def test_more_workers_than_are_run_are_asked_of_the_model_alone() -> None:
    with pytest.raises(ValueError, match="--workers 25: without a rate all of them run"):
        ask(workers=25)
    assert ask(rate="12/s", workers=256).workers == 256
