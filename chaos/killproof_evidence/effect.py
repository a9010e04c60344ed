"""The effect log: what handlers really did, written outside the queue under test.

A handler of any target calls `run(payload)`, or pipes the payload to the command
`killproof-effect`. It appends `start`, `effect` and `end` records and plays the script in the
payload, so that the harness decides when a handler fails. The effect is deliberately **not**
idempotent: a job that runs twice leaves two lines.

Script words, one for each attempt; the last one repeats:

    ok              the effect, then success
    sleep:SECONDS   waits, then as ok
    hang:SECONDS    waits, then fails without the effect: the time limit or the lease must act
    raise           fails before the effect
    permanent       fails before the effect; a target that can must not retry
    exit            the process exits before the effect
    abort           the process aborts after the effect
    unjsonable      the effect, then a result that JSON cannot hold
"""

import hashlib
import json
import os
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, Final

from killproof_evidence.records import RecordWriter, without_alarms

#: Seconds that the HTTP sink has to answer; longer than any pause the harness makes by default.
SINK_TIMEOUT: Final = 30.0
#: The exit status of a handler that is told to exit: not 0, not 1, not a signal's.
EXIT_STATUS: Final = 70
#: Names the worker to a handler that is a program of its own: a pid.
WORKER: Final = "KILLPROOF_WORKER"
#: What a remembered step takes.
REMEMBERED_SECONDS: Final = 0.03
#: Of a SHA-256: enough that two results of a run never look alike.
DIGEST_CHARS: Final = 16
#: Words that end the attempt without an effect.
FAILS_BEFORE: Final = frozenset({"raise", "permanent", "hang", "exit"})


#: Takes a step's name and what it does; returns what it returned, now or in an attempt before.
Remember = Callable[[str, Callable[[], dict[str, Any]]], object]


class ScriptedFailure(Exception):
    """The script said that this attempt fails; the queue should retry it."""


class ScriptedPermanent(ScriptedFailure):
    """The script said that the job can never succeed; a queue that knows this must not retry."""


def run(
    payload: dict[str, Any],
    *,
    job: object = None,
    attempt: int | None = None,
    fence: int | None = None,
    sync: Callable[[str], None] | None = None,
    saw: Mapping[str, object] | None = None,
    remember: Remember | None = None,
    worker: int | None = None,
) -> dict[str, Any]:
    """Play one attempt of a job and leave its traces in the effect log.

    Args:
        payload: holds `id`, the harness's own name of the job, and optionally `script`, `sink`.
        job: the queue's id; recorded as `queue_id` for the reader, never relied on.
        attempt: from 1; None: counted in `$KILLPROOF_EFFECTS/starts/<id>`.
        fence: the fencing token of the lease, where the queue has one.
        sync: called with `handler.start`, `handler.effect` and `handler.end` as they pass.
        saw: of a step of a workflow, what the steps that it needs have returned, by their names.
        remember: called with each name in the payload's `memo` and a function: it returns what an
            attempt before this has got from that function, or calls it.
        worker: the pid of the process that has the job; 0: it has died; None: this one.

    Returns:
        The handler's result: the id, the attempt and the word that was played.

    Raises:
        ScriptedFailure: the script wants this attempt to fail.
        OSError: the HTTP sink did not answer; the effect may have been made.
    """
    playing = _play(payload, job, attempt, fence, sync, saw, remember, worker)
    try:
        wait = next(playing)
        while True:
            try:
                time.sleep(wait) if isinstance(wait, float) else wait()
            except BaseException as error:  # An alarm, perhaps: the attempt is where it came.
                wait = playing.throw(error)
            else:
                wait = next(playing)
    except StopIteration as end:
        return _result(end)


async def run_async(
    payload: dict[str, Any],
    threads: Executor,
    *,
    job: object = None,
    attempt: int | None = None,
    fence: int | None = None,
    sync: Callable[[str], None] | None = None,
    saw: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Do the same as a coroutine: it waits without its thread, and asks the sink in another.

    Args and errors are those of `run`; `threads` are those in which the sink is asked.
    """
    import asyncio  # 50 ms, which each call of `killproof-effect` would pay.

    playing = _play(payload, job, attempt, fence, sync, saw)
    try:
        wait = next(playing)
        while True:
            try:
                if isinstance(wait, float):
                    await asyncio.sleep(wait)
                else:
                    await asyncio.get_running_loop().run_in_executor(threads, wait)
            except BaseException as error:  # A cancellation, perhaps.
                wait = playing.throw(error)
            else:
                wait = next(playing)
    except StopIteration as end:
        return _result(end)


def _result(end: StopIteration) -> dict[str, Any]:
    result: dict[str, Any] = end.value
    return result


#: What an attempt waits for: seconds, or a call that blocks.
Wait = float | Callable[[], None]


def _play(
    payload: dict[str, Any],
    job: object,
    attempt: int | None,
    fence: int | None,
    sync: Callable[[str], None] | None,
    saw: Mapping[str, object] | None,
    remember: Remember | None = None,
    worker: int | None = None,
) -> Generator[Wait, None, dict[str, Any]]:
    """Play an attempt; yield what it has to wait for, and return its result."""
    folder = Path(os.environ["KILLPROOF_EFFECTS"])
    name = str(payload["id"])
    if attempt is None:
        attempt = _count_start(folder, name)
    log = _log_of_this_process(folder)
    facts: dict[str, Any] = {"job": name, "attempt": attempt, "fence": fence}
    if job is not None:
        facts["queue_id"] = job
    seen: dict[str, Any] = {}
    if saw is not None:
        seen["saw"] = {need: digest_of(value) for need, value in saw.items()}
    if worker is not None:
        seen["worker"] = worker
    if payload.get("proven"):
        seen["given"] = digest_of(payload, chars=None)
    # Before anything else: a kill from here on leaves a start that the queue must account for.
    log.append("start", facts | seen)
    _pass(sync, "handler.start")
    read: dict[str, str] = {}
    if remember is not None:
        for step in payload.get("memo") or ():
            read[step] = digest_of(remember(step, partial(_remembered, log, facts, step)))
    script = payload.get("script") or ["ok"]
    word, _, seconds = str(script[min(attempt, len(script)) - 1]).partition(":")
    if word in {"sleep", "hang"}:
        yield float(seconds)
    if word in FAILS_BEFORE:
        _fail(word, log, facts, sync)
    sink = payload.get("sink", "log")
    if sink == "http":
        yield partial(_post, name, facts)
    if sink != "table":
        # A table row is written by the target, in the transaction of its ack.
        log.append("effect", facts)
    _pass(sync, "handler.effect")
    result: dict[str, Any] = {"id": name, "attempt": attempt, "outcome": word}
    returned: dict[str, Any] = {}
    if saw is not None and word != "unjsonable":  # What becomes of that is the queue's to choose.
        returned["result"] = digest_of(result)
    if read:
        returned["read"] = read
    log.append("end", facts | returned | {"outcome": word})
    if word == "abort":
        # Its word is on record, as that of `exit`: this death needs no other explanation.
        os.abort()
    _pass(sync, "handler.end")
    if word == "unjsonable":
        result["value"] = {1, 2, 3}
    return result


def _remembered(log: "_EffectLog", facts: dict[str, Any], name: str) -> dict[str, Any]:
    """Be one of the steps whose results are to be remembered."""
    time.sleep(REMEMBERED_SECONDS)
    result = {"step": name, "fence": facts["fence"]}
    log.append("step", facts | {"name": name, "result": digest_of(result)})
    return result


def digest_of(value: object, *, chars: int | None = DIGEST_CHARS) -> str:
    """Return a digest of a JSON value, to compare it without keeping it; None: the whole of it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:chars]


def _fail(
    word: str, log: "_EffectLog", facts: dict[str, Any], sync: Callable[[str], None] | None
) -> None:
    if word == "exit":
        # The word goes on record first: a process that ends itself is no unexplained death.
        log.append("end", facts | {"outcome": "exit"})
        os._exit(EXIT_STATUS)
    log.append("end", facts | {"outcome": word})
    _pass(sync, "handler.end")
    kind = ScriptedPermanent if word == "permanent" else ScriptedFailure
    raise kind(f"scripted {word} of {facts['job']}, attempt {facts['attempt']}")


def _pass(sync: Callable[[str], None] | None, point: str) -> None:
    if sync is not None:
        sync(point)


def _count_start(folder: Path, name: str) -> int:
    """Count this start: the position after a one-byte append is the number of starts so far."""
    starts = folder / "starts"
    starts.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(starts / urllib.parse.quote(name, safe=""), flags, 0o644)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def _post(name: str, facts: dict[str, Any]) -> None:
    request = urllib.request.Request(
        os.environ["KILLPROOF_SINK"],
        data=json.dumps(facts).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": name},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=SINK_TIMEOUT) as answer:
        answer.read()


class _EffectLog:
    """The effect file of this process; its records are numbered, so that a gap shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = os.getpid()
        folder.mkdir(parents=True, exist_ok=True)
        self._records = RecordWriter(folder / f"{self.pid}.jsonl")
        self._lock = threading.Lock()
        self._number = 0

    def append(self, what: str, facts: dict[str, Any]) -> None:
        with without_alarms(), self._lock:
            self._number += 1
            head = {"t": time.monotonic_ns(), "pid": self.pid, "n": self._number}
            self._records.append(head | facts | {"what": what})


_logs: dict[int, _EffectLog] = {}
_logs_lock = threading.Lock()


def _log_of_this_process(folder: Path) -> _EffectLog:
    """Return the log that belongs to this pid; a forked child opens its own."""
    with _logs_lock:
        log = _logs.get(os.getpid())
        if log is None or log.folder != folder:
            log = _logs[os.getpid()] = _EffectLog(folder)
        return log


def main() -> None:
    """Play the payload on stdin (`killproof-effect`): exit 0 when it succeeded, 1 when not."""
    try:
        payload = json.load(sys.stdin)
        name = payload["id"]
    except (ValueError, KeyError, TypeError) as error:
        print(f"killproof-effect: stdin is no JSON object with an id ({error})", file=sys.stderr)
        raise SystemExit(64) from None
    if "KILLPROOF_EFFECTS" not in os.environ:
        print("killproof-effect: set KILLPROOF_EFFECTS to the folder of effects", file=sys.stderr)
        raise SystemExit(64)
    try:
        result = run(payload, job=payload.get("job"), worker=holder())
        print(json.dumps(result))
    except (ScriptedFailure, OSError, TypeError) as error:
        # A TypeError is json's answer to the result that it cannot hold.
        print(f"killproof-effect: {name}: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def holder() -> int:
    """Return the process that has the job, which faults strike while this one lives on; 0: it died.

    The harness names it, for the parent may be a shell in between; and an orphan's parent is not
    always the first process of all, but any that adopts orphans, as a user's service manager.
    """
    told = os.environ.get(WORKER)
    if told is None:
        parent = os.getppid()
        return 0 if parent == 1 else parent
    try:
        text = Path(f"/proc/{told}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # Behind the program's name, which may have spaces: Z and X are dead (proc(5)).
    return 0 if text.rpartition(")")[2].split()[0] in "ZX" else int(told)
