"""The page: its sections and what they are made of, and the one in which readers choose a connection and draw it."""

__all__: list[str] = []
