"""The search: every state that the protocol can reach, and the shortest way to what breaks.

Breadth first, so that the first step found to break a promise is one of the shortest; the search
ends with the states that are as deep.

**Symmetry.** Workers are alike, jobs are alike, producers are alike: each action has the same
guard and the same effect for all of them, no promise names one, and all begin alike. Swapping two
of them in a state therefore swaps them in everything that can follow, and it is enough to follow
one state of each such family. `key` finds the family: a worker, a belief and a doubt point to one
job at most, so each job with what points to it is a bundle, and a state is a bag of bundles. The
fence is compared and never counted: of a lease the key keeps whether it shows the current one.
Of a job that has ended, attempts are forgotten too, since only a replay goes on from there and it
forgives all of them (not where guards are gone: then others go on from there as well).

**Termination.** Faults, people and new jobs end some day; what must happen happens if it stays
possible (weak fairness for each `must` of an action). The promise is broken by a state that nothing
leaves, or by a circle in which nothing is left out that could always happen, while a job has not
ended. Every circle lies in a strongly connected component, and what a component does not always
make possible can be missed by going round all of it; so it is enough to look at components. The
fairness words name no worker: swapping leaves them as they are.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from killproof_chaos.engines.model_promises import CHECKS, TERMINATION
from killproof_chaos.engines.model_protocol import (
    UNLIMITED,
    Job,
    Lease,
    Move,
    Rules,
    State,
    offered,
)
from killproof_evidence.contract import START, TERMINAL

#: About 2 KiB each: what a small machine can hold.
STATES_MAX: Final = 1_000_000
#: States between two calls of `show`.
SHOW_EVERY: Final = 2_000


class Step(NamedTuple):
    """One line of a story."""

    action: str
    before: State
    move: Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How large a world is searched."""

    workers: int
    jobs: int
    producers: int = 0  #: of one key that all jobs share; 0: jobs without keys
    crashes: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The shortest way to a broken promise."""

    promise: str
    sentence: str
    job: int
    steps: tuple[Step, ...]


@dataclass(slots=True, kw_only=True)
class Found:
    """What a search has seen."""

    states: int = 0
    depth: int = 0
    exhausted: bool = False  #: every state was looked at, and nothing broke on the way
    broken: dict[str, Broken] = field(default_factory=dict)
    seen: Counter[tuple[str, bool]] = field(default_factory=Counter)  #: steps: action, not refused
    edges: set[tuple[str, str, str]] = field(default_factory=set)  #: old, new, action

    @property
    def transitions(self) -> int:
        """How many steps were made."""
        return self.seen.total()


class Turn(NamedTuple):
    """How far the search is; how far it will go, nobody knows before the end."""

    done: int  #: states from which every step was made
    states: int  #: found so far
    depth: int
    total: int = 0


Show = Callable[[Turn], None]


def first(scope: Scope) -> State:
    """Return the state in which nothing has happened yet."""
    return State(
        jobs=(Job(),) * scope.jobs,
        workers=(None,) * scope.workers,
        doubts=(None,) * scope.producers,
        crashes=scope.crashes,
    )


def key(rules: Rules, state: State) -> tuple[object, ...]:
    """Return what two states have in common that differ by names and absolute fences alone."""
    held: list[list[tuple[int, ...]]] = [[] for _ in state.jobs]
    for worker in state.workers:
        if type(worker) is Lease:
            is_latest = worker.fence == state.jobs[worker.job].fence
            held[worker.job].append((is_latest, *worker[2:]))
        elif worker is not None:
            held[worker.job].append((2,))
    bundles, believed, doubts = [], state.belief, state.doubts
    for number, (job, hands) in enumerate(zip(state.jobs, held, strict=True)):
        word, fence, deliveries, forgiven, crashed, lease, runs, called_off, effects = job
        attempt = deliveries - forgiven
        if rules.without:
            # Nothing else holds the numbers within bounds, and beyond these nothing differs.
            attempt = min(max(attempt, 0), rules.max_attempts + 1)
            runs, effects = min(runs, rules.max_attempts + 1), min(effects, 2)
        elif word in TERMINAL:
            attempt = runs = 0
        about = 0
        if believed is not None and believed.job == number:
            about = 1 + (believed.fence == fence)
        if doubts:
            about += 3 * doubts.count(number)
        if len(hands) > 1:
            hands.sort()
        bundles.append((word, attempt, crashed, lease, runs, called_off, effects, about, *hands))
    bundles.sort()
    return (state.crashes, *bundles)


def search(
    rules: Rules,
    scope: Scope,
    promises: tuple[str, ...],
    *,
    states_max: int = STATES_MAX,
    show: Show = lambda turn: None,
) -> Found:
    """Search all states of a scope; judge each step, and then the termination.

    Args:
        rules: the protocol.
        scope: the size of the world.
        promises: those that are judged, from CHECKS; and P17.
        states_max: the search ends when it has found so many; then it is not exhausted.
        show: is told now and then how far it is.
    """
    return _Search(rules, scope, promises, states_max, show).run()


class _Search:
    """One search under way."""

    def __init__(
        self, rules: Rules, scope: Scope, promises: tuple[str, ...], states_max: int, show: Show
    ) -> None:
        self.rules = rules
        self.actions = offered(rules)
        self.checks = {
            action.name: [
                (name, CHECKS[name][0])
                for name in promises
                if name in CHECKS and action.name in (CHECKS[name][1] or {action.name})
            ]
            for action in self.actions
        }
        self.judges_end = TERMINATION in promises
        self.states_max, self.show = states_max, show
        start = first(scope)
        self.states = [start]
        self.numbers = {key(rules, start): 0}
        self.parents: list[tuple[int, str]] = [(-1, "")]
        self.depths = [0]
        #: Of each state what can follow when faults have ended: (must, number of the state).
        self.onward: list[list[tuple[str | None, int]]] = []
        self.found = Found()

    def run(self) -> Found:
        found = self.found
        while len(self.onward) < len(self.states) <= self.states_max:
            number = len(self.onward)
            depth = self.depths[number]
            if found.broken and depth > self.depths[number - 1]:
                break
            if number and number % SHOW_EVERY == 0:
                self.show(Turn(number, len(self.states), depth))
            self._expand(number)
        found.states, found.depth = len(self.states), self.depths[-1]
        found.exhausted = len(self.onward) == len(self.states) and not found.broken
        if self.judges_end and found.exhausted:
            self._judge_end()
        return found

    def _expand(self, number: int) -> None:
        """Make every step that is possible in a state."""
        rules, state, found = self.rules, self.states[number], self.found
        onward: list[tuple[str | None, int]] = []
        self.onward.append(onward)
        for action in self.actions:
            name, checks = action.name, self.checks[action.name]
            for move in action.moves(rules, state):
                found.seen[name, move.done] += 1
                old, new = state.jobs[move.job].state, move.state.jobs[move.job].state
                if old != new:
                    found.edges.add((old, new, name))
                broke = False
                for promise, check in checks:
                    sentence = check(rules, name, state, move)
                    if sentence is not None:
                        broke = True
                        self._keep(promise, sentence, number, Step(name, state, move))
                if broke:
                    continue
                target = self._number_of(move.state, number, name)
                if action.lasting:
                    onward.append((action.must, target))

    def _number_of(self, state: State, parent: int, action: str) -> int:
        name = key(self.rules, state)
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = len(self.states)
            self.states.append(state)
            self.parents.append((parent, action))
            self.depths.append(self.depths[parent] + 1)
        return number

    def _keep(self, promise: str, sentence: str, number: int, step: Step) -> None:
        """Keep the first step that breaks a promise; what lies behind it is not searched."""
        if promise not in self.found.broken:
            steps = (*self._way_to(number), step)
            self.found.broken[promise] = Broken(
                promise=promise, sentence=sentence, job=step.move.job, steps=steps
            )

    def _way_to(self, number: int) -> tuple[Step, ...]:
        """Return the steps from the start, made again: only states and names are kept."""
        steps: list[Step] = []
        while number:
            parent, name = self.parents[number]
            before, after = self.states[parent], self.states[number]
            action = next(action for action in self.actions if action.name == name)
            move = next(move for move in action.moves(self.rules, before) if move.state == after)
            steps.append(Step(name, before, move))
            number = parent
        return tuple(reversed(steps))

    def _judge_end(self) -> None:
        """Look for the state nearest to the start from which a job may never end."""
        stuck: list[int] = []
        for component in components([[to for _, to in edges] for edges in self.onward]):
            if self._can_stay(component):
                stuck += [n for n in component if waits(self.states[n]) is not None]
        if not stuck:
            return
        number = min(stuck, key=lambda n: (self.depths[n], n))
        job = waits(self.states[number])
        assert job is not None
        may = sorted({must for must, _ in self.onward[number] if must})
        sentence = f"job {job + 1} is {self.states[number].jobs[job].state} and may never end: " + (
            f"all goes round for ever ({', '.join(may)})" if may else "nothing has to happen"
        )
        self.found.broken[TERMINATION] = Broken(
            promise=TERMINATION, sentence=sentence, job=job, steps=self._way_to(number)
        )

    def _can_stay(self, component: list[int]) -> bool:
        """Say whether a fair run can stay in these states for ever."""
        inside = set(component)
        taken: set[str | None] = set()
        always: set[str] | None = None
        for number in component:
            edges = self.onward[number]
            taken |= {must for must, to in edges if to in inside}
            here = {must for must, _ in edges if must is not None}
            always = here if always is None else always & here
        assert always is not None
        return not always - taken


def waits(state: State) -> int | None:
    """Return the first job that was put in and has not ended."""
    for number, job in enumerate(state.jobs):
        if job.state != START and job.state not in TERMINAL:
            return number
    return None


def components(graph: list[list[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components of a graph (Tarjan's algorithm, without recursion).

    Source: R. Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1 (1972).

    >>> sorted(sorted(component) for component in components([[1], [0, 2], []]))
    [[0, 1], [2]]
    """
    order: list[int] = [-1] * len(graph)
    low: list[int] = [0] * len(graph)
    on_stack = [False] * len(graph)
    stack: list[int] = []
    count = 0
    for root in range(len(graph)):
        if order[root] >= 0:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        visit: int | None = root
        while visit is not None or path:
            if visit is not None:
                order[visit] = low[visit] = count
                count += 1
                stack.append(visit)
                on_stack[visit] = True
                path.append((visit, iter(graph[visit])))
                visit = None
            node, targets = path[-1]
            for target in targets:
                if order[target] < 0:
                    visit = target
                    break
                if on_stack[target]:
                    low[node] = min(low[node], order[target])
            if visit is not None:
                continue
            path.pop()
            if path:
                above = path[-1][0]
                low[above] = min(low[above], low[node])
            if low[node] == order[node]:
                component: list[int] = []
                while not component or component[-1] != node:
                    component.append(stack.pop())
                    on_stack[component[-1]] = False
                yield component
