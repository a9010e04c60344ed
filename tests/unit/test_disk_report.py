"""The pictures and the report of power cuts: pure functions of what was found."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from killproof_chaos.report_disk import LIMITS, POLICIES
from killproof_chaos.report_disk_markdown import Queue, markdown
from killproof_chaos.report_disk_plot import COLUMNS_MAX, Mark, Moment, scene, strips


def moment(number: int, left: int | None, **changes: Any) -> Moment:
    facts: dict[str, Any] = {"lane": "log", "answers": 1, "left": {"drop": left}}
    return Moment(ms=float(number), record=10 * number, **facts | changes)


def shapes(svg: str, style: str) -> list[ElementTree.Element]:
    """Return the marks of a class; the text must be well-formed XML to be read at all."""
    return [e for e in ElementTree.fromstring(svg).iter() if e.get("class") == style]


def test_a_lost_stretch_is_a_block_and_a_kept_one_a_thin_line() -> None:
    svg = strips([moment(0, 0), moment(1, 0), moment(2, 3), moment(3, 0)], ["drop"], [])
    gone, kept = shapes(svg, "gone"), shapes(svg, "kept")

    assert len(gone) == 1
    assert len(kept) == 2
    assert float(gone[0].get("height", 0)) > 4 * float(kept[0].get("height", 0))
    assert "up to 3 acknowledgements gone" in str(gone[0][0].text)
    assert "record 20" in str(gone[0][0].text)


def test_a_file_that_does_not_open_is_told_apart_from_a_loss() -> None:
    svg = strips([moment(0, 5), moment(1, -1)], ["drop"], [])

    assert len(shapes(svg, "gone")) == len(shapes(svg, "shut")) == 1


def test_a_point_that_was_not_cut_is_not_shown_as_kept() -> None:
    svg = strips([moment(0, None), moment(1, 0)], ["drop"], [])

    assert len(shapes(svg, "blank")) == len(shapes(svg, "kept")) == 1


def test_neighbouring_losses_keep_titles_of_their_own() -> None:
    svg = strips([moment(0, 1), moment(1, 2)], ["drop"], [])

    assert ["up to 1" in str(shapes(svg, "gone")[0][0].text), len(shapes(svg, "gone"))] == [True, 2]


def test_a_long_recording_has_no_more_columns_than_the_picture() -> None:
    svg = strips([moment(number, number % 2) for number in range(5_000)], ["drop"], [])

    assert len(shapes(svg, "gone")) == COLUMNS_MAX
    assert len(svg) < 200_000


def test_kills_at_one_moment_are_one_sign_with_their_number() -> None:
    svg = strips([moment(number, 0) for number in range(10)], ["drop"], [4.0, 4.0, 7.5])
    signs = shapes(svg, "kill")

    assert [str(sign[0].text) for sign in signs] == [
        "2 processes are killed at 4 ms", "1 process is killed at 8 ms"
    ]  # fmt: skip


def test_a_scene_tells_the_answer_that_is_gone_from_the_others_and_escapes_all() -> None:
    marks = [
        Mark(row="p1", at=1, until=None, kind="write", title="wrote"),
        Mark(row="p1", at=2, until=None, kind="gone", title="<script>"),
        Mark(row="w1", at=2, until=6, kind="sync", title="sync"),
        Mark(row="w1", at=7, until=None, kind="answer", title="claim"),
    ]
    svg = scene(marks, 2, ["p1", "w1"])

    assert len(shapes(svg, "gone")) == len(shapes(svg, "answer")) == 1
    assert "<script>" not in svg
    assert float(shapes(svg, "sync")[0].get("width", 0)) > 100


def record_of(target: str, level: str, lost: int) -> dict[str, Any]:
    counts = dict.fromkeys(
        ("images", "distinct", "images_opened", "points", "points_cut", "acknowledged", "records"),
        100,
    )
    figures = {"images_lost": lost, "points_lost": lost, "worst": lost, "policies": {"drop": lost}}
    return {
        "target": target, "level": level, "seed": 1, "verdict": "violated" if lost else "pass",
        "counts": counts | {"images_unopened": 0, "images_per_cpu_second": 200},
        "faults": {"kill": 5}, "checking_ms": {"open": 1.0}, "coverage": {"hit": 9, "obliged": 9},
        "properties": {
            "P1": {"verdict": "pass", "figures": figures},
            **{f"P{n}": {"verdict": "pass"} for n in (6, 7, 12, 13, 14, 16)},
        },
        "environment": {"python": "3", "sqlite": "3", "cores": 2, "fs": "ext4", "cpu": "a CPU"},
        "replay": f"killproof chaos disk --target {target} --jobs 80",
    }  # fmt: skip


def test_the_report_adds_up_the_runs_of_each_queue_and_says_what_it_does_not_show() -> None:
    good, bad = record_of("killproof", "power", 0), record_of("hasty", "power", 40)
    queues = {"killproof": Queue(records=[good, good]), "hasty": Queue(records=[bad])}
    figures = {name: queue.figures() for name, queue in queues.items()}
    text = markdown(queues, figures, "page.html")

    assert figures["killproof"]["distinct"] == 200
    assert "of 200 distinct images (200 power cuts) 0 lack an acknowledgement" in text
    assert re.search(r"\| hasty \| a power cut \| 1 \| .* \| 40 \(40%\) \|", text)
    assert all(limit in text for limit in LIMITS)
    assert all(f"`{policy}`" in text for policy in POLICIES)
    assert good["replay"] in text


@pytest.mark.parametrize("level", ["power", "process"])
def test_the_report_says_what_each_queue_promises_to_survive(level: str) -> None:
    queues = {"one": Queue(records=[record_of("one", level, 0)])}
    text = markdown(queues, {"one": queues["one"].figures()}, "page.html")

    assert ("a kill" if level == "process" else "a power cut") in text
