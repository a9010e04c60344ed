"""The story of one job as a picture: who did what to it, and when.

A broken promise is believed when its story can be read. The events of the witness job stand in
the order of time, one a row, each in the lane of its process: a sequence diagram that runs
downwards and says how long the pauses were. A lane is thick while its process holds the lease,
dotted while it is stopped, and goes from its first event to its last. The rows that the checker
cites are marked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from killproof_chaos.report_events import QUEUE_LANE, Event, events_of
from killproof_evidence.evidence import Evidence
from killproof_evidence.finding import Line

#: Rows of one picture: a poison job that loops has thousands, and all alike.
EVENTS_MAX: Final = 40
#: Lanes side by side that can still be told apart.
LANES_MAX: Final = 10
#: Time between two events that is worth a word, ms.
GAP_MS_MIN: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the picture: the event, and how each lane looks beside it."""

    ms: float  #: since the first event
    gap_ms: float | None  #: since the row before, where that is long
    left_out: int  #: events between the row before and this one that are not shown
    event: Event
    cited: bool  #: one of the lines that prove the violation
    before: tuple[str, ...]  #: how the lanes look just above: "", "lives", "holds" or "stopped"
    lanes: tuple[str, ...]  #: how they look here


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The picture of one witness."""

    job: str
    lanes: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: int


def timeline_of(
    evidence: Evidence, witness: Mapping[str, Any], events_max: int = EVENTS_MAX
) -> Timeline | None:
    """Return the picture of a witness's job; None where it names none that is on record."""
    story = evidence.story_of(str(witness["job"])) if witness.get("job") is not None else None
    if story is None:
        return None
    cited = {(line["file"], line["line"]) for line in witness["lines"]}
    every = events_of(evidence, story, cited)
    lanes = _lanes(every, cited)
    events = [event for event in every if event.lane in lanes]
    if not events:
        return None
    shown = _chosen(events, cited, events_max)
    return Timeline(
        job=str(story.label),
        lanes=lanes,
        rows=tuple(_rows(events, shown, lanes, cited)),
        left_out=len(every) - len(shown),
    )


def _lanes(events: Sequence[Event], cited: set[Line]) -> tuple[str, ...]:
    """Return the lanes in the order of their first event; what the queue committed comes last.

    Where there are too many, those that the checker cites stay.
    """
    found = dict.fromkeys(event.lane for event in events if event.lane != QUEUE_LANE)
    if len(found) > LANES_MAX:
        needed = {event.lane for event in events if event.line in cited}
        kept = sorted(found, key=lambda lane: lane not in needed)[:LANES_MAX]
        found = dict.fromkeys(lane for lane in found if lane in kept)
    committed = any(event.lane == QUEUE_LANE for event in events)
    return (*found, QUEUE_LANE) if committed else tuple(found)


def _chosen(events: Sequence[Event], cited: set[Line], count_max: int) -> list[int]:
    """Return the indexes of the events to show: the cited, first and last, then what is nearest."""
    if len(events) <= count_max:
        return list(range(len(events)))
    centres = [index for index, event in enumerate(events) if event.line in cited]
    centres += [0, len(events) - 1]
    nearest = sorted(
        range(len(events)), key=lambda index: min(abs(index - centre) for centre in centres)
    )
    return sorted(nearest[:count_max])


def _rows(
    events: Sequence[Event], shown: Sequence[int], lanes: Sequence[str], cited: set[Line]
) -> Iterator[Row]:
    looks = dict.fromkeys(lanes, "")
    holding: set[str] = set()
    stopped: set[str] = set()
    final = {event.lane: index for index, event in enumerate(events)}
    visible, last_index, last_ms = set(shown), -1, 0.0
    for index, event in enumerate(events):
        lane, before = event.lane, tuple(looks.values())
        for state, members in ((event.holds, holding), (event.stopped, stopped)):
            if state is not None:
                (members.add if state else members.discard)(lane)
        looks[lane] = "stopped" if lane in stopped else "holds" if lane in holding else "lives"
        if index in visible:
            ms = (event.t - events[0].t) / 1e6
            yield Row(
                ms=ms,
                gap_ms=ms - last_ms if ms - last_ms >= GAP_MS_MIN else None,
                left_out=index - last_index - 1,
                event=event,
                cited=event.line in cited,
                before=before,
                lanes=tuple(looks.values()),
            )
            last_index, last_ms = index, ms
        if event.ends or final[lane] == index:
            looks[lane] = ""
            holding.discard(lane)
            stopped.discard(lane)
