"""What each promise and each parameter of a contract means, and what it takes to judge it.

The texts stand in one place: `chaos init-target` writes them into a new contract, `chaos
lint-target` holds a target against them, and the page on targets prints them as its tables.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from killproof_evidence.contract import LEVELS
from killproof_evidence.judge import PROPERTIES

#: What a judgement may rest on, beyond what each target gives: enqueues, effects, the snapshot.
AUDIT: Final = "an audit mapping (level 1)"
HISTORY: Final = "a worker that records its claims and outcomes (level 3)"
DATABASE: Final = "`database`, the name of the file in the queue's folder"
CANCEL: Final = "a client that can cancel"
REPLAY: Final = "a client that can replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """How a promise is to be read by whoever thinks of making it."""

    number: str
    means: str  #: one sentence more than the judge's own
    evidence: tuple[str, ...] = ()  #: without which its verdict is `unknown`
    parameters: tuple[str, ...] = ()  #: likewise
    options: tuple[str, ...] = ()  #: of an enqueue, likewise
    capability: str | None = None  #: likewise; of `MixedTarget`


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a contract."""

    name: str
    means: str
    absent: str  #: what holds where the contract does not have it
    example: Any  #: as it stands in a new contract
    promises: tuple[str, ...]  #: that are judged by it


PROMISES: Final = (
    Promise(
        number="P1",
        means="what enqueue has returned for is there after a kill (process), or also after a "
        "power cut (power)",
    ),
    Promise(number="P2", means="no row and no run of a handler that no enqueue explains"),
    Promise(number="P3", means="a job that succeeded had a start and an effect of its handler"),
    Promise(
        number="P4",
        means="no second worker gets the job before the lease of the first has run out; with no "
        "history of claims it is read off handlers that overlap",
    ),
    Promise(
        number="P5",
        means="an ack, nack or extension under an old token is refused, and its caller is told",
        evidence=(HISTORY,),
    ),
    Promise(
        number="P6",
        means="transaction: a row that the ack's own transaction writes; key: a receiver that "
        "knows the job's key; at-most-once: no second start whatever happens; true: a second "
        "effect needs a fault that explains it",
    ),
    Promise(
        number="P7",
        means="each change of state is one of [edges], and what has ended stays ended",
        evidence=(AUDIT,),
    ),
    Promise(
        number="P8",
        means="starts are counted, those of dead workers included, and end at max_attempts",
        parameters=("max_attempts",),
    ),
    Promise(
        number="P9",
        means="a retry waits at least as long as the policy says",
        evidence=(AUDIT,),
        parameters=("retry",),
    ),
    Promise(
        number="P10",
        means="a job that is enqueued with a delay does not start before it is over",
        options=("delay",),
    ),
    Promise(
        number="P11",
        means="each claim takes the first job by priority, due time and id",
        evidence=(AUDIT, HISTORY),
        options=("priority",),
    ),
    Promise(
        number="P12",
        means="a second enqueue with the key of a live job makes no second job",
        evidence=(AUDIT,),
        options=("key",),
    ),
    Promise(
        number="P13",
        means="a dead job keeps its payload, its error and its count; a replay moves it once",
        evidence=(REPLAY,),
    ),
    Promise(
        number="P14",
        means="no change of a row is lost between two commits, nor between the last and the end",
        evidence=(AUDIT,),
    ),
    Promise(
        number="P15",
        means="once cancel has returned true the job is not started",
        evidence=(CANCEL,),
    ),
    Promise(
        number="P16",
        means="SQLite's integrity check passes, and nobody meets a lock error within busy_ms",
        evidence=(DATABASE,),
    ),
    Promise(number="P17", means="after the last fault every job ends by itself, within drain_ms"),
    Promise(
        number="P18",
        means="another worker has the job of a killed one within recovery_ms",
        evidence=(HISTORY,),
        parameters=("recovery_ms",),
    ),
    Promise(number="P19", means="no due job waits for its first start longer than starve_ms"),
    Promise(
        number="P20",
        means="the log, open files, threads, claims and empty polls stay below their bounds",
    ),
    Promise(
        number="P21",
        means="after SIGTERM a worker has ended within grace_ms, and its job is given back",
        evidence=(HISTORY,),
        parameters=("grace_ms",),
    ),
    Promise(
        number="P22",
        means="never more jobs of a kind at once than its limit, over all processes",
        evidence=(AUDIT,),
        capability="limits",
    ),
    Promise(
        number="P23",
        means="a step starts when all that it needs has succeeded",
        evidence=(AUDIT,),
        capability="workflow",
    ),
    Promise(
        number="P24",
        means="a copy made while workers run opens, and has each job acknowledged before it",
        evidence=(AUDIT,),
        capability="backup",
    ),
)

PARAMETERS: Final = (
    Parameter(
        name="options",
        means="what an enqueue can be asked for: priority, delay, key, max_attempts; a run asks "
        "for no others",
        absent="all four are asked for",
        example=[],
        promises=("P10", "P11", "P12"),
    ),
    Parameter(
        name="workers_max",
        means="worker processes at a time that the queue is made for; a run starts no more",
        absent="any number",
        example=1,
        promises=("P4", "P6"),
    ),
    Parameter(
        name="jobs_per_second",
        means="what its workers together get done on a slow machine, where that is less than 70 a "
        "second: a run offers no more, so that it ends with what it was offered",
        absent="70, or a quarter of that for each of workers_max",
        example=10,
        promises=("P17",),
    ),
    Parameter(
        name="lease_ms",
        means="how long a worker has a job without a sign of life; a run's longest handler takes "
        "1.6 s, so a lease that nobody extends must be longer",
        absent="no time ends a lease",
        example=3_000,
        promises=("P4", "P6"),
    ),
    Parameter(
        name="max_attempts",
        means="starts of a job in all, where an enqueue does not say another number",
        absent="only jobs that were given a number are bounded",
        example=5,
        promises=("P8", "P13"),
    ),
    Parameter(
        name="retry",
        means="the policy of a failed attempt: immediate, fixed:SECONDS, doubling:SECONDS, "
        "exponential:SECONDS (with jitter), article",
        absent="P9 is not judged",
        example="immediate",
        promises=("P9",),
    ),
    Parameter(
        name="crash_first",
        means="what follows the first crash of a worker: immediate, or policy",
        absent="immediate",
        example="immediate",
        promises=("P9",),
    ),
    Parameter(
        name="crash_later",
        means="what follows each further crash: immediate, or policy",
        absent="policy",
        example="policy",
        promises=("P9",),
    ),
    Parameter(
        name="recovery_ms",
        means="from the kill of a worker to the next claim of its job, while another is idle",
        absent="P18 is not judged",
        example=8_000,
        promises=("P18",),
    ),
    Parameter(
        name="grace_ms",
        means="what a worker gets between SIGTERM and its end, for the job in its hand",
        absent="P21 is not judged",
        example=10_000,
        promises=("P21",),
    ),
    Parameter(
        name="busy_ms",
        means="how long a caller waits for the write lock before it is told of it",
        absent="30000",
        example=10_000,
        promises=("P16",),
    ),
    Parameter(
        name="drain_ms",
        means="what the queue gets for its last jobs after the faults",
        absent="10000",
        example=10_000,
        promises=("P17",),
    ),
    Parameter(
        name="starve_ms",
        means="the longest wait of a due job for its first start, after the faults",
        absent="30000",
        example=30_000,
        promises=("P19",),
    ),
    Parameter(
        name="claims_per_job",
        means="claims for a job, on average",
        absent="6",
        example=6,
        promises=("P20",),
    ),
    Parameter(
        name="polls_per_second",
        means="claims that find nothing, of one worker in a second",
        absent="200",
        example=200,
        promises=("P20",),
    ),
    Parameter(
        name="wal_bytes",
        means="the largest size of the write-ahead log",
        absent="67108864",
        example=64 * 1024 * 1024,
        promises=("P20",),
    ),
    Parameter(
        name="open_files",
        means="open files of one process; without a bound only growth is judged",
        absent="no bound",
        example=64,
        promises=("P20",),
    ),
    Parameter(
        name="threads",
        means="threads of one process; without a bound only growth is judged",
        absent="no bound",
        example=16,
        promises=("P20",),
    ),
    Parameter(
        name="limits",
        means="by kind of job: {running} at once, {rate, burst} a second; set by the capability "
        "`limits`",
        absent="no kind is limited",
        example={},
        promises=("P11", "P19", "P22"),
    ),
    Parameter(
        name="limit_wait_ms",
        means="how long a job may wait while its limit has room",
        absent="5000",
        example=5_000,
        promises=("P22",),
    ),
    Parameter(
        name="schedules",
        means="by name: {every_ms, prefix} of jobs that come again; set by the capability "
        "`schedule`",
        absent="nothing comes again",
        example={},
        promises=("P12",),
    ),
)


def sentence_of(number: str) -> str:
    """Return the judge's own sentence for a promise."""
    return next(entry.sentence for entry in PROPERTIES if entry.number == number)


def words_of(number: str) -> str:
    """Return what may stand to the right of a promise."""
    words = ", ".join(f'"{word}"' for word in LEVELS.get(number, ()))
    if number == "P1":
        return words
    return f"{words}, true" if words else "true"


def contract_text(
    promises: Mapping[str, bool | str],
    parameters: Mapping[str, Any],
    edges: Mapping[str, tuple[str, ...]],
) -> str:
    """Return a contract as TOML with every promise in it, those that are not made as comments."""
    lines = ["[promises]", "# Judged is what stands here, and nothing else. Take out a # only for"]
    lines += ["# what your documents promise: one too many is a violation of your own making.", ""]
    for promise in PROMISES:
        value = promises.get(promise.number, False)
        lines += [f"# {sentence_of(promise.number)}:", *_folded(promise.means)]
        shown = _toml(value if value is not False else LEVELS.get(promise.number, (True,))[0])
        lines += [f"{'' if value is not False else '# '}{promise.number} = {shown}", ""]
    lines += ["[parameters]"]
    for parameter in PARAMETERS:
        made = parameter.name in parameters
        lines += _folded(f"{parameter.means}. Without it: {parameter.absent}.")
        shown = _toml(parameters.get(parameter.name, parameter.example))
        lines += [f"{'' if made else '# '}{parameter.name} = {shown}", ""]
    lines += ["[edges]", "# From which state a job may go to which. `start` is before its birth;"]
    lines += ["# `deleted`, on the right, says that its row may go."]
    lines += [f"{old} = {_toml(list(new))}" for old, new in edges.items()]
    return "\n".join(lines) + "\n"


def promise_table() -> Iterator[str]:
    """Yield the lines of a Markdown table of all promises."""
    yield "| | promise | which means | words | needs |"
    yield "|---|---|---|---|---|"
    for promise in PROMISES:
        needs = [*promise.evidence]
        needs += [f"the parameter `{name}`" for name in promise.parameters]
        needs += [f"the option `{name}`" for name in promise.options]
        needs += [f"the capability `{promise.capability}`"] if promise.capability else []
        yield (
            f"| {promise.number} | {sentence_of(promise.number)} | {promise.means} | "
            f"`{words_of(promise.number)}` | {', '.join(needs)} |"
        )


def parameter_table() -> Iterator[str]:
    """Yield the lines of a Markdown table of all parameters."""
    yield "| parameter | means | without it | judged by it |"
    yield "|---|---|---|---|"
    for parameter in PARAMETERS:
        yield (
            f"| `{parameter.name}` | {parameter.means} | {parameter.absent} | "
            f"{' '.join(parameter.promises)} |"
        )


def _folded(text: str) -> list[str]:
    """Return a text as lines of a comment."""
    return textwrap.wrap(text, 84, initial_indent="#   ", subsequent_indent="#   ")


def _toml(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value)
