"""Log lines: whole, one write each, and no job can forge one."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from killproof import logs


class Log:
    """A logger with a handler of ours on a pipe: each `write` can be seen by itself."""

    def __init__(self, form: logs.Format) -> None:
        self.logger = logging.getLogger(f"killproof.test.{form}")
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self._read, self.write = os.pipe2(os.O_DIRECT)  # A packet for each write.
        self.logger.handlers = [logs.handler(form, self.write)]

    def packet(self) -> str:
        return os.read(self._read, 1 << 16).decode()

    def close(self) -> None:
        os.close(self._read)
        os.close(self.write)


@pytest.fixture
def text() -> Iterator[Log]:
    log = Log("text")
    yield log
    log.close()


@pytest.fixture
def as_json() -> Iterator[Log]:
    log = Log("json")
    yield log
    log.close()


def test_a_record_with_its_traceback_is_one_write(text: Log, as_json: Log) -> None:
    """Covers S1.3: two programs on one file never get between the lines of one record."""
    for log in (text, as_json):
        try:
            raise KeyError("sku")
        except KeyError:
            log.logger.exception("failed")
        packet = log.packet()

        assert packet.endswith("\n")
        assert "Traceback" in packet
        assert "KeyError: 'sku'" in packet


def test_a_json_line_holds_the_job_and_the_whole_error(as_json: Log) -> None:
    """Covers S0.64, S0.73."""
    job = {"job_id": 7, "kind": "mail", "attempt": 2, "key": "order:7"}
    as_json.logger.warning("nack after %s s", 3, extra=job | {"traceback": "Traceback ...\nX: y"})
    line = json.loads(as_json.packet())

    assert {name: line[name] for name in job} == job
    assert (line["level"], line["message"]) == ("warning", "nack after 3 s")
    assert line["traceback"] == "Traceback ...\nX: y"
    assert line["time"].endswith("Z")


def test_a_line_of_text_can_not_be_forged_by_what_a_job_holds(text: Log) -> None:
    text.logger.info("key=%s: succeeded", "x\n2026-01-01 INFO job_id=8: succeeded\x1b[2J\r")
    first, second, *rest = text.packet().splitlines()

    assert first.endswith("key=x")
    assert second.startswith("    2026-01-01")
    assert "\\x1b[2J\\r" in second
    assert rest == []


def test_a_record_that_can_not_be_written_raises_nothing(
    text: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        text.logger.handlers = [logs.handler("text", full)]
        text.logger.info("into a full disk")
    finally:
        os.close(full)

    assert "No space left on device" in capfd.readouterr().err


def test_a_log_file_is_appended_to_and_not_for_everybody(tmp_path: Path) -> None:
    for word in ("one", "two"):
        descriptor = logs.open_log(tmp_path / "log")
        os.write(descriptor, f"{word}\n".encode())
        os.close(descriptor)

    assert (tmp_path / "log").read_text() == "one\ntwo\n"
    assert os.stat(tmp_path / "log").st_mode & 0o007 == 0
