"""The relay: all code that runs on the open side of the firewall."""

__all__: list[str] = []
