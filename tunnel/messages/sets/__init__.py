"""Messages and sets of them, in memory and in files."""

__all__: list[str] = []
