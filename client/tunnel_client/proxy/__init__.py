"""A local proxy port that speaks SOCKS and HTTP."""

__all__: list[str] = []
