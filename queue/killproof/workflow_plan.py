"""What a workflow is before any run of it: steps, what they need, and the handlers they register.

Declared with decorators, steps run in order, or as a graph where they say `needs=`; `add` is for
graphs that are made at run time.  Nothing here touches a file.  Read `workflow_step.py` next: what
a step's function is given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from killproof.core import model
from killproof.core.database import Value
from killproof.core.jobs import new_job
from killproof.handlers import TIMEOUT_SECONDS_DEFAULT, Handlers
from killproof.workflow_step import Step, handler
from killproof.workflow_tables import NEEDS_MAX, STEPS_MAX

NAME_CHARS_MAX: Final = 90
WORKFLOW_CHARS_MAX: Final = 100

StepFunction = TypeVar("StepFunction", bound=Callable[[Step], object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step as its workflow declares it."""

    name: str
    kind: str
    needs: tuple[str, ...]
    each: str | None  #: one job for each item of that step's result
    undo_kind: str | None  #: the kind of job that compensates it
    delay_ms: int  #: from the success of its last need
    payload: object  #: of its job; None: the run and the step, for people
    is_function: bool = False  #: declared by `step`: its handler knows of fan-outs
    options: dict[str, Any]  #: priority, max_attempts, lease, retry: as for `Queue.enqueue`


class Workflow:
    """A graph of steps; it is code, and nothing of it is in a file before a run is started.

    A run keeps the graph that it was started with.  Whoever renames a step keeps the old name for
    the runs under way: a job whose kind nobody handles waits, and `killproof explain` says so.  The
    jobs of a fan-out are made by the code that runs when the list is known; where it has lost the
    fan-out that a join waits for, the step before it is held.
    """

    def __init__(self, name: str, handlers: Handlers | None = None) -> None:
        """Make a workflow without steps.

        Args:
            name: names its runs, and begins the kinds of its jobs.
            handlers: the registry that gets a handler for each step; None makes one.

        Raises:
            ValueError: the name is empty, too long, or not storable.
        """
        self.name = model.check_text(name, "workflow name", WORKFLOW_CHARS_MAX)
        self.handlers = Handlers() if handlers is None else handlers
        self._plans: dict[str, Plan] = {}

    def step(
        self,
        *,
        name: str | None = None,
        needs: Iterable["str | Callable[..., object]"] | None = None,
        each: "str | Callable[..., object] | None" = None,
        compensate: Callable[[Step], object] | None = None,
        delay: float = 0,
        timeout: float | None = TIMEOUT_SECONDS_DEFAULT,
        priority: int = 5,
        max_attempts: int = 5,
        lease: float = 60.0,
        retry: str = "article",
    ) -> Callable[[StepFunction], StepFunction]:
        """Declare the decorated function as a step.

        Args:
            name: the function's own name unless given.
            needs: steps, by name or function, that must have succeeded before; None is the step
                declared before this one, so that plain steps run in order; `[]` is none.
            each: a step that returns a list: this step is one job for each item, `step.item`.
            compensate: undoes the step when its run fails later; called as the step is.
            delay: seconds between the success of the last need and the step's due time.
            timeout: seconds that one execution may take; None is no limit.
            priority: as for `Queue.enqueue`, and so are the rest.
            max_attempts: executions in all.
            lease: seconds.
            retry: a policy by name.

        Raises:
            ValueError: an argument is wrong, or the name is taken.
        """

        def declare(function: StepFunction) -> StepFunction:
            plan = self.add(
                name or function.__name__,
                needs=needs,
                each=each,
                delay=delay,
                priority=priority,
                max_attempts=max_attempts,
                lease=lease,
                retry=retry,
            )
            self.handlers(plan.kind, timeout=timeout)(handler(self, function))
            undo_kind = None if compensate is None else f"{plan.kind}.undo"
            self._plans[plan.name] = replace(plan, undo_kind=undo_kind, is_function=True)
            if compensate is not None:
                self.handlers(f"{plan.kind}.undo", timeout=timeout)(handler(self, compensate))
            return function

        return declare

    def add(
        self,
        name: str,
        *,
        kind: str | None = None,
        payload: object = None,
        needs: Iterable["str | Callable[..., object]"] | None = None,
        each: "str | Callable[..., object] | None" = None,
        compensate: str | None = None,
        delay: float = 0,
        **options: Any,
    ) -> Plan:
        """Declare a step whose jobs are of any kind, for a graph that is known at run time only.

        Args:
            name: unique in the workflow.
            kind: of its jobs, with a handler somewhere; `WORKFLOW.STEP` unless given.
            payload: of its job; None names the run and the step.  Not with `each`.
            needs: as for `step`; names of steps that are declared later are welcome.
            each: as for `step`; the item is in the payload of its jobs, as `item`.
            compensate: the kind of job that undoes it; its payload names the run and the step.
            delay: as for `step`.
            **options: `priority`, `max_attempts`, `lease`, `retry`, as for `Queue.enqueue`.

        Raises:
            ValueError: an argument is wrong, or the name is taken.
        """
        model.check_text(name, "step name", NAME_CHARS_MAX)
        if name in self._plans:
            raise ValueError(f"workflow {self.name!r} has a step {name!r} already")
        if each is not None and payload is not None:
            raise ValueError(f"step {name!r} has a payload, and its jobs have their items: drop it")
        kind = model.check_text(kind or f"{self.name}.{name}", "kind", model.KIND_CHARS_MAX)
        if needs is None:
            needs = list(self._plans)[-1:] if each is None else ()
        elif isinstance(needs, str):
            raise ValueError(f"needs {needs!r} must be a list of steps: write [{needs!r}]")
        plan = Plan(
            name=name,
            kind=kind,
            needs=tuple(dict.fromkeys(_name_of(need) for need in needs)),
            each=None if each is None else _name_of(each),
            undo_kind=compensate,
            delay_ms=model.to_ms(delay, "delay"),
            payload=payload,
            options=options,
        )
        if plan.each is not None and plan.needs:
            raise ValueError(f"step {name!r} has each={plan.each!r}, which is all that it may need")
        self.row(plan, 0, payload, None)  # Wrong options show here, not when a run is started.
        self._plans[name] = plan
        return plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The steps in the order of their declaration."""
        return tuple(self._plans.values())

    def plan(self, name: str) -> Plan:
        """Return the step of this name."""
        return self._plans[name]

    def check(self) -> None:
        """Refuse a graph that could not be run.

        Raises:
            ValueError: a need is unknown, steps need each other in a circle, a fan-out over a
                fan-out, or more than `STEPS_MAX` steps or `NEEDS_MAX` needs.
        """
        plans = self._plans
        where = f"workflow {self.name!r}"
        if len(plans) > STEPS_MAX:
            raise ValueError(f"{where} has {len(plans):,} steps, over the limit of {STEPS_MAX:,}")
        if (number := sum(len(plan.needs) for plan in plans.values())) > NEEDS_MAX:
            raise ValueError(f"{where} has {number:,} needs, over the limit of {NEEDS_MAX:,}")
        for plan in plans.values():
            for need in (*plan.needs, *([plan.each] if plan.each else [])):
                if need not in plans:
                    known = ", ".join(list(plans)[:10])
                    raise ValueError(
                        f"{where}: step {plan.name!r} needs {need!r}, which is no step of it: "
                        f"use one of {known}"
                    )
            if plan.each and not plans[plan.each].is_function:
                raise ValueError(
                    f"{where}: step {plan.name!r} spreads {plan.each!r}, whose handler would not "
                    "put its jobs in: declare that one with @workflow.step"
                )
            if plan.each and plans[plan.each].each:
                raise ValueError(
                    f"{where}: step {plan.name!r} spreads {plan.each!r}, which is spread itself: "
                    "let a join between them return the list"
                )
        if circle := _circle(plans):
            raise ValueError(f"{where}: steps {' -> '.join(circle)} need each other in a circle")

    def spread_by(self, name: str) -> tuple[Plan, ...]:
        """Return the steps that are one job for each item of this step's result."""
        return tuple(plan for plan in self._plans.values() if plan.each == name)

    def row(
        self, plan: Plan, now_ms: int, payload: object, deadline: float | datetime | None
    ) -> dict[str, Value]:
        """Return the values of a step's job that may start at once."""
        options = dict(plan.options)
        policy = options.pop("retry", "article")
        if unknown := set(options) - {"priority", "max_attempts", "lease"}:
            raise ValueError(f"step {plan.name!r} has an unknown option {min(unknown)!r}")
        delay = plan.delay_ms / 1_000
        return new_job(
            now_ms, plan.kind, payload, delay=delay, deadline=deadline, policy=policy, **options
        )


def payload_of(workflow: Workflow, plan: Plan) -> object:
    """Return the payload of a step's job: its own, or what a person looks for."""
    if plan.payload is not None:
        return plan.payload
    return {"workflow": workflow.name, "step": plan.name}


def _name_of(need: "str | Callable[..., object]") -> str:
    return need if isinstance(need, str) else str(getattr(need, "__name__", need))


def _circle(plans: dict[str, Plan]) -> list[str]:
    """Return the names of steps that need each other, the first one twice; empty if none do."""
    waiting = {
        name: {*plan.needs, *([plan.each] if plan.each else [])} for name, plan in plans.items()
    }
    users: dict[str, list[str]] = {name: [] for name in plans}
    for name, needs in waiting.items():
        for need in needs:
            users[need].append(name)
    free = [name for name, needs in waiting.items() if not needs]
    while free:
        done = free.pop()
        del waiting[done]
        for user in users[done]:
            waiting[user].discard(done)
            if not waiting[user]:
                free.append(user)
    if not waiting:
        return []
    path = [min(waiting)]  # Each that is left needs another that is left: follow until one repeats.
    while (need := min(waiting[path[-1]])) not in path:
        path.append(need)
    return [*path[path.index(need) :], need]
