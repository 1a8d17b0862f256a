"""Local ports that lead beyond the relay: listening, datagrams, what was carried."""

__all__: list[str] = []
