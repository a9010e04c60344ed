"""Chance without chance: a source whose whole state is one number, so that a run begins anew."""

from random import Random
from typing import Any, Final

_MASK: Final = (1 << 64) - 1


class Dice(Random):
    """A source of randomness whose whole state is one number, so that a run begins anew cheaply.

    SplitMix64 (Steele, Lea and Flood, 2014).
    """

    def __init__(self, seed: int) -> None:
        """Begin at the seed."""
        self._first = seed & _MASK
        self._state = self._first
        super().__init__(seed)

    def again(self) -> None:
        """Begin anew."""
        self._state = self._first

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Begin elsewhere."""
        self._state = hash(a) & _MASK if a is not None else self._first

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of so many random bits."""
        found = 0
        for _ in range(0, k, 64):
            found = found << 64 | self._next()
        return found & ((1 << k) - 1)

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return (self._next() >> 11) / (1 << 53)

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)
