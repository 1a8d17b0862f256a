"""What waits for one attachment and what it has taken, with the order, the limits and the rates."""

__all__: list[str] = []
