"""The endpoint's end of a connection that stays open: opening it, greeting the relay, and using it."""

__all__: list[str] = []
