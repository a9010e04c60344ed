"""The Python side of the shim agrees with its C source, and refuses what the shim would misread."""

import errno
import os
import re
import signal
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import pytest

from killproof_chaos.shim import build, control
from killproof_chaos.shim.calls import (
    ALL_FILES,
    ALL_KINDS,
    Action,
    File,
    Kind,
    RecordType,
    mask,
)
from killproof_chaos.shim.control import FOREVER, Control, Rule, kill
from killproof_chaos.shim.environment import preload_environment

SOURCE = build.SOURCE.read_text(encoding="utf-8")


def enum_of_c(name: str) -> dict[str, int]:
    """Return the members of an enum in preload.c, without their prefix and the closing count."""
    found = re.search(rf"enum {name} \{{(.*?)\}};", SOURCE, re.DOTALL)
    assert found is not None
    members = [word.strip() for word in found[1].split(",")]
    return {
        word.removeprefix(f"{name.upper()}_"): number
        for number, word in enumerate(members)
        if "=" not in word
    }


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Control]:
    """A control file over an empty folder, with a log and a file of notes."""
    watch = tmp_path / "db"
    watch.mkdir()
    with Control.create(
        tmp_path / "control", watch=watch, log=tmp_path / "log", notes=tmp_path / "notes"
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "python"),
    [("kind", Kind), ("file", File), ("action", Action), ("type", RecordType)],
)
def test_the_words_are_numbered_as_in_c(name: str, python: type[IntEnum]) -> None:
    assert {member.name: int(member) for member in python} == enum_of_c(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("KINDS", control.KINDS), ("FILES", control.FILES), ("RULES", control.RULES)],
)
def test_the_arrays_are_as_long_as_in_c(name: str, value: int) -> None:
    assert re.search(rf"\b{name}(?: = | ){value}\b", SOURCE)


def test_there_is_room_for_every_kind_and_file() -> None:
    assert max(Kind) < control.KINDS
    assert max(File) < control.FILES


def test_a_mask_has_a_bit_for_each_word() -> None:
    assert mask(frozenset({Kind.OPEN, Kind.WRITE})) == 0b1010
    assert mask(ALL_KINDS) & 1 == mask(ALL_FILES) & 1 == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"action": Action.FAIL, "value": errno.EIO, "first": 0}, "first 0 and times 1"),
        ({"action": Action.FAIL, "value": errno.EIO, "times": 0}, "first 1 and times 0"),
        ({"action": Action.SIGNAL_AFTER, "value": signal.SIGTERM}, "signal 15 is neither"),
        ({"action": Action.FAIL, "value": 0}, "errno 0 is none"),
    ],
)
def test_a_rule_that_could_never_do_what_it_says_is_refused(
    wrong: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**wrong)  # type: ignore[arg-type]  # Wrong on purpose, from a table.


def test_a_kill_names_its_call_and_its_side() -> None:
    assert kill(7).action == Action.SIGNAL_BEFORE
    assert kill(7, after=True).action == Action.SIGNAL_AFTER
    assert (kill(7).first, kill(7).value, kill(7).kinds) == (7, signal.SIGKILL, ALL_KINDS)


def test_a_new_rule_in_an_old_place_counts_from_zero(shared: Control) -> None:
    rule = Rule(action=Action.FAIL, value=errno.EIO, times=FOREVER)
    shared.set_rule(rule)
    first = shared._head.rules[0].epoch
    shared._head.rules[0].hits = 3

    shared.set_rule(rule)

    assert shared.hits() == 0
    assert shared._head.rules[0].epoch != first


def test_the_epoch_of_a_rule_is_never_zero_and_fits_its_cell(shared: Control) -> None:
    shared._head.rules[0].epoch = 0xFFFF

    shared.set_rule(kill(1))

    assert shared._head.rules[0].epoch == 1


def test_clearing_the_rules_heals_and_keeps_their_hits(shared: Control) -> None:
    shared.set_rule(kill(1), number=3)
    shared._head.rules[3].hits = 2

    shared.clear_rules()

    assert not shared._head.rules[3].enabled
    assert shared.hits(3) == 2


def test_a_folder_is_watched_with_all_below_it_and_a_file_with_its_kin(tmp_path: Path) -> None:
    folder = Control.create(tmp_path / "control", watch=tmp_path)
    assert bytes(folder._head.prefix) == os.fsencode(f"{tmp_path.resolve()}/")
    folder.close()

    file = Control.create(tmp_path / "control", watch=tmp_path / "queue.db")
    assert bytes(file._head.prefix) == os.fsencode(tmp_path.resolve() / "queue.db")
    file.close()


def test_a_link_to_the_database_is_watched_by_its_real_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with Control.create(tmp_path / "control", watch=tmp_path / "link" / "queue.db") as made:
        assert bytes(made._head.prefix) == os.fsencode(tmp_path.resolve() / "real" / "queue.db")


@pytest.mark.parametrize("content", [b"", b"x" * 100_000])
def test_a_file_that_is_no_control_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "control").write_bytes(content)

    with pytest.raises(ValueError, match="is no control file"):
        Control(tmp_path / "control")


def test_what_was_lost_is_told(shared: Control) -> None:
    assert shared.problems() == []

    shared._head.lost = 2
    shared._head.used = control.SLOTS + 1

    assert [problem.split(":")[0] for problem in shared.problems()] == [
        "2 records could not be written",
        "1 processes found no slot",
    ]


def test_a_new_control_starts_an_empty_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"an earlier run")

    Control.create(tmp_path / "control", watch=tmp_path, log=log).close()

    assert log.read_bytes() == b""


def test_the_environment_keeps_what_was_preloaded_before(shared: Control) -> None:
    library = Path("/cache/shim.so")

    variables = preload_environment(
        shared, library=library, base={"LD_PRELOAD": "/other.so:/cache/shim.so"}
    )

    assert variables == {
        "LD_PRELOAD": "/cache/shim.so:/other.so",
        "KILLPROOF_SHIM": str(shared.path.resolve()),
        "KILLPROOF_NOTES": str(shared.notes),
    }


def test_without_a_compiler_the_remedy_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)

    with pytest.raises(build.ShimUnavailable) as caught:
        build.build()

    assert str(caught.value) == (
        "no C compiler found; install a C compiler: apt-get install gcc libc6-dev"
    )


def test_elsewhere_than_on_linux_the_shim_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")

    with pytest.raises(build.ShimUnavailable, match="needs Linux, this is darwin"):
        build.build()
