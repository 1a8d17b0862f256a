"""The life of tokens while the relay runs."""

__all__: list[str] = []
