"""The listener of --metrics, for clients and exits: GET /metrics, /livez and /readyz."""

import argparse
import asyncio
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

import h11
import structlog

from tunnel.metrics.local_requests import is_loopback, why_a_page
from tunnel.metrics.page import PAGE_TYPE, MissingLibraryError, require_library
from tunnel.streams.asyncio_compat import start_server

__all__ = ["MetricsListener", "add_metrics_option", "parse_metrics_address"]

_log = structlog.get_logger("metrics")
_HEAD_BYTES_MAX = 16 << 10
_REQUEST_S = 5.0  # time for a whole request, and again for its answer to be read
_CONNECTIONS_MAX = 16
_BACKLOG = 16
_TEXT = "text/plain; charset=utf-8"


def add_metrics_option(parser: argparse.ArgumentParser) -> None:
    """Add --metrics."""
    parser.add_argument(
        "--metrics",
        type=parse_metrics_address,
        metavar="[HOST:]PORT",
        help="serve /metrics for Prometheus, /livez, and /readyz (503 without a relay) at this address. Without a "
        "host, only this machine reaches it. With another one, everybody who reaches it can read how much traffic "
        "there is, without a password: let a firewall restrict that (default: no listener)",
    )


def parse_metrics_address(text: str) -> tuple[str, int]:
    """Return host and port, for argparse. Without a host, it is 127.0.0.1."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        ip_address("127.0.0.1" if host == "localhost" else host)
        number = int(port) if port.isascii() and port.isdigit() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: write PORT, or HOST:PORT as in 127.0.0.1:9081")
    return host, number


class MetricsListener:
    """Serves `page()` at an address while `start` to `close` lasts. `is_ready` says whether there is a relay.

    A connection serves one request, and there are at most `_CONNECTIONS_MAX` of them.
    """

    def __init__(self, address: tuple[str, int], page: Callable[[], bytes], is_ready: Callable[[], bool]) -> None:
        self.address = address
        self._page = page
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen. Raise MissingLibraryError without prometheus-client, or OSError if the address cannot be used."""
        require_library()
        host, port = self.address
        self._server = await start_server(self._serve, host, port, limit=_HEAD_BYTES_MAX, backlog=_BACKLOG)
        self.address = host, self._server.sockets[0].getsockname()[1]
        host = f"[{host}]" if ":" in host else host
        _log.info("listening", url=f"http://{host}:{self.address[1]}/metrics")
        if not is_loopback(self.address[0]) and self.address[0] != "localhost":
            text = "everybody who reaches this address can read the metrics, without a password"
            _log.warning("metrics_are_public", text=text)

    async def close(self) -> None:
        """Stop listening, and cut the connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            async with asyncio.timeout(_REQUEST_S):
                answer = await self._answer(reader, str(writer.get_extra_info("peername")[0]))
            writer.write(answer)
            async with asyncio.timeout(_REQUEST_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._open.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader, remote: str) -> bytes:
        """Return the whole response to the request that comes."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)
        with suppress(h11.RemoteProtocolError):
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(_HEAD_BYTES_MAX))
            if isinstance(event, h11.Request):
                status, kind, body = self._respond(event, remote)
                return _render(connection, status, kind, body)
        return b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    def _respond(self, request: h11.Request, remote: str) -> tuple[int, str, bytes]:
        hosts = [value.decode("latin-1") for name, value in request.headers if name == b"host"]
        why = why_a_page(remote, hosts, has_origin=any(name == b"origin" for name, _ in request.headers))
        if why:
            return 403, _TEXT, f"{why}\n".encode()
        if request.method != b"GET":
            return 405, _TEXT, b"GET only\n"
        path = request.target.partition(b"?")[0]
        if path == b"/livez":
            return 200, _TEXT, b"live\n"
        if path == b"/readyz":
            return (200, _TEXT, b"ready\n") if self._is_ready() else (503, _TEXT, b"no relay\n")
        if path != b"/metrics":
            return 404, _TEXT, b"there are /metrics, /livez and /readyz\n"
        try:
            return 200, PAGE_TYPE, self._page()
        except MissingLibraryError as error:
            return 501, _TEXT, f"{error}\n".encode()


def _render(connection: h11.Connection, status: int, kind: str, body: bytes) -> bytes:
    headers = [
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    head = connection.send(h11.Response(status_code=status, headers=headers)) or b""
    return head + (connection.send(h11.Data(data=body)) or b"") + (connection.send(h11.EndOfMessage()) or b"")
