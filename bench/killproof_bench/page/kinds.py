"""Which results there are a page for, and how a recorded one is told from another.

Names only: neither a scenario, numpy nor the chart library is imported before somebody needs it.
"""

import dataclasses
import importlib
import json
from dataclasses import dataclass
from typing import Any, Final

from killproof_bench.page.content import Page
from killproof_bench.result import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One type of result."""

    name: str  #: In words: "this is a capacity result".
    module: str  #: Where its type and its schema number are.
    type_name: str
    pages: str  #: The module that makes its page,
    function: str = "page"  #: and its function there.

    def type(self) -> type[Any]:
        """Return the result's type."""
        found = getattr(importlib.import_module(self.module), self.type_name)
        assert isinstance(found, type)
        return found

    def schema(self) -> int:
        """Return the newest schema that this killproof knows."""
        return int(importlib.import_module(self.module).SCHEMA)

    def page(self, result: object) -> Page:
        """Return what the page of a result says."""
        page = getattr(importlib.import_module(self.pages), self.function)(result)
        assert isinstance(page, Page)
        return page


KINDS: Final = (
    Kind(
        name="contention",
        module="killproof_bench.result",
        type_name="BenchResult",
        pages="killproof_bench.page.contention",
    ),
    Kind(
        name="capacity",
        module="killproof_bench.capacity.result",
        type_name="CapacityResult",
        pages="killproof_bench.page.capacity",
    ),
    Kind(
        name="peers",
        module="killproof_bench.peers.result",
        type_name="PeersResult",
        pages="killproof_bench.page.peers",
    ),
    Kind(
        name="operations",
        module="killproof_bench.operations.result",
        type_name="OperationsResult",
        pages="killproof_bench.page.operations",
    ),
    Kind(
        name="rows",
        module="killproof_bench.rows_result",
        type_name="GrowthResult",
        pages="killproof_bench.page.rows",
    ),
    Kind(
        name="gate",
        module="killproof_bench.gate.result",
        type_name="GateResult",
        pages="killproof_bench.page.gate",
    ),
    Kind(
        name="calibration",
        module="killproof_bench.gate.result",
        type_name="CalibrationResult",
        pages="killproof_bench.page.gate",
        function="calibration",
    ),
    Kind(
        name="proof",
        module="killproof_bench.gate.result",
        type_name="ProofResult",
        pages="killproof_bench.page.gate_proof",
    ),
)


def of_type(kind: type) -> Kind | None:
    """Return the kind of a result's type; `None`: there is no page for it."""
    for known in KINDS:
        if (kind.__module__, kind.__qualname__) == (known.module, known.type_name):
            return known
    return None


def read(text: str) -> object:
    """Return the result that a command recorded as JSON.

    Raises:
        ValueError: this is no result of the bench, or one of a schema that is not known here.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON ({error})") from None
    kind = _told_by(document)
    if kind is None:
        raise ValueError("this is not a result of the bench that has a page")
    schema, known = document.get("schema"), kind.schema()
    if not isinstance(schema, int) or schema < 1:
        raise ValueError(f"this {kind.name} result has no schema number")
    if schema > known:
        raise ValueError(
            f"this {kind.name} result has schema {schema}, and this killproof reads {known}: "
            "use the killproof that made it, or a newer one"
        )
    if schema < known:
        raise ValueError(
            f"this {kind.name} result has schema {schema}, and this killproof reads {known}: "
            f"make it again with {document.get('command', 'its command')!r}"
        )
    return decode(kind.type(), document)


def _told_by(document: Any) -> Kind | None:
    """Return the kind whose fields the document has, most of all; a newer schema may have others.

    All results have the fields of a run in common, so only those of its own tell a kind.
    """
    if not isinstance(document, dict):
        return None
    fields = {kind: {field.name for field in dataclasses.fields(kind.type())} for kind in KINDS}
    common = set.intersection(*fields.values())
    counts = {kind: len((own - common) & document.keys()) for kind, own in fields.items()}
    best = max(KINDS, key=lambda kind: counts[kind] / len(fields[kind] - common))
    return best if counts[best] * 2 >= len(fields[best] - common) else None
