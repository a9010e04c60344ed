"""What the dispatcher's bench says; the times are for `killproof bench dispatcher` to tell."""

from pathlib import Path

import pytest

from killproof_bench.scenarios import dispatcher, dispatching


def test_a_measured_dispatcher_has_done_every_job_once_and_says_under_which_conditions(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(roles: list[list[str]]) -> list[dict[str, float]]:
        first = roles[0]
        if first[0] == "waiting":
            return [dispatching.waiting(Path(first[1]), 8, 0.01)]
        found = [dispatching.busy(Path(first[1]), 4, 0.05)]
        return found + [dispatching.writing(Path(role[1]), 0, 0.02) for role in roles[1:]]

    monkeypatch.setattr(dispatcher, "_play", play)
    monkeypatch.setattr(dispatcher, "SLOTS_WAITING", 8)
    result = dispatcher.run(place, seconds=0.05)
    said = dispatcher.sentence(result)

    assert result.is_right
    assert result.waiting.succeeded == 8
    assert result.enqueued > 0
    assert result.waiting.looks > 0
    assert "8 jobs that wait 1 s each, 8 slots, one process" in said
    assert "Durability power" in said
    assert "first attempt: yes" in said
