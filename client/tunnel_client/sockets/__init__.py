"""Sockets of the standard library that connect through a tunnel, and the code that moves their bytes."""

__all__: list[str] = []
