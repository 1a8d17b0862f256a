"""`tunnel forward`: local ports that lead to targets and services beyond the relay."""

import argparse
import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog

from tunnel import Attachment, TunnelError
from tunnel.command_line import CommandAdder
from tunnel.splice import Side, SocketSide, TunnelSide, splice
from tunnel_client.cli.options import add_relay_options, relay_settings
from tunnel_client.cli.serving import add_serving_options, run_serving
from tunnel_client.forward.datagrams import DatagramForwarding
from tunnel_client.forward.listening import BACKLOG, address_of, bind, cannot_listen
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address, ForwardSpec, parse_forward
from tunnel_client.status import serve_status

__all__ = ["Forwarding", "add", "announce"]

_log = structlog.get_logger("tunnel")
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def add(commands: CommandAdder) -> None:
    """The command."""
    parser = commands.add(
        "forward",
        "make local ports lead to targets and services beyond the relay",
        "tunnel forward --relay https://relay.example --token-file token 5432:db.internal:5432 8080:reports",
    )
    parser.add_argument(
        "specs",
        nargs="+",
        metavar="[udp/][BIND:]PORT:HOST:PORT|[BIND:]PORT:SERVICE",
        help="BIND is 127.0.0.1 unless given, * is any IPv4 address; PORT 0 is any that is free; IPv6 in brackets; "
        "udp/ is for datagrams",
    )
    add_serving_options(parser)
    add_relay_options(parser)
    parser.set_defaults(run=run, serves=True)


def run(arguments: argparse.Namespace) -> int:
    """Forward until told to stop."""
    specs = [parse_forward(text) for text in arguments.specs]
    settings = relay_settings(arguments)
    bound: list[tuple[ForwardSpec, socket.socket]] = []
    try:
        for spec in specs:
            bound.append((spec, bind(spec.bind, _KINDS[spec.protocol])))
        serving = partial(_serving, bound=bound, stats_seconds=arguments.stats)
        return run_serving(settings, serving, attach_seconds=arguments.wait)
    finally:
        for _, sock in bound:
            sock.close()


@asynccontextmanager
async def _serving(
    attachment: Attachment, *, bound: list[tuple[ForwardSpec, socket.socket]], stats_seconds: float
) -> AsyncIterator[None]:
    traffic = Traffic(attachment)
    leads = ", ".join(f"{address_of(sock)} -> {spec.target}" for spec, sock in bound)
    async with traffic.reported(stats_seconds), serve_status(attachment, f"forward {leads}"), AsyncExitStack() as stack:
        for spec, sock in bound:
            forwarding = DatagramForwarding if spec.protocol == "udp" else Forwarding
            await stack.enter_async_context(forwarding(attachment, spec.target, sock, traffic))
            where = f"{'udp/' if spec.protocol == 'udp' else ''}{address_of(sock)}"
            announce(f"{where} -> {spec.target}", bind=where, target=str(spec.target))
        yield


def announce(line: str, **fields: str) -> None:
    """It is ready: a line for a person, an event for a log."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
    else:
        _log.info("listening", **fields)


class Forwarding:
    """A bound socket whose connections lead to one target. `async with` it."""

    def __init__(self, attachment: Attachment, target: Address, sock: socket.socket, traffic: Traffic) -> None:
        self._attachment = attachment
        self._target = target
        self._socket = sock
        self._traffic = traffic
        self._server: asyncio.Server
        self._near: dict[Side, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Forwarding":
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: SocketSide(self._accepted, self._near_ended), sock=self._socket, backlog=BACKLOG
            )
        except OSError as error:
            raise cannot_listen(address_of(self._socket), error) from None
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Take no more connections, and reset those that are open: a cut must not look like an end."""
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
        """Reach the target, or reset who asked for it."""
        try:
            _, far = await self._attachment.create_connection(
                lambda: TunnelSide(ended=self._far_ended), self._target.host, self._target.port
            )
        except TunnelError as error:
            self._traffic.failed += 1
            _log.warning("not_connected", target=str(self._target), text=str(error))
            near.abort()
        except BaseException:
            near.abort()
            raise
        else:
            self._traffic.opened(far)
            splice(near, far)

    def _far_ended(self, far: Side, error: Exception | None) -> None:
        assert isinstance(far, TunnelSide)
        self._traffic.ended(far)
        if error is not None:
            self._traffic.failed += 1
            _log.warning("lost", target=str(self._target), text=str(error))
