"""The tables: what they have taken from trace files, how they take more, and how old days leave."""

__all__: list[str] = []
