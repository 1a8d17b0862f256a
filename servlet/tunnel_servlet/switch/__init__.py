"""The switch: which packet goes where, and what is kept until it has left. Sans-I/O."""

__all__: list[str] = []
