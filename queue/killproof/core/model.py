"""The values of the queue: jobs, leases, attempts, and the text that goes in and out of the file.

Nothing here touches a file or a clock.  `EDGES` is the state machine as data: the contract of the
harness holds the same table, and a test compares both with `schema.sql`.
"""

import json
import math
import traceback as traceback_module
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from killproof.core.errors import PayloadInvalid, PayloadTooLarge

#: A claim rewrites the row: a megabyte is where that cost becomes visible beside an fsync.
PAYLOAD_BYTES_MAX: Final = 1 << 20
#: A claim must be able to decode what an enqueue encoded, also from a stack that is deeper by far:
#: the interpreter gives up at about 1,000 levels, its callers' frames included.
PAYLOAD_DEPTH_MAX: Final = 200
RESULT_BYTES_MAX: Final = 1 << 20
#: Enough for a deep traceback; an error text must never be what fills the disk.
ERROR_CHARS_MAX: Final = 16_384
KIND_CHARS_MAX: Final = 200
KEY_CHARS_MAX: Final = 500
ATTEMPTS_MAX: Final = 1_000_000
#: A hundred years: beyond it a delay is a mistake in units, and far below any integer limit.
SECONDS_MAX: Final = 100 * 365 * 86_400.0
#: The last second that Python's datetime can show.
MOMENT_SECONDS_MAX: Final = 253_402_300_799.0

LIVE: Final = frozenset({"blocked", "scheduled", "available", "leased", "retryable", "held"})
TERMINAL: Final = frozenset({"succeeded", "dead", "cancelled", "expired"})
STATES: Final = (
    *("blocked", "scheduled", "available", "leased", "retryable", "held"),
    *("succeeded", "dead", "cancelled", "expired"),
)

#: Where a state may go; `None` is the state before enqueue.
_NEXT: Final[dict[str | None, str]] = {
    None: "blocked scheduled available",
    "blocked": "available scheduled cancelled expired held",
    "scheduled": "available cancelled expired held",
    "retryable": "available cancelled expired held",
    "available": "leased cancelled expired held",
    "leased": "succeeded retryable available scheduled dead cancelled held",
    "held": "available cancelled dead",
    "dead": "available",
    "cancelled": "available",
    "expired": "available",
}
EDGES: Final = frozenset((old, new) for old, names in _NEXT.items() for new in names.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One delivery that has ended."""

    fence: int
    outcome: str  #: succeeded failed crashed expired released snoozed cancelled held
    worker: str  #: identity of the worker, 32 hex digits
    started_ms: int
    finished_ms: int
    error_class: str | None
    error_message: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as read in one transaction; it does not follow later changes."""

    id: int
    kind: str
    state: str
    payload: object  #: decoded JSON
    priority: int  #: 0 (urgent) to 9
    due_ms: int
    key: str | None
    max_attempts: int  #: executions in all
    lease_ms: int
    retry: str
    fence: int
    deliveries: int
    forgiven: int
    failures: int
    crashes: int
    owner: str | None
    claimed_ms: int | None
    created_ms: int
    finished_ms: int | None
    error_class: str | None
    error_message: str | None
    result: object
    expires_ms: int | None = None  #: the deadline: from then on no attempt begins
    attempts: tuple[Attempt, ...] = ()  #: filled by `get` only

    @property
    def attempt(self) -> int:
        """The number of the current or latest attempt, 1-based; 0 before the first."""
        return self.deliveries - self.forgiven


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The time-bounded right to work on a job: what every outcome must show."""

    job: Job
    fence: int
    owner: str  #: identity of the worker that claimed
    claimed_ms: int
    deadline_ns: int  #: on the claiming host's monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is kept of an error: always storable text, cut to `ERROR_CHARS_MAX` characters."""

    error_class: str
    message: str
    traceback: str | None

    @classmethod
    def of(cls, error: BaseException | str) -> "Failure":
        """Describe an exception or a text; never raises, whatever the exception does."""
        if isinstance(error, str):
            return cls(error_class="Error", message=storable(error), traceback=None)
        return cls(
            error_class=storable(type(error).__name__)[:KIND_CHARS_MAX],
            message=storable(_guarded(lambda: str(error))),
            traceback=storable(
                _guarded(lambda: "".join(traceback_module.format_exception(error))), keep_end=True
            ),
        )


def _guarded(describe: Callable[[], str]) -> str:
    """Return the text, or say that there is none: an exception's own `__str__` may raise."""
    try:
        return describe()
    except BaseException as error:  # The failure path must not fail, nor be left by a SystemExit.
        return f"<no text: {type(error).__name__} while describing the error>"


def storable(text: str, *, keep_end: bool = False) -> str:
    """Return text that SQLite stores and every reader gets back whole.

    A NUL would end the text for half of the readers, a lone surrogate is no UTF-8, and a cut by
    bytes could split a character: each of them has kept a job from recording its own failure.
    """
    if len(text) > ERROR_CHARS_MAX:
        cut = text[-ERROR_CHARS_MAX:] if keep_end else text[:ERROR_CHARS_MAX]
        text = f"... {cut}" if keep_end else f"{cut} ..."
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def encode_payload(payload: object) -> str:
    """Return the payload as strict JSON, UTF-8 kept readable.

    Raises:
        PayloadInvalid: not JSON: NaN or infinity, a lone surrogate, a cycle, an object; or nested
            deeper than `PAYLOAD_DEPTH_MAX`; definite.
        PayloadTooLarge: more than `PAYLOAD_BYTES_MAX` bytes; definite.
    """
    text, size = _strict_json(payload, "payload")
    if size > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"payload of {size} bytes is over the limit of {PAYLOAD_BYTES_MAX}: "
            "store it in a file and enqueue its path"
        )
    brackets = text.count("[") + text.count("{")  # Cheap, and enough for nearly all.
    if brackets > PAYLOAD_DEPTH_MAX and (depth := _depth(payload)) > PAYLOAD_DEPTH_MAX:
        raise PayloadInvalid(
            f"payload {_short(payload)} is nested {depth} levels deep, over the limit of "
            f"{PAYLOAD_DEPTH_MAX}: flatten it"
        )
    return text


def _depth(value: object) -> int:
    """Return how many lists and objects of a JSON value lie inside each other."""
    depth, level = 0, [value]
    while inside := [item for item in level if isinstance(item, list | tuple | dict)]:
        depth += 1
        level = [
            inner
            for item in inside
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def encode_result(result: object) -> str | None:
    """Return a handler's result as JSON; what JSON cannot hold is kept as its repr, with a flag.

    The work is done and its effect has happened: a result that cannot be encoded must not undo
    that.
    """
    if result is None:
        return None
    try:
        text, size = _strict_json(result, "result")
    except PayloadInvalid as error:
        reason = str(error)
    else:
        if size <= RESULT_BYTES_MAX:
            return text
        reason = f"result of {size} bytes is over the limit of {RESULT_BYTES_MAX}"
    shown = storable(_guarded(lambda: repr(result)))
    return json.dumps({"killproof_repr": shown, "killproof_reason": reason}, ensure_ascii=False)


#: Made once: `json.dumps` makes one for each call that asks for anything.
_STRICT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _strict_json(value: object, what: str) -> tuple[str, int]:
    """Return the JSON text and its size in bytes."""
    try:
        text = _STRICT.encode(value)
        return text, len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        reason = f"it holds a lone surrogate ({error.reason}): decode the text properly"
    except (TypeError, ValueError) as error:
        reason = f"{error}: use null, booleans, finite numbers, text, lists and objects"
    except RecursionError:
        reason = "it is nested too deeply: flatten it"
    except Exception as error:  # A dict of the caller's own class: whatever it raises, see above.
        reason = f"{type(error).__name__} while it was read"
    raise PayloadInvalid(f"{what} {_short(value)} is not JSON: {reason}")


def _short(value: object) -> str:
    """Return a repr that fits a line of an error message."""
    shown = storable(_guarded(lambda: repr(value)))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def check_text(text: object, name: str, chars_max: int) -> str:
    """Return the text if it is non-empty, within the limit and storable.

    Raises:
        ValueError: it is not; the message shows it.
    """
    if (
        not isinstance(text, str)
        or not 1 <= len(text) <= chars_max
        or (not (text.isascii() and "\0" not in text) and storable(text) != text)
    ):
        raise ValueError(
            f"{name} {_short(text)} must be text of 1 to {chars_max} characters, "
            "without NUL or surrogates"
        )
    return text


def check_count(number: object, name: str, lowest: int, highest: int) -> int:
    """Return the number if it is an integer within the limits.

    Raises:
        ValueError: it is not; the message shows it.
    """
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number <= highest:
        raise ValueError(f"{name} {_short(number)} must be an integer from {lowest} to {highest}")
    return number


def to_ms(seconds: object, name: str, *, lowest_ms: int = 0) -> int:
    """Return seconds as whole milliseconds, rounded up: a delay never ends early.

    Raises:
        ValueError: not a finite number within 0 and a hundred years; the message shows it.
    """
    if (result := _whole_ms(seconds, SECONDS_MAX)) is not None and result >= lowest_ms:
        return result
    raise ValueError(
        f"{name} {_short(seconds)} must be a number of seconds, at least {lowest_ms / 1000:g} "
        "and at most 100 years"
    )


def moment_ms(moment: object) -> int:
    """Return a moment (seconds since the epoch, or an aware datetime) in milliseconds, rounded up.

    Raises:
        ValueError: it is naive, before 1970, after the year 9999, or no moment; the message shows
            it.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"run_at {moment!r} has no time zone: give it one, such as UTC")
        moment = moment.timestamp()
    if (result := _whole_ms(moment, MOMENT_SECONDS_MAX)) is not None:
        return result
    raise ValueError(
        f"run_at {_short(moment)} must be seconds since 1970 or a datetime, up to the year 9999"
    )


def _whole_ms(seconds: object, highest: float) -> int | None:
    """Return the milliseconds, or None for what is no number from 0 to the highest."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    return math.ceil(seconds * 1_000) if 0 <= seconds <= highest else None
