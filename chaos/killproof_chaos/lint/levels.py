"""What a target's level lets it be judged on, and what the next one adds."""

from typing import Final

#: By level: what it consists of, and what it adds.
LEVELS: Final = (
    (
        "enqueue, worker, snapshot",
        "P1 to P4, P6, P8, P10, P13, P15 to P17, P19, P20 by the engines proc, crash and disk",
    ),
    (
        "`audit`, the columns of the queue's own table",
        "the exact order of the commits: P7, P9, P12, P14 (P22 to P24 with their capabilities), "
        "and every other promise more sharply",
    ),
    (
        "`open(place, host)`, the queue's own code on a given connection, clock and randomness",
        "the engine sim: every schedule of its statements up to a bound, with a token that replays",
    ),
    (
        "`sync_points`, and a worker that records its claims and outcomes",
        "kills and pauses aimed at each named place; P5, P11, P18 and P21",
    ),
)
ENGINES: Final = (
    ("proc", "crash", "disk"),
    ("proc", "crash", "disk"),
    ("proc", "crash", "disk", "sim"),
    ("proc", "crash", "disk", "sim"),
)


def next_step(level: int) -> str:
    """Return what the next level takes, and what it unlocks."""
    if level + 1 == len(LEVELS):
        return "this is the highest level"
    consists, unlocks = LEVELS[level + 1]
    return f"level {level + 1} is {consists}: it unlocks {unlocks}"
