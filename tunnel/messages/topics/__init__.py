"""Both ends of a topic: producers and their requests, the consumer and what it unpacks."""

__all__: list[str] = []
