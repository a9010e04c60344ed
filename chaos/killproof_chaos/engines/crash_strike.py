"""One process under the shim from its beginning to its end, and what the shim says of it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines import crash_life
from killproof_chaos.engines.crash_points import Call
from killproof_chaos.engines.crash_process import Budget, Ended, stop, wait, wait_while
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.shim.calls import ALL_KINDS, Action
from killproof_chaos.shim.control import Control, Rule
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import Begin, Signal, read_log
from killproof_evidence.store import Store

#: How long a process that was sent SIGKILL by the shim may take to be dead.
DEATH_SECONDS: Final = 5.0
#: How long a worker that has done its jobs may look for more, until it makes the call that is to
#: be its last: how often it had looked when its calls were counted is chance.
POLLS_SECONDS: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Strike:
    """What was seen of a process and of those it started."""

    ended: Ended
    hits: int  #: how often the rule has fired
    struck: list[Call]  #: the calls at which it did
    after: list[bool]  #: for each, whether it was the moment after the call
    calls: list[Call]  #: all that were counted, in their order
    dead: list[int]  #: pids that were killed
    problems: list[str] = field(default_factory=list)  #: why this is not the whole truth
    stopped: bool = False  #: a worker lived until it was asked to stop

    def missed(self, request: dict[str, Any]) -> str:
        """Return why the process did not meet what it was to meet; empty: it did.

        For a kill the shim's own record, its count and the wait status must all agree.
        """
        if request["mode"] == "count":
            return "" if self._ran_to_its_end(request) else f"the process {self.ended.words}"
        call = Call(
            kind=request["kind"],
            file=request["file"],
            process=request["process"],
            number=request["number"],
        )
        struck = self.struck
        if request["operation"] == crash_life.WORK:
            # Its heart beats in a thread of its own: the n-th call of two runs may be another.
            struck = [replace(one, kind=call.kind, file=call.file) for one in struck]
        if self.hits != 1 or struck != [call]:
            met = ", ".join(f"call {one.number}, {one.kind} {one.file}" for one in self.struck)
            return f"not reached: the process {self.ended.words}, struck at {met or 'no call'}"
        if request["mode"] == "kill":
            if self.after != [request["action"] == Action.SIGNAL_AFTER]:
                return "not reached: struck at the other side of the call"
            if not self.dead or (call.process == 0 and not self.ended.killed):
                return f"not reached: no kill, the process {self.ended.words}"
        return ""

    def _ran_to_its_end(self, request: dict[str, Any]) -> bool:
        if request["operation"] == crash_life.WORK:
            return self.stopped and not self.ended.hung
        return not self.ended.hung and self.ended.status == 0


class Striker:
    """Starts the processes that are killed, all under the shim of one lane."""

    def __init__(self, target: Any, name: str, place: Path) -> None:
        """Watch the files below `place/point/db`.

        Args:
            target: the queue.
            name: of the target, for the process that forks the others.
            place: of the lane.
        """
        self._target = target
        self._place = place
        self._log = place / "calls.log"
        self._control = self._make_control(armed=False)
        self._victims = subprocess.Popen(
            [sys.executable, "-m", "killproof_chaos.engines.crash_victim", name, str(os.getpid())],
            env=os.environ | preload_environment(self._control),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._are_victims_up = False

    def close(self) -> None:
        """End the process under the shim; whom it had forked dies with it."""
        self._victims.kill()
        self._victims.communicate()
        self._control.close()

    def strike(self, store: Store, request: dict[str, Any]) -> Strike:
        """Have one process live by the request."""
        operation = request["operation"]
        is_life = operation in crash_life.LIVES
        if operation == crash_life.WORK and not callable(getattr(self._target, "work", None)):
            with self._make_control(armed=True) as control:
                return self._command(store, request, control)
        self._wait_for_victims()
        control = self._control
        self._arm(control, request, armed=is_life)
        first = control.begun
        ended, stopped_ns = self._forked(store, request)
        return self._seen(control, request, first, ended, stopped_ns)

    def _wait_for_victims(self) -> None:
        """Wait for the first word of the process that forks the others.

        It has a slot of the shim's as soon as its interpreter is loaded, which on a busy machine is
        later than the first request: its own slot would then be taken for that of the process
        that is to be struck, and no call of any would ever be met.
        """
        if not self._are_victims_up:
            self._answer()
            self._are_victims_up = True

    def _make_control(self, *, armed: bool) -> Control:
        return Control.create(
            self._place / ("life-control" if armed else "control"),
            watch=self._place / "point" / "db",
            log=self._log,
            record=ALL_KINDS,
            armed=armed,
        )

    def _arm(self, control: Control, request: dict[str, Any], *, armed: bool) -> None:
        """Set the rule for the process that begins next, or for one that it starts."""
        control.clear_rules()
        os.truncate(self._log, 0)
        control.set_start_armed(armed)
        # Of a kill the record of the signal tells all; the calls before it only cost time.
        control.set_record(frozenset() if request["mode"] == "kill" else ALL_KINDS)
        if request["mode"] != "count":
            control.set_rule(
                Rule(
                    action=Action(request["action"]),
                    value=request["value"],
                    first=request["number"],
                    slot=control.begun + request["process"],
                )
            )

    def _forked(self, store: Store, request: dict[str, Any]) -> tuple[Ended, int]:
        """Have the process under the shim fork one; a worker is asked to stop when it is done.

        Returns:
            how it ended, and when a worker was asked, monotonic ns; 0: nobody asked it.
        """
        asked = {"store": str(store.path)} | {n: request[n] for n in ("operation", "mode")}
        assert self._victims.stdin is not None
        self._victims.stdin.write(json.dumps(asked).encode() + b"\n")
        self._victims.stdin.flush()
        pid = int(self._answer()["pid"])
        stopped_ns = 0
        if request["operation"] == crash_life.WORK:
            goes_on = crash_life.has_work(self._target, store)
            budget = crash_life.budget(self._target)
            while not crash_life.is_dead(pid) and goes_on() and budget.is_left():
                time.sleep(crash_life.LOOK_SECONDS)
            if not crash_life.is_dead(pid):
                stopped_ns = time.monotonic_ns()
                os.kill(pid, signal.SIGTERM)
        told = self._answer()
        return Ended(pid=pid, status=told["status"], hung=told["hung"]), stopped_ns

    def _answer(self) -> dict[str, Any]:
        assert self._victims.stdout is not None
        line = self._victims.stdout.readline()
        if not line:
            raise EngineFailed(f"the process under the shim ended with {self._victims.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _command(self, store: Store, request: dict[str, Any], control: Control) -> Strike:
        """Start a worker by its command line, and kill all of it as soon as the rule has fired."""
        self._arm(control, request, armed=True)
        has_work = crash_life.has_work(self._target, store)
        budget = crash_life.budget(self._target)
        patience = Budget(
            POLLS_SECONDS if request["mode"] != "count" else 0.0, crash_life.PASS_SECONDS_MAX
        )
        pid = crash_life.start_worker(
            self._target, store, "child", argv=True, beneath=preload_environment(control)
        )
        ended = wait_while(
            pid,
            lambda: not control.hits() and (budget if has_work() else patience).is_left(),
            pause=crash_life.LOOK_SECONDS if request["mode"] == "count" else 0.002,
        )
        stopped_ns = 0
        if ended is None and not control.hits():
            stopped_ns = time.monotonic_ns()
            ended = stop(pid)
        victim = control.victim()
        if victim is not None:
            crash_life.wait_until_dead(victim.pid, DEATH_SECONDS)
        crash_life.kill_group(pid)
        ended = ended or wait(pid)
        return self._seen(control, request, 0, ended, stopped_ns)

    def _seen(
        self,
        control: Control,
        request: dict[str, Any],
        first: int,
        ended: Ended,
        stopped_ns: int,
    ) -> Strike:
        """Read what the shim wrote down."""
        calls: list[Call] = []
        struck: list[Call] = []
        after: list[bool] = []
        last_change = 0
        for record in read_log(self._log):
            if not isinstance(record, Begin | Signal) or not record.number:
                continue
            call = Call(
                kind=record.kind.name.lower(),
                file=record.file.name.lower(),
                process=record.slot - first,
                number=record.number,
            )
            if isinstance(record, Begin) and not 0 < stopped_ns < record.time_ns:
                calls.append(call)
                if record.kind in crash_life.CHANGES:
                    last_change = len(calls)
            elif isinstance(record, Signal):
                struck.append(call)
                after.append(record.after)
        if request["mode"] == "fault" and control.hits():
            place = (request["process"], request["number"])
            struck = [call for call in calls if (call.process, call.number) == place]
        if request["operation"] == crash_life.WORK:
            del calls[last_change:]
        victim = control.victim()
        dead = {victim.pid} if victim is not None and request["mode"] == "kill" else set()
        if ended.killed:
            dead.add(ended.pid)
        return Strike(
            ended=ended,
            hits=control.hits(),
            struck=struck,
            after=after,
            calls=calls,
            dead=sorted(one for one in dead if crash_life.is_dead(one)),
            problems=control.problems(),
            stopped=stopped_ns > 0,
        )
