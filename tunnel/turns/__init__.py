"""Turns at the processor of a server that users share: the relay, and the message broker.

`meter` measures the processor time of work, `shares` counts who has spent more than their share, and `queues` stops the
input of those users until it is their turn again.
"""

__all__: list[str] = []
