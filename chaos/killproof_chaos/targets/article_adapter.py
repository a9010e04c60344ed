"""The queues of the source articles as targets: other tables and words, the same harness.

Each is written from its article's description, faults and all, and promises what the article
claims.  It stands on `minimal` for the connection and the transactions that the harness knows how
to host; its table, its statements and its states are its own.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any

from killproof_chaos import hook
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalClient, MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping, JobRow, RunMapping


class ArticleTarget(MinimalTarget):
    """A queue with a table of its own."""

    def __init__(
        self,
        queue: type[MinimalQueue],
        fault: Fault,
        *,
        contract: Contract,
        audit: AuditMapping,
        rows: str,
        capabilities: Set[str] = frozenset(),
        mix_parameters: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        runs: RunMapping | None = None,
        client: type[MinimalClient] = MinimalClient,
    ) -> None:
        """Judge a queue of an article.

        Args:
            queue: its code.
            fault: what it is judged to break.
            contract: what the article claims.
            audit: where its facts are.
            rows: a SELECT of what `JobRow` has, the payload as JSON text.
            capabilities: as `MixedTarget` has them, where the article claims more than jobs.
            mix_parameters: likewise.
            runs: where the runs of its workflows are.
            client: what a producer may do with it.
        """
        super().__init__(fault.name, queue, fault)
        self.contract, self.audit, self.runs = contract, audit, runs
        self.capabilities, self.mix_parameters = frozenset(capabilities), mix_parameters
        self._rows, self._client = rows, client

    def client(self, place: Path) -> MinimalClient:
        """Open the queue for a producer."""
        return self._client(self._queue(place / self.database, sync=hook.hook))

    def rows(self, db: sqlite3.Connection) -> Iterable[JobRow]:
        """Read every job in the contract's words."""
        assert self.audit is not None
        cursor = db.execute(self._rows)
        names = [column[0] for column in cursor.description]
        for row in cursor:
            values = dict(zip(names, row, strict=True))
            values["state"] = self.audit.states.get(values["state"], values["state"])
            yield JobRow(**{**values, "payload": json.loads(values["payload"])})
