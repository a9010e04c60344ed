"""What is recorded of `killproof bench rows`: what operations cost as a file grows."""

import dataclasses
import json
from dataclasses import dataclass

from killproof_bench.result import Noise, OperationCost, Verdict, read

#: Rises with every change of these fields; a reader refuses what it does not know.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One state, or several, in which the rows grow, while all others stay as they are."""

    states: tuple[str, ...]
    rows_small: int  #: In every state of the small file, and in the other states of the large one.
    rows_large: int  #: In each of `states` of the large file.
    file_bytes: int  #: Of the large file.
    seeding_seconds: float  #: Of the large file.
    calls: int  #: Timed calls of each operation on each file.
    costs: tuple[OperationCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthResult:
    """One run of `killproof bench rows`, whole or interrupted."""

    schema: int
    command: str
    seed: int
    started: str  #: UTC, ISO 8601.
    interrupted: bool
    environment: dict[str, str]
    noise: Noise
    durability: str
    raw: tuple[float, ...]  #: 4 KiB pwrite + fdatasync per second, before and after.
    journal_mode: str  #: As read back.
    synchronous: str
    autocheckpoint: int
    axes: tuple[Axis, ...]
    verdict: Verdict
    sentence: str


def to_json(result: GrowthResult) -> str:
    """Return the result as one JSON document."""
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)


def from_json(text: str) -> GrowthResult:
    """Return the result that `to_json` wrote.

    Raises:
        ValueError: Another schema, or a field that is missing or unknown.
    """
    return read(GrowthResult, text, schema=SCHEMA, what="a result of growing files")
