"""The loop of every command that serves until a signal, a refusal by the relay or a long outage ends it."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from tunnel.attachment import Attachment
from tunnel.errors import LostError, TunnelError
from tunnel.ground.exit_codes import INTERRUPTED, OK
from tunnel.process.service_manager import say_stopping, watched
from tunnel.process.stillness import STILL_S, until_still

__all__ = ["until_lost", "until_moved", "until_stopped"]

LOOK_S = 1.0  # interval of the checks whether the relay still accepts this command, and answers
_CODES = {signal.SIGTERM: OK, signal.SIGINT: INTERRUPTED}


async def _nothing() -> None:
    pass


async def until_stopped(
    serve: Coroutine[Any, Any, None], finish: Callable[[], Coroutine[Any, Any, object]] = _nothing
) -> int:
    """Run `serve` until a signal; return the exit code, 0 for SIGTERM and 130 for SIGINT. Raise what `serve` raises.

    After SIGTERM, `finish` runs while `serve` goes on, and a second signal cuts both. SIGINT cuts at once.
    """
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[None] = loop.create_future()
    cut: asyncio.Future[int] = loop.create_future()

    def handle(code: int) -> None:
        say_stopping()
        if code == OK and not ending.done():
            ending.set_result(None)
        elif not cut.done():
            cut.set_result(code)

    for number, code in _CODES.items():
        loop.add_signal_handler(number, handle, code)
    tasks: list[asyncio.Task[Any]] = [loop.create_task(serve)]
    try:
        with watched():
            await asyncio.wait([tasks[0], ending, cut], return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done() and not cut.done():
                tasks.append(loop.create_task(finish()))
                await asyncio.wait([tasks[1], cut], return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                return cut.result()
            await tasks[-1]
            return OK
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in _CODES:
            loop.remove_signal_handler(number)


async def until_moved(
    say: Callable[[str], object], connections_open: Callable[[], int], moved: Callable[[], object]
) -> int:
    """Wait until no connection moves bytes any more, and say so. Return the number of those that are still open.

    The functions are those of `until_still`.
    """
    if count := connections_open():
        connections = f"{count} open connection{'s' * (count > 1)}"
        say(f"waiting for {connections} until no byte has moved for {STILL_S:g} s; a second signal cuts them")
    return await until_still(connections_open, moved)


async def until_lost(
    attachment: Attachment,
    give_up_s: float | None,
    refusal: Callable[[], TunnelError | None] = lambda: None,
    finishing: asyncio.Event | None = None,
) -> NoReturn:
    """Watch an attachment that is being started, or has been, until it fails.

    Raise the relay's refusal, or that of something else, or LostError once the relay has not answered for `give_up_s`;
    None means that it may take for ever. Raise nothing once `finishing` is set: what ends a command that serves must
    not cut connections that it lets finish.
    """
    now = asyncio.get_running_loop().time
    answered_s = now()
    while True:
        await asyncio.sleep(LOOK_S)
        if finishing is not None and finishing.is_set():
            continue
        refused = attachment.refusal or refusal()
        if refused is not None:
            raise refused.with_traceback(None)
        if attachment.is_attached:
            answered_s = now()
        elif give_up_s is not None and now() - answered_s > give_up_s:
            raise LostError(
                f"the relay has not answered for {give_up_s:g} s ({attachment.stats().trouble}): check the path to it "
                "and start this command again; without --give-up-after it would keep trying"
            )
