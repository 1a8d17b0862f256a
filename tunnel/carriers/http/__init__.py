"""Exchanges over HTTP: single requests, and the connections that carry them."""

__all__: list[str] = []
