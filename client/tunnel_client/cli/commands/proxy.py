"""`tunnel proxy`: a SOCKS and HTTP proxy on one local port, for every program that can use a proxy."""

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog

from tunnel import Attachment
from tunnel.process.command_line import CommandAdder
from tunnel.streams.splice import Side, TunnelSide
from tunnel.system.tasks import KeptTasks
from tunnel_client.cli.commands.forward import announce
from tunnel_client.cli.options import add_relay_options, positive_seconds, relay_settings
from tunnel_client.cli.serving import Served, add_serving_options, run_serving
from tunnel_client.forward.connects import Connects
from tunnel_client.forward.listening import BACKLOG, address_of, bind, cannot_listen
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address, parse_bind
from tunnel_client.proxy.front import ProxyFront
from tunnel_client.proxy.socks import Socks5Request
from tunnel_client.proxy.socks_udp import Association
from tunnel_client.status import serve_status

__all__ = ["Proxying", "add"]

CONNECTIONS_MAX = 1024
REQUEST_S = 10.0
_FLOW_CONNECTS_MAX = 256
_log = structlog.get_logger("tunnel")


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "proxy",
        "run a local SOCKS and HTTP proxy whose connections go through the tunnel",
        "tunnel proxy 1080, then curl --proxy socks5h://127.0.0.1:1080 URL",
    )
    parser.add_argument("address", metavar="[BIND:]PORT", help="address to listen on; BIND is 127.0.0.1 unless given")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=30.0,
        metavar="S",
        help="seconds for a target to answer (default: 30)",
    )
    parser.add_argument(
        "--connections",
        type=_count,
        default=CONNECTIONS_MAX,
        metavar="N",
        help=f"limit on simultaneous connections (default: {CONNECTIONS_MAX})",
    )
    add_serving_options(parser)
    add_relay_options(parser)
    parser.set_defaults(run=run, serves=True)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {(1 << 20) - 1}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Serve the proxy until a signal stops the process."""
    settings = relay_settings(arguments)
    with bind(parse_bind(arguments.address)) as sock:
        serving = partial(_serving, sock=sock, arguments=arguments)
        return run_serving(settings, serving, arguments)


@asynccontextmanager
async def _serving(
    attachment: Attachment, *, sock: socket.socket, arguments: argparse.Namespace
) -> AsyncIterator[Served]:
    traffic = Traffic(attachment)
    proxying = Proxying(
        attachment, sock, traffic, dial_seconds=arguments.timeout, connections_max=arguments.connections
    )
    where = str(address_of(sock))
    async with traffic.report_every(arguments.stats), proxying, serve_status(attachment, f"proxy {where}"):
        announce(f"socks5h://{where} and http://{where}", bind=where)
        yield Served(traffic, proxying)


class Proxying:
    """Serves the proxy on a bound socket: each connection names its own target. Use it with `async with`."""

    def __init__(
        self,
        attachment: Attachment,
        sock: socket.socket,
        traffic: Traffic,
        *,
        dial_seconds: float = 30.0,
        request_seconds: float = REQUEST_S,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.request_seconds = request_seconds
        self._attachment = attachment
        self._socket = sock
        self._address = address_of(sock)  # asked now: a failed listen closes the socket
        self._traffic = traffic
        self._dial_seconds = dial_seconds
        self._connections_max = connections_max
        self._server: asyncio.Server
        self._fronts: dict[ProxyFront, None] = {}
        self._associations: dict[ProxyFront, Association] = {}
        self._closing = KeptTasks()
        self._connects = Connects()
        self._flow_connects = Connects(_FLOW_CONNECTS_MAX)  # in which the associations take turns

    async def __aenter__(self) -> "Proxying":
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: ProxyFront(self), sock=self._socket, backlog=BACKLOG)
        except OSError as error:
            raise cannot_listen(self._address, error) from None
        return self

    async def stop_listening(self) -> None:
        """Free the local port. Open connections go on."""
        self._server.close()
        self._socket.close()

    async def __aexit__(self, *exception: object) -> None:
        """Stop accepting connections, and reset those that are open: a cut must not look like a clean end."""
        self._server.close()
        for front in list(self._fronts):
            front.abort()
            self.forget(front)
        await self._closing.done()

    # the methods of `ProxyServices`, which the connections of the proxy call

    def register(self, front: ProxyFront) -> bool:
        if len(self._fronts) >= self._connections_max:
            _log.warning("full", connections=len(self._fronts), text="connection reset: raise --connections for more")
            return False
        self._fronts[front] = None
        return True

    def forget(self, front: ProxyFront) -> None:
        self._fronts.pop(front, None)
        association = self._associations.pop(front, None)
        if association is not None:
            self._closing.keep(asyncio.get_running_loop().create_task(association.close()))

    async def connect(
        self, host: str, port: int, ended: Callable[[Side, Exception | None], None], source: str
    ) -> TunnelSide:
        def far_ended(side: Side, error: Exception | None) -> None:
            assert isinstance(side, TunnelSide)
            self._traffic.on_ended(side)
            if error is not None:
                self._traffic.fail(str(error))
            ended(side, error)

        try:
            async with self._connects.turn(source):
                _, far = await self._attachment.create_connection(
                    lambda: TunnelSide(ended=far_ended), host, port, timeout=self._dial_seconds
                )
        except Exception as error:
            self._traffic.fail(f"{Address(host, port)}: {error}")
            raise
        self._traffic.on_opened(far)
        return far

    async def associate(self, request: Socks5Request, front: ProxyFront) -> bytes:
        ours, client = front.addresses()
        association = Association(self._attachment, self._traffic, client, request.port, self._flow_connects)
        self._associations[front] = association
        where = await association.open(ours)
        return request.association_answer(*where)
