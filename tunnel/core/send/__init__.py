"""The sending half of a stream: send window, round-trip time, loss detection and retransmission."""

__all__: list[str] = []
