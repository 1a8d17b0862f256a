"""The relay: everything that runs on the open side."""

__all__: list[str] = []
