"""The store of a campaign, and how the stores of its shards become one.

`run.json` says which target, code, contract and plan; a folder for each run has that engine's own
store; `outcomes.jsonl` has a line for each. Shards of anything else are refused: their silence
would be taken for this one's.
"""

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos.prove.dealing import Plan
from killproof_chaos.prove.running import FAILED, OUTCOMES, RUNS, Outcome
from killproof_chaos.prove.verdict import Case, Made
from killproof_evidence.contract import Contract
from killproof_evidence.store import Store, StoreError

#: What a merged store keeps of each run: enough to read on, not to judge again.
KEPT: Final = ("run.json", "verdict.json", "contract.toml", "plan.json", "report.html")
#: Of a merged store's run.json: the shards that are in it.
HERE: Final = "shards_here"
#: What a verdict on all runs takes of that of each.
NEEDED: Final = frozenset(
    {"verdict", "unknown_because", "properties", "coverage", "counts", "jobs", "replay"}
)
RUN_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*")
#: What shards must have in common, and the word for it.
COMMON: Final = (
    ("target", "target"),
    ("version", "version of killproof"),
    ("code", "code"),
    ("contract_text", "contract"),
    ("plan_key", "plan"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The store of one shard, as it was found."""

    path: Path
    run: Mapping[str, Any]  #: run.json
    outcomes: Sequence[Outcome]
    is_cut: bool = False  #: the line of a run was being written when the process was killed

    @property
    def number(self) -> int:
        """Return which shard it is, from 1."""
        return int(self.run["shard"])


def read(folder: Path) -> Shard:
    """Read the store of a campaign or of a shard of it.

    Raises:
        ValueError: it is another command's; the message says what it is.
        StoreError: it is no store of a finished run; definite.
    """
    store = Store(folder)
    run = store.read_run()
    if run.get("engine") != "prove" or "plan" not in run:
        raise ValueError(
            f"{str(folder)!r} is a run of {run.get('engine')!r}: give a store that "
            "`killproof chaos prove` has made"
        )
    try:
        outcomes, is_cut = _outcomes(store)
        Plan.of_record(run["plan"])
        shard = Shard(path=folder, run=run, outcomes=outcomes, is_cut=is_cut)
        if not (shard.number > 0 and isinstance(run["argv"], list) and run["started"] >= 0):
            raise ValueError("run.json has a field that is none")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # Whatever a file says that was cut, or put together by hand: it is no store to judge by.
        raise StoreError(
            f"{str(folder)!r} is damaged, {type(error).__name__}: {error}: leave it out, or make "
            "this shard again"
        ) from None
    return shard


def _outcomes(store: Store) -> tuple[list[Outcome], bool]:
    """Read the lines of all runs; True: the last was being written when the process was killed.

    Raises:
        ValueError: another line is none, or a run is there twice or has a name that is none.
    """
    lines = list(store.read(store.path / OUTCOMES))
    is_cut = bool(lines) and lines[-1][1] is None
    outcomes = []
    for number, line in lines[: len(lines) - is_cut]:
        if line is None:
            raise ValueError(f"line {number} of {OUTCOMES} is no JSON object")
        outcomes.append(Outcome.of_record(line))
    names = [outcome.run.name for outcome in outcomes]
    for name in names:
        # It becomes a folder's name, also in the merged store.
        if not RUN_NAME.fullmatch(name) or names.count(name) > 1:
            raise ValueError(f"{OUTCOMES} has the run {name!r} twice, or it is no name")
    return outcomes, is_cut


def made_of(shard: Shard) -> list[Made]:
    """Return the runs of a store with their verdicts; one that cannot be read has failed."""
    found = []
    for outcome in shard.outcomes:
        record = None
        if outcome.verdict != FAILED:
            try:
                record = _verdict_of(Store(shard.path / RUNS / outcome.run.name))
            except StoreError as error:
                changed = {**outcome.record(), "verdict": FAILED, "why": str(error)}
                outcome = Outcome.of_record(changed)
        found.append(Made(outcome=outcome, record=record))
    return found


def _verdict_of(place: Store) -> dict[str, Any]:
    record = place.read_verdict()
    if lacking := NEEDED - record.keys():
        raise StoreError(f"{place.verdict} lacks {', '.join(sorted(lacking))}")
    return record


def case_of(shards: Sequence[Shard]) -> Case:
    """Return what the verdict over these stores is made of; a shard alone is a part of it."""
    first = shards[0]
    plan = Plan.of_record(first.run["plan"])
    here = first.run.get(HERE)
    return Case(
        plan=plan,
        is_part=here is None and plan.asked.shards > 1,
        target=str(first.run["target"]),
        contract=Store(first.path).read_contract(),
        made=[made for shard in shards for made in made_of(shard)],
        shards=tuple(here or [first.number]),
        interrupted=any(shard.run.get("interrupted") or shard.is_cut for shard in shards),
    )


def refuse(shards: Sequence[Shard]) -> None:
    """Refuse shards that are not of one campaign.

    Raises:
        ValueError: they differ in something, one is there twice, or is merged already; the message
            names the stores.
    """
    first = shards[0]
    for shard in shards:
        if HERE in shard.run:
            raise ValueError(f"{str(shard.path)!r} is merged already: give the shards' own stores")
    for other in shards[1:]:
        for field, word in COMMON:
            if _field(other, field) != _field(first, field):
                raise ValueError(
                    f"{str(other.path)!r} is of another {word} than {str(first.path)!r}: merge "
                    "the shards of one campaign alone"
                )
    for number, count in Counter(shard.number for shard in shards).items():
        if count > 1:
            same = [str(shard.path) for shard in shards if shard.number == number]
            raise ValueError(f"shard {number} is there twice, {' and '.join(same)}: give it once")


def _field(shard: Shard, name: str) -> Any:
    if name == "contract_text":
        return Store(shard.path).read_contract().dump()
    if name == "plan_key":
        return Plan.of_record(shard.run["plan"]).key
    return shard.run.get(name)


def gather(shards: Sequence[Shard], into: Store) -> None:
    """Copy into a new store what can be read of the runs, and their lines."""
    log = into.writer(into.path / OUTCOMES)
    try:
        for shard in shards:
            for outcome in shard.outcomes:
                log.append(outcome.record())
                _copy(shard.path / RUNS / outcome.run.name, into.path / RUNS / outcome.run.name)
    finally:
        log.close()


def _copy(source: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, place / name)


def contract_of(shard: Shard) -> Contract:
    """Return the contract that a shard was judged on."""
    return Store(shard.path).read_contract()


def count_of(shard: Shard) -> int:
    """Return how many shards the campaign has."""
    return Plan.of_record(shard.run["plan"]).asked.shards
