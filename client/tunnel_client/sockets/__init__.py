"""Sockets of the standard library whose other end is beyond a tunnel, and what moves their bytes."""

__all__: list[str] = []
