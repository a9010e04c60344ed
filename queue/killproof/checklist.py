"""The production checklist: what a queue needs around it, checked where that can be seen.

`maintenance.doctor` looks at the file; this looks at the work on it.  Each line is verified, or
says how to bring it about where a program cannot see it.  It changes nothing and reads a bounded
number of rows, the latest.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from killproof import backup, libraries, limits_reading, metrics, pausing, presence
from killproof.core import barrier
from killproof.core.database import Transaction
from killproof.core.jobs import Queue
from killproof.maintenance import Check
from killproof.presence import Presence
from killproof.wording import count_of, moment, span

#: Jobs that are looked at: the latest.
JOBS_MAX: Final = 1_000
#: A backup older than two days is one that somebody forgot.
BACKUP_MS_MAX: Final = 2 * 86_400_000
#: A due job that waits longer than this while nobody works is worth a word.
WAITING_MS_MAX: Final = 60_000
#: Beyond this part of its open files a process is near the end of them.
OPEN_FILES_WARN: Final = 0.8
#: What container engines leave in their containers.
CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the file."""

    tx: Transaction
    path: str
    now_ms: int
    workers: tuple[Presence, ...]
    oldest_ms: int  #: how long the oldest due job has waited


def checks(queue: Queue) -> list[Check]:
    """Go through the checklist.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    oldest_ms = metrics.oldest_ms(queue)
    with queue.database.read() as tx:
        look = Look(
            tx=tx,
            path=queue.path,
            now_ms=queue.host.clock.now_ms(),
            workers=tuple(presence.workers(queue, tx)),
            oldest_ms=oldest_ms,
        )
        return [
            _volume(look),
            _claims(),
            _retries(look),
            _rescue(look),
            *_processes(look),
            _effects(look),
            _errors(look),
            _alert(look),
            _backups(look),
            *_limits(look, queue),
            *_payloads(look, queue),
            *_schedules(look),
            *_workflows(look),
        ]


def _volume(look: Look) -> Check:
    """The file must not lie in the layer of a container that is thrown away with it."""
    kind, _ = barrier.file_system(look.path)
    inside = any(mark.exists() for mark in CONTAINER_MARKS)
    if kind == "overlay" and inside:
        return Check(
            name="volume",
            status="warn",
            text="the file is in the container's own layer, which goes with the container",
            remedy="put it on a volume: docker run -v queue:/data, --db /data/queue.db",
        )
    text = f"on {kind or 'an unknown file system'}"
    text += ", mounted into the container" if inside else ", not in a container"
    return Check(name="volume", status="ok", text=text)


def _claims() -> Check:
    """Claims are transactions by construction: there is no other way to a lease."""
    text = "each claim is one immediate transaction, and is counted in it"
    return Check(name="claims", status="ok", text=text)


RETRIES: Final = """
    SELECT kind, count(*)
      FROM (SELECT kind, state, retry, max_attempts FROM job ORDER BY id DESC LIMIT :limit)
     WHERE state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')
       AND (retry = 'immediate' AND max_attempts > 1 OR max_attempts > 100)
     GROUP BY kind ORDER BY kind LIMIT 1"""


def _retries(look: Look) -> Check:
    """Retries without a delay, or without an end in sight, hammer whatever has failed."""
    found = look.tx.row(RETRIES, {"limit": JOBS_MAX})
    if found is not None:
        return Check(
            name="retries",
            status="warn",
            text=f"{found[1]!r} live jobs of kind {found[0]!r} have no delay, or over 100 tries",
            remedy="enqueue them with --retry exponential:BASE and a small --max-attempts",
        )
    text = "every live job that was looked at has a delay between attempts and a limit of them"
    return Check(name="retries", status="ok", text=text)


def _rescue(look: Look) -> Check:
    """Somebody must be there: to take back what the dead held, and to work."""
    living = [one for one in look.workers if one.lives is not False]
    stuck = sum(one.leases for one in look.workers if one.lives is False)
    if living:
        text = (
            f"{count_of(len(living), 'worker')} at work; any of them takes back what the dead hold"
        )
        return Check(name="rescue", status="ok", text=text)
    remedy = "start a worker: killproof work MODULE, or killproof systemd-unit MODULE"
    if stuck:
        text = f"{count_of(stuck, 'job')} held by dead workers, and nobody to take them back"
        return Check(name="rescue", status="warn", text=text, remedy=remedy)
    if look.oldest_ms > WAITING_MS_MAX:
        text = f"no worker runs, and a job has waited for {span(look.oldest_ms)}"
        return Check(name="rescue", status="warn", text=text, remedy=remedy)
    return Check(name="rescue", status="ok", text="no worker runs, and no job waits for long")


def _processes(look: Look) -> Iterator[Check]:
    """What the kernel tells of the workers' processes, where this user may ask.

    Such a number is only believed of a worker whose lock is held: a process id is used again.
    """
    pids = sorted({one.pid for one in look.workers if one.lives} - {os.getpid()})
    used = {pid: share for pid in pids if (share := _open_files(pid)) is not None}
    if not used:
        return
    for pid in pids:
        if (trouble := libraries.trouble(pid)) is not None:
            yield Check(
                name="libraries",
                status="warn",
                text=f"process {pid}: {trouble}; they do not see each other's locks",
                remedy=libraries.REMEDY,
            )
    pid, (now, limit) = max(used.items(), key=lambda item: item[1][0] / item[1][1])
    text = f"process {pid} has {now:,} of {limit:,} files open, no worker a larger part"
    if now > limit * OPEN_FILES_WARN:
        yield Check(
            name="descriptors",
            status="warn",
            text=text,
            remedy="look for a leak (ls -l /proc/PID/fd), or raise it: ulimit -n, LimitNOFILE=",
        )
    else:
        yield Check(name="descriptors", status="ok", text=text)


OPEN_FILES: Final = re.compile(r"^Max open files +([0-9]+)", re.MULTILINE)


def _open_files(pid: int) -> tuple[int, int] | None:
    """Return how many descriptors a process has and may have; None if nobody may know."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
        used = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    found = OPEN_FILES.search(limits)
    return None if found is None else (used, int(found[1]))


HAS_EFFECTS: Final = "SELECT 1 FROM killproof_schema WHERE component = 'effects'"

IN_DOUBT: Final = """
    SELECT count(*) FROM effect
     WHERE state = 'unknown'
        OR state = 'reserved' AND NOT EXISTS (SELECT 1 FROM job
                                               WHERE job.id = effect.job_id
                                                 AND job.fence = effect.fence
                                                 AND job.state = 'leased')"""


def _effects(look: Look) -> Check:
    """Which actions are dangerous only their author knows; what is in doubt the ledger knows."""
    if look.tx.row(HAS_EFFECTS) is None:
        return Check(
            name="effects",
            status="ok",
            text="no effect ledger yet: a job may run twice, so an action outside needs a key: "
            "context.effect(...) or context.effect_key; one in this file: context.completing()",
        )
    ((doubt,),) = cast(list[tuple[int]], look.tx.rows(IN_DOUBT))
    if doubt:
        return Check(
            name="effects",
            status="warn",
            text=f"{count_of(doubt, 'effect')} in doubt: whether it happened is not known here",
            remedy="look at the other side; killproof jobs --state held",
        )
    return Check(name="effects", status="ok", text="the effect ledger is in use, none in doubt")


INCOMPLETE: Final = """
    SELECT count(*)
      FROM (SELECT id, deliveries FROM job WHERE state = 'dead' AND finished_ms IS NOT NULL
             ORDER BY finished_ms DESC LIMIT :limit) AS latest
     WHERE deliveries > 0
       AND NOT EXISTS (SELECT 1 FROM attempt
                        WHERE job_id = latest.id AND error_class IS NOT NULL)"""


def _errors(look: Look) -> Check:
    """A dead letter without its error cannot be understood at two in the morning."""
    ((missing,),) = cast(list[tuple[int]], look.tx.rows(INCOMPLETE, {"limit": JOBS_MAX}))
    if missing:
        return Check(
            name="errors",
            status="warn",
            text=f"{count_of(missing, 'dead letter')} without any recorded error",
            remedy="another program has deleted rows of the table attempt: leave them to prune",
        )
    text = "every attempt keeps class, message and traceback; log lines carry job_id, kind, attempt"
    return Check(name="errors", status="ok", text=f"{text} and key (killproof work --log-format)")


DEAD: Final = """
    SELECT count(*) FROM job
     WHERE state = 'dead' AND finished_ms IS NOT NULL"""


def _alert(look: Look) -> Check:
    """Dead letters must reach a person."""
    ((dead,),) = cast(list[tuple[int]], look.tx.rows(DEAD))
    if dead:
        return Check(
            name="alert",
            status="warn",
            text=f"{count_of(dead, 'dead letter')} waiting for a person",
            remedy="killproof dead; then replay, or prune --dead",
        )
    text = "no dead letters; from cron: killproof status --alert dead --alert age=10min (exit 1)"
    return Check(name="alert", status="ok", text=text)


PAUSES: Final = "SELECT kind FROM throttle WHERE reason = :paused ORDER BY kind"


def _limits(look: Look, queue: Queue) -> Iterator[Check]:
    """What is closed until a person opens it, or rests after failures, must be known to be."""
    paused = [str(kind) for (kind,) in look.tx.rows(PAUSES, {"paused": pausing.PAUSED})]
    if paused:
        yield Check(
            name="pauses",
            status="warn",
            text=f"kind {paused[0]!r} is paused, and {len(paused) - 1} more: none of them starts",
            remedy=f"killproof resume {paused[0]}",
        )
    limits = limits_reading.read(queue, look.tx)
    shut = [
        (limit.name, gate)
        for limit in limits
        for gate in limit.gates
        if gate.rule == "breaker" or (gate.rule == "closed" and gate.until_ms is None)
    ]
    if shut:
        name, gate = shut[0]
        why = "its breaker is open" if gate.rule == "breaker" else f"closed: {gate.why}"
        yield Check(
            name="limits",
            status="warn",
            text=f"limit {name!r} lets nothing start ({why}), and {len(shut) - 1} more",
            remedy=f"killproof limits; killproof limits open {name!r}, if you know better",
        )
    elif limits:
        text = f"{count_of(len(limits), 'limit')}, no breaker open and none closed by hand"
        yield Check(name="limits", status="ok", text=text)


HAS_PAYLOADS: Final = "SELECT 1 FROM killproof_schema WHERE component = 'payloads'"

LATEST_USES: Final = """
    SELECT payload_file.sha256, bytes, job_id
      FROM payload_use JOIN payload_file USING (sha256)
     ORDER BY job_id DESC LIMIT :limit"""

PAYLOAD_FILES: Final = "SELECT count(*) FROM payload_file"


def _payloads(look: Look, queue: Queue) -> Iterator[Check]:
    """The file of each large payload must be there; whether it is whole takes longer to see."""
    if look.tx.row(HAS_PAYLOADS) is None:
        return
    from killproof.payloads import folder_of

    folder = folder_of(queue)
    uses = cast(list[tuple[str, int, int]], look.tx.rows(LATEST_USES, {"limit": JOBS_MAX}))
    lost = [job_id for name, size, job_id in uses if not folder.has(name, size)]
    if lost:
        yield Check(
            name="payloads",
            status="fail",
            text=f"the large payload of job {lost[0]} is missing, and {len(lost) - 1} more",
            remedy="killproof payloads check --whole; restore the files from a backup",
        )
        return
    text = f"the files of {count_of(len(uses), 'large payload')} are there; killproof payloads "
    text += "check --whole reads them"
    ((rows,),) = cast(list[tuple[int]], look.tx.rows(PAYLOAD_FILES))
    spare = len([name for name in folder.names() if not name.startswith(".")]) - rows
    if spare > 0:
        text += f"; {count_of(spare, 'file')} without a job: killproof payloads collect"
    yield Check(name="payloads", status="ok", text=text)


HAS_SCHEDULES: Final = "SELECT 1 FROM killproof_schema WHERE component = 'schedule'"

LATE_SCHEDULE: Final = """
    SELECT name, next_ms FROM job_schedule
     WHERE paused = 0 AND next_ms IS NOT NULL
     ORDER BY next_ms LIMIT 1"""


def _schedules(look: Look) -> Iterator[Check]:
    """Somebody must fire them."""
    if look.tx.row(HAS_SCHEDULES) is None:
        return
    row = look.tx.row(LATE_SCHEDULE)
    late_ms = 0 if row is None else look.now_ms - cast(int, row[1])
    if row is not None and late_ms > WAITING_MS_MAX:
        yield Check(
            name="schedules",
            status="warn",
            text=f"{row[0]!r} is due since {span(late_ms)} and nobody fires it",
            remedy="killproof work MODULE, or killproof schedules run, also once from cron",
        )
        return
    yield Check(name="schedules", status="ok", text="none is late")


HAS_RUNS: Final = "SELECT 1 FROM killproof_schema WHERE component = 'workflow'"

# Counted from the index by state; a failed run waits for a person, so there are few.

FAILED_RUNS: Final = """
    SELECT state, count(*), max(id) FROM workflow_run
     WHERE state IN ('failed', 'compensation_failed') GROUP BY state ORDER BY state"""


def _workflows(look: Look) -> Iterator[Check]:
    """A run that stopped half-way, or whose compensation did, needs a person."""
    if look.tx.row(HAS_RUNS) is None:
        return
    found = cast(list[tuple[str, int, int]], look.tx.rows(FAILED_RUNS))
    if not found:
        yield Check(name="workflows", status="ok", text="no run has failed")
        return
    text = ", ".join(f"{count_of(number, 'run')} {state}" for state, number, _ in found)
    yield Check(
        name="workflows",
        status="warn",
        text=text,
        remedy=f"killproof workflow show {found[0][2]}; killproof workflow replay RUN",
    )


LAST_BACKUP: Final = "SELECT value FROM killproof_setting WHERE name = :name"


def _backups(look: Look) -> Check:
    """The latest backup is written down in the file; it must be young, and still there."""
    remedy = "killproof backup FOLDER, from cron; a copy with cp loses what is in the log"
    row = look.tx.row(LAST_BACKUP, {"name": backup.SETTING})
    when, _, path = str(row[0]).partition(" ") if row is not None else ("", "", "")
    if not when.isdecimal():
        text = "no backup of this file was ever made by killproof"
        return Check(name="backup", status="warn", text=text, remedy=remedy)
    age_ms = look.now_ms - int(when)
    text = f"the latest backup is of {moment(int(when))}: {path}"
    if not os.path.exists(path):
        text = f"{text}, which is not there any more (moved elsewhere?)"
        return Check(name="backup", status="warn", text=text, remedy=remedy)
    if age_ms > BACKUP_MS_MAX:
        text = f"{text}, {span(age_ms)} ago"
        return Check(name="backup", status="warn", text=text, remedy=remedy)
    return Check(name="backup", status="ok", text=text)
