"""What a fuzz target is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """`run` raises for an input that breaks a promise, and for nothing else. It is deterministic and keeps no state."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[tuple[str, bytes]]]
    """The committed corpus, by name; see seeds.py."""
    size_max: int = 4096
    """Bytes of the longest input; longer ones only make structured targets slow."""
