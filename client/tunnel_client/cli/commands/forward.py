"""`tunnel forward`: forward local ports to hosts and services beyond the relay."""

import argparse
import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog

from tunnel import Attachment, TunnelError
from tunnel.process.command_line import CommandAdder, shows_people, tell
from tunnel.streams.splice import Side, SocketSide, TunnelSide, splice
from tunnel_client.cli.options import add_relay_options, relay_settings
from tunnel_client.cli.serving import Served, add_serving_options, run_serving
from tunnel_client.errors import UsageError
from tunnel_client.forward.connects import Connects
from tunnel_client.forward.datagrams import DatagramForwarding
from tunnel_client.forward.listening import BACKLOG, address_of, bind, cannot_listen
from tunnel_client.forward.permission import require_allowed
from tunnel_client.forward.traffic import Traffic
from tunnel_client.forward.unix_sockets import SOCKET_MODE, bind_unix
from tunnel_client.places import EVERYWHERE, Address, ForwardSpec, parse_forwards
from tunnel_client.status import serve_status

__all__ = ["Forwarding", "add", "announce", "bind_forward", "forwarding", "require_distinct"]

_log = structlog.get_logger("tunnel")
_SHOWN_MAX = 20  # forwards that `tunnel status` shows of one command
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "forward",
        "forward local ports to hosts and services beyond the relay",
        "tunnel forward 5432:db.internal:5432 8081:reports",
    )
    parser.add_argument(
        "specs",
        nargs="+",
        metavar="FORWARD",
        help="a local port and its target: [BIND:]PORT:HOST:PORT for TCP, [BIND:]PORT:SERVICE for a service, "
        "udp/[BIND:]PORT:HOST:PORT for UDP. BIND is 127.0.0.1 unless given; * means all IPv4 addresses. A local PORT "
        "of 0 means any free port. Write IPv6 addresses in brackets. Both PORTs may be ranges, as in "
        "8000-8010:HOST:8000-8010. unix:PATH in place of the local PORT names a Unix socket on this machine; "
        "unix:PATH in place of HOST:PORT names a Unix socket at the exit. srv/_SERVICE._tcp.NAME in place of HOST:PORT "
        "asks the name servers (DNS) for the hosts and ports of that service (its SRV record)",
    )
    parser.add_argument(
        "--socket-mode",
        type=_mode,
        default=SOCKET_MODE,
        metavar="MODE",
        help=f"permission bits of the Unix sockets that this command makes, in octal (default: {SOCKET_MODE:04o})",
    )
    add_serving_options(parser)
    add_relay_options(parser)
    parser.set_defaults(run=run, serves=True)


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a mode: write three octal digits, such as 660")
    return int(text, 8)


def run(arguments: argparse.Namespace) -> int:
    """Forward the ports until a signal stops the process."""
    specs = _parsed(arguments.specs)
    require_distinct(specs)
    settings = relay_settings(arguments)
    bound: list[tuple[ForwardSpec, socket.socket]] = []
    try:
        for spec in specs:
            bound.append((spec, bind_forward(spec, arguments.socket_mode)))
        serving = partial(_serving, bound=bound, stats_seconds=arguments.stats)
        return run_serving(settings, serving, arguments)
    finally:
        for _, sock in bound:
            sock.close()


def _parsed(texts: Sequence[str]) -> list[ForwardSpec]:
    """Parse the words. Two words that would be one specification with a colon between them are named in the error."""
    try:
        return [spec for text in texts for spec in parse_forwards(text)]
    except UsageError as error:
        joined = ":".join(texts)
        if len(texts) != 2 or not texts[0].isdecimal():
            raise
        try:
            parse_forwards(joined)
        except UsageError:
            raise error from None
        raise UsageError(f"{error}; did you mean {joined!r}?") from None


def require_distinct(specs: list[ForwardSpec]) -> None:
    """Raise UsageError if two forwards need the same local port or Unix socket.

    Two TCP sockets can be bound to one port: the second would fail only when it listens, after the relay has answered.
    """
    taken: dict[tuple[str, int | None], list[ForwardSpec]] = {}
    for one in specs:
        if not one.bind.port:
            continue
        for other in taken.setdefault((one.protocol, one.bind.port), []):
            hosts = {one.bind.host, other.bind.host}
            if len(hosts) == 1 or (not hosts.isdisjoint(EVERYWHERE) and not one.bind.path and not other.bind.path):
                raise UsageError(_same_place(other, one))
        taken[one.protocol, one.bind.port].append(one)


def _same_place(one: ForwardSpec, other: ForwardSpec) -> str:
    text = (
        f"{one} and {other} have the same local {'socket' if one.bind.path else 'port'}, which can lead to one target "
    )
    if one.bind.path:
        return f"{text}only: write another path for one of them"
    assert one.bind.port is not None
    return f"{text}only: write another port for one of them, such as {one.bind.port + 1}, or 0 for any free one"


@asynccontextmanager
async def _serving(
    attachment: Attachment, *, bound: list[tuple[ForwardSpec, socket.socket]], stats_seconds: float
) -> AsyncIterator[Served]:
    traffic = Traffic(attachment)
    leads = ", ".join(f"{address_of(sock)} -> {spec.target}" for spec, sock in bound[:_SHOWN_MAX])
    if len(bound) > _SHOWN_MAX:
        leads += f", and {len(bound) - _SHOWN_MAX} more"
    async with (
        traffic.report_every(stats_seconds),
        serve_status(attachment, f"forward {leads}"),
        AsyncExitStack() as stack,
    ):
        await require_allowed(attachment, [spec for spec, _ in bound])
        served = Served(traffic)
        for spec, sock in bound:
            served.listening.append(await stack.enter_async_context(forwarding(attachment, spec, sock, traffic)))
            where = f"{'udp/' if spec.protocol == 'udp' else ''}{address_of(sock)}"
            announce(f"{where} -> {spec.target}", bind=where, target=str(spec.target))
        yield served


def bind_forward(spec: ForwardSpec, socket_mode: int = SOCKET_MODE) -> socket.socket:
    """Return a socket that is bound to the local address of a forward. Raises UsageError if that is not possible.

    `socket_mode` holds the permission bits of a Unix socket.
    """
    if spec.bind.path:
        return bind_unix(spec.bind, socket_mode)
    return bind(spec.bind, _KINDS[spec.protocol])


def forwarding(
    attachment: Attachment, spec: ForwardSpec, sock: socket.socket, traffic: Traffic
) -> "DatagramForwarding | Forwarding":
    """Return the object that forwards the connections or datagrams of a bound socket, for `async with`."""
    kind: type[DatagramForwarding | Forwarding] = DatagramForwarding if spec.protocol == "udp" else Forwarding
    return kind(attachment, spec.target, sock, traffic)


def announce(line: str, **fields: str) -> None:
    """Announce that a port or a service is ready: as a line on a terminal, otherwise as a log event."""
    if shows_people():
        tell(line)
    else:
        _log.info("listening", **fields)


class Forwarding:
    """Forwards the connections of a bound socket to one target. Use it with `async with`."""

    def __init__(self, attachment: Attachment, target: Address, sock: socket.socket, traffic: Traffic) -> None:
        self._attachment = attachment
        self._target = target
        self._socket = sock
        self._address = address_of(sock)  # asked now: a failed listen closes the socket
        self._traffic = traffic
        self._server: asyncio.Server
        self._near: dict[Side, asyncio.Task[None]] = {}
        self._connects = Connects()

    async def __aenter__(self) -> "Forwarding":
        loop = asyncio.get_running_loop()
        listen = loop.create_unix_server if self._address.path else loop.create_server
        try:
            self._server = await listen(
                lambda: SocketSide(self._accepted, self._near_ended), sock=self._socket, backlog=BACKLOG
            )
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
        tasks = list(self._near.values())
        for side in list(self._near):
            side.abort_both()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, near: Side) -> None:
        self._near[near] = asyncio.get_running_loop().create_task(self._connect(near))

    def _near_ended(self, near: Side, error: Exception | None) -> None:
        task = self._near.pop(near)
        if not task.done():
            task.cancel()

    async def _connect(self, near: Side) -> None:
        """Connect to the target. If that fails, reset the local connection."""
        assert isinstance(near, SocketSide)
        try:
            async with self._connects.turn(near.source):
                _, far = await self._attachment.create_connection(
                    lambda: TunnelSide(ended=self._far_ended), self._target.host, self._target.port
                )
        except TunnelError as error:
            self._traffic.fail(str(error))
            _log.warning("not_connected", target=str(self._target), text=str(error))
            near.abort()
        except BaseException:
            near.abort()
            raise
        else:
            self._traffic.on_opened(far)
            splice(near, far)

    def _far_ended(self, far: Side, error: Exception | None) -> None:
        assert isinstance(far, TunnelSide)
        self._traffic.on_ended(far)
        if error is not None:
            self._traffic.fail(str(error))
            _log.warning("lost", target=str(self._target), text=str(error))
