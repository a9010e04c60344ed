"""Adapters of public queues: small, pinned, cited; none of them is installed or run here."""

import ast
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from killproof_chaos import gallery, plan, targets
from killproof_chaos.engines.disk_check import Outcome, Told
from killproof_chaos.engines.disk_pool import without_the_removed
from killproof_chaos.plan import Options
from killproof_chaos.targets import public
from killproof_evidence.adapter import Adapter, Stop, Stopped
from killproof_evidence.contract import Contract

#: Of code: without docstrings, comments, blank lines, imports, and what is data.
LINES_MAX = 60
#: Whoever takes jobs promises to make up none and to drop none, and need not say so.
OF_EVERY_QUEUE = {"P2", "P14"}
CONTROLS = {"killproof-adapter", "minimal-adapter"}
PYTHON = [name for name, path in public.files().items() if path.suffix == ".py"]


def lines_of_code(text: str) -> int:
    """Count the lines of statements that say what the adapter does."""
    spared: set[int] = set()
    counted: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        lines = range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom) or _is_data(node):
            spared.update(lines)
        elif isinstance(node, ast.stmt):
            counted.update(lines)
    texts = text.splitlines()
    return sum(
        bool(texts[number - 1].strip()) and not texts[number - 1].strip().startswith("#")
        for number in counted - spared
    )


def _is_data(node: ast.AST) -> bool:
    """What a target declares: its contract and citations, constants."""
    return isinstance(node, ast.Assign | ast.AnnAssign) and node.col_offset in (0, 4)


@pytest.mark.parametrize("name", PYTHON)
def test_an_adapter_has_at_most_sixty_lines_of_code(name: str) -> None:
    text = public.files()[name].read_text(encoding="utf-8")

    assert lines_of_code(text) <= LINES_MAX


def test_what_is_counted_is_code() -> None:
    text = '"""A."""\nimport os\n\nA = {\n    1: 2,\n}\n'
    text += '\ndef f() -> None:\n    """B."""\n    # C\n    g(\n        1,\n    )\n'

    assert lines_of_code(text) == 4


@pytest.mark.parametrize("name", public.names())
def test_each_promise_of_a_public_queue_is_cited_and_its_version_pinned(name: str) -> None:
    target: Any = public.target(name)
    promised = {promise for promise, made in target.contract.promises.items() if made}

    assert target.name == name
    assert not target.broken
    assert promised - OF_EVERY_QUEUE <= set(target.cites) <= promised
    assert all(target.cites.values())
    assert (target.peer is None) == (name in CONTROLS)
    if target.peer is not None:
        assert all(package.version for package in target.peer.packages)


def test_no_public_queue_has_a_name_of_ours() -> None:
    ours = {*targets.GROUPS["own"], *gallery.names()}

    assert not ours & set(public.names())
    assert len(targets.BUILTIN) == len(ours) + len(public.names())


def test_a_public_queue_is_found_by_its_name_and_by_the_word_before_it() -> None:
    found = {type(targets.load(name)).__name__ for name in ("litequeue", "public:litequeue")}

    assert found == {"LiteQueue"}
    assert isinstance(targets.load("public:litequeue"), Adapter)


def test_a_queue_that_is_made_for_one_worker_gets_one_and_its_part_of_the_jobs() -> None:
    alone = Contract(parameters={"workers_max": 1})
    options = Options(seconds=1.0, kills=0, pauses=0)

    few, all_ = (plan.make(options, (), contract=c) for c in (alone, Contract()))

    assert few.workers == ["w1"]
    assert len(all_.workers) == options.workers
    assert len(few.operations[0]) * 3 < len(all_.operations[0])


def test_a_queue_that_gets_little_done_is_offered_no_more_than_that() -> None:
    slow = Contract(parameters={"jobs_per_second": 7})
    options = Options(seconds=1.0, kills=0, pauses=0)

    few, all_ = (plan.make(options, (), contract=c) for c in (slow, Contract()))

    assert few.workers == all_.workers
    assert len(few.operations[0]) * 8 < len(all_.operations[0])


def outcome(*rows: str, unhonoured: tuple[int, ...]) -> Outcome:
    return Outcome(
        unhonoured=unhonoured, broken=(), opens=True, jobs=len(rows), checked={},
        there=frozenset(rows),
    )  # fmt: skip


def test_a_row_that_the_queue_has_removed_is_not_lost_and_one_that_a_cut_took_is() -> None:
    told = (Told(f="enqueue", job="gone"), Told(f="enqueue", job="cut"), None)
    whole = outcome("cut", "kept", unhonoured=(0,))
    after = outcome("kept", unhonoured=(0, 1))

    assert without_the_removed(after, whole, told).unhonoured == (1,)
    assert without_the_removed(whole, whole, told).unhonoured == ()


def test_a_row_that_is_there_and_wrong_is_not_excused() -> None:
    told = (Told(f="enqueue", job="torn"),)
    torn = outcome("torn", unhonoured=(0,))

    assert without_the_removed(torn, outcome(unhonoured=(0,)), told).unhonoured == (0,)
    unopened = replace(torn, there=None)
    assert without_the_removed(unopened, torn, told).unhonoured == (0,)


@pytest.fixture
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_a_worker_that_was_told_to_stop_while_its_loop_was_made_is_told_again() -> None:
    stop, told = Stop(), list[str]()
    signal.raise_signal(signal.SIGTERM)
    stop.by(lambda: told.append("stop"))

    assert told == ["stop"]
    with pytest.raises(Stopped):
        stop.by_exception()
