"""What the operator sees of a running relay at the admin listener, and may end there."""

__all__: list[str] = []
