"""The command `tunnel`."""

__all__: list[str] = []
