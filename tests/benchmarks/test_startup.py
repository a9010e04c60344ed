"""What importing the queue brings along; the times are for `killproof bench startup` to tell."""

from pathlib import Path

import pytest

from killproof_bench.scenarios import startup


def test_importing_the_queue_brings_no_module_of_anybody_elses(place: Path) -> None:
    result = startup.run(place, rounds=1)

    assert result.foreign_modules == []
    assert result.import_ms < result.interpreter_ms * 1_000, "milliseconds, not seconds"
    assert "third-party modules: none" in startup.sentence(result)


def test_a_queue_that_imports_a_library_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    spoiled = startup.IMPORT.replace("import killproof\n", "import killproof, typer\n")
    monkeypatch.setattr(startup, "IMPORT", spoiled)

    assert "typer" in startup.run(place, rounds=1).foreign_modules
