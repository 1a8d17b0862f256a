"""The command `tunnel-relay`, and the operator's files that it reads and writes."""

__all__: list[str] = []
