"""Other endpoints than ours, and what the documents promise them."""

__all__: list[str] = []
