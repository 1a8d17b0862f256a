"""Reads a relay's state from its admin listener."""

import asyncio
import json
from typing import Any

__all__ = ["relay_state"]

_ANSWER_S = 5.0


async def relay_state(port: int, secret: str) -> dict[str, Any]:
    """Return the relay's /state, which it shows to the holder of the admin secret.

    Raise OSError if it does not answer, and ValueError if the answer is not JSON."""
    async with asyncio.timeout(_ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            head = f"GET /state HTTP/1.1\r\nHost: localhost\r\nTunnel-Admin: {secret}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    found: dict[str, Any] = json.loads(body)
    return found
