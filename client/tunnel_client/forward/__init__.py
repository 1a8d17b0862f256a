"""Local ports that lead to targets beyond the relay: listening, datagrams, and traffic totals."""

__all__: list[str] = []
