"""The start of a command: how long it tries to reach the relay, and what it does when a login page answers instead."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import tunnel
from tunnel.process.command_line import shows_people, tell
from tunnel_client.settings import RelaySettings

__all__ = [
    "QUIET_S",
    "WAITING",
    "Look",
    "Say",
    "add_wait_option",
    "attached",
    "beside",
    "going_on",
    "look_at",
    "make_attachment",
    "say_or_log",
    "say_to_people",
    "told_of_waiting",
]

Look: TypeAlias = Callable[[], tuple[str, str] | None]
"""Returns who is asked, and why there is no answer; the second is empty if that is not known. After a refusal, which is
final, it returns None. It may raise RuntimeError before the request has begun."""
Say: TypeAlias = Callable[[str, str], None]
"""Says one line: the name of an event, and a text."""

QUIET_S = 2.0  # a command that is used in scripts, and is answered within this time, says nothing
WAITING = "waiting"
_ENDS = " (Ctrl-C ends)"
_FOREVER = "forever"
_SURE_S = 1.0  # a definite answer of something else is an error by then, which says the same
# Time without a line until the next one, which doubles, up to the maximum. No line then comes at 5, 15 or 30 s, just
# before an error that says the same (`add_wait_option`).
_SILENT_S = 8.0
_SILENT_S_MAX = 60.0
_LOOK_S = 0.1  # interval of the checks whether there is something to say


def add_wait_option(parser: argparse.ArgumentParser, default_s: float) -> None:
    """Add --wait. Without this option, the command tries for `default_s`."""
    parser.add_argument(
        "--wait",
        type=_seconds,
        nargs="?",
        const=math.inf,
        metavar="S|forever",
        help="at the start, keep trying to reach the relay for S seconds, or forever, even while something else "
        f"answers in its place, such as a login page. Without this option: for {default_s:g} s, but a definite answer "
        "of something else, or a proxy that refuses the connection, is an error at once, and so is, after 5 s, a host "
        "that cannot be reached. --wait without a value means forever; another option or the end of the line must then "
        "follow it",
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
    name = getattr(arguments, "endpoint_name", "")
    same_users = getattr(arguments, "same_users", False)  # only commands that accept connections have the option
    return settings.attach(
        attach_timeout=timeout, wait=arguments.wait is not None, rate=rate, name=name, same_users=same_users
    )


def going_on(arguments: argparse.Namespace) -> str:
    """Return in words for how long the command tries."""
    if arguments.wait is None:
        return "still trying"
    return "trying until a relay answers" if arguments.wait == math.inf else f"trying for up to {arguments.wait:g} s"


def look_at(attachment: tunnel.Attachment) -> Look:
    """Return the `Look` of an attachment that is being started."""

    def look() -> tuple[str, str] | None:
        if attachment.refusal is not None:
            return None
        stats = attachment.stats()
        return stats.carrier.partition(" ")[2], stats.trouble

    return look


def say_to_people(event: str, text: str) -> None:
    """Say one line to a person, whether or not standard error is a terminal."""
    tell(f"tunnel: {text}{_ENDS if event == WAITING else ''}")


def say_or_log(event: str, text: str) -> None:
    """Say one line: to a person on a terminal, otherwise as an event of the log."""
    if shows_people():
        say_to_people(event, text)
        return
    import structlog  # here: `tunnel connect`, which must start fast, never gets here

    log = structlog.get_logger("tunnel")
    (log.warning if event == WAITING else log.info)(event, text=text)


@asynccontextmanager
async def told_of_waiting(
    look: Look, who: str, say: Say = say_to_people, *, quiet_s: float = 0.0, going_on: str = "still trying"
) -> AsyncIterator[None]:
    """While the block waits for an answer, say who is asked, and then what is wrong while no answer comes. Say nothing
    more after a refusal, which the block raises as an error.

    With `quiet_s`, say nothing if the block takes no longer than this. `who` is asked, until `look` says more.
    """
    async with beside(_tell(look, who, say, quiet_s, going_on)):
        yield


@asynccontextmanager
async def beside(telling: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the coroutine while the block lasts."""
    task = asyncio.ensure_future(telling)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def attached(
    settings: RelaySettings, arguments: argparse.Namespace, *, quiet_s: float = QUIET_S
) -> AsyncIterator[tunnel.Attachment]:
    """Attach as --wait says, and close the attachment after the block. `quiet_s` is as in `told_of_waiting`."""
    attachment = make_attachment(settings, arguments)
    async with AsyncExitStack() as stack:
        async with told_of_waiting(look_at(attachment), settings.url, quiet_s=quiet_s, going_on=going_on(arguments)):
            await stack.enter_async_context(attachment)
        yield attachment


async def _tell(look: Look, who: str, say: Say, quiet_s: float, going_on: str) -> None:
    now = asyncio.get_running_loop().time
    began_s = now()
    for _ in range(round(quiet_s / _LOOK_S)):  # in steps: time in which this process itself is busy counts less
        await asyncio.sleep(_LOOK_S)
    trouble, is_said, next_s = "", False, _SILENT_S
    with contextlib.suppress(RuntimeError):  # the attachment has not begun to start
        if (seen := look()) is None:
            return
        who, trouble = seen
    if not trouble:
        say("asking", f"asking {who} ...")
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(RuntimeError):
            if (seen := look()) is None:
                return
            trouble = seen[1]
        waited_s = now() - began_s
        if trouble and not is_said and waited_s >= _SURE_S:
            is_said = True
            say(WAITING, f"no relay answers yet at {who} ({trouble}): {going_on}")
        elif waited_s >= next_s:
            why = f" ({trouble})" if trouble and not trouble.startswith("no answer") else ""
            say(WAITING, f"no answer for {waited_s:.0f} s{why}: {going_on}")
        else:
            continue
        next_s = waited_s + min(_SILENT_S_MAX, max(_SILENT_S, waited_s))
