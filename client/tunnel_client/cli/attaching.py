"""The start of a command: how long it tries to reach the relay, and what it does when a login page answers instead."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import tunnel
from tunnel.command_line import tell
from tunnel_client.settings import RelaySettings

__all__ = ["add_wait_option", "attached", "make_attachment", "told_of_waiting"]

_FOREVER = "forever"
_LOOK_S = 0.1  # interval of the checks whether there is something to say


def add_wait_option(parser: argparse.ArgumentParser, default_s: float) -> None:
    """Add --wait. Without this option, the command tries for `default_s`."""
    parser.add_argument(
        "--wait",
        type=_seconds,
        nargs="?",
        const=math.inf,
        metavar="S|forever",
        help="at the start, keep trying to reach the relay for S seconds, or forever, even while a login page answers "
        f"in its place. Without this option: {default_s:g} s, and a login page is an error at once. --wait without a "
        "value means forever; another option or the end of the line must then follow it",
    )
    parser.set_defaults(wait_default=default_s)


def _seconds(text: str) -> float:
    if text == _FOREVER:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: write --wait 60 or --wait {_FOREVER}")
    return seconds


def make_attachment(settings: RelaySettings, arguments: argparse.Namespace) -> tunnel.Attachment:
    """Create an attachment, not yet started, that tries for as long as --wait says."""
    seconds = arguments.wait_default if arguments.wait is None else arguments.wait
    timeout = None if seconds == math.inf else seconds
    rate = getattr(arguments, "rate", "") or settings.rate  # only commands that serve have the option
    return settings.attach(attach_timeout=timeout, await_login=arguments.wait is not None, rate=rate)


@asynccontextmanager
async def told_of_waiting(attachment: tunnel.Attachment, arguments: argparse.Namespace) -> AsyncIterator[None]:
    """While the block starts the attachment, print one line if --wait is given and no relay answers."""
    if arguments.wait is None:
        yield
        return
    telling = asyncio.ensure_future(_tell(attachment, arguments.wait))
    try:
        yield
    finally:
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling


@asynccontextmanager
async def attached(settings: RelaySettings, arguments: argparse.Namespace) -> AsyncIterator[tunnel.Attachment]:
    """Attach as --wait says, and close the attachment after the block."""
    attachment = make_attachment(settings, arguments)
    async with AsyncExitStack() as stack:
        async with told_of_waiting(attachment, arguments):
            await stack.enter_async_context(attachment)
        yield attachment


async def _tell(attachment: tunnel.Attachment, seconds: float) -> None:
    trouble = ""
    while not trouble:
        await asyncio.sleep(_LOOK_S)
        trouble = attachment.stats().trouble
    limit = "until a relay answers" if seconds == math.inf else f"for up to {seconds:g} s"
    tell(f"tunnel: no relay answers yet ({trouble}): trying {limit}")
