"""Scripted traces in the manner of packetdrill: a script plays all other parties around one endpoint, line by line."""

__all__: list[str] = []
