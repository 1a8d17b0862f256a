"""Many questions at once on one connection, their frames, and one connection for each address."""

__all__: list[str] = []
