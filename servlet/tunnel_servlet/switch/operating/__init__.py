"""What the operator sees of the switch, and may end."""

__all__: list[str] = []
