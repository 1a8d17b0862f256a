"""Runs a command that serves until a signal, a refusal by the relay or, with --give-up-after, a long outage ends it."""

import argparse
import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol, TypeAlias

import structlog

from tunnel import Attachment, TunnelError
from tunnel.ground.rates import parse_rate
from tunnel.logs.outages import OutageLog
from tunnel.metrics.listener import add_metrics_option
from tunnel.process.command_line import add_events_option
from tunnel.process.stopping import until_lost, until_moved, until_stopped
from tunnel_client.cli.attaching import (
    add_wait_option,
    going_on,
    look_at,
    make_attachment,
    say_or_log,
    told_of_waiting,
)
from tunnel_client.cli.lookups import client_loop
from tunnel_client.cli.options import positive_seconds
from tunnel_client.errors import UsageError
from tunnel_client.forward.traffic import Traffic
from tunnel_client.settings import RelaySettings

__all__ = [
    "Listening",
    "Served",
    "Serving",
    "add_serving_options",
    "finish",
    "run_serving",
]


class Listening(Protocol):
    """A local port or a service that accepts connections."""

    async def stop_listening(self) -> None:
        """Free the port or the name at once. Open connections go on, but flows of datagrams end with their port."""


class Served:
    """The ports or services on which a command listens, and the traffic of its connections.

    The command ends with `refusal` once that is set.
    """

    def __init__(self, traffic: Traffic, *listening: Listening) -> None:
        self.refusal: TunnelError | None = None
        self.traffic = traffic
        self.listening = list(listening)


Serving: TypeAlias = Callable[[Attachment], AbstractAsyncContextManager[Served]]

_log = structlog.get_logger("tunnel")


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every serving command has."""
    add_wait_option(parser, 30.0)
    parser.add_argument(
        "--give-up-after",
        type=positive_seconds,
        metavar="SECONDS",
        help="end with exit code 6 when a relay that was reached before has not answered for this number of seconds "
        "(default: keep trying)",
    )
    parser.add_argument(
        "--stats",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="log traffic totals every S seconds and at the end (default: never)",
    )
    add_rate_option(parser)
    add_metrics_option(parser)
    add_events_option(parser)


def add_rate_option(parser: argparse.ArgumentParser, *, default: str = "no limit") -> None:
    """Add --rate, the limit of all connections of the command together. `default`: what holds without it, in words."""
    parser.add_argument(
        "--rate",
        type=_rate,
        metavar="RATE",
        help="bytes per second that all connections together may move in each direction, such as '20 MiB/s'; they "
        f"share it fairly, and bytes that exceed it wait (default: {default})",
    )


def _rate(text: str) -> str:
    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def run_serving(settings: RelaySettings, serving: Serving, arguments: argparse.Namespace) -> int:
    """Attach and serve until a signal; return the exit code, 0 for SIGTERM and 130 for SIGINT.

    After SIGTERM, connections that still move bytes may finish; a second signal cuts them. Raises TunnelError if the
    relay refuses the command, at the start or later, if no relay answers at the start, or if the relay does not answer
    for longer than --give-up-after.
    """
    with asyncio.Runner(loop_factory=client_loop) as runner:
        return runner.run(_run(settings, serving, arguments))


async def _run(settings: RelaySettings, serving: Serving, arguments: argparse.Namespace) -> int:
    try:
        attachment = make_attachment(settings, arguments)
    except ValueError as error:
        raise UsageError(str(error)) from None
    served: list[Served] = []  # at most one
    finishing = asyncio.Event()

    async def serve() -> None:
        try:
            async with told_of_waiting(look_at(attachment), settings.url, say_or_log, going_on=going_on(arguments)):
                await attachment.start()
            log = OutageLog(_log)
            attachment.add_connection_listener(log)
            attachment.add_wait_listener(log)
            async with serving(attachment) as found:
                served.append(found)
                await until_lost(attachment, arguments.give_up_after, lambda: found.refusal, finishing)
        finally:
            await attachment.close()

    async def finish_served() -> None:
        finishing.set()
        for one in served:
            await finish(one.listening, [one.traffic])

    async with AsyncExitStack() as stack:
        from tunnel.metrics.endpoint import serve_metrics  # here: it imports what attachments need

        try:
            await stack.enter_async_context(serve_metrics(arguments.metrics, attachment, settings.trace))
        except ValueError as error:
            await attachment.close()
            raise UsageError(str(error)) from None
        return await until_stopped(serve(), finish_served)


async def finish(listening: Iterable[Listening], traffics: Sequence[Traffic]) -> None:
    """Stop listening, and return when no connection moves bytes any more."""
    for each in listening:
        await each.stop_listening()

    def moved() -> int:
        reports = [traffic.totals() for traffic in traffics]
        return sum(report.bytes_up + report.bytes_down for report in reports)

    def say(text: str) -> None:
        _log.warning("stopping", text=text)

    await until_moved(say, lambda: sum(traffic.connections_open for traffic in traffics), moved)
