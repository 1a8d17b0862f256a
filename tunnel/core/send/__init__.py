"""The sending half of a stream: window, round-trip time, loss, retransmission."""

__all__: list[str] = []
