"""The one exception of the simulator."""

__all__ = ["Violation"]


class Violation(Exception):
    """A promise was broken; the message says which, where and by how much."""
