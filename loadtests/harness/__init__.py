"""Building blocks of the load tests: processes, ports, relays, transfers to check, packet loss."""

__all__: list[str] = []
