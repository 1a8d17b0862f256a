"""What tests of the metrics share: an HTTP request as plain bytes."""

import asyncio

__all__ = ["get"]


async def get(address: tuple[str, int], path: str, *lines: str) -> tuple[int, str]:
    """Return the status and the body."""
    reader, writer = await asyncio.open_connection(*address)
    head = "\r\n".join((f"GET {path} HTTP/1.1", *(lines or ("Host: localhost",)), "", ""))
    writer.write(head.encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    first, _, rest = answer.decode().partition("\r\n")
    return int(first.split()[1]), rest.partition("\r\n\r\n")[2]
