"""unhinged: claim_task and complete_run of its engine."""

from collections.abc import Sequence
from typing import Any

from unhinged.engine import Engine

from killproof_bench.peers.drivers.loop import Spec, count, pragmas

QUEUE = "bench"


class Driver:
    """One engine on one file."""

    def __init__(self, spec: Spec) -> None:
        self._file = f"{spec.folder}/unhinged.db"
        self._worker = f"worker-{spec.worker}"
        synchronous = spec.synchronous()
        options = {} if synchronous is None else {"synchronous": synchronous.lower()}
        self._engine: Any = Engine(self._file, **options)
        if spec.mode == "seed":
            self._engine.create_queue(QUEUE)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Spawn one after the other."""
        for payload in payloads:
            self._engine.spawn_task(QUEUE, "bench", payload)

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._engine.connection)

    def claim(self) -> tuple[int, Any] | None:
        """Claim one."""
        runs = self._engine.claim_task(QUEUE, self._worker, 60, 1)
        return (_payload(runs[0])["n"], runs[0]["run_id"]) if runs else None

    def ack(self, token: Any) -> None:
        """Complete its run."""
        self._engine.complete_run(QUEUE, token)

    def account(self) -> dict[str, int]:
        """Count runs by state."""
        return {
            "waiting": count(self._file, f"r_{QUEUE}", "state = 'pending'"),
            "claimed": count(self._file, f"r_{QUEUE}", "state = 'running'"),
        }

    def close(self) -> None:
        """Close."""
        self._engine.close()


def _payload(run: Any) -> dict[str, Any]:
    payload: dict[str, Any] = run["params"]
    return payload


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
