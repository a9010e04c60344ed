"""What can be said of a target without starting it: its members and its contract.

A promise that nothing can be judged by is the worst mistake of a contract: the run is `unknown`
every time, or the promise goes by unlooked at. So each rule names what is missing.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Final

from killproof_chaos.contract_guide import (
    AUDIT,
    CANCEL,
    DATABASE,
    HISTORY,
    PARAMETERS,
    PROMISES,
    REPLAY,
    Promise,
)
from killproof_chaos.lint.remarks import Remark, note, problem
from killproof_chaos.workload import CAPABILITIES, OPTIONS_ALL
from killproof_evidence.adapter import Adapter
from killproof_evidence.checkers.retries import delay_ms_min
from killproof_evidence.contract import AT_MOST_ONCE, START, Contract
from killproof_evidence.target import Target, keeps_history

#: The longest handler of a run: a worker that nobody extends must be given longer (workload.py).
HANDLER_MS_MAX: Final = 1_600
CRASH_WORDS: Final = ("immediate", "policy")
#: What an adapter must bring itself.
OF_AN_ADAPTER: Final = ("connect", "enqueue", "consume", "rows")


def remarks(target: Target) -> Iterator[Remark]:
    """Yield what is wrong with the members and the contract of a target."""
    yield from _members(target)
    contract = target.contract
    if not any(contract.promises.values()):
        yield problem("contract", "no promise is made, so nothing is judged: begin with P1 to P3")
    yield from (problem("contract", text) for text in contract.problems())
    for promise in PROMISES:
        if contract.promised(promise.number):
            yield from _judgeable(promise, target)
    yield from _parameters(contract)
    yield from _edges(contract)
    yield from _lease(target)


def _members(target: Target) -> Iterator[Remark]:
    if not isinstance(target, Adapter):
        return
    missing = [name for name in OF_AN_ADAPTER if getattr(type(target), name) is _own(name)]
    if missing:
        yield problem("members", f"the adapter does not define {', '.join(missing)}")


def _own(name: str) -> object:
    return getattr(Adapter, name)


def _judgeable(promise: Promise, target: Target) -> Iterator[Remark]:
    """Say what a promise lacks to be judged on."""
    contract, number = target.contract, promise.number
    has = {
        AUDIT: target.audit is not None,
        HISTORY: keeps_history(target),
        DATABASE: hasattr(target, "database"),
        CANCEL: True,  # The trial asks the client itself, for both.
        REPLAY: True,
    }
    for needed in promise.evidence:
        if not has[needed]:
            yield problem(
                "contract", f"{number} is promised, and nothing shows it without {needed}"
            )
    options = _asked(contract)
    for name in promise.parameters:
        is_asked = name in OPTIONS_ALL and name in options
        if name not in contract.parameters and not is_asked:
            yield problem("contract", f"{number} is promised, and the parameter {name} is missing")
    for name in promise.options:
        if name not in options:
            yield problem(
                "contract",
                f"{number} is promised, and parameters.options does not have {name}: no job of a "
                "run would show it",
            )
    capability = promise.capability
    if capability and capability not in getattr(target, "capabilities", ()):
        yield problem(
            "contract",
            f"{number} is promised, and the target does not announce the capability {capability}",
        )


def _parameters(contract: Contract) -> Iterator[Remark]:
    known = {parameter.name: parameter for parameter in PARAMETERS}
    for name in contract.parameters:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": perhaps {close[0]}" if close else ""
            yield problem("contract", f"the parameter {name} is unknown to every checker{hint}")
    yield from _options(contract)
    retry = contract.parameters.get("retry")
    if retry is not None:
        try:
            delay_ms_min(str(retry), 1)
        except ValueError:
            yield problem(
                "contract",
                f"retry = {retry!r} is no policy: immediate, fixed:SECONDS, doubling:SECONDS, "
                "exponential:SECONDS or article",
            )
    for name in ("crash_first", "crash_later"):
        word = contract.parameters.get(name, "policy")
        if word not in CRASH_WORDS:
            yield problem("contract", f"{name} = {word!r} must be {' or '.join(CRASH_WORDS)}")


def _asked(contract: Contract) -> Sequence[str]:
    """Return the options of an enqueue; of a value that is no list nothing can be said."""
    found = contract.parameters.get("options", [*OPTIONS_ALL])
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else ()


def _options(contract: Contract) -> Iterator[Remark]:
    if "options" not in contract.parameters:
        asked = ", ".join(OPTIONS_ALL)
        yield note("contract", f"parameters.options is missing: a run asks enqueues for {asked}")
        return
    known = {*OPTIONS_ALL, *CAPABILITIES}
    unknown = sorted(name for name in _asked(contract) if name not in known)
    if unknown:
        yield problem(
            "contract",
            f"options has {', '.join(unknown)}, and a run asks for {', '.join(OPTIONS_ALL)} alone",
        )


def _edges(contract: Contract) -> Iterator[Remark]:
    edges = contract.edges
    if contract.promised("P7") and not edges:
        yield problem("contract", "P7 is promised, and [edges] is empty: nothing would be judged")
    if not edges:
        return
    if START not in edges:
        yield note("contract", "[edges] does not say in which state a job starts: start = [...]")
    reached = {state for states in edges.values() for state in states}
    lost = sorted(edges.keys() - reached - {START})
    if lost:
        yield problem("contract", f"no edge leads to {', '.join(lost)}, and edges lead from there")
    ends = {"succeeded", "deleted"}
    if contract.promised("P3") and not ends & reached:
        yield problem("contract", "P3 is promised, and no edge leads to succeeded or to deleted")


def _lease(target: Target) -> Iterator[Remark]:
    contract = target.contract
    lease_ms = contract.parameters.get("lease_ms")
    is_short = isinstance(lease_ms, int | float) and lease_ms <= HANDLER_MS_MAX
    if is_short and not keeps_history(target):
        yield note(
            "contract",
            f"lease_ms = {lease_ms} is shorter than the longest handler of a run "
            f"({HANDLER_MS_MAX} ms): fair only if the worker extends it meanwhile",
        )
    if contract.promised("P4") and lease_ms is None:
        yield note(
            "contract",
            "P4 is promised without lease_ms: then no time ends a lease, and every overlap of two "
            "handlers of a job is a violation",
        )
    if contract.promised("P6") == AT_MOST_ONCE and contract.promised("P17"):
        yield problem(
            "contract",
            'P6 = "at-most-once" and P17 contradict each other: a job whose worker was killed must '
            "not start again, and so never ends",
        )
