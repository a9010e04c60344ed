"""The command line when its standard streams are cut, closed, or know no more than ASCII."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from killproof import Queue

COMMANDS = (["status"], ["show", "1"], ["show", "1", "--json"], ["--help"])


def run(
    place: Path, arguments: list[str], redirect: str = "", **environment: str
) -> tuple[int, str]:
    """Run a command with a shell's redirection; return its exit code and what it said."""
    line = f'"$0" -m killproof "$@" {redirect}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, *arguments],
        cwd=place,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.fixture
def filled(place: Path) -> Path:
    """A folder with a queue of one job, whose payload is not ASCII."""
    with Queue(place / "queue.db") as queue:
        queue.enqueue("k", "señal")
    return place


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_fault(filled: Path, arguments: list[str]) -> None:
    """An exit of 1, which the libraries make of it, would say that a fault was found."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as cut:
        done = subprocess.run(
            [sys.executable, "-m", "killproof", *arguments],
            cwd=filled,
            stdout=cut,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_closed_output_is_no_fault(filled: Path, arguments: list[str]) -> None:
    assert run(filled, arguments, ">&-") == (0, "")


def test_a_closed_input_is_an_empty_one(place: Path) -> None:
    code, said = run(place, ["enqueue", "k", "-"], "<&-")

    assert (code, "is not JSON" in said) == (64, True)


def test_what_the_output_can_not_show_is_escaped(filled: Path) -> None:
    code, said = run(filled, ["show", "1"], PYTHONIOENCODING="ascii")

    assert (code, 'payload "se\\xf1al"' in said) == (0, True)


def test_json_stays_json_on_an_output_that_knows_no_unicode(filled: Path) -> None:
    code, said = run(filled, ["show", "1", "--json"], PYTHONIOENCODING="ascii")

    assert (code, json.loads(said)["payload"]) == (0, "señal")


def test_a_name_that_is_no_unicode_is_a_name_like_any_other(place: Path) -> None:
    name = os.fsdecode(b"\xff.db")
    assert run(place, ["enqueue", "k", "1", "--db", name]) == (0, "1\n")
    assert run(place, ["status", "--json", "--db", name])[0] == 0
    code, said = run(place, ["doctor", "--json", "--db", name])

    assert (code, json.loads(said)[0]["status"]) == (0, "ok")
