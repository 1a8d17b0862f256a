"""The receiving half of a stream: window, and when an acknowledgement leaves."""

__all__: list[str] = []
