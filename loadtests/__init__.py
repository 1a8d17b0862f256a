"""Load tests and measurements against running systems. They are not in the wheel."""

__all__: list[str] = []
