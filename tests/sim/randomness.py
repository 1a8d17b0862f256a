"""Seeded streams of random numbers, one per purpose: an added draw in one leaves the others unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

__all__ = ["NearWrap", "between", "chance", "log_between", "pick", "stream"]

T = TypeVar("T")


def stream(seed: int, *names: str | int) -> Random:
    """The stream of this seed with this name (seeding by text uses SHA-512, never hash())."""
    return Random("/".join(map(str, (seed, *names))))


def chance(random: Random, probability: float) -> bool:
    """True with this probability; draws nothing for a probability of 0."""
    return probability > 0 and random.random() < probability


def between(random: Random, low: int, high: int) -> int:
    return random.randint(low, high)


def log_between(random: Random, low: int, high: int) -> int:
    """Draw a number evenly over the orders of magnitude: small and large are equally likely."""
    return round(math.exp(random.uniform(math.log(low), math.log(high))))


def pick(random: Random, choices: Sequence[T]) -> T:
    return choices[random.randrange(len(choices))]


class NearWrap(Random):
    """Every 32-bit draw is less than 2**32 by at most 2**21, and often by much less: many sequence numbers (and ids)
    wrap soon, and yet there are enough different ids."""

    def getrandbits(self, k: int, /) -> int:
        if k != 32:
            return super().getrandbits(k)
        draw = super().getrandbits(64)
        span = 4 << draw % 20
        return (1 << 32) - 1 - (draw >> 8) % span
