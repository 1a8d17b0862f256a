"""A reverse proxy that alters answers as hotels, virus scanners and accelerators do: into other, valid HTTP answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

__all__ = ["Meddle", "Original", "Seen", "a_meddler", "whole"]


class Original:
    """A request and the relay's answer to it. `number` counts from 1."""

    def __init__(self, number: int, request: web.Request, body: bytes, status: int, answer: bytes) -> None:
        self.number = number
        self.request = request
        self.body = body
        self.status = status
        self.answer = answer


Meddle = Callable[[Original], Awaitable[web.StreamResponse]]
Seen = list[Original]


def whole(original: Original, body: bytes | None = None, status: int = 0, **headers: str) -> web.Response:
    """Return the original answer, except for the parts that the arguments replace."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(
        status=status or original.status,
        body=original.answer if body is None else body,
        headers={"Content-Type": "application/octet-stream", **names},
    )


@asynccontextmanager
async def a_meddler(port: int, meddle: Meddle) -> AsyncIterator[tuple[str, Seen]]:
    """Start the proxy before the relay at `port`; yield its URL and the list of exchanges that passed."""
    seen: Seen = []
    session = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=404)
        body = await request.read()
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type")}
        url = f"http://127.0.0.1:{port}{request.path}"
        try:
            async with session.post(url, data=body, headers=headers) as response:
                answer = await response.read()
        except aiohttp.ClientError:
            return web.Response(status=502)
        seen.append(Original(len(seen) + 1, request, body, response.status, answer))
        return await meddle(seen[-1])

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()
        await session.close()
        await asyncio.sleep(0)  # closed connections are noticed in the next turn of the loop
