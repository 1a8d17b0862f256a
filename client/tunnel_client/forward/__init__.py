"""Local ports that lead to places beyond the relay: listening, datagrams, and traffic totals."""

__all__: list[str] = []
