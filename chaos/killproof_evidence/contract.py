"""A contract: what a queue promises. It is judged on this and on nothing else.

`contract.toml` has three tables:

    [promises]      P1 = "power" or "process"; P6 = "transaction", "key" or "at-most-once"; others
                    true or false
    [parameters]    lease_ms, max_attempts, retry, grace_ms, recovery_ms, busy_ms ...
    [edges]         available = ["leased", "cancelled"]; `start` lists the states of a new job,
                    and `deleted` as a target allows the row to go

A promise that is not mentioned is not made.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: The words in which every state is told, whatever a target calls it.
STATES: Final = (
    "blocked",
    "scheduled",
    "available",
    "leased",
    "retryable",
    "held",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
)
#: States that only a replay can leave.
TERMINAL: Final = frozenset({"succeeded", "dead", "cancelled", "expired"})
#: Left of an edge: a job that does not exist yet. Right of an edge: its row is gone.
START: Final = "start"
DELETED: Final = "deleted"

#: A level of P6: no handler is started twice for one job, and what a dead worker had is lost.
AT_MOST_ONCE: Final = "at-most-once"

PROMISE_NAMES: Final = tuple(f"P{number}" for number in range(1, 25))
#: Promises with more to say than true.
LEVELS: Final[Mapping[str, tuple[str, ...]]] = {
    "P1": ("power", "process"),
    "P6": ("transaction", "key", AT_MOST_ONCE),
}
#: Parameters that are no number of milliseconds, bytes or other things that are counted.
UNCOUNTED: Final = frozenset(
    {"options", "retry", "crash_first", "crash_later", "limits", "schedules"}
)
#: Parameters of which there is no half.
WHOLE: Final = frozenset({"max_attempts", "workers_max"})


class ContractError(ValueError):
    """The contract is not usable; the message names the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Promises, their parameters, and the allowed edges of the state machine."""

    promises: Mapping[str, bool | str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would silently never be judged: a mistyped promise."""
        for name in self.promises:
            if name not in PROMISE_NAMES:
                raise ContractError(f"promise {name!r} is unknown: use P1 to P24")
        for old, targets in self.edges.items():
            for state in (old, *targets):
                if state not in STATES and state not in {START, DELETED}:
                    raise ContractError(f"state {state!r} is unknown: use {', '.join(STATES)}")

    @classmethod
    def load(cls, path: Path | str) -> "Contract":
        """Read a contract.

        Raises:
            ContractError: the file is no TOML or names an unknown promise or state; definite.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            return cls.parse(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ContractError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> "Contract":
        """Read a contract from its TOML text.

        Raises:
            ContractError: a table is none, or names an unknown promise or state; definite.
            tomllib.TOMLDecodeError: it is no TOML; definite.
        """
        tables = tomllib.loads(text)
        names = ("promises", "parameters", "edges")
        promises, parameters, edges = (tables.get(name, {}) for name in names)
        for name, table in zip(names, (promises, parameters, edges), strict=True):
            if not isinstance(table, dict):
                raise ContractError(f"{name} = {table!r} must be a table: begin it with [{name}]")
        for old, new in edges.items():
            if not _are_texts(new):
                raise ContractError(f'edges.{old} = {new!r} must be a list: {old} = ["available"]')
        return cls(
            promises=dict(promises),
            parameters=dict(parameters),
            edges={old: tuple(new) for old, new in edges.items()},
        )

    def problems(self) -> Iterator[str]:
        """Yield what no checker can take at its word, each with the remedy.

        A word that is none would be judged as whatever it is nearest to, or not at all, and a
        number that is none would end a run in the middle.
        """
        for name, word in self.promises.items():
            words = LEVELS.get(name, ())
            allowed: tuple[object, ...] = words if name == "P1" else (*words, True)
            if word is not False and not any(word == each and type(word) is type(each)
                                             for each in allowed):  # fmt: skip
                shown = " or ".join("true" if each is True else f'"{each}"' for each in allowed)
                yield f"{name} = {word!r} is no promise: say {shown}"
        for name, value in self.parameters.items():
            if name in UNCOUNTED:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                yield f"{name} = {value!r} must be a number above 0"
            elif name in WHOLE and value != int(value):
                yield f"{name} = {value!r} must be a whole number"
        for name in ("limits", "schedules"):
            if not isinstance(self.parameters.get(name, {}), Mapping):
                yield f"{name} = {self.parameters[name]!r} must be a table"
        if not _are_texts(self.parameters.get("options", ())):
            yield f"options = {self.parameters['options']!r} must be a list of names"

    def promised(self, name: str) -> bool | str:
        """Return the level of a promise, or False."""
        return self.promises.get(name, False)

    def allows(self, old: str | None, new: str | None) -> bool:
        """Say whether the edge is allowed; None on the left is a new job, on the right a gone one.

        A state that keeps its value (a change of priority, of due time) is no edge.
        """
        return old == new or (new or DELETED) in self.edges.get(old or START, ())

    def dump(self) -> str:
        """Return the contract as TOML, the same bytes for the same contract."""
        lines = ["[promises]"]
        lines += _pairs(self.promises)
        lines += ["", "[parameters]"]
        lines += _pairs(self.parameters)
        lines += ["", "[edges]"]
        lines += _pairs({old: list(new) for old, new in self.edges.items()})
        return "\n".join(lines) + "\n"


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _pairs(table: Mapping[str, Any]) -> Iterable[str]:
    # JSON's strings, numbers, booleans and lists of them are also TOML's.
    return [f"{json.dumps(key)} = {_value(value)}" for key, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
