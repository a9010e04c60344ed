"""The plan of a run: everything that the seed decides, written out before anything starts.

`plan.json` holds the options, each producer's operations and the list of faults, in order. A
fault names its nemesis, when it is due and at which phase it shall hit; *which* process arrives
there first is for the machine to say. Real processes are not deterministic: the same seed gives
the same plan, and a plan narrows a search, but it does not repeat a schedule.

A token is the options in one word, to be pasted into `killproof chaos replay`.
"""

import base64
import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos import workload
from killproof_chaos.phases import IDLE
from killproof_evidence.contract import Contract

NEMESES: Final = ("kill", "pause", "term", "handler", "lock", "clock", "io")
#: Those of a run that asks for none: the others need a C compiler (docs/decisions.md 17).
NEMESES_DEFAULT: Final = ("kill", "pause", "term", "handler", "lock")
#: A worker process whose name begins so has several slots, where the target offers that; of so many
#: workers one has.
DISPATCHER: Final = "d"
WORKERS_PER_DISPATCHER: Final = 4
#: So many workers keep up with the usual rate of jobs, also where each has to wait for the disk.
BUSY_WORKERS: Final = 4
MIXES: Final = ("full", "plain")
#: A run ends after so many times the seconds asked for, whatever has hit by then; on a machine so
#: slow that new places are still being hit, after at most the second.
STRETCH: Final = 3
STRETCH_MAX: Final = 8
TERMS_PER_SECOND: Final = 0.4
LOCKS_PER_SECOND: Final = 0.15
#: At least so many kills, and this share of the random ones, wait until a peer is idle.
SPARE_KILLS_MIN: Final = 5
SPARE_SHARE: Final = 0.25
#: A foreign program holds the write lock for longer than the default lease of 500 ms.
LOCK_MS: Final = (550, 700)
#: The wall clock is set back so often, by one hour, and forward again after so long. Shorter than
#: the recovery that queues declare: a retry that waits for the clock is not a lost one.
STEPS_PER_SECOND: Final = 0.2
STEPS_MIN: Final = 3
STEP_MS: Final = 3_600_000
STEP_LENGTH_MS: Final = (600, 1_500)
#: Each call fails with each error once in so many seconds, and at least once.
IO_ROUND_SECONDS: Final = 10
IO_ERRORS: Final = ("EIO", "ENOSPC")
#: The files that a call fails on, in turn. What is `any` is rare on every single file.
IO_FILES: Final = {
    "open": ("database", "log", "index", "side"),
    "write": ("log", "database", "side"),
    "sync": ("log", "database"),
    "truncate": ("any",),
}
TOKEN_PREFIX: Final = "kp1-"


class PlanInvalid(ValueError):
    """The plan or token cannot be used; the message names the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for."""

    target: str = "killproof"
    workers: int = 8
    producers: int = 2
    seconds: float = 20.0
    kills: int = 200
    pauses: int = 40
    seed: int = 1
    nemeses: tuple[str, ...] = NEMESES_DEFAULT
    jobs: str | None = None  #: path of the user's jobs
    mix: str = "full"  #: full: with all that the target has besides jobs; plain: jobs alone

    def argv(self) -> list[str]:
        """Return the command line that asks for this run."""
        words = ["killproof", "chaos", "run", "--target", self.target, "--seed", str(self.seed)]
        default = Options()
        for name in ("workers", "producers", "seconds", "kills", "pauses"):
            value = getattr(self, name)
            if value != getattr(default, name):
                words += [f"--{name}", f"{value:g}"]
        if self.nemeses != default.nemeses:
            words += ["--nemesis", ",".join(self.nemeses) or "none"]
        if self.jobs is not None:
            words += ["--jobs", self.jobs]
        if self.mix != default.mix:
            words += ["--mix", self.mix]
        return words

    def token(self) -> str:
        """Return the options in one word."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        return TOKEN_PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Options":
        """Read the options of a plan or token.

        Raises:
            ValueError, TypeError, KeyError: an option is missing, unknown or of no use.
        """
        options = cls(**{**record, "nemeses": tuple(record["nemeses"])})
        lowest = {"workers": 1, "producers": 1, "kills": 0, "pauses": 0, "seed": 0}
        for name, low in lowest.items():
            value = getattr(options, name)
            if not isinstance(value, int) or value < low:
                raise ValueError(f"{name} is {value!r}")
        if options.mix not in MIXES:
            raise ValueError(f"mix is {options.mix!r}")
        if not options.seconds > 0:
            raise ValueError(f"seconds is {options.seconds!r}")
        if not set(options.nemeses) <= set(NEMESES):
            raise ValueError(f"nemeses are {options.nemeses!r}")
        return options

    @classmethod
    def of_token(cls, token: str) -> "Options":
        """Read a token.

        Raises:
            PlanInvalid: it is no token of this version; definite.
        """
        try:
            packed = base64.urlsafe_b64decode(token.removeprefix(TOKEN_PREFIX))
            return cls.of_record(json.loads(zlib.decompress(packed)))
        except (ValueError, TypeError, KeyError, zlib.error):
            raise PlanInvalid(
                f"{token[:40]!r} is neither a store nor a token: give the folder of a run, or the "
                f"word that begins with {TOKEN_PREFIX}"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planned fault."""

    fault: str  #: kill, kill-all, pause, term, lock, clock or io
    at_ms: int  #: not before this time after the start
    phase: str | None = None  #: where it shall hit; None: wherever the victim is
    draw: float = 0.0  #: picks the victim among those that are busy, 0 to 1
    length_ms: int = 0  #: of a lock, or of the time for which the clock is back
    spare: bool = False  #: kill one that works while a peer is idle: recovery is measured so
    step_ms: int = 0  #: by which the clock is set back
    call: str = ""  #: that fails: open, write, sync or truncate
    file: str = ""  #: it fails on: database, log, index, side or any
    error: str = ""  #: EIO or ENOSPC


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is decided before the run."""

    options: Options
    operations: Sequence[Sequence[workload.Operation]]  #: for each producer
    faults: Sequence[Fault] = field(default_factory=tuple)
    capabilities: Sequence[str] = ()  #: what is asked of the queue besides jobs

    @property
    def workers(self) -> list[str]:
        """Names of the worker processes."""
        count, several = self.options.workers, 0
        if "dispatcher" in self.capabilities:
            several = -(-count // WORKERS_PER_DISPATCHER) if count > 1 else 0
        plain = [f"w{number}" for number in range(1, count - several + 1)]
        return plain + [f"{DISPATCHER}{number}" for number in range(1, several + 1)]

    @property
    def producers(self) -> list[str]:
        """Names of the processes that have operations: producers, and who maintains the file."""
        names = [f"p{number}" for number in range(1, self.options.producers + 1)]
        return names if len(self.operations) == len(names) else [*names, "m1"]

    def write(self, path: Path) -> None:
        """Write plan.json, the same bytes for the same plan.

        A payload of the user's is written once, however many jobs repeat it: a file of a few
        large ones would otherwise make a plan of gigabytes, which every producer has to read.
        """
        bodies: list[Any] = []
        numbers: dict[int, int] = {}

        def packed(operation: workload.Operation) -> dict[str, Any]:
            row = operation.record()
            if "body" in row.get("job", ()):
                body = row["job"]["body"]
                number = row["job"]["body"] = numbers.setdefault(id(body), len(bodies))
                if number == len(bodies):
                    bodies.append(body)
            return row

        record = {
            "schema": 1,
            "options": asdict(self.options),
            "processes": self.workers + self.producers,
            "capabilities": list(self.capabilities),
            "faults": [
                {
                    name: value
                    for name, value in asdict(fault).items()
                    if value not in (None, 0, False, "")
                }
                for fault in self.faults
            ],
            "operations": {
                name: [packed(operation) for operation in operations]
                for name, operations in zip(self.producers, self.operations, strict=True)
            },
            "bodies": bodies,
        }
        text = json.dumps(record, separators=(",", ":"))
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read plan.json.

        Raises:
            PlanInvalid: there is no plan, or not one of this version; definite.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            for rows in record["operations"].values():
                for row in rows:
                    if "body" in row.get("job", ()):
                        row["job"]["body"] = record["bodies"][row["job"]["body"]]
            return cls(
                options=Options.of_record(record["options"]),
                operations=[
                    [workload.Operation.of_record(row) for row in rows]
                    for rows in record["operations"].values()
                ],
                faults=[Fault(**{"at_ms": 0, **row}) for row in record["faults"]],
                capabilities=tuple(record.get("capabilities", ())),
            )
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise PlanInvalid(
                f"{str(path)!r} is no plan ({error}): give the folder of a run"
            ) from None


def make(
    options: Options,
    phases: Sequence[str],
    jobs: Sequence[dict[str, Any]] = (),
    capabilities: Sequence[str] = (),
    contract: Contract | None = None,
) -> Plan:
    """Expand the options into a plan.

    Args:
        options: with the seed.
        phases: the sync points that the target has; each is aimed at once for each nemesis.
        jobs: the user's jobs; empty: made up from the seed.
        capabilities: what is asked of the queue besides jobs.
        contract: of the queue; it is asked for nothing that the contract says it has not.
    """
    given = {} if contract is None else contract.parameters
    share = 1.0
    if (most := given.get("workers_max")) is not None:
        options = replace(options, workers=min(options.workers, most))
        share = min(1.0, most / BUSY_WORKERS)
    if (rate := given.get("jobs_per_second")) is not None:
        share = min(share, rate / workload.JOBS_PER_SECOND)
    source = random.Random(f"faults {options.seed}")
    faults: list[Fault] = []
    for name, count in (("kill", options.kills), ("pause", options.pauses)):
        if name in options.nemeses and count > 0:
            faults += _spread(name, count, phases, options.seconds, source)
    if "kill" in options.nemeses and options.kills > 0:
        spare = max(SPARE_KILLS_MIN, int((options.kills - len(phases)) * SPARE_SHARE))
        # Who never says that it has nothing to do is not waited for: nobody would see it idle.
        faults += _even("kill", spare, options, source, spare=IDLE in phases)
        # In the middle, when the log is long: the next to open the file has to recover it.
        faults.append(Fault(fault="kill-all", at_ms=int(options.seconds * 500)))
    if "term" in options.nemeses:
        faults += _even("term", max(3, int(options.seconds * TERMS_PER_SECOND)), options, source)
    if "lock" in options.nemeses:
        faults += _even("lock", max(1, int(options.seconds * LOCKS_PER_SECOND)), options, source)
    if "clock" in options.nemeses:
        faults += _steps(options, source)
    if "io" in options.nemeses:
        faults += _failures(options, source)
    return Plan(
        options=options,
        operations=workload.make(
            seed=options.seed,
            producers=options.producers,
            seconds=options.seconds * STRETCH,
            trouble="handler" in options.nemeses,
            delays="clock" in options.nemeses,
            jobs=jobs,
            capabilities=capabilities,
            fit=workload.fitting(contract or Contract(promises={"P6": "transaction"})),
            share=share,
        ),
        capabilities=tuple(capabilities),
        faults=sorted(faults, key=lambda fault: fault.at_ms),
    )


def _spread(
    name: str, count: int, phases: Sequence[str], seconds: float, source: random.Random
) -> list[Fault]:
    """Aim once at each phase, and fill up to the count with faults at random.

    The count is a least one: a phase that nobody aims at would be missed for certain.
    """
    aims: list[str | None] = list(phases)
    aims += [None] * max(0, count - len(aims))
    source.shuffle(aims)
    gap_ms = seconds * 1_000 / len(aims)
    return [
        Fault(
            fault=name,
            at_ms=int(gap_ms * (number + source.random())),
            phase=phase,
            draw=round(source.random(), 4),
        )
        for number, phase in enumerate(aims)
    ]


def _steps(options: Options, source: random.Random) -> list[Fault]:
    """Set the clock back in the first half of each of several equal parts of the run."""
    count = max(STEPS_MIN, int(options.seconds * STEPS_PER_SECOND))
    gap_ms = options.seconds * 1_000 / count
    return [
        Fault(
            fault="clock",
            at_ms=int(gap_ms * (number + source.random() / 2)),
            length_ms=min(source.randrange(*STEP_LENGTH_MS), int(gap_ms / 2)),
            step_ms=STEP_MS,
        )
        for number in range(count)
    ]


def _failures(options: Options, source: random.Random) -> list[Fault]:
    """Let each call fail with each error, on its files in turn, in an order of the seed's."""
    rounds = max(1, int(options.seconds / IO_ROUND_SECONDS))
    cells = [
        (call, files[(turn * len(IO_ERRORS) + number) % len(files)], error)
        for turn in range(rounds)
        for call, files in IO_FILES.items()
        for number, error in enumerate(IO_ERRORS)
    ]
    source.shuffle(cells)
    gap_ms = options.seconds * 1_000 / len(cells)
    return [
        Fault(
            fault="io",
            at_ms=int(gap_ms * (number + source.random())),
            call=call,
            file=file,
            error=error,
        )
        for number, (call, file, error) in enumerate(cells)
    ]


def _even(
    name: str, count: int, options: Options, source: random.Random, *, spare: bool = False
) -> list[Fault]:
    gap_ms = options.seconds * 1_000 / count
    return [
        Fault(
            fault=name,
            at_ms=int(gap_ms * (number + source.random())),
            draw=round(source.random(), 4),
            length_ms=source.randrange(*LOCK_MS) if name == "lock" else 0,
            spare=spare,
        )
        for number in range(count)
    ]
