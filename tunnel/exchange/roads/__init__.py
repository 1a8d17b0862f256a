"""The choice of a road: which to try, which to use, and when to doubt it."""

__all__: list[str] = []
