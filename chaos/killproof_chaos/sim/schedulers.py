"""Who decides: everything up to a bound, at random with a guarantee, at random, or as told.

A schedule is written as what it does differently from the default, in which an actor runs until it
can not go on and the first that can follows. `7b,19A,31+` reads: at the 7th choice actor b goes
on, at the 19th actor a crashes, at the 31st time passes.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from killproof_chaos.sim.dice import Dice
from killproof_chaos.sim.runtime import LOST, PASS, WALL_BACK, WALL_FORWARD, Runtime, Unrepeatable

Choice = tuple[int, str]
Choices = tuple[Choice, ...]

_TOKEN: Final = re.compile(r"(\d+)(-?[a-z]|-?z\d+|[A-Z]|[+^_])")


def token_of(choices: Choices) -> str:
    """Return the choices as text; `-` is the default schedule."""
    return ",".join(f"{step}{label}" for step, label in choices) or "-"


def choices_of(token: str) -> Choices:
    """Read a token.

    Raises:
        ValueError: it is none; the message shows the part that is wrong.
    """
    if token == "-":
        return ()
    found = []
    for part in token.split(","):
        match = _TOKEN.fullmatch(part)
        if match is None:
            raise ValueError(f"schedule {token!r}: {part!r} is no choice such as 7b, 19A or 31+")
        found.append((int(match[1]), match[2]))
    return tuple(found)


def is_fault(label: str) -> bool:
    """Say whether a label is a fault, not an actor."""
    return not "a" <= label[0] <= "z"


class Replay:
    """One schedule, as told; a choice that is not possible any more is passed over."""

    def __init__(self, choices: Choices | str = ()) -> None:
        """Play these choices, given as such or as a token."""
        self._choices = choices_of(choices) if isinstance(choices, str) else tuple(choices)
        self._wanted: dict[int, str] = {}
        self._played = False

    def begin(self, runtime: Runtime) -> bool:
        """Play once."""
        self._wanted = dict(self._choices)
        first, self._played = not self._played, True
        runtime.idle_until = 0
        return first

    def choose(self, runtime: Runtime, options: Sequence[str], *, is_free: bool) -> str | None:
        """Take what was told, else the default."""
        label = self._wanted.get(runtime.step)
        return label if label in options else options[0]


class Dfs:
    """Every schedule within the bounds, those with the fewest deviations first.

    Each run follows the deviations that it was given and the default from there on; every other
    option that it passes there is a run of its own, later. No state is kept between runs: the
    target is executed again from the beginning (stateless search, as in CHESS).

    Where a state was reached before with at least the budget that is left now, the run is cut:
    whatever follows was or will be explored from there.

    That, and leaving choices out, holds as long as what a life does is a function of what the
    runtime has told it. Threads of one process share memory, and actors of one's own may share
    variables of a closure or a module: what they tell each other there is in no state. So nothing
    is cut or left out from where a run has started a thread, nor in a scenario that `shares_memory`
    says is of that kind.
    """

    def __init__(self, bound: int = 2, *, prunes: bool = True, reduces: bool = True) -> None:
        """Explore all schedules with at most so many preemptions; faults have budgets of their own.

        Args:
            bound: preemptions: switches away from an actor that could have gone on.
            prunes: whether equal states are explored once.
            reduces: whether choices are left out that can show nothing new: switches inside a write
                transaction (`Runtime.is_inside`), and a fault where nothing has happened since it
                was a choice before that could tell the two apart.
        """
        self.bound = bound
        self._prunes, self._reduces = prunes, reduces
        self._levels: dict[int, list[tuple[Choices, int]]] = defaultdict(list)
        self._levels[0].append(((), 0))
        self._prefix: Choices = ()
        self._at = self._preemptions = 0
        self._offered: dict[str, tuple[int, int]] = {}
        self._known: dict[int, list[tuple[int, ...]]] = {}
        #: Deviations (preemptions and faults) of the schedules that are explored now.
        self.level = 0

    @property
    def states(self) -> int:
        """How many different states were met."""
        return len(self._known)

    def begin(self, runtime: Runtime) -> bool:
        """Take the next schedule of the lowest level that has one.

        Raises:
            Unrepeatable: the last one ended before all that it was told could be done.
        """
        if self._at < len(self._prefix):
            raise Unrepeatable(f"schedule {token_of(self._prefix)!r} was longer before")
        while self._levels and not self._levels.get(self.level):
            self._levels.pop(self.level, None)
            if not self._levels:
                return False
            self.level = min(self._levels)
        if not self._levels:
            return False
        self._prefix, self._preemptions = self._levels[self.level].pop()
        self._at = 0
        self._offered = {}
        runtime.idle_until = self._prefix[0][0] if self._prefix else 0
        return True

    def choose(self, runtime: Runtime, options: Sequence[str], *, is_free: bool) -> str | None:
        """Follow the prefix; beyond it note the other options for later and take the default."""
        if self._at < len(self._prefix):
            step, label = self._prefix[self._at]
            if step != runtime.step:
                return options[0]
            self._at += 1
            is_last = self._at == len(self._prefix)
            runtime.idle_until = 0 if is_last else self._prefix[self._at][0]
            if label not in options:
                told = token_of(self._prefix)
                raise Unrepeatable(f"schedule {told!r} was possible before, and {label!r} is not")
            return label
        is_private = not runtime.shares_memory
        reduces = self._reduces and is_private
        inside = reduces and not is_free and runtime.is_inside
        preempts = not is_free
        if inside or (preempts and self._preemptions == self.bound):
            others = [label for label in options[1:] if is_fault(label)]
        else:
            others = list(options[1:])
        if reduces:
            others = [n for n in others if not is_fault(n) or not self._is_stale(runtime, n)]
        if inside and not others:
            return options[0]  # What is known here was known where the transaction began.
        if self._prunes and is_private and self._is_known(runtime):
            return None
        for label in others:
            costs = preempts and not is_fault(label)
            level = self.level + (costs or is_fault(label))
            child = (*self._prefix, (runtime.step, label))
            self._levels[level].append((child, self._preemptions + costs))
        return options[0]

    def _is_stale(self, runtime: Runtime, label: str) -> bool:
        """Say whether this run had the choice before, with nothing since that depends on it."""
        if label[0].isupper():
            life = runtime.roots[ord(label) - ord("A")]
            mark = (runtime.death_mark, life.deeds)
        else:
            mark = (runtime.clock_mark, 0)
        if label[0] == LOST or self._offered.get(label) != mark:
            self._offered[label] = mark
            return False
        return True

    def _is_known(self, runtime: Runtime) -> bool:
        left = runtime.left
        budget = (
            self.bound - self._preemptions,
            left.crashes,
            left.passes,
            left.wall_steps,
            left.lost,
        )
        known = self._known.setdefault(runtime.state(), [])
        for other in known:
            if all(there >= here for there, here in zip(other, budget, strict=True)):
                return True
        known.append(budget)
        return False


class _Random:
    """What the random schedulers share: a number per run, and moments for the faults."""

    def __init__(self, seed: int, runs: int | None) -> None:
        self.seed = seed
        self._runs = runs
        self._number = 0
        self._steps = 0  #: of the longest run so far
        self._faults: list[tuple[int, str]] = []
        self.dice = Dice(0)

    def begin(self, runtime: Runtime) -> bool:
        """Begin the next run with a source of its own, so that each can be repeated alone."""
        if self._number == self._runs:
            return False
        if self._number:  # Else it is the length of somebody else's run.
            self._steps = max(self._steps, runtime.step)
        self._number += 1
        runtime.idle_until = 0
        # SplitMix64 makes unrelated numbers of neighbouring seeds.
        self.dice = Dice((self.seed << 32) + self._number)
        budget, steps = runtime.faults, max(self._steps, 20)
        kinds = [""] * budget.crashes + [PASS] * budget.passes + [LOST] * budget.lost
        kinds += [WALL_FORWARD] * budget.wall_steps
        moments = ((self.dice.randrange(1, steps + 1), kind) for kind in kinds)
        # A fault that always comes hides what happens without it.
        self._faults = sorted(moment for moment in moments if self.dice.random() < 0.75)
        return True

    def fault(self, runtime: Runtime, options: Sequence[str]) -> str | None:
        """Return the fault that is due, if one is and can happen."""
        if not self._faults or self._faults[0][0] > runtime.step:
            return None
        kind = self._faults.pop(0)[1]
        if kind:
            kinds = (WALL_FORWARD, WALL_BACK) if kind == WALL_FORWARD else (kind,)
            possible = [label for label in options if label.startswith(kinds)]
        else:
            possible = [label for label in options if label[0].isupper()]
        return self.dice.choice(possible) if possible else None


class Pct(_Random):
    """Probabilistic concurrency testing: random priorities, and a few moments where one falls.

    A bug that needs `depth` ordered events is found by each run with a probability of at least
    1 / (n * k ** (depth - 1)) for n actors and k steps (Burckhardt et al., ASPLOS 2010).
    """

    def __init__(self, depth: int = 3, *, seed: int = 0, runs: int | None = None) -> None:
        """Explore so many runs, None: for ever."""
        super().__init__(seed, runs)
        self.depth = depth
        self._priority: dict[str, float] = {}
        self._changes: list[int] = []

    def begin(self, runtime: Runtime) -> bool:
        """Draw the moments at which a priority falls."""
        if not super().begin(runtime):
            return False
        steps = max(self._steps, 20)
        self._priority = {}
        self._changes = sorted(self.dice.randrange(1, steps + 1) for _ in range(self.depth - 1))
        return True

    def choose(self, runtime: Runtime, options: Sequence[str], *, is_free: bool) -> str | None:
        """Let the actor of the highest priority go on."""
        if (fault := self.fault(runtime, options)) is not None:
            return fault
        actors = [label for label in options if label >= "a"]  # As `is_fault` says, and faster.
        priority = self._priority
        for label in sorted([label for label in actors if label not in priority]):
            priority[label] = 1 + self.dice.random()
        while self._changes and self._changes[0] <= runtime.step:
            first = max(actors, key=self._priority.__getitem__)
            self._priority[first] = -float(self.depth - len(self._changes))
            self._changes.pop(0)
        return max(actors, key=self._priority.__getitem__)


class Walk(_Random):
    """A uniform walk: at each choice every actor that can go on is as likely as any other."""

    def __init__(self, *, seed: int = 0, runs: int | None = None) -> None:
        """Explore so many runs, None: for ever."""
        super().__init__(seed, runs)

    def choose(self, runtime: Runtime, options: Sequence[str], *, is_free: bool) -> str | None:
        """Take any."""
        if (fault := self.fault(runtime, options)) is not None:
            return fault
        return self.dice.choice([label for label in options if not is_fault(label)])
