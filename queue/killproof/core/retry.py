"""Retry policies by name: pure functions from the number of the failed attempt to a delay.

- `article`: `min(3600, 2^n * 30) + rand(0..20)` seconds, the formula of the article that the queue
  grew from.
- `exponential:BASE`: full jitter, `uniform(0, min(3600, BASE * 2^(n-1)))` seconds; it spreads a
  herd best ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
- `fixed:SECONDS`: always the same.
- `immediate`: no delay.
"""

import math
import random as random_module

#: No policy waits longer than this, jitter of `article` aside: the article's own cap.
DELAY_SECONDS_MAX = 3_600.0
#: From here on every exponential policy is at its cap; a larger exponent would only overflow.
EXPONENT_MAX = 60
#: A fixed delay of more than 30 days is taken for a mistake in units.
FIXED_SECONDS_MAX = 30 * 86_400.0


def parse(policy: str) -> tuple[str, float]:
    """Split a policy into its name and its number (0 where it has none).

    >>> parse("exponential:2")
    ('exponential', 2.0)

    Raises:
        ValueError: the policy is unknown, or its number is missing, negative or not finite.
    """
    name, colon, text = policy.partition(":") if isinstance(policy, str) else ("", "", "")
    if name in ("article", "immediate") and not colon:
        return name, 0.0
    if name in ("exponential", "fixed") and colon:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if 0 <= number <= FIXED_SECONDS_MAX:
            return name, number
    raise ValueError(
        f"retry policy {policy!r} is unknown: "
        "use article, exponential:BASE, fixed:SECONDS or immediate"
    )


def delay_ms(policy: str, attempt: int, random: random_module.Random) -> int:
    """Return the delay in milliseconds after the failed attempt (1-based).

    Never raises for a number of attempts, however large: a policy that fails must not lose the job.

    >>> delay_ms("fixed:1.5", 7, random_module.Random(1))
    1500
    """
    name, number = parse(policy)
    exponent = min(max(attempt, 1), EXPONENT_MAX)
    if name == "article":
        seconds = min(DELAY_SECONDS_MAX, 2.0**exponent * 30) + random.randint(0, 20)
    elif name == "exponential":
        seconds = random.uniform(0, min(DELAY_SECONDS_MAX, number * 2.0 ** (exponent - 1)))
    else:
        seconds = number
    return math.ceil(seconds * 1_000)
