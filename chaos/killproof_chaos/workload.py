"""What the producers ask for: jobs from a seed, or the user's own from a JSONL file.

A workload is a list of operations for each producer, in order, with the time at which each is
due. It is a pure function of its arguments, so the same seed gives the same list. A handler does
what the job's script says; where the seed gives a job no trouble, it works for a few milliseconds.

A line of the user's file is an object with `kind` and `payload`, and optionally `priority`,
`delay` (seconds), `key`, `max_attempts`, `script` and `sink`. The file is repeated, with fresh
ids and keys, for as long as the run needs jobs.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from killproof_evidence.contract import Contract

#: Enough to keep some worker busy and some idle: recovery is measured with idle peers.
JOBS_PER_SECOND: Final = 70
#: What a queue may have besides jobs, and what a run then asks of it (see `mix`).
CAPABILITIES: Final = ("backup", "dispatcher", "limits", "schedule", "spill", "workflow")
#: What a maintenance process does, what it needs, and when: the first backup comes when there is
#: something to copy. The files of payloads that nobody needs are collected between the backups.
CHORES: Final = (("backup", "backup", (1_500, 2_500)), ("collect", "spill", (700, 900)))
#: A run of a workflow, and a job that remembers its steps, for each so many jobs.
RUN_EVERY: Final = 24
MEMO_EVERY: Final = 18
STEP: Final = "step"  #: the kind of both
LONG_STEP: Final = "sleep:0.15"
MEMO: Final = ("fetch", "parse", "store")
#: A job whose payload is in a file, for each so many: what it takes, and the length of its text.
SPILL_EVERY: Final = 20
SPILLED_WORK: Final = "sleep:0.2"
SPILLED_BYTES: Final = (5_000, 40_000)
#: Jobs of a kind that has a rate, all at once every three seconds: more than it lets through then,
#: also on a slow machine, and fewer than it lets through until the next.
CLUMP: Final = "clump"
CLUMP_EVERY: Final = 3 * JOBS_PER_SECOND
CLUMP_JOBS: Final = 6
#: A chain, a diamond, and a fan-out with its join.
GRAPHS: Final[tuple[dict[str, tuple[str, ...]], ...]] = (
    {"a": (), "b": ("a",), "c": ("b",)},
    {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
    {"a": (), "b": ("a",), "c": ("a",), "d": ("a",), "e": ("b", "c", "d")},
)
KINDS: Final = ("webhook", "report", "scrape", "backup", "import")
SINKS: Final = ("log", "table", "http")
WORDS: Final = frozenset({"ok", "raise", "permanent", "exit", "abort", "unjsonable"})
TIMED_WORDS: Final = frozenset({"sleep", "hang"})
#: Larger than the 200 KiB of the mix; a queue that takes larger payloads wants a file's path.
LINE_BYTES_MAX: Final = 1024 * 1024
OPTIONS: Final = frozenset(
    {"kind", "payload", "priority", "delay", "key", "max_attempts", "script", "sink"}
)
#: A job that is enqueued twice with its key, or cancelled, must still wait when that comes.
WAITING_MS: Final = 1_200
#: Jobs come in bursts: in the lull between two of them workers are idle, and somebody is there to
#: take over at once what a killed peer held.
PERIOD_MS: Final = 2_000
BURST_SHARE: Final = 0.65
#: A maintenance job reaps now and then; a target that cannot is not asked.
REAP_EVERY: Final = 12
#: The first jobs of a run with trouble, so that also the shortest meets each kind of it, whatever
#: else befalls a worker: a word stands twice, for the attempt that a kill takes. Who aborts, or
#: returns what JSON cannot hold, does so after the effect: the next attempt makes it again.
SURE: Final = (
    (("abort", "abort", "sleep:0.002"), "http"),
    (("unjsonable", "unjsonable", "sleep:0.002"), "http"),
    (("exit", "exit", "sleep:0.002"), "log"),
    (("hang:1.6", "sleep:0.002"), "log"),
    (("permanent",), "log"),
)
#: Where the wall clock is stepped: each so many jobs, one waits so long. Short of `WAITING_MS`.
DELAYED_EVERY: Final = 5
DELAY_MS: Final = (800, 1_150)
#: In place of a length: the payload is the user's.
USERS_BODY: Final = -1
#: What an enqueue may be asked for besides its payload.
OPTIONS_ALL: Final = ("priority", "delay", "key", "max_attempts")
#: UTF-8 of one to four bytes, so that a payload's length in characters is not its length in bytes.
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz äöüßéñçø 日本語中文한국 Ωλжщ 🙂🚀"


class JobsInvalid(ValueError):
    """The user's jobs cannot be used; the message names the line, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job to enqueue."""

    id: str  #: the harness's own name of the job, unique in the run
    kind: str
    priority: int = 5
    delay_ms: int = 0
    key: str | None = None
    max_attempts: int = 5
    script: tuple[str, ...] = ("ok",)  #: one word for each attempt; the last repeats
    sink: str = "log"
    needs: tuple[str, ...] | None = None  #: steps of the same run; None: it is no step of one
    memo: tuple[str, ...] = ()  #: what its handler does in steps whose results are remembered
    spill: bool = False  #: its payload goes into a file of its own
    snooze: bool = False  #: the first delivery is put off, where the target can; no attempt
    body_bytes: int = USERS_BODY  #: length of the text that fills the payload
    body: Any = None  #: the user's payload, where there is one

    def payload(self) -> dict[str, Any]:
        """Return what the handler gets."""
        users = self.body_bytes == USERS_BODY
        body = self.body if users else text_of(self.id, self.body_bytes)
        payload = {"id": self.id, "script": list(self.script), "sink": self.sink, "body": body}
        if self.needs is not None:
            payload["needs"] = list(self.needs)
        if self.memo:
            payload["memo"] = list(self.memo)
        if self.spill:
            payload["proven"] = True  # Its handler says what it was given.
        return payload | {"snooze": True} if self.snooze else payload

    def options(self) -> dict[str, Any]:
        """Return the options of the target's enqueue that are not the default."""
        named: dict[str, Any] = {"priority": self.priority, "max_attempts": self.max_attempts}
        if self.delay_ms:
            named["delay"] = self.delay_ms / 1_000
        if self.key is not None:
            named["key"] = self.key
        if self.spill:
            named["spill"] = True
        return named

    def summary(self) -> dict[str, Any]:
        """Return what the history keeps: everything but the text."""
        record = asdict(self)
        record.pop("body")
        record["script"] = list(self.script)
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that a producer does."""

    f: str  #: enqueue, cancel, replay, reap, start, backup or collect
    at_ms: int  #: due so long after the start of the run
    job: Job | None = None  #: to enqueue
    of: str | None = None  #: harness id of the job to cancel or replay
    run: str | None = None  #: of a workflow, to start
    steps: tuple[Job, ...] = ()  #: of that run

    def record(self) -> dict[str, Any]:
        """Return the operation as it stands in plan.json."""
        record: dict[str, Any] = {"f": self.f, "at_ms": self.at_ms}
        if self.job is not None:
            record["job"] = _written(self.job)
        if self.run is not None:
            record |= {"run": self.run, "steps": [_written(job) for job in self.steps]}
        if self.of is not None:
            record["of"] = self.of
        return record

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Operation":
        """Read an operation of plan.json."""
        job = record.get("job")
        return cls(
            f=record["f"],
            at_ms=record["at_ms"],
            job=None if job is None else _read_job(job),
            of=record.get("of"),
            run=record.get("run"),
            steps=tuple(_read_job(step) for step in record.get("steps", ())),
        )


def _written(job: Job) -> dict[str, Any]:
    """Return what of a job is not the default."""
    default = Job(id="", kind="")
    return {
        each.name: value
        for each in fields(Job)
        if (value := getattr(job, each.name)) != getattr(default, each.name)
    }


def _read_job(record: dict[str, Any]) -> Job:
    lists = {n: tuple(record[n]) for n in ("script", "needs", "memo") if record.get(n) is not None}
    return Job(**record | lists)


def text_of(name: str, length: int) -> str:
    """Return a text of so many characters, the same for the same name."""
    if length <= 0:
        return ""
    block = "".join(random.Random(name).choices(LETTERS, k=min(length, 512)))
    return (block * (length // len(block) + 1))[:length]


def make(
    *,
    seed: int,
    producers: int,
    seconds: float,
    trouble: bool,
    delays: bool = False,
    jobs: Sequence[dict[str, Any]] = (),
    capabilities: Sequence[str] = (),
    fit: Callable[[Job], Job] = lambda job: job,
    share: float = 1.0,
) -> list[list[Operation]]:
    """Return the operations of each producer, and those of a maintenance process if there are any.

    Args:
        seed: the same seed, the same operations.
        producers: among how many the jobs are dealt.
        seconds: for how long there must be jobs; the run may end earlier.
        trouble: whether handlers raise, hang, exit, abort and return what JSON cannot hold.
        delays: whether at every moment some job shall wait for its time, also on a slow machine.
        jobs: the user's jobs as `read_jobs` returns them; empty: made up.
        capabilities: what else is asked of the queue, of CAPABILITIES.
        fit: takes from each job what the queue has not; what follows on the job depends on it.
        share: of the usual rate: a queue that is made for one worker gets a worker's part.
    """
    source = random.Random(f"workload {seed}")
    lists: list[list[Operation]] = [[] for _ in range(producers)]
    per_second = JOBS_PER_SECOND * share
    gap_ms = 1_000 / per_second
    for number in range(int(seconds * per_second)):
        at_ms = _in_burst(number * gap_ms)
        name = f"j{number}"
        job = _users(jobs, number, name, source, trouble) if jobs else _mixed(name, source, trouble)
        scripted = bool(jobs) and "script" in jobs[number % len(jobs)]
        if trouble and number < 2 * len(SURE) and not scripted:
            script, sink = SURE[number % len(SURE)]  # Twice: a kill may take the enqueue itself.
            job = replace(job, script=script, sink=sink, priority=0, delay_ms=0, max_attempts=5)
        elif delays and number % DELAYED_EVERY == 0 and not jobs:
            job = replace(job, delay_ms=source.randrange(*DELAY_MS), snooze=False)
        job = fit(job)
        operations = lists[number % producers]
        operations.append(Operation(f="enqueue", at_ms=at_ms, job=job))
        if number % REAP_EVERY == 0:
            operations.append(Operation(f="reap", at_ms=at_ms))
        operations.extend(_follow(job, at_ms, source))
        if "workflow" in capabilities:
            for operation in _workflows(number, at_ms, trouble, seed):
                one, steps = operation.job, tuple(map(fit, operation.steps))
                operations.append(replace(operation, job=one and fit(one), steps=steps))
        if "spill" in capabilities and number % SPILL_EVERY == 2:
            operations.append(Operation(f="enqueue", at_ms=at_ms, job=fit(_spilled(number, seed))))
        if "limits" in capabilities and number % CLUMP_EVERY == CLUMP_JOBS:
            operations.extend(_clump(number, at_ms))
    for operations in lists:
        operations.sort(key=lambda operation: operation.at_ms)
    maintenance = _maintenance(seconds, capabilities)
    return [*lists, maintenance] if maintenance else lists


def options_of(contract: Contract) -> frozenset[str]:
    """Return the options that an enqueue of the queue has; a contract without a list: all."""
    return frozenset(contract.parameters.get("options", OPTIONS_ALL)) | {"spill"}


def fitting(contract: Contract) -> Callable[[Job], Job]:
    """Return what takes from a job all that the queue has not, so that it is not judged on that.

    A contract whose parameters list the `options` of an enqueue is asked for no others. A row in
    the transaction of the ack is made only where that is promised; elsewhere the effect is a line
    of the log. A queue that ends each job, but does not bound how often a job may take its worker
    with it, gets no job that does so for ever.
    """
    has = options_of(contract)
    other: dict[str, Any] = {}
    for option, field, default in (
        ("priority", "priority", 5),
        ("delay", "delay_ms", 0),
        ("key", "key", None),
        ("max_attempts", "max_attempts", contract.parameters.get("max_attempts", 5)),
    ):
        if option not in has:
            other[field] = default
    has_rows = contract.promised("P6") == "transaction"
    spares = bool(contract.promised("P17")) and not contract.promised("P8")

    def fit(job: Job) -> Job:
        sink = job.sink if has_rows or job.sink != "table" else "log"
        script = (*job.script, "ok") if spares and job.script[-1] == "exit" else job.script
        return replace(job, sink=sink, script=script, **other)

    return fit


def _workflows(number: int, at_ms: int, trouble: bool, seed: int) -> list[Operation]:
    """Return what goes through workflows: a run, or a job whose handler remembers its steps.

    The draws are its own, so that the other jobs are the same with and without it.
    """
    source = random.Random(f"workflow {seed} {number}")
    found = []
    if number % RUN_EVERY == 0:
        run = f"r{number}"
        # The first two fail for certain, for a kill may take a start; of the others the first step
        # is long enough to be killed in.
        first = ("permanent",) if trouble and number <= RUN_EVERY else (LONG_STEP,)
        steps = tuple(
            Job(
                id=f"{run}.{step}",
                kind=STEP,
                priority=source.choice((2, 5, 7)),
                max_attempts=source.choice((4, 5)),
                script=_script(source, trouble) if needs else first,
                sink=source.choices(SINKS, weights=(60, 25, 15))[0],
                needs=tuple(f"{run}.{need}" for need in needs),
                body_bytes=20,
            )
            for step, needs in source.choice(GRAPHS).items()
        )
        found.append(Operation(f="start", at_ms=at_ms, run=run, steps=steps))
    if number % MEMO_EVERY == 1:
        job = Job(
            id=f"m{number}",
            kind=STEP,
            memo=MEMO,
            script=("raise", "ok") if trouble and source.random() < 0.3 else ("ok",),
            body_bytes=20,
        )
        found.append(Operation(f="enqueue", at_ms=at_ms, job=job))
    return found


def _spilled(number: int, seed: int) -> Job:
    """Return a job whose payload is too large for its row, and which can be killed at its work.

    Its key is its name: the row does not show the payload.
    """
    source = random.Random(f"spilled {seed} {number}")
    name = f"s{number}"
    return Job(
        id=name,
        kind=source.choice(("webhook", STEP)),
        key=name,
        script=("raise", SPILLED_WORK) if source.random() < 0.2 else (SPILLED_WORK,),
        sink=source.choice(SINKS),
        spill=True,
        body_bytes=source.randrange(*SPILLED_BYTES),
    )


def _clump(number: int, at_ms: int) -> list[Operation]:
    """Return jobs that are urgent, short and many, so that only their rate keeps them waiting."""
    return [
        Operation(
            f="enqueue",
            at_ms=at_ms,
            job=Job(
                id=f"c{number}.{each}",
                kind=CLUMP,
                priority=0,
                script=("sleep:0.002",),
                body_bytes=20,
            ),
        )
        for each in range(CLUMP_JOBS)
    ]


def _maintenance(seconds: float, capabilities: Sequence[str]) -> list[Operation]:
    """Return what somebody does to the queue now and then who puts no job in."""
    found = []
    for f, needed, (first, gap) in CHORES:
        if needed in capabilities:
            found += [Operation(f=f, at_ms=at) for at in range(first, int(seconds * 1_000), gap)]
    return sorted(found, key=lambda operation: operation.at_ms)


def _in_burst(at_ms: float) -> int:
    """Move a moment of an even stream to its place in the burst of its period."""
    period, offset = divmod(at_ms, PERIOD_MS)
    return int(period * PERIOD_MS + offset * BURST_SHARE)


def _follow(job: Job, at_ms: int, source: random.Random) -> list[Operation]:
    """Return what the producer does to the job later: enqueue it again, cancel it, replay it."""
    if job.delay_ms >= WAITING_MS and job.key is not None and source.random() < 0.5:
        return [Operation(f="enqueue", at_ms=at_ms + 40, job=job)]
    if job.delay_ms >= WAITING_MS and job.key is None:
        return [Operation(f="cancel", at_ms=at_ms + source.randrange(30, 900), of=job.id)]
    if set(job.script) <= {"permanent", "raise"} and source.random() < 0.5:
        return [Operation(f="replay", at_ms=at_ms + 1_500, of=job.id)]
    if source.random() < 0.01:
        # Most come too late, as in life; the queue must say so and leave the job alone.
        return [Operation(f="cancel", at_ms=at_ms + 5, of=job.id)]
    return []


def _mixed(name: str, source: random.Random, trouble: bool) -> Job:
    delay_ms = 0
    draw = source.random()
    if draw < 0.06:
        delay_ms = source.randrange(WAITING_MS, WAITING_MS + 600)
    elif draw < 0.16:
        delay_ms = source.randrange(50, 800)
    size = 20 if source.random() < 0.3 else int(20 * 10 ** source.uniform(0, 1.8))
    if source.random() < 0.01:
        size = source.randrange(20_000, 130_000)
    return Job(
        id=name,
        kind=source.choice(KINDS),
        priority=source.choices((0, 2, 5, 7, 9), weights=(1, 2, 10, 2, 1))[0],
        delay_ms=delay_ms,
        key=f"{name}-key" if source.random() < (0.4 if delay_ms >= WAITING_MS else 0.1) else None,
        max_attempts=source.choice((3, 4, 5)),
        script=_script(source, trouble),
        sink=source.choices(SINKS, weights=(60, 25, 15))[0],
        snooze=trouble and source.random() < 0.03,
        body_bytes=size,
    )


def _script(source: random.Random, trouble: bool) -> tuple[str, ...]:
    """Return the words of a job's attempts: mostly a few milliseconds of work."""
    work = f"sleep:{source.randrange(1, 9) / 1_000}"
    draw = source.random()
    if draw < 0.04:
        # Long enough that the heartbeat must extend the lease, and that a stop must release it.
        return (f"sleep:{source.randrange(450, 900) / 1_000}",)
    if not trouble or draw >= 0.20:
        return (work,)
    scripts = (
        (40, ("raise", work)),
        (15, ("raise", "raise", work)),
        (12, ("raise",)),
        (6, ("permanent",)),
        (10, ("exit", work)),
        (8, ("abort", work)),
        (2, ("exit",)),
        (7, ("hang:1.6", work)),
        (8, ("unjsonable", work)),
    )
    return source.choices([s for _, s in scripts], weights=[w for w, _ in scripts])[0]


def _users(
    jobs: Sequence[dict[str, Any]], number: int, name: str, source: random.Random, trouble: bool
) -> Job:
    row = jobs[number % len(jobs)]
    turn = number // len(jobs)
    key = row.get("key")
    script = row.get("script")
    return Job(
        id=name,
        kind=row["kind"],
        priority=row.get("priority", 5),
        delay_ms=round(row.get("delay", 0) * 1_000),
        key=key if key is None or turn == 0 else f"{key}#{turn + 1}",
        max_attempts=row.get("max_attempts", source.choice((3, 4, 5))),
        script=tuple(script) if script else _script(source, trouble),
        sink=row.get("sink", source.choices(SINKS, weights=(60, 25, 15))[0]),
        body=row["payload"],
    )


def read_jobs(path: Path) -> list[dict[str, Any]]:
    """Read and check the user's jobs.

    Raises:
        JobsInvalid: the file cannot be read, is empty, or a line of it is wrong; definite.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise JobsInvalid(
            f"--jobs {str(path)!r} cannot be read ({error.strerror}): give a JSONL file"
        ) from None
    jobs = [_read_line(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line]
    if not jobs:
        raise JobsInvalid(f"--jobs {str(path)!r} holds no job: write one JSON object a line")
    return jobs


def _read_line(where: str, line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise JobsInvalid(
            f"{where}: {len(line)} bytes: a job may have {LINE_BYTES_MAX}; enqueue its file's path"
        )
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
        # A lone surrogate passes json.loads and only fails when the queue stores it.
        # A number beyond the range of a double, such as 1e999, is read as infinity.
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise JobsInvalid(f"{where}: not JSON ({error}): write one JSON object a line") from None
    if not isinstance(row, dict):
        raise JobsInvalid(f"{where}: {line[:40].decode(errors='replace')}: not an object")
    for name in row:
        if name not in OPTIONS:
            raise JobsInvalid(f"{where}: option {name!r} is unknown: use {_listed(OPTIONS)}")
    for name, check, remedy in CHECKS:
        if (name in row or name in {"kind", "payload"}) and not check(row.get(name, _MISSING)):
            value = "missing" if name not in row else repr(row[name])[:60]
            raise JobsInvalid(f"{where}: {name} is {value}: {remedy}")
    return row


_MISSING: Final = object()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_seconds(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 86_400  # type: ignore[operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200


def _is_script(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_word(word) for word in value)


def _is_word(word: object) -> bool:
    if not isinstance(word, str):
        return False
    name, _, seconds = word.partition(":")
    if name in TIMED_WORDS:
        try:
            return 0 <= float(seconds) <= 60
        except ValueError:
            return False
    return word in WORDS


CHECKS: Final = (
    ("kind", _is_text, "give a text of 1 to 200 characters"),
    ("payload", lambda value: value is not _MISSING, "give any JSON value"),
    ("priority", lambda value: _is_whole(value, 0, 9), "give 0 (urgent) to 9"),
    ("delay", _is_seconds, "give seconds, 0 to 86400"),
    ("key", _is_text, "give a text of 1 to 200 characters"),
    ("max_attempts", lambda value: _is_whole(value, 1, 100), "give 1 to 100"),
    ("script", _is_script, f"give a list of {_listed(WORDS)}, sleep:SECONDS or hang:SECONDS"),
    ("sink", lambda value: value in SINKS, f"give {', '.join(SINKS)}"),
)
