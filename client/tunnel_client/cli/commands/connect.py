"""`tunnel connect`: a connection through the tunnel on standard input and output."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import Any

import tunnel
from tunnel.ground.exit_codes import OK
from tunnel.ground.printable import no_answer
from tunnel.process.command_line import CommandAdder
from tunnel_client.cli.attaching import WAITING, add_wait_option, attached, say_to_people
from tunnel_client.cli.options import add_relay_options, positive_seconds, relay_settings
from tunnel_client.cli.stdio import Input, Output
from tunnel_client.places import Address, parse_target
from tunnel_client.settings import RelaySettings

__all__ = ["add", "join"]

_READ_BYTES = 256 * 1024


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "connect",
        "connect standard input and output to a target through the tunnel",
        "ssh -o ProxyCommand='tunnel connect %h:%p' ann@db.internal",
    )
    parser.add_argument("target", metavar="HOST:PORT", help="the target: HOST:PORT, or the name of a service")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=30.0,
        metavar="S",
        help="seconds for the target to answer (default: 30)",
    )
    add_wait_option(parser, 30.0)
    add_relay_options(parser)
    parser.set_defaults(run=run, logs=False)


def run(arguments: argparse.Namespace) -> int:
    """Connect, and move bytes until both directions have ended."""
    from tunnel_client.cli import one_task

    target = parse_target(arguments.target)
    return one_task.run(_connect(relay_settings(arguments), target, arguments))


async def _connect(settings: RelaySettings, target: Address, arguments: argparse.Namespace) -> int:
    async with attached(settings, arguments) as attachment:
        attachment.add_wait_listener(_Waits())
        try:
            reader, writer = await attachment.open_connection(target.host, target.port, timeout=arguments.timeout)
        except TimeoutError as error:
            raise tunnel.LostError(f"{error}: try again, or see what `tunnel doctor {target}` says") from None
        try:
            await join(reader, writer, Input(), Output())
        finally:
            writer.close()
    return OK


class _Waits:
    """Says why the target does not answer."""

    def unanswered(self, target: str, seconds: float, why: str) -> None:
        say_to_people(WAITING, f"{target}: {no_answer(seconds, why)}: still trying")


async def join(reader: tunnel.StreamReader, writer: tunnel.StreamWriter, source: Input, sink: Output) -> None:
    """Move bytes both ways until both directions have ended.

    The end of one direction leaves the other open. But if `source` is a terminal, the call also ends when the peer has
    ended its direction. Raises the error that ended the connection, unless it ended cleanly.
    """
    sending = asyncio.ensure_future(_send(source, writer))
    receiving = asyncio.ensure_future(_receive(reader, sink))
    closed = asyncio.ensure_future(writer.wait_closed())
    pending: set[asyncio.Future[Any]] = {sending, receiving, closed}
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if receiving in done:
                receiving.result()
            if receiving.done() and (closed.done() or sending.done() or source.is_terminal):
                break
        # A failure to send is raised only here, after everything that was received has been passed on.
        for ended in (sending, closed):
            if ended.done():
                ended.result()
    finally:
        tasks = (sending, receiving, closed)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _send(source: Input, writer: tunnel.StreamWriter) -> None:
    while data := await source.read():
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _receive(reader: tunnel.StreamReader, sink: Output) -> None:
    while data := await reader.read(_READ_BYTES):
        await sink.write(data)
    await sink.end()
