"""Scripted traces in the manner of packetdrill: one endpoint, the rest of the world written down line by line."""

__all__: list[str] = []
