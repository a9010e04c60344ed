"""Which queues the card has: those of other people, and healthy ones as controls."""

from collections.abc import Sequence

from killproof_chaos import targets
from killproof_chaos.targets import public


def names(only: Sequence[str] = ()) -> list[str]:
    """Return the queues in the order of the card, the controls first.

    Args:
        only: of all these names; empty: all.

    Raises:
        ValueError: one is not on the card; the message says what is.
    """
    known = sorted(public.names(), key=lambda name: (not is_control(name), name))
    for name in only:
        if name not in known:
            raise ValueError(f"--only {name!r} is not on the card: use {', '.join(known)}")
    return [name for name in known if not only or name in only]


def is_control(name: str) -> bool:
    """Say whether a queue is one of our own, which must be accused of nothing."""
    return getattr(targets.load(name), "peer", None) is None
