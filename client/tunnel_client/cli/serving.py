"""Runs a command that serves until a signal, a refusal by the relay or, with --give-up-after, a long outage ends it."""

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeAlias

import structlog

from tunnel import Attachment, LostError, TunnelError
from tunnel.command_line import add_events_option
from tunnel.exit_codes import INTERRUPTED, OK
from tunnel.logs.outages import OutageLog
from tunnel.rates import parse_rate
from tunnel.stillness import STILL_S, until_still
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
    "Signals",
    "add_serving_options",
    "finish",
    "run_serving",
    "stop_signals",
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
LOOK_S = 1.0  # interval of the checks whether the relay still accepts this command, and answers


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
    async with stop_signals() as signals:
        telling = told_of_waiting(look_at(attachment), settings.url, say_or_log, going_on=going_on(arguments))
        work = asyncio.get_running_loop().create_task(_serve(attachment, telling, serving, signals, arguments))
        try:
            await asyncio.wait([work, signals.cut], return_when=asyncio.FIRST_COMPLETED)
            return signals.cut.result() if signals.cut.done() else await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await attachment.close()


async def _serve(
    attachment: Attachment,
    telling: AbstractAsyncContextManager[None],
    serving: Serving,
    signals: "Signals",
    arguments: argparse.Namespace,
) -> int:
    async with telling:
        await attachment.start()
    log = OutageLog(_log)
    attachment.add_connection_listener(log)
    attachment.add_wait_listener(log)
    async with serving(attachment) as served:
        signals.is_serving = True
        failing = asyncio.get_running_loop().create_task(_fails(attachment, served, arguments.give_up_after))
        try:
            await asyncio.wait([failing, signals.finish], return_when=asyncio.FIRST_COMPLETED)
            if not signals.finish.done():
                await failing
            await finish(served.listening, lambda: [served.traffic])
        finally:
            failing.cancel()
            await asyncio.gather(failing, return_exceptions=True)
    return OK


async def finish(listening: Iterable[Listening], traffics: Callable[[], Iterable[Traffic]]) -> None:
    """Stop listening, and return when no connection moves bytes any more."""
    for each in listening:
        await each.stop_listening()

    def connections_open() -> int:
        return sum(traffic.connections_open for traffic in traffics())

    def moved() -> int:
        reports = [traffic.totals() for traffic in traffics()]
        return sum(report.bytes_up + report.bytes_down for report in reports)

    if connections_open():
        count = f"{connections_open()} open connection{'s' * (connections_open() > 1)}"
        text = f"waiting for {count} until no byte has moved for {STILL_S:g} s; a second signal cuts them"
        _log.warning("stopping", text=text)
    await until_still(connections_open, moved, STILL_S)


async def _fails(attachment: Attachment, served: Served, give_up_s: float | None) -> None:
    """Watch the attachment until it fails, then raise the relay's refusal, or LostError after too long an outage."""
    now = asyncio.get_running_loop().time
    answered_s = now()
    while True:
        await asyncio.sleep(LOOK_S)
        refusal = attachment.refusal or served.refusal
        if refusal is not None:
            raise refusal
        if attachment.is_attached:
            answered_s = now()
        elif give_up_s is not None and now() - answered_s > give_up_s:
            raise LostError(
                f"the relay has not answered for {give_up_s:g} s ({attachment.stats().trouble}): check the path to it "
                "and start this command again; without --give-up-after it would keep trying"
            )


class Signals:
    """The effect of the signals so far.

    The first SIGTERM while the command is serving sets `finish`. Any other signal sets `cut` to the exit code.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_serving = False
        self.finish: asyncio.Future[None] = loop.create_future()
        self.cut: asyncio.Future[int] = loop.create_future()

    def handle(self, code: int) -> None:
        """Handle a signal that stands for this exit code."""
        if code == OK and self.is_serving and not self.finish.done():
            self.finish.set_result(None)
        elif not self.cut.done():
            self.cut.set_result(code)


@asynccontextmanager
async def stop_signals() -> AsyncIterator[Signals]:
    """Handle SIGTERM and SIGINT while the context lasts."""
    loop = asyncio.get_running_loop()
    signals = Signals()
    codes = {signal.SIGTERM: OK, signal.SIGINT: INTERRUPTED}
    for number, code in codes.items():
        loop.add_signal_handler(number, signals.handle, code)
    try:
        yield signals
    finally:
        for number in codes:
            loop.remove_signal_handler(number)
