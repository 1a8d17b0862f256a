"""One connection: its states, its opening and closing, its incoming and outgoing packets."""

__all__: list[str] = []
