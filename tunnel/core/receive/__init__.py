"""The receiving half of a stream: the receive window, and the decision when an ACK leaves."""

__all__: list[str] = []
