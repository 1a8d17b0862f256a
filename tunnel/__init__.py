"""Sockets that behave like TCP, over nothing but plain HTTP requests."""

__all__: list[str] = []
