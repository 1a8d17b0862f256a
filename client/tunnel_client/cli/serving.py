"""Commands that serve until they are told to stop: signals, the relay's refusal, an outage that lasts too long."""

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import structlog

from tunnel import Attachment, LostError
from tunnel.event_loops import new_event_loop
from tunnel.exit_codes import INTERRUPTED, OK
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings

__all__ = ["Serving", "add_serving_options", "run_serving"]

Serving: TypeAlias = Callable[[Attachment], AbstractAsyncContextManager[None]]

_log = structlog.get_logger("tunnel")
LOOK_S = 1.0  # between looks whether the relay still wants us, and answers


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that serves until told to stop."""
    parser.add_argument(
        "--wait", type=_seconds, default=30.0, metavar="S", help="how long to try to reach the relay at the start (30)"
    )
    parser.add_argument(
        "--stats", type=_seconds, default=0.0, metavar="S", help="log what was carried every S seconds and at the end"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def run_serving(settings: RelaySettings, serving: Serving, *, attach_seconds: float) -> int:
    """Attach, serve for as long as that goes well, and give the exit code: of SIGTERM 0, of SIGINT 130. TunnelError
    when the relay refuses us, at the start or later, or does not answer for longer than the user timeout."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings, serving, attach_seconds))


async def _run(settings: RelaySettings, serving: Serving, attach_seconds: float) -> int:
    try:
        attachment = settings.attach(attach_timeout=attach_seconds)
    except ValueError as error:
        raise UsageError(str(error)) from None
    async with _told_to_stop() as stopped:
        work = asyncio.get_running_loop().create_task(_serve(attachment, serving, settings.user_timeout))
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            return stopped.result() if stopped.done() else await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await attachment.close()


async def _serve(attachment: Attachment, serving: Serving, user_timeout: float) -> int:
    await attachment.start()
    attachment.add_connection_listener(_Listener())
    async with serving(attachment):
        await _fails(attachment, user_timeout)
    return OK


class _Listener:
    """Tells the log of outages: connections live through them, up to the user timeout."""

    def disconnected(self, reason: str) -> None:
        _log.warning("disconnected", text=f"{reason}; trying again, connections wait")

    def reconnected(self) -> None:
        _log.warning("reconnected")


async def _fails(attachment: Attachment, user_timeout: float) -> None:
    """Never return; raise when the relay wants no more of us, or is not heard of for too long."""
    now = asyncio.get_running_loop().time
    heard = now()
    while True:
        await asyncio.sleep(LOOK_S)
        if attachment.refusal is not None:
            raise attachment.refusal
        if attachment.is_attached:
            heard = now()
        elif now() - heard > user_timeout:
            raise LostError(
                f"the relay has not answered for {user_timeout:g} s ({attachment.stats().trouble}): "
                "check the path to it, and start this again; --user-timeout says how long to wait"
            )


@asynccontextmanager
async def _told_to_stop() -> AsyncIterator[asyncio.Future[int]]:
    """Becomes the exit code, when a signal comes."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    codes = {signal.SIGTERM: OK, signal.SIGINT: INTERRUPTED}
    for number, code in codes.items():
        loop.add_signal_handler(number, stop, code)
    try:
        yield stopped
    finally:
        for number in codes:
            loop.remove_signal_handler(number)
