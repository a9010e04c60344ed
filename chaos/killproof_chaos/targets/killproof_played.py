"""What the handlers of a killproof under test do: they play the script of their job."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Final

from killproof.core.database import Transaction
from killproof.schedule import KEY_PREFIX
from killproof.worker import Context, Permanent, Snooze
from killproof.workflow import Step, Workflow, memo
from killproof_chaos import hook
from killproof_evidence import effect

SNOOZE_SECONDS: Final = 0.1
#: A step is told what its needs have returned by the file; of its workflow nothing is asked.
STEPS: Final = Workflow("chaos")
RECORD_EFFECT: Final = "INSERT INTO chaos_effect (job, attempt, fence) VALUES (?, ?, ?)"


def play(context: Context) -> object:
    """Do what the job's script says; a table's effect shares the transaction of the ack."""
    with _one_attempt(context) as (payload, facts):
        result = effect.run(payload, **facts)
    if payload.get("sink") == "table":
        with context.completing(result) as tx:
            _row_of(context, payload)(tx)
    return result


async def play_async(context: Context, threads: Executor) -> object:
    """Do the same as a coroutine; what blocks is done in one of the threads."""
    with _one_attempt(context) as (payload, facts):
        result = await effect.run_async(payload, threads, **facts)
    if payload.get("sink") == "table":
        await context.acomplete(_row_of(context, payload), result)
    return result


@contextmanager
def _one_attempt(context: Context) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the job's payload, and what the effect log is told of this attempt."""
    payload = named(context.payload, context.job.key)
    if payload.get("snooze") and context.job.deliveries == 1:
        raise Snooze(SNOOZE_SECONDS)
    facts: dict[str, Any] = {"attempt": context.job.attempt, "fence": context.lease.fence}
    if "needs" in payload:
        run = payload["id"].rpartition(".")[0]
        results = Step(context, STEPS).results
        facts["saw"] = {f"{run}.{name}": result for name, result in results.items()}
    if "memo" in payload:
        facts["remember"] = memo(context)
    try:
        yield payload, facts | {"job": context.job.id, "sync": hook.hook}
    except effect.ScriptedPermanent as error:
        raise Permanent(str(error)) from error


def named(payload: object, key: str | None) -> dict[str, Any]:
    """Return a payload with the harness's name of the job in it.

    All jobs of a schedule have the same payload; what tells them apart is the slot in their key.
    """
    assert isinstance(payload, dict)
    is_of_schedule = key is not None and key.startswith(KEY_PREFIX)
    return payload | {"id": key} if is_of_schedule else payload


def _row_of(context: Context, payload: dict[str, Any]) -> Callable[[Transaction], object]:
    values = (str(payload["id"]), context.job.attempt, context.lease.fence)
    return lambda tx: tx.execute(RECORD_EFFECT, values)
