"""The process under the shim: forks those that are killed, or whose calls fail.

It has imported everything, holds no connection, and reads one JSON object a line. A request names
an operation; the child does what stands before it uncounted, and then the operation, counted. Its
first line says that it is there: until then nobody knows which slot of the shim is the next one.

    python -m killproof_chaos.engines.crash_victim TARGET SUPERVISOR_PID
"""

import json
import os
import resource
import signal
import sys
from typing import Any, Final

from killproof_chaos.engines import crash_state
from killproof_chaos.engines.crash_context import context_of, end, prepare_audit
from killproof_chaos.engines.crash_life import PRODUCE, WORK, produce, work
from killproof_chaos.engines.crash_points import NOTHING
from killproof_chaos.engines.crash_process import environment_of, start, text_of, wait, word_of
from killproof_chaos.engines.crash_scenarios import BY_NAME, NEXT, Context
from killproof_chaos.shim.notes import Shim
from killproof_chaos.targets import load
from killproof_evidence.lifetime import die_with_parent
from killproof_evidence.store import Store, write_json

#: Exit status of a process that was to be killed and was not.
NOT_STRUCK: Final = 9
TOLD: Final = "told.json"  #: what the caller of a failed call was told
BEFORE: Final = "before.json"  #: the state when the operation began
AFTER: Final = "after.json"  #: and when it had returned, in the run that counts its calls


class Victims:
    """Forks one process for each request."""

    def __init__(self, target: Any) -> None:
        """Serve for this target."""
        self._target = target
        self._shim = Shim()

    def spawn(self, request: dict[str, Any]) -> int:
        """Fork the process that lives by the request; return its pid."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        store = Store(request["store"])
        os.environ.update(environment_of(store))
        operation, mode = request["operation"], request["mode"]
        log = store.path / "child.log"
        if operation == WORK:
            return start(lambda: work(self._target, store), log)
        if operation == PRODUCE:
            return start(lambda: self._produce(store, mode), log)
        return start(lambda: self._live(store, operation, mode), log)

    def _produce(self, store: Store, mode: str) -> int:
        """Be a producer; armed from the beginning, as it may start processes of its own."""
        told = produce(self._target, store, also_next=mode == "fault")
        return self._leave(store, mode, told)

    def _live(self, store: Store, operation: str, mode: str) -> int:
        """Be the process: what stands before, the operation, and what comes after if it lives."""
        scenario = BY_NAME[operation]
        context = context_of(self._target, store)
        if not scenario.opens:
            context.current = context.open("child")
        if scenario.before is not None:
            scenario.before(context)
        if context.current is not None:
            state = crash_state.of_session(context.current, self._target.audit)
            crash_state.save(store.path / BEFORE, state)
        error: BaseException | None = None
        answer: object = None
        self._shim.arm()
        try:
            answer = scenario.act(context)
        except BaseException as raised:
            # An exit is no answer either: the caller meets it as an error that none should meet.
            error = raised
        finally:
            self._shim.disarm()
        told = {"told": word_of(error), "error": text_of(error)}
        if answer is False:
            told["told"] = NOTHING
        if mode == "count" and context.current is not None and scenario.prepare is not None:
            # Now: the end of this process gives back what it holds, which is a change of its own.
            state = crash_state.of_session(context.current, self._target.audit)
            crash_state.save(store.path / AFTER, state)
        if mode == "fault":
            told |= self._next(context)
        if mode == "count":
            write_json(store.path / TOLD, told)
            end(context)
            return 0
        return self._leave(store, mode, told)

    def _next(self, context: Context) -> dict[str, str]:
        """Do the next operation of a process that has met an error."""
        try:
            self._enqueue_next(context)
        except Exception as error:
            told = {"next": word_of(error), "next_error": text_of(error), "again": "ok"}
            try:
                self._enqueue_next(context)
            except Exception as another:
                told["again"] = word_of(another)
            return told
        return {"next": "ok", "next_error": ""}

    def _enqueue_next(self, context: Context) -> None:
        if context.current is None:
            context.current = context.open("child")
        # A file that this process has just made has no audit yet, and a job is to go in.
        prepare_audit(self._target, context.store.db)
        context.current.enqueue(NEXT)

    def _leave(self, store: Store, mode: str, told: dict[str, str]) -> int:
        """End as the mode wants it: by a kill where only the file shall speak from here on."""
        write_json(store.path / TOLD, told)
        if mode == "fault":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0 if mode == "count" else NOT_STRUCK


def main() -> None:
    """Fork one process for each line; tell its pid at once, and how it ended when it has."""
    name, parent = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    victims = Victims(load(name))
    answers.write(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    for line in iter(sys.stdin.buffer.readline, b""):
        pid = victims.spawn(json.loads(line))
        answers.write(json.dumps({"pid": pid}).encode() + b"\n")
        ended = wait(pid)
        answers.write(json.dumps({"status": ended.status, "hung": ended.hung}).encode() + b"\n")


if __name__ == "__main__":
    main()
