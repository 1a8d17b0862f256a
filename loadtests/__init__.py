"""Load tests and measurements against running systems. Not in the wheel."""

__all__: list[str] = []
