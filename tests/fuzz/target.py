"""The definition of a fuzz target."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """`run` raises for an input that breaks a promise, and for nothing else. It is deterministic and keeps no state."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[tuple[str, bytes]]]
    """The seeds, by name; corpus.py writes them to files."""
    size_max: int = 4096
    """Bytes of the longest input; longer ones would only make structured targets slow."""
