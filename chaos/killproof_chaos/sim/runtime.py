"""The runtime: actors as greenlets in one thread, and every switch between them a choice.

An actor runs until it comes to a *point*: before each SQL statement, after each commit (the
database has done it, the caller has not heard), before each effect, at each sleep and wait. There
the scheduler is asked what happens next: an actor goes on, or a fault happens. Nothing else can
switch, so a run is a function of the choices and of nothing else.

Time is virtual. It stands still while anybody can run, jumps to the next wake-up when nobody can,
and passes otherwise only as a fault that the scheduler chooses. A stopped process is therefore an
actor that is not chosen while time passes.

A *life* is one process or thread: crashing a process ends all lives of its root. Its connections
are rolled back first, as the kernel's end of a process does, and then its greenlet is unwound by an
exception; whatever clean-up code that meets finds every seam refusing, so nothing of it happens.
"""

import asyncio.events
import marshal
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

#: Where the virtual clocks begin; the wall clock is some moment of 2023, the other 1,000 s of life.
#: No whole second: a queue that cuts off the milliseconds would else be right by chance.
WALL_MS: Final = 1_700_000_000_600
START_NS: Final = 1_000_000_000_000
#: A root's letter has a capital, and one more life is the stage's own.
ACTORS_MAX: Final = 25
#: Decisions in one run, far more than any scenario needs: a run that goes on so long never ends.
STEPS_MAX: Final = 20_000
#: How long a caller waits for a lock whose holder will never give it back, in ns.
LOCK_WAIT_NS: Final = 10_000_000_000
#: A sleep is never shorter, so that no loop of sleeps stands still, in ns.
SLEEP_NS_MIN: Final = 1_000
WALL_STEP_MS: Final = 3_600_000

#: When a record of the evidence is: something begins, something ends, or neither.
ALONE, BEGINS, ENDS = range(3)
MASK: Final = (1 << 64) - 1
#: Where an object lies, in the text of an error; it is elsewhere in every run.
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}\b")

#: REFUSED is WANTS_LOCK or BLOCKED when the limit of waiting has passed.
READY, WANTS_LOCK, BLOCKED, REFUSED, WAITING, ENDED = range(6)

#: What can be chosen: the letter of an actor, which goes on; its capital, and its process crashes;
#: `-` and its letter, and its wake-up is lost; or one of these. No shell needs quotes for them.
PASS, WALL_FORWARD, WALL_BACK, LOST = "+", "^", "_", "-"


class Crashed(BaseException):
    """Thrown into an actor whose process has died; not an Exception, so that few catch it."""


class Unrepeatable(BaseException):
    """The same choices did not lead to the same run, so nothing that was explored is known.

    Not an Exception, for it is raised in an actor's name too, whose code must not catch it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How many faults of each kind a schedule may hold."""

    crashes: int = 0
    passes: int = 0  #: times that the clock passes the length of a lease though actors could run
    wall_steps: int = 0  #: steps of the wall clock by an hour, forward or back
    lost: int = 0  #: wake-ups that do not arrive; the sleeper has only its time limit then


@dataclass(slots=True, kw_only=True)
class Event:
    """One line of a trace. The answer is filled in when the database has given it."""

    step: int  #: number of the choice that led here
    t_ms: int  #: virtual time since the start
    actor: str
    operation: str  #: of the history, such as `ack`; empty outside
    what: str  #: statement, invoke, ok, fail, info, start, effect, end, sleep, crash, pass ...
    text: str = ""
    values: object = None
    answer: object = None

    def line(self) -> str:
        """Return the event as one line of text, the same for the same run on every machine."""
        parts = [f"{self.step:4d} {self.t_ms:8d} ms {self.actor:<10} {self.what:<9}"]
        parts += [" ".join(self.text.split())] if self.text else []
        parts += [repr(self.values)] if self.values else []
        parts += [f"-> {self.answer!r}"] if self.answer is not None else []
        return "  ".join(parts)


class Held(Protocol):
    """What a process holds that its death takes from it."""

    def drop(self) -> None:
        """Roll back what is uncommitted, without a word."""

    def look(self) -> None:
        """Learn the schema anew, for it may have been put back."""

    def close(self) -> None:
        """Give it back for good."""


class Life:
    """One process of a run, or one thread of it."""

    def __init__(self, index: int, name: str, *, root: "Life | None" = None) -> None:
        """Make a life that has not begun."""
        self.index = index
        self.name = name
        self.letter = chr(ord("a") + index) if index < 26 else f"z{index}"
        self.crash = self.letter.upper()
        self.pid = 1_001 + index
        self.root = root or self
        self.held: list[Held] = []
        self.can_crash = True
        #: Where it runs. A root keeps it for all runs: a new one costs some calls of the kernel.
        self.greenlet: greenlet | None = None
        #: What it does in this run; None when it has done it.
        self.function: Callable[[], None] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the last run; what is held stays open for the next."""
        self.state = READY
        self.wake_ns: int | None = None
        self.woken = False
        self.signal = ""
        self.is_dead = False
        self.refused = False
        self.has_begun = False
        self.operation = ""
        #: Points passed inside the open write transaction without a word to the outside; None: out.
        self.inside: int | None = None
        #: What others, or a judge, can see of the whole process: commits, records and signals.
        #: Counted at the root, for a crash ends all its threads.
        self.deeds = 0
        #: Statements of the process that may have rows left to read, and the commits that they see.
        self.unread: dict[int, int] = {}
        #: A hash of everything that this life has been told since it began.
        self.seen = self.index


class Scheduler(Protocol):
    """Decides what happens next. It may keep state over runs; each run begins with `begin`."""

    def begin(self, runtime: "Runtime") -> bool:
        """Prepare the next run; False: there is nothing left to explore."""

    def choose(self, runtime: "Runtime", options: Sequence[str], *, is_free: bool) -> str | None:
        """Choose one of the options; None cuts the run off.

        Args:
            runtime: for its step, its state and its budgets.
            options: labels; the first is the default.
            is_free: the actor that ran can not go on, so choosing another is no preemption.
        """


class Runtime:
    """One run after another of the same actors."""

    def __init__(
        self, names: Sequence[str], *, jump_ns: int, faults: Faults, shares_memory: bool = False
    ) -> None:
        """Prepare for actors of these names.

        Args:
            names: of the actors, in the order in which they run by default.
            jump_ns: how much time passes at once when the scheduler lets it.
            faults: the budgets of every run.
            shares_memory: actors may tell each other things that the runtime does not see.

        Raises:
            ValueError: there are more actors than letters.
        """
        if len(names) > ACTORS_MAX:
            raise ValueError(f"{len(names)} actors: a scenario has {ACTORS_MAX} at most")
        self.roots = [Life(index, name) for index, name in enumerate(names)]
        self.lives: list[Life] = list(self.roots)
        self.jump_ns = jump_ns
        self.faults = faults
        self._actors_share = shares_memory
        self.scheduler: Scheduler | None = None
        self.hides = ""  #: a text to leave out of traces and errors: the folder of the file
        self.sqlite_ns = 0
        #: Until this step the scheduler takes the default, whatever it could have: it is not asked.
        self.idle_until = 0
        self.keeps_trace = False
        self.quiet = True
        #: The statements of a run, by operation and text, with their first values; None: not kept.
        self.asked: dict[tuple[str, str], Any] | None = None
        self.reset()

    def reset(self) -> None:
        """Go back to the beginning of time."""
        self.lives = list(self.roots)
        if self.asked is not None:
            self.asked.clear()
        for life in self.roots:
            life.reset()
        self.main = getcurrent()
        self.current: Life | None = None
        self._following: Life | None = None
        self.writer: Held | None = None  #: who holds SQLite's write lock
        self.now_ns, self.wall_ms = START_NS, WALL_MS
        self.step = 0
        self.switches = 0
        self.solo = False
        #: Lives of this run share memory that no hash holds: equal states may have unequal futures.
        self.shares_memory = self._actors_share
        self.stopped = ""
        self.choices: list[tuple[int, str]] = []
        self.left = self.faults
        self._faults_left = any((self.left.crashes, self.left.passes, self.left.wall_steps))
        self.trace: list[Event] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.errors: list[tuple[str, str]] = []
        #: They count what a fault can come before or after: whoever reads the clock or is recorded
        #: with its time; whoever asks whether somebody lives, or begins something.
        self.clock_mark = self.death_mark = 0
        self.arrivals = 0  #: the event count that idle workers sleep on
        self.commits = 0  #: a hash of all committed changes, in their order
        self.changed_schema = False  #: a statement may have changed it: what is not a plain write
        self._before = self._moment = self._together = 0

    # Running.

    def run(self, functions: Sequence[Callable[[], None]], scheduler: Scheduler) -> None:
        """Run the actors until all have ended, nothing can go on, or the scheduler cuts it off."""
        self.scheduler, self.main = scheduler, getcurrent()
        self.quiet = False
        for life, function in zip(self.roots, functions, strict=True):
            self._prepare(life, function)
        following = self._decide(None)
        while following is not None:
            self._resume(following)
            following, self._following = self._following, None
            if following is None and not self.stopped:
                self.current = None
                following = self._decide(None)
        left = [life for life in self.lives if life.state != ENDED]
        if left and not self.stopped:
            self.stopped = "hung"
        for life in left:
            self._unwind(life)

    def spawn(self, function: Callable[[], None]) -> Life:
        """Start a thread of the current process, such as one of an executor.

        Raises:
            Crashed: the dead start nothing.
        """
        parent = self._speak()
        self.shares_memory = True
        life = Life(len(self.lives), f"{parent.name}.{len(self.lives)}", root=parent.root)
        life.pid = parent.root.pid
        life.can_crash = False
        life.seen = hash((parent.seen, len(self.lives)))
        self.lives.append(life)
        self._prepare(life, function)
        return life

    def life(self) -> Life:
        """Return whose turn it is."""
        assert self.current is not None, "only an actor comes to a point"
        return self.current

    @property
    def is_inside(self) -> bool:
        """Whether a switch here can show nothing that one at the last point could not.

        An actor that holds the write lock and tells nobody anything commutes with all others: they
        can not write, and do not see what it has not committed. So a switch (or its own crash)
        inside its transaction is as good as one right after the transaction began.
        """
        return self.current is not None and (self.current.inside or 0) > 1

    def point(self, *, wants_lock: bool = False) -> None:
        """Let the scheduler choose who goes on.

        Args:
            wants_lock: what comes next needs SQLite's write lock, so it can not go on without.

        Raises:
            Crashed: this process has died meanwhile.
        """
        life = self.current
        assert life is not None, "only an actor comes to a point"
        if life.is_dead:
            raise Crashed
        if self.quiet or self.solo:
            return
        unread = life.root.unread
        # Rows that it has not fetched yet are of the moment at which the statement began.
        life.seen = hash((life.seen, 1, *unread.values())) if unread else hash((life.seen, 1))
        if life.inside is not None:
            life.inside += 1
        life.refused = False
        if self.step + 1 < self.idle_until and (self.writer is None or not wants_lock):
            self.step += 1  # The default is to go on.
            return
        life.state = WANTS_LOCK if wants_lock else READY
        self._yield(life)

    def block(self) -> bool:
        """Wait until another life has ended a transaction; False: the limit of waiting passed."""
        life = self.life()
        if self.quiet or self.solo or life.refused:
            life.refused = False
            return False
        life.state, life.woken = BLOCKED, False
        self._yield(life)
        return True

    def sleep(self, seconds: float) -> None:
        """Sleep until the virtual clock has moved on by so much."""
        wait_ns = max(round(seconds * 1e9), SLEEP_NS_MIN)
        if self.quiet:
            self.advance(wait_ns)
        else:
            self.wait(wait_ns)

    def wait(self, wait_ns: int | None, *, signal: str = "") -> bool:
        """Wait to be woken, for so many ns at most; say whether somebody did.

        Args:
            wait_ns: None waits for ever.
            signal: what it waits for; such a wake-up may be lost, if the budget allows it.
        """
        life = self.life()
        if life.is_dead:
            raise Crashed
        assert not self.quiet, "nobody is there to wake anybody"
        if self.solo:
            if wait_ns is not None:
                self.advance(wait_ns)
            return False
        life.seen = hash((life.seen, 2, tuple(life.root.unread.values())))
        life.state, life.woken, life.signal = WAITING, False, signal
        self.clock_mark += 1
        life.wake_ns = None if wait_ns is None else self.now_ns + wait_ns
        if self.keeps_trace:
            limit = "" if wait_ns is None else f"{wait_ns / 1e9:g} s"
            self.note("wait" if signal else "sleep", f"{signal} {limit}".strip())
        self._yield(life)
        life.wake_ns, woken, life.woken, life.signal = None, life.woken, False, ""
        life.seen = hash((life.seen, woken))
        return woken

    def wake(self, life: Life) -> None:
        """Wake a life that waits.

        Raises:
            Crashed: the dead wake nobody.
        """
        self._speak()
        if life.state == WAITING:
            life.woken = True

    def notify(self, signal: str) -> None:
        """Wake all that wait for this now; nobody else will ever know of it.

        Raises:
            Crashed: the dead tell nobody anything.
        """
        self._speak()
        self.note("notify", signal)
        for life in self.lives:
            if life.signal == signal:
                self.wake(life)

    def _speak(self) -> Life:
        """Return whose turn it is, and take note that it tells another life something.

        What it does from here on does not commute with what it did before: a switch after this word
        is another than one at the beginning of its transaction, and so is its crash.
        """
        life = self.life()
        if life.is_dead:
            raise Crashed
        life.inside = None
        life.root.deeds += 1
        return life

    def transaction_ended(self) -> None:
        """Let those try again that met a lock."""
        for life in self.lives:
            if life.state == BLOCKED:
                life.woken = True

    def fail(self, name: str, error: BaseException) -> None:
        """Note an exception that nobody expected, and who met it."""
        text = self.plain(f"{type(error).__name__}: {error}")
        self.errors.append((name, text))
        self._before = hash((self._before, name, text))

    # What is told.

    def observe(self, *facts: object) -> None:
        """Take note that the current life was told something."""
        life = self.current
        if life is not None:
            life.seen = hash((life.seen, facts))

    def told_clock(self, now: int) -> int:
        """Take note that the current life was told what a clock says, and return it."""
        self.clock_mark += 1
        life = self.current
        if life is not None:
            life.seen = hash((life.seen, now))
        return now

    def record(
        self,
        file: str,
        record: dict[str, Any],
        moment: int = ALONE,
        *,
        since: int | None = None,
    ) -> None:
        """Put a record of the evidence on file; its time is the clock and its own number.

        Args:
            file: its path in a store.
            record: without its time.
            moment: whether something begins or ends with it. What began before what had ended is
                evidence; in which order two things began, or two ended, is not, and no checker
                asks.
            since: when it began, ns, if that was earlier; the actor was told so by `told_clock`.

        Raises:
            Crashed: the dead write nothing, though their code may have made another error of it.
        """
        life = self.current
        if life is not None:
            if life.is_dead:
                raise Crashed
            life.inside = None
            life.root.deeds += 1
        self.clock_mark += 1
        if moment != ENDS:
            self.death_mark += 1
        now_ns, events = self.now_ns, self.events
        mark = hash((file, marshal.dumps(record, 2), now_ns, since))
        if moment != self._moment or moment == ALONE:
            self._before = hash((self._before, self._moment, self._together))
            self._moment, self._together = moment, mark
        else:
            self._together = (self._together + mark) & MASK
        record["t"] = now_ns + len(events) if since is None else since
        events.append((file, record))

    @property
    def order(self) -> int:
        """A hash of the events in their order, as far as that is evidence."""
        return hash((self._before, self._moment, self._together))

    def note(self, what: str, text: str = "", values: object = None, answer: object = None) -> None:
        """Put a line into the trace, if one is kept."""
        if not self.keeps_trace:
            return
        life = self.current
        self.trace.append(
            Event(
                step=self.step,
                t_ms=(self.now_ns - START_NS) // 1_000_000,
                actor=life.name if life is not None else "-",
                operation=life.operation if life is not None else "",
                what=what,
                text=self.plain(text),
                values=values,
                answer=answer,
            )
        )

    def plain(self, text: str) -> str:
        """Leave the place of the file and of objects out of a text: they differ in every run."""
        if self.hides:
            text = text.replace(self.hides, "")
        return _ADDRESS.sub("0x...", text)

    def advance(self, nanoseconds: int) -> None:
        """Let time pass on both clocks."""
        before = self.now_ns // 1_000_000
        self.now_ns += nanoseconds
        self.clock_mark += 1
        self.death_mark += 1
        self.wall_ms += self.now_ns // 1_000_000 - before

    @property
    def true_ms(self) -> int:
        """What the wall clock would say if nobody had stepped it."""
        return WALL_MS + (self.now_ns - START_NS) // 1_000_000

    def set_clock(self, offset_ms: int) -> None:
        """Step the wall clock, so that it is ahead of the truth by so much."""
        true_ms = self.true_ms
        if self.wall_ms == true_ms + offset_ms:
            return
        step = {"wall_ms": true_ms, "before_ms": self.wall_ms - true_ms, "offset_ms": offset_ms}
        step["t_end"] = self.now_ns + len(self.events)  # As of the record: nothing lies between.
        self.wall_ms = true_ms + offset_ms
        self.record("nemesis.jsonl", {"fault": "clock", "hit": True, **step})

    def state(self) -> int:
        """Return a hash of all that can matter from here on; equal states have equal futures.

        What an actor will do is a function of what it was told. What the database holds is a
        function of the commits in their order, and of what is uncommitted, which belongs to the
        actors. What a judge will say of the past is a function of the events in their order.
        """
        lives = tuple((life.seen, life.state, life.wake_ns, life.woken) for life in self.lives)
        current = -1 if self.current is None else self.current.index
        return hash((current, lives, self.order, self.commits, self.now_ns, self.wall_ms))

    # Choosing.

    def _decide(self, current: Life | None) -> Life | None:
        """Return who goes on; None: nobody can, or the run is cut off."""
        while not self.stopped:
            # Most are ready, and most of the time of a search is spent in lines like this one.
            runnable = [
                life
                for life in self.lives
                if (state := life.state) == READY or (state != ENDED and self._can_run(life))
            ]
            if not runnable:
                if self._let_time_pass():
                    continue
                return None
            self.step += 1
            if self.step > STEPS_MAX:
                self.stopped = "steps"
                return None
            is_free = current is None or current not in runnable
            default = runnable[0] if is_free else current
            assert default is not None
            chosen: Life | None = default
            if self.step >= self.idle_until and (
                len(runnable) > 1 or self._faults_left or self.left.lost
            ):
                chosen = self._choose(default, runnable, is_free=is_free)
            if chosen is None:
                if current is not None and current.state == ENDED:
                    current = self.current = None
                continue
            self.switches += chosen is not current
            chosen.state = READY
            self.current = chosen
            return chosen
        return None

    def _choose(self, default: Life, runnable: list[Life], *, is_free: bool) -> Life | None:
        """Ask the scheduler; None: a fault happened instead, or the run is cut off."""
        first = default.letter
        options = [first, *[life.letter for life in runnable if life is not default]]
        if self._faults_left or self.left.lost:
            options += self._faults()
        if len(options) == 1:
            return default
        assert self.scheduler is not None
        label = self.scheduler.choose(self, options, is_free=is_free)
        if label is None:
            self.stopped = "cut"
            return None
        if label == first:
            return default
        self.choices.append((self.step, label))
        for life in runnable:
            if life.letter == label:
                return life
        self._happen(label)
        return None

    def _can_run(self, life: Life) -> bool:
        """Say whether one can go on that is not simply ready."""
        state = life.state
        if state == WANTS_LOCK:
            return self.writer is None
        if state == BLOCKED:
            return life.woken
        if state == WAITING:
            return life.woken or (life.wake_ns is not None and life.wake_ns <= self.now_ns)
        return state == REFUSED

    def _let_time_pass(self) -> bool:
        """Jump to the next wake-up, or end a wait for a lock that nobody will give back."""
        wakes = [life.wake_ns for life in self.lives if life.state == WAITING and life.wake_ns]
        if wakes:
            self.advance(min(wakes) - self.now_ns)
            return True
        stuck = [life for life in self.lives if life.state in (WANTS_LOCK, BLOCKED)]
        if not stuck:
            return False
        self.advance(LOCK_WAIT_NS)
        for life in stuck:
            life.state, life.refused = REFUSED, True
        return True

    # Faults.

    def _faults(self) -> list[str]:
        left, found = self.left, []
        if left.crashes:
            found += [
                life.crash
                for life in self.roots
                if life.can_crash and life.has_begun and life.state != ENDED
            ]
        if left.passes:
            found.append(PASS)
        if left.wall_steps:
            found += [WALL_FORWARD, WALL_BACK]
        if left.lost:
            found += [LOST + life.letter for life in self.lives if life.woken and life.signal]
        return found

    def _happen(self, label: str) -> None:
        """Let a fault happen."""
        if self.current is not None:
            self.current.inside = None  # What it has asked inside may not be so any more.
        left = self.left
        crashes, passes, wall_steps, lost = left.crashes, left.passes, left.wall_steps, left.lost
        if label[0].isupper():
            crashes -= 1
            self.crash(next(life for life in self.roots if life.crash == label))
        elif label[0] == LOST:
            lost -= 1
            next(life for life in self.lives if LOST + life.letter == label).woken = False
            self.note("lost", label)
        elif label == PASS:
            passes -= 1
            self.advance(self.jump_ns)
            self.record("nemesis.jsonl", {"fault": "pass", "hit": True})
            self.note("pass", f"{self.jump_ns / 1e9:g} s")
        else:
            wall_steps -= 1
            ahead_ms = self.wall_ms - self.true_ms
            self.set_clock(ahead_ms + (WALL_STEP_MS if label == WALL_FORWARD else -WALL_STEP_MS))
            self.note("clock", "an hour forward" if label == WALL_FORWARD else "an hour back")
        self.left = Faults(crashes=crashes, passes=passes, wall_steps=wall_steps, lost=lost)
        self._faults_left = bool(crashes or passes or wall_steps)

    def crash(self, root: Life, *, hit: bool = True) -> None:
        """End a process here and now, with all its threads."""
        before, self.current = self.current, root
        self.note("crash")
        self.record("nemesis.jsonl", {"fault": "kill", "pid": root.pid, "hit": hit}, ENDS)
        self.current = before
        lives = [life for life in self.lives if life.root is root and life.state != ENDED]
        for life in lives:
            life.is_dead = True
            life.state = ENDED
            life.seen = -1
        for held in root.held:
            held.drop()
        if self.writer in root.held:
            self.writer = None
        self.transaction_ended()
        for life in lives:
            # The one that is here unwinds by itself: `_yield` raises in it.
            if life.greenlet is not getcurrent():
                self._unwind(life)

    # Switching.

    def _prepare(self, life: Life, function: Callable[[], None]) -> None:
        life.function = function
        if life.greenlet is None or life.greenlet.dead:
            life.greenlet = greenlet(partial(self._live, life), parent=self.main)
        else:
            life.greenlet.parent = self.main
            # What a run has kept in context variables ends with it.
            life.greenlet.gr_context = None

    def _live(self, life: Life) -> None:
        """Do what a life is there for; that of a root goes on to do it in the next run."""
        while life.function is not None:
            life.has_begun = True
            try:
                life.function()
            except Crashed:
                life.is_dead = True
            except (GreenletExit, KeyboardInterrupt, Unrepeatable):
                raise
            except BaseException as error:
                # What the actor's own code does not expect ends its process, as anywhere else; so
                # does an exit or a cancellation that it lets pass, which must not end ours. The
                # dead expect nothing: their code may have made it of the end of their process.
                if not life.is_dead:
                    self.fail(life.name, error)
                    self.crash(life.root, hit=False)
            life.state, life.function = ENDED, None
            if life.root is not life:
                return
            parent = getcurrent().parent
            assert parent is not None, "only the greenlet that everything begins in has none"
            parent.switch()

    def close(self) -> None:
        """End what waits for another run."""
        for life in self.roots:
            if life.greenlet:
                life.greenlet.parent = getcurrent()
                life.greenlet.throw(GreenletExit)

    def _yield(self, life: Life) -> None:
        following = self._decide(life)
        if life.is_dead:
            # Unwind first; the loop in `run` then goes on with what was chosen.
            self._following, self.current = following, life
            raise Crashed
        if following is not life:
            self._leave(following)
            if life.is_dead:
                raise Crashed

    def _leave(self, following: Life | None) -> None:
        """Give the thread to another; an event loop that runs here must not be seen there."""
        target = self.main if following is None else following.greenlet
        assert target is not None
        if asyncio.events._get_running_loop() is None:
            target.switch()
        else:
            with _no_loop():
                target.switch()

    def _resume(self, life: Life) -> None:
        assert life.greenlet is not None
        self.current = life
        life.greenlet.switch()

    def _unwind(self, life: Life) -> None:
        """Throw a dead life out of its greenlet."""
        before, self.current = self.current, life
        life.is_dead, life.state = True, ENDED
        if life.has_begun and life.function is not None:
            assert life.greenlet is not None
            life.greenlet.parent = getcurrent()
            with _no_loop():
                life.greenlet.throw(Crashed)
        life.function = None
        self.current = before


@contextmanager
def _no_loop() -> Iterator[None]:
    """Hide the event loop that runs here from whoever runs meanwhile: a thread has one at most."""
    loop = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(loop)
