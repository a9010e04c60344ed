"""What a trial has shown to be wrong: each rule looks at one step."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from killproof.wording import one_line
from killproof_chaos.lint.remarks import Remark, note, problem
from killproof_chaos.lint.trial import LOAD, TRIAL_LOG, WORKER_LOG, Trial, effects_in
from killproof_evidence.contract import DELETED, STATES, TERMINAL
from killproof_evidence.records import read_records
from killproof_evidence.store import Store
from killproof_evidence.target import Target, keeps_history

#: Of a process's last words.
WORDS_CHARS_MAX: Final = 200
#: What a step that never ended should have done.
MEANT: Final = {
    LOAD: "the target must be found by a process that is started in this folder",
    "prepare": "prepare must make an empty queue and return",
    "client": "client must open the queue and return",
    "enqueue": "enqueue must return the job's id",
    "cancel": "cancel must return true or false",
    "replay": "replay must return true or false",
    "close": "the client's close must return",
    "audit": "`audit` must name the queue's own table and columns",
    "start": "worker_argv must return a command line that can be started",
    "work": "the worker must do the jobs",
    "stop": "the worker must end on SIGTERM",
    "snapshot": "snapshot must yield every job as a JobRow",
    "changes": "the audit must be readable when all processes have ended",
}


def remarks(trial: Trial, target: Target, store: Store) -> Iterator[Remark]:
    """Yield what the trial has shown, in the order of its steps."""
    yield from _enqueues(trial.facts.get("enqueue", {}), target)
    yield from _cancel(trial.facts.get("cancel"))
    yield from _replay(trial.facts.get("replay", {}))
    yield from _worker(trial, target, store)
    if "snapshot" in trial.facts:
        yield from _snapshot(trial, target)
    yield from _audit(trial, target, store)
    if trial.stopped_in is not None:
        step = trial.stopped_in
        if step == LOAD:
            why = last_words(store.path / TRIAL_LOG).removeprefix("; its last words: ")
        else:
            why = one_line(trial.failure or "it did not come to its end in time")
        yield problem("trial", f"{step} failed: {why}; {MEANT.get(step, 'it must end')}")


def _enqueues(facts: Mapping[str, Any], target: Target) -> Iterator[Remark]:
    listed = "options" in target.contract.parameters
    for name, told in facts.items():
        is_option = not name.startswith("j")
        words = one_line(str(told.get("refused") or told.get("raised") or ""))
        if "no_id" in told:
            yield problem(
                "enqueue", f"enqueue returned {told['no_id']}, which is no id: an int or a text"
            )
        elif is_option and words and listed:
            yield problem(
                "enqueue",
                f"the contract's options have {name}, and enqueue does not take it: {words}",
            )
        elif is_option and words:
            yield problem(
                "enqueue",
                f"enqueue does not take the option {name} ({words}): list those that it takes in "
                "parameters.options",
            )
        elif words:
            yield problem("enqueue", f"a plain enqueue failed: {words}")
    ids = [told["id"] for told in facts.values() if "id" in told]
    if len(set(map(str, ids))) < len(ids):
        yield problem("enqueue", f"{len(ids)} jobs got {len(set(map(str, ids)))} different ids")


def _cancel(facts: Mapping[str, Any] | None) -> Iterator[Remark]:
    if facts is None:
        return
    if "cancel_raised" in facts:
        words = one_line(facts["cancel_raised"])
        yield problem("enqueue", f"P15 is promised, and the client's cancel raised {words}")
    elif facts.get("cancelled") is False:
        yield problem("enqueue", "P15 is promised, and cancel said false of a job that waits")


def _replay(facts: Mapping[str, Any]) -> Iterator[Remark]:
    if "replay_raised" in facts:
        words = one_line(facts["replay_raised"])
        yield problem("enqueue", f"P13 is promised, and the client's replay raised {words}")
    elif facts.get("replayed"):
        yield problem("enqueue", "replay said true of a job that was not dead")


def _worker(trial: Trial, target: Target, store: Store) -> Iterator[Remark]:
    work, stop = trial.facts.get("work"), trial.facts.get("stop")
    if work is None:
        return
    words = last_words(store.path / WORKER_LOG)
    if work["ended_early"] is not None:
        yield problem(
            "worker",
            f"the worker ended with {work['ended_early']}, before SIGTERM{words}",
        )
    yield from _handlers(trial, store, words)
    if stop is None or work["ended_early"] is not None:
        return
    if stop["code"] is None:
        yield problem(
            "worker",
            f"the worker did not end within {stop['seconds']:.0f} s of SIGTERM, and was killed: an "
            "adapter's loop asks stop(), or ends by stop.by(...) or stop.by_exception(); a program "
            "takes the signal itself",
        )
    elif stop["code"] < 0:
        say = problem if target.contract.promised("P21") else note
        yield say(
            "worker",
            f"SIGTERM killed the worker (signal {-stop['code']}): a job in its hand would be left "
            "as by a kill",
        )
    elif stop["code"]:
        yield note("worker", f"after SIGTERM the worker ended with {stop['code']}{words}")
    if keeps_history(target) and not any(_claims(store)):
        yield problem(
            "worker",
            "sync_points announce operations, and the worker recorded no claim in "
            "$KILLPROOF_STORE: name handler.* alone, or record",
        )


def _handlers(trial: Trial, store: Store, words: str) -> Iterator[Remark]:
    enqueued = {name for name, told in trial.facts.get("enqueue", {}).items() if "id" in told}
    ended: dict[str, int] = {}
    started: set[str] = set()
    for record in effects_in(store):
        started.add(str(record["job"]))
        ended[str(record["job"])] = ended.get(str(record["job"]), 0) + (record["what"] == "end")
    missing = sorted(enqueued - {name for name, count in ended.items() if count})
    if trial.facts["work"]["ended_early"] is not None:
        missing = []  # What it did not come to needs no further reason.
    if missing and not started:
        yield problem(
            "worker",
            "no job's handler left a line in $KILLPROOF_EFFECTS: the worker must give each payload "
            f"to effect.run, Adapter.handle or killproof-effect{_own_error(trial)}{words}",
        )
    elif missing:
        yield problem(
            "worker", f"of {len(enqueued)} jobs {len(missing)} were not done: {missing[0]}{words}"
        )
    twice = sorted(name for name, count in ended.items() if count > 1)
    if twice:
        yield problem("worker", f"without any fault the handler of {twice[0]} ran more than once")
    strangers = sorted(started - trial.facts.get("enqueue", {}).keys() - {"cancelled"})
    if strangers:
        yield problem(
            "worker",
            f"a handler ran for {strangers[0]!r}, and nobody enqueued that: give it the payload as "
            "it is",
        )


def _snapshot(trial: Trial, target: Target) -> Iterator[Remark]:
    rows = trial.facts["snapshot"]["rows"]
    told = {name: x["id"] for name, x in trial.facts.get("enqueue", {}).items() if "id" in x}
    contract = target.contract
    for state in sorted({str(row["state"]) for row in rows} - set(STATES)):
        yield problem("snapshot", f"the state {state!r} is unknown: use {', '.join(STATES)}")
    edges = {state for states in contract.edges.values() for state in states}
    for state in sorted({str(row["state"]) for row in rows} & set(STATES) - edges):
        if edges:
            yield problem("snapshot", f"a job is {state}, and no edge of the contract leads there")
    ids = {str(row["id"]) for row in rows}
    lost = sorted(str(id_) for id_ in told.values() if str(id_) not in ids)
    if lost and DELETED not in edges:
        yield problem(
            "snapshot",
            f"{len(lost)} of {len(told)} jobs are not in it under the id that enqueue returned "
            f"({lost[0]}): let an edge lead to {DELETED} if rows go at the end",
        )
    if rows and not all(row["has_payload"] for row in rows):
        yield note("snapshot", "rows have no payload: what was enqueued is known by its id alone")
    elif any(row["name"] is None for row in rows):
        yield problem("snapshot", "a payload has no `id`: it must be what was enqueued, as it is")
    # One that was to be cancelled, and was not, may wait for its time.
    unfinished = [
        row for row in rows if row["state"] in set(STATES) - TERMINAL and row["name"] != "cancelled"
    ]
    ended_early = trial.facts.get("work", {}).get("ended_early")
    is_over = trial.facts.get("stop", {}).get("code") is not None and ended_early is None
    if unfinished and is_over:
        first = unfinished[0]
        yield problem("snapshot", f"job {first['id']} is still {first['state']} at the end")
    if contract.promised("P8") and rows and rows[0]["attempts"] is None:
        yield note("snapshot", "rows have no attempts: P8 is judged by the handlers' starts alone")


def _audit(trial: Trial, target: Target, store: Store) -> Iterator[Remark]:
    if "changes" not in trial.facts:
        return
    changes = [record for _, record in read_records(store.audit) if record is not None]
    if not changes:
        yield problem("audit", "no change of the table was seen: is it the table of the jobs?")
        return
    words = {record[side] for record in changes for side in ("old", "new")} - {None}
    for state in sorted(map(str, words - set(STATES))):
        yield problem("audit", f"the table's state {state!r} is not in the mapping's `states`")
    known = words <= set(STATES)
    edges = {(record["old"], record["new"]) for record in changes}
    if known and target.contract.edges:
        for old, new in sorted(edges, key=str):
            if not target.contract.allows(old, new):
                yield problem(
                    "audit",
                    f"a job went from {old or 'nothing'} to {new or 'nothing'}, which no edge of "
                    "the contract allows",
                )
    claims = [record for record in changes if record["new"] == "leased"]
    assert target.audit is not None
    if target.audit.attempts and claims and not any(x.get("attempts") for x in claims):
        yield note("audit", "a claim does not count the attempt: P8 will say so")
    if target.audit.payload and not any(record.get("harness_id") for record in changes):
        yield problem("audit", f"the column {target.audit.payload} holds no JSON with the `id`")


def _claims(store: Store) -> Iterator[bool]:
    for path in store.history_files():
        for _, record in read_records(path):
            yield record is not None and record.get("f") == "claim"


def _own_error(trial: Trial) -> str:
    """Return what the queue itself has kept of a failure, as the end of a sentence."""
    for row in trial.facts.get("snapshot", {}).get("rows", ()):
        if row.get("error"):
            words = one_line(str(row["error"]))[:WORDS_CHARS_MAX]
            return f"; job {row['id']} is {row['state']}: {words}"
    return ""


def last_words(log: Path) -> str:
    """Return the last line of a log, as the end of a sentence; empty: there is none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return f"; its last words: {one_line(said[-1])[:WORDS_CHARS_MAX]}" if said else ""
