"""One half of a link as an asyncio protocol, on TCP or on a websocket: the endpoint and the relay use it."""

__all__: list[str] = []
