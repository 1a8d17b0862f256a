"""What limited goodput: the time of the senders by cause, and the sentences that say it."""

__all__: list[str] = []
