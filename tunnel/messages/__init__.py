"""Messages over a stream."""

__all__: list[str] = []
