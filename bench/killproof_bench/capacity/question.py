"""Read what is asked: limits of time, rates, growth. Every refusal names the value and a remedy."""

import re
from collections.abc import Sequence
from typing import Final, cast

from killproof_bench.capacity.result import Question, Slo, Subject

#: Asked when nothing is: a person notices a tenth of a second, and waits for a fifth.
SLOS_DEFAULT: Final = ("claim.p99<50ms", "time_to_claim.p99<200ms")

RATE_MAX: Final = 1_000_000.0
PEAK_MAX: Final = 1_000.0
GROWTH_MAX: Final = 10.0
#: Processes that claim in a run; beyond it they measure the machine's scheduler, not the queue.
CROWD_MAX: Final = 24
LIMIT_MS_MAX: Final = 3_600_000.0

_SLO: Final = re.compile(
    r"(claim|time_to_claim)\.p(50|90|95|99|99\.9)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s)",
    re.ASCII,
)
_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1_000.0}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|min|h|d)", re.ASCII)
_SECONDS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_GROWTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%\s*/\s*(month|year)", re.ASCII)


def slo(text: str) -> Slo:
    """Read one limit.

    >>> slo("claim.p99<50ms")
    Slo(subject='claim', permille=990, limit_ms=50.0)

    Raises:
        ValueError: It is none; the message shows the form.
    """
    found = _SLO.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"--slo {text!r}: write it as 'claim.p99<50ms' or 'time_to_claim.p99.9<2s'; "
            "known are p50, p90, p95, p99 and p99.9"
        )
    subject, quantile, number, unit = found.groups()
    limit_ms = float(number) * _MS[unit]
    if not 0 < limit_ms <= LIMIT_MS_MAX:
        raise ValueError(f"--slo {text!r}: give a limit above 0 and up to an hour")
    return Slo(
        subject=cast(Subject, subject), permille=round(float(quantile) * 10), limit_ms=limit_ms
    )


def slo_text(limit: Slo) -> str:
    """Return a limit as it is written.

    >>> slo_text(slo("claim.p99.9 < 2s"))
    'claim.p99.9<2000ms'
    """
    return f"{limit.subject}.p{limit.permille / 10:g}<{limit.limit_ms:g}ms"


def rate(text: str) -> float:
    """Read a rate in jobs per second.

    >>> rate("12/s"), rate("90/min")
    (12.0, 1.5)

    Raises:
        ValueError: It is none; the message shows the form.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--rate {text!r}: write it as 12/s, 90/min, 5000/h or 1000000/d")
    value = float(found[1]) / _SECONDS[found[2]]
    if not 0 < value <= RATE_MAX:
        raise ValueError(f"--rate {text!r}: give more than 0 and up to {RATE_MAX:,.0f}/s")
    return value


def growth(text: str) -> float:
    """Read a growth as a share per month.

    >>> growth("10%/month"), round(growth("100%/year"), 4)
    (0.1, 0.0595)

    Raises:
        ValueError: It is none; the message shows the form.
    """
    found = _GROWTH.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--growth {text!r}: write it as 10%/month or 80%/year")
    share = float(found[1]) / 100
    monthly = share if found[2] == "month" else (1 + share) ** (1 / 12) - 1
    if monthly > GROWTH_MAX:
        raise ValueError(f"--growth {text!r}: give up to {GROWTH_MAX:.0%} a month")
    return monthly


def question(
    *,
    slos: Sequence[str],
    rate_text: str | None,
    peak: float,
    job_ms: float,
    workers: int | None,
    growth_text: str | None,
) -> Question:
    """Put the options together; without a limit and without a rate, ask the default.

    Raises:
        ValueError: One cannot be read, or two do not fit together.
    """
    if rate_text is None and (peak != 1.0 or growth_text is not None):
        raise ValueError("--peak and --growth are of a rate: give --rate 12/s too")
    if not 1 <= peak <= PEAK_MAX:
        raise ValueError(f"--peak {peak:g}: give a number from 1 to {PEAK_MAX:g}")
    if rate_text is None and workers is not None and workers > CROWD_MAX:
        raise ValueError(
            f"--workers {workers}: without a rate all of them run: "
            f"give up to {CROWD_MAX}, or a --rate"
        )
    asked = tuple(slo(text) for text in (slos or SLOS_DEFAULT))
    named = [(each.subject, each.permille) for each in asked]
    if len(set(named)) < len(named):
        raise ValueError(f"--slo {slos[-1]!r}: one limit for each quantile")
    return Question(
        slos=asked,
        rate_per_s=None if rate_text is None else rate(rate_text),
        peak=peak,
        job_ms=job_ms,
        workers=workers,
        growth=0.0 if growth_text is None else growth(growth_text),
    )
