"""The one exception of the simulator."""

__all__ = ["Violation"]


class Violation(Exception):  # noqa: N818 - it is a finding, not an error of the simulator
    """A promise was broken; the message says which, where and by how much."""
