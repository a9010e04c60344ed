"""Judges one queue after another, confirms what was found, and keeps a card of each."""

import json
import platform
import shlex
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.command import EXIT_OF
from killproof_chaos.prove import dealing, stores
from killproof_chaos.prove.running import Turn, child
from killproof_chaos.prove_command import perform
from killproof_chaos.scorecard import rows, shrinking
from killproof_chaos.scorecard.cards import (
    FAILED,
    Check,
    Tried,
    cells_of,
    checks_of,
    open_of,
    word_of,
)
from killproof_evidence import isolated
from killproof_evidence.finding import PASS, VIOLATED
from killproof_evidence.store import Store, StoreError, write_json
from killproof_evidence.target import keeps_history, level

#: A card for each queue that is done: a run that is asked for again goes on behind these.
CARD: Final = "card.json"
QUEUES: Final = "queues"
TRIES: Final = "tries"
#: What came of the tries so far.
TRIED: Final = "tried.json"
#: Begins the names of the checks there that were looked for something smaller.
SHRUNK: Final = "shrunk"
PROVED: Final = "prove"
#: A run that judges a violation again takes at most so many times what the first took.
LIMIT_TIMES: Final = 4.0
LIMIT_SECONDS_MIN: Final = 120.0

#: Times the budget, within which what is owed may begin, and be made again where it missed much.
PATIENCE: Final = 1.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for."""

    only: tuple[str, ...] = ()
    budget: float = 60.0  #: s for each queue; more where all engines need more
    seed: int = 1

    def argv(self) -> list[str]:
        """Return the command that asks for the same."""
        words = ["killproof", "chaos", "scorecard", "--budget-each", f"{self.budget:g}s"]
        words += ["--seed", str(self.seed)]
        return words + [word for name in self.only for word in ("--only", name)]


def make(asked: Asked, folder: Path, say: Say) -> tuple[list[dict[str, Any]], bool]:
    """Make all cards that the store does not hold yet; return all, and whether it was interrupted.

    Args:
        asked: which queues, and how long each.
        folder: the store.
        say: is told how far it is.
    """
    names = rows.names(asked.only)
    cards = []
    began, made = time.monotonic(), 0
    for number, name in enumerate(names):
        done = folder / QUEUES / name / CARD
        if done.exists() and (card := _object(done))["asked"] == _key(asked):
            cards.append(card)
            continue
        left = (time.monotonic() - began) / made if made else 3 * asked.budget
        minutes = left * (len(names) - number) / 60

        def tell(line: str, name: str = name, at: int = number, minutes: float = minutes) -> None:
            say(f"{name}, {at + 1} of {len(names)}: {line}; about {minutes:.0f} min left in all")

        try:
            card = card_of(name, asked, folder / QUEUES / name, tell)
        except KeyboardInterrupt:
            return cards, True
        write_json(done, card)
        cards.append(card)
        made += 1
    return cards, False


def card_of(name: str, asked: Asked, folder: Path, say: Say) -> dict[str, Any]:
    """Judge a queue and confirm what was found; return its card.

    Raises:
        KeyboardInterrupt: somebody ended it; a campaign that was whole, and its tries, are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = targets.load(name)
    facts = _facts(name, target) | {"asked": _key(asked), "made": time.time()}
    say("being installed")
    if why := _unready(target):
        return facts | {"verdict": FAILED, "why": why, "cells": []}
    facts |= {"runs_on": _runs_on(target)}
    seen = dealing.facts_of(target)
    budget = max(asked.budget, round(dealing.needed(seen)))
    plan = dealing.plan(dealing.Asked(target=name, budget=budget, seed=asked.seed), seen)
    record = _proved(plan, folder / PROVED)
    if record is None:
        shutil.rmtree(folder)  # Of a run that was ended in it, or that was asked something else.
        record = perform(
            plan,
            1,
            Store.create(folder / PROVED),
            lambda turn: say(_line(turn)),
            report=False,
            # Nobody shall be unknown because the machine was slow for a while.
            seconds=PATIENCE * budget,
        )
    if stores.read(folder / PROVED).run["interrupted"]:
        raise KeyboardInterrupt
    tried = confirm(record, folder, say)
    cells = cells_of(record, tried, facts["cites"])
    word = word_of(cells)
    if word == "pass" and record["verdict"] != "pass":  # Something that was owed was not met.
        word = "unknown"
    return facts | {
        "verdict": word,
        "why": "",
        "cells": [asdict(cell) for cell in cells],
        "tried": [one.record() for one in tried],
        "record": {
            key: record[key]
            for key in ("tried", "unknown_because", "coverage", "environment", "left_out",
                        "version", "runs", "replay", "errors", "not_made")
        },
    }  # fmt: skip


def _proved(plan: dealing.Plan, place: Path) -> dict[str, Any] | None:
    """Return the verdict of a campaign that was made before and is whole; None: there is none."""
    try:
        made = stores.read(place)
        if made.run["interrupted"] or dealing.Plan.of_record(made.run["plan"]).key != plan.key:
            return None
        return Store(place).read_verdict()
    except StoreError:
        return None


def confirm(record: Mapping[str, Any], folder: Path, say: Say) -> list[Tried]:
    """Run again what has shown a violation, as often as that needs; go on behind earlier tries.

    What only real processes show is shrunk first; where the smaller run does not show it often
    enough, the run as it was found is tried as well.
    """
    done: list[Tried] = []
    spent = {row["run"]["engine"]: row["seconds"] for row in record["runs"]}
    for planned in checks_of(record):
        limit = max(LIMIT_SECONDS_MIN, LIMIT_TIMES * spent.get(planned.engine, 0.0))
        tries = _Tries(folder=folder, limit=limit, say=say)
        if (check := open_of(planned, done)) is not None:
            if (smaller := tries.shrunk(check)) is not None:
                done.append(tries.make(smaller))
            if (check := open_of(planned, done)) is not None:
                done.append(tries.make(shrinking.readable(check)))
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tries:
    """Runs that shall show a violation again, and a file that keeps what came of them."""

    folder: Path
    limit: float  #: s, of one run
    say: Say

    def shrunk(self, check: Check) -> Check | None:
        """Return a smaller check that shows the same, found now or in an earlier life."""
        kept = self._kept()
        key = f"{SHRUNK} {_name(check)}"
        if key not in kept:
            found = shrinking.shrunk(check, lambda one: self._broken(one, "smaller") or frozenset())
            kept[key] = None if found is None else Tried(check=found).record()
            write_json(self.folder / TRIED, kept)
        return None if kept[key] is None else Tried.of_record(kept[key]).check

    def make(self, check: Check) -> Tried:
        """Run a check as often as that needs."""
        kept = self._kept()
        key = _name(check)
        tried = Tried.of_record(kept[key]) if key in kept else Tried(check=check)
        while not tried.is_decided():
            broken = self._broken(check, f"try {tried.made + 1} of at most {check.tries}")
            if broken is None:
                tried = replace(tried, failed=tried.failed + 1)
            else:
                seen = {name: tried.seen.get(name, 0) + (name in broken) for name in check.promises}
                tried = replace(tried, seen=seen, made=tried.made + 1)
            kept[key] = tried.record()
            write_json(self.folder / TRIED, kept)
        return tried

    def _kept(self) -> dict[str, Any]:
        path = self.folder / TRIED
        return _object(path) if path.exists() else {}

    def _broken(self, check: Check, told: str) -> frozenset[str] | None:
        """Run a check once; return the promises that it shows broken. Its store is not kept.

        None: the run came to no verdict.
        """
        line = f"{' '.join(check.promises)} again by {check.engine}, {told}"
        words = shlex.split(check.command)[2:]
        place = self.folder / TRIES / f"{check.engine}-{time.monotonic_ns()}"
        place.parent.mkdir(exist_ok=True)
        has_store = check.engine != "sim"  # There it is the story of one schedule.
        words += ["--store", str(place), "--no-report"] if has_store else []
        log = place.with_suffix(".log")
        code, interrupted = child(words, log, self.limit, lambda _: self.say(line))
        if interrupted:
            raise KeyboardInterrupt
        if not has_store:
            if code not in (EXIT_OF[PASS], EXIT_OF[VIOLATED]):
                return None
            return frozenset(check.promises if code == EXIT_OF[VIOLATED] else ())
        try:
            found = Store(place).read_verdict()["properties"]
        except StoreError:
            return None
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return frozenset(name for name, one in found.items() if one["verdict"] == VIOLATED)


def _name(check: Check) -> str:
    return " ".join((*check.promises, check.command))


def _facts(name: str, target: Any) -> dict[str, Any]:
    """Return what stands on a card whatever comes of it."""
    peer = getattr(target, "peer", None)
    packages = [f"{one.name} {one.version}" for one in getattr(peer, "packages", ())]
    return {
        "queue": name,
        "control": rows.is_control(name),
        "packages": packages,
        "level": level(target),
        "history": keeps_history(target),
        "promises": {key: made for key, made in target.contract.promises.items() if made},
        "parameters": {
            key: value
            for key, value in target.contract.parameters.items()
            if isinstance(value, int | float | str | list)
        },
        "cites": dict(getattr(target, "cites", {})),
    }


def _unready(target: Any) -> str:
    """Make an empty queue, which installs what it needs; return why it cannot be, or nothing."""
    with tempfile.TemporaryDirectory(prefix="killproof-") as folder:
        try:
            target.prepare(Path(folder))
        except Exception as error:
            # Another's code and another's package: whatever it raises is told on its card.
            return f"{type(error).__name__}: {error}"
    return ""


def _runs_on(target: Any) -> dict[str, Any]:
    """Return what the queue runs on: its own interpreter, SQLite, and all that is installed."""
    peer = getattr(target, "peer", None)
    if peer is None:
        ours = f"Python {platform.python_version()}"
        return {"runtime": ours, "sqlite": sqlite3.sqlite_version, "packages": []}
    made = isolated.ensure(peer)
    packages = [f"{name} {number}" for name, number in sorted(made.versions.items())]
    return {"runtime": made.runtime, "sqlite": isolated.sqlite_of(made), "packages": packages}


def _line(turn: Turn) -> str:
    return f"{turn.engine}, {turn.done + 1} of {turn.total}"


def _key(asked: Asked) -> dict[str, Any]:
    """Return what of the question a card depends on."""
    return {"budget": asked.budget, "seed": asked.seed}


def _object(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
