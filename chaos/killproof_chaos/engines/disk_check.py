"""One image after a power cut: opened by the target, recovered, and held against what was noted.

An image is checked once, without regard to the moment: the outcome says which of *all* notes it
does not honour. A point violates when one of those had been written by then.

The order matters. The target opens the file first, so that the recovery that happens is its own;
then the rows are read, its leases are taken back, and the rows are read again.
"""

import json
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof.core.clock import ManualClock
from killproof.core.host import Host, KernelLocks
from killproof_chaos.engines.disk_client import add_effects, hosts_queue
from killproof_evidence.contract import DELETED, TERMINAL, Contract
from killproof_evidence.evidence import payload_digest
from killproof_evidence.target import AuditMapping, JobRow, Target

#: Of an image: more prove nothing that these do not.
FINDINGS_MAX: Final = 20
#: Past every lease of the workload, so that each has run out after the cut.
AFTER_CUT_SECONDS: Final = 3_600.0
#: What a claimed job is no longer, once a delivery of it has ended.
ENDING: Final = frozenset({"nack", "release", "snooze", "refused"})
#: Of an image: a target that waits for ever has not opened it.
IMAGE_SECONDS_MAX: Final = 10.0
#: With less, an image that does not open may only have had no room.
ROOM_BYTES_MIN: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client knew: an operation that had returned, in the order of the notes."""

    f: str  #: enqueue, claim, ack, nack, release, snooze, cancel, replay
    job: str  #: the queue's id
    fence: int | None = None
    value: object = None
    asked: Mapping[str, Any] | None = None  #: of an enqueue: the job as asked for; of a nack: how


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A promise that an image breaks whatever had been noted."""

    promise: str
    job: str | None
    story: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is wrong with one image."""

    unhonoured: tuple[int, ...]  #: numbers of the notes that it does not honour, ascending
    broken: tuple[Broken, ...]
    opens: bool
    jobs: int  #: rows found
    checked: Mapping[str, int]  #: promise -> cases that this image held
    hangs: bool = False  #: it was not open in time
    #: ids of the rows, where rows go by themselves; None: a row that is missing is lost
    there: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job of an image."""

    id: str
    state: str
    fence: int | None = None
    key: str | None = None
    payload: str | None = None  #: JSON text
    forgiven: int | None = None  #: a replay makes it at least 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All that an image told."""

    before: Mapping[str, Row]  #: as the target found it
    after: Mapping[str, Row]  #: after its recovery
    recovered: bool  #: whether it has one that can be called
    unsound: tuple[Broken, ...]
    effects: Counter[str] | None  #: rows of the table of effects; None: they prove nothing
    counts: Mapping[str, int] | None  #: what the queue says of itself
    dead: tuple[JobRow, ...]


class VouchingLocks(KernelLocks):
    """The kernel's locks, on a file system that stands for a disk: it keeps what it was given.

    An image lies in memory because it is looked at for a millisecond. Durability was decided when
    it was rebuilt.
    """

    def refusal(self, path: str, durability: str) -> None:
        """Refuse no level."""


def read_told(text: bytes) -> Told | None:
    """Read a note; None when it is not an answer of the queue."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("job") is None:
        return None
    names = ("fence", "value", "asked")
    return Told(f=record["f"], job=str(record["job"]), **{name: record.get(name) for name in names})


class Checker:
    """Checks images of one target in one folder, over and over."""

    def __init__(
        self, target: Target, place: Path, told: Sequence[Told | None], *, database: str
    ) -> None:
        """Check in `place`, which is emptied for each image.

        Args:
            target: whose images they are.
            place: a folder of its own.
            told: all notes of the run.
            database: name of the SQLite file in an image.
        """
        self._target: Any = target
        self._place = place
        self._database = place / database
        self._told = told
        self._contract: Contract = target.contract
        self._asked: dict[str, Mapping[str, Any]] = {}  # Queue's id -> the job as asked for.
        for fact in told:
            if fact is not None and fact.f == "enqueue" and fact.asked is not None:
                self._asked.setdefault(fact.job, fact.asked)
        self._bodies: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._mapping: AuditMapping | None = target.audit
        self.spent: defaultdict[str, float] = defaultdict(
            float
        )  #: seconds on each part of the work

    def check(self, image: Mapping[str, bytes], *, prepared: bool = True) -> Outcome:
        """Lay the image out, open it, and say what is wrong with it.

        Args:
            image: the files by name.
            prepared: whether the queue had been made when the power was cut. Else it may be made
                again, as whoever was making it would.

        Raises:
            OSError: there is no room for images; it says nothing of the queue.
        """
        began = time.process_time()
        lay_out(self._place, image)
        self.spent["lay out"] += time.process_time() - began
        try:
            look = self._patient_look(image, prepared=prepared)
        except Exception as error:
            # Whatever the target raises on a file that a power cut left is the finding itself.
            return self._unopened(error)
        began = time.process_time()
        outcome = self._judged(look)
        self.spent["judge"] += time.process_time() - began
        return outcome

    def _patient_look(self, image: Mapping[str, bytes], *, prepared: bool) -> Look:
        """Let the target open, recover and tell; what takes too long is no opening.

        Raises:
            Exception: whatever the target raises.
        """
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, IMAGE_SECONDS_MAX)
        try:
            if prepared:
                return self._look()
            try:
                return self._look()
            except Exception:  # Half made: its maker begins again, and that must do.
                lay_out(self._place, image)
                self._make_again()
                return self._look()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _unopened(self, error: Exception) -> Outcome:
        status = os.statvfs(self._place)
        if status.f_bavail * status.f_frsize < ROOM_BYTES_MIN:
            raise OSError(f"no room for images in {self._place.parent}: make some") from error
        story = f"the file does not open after the cut: {type(error).__name__}: {error}"
        broken = Broken(promise="P16", job=None, story=story[:500])
        facts = range(len(self._told))
        lost = tuple(n for n in facts if self._told[n] is not None)[:FINDINGS_MAX]
        return Outcome(
            unhonoured=lost, broken=(broken,), opens=False, jobs=0, checked={"P16": 1, "P1": 1},
            hangs=isinstance(error, TimeoutError),
        )  # fmt: skip

    def _judged(self, look: Look) -> Outcome:
        """Hold what was seen against every promise; pure but for caches."""
        checked = Counter({"P1": 1, "P16": 1})
        found = [
            *look.unsound,
            *moves(look.before, look.after, self._contract),
            *keys(look.after),
            *self._effects(look, checked),
            *sums(look.before, look.after, look.counts, self._contract),
            *self._dead_letters(look, checked),
        ]
        checked["P7"] = len(look.before)
        checked["P12"] = sum(row.key is not None for row in look.after.values())
        checked["P14"] = int(look.recovered or look.counts is not None)
        return Outcome(
            unhonoured=tuple(self._unhonoured(look.before, look.after)),
            broken=tuple(found[:FINDINGS_MAX]),
            opens=True,
            jobs=len(look.before),
            checked=dict(checked),
            there=frozenset(look.before) if removes_rows(self._contract) else None,
        )

    def _make_again(self) -> None:
        if hosts_queue(self._target):
            with self._opened():  # It makes what is missing; `prepare` would want a real disk.
                pass
        else:
            self._target.prepare(self._place)
        if self._contract.promised("P6") == "transaction":
            add_effects(self._database)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Callable[[], bool]]]:
        """Open the image with the target; give it, and what it does after a crash."""
        if hosts_queue(self._target):
            # Another boot: no deadline of before means anything, each lease must be watched out.
            clock = ManualClock(ident="after the power cut")
            queue = self._target.open(self._place, Host(lock=VouchingLocks(), clock=clock))
        else:
            clock, queue = None, self._target.client(self._place)

        def recover() -> bool:
            reap = getattr(queue, "reap", None)
            if reap is None or clock is None:
                return False
            reap()
            clock.advance(AFTER_CUT_SECONDS)
            reap()
            return True

        with closing(queue):
            yield queue, recover

    def _look(self) -> Look:
        """Read all that the judgement needs, before and after the target's own recovery."""
        began = time.process_time()
        with self._opened() as (queue, recover):
            opened = time.process_time()
            with closing(sqlite3.connect(self._database, isolation_level=None)) as db:
                before = self._rows(db)
                recovered = recover()
                after = self._rows(db, payloads=False)
                read = time.process_time()
                unsound = tuple(whole(db))
                self.spent["integrity check"] += time.process_time() - read
                effects = self._effect_rows(db)
            counts = getattr(queue, "counts", None)
            look = Look(
                before=before, after=after, recovered=recovered, unsound=unsound, effects=effects,
                counts=None if counts is None else counts(),
                dead=self._dead_rows(after),
            )  # fmt: skip
        self.spent["open"] += opened - began
        self.spent["take back and read"] += read - opened
        return look

    def _effect_rows(self, db: sqlite3.Connection) -> Counter[str] | None:
        if self._contract.promised("P6") != "transaction":
            return None
        return Counter(job for (job,) in db.execute("SELECT job FROM chaos_effect"))

    def _dead_rows(self, rows: Mapping[str, Row]) -> tuple[JobRow, ...]:
        dead = {id_ for id_, row in rows.items() if row.state == "dead"}
        if not dead or not self._contract.promised("P13"):
            return ()
        return tuple(job for job in self._target.snapshot(self._place) if str(job.id) in dead)

    def _rows(self, db: sqlite3.Connection, *, payloads: bool = True) -> dict[str, Row]:
        mapping = self._mapping
        if mapping is None:
            return {
                str(row.id): Row(
                    id=str(row.id), state=row.state, fence=row.fence, key=row.key,
                    payload=json.dumps(row.payload, ensure_ascii=False), forgiven=row.forgiven,
                )
                for row in self._target.snapshot(self._place)
            }  # fmt: skip
        # The mapping's expressions are over NEW; here every row of the table is one.
        payload = mapping.payload if payloads else None
        columns = (
            mapping.id, mapping.state, mapping.fence, mapping.key, mapping.forgiven, payload
        )  # fmt: skip
        select = ", ".join(column or "NULL" for column in columns)
        query = f"SELECT {select} FROM {mapping.table} AS NEW"  # noqa: S608 - the adapter's words
        words = mapping.states
        return {
            str(id_): Row(
                id=str(id_), state=words.get(state, state), fence=fence, key=key, payload=payload,
                forgiven=forgiven,
            )
            for id_, state, fence, key, forgiven, payload in db.execute(query)
        }  # fmt: skip

    def _body(self, row: Row) -> tuple[Mapping[str, Any], str]:
        """Return a row's payload and its digest; the same text is decoded once."""
        text = row.payload or "null"
        found = self._bodies.get(text)
        if found is None:
            payload = json.loads(text)
            found = payload if isinstance(payload, dict) else {}, payload_digest(payload)
            self._bodies[text] = found
        return found

    def _unhonoured(self, before: Mapping[str, Row], after: Mapping[str, Row]) -> Iterator[int]:
        for number, fact in enumerate(self._told):
            if fact is not None and not self._honours(fact, before.get(fact.job), after):
                yield number

    def _honours(self, fact: Told, row: Row | None, after: Mapping[str, Row]) -> bool:
        if row is None:
            return False
        now = after.get(fact.job)
        if now is None and not self._contract.allows(row.state, None):
            return False
        if fact.f == "enqueue":
            asked = fact.asked or {}
            known = asked.get("digest")
            return known is None or known == self._body(row)[1]
        if fact.fence is not None and row.fence is not None and row.fence < fact.fence:
            return False
        if fact.f == "ack":
            return row.state == "succeeded" and (now is None or now.state == "succeeded")
        if fact.f == "cancel":
            return fact.value is not True or row.state == "cancelled"
        if fact.f == "replay":
            # Its new attempts may have ended, even in the dead letters: what it leaves is this.
            return fact.value is not True or row.forgiven is None or row.forgiven > 0
        if fact.f == "get":
            seen = fact.value.get("state") if isinstance(fact.value, dict) else None
            return seen != "succeeded" or row.state == "succeeded"
        if fact.f in ENDING:
            return row.state != "leased" or row.fence != fact.fence
        return True

    def _effects(self, look: Look, checked: Counter[str]) -> Iterator[Broken]:
        """P6 at level transaction: the effect in the table, and the ack, or neither."""
        if look.effects is None:
            return
        # By the harness's id: a key that is free again makes a second job of the same payload.
        named: dict[str, list[Row]] = {}
        for row in look.before.values():
            body, _ = self._body(row)
            if body.get("sink") == "table":
                named.setdefault(str(body.get("id")), []).append(row)
        for name in named.keys() | look.effects.keys():
            same, happened = named.get(name, []), look.effects[name]
            done = sum(row.state == "succeeded" for row in same)
            checked["P6"] += done > 0 or happened > 0
            if happened != done:
                states = ", ".join(f"job {row.id} is {row.state}" for row in same) or "no job is it"
                story = f"{name}: {states}, and its effect in the table happened {happened} times"
                yield Broken(promise="P6", job=same[0].id if same else None, story=story)

    def _dead_letters(self, look: Look, checked: Counter[str]) -> Iterator[Broken]:
        """P13: a dead job has its payload, its error, and one entry for each ended delivery."""
        for job in look.dead:
            checked["P13"] += 1
            id_ = str(job.id)
            asked = self._asked.get(id_, {}).get("digest")
            if asked is not None and payload_digest(job.payload) != asked:
                yield Broken(promise="P13", job=id_, story=f"dead job {id_} has another payload")
            if not job.error:
                yield Broken(promise="P13", job=id_, story=f"dead job {id_} has no error")
            if job.history is not None and len(job.history) != job.attempts:
                story = f"dead job {id_} ran {job.attempts} times and keeps {len(job.history)}"
                yield Broken(promise="P13", job=id_, story=story)


def _too_long(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"it is not open after {IMAGE_SECONDS_MAX:g} s")


def lay_out(place: Path, image: Mapping[str, bytes]) -> None:
    """Make the folder hold exactly these files."""
    if place.exists():
        for entry in os.scandir(place):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)
    else:
        place.mkdir(parents=True)
    for name, content in image.items():
        path = place / name
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            file.write(content)


def whole(db: sqlite3.Connection) -> Iterator[Broken]:
    """P16: SQLite finds the file whole, and every reference has its row.

    Raises:
        sqlite3.DatabaseError: it can not even look; the file is not whole.
    """
    (word,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if word != "ok":
        yield Broken(promise="P16", job=None, story=f"integrity_check says: {word}"[:300])
    loose = db.execute("PRAGMA foreign_key_check").fetchone()
    if loose is not None:
        yield Broken(promise="P16", job=None, story=f"foreign_key_check finds {loose}"[:300])


def moves(
    before: Mapping[str, Row], after: Mapping[str, Row], contract: Contract
) -> Iterator[Broken]:
    """P7: each state is one of the contract's, and recovery moves along its edges."""
    legal = states_of(contract)
    for id_, row in before.items():
        if legal and row.state not in legal:
            yield Broken(promise="P7", job=id_, story=f"job {id_} is in state {row.state!r}")
        now = after.get(id_)
        if now is not None and contract.edges and not contract.allows(row.state, now.state):
            story = f"recovery moved job {id_} from {row.state} to {now.state}"
            yield Broken(promise="P7", job=id_, story=story)


def removes_rows(contract: Contract) -> bool:
    """Say whether the contract lets the row of a job go."""
    return any(DELETED in news for news in contract.edges.values())


def states_of(contract: Contract) -> frozenset[str]:
    """Return every state that the contract's edges name; empty when it has none."""
    named = {old for old in contract.edges if old != "start"}
    named |= {new for news in contract.edges.values() for new in news if new != DELETED}
    return frozenset(named)


def keys(rows: Mapping[str, Row]) -> Iterator[Broken]:
    """P12: a key has one live job."""
    live = Counter(
        row.key for row in rows.values() if row.key is not None and row.state not in TERMINAL
    )
    for key, count in live.items():
        if count > 1:
            yield Broken(promise="P12", job=None, story=f"key {key!r} has {count} live jobs")


def sums(
    before: Mapping[str, Row],
    after: Mapping[str, Row],
    counts: Mapping[str, int] | None,
    contract: Contract,
) -> Iterator[Broken]:
    """P14: recovery makes and loses no job, and the queue counts what is there.

    A queue may tidy up when it is opened: what its contract lets go at that is not lost.
    """
    gone = {
        id_ for id_ in before.keys() - after.keys() if not contract.allows(before[id_].state, None)
    }
    changed = sorted(gone | (after.keys() - before.keys()))[:5]
    if changed:
        yield Broken(promise="P14", job=changed[0], story=f"recovery made or lost jobs {changed}")
    if counts is None:
        return
    told = {state: count for state, count in counts.items() if count}
    found = dict(Counter(row.state for row in after.values()))
    if told != found:
        yield Broken(promise="P14", job=None, story=f"it counts {told} and holds {found}")
