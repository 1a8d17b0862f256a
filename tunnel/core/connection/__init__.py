"""One connection: its states, how it opens and closes, what comes in and what leaves."""

__all__: list[str] = []
