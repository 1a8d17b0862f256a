"""What every load test needs: processes, ports, relays, bytes to move, packets to lose."""

__all__: list[str] = []
