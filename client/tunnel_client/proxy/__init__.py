"""A local proxy port: SOCKS and HTTP CONNECT."""

__all__: list[str] = []
