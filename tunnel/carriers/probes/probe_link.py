"""Opens a link or a websocket and moves data each way, for `tunnel doctor`: an answer 101 alone proves nothing."""

import asyncio
import time
from typing import Any

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.dialing.failures import describe_failure
from tunnel.carriers.links.dialed_link import DialedLink, hello
from tunnel.carriers.links.upgrade import Upgraded, UpgradeRefusedError, upgrade
from tunnel.carriers.links.websocket_dial import OpenedWebSocket, open_websocket
from tunnel.exchange import LinkInput
from tunnel.wire import Buffer

__all__ = ["LinkTrial", "ask_link"]

_CLOSE_S = 1.0
_BEAT_S = 1.0  # between two looks at a link that must stay open


class LinkTrial:
    """Sends batches when the link is open, and waits for their receipts and for `answer_bytes` from the relay.

    The last batch makes the relay send these bytes. The link must then stay open for `stay_s`.
    """

    def __init__(self, batches: list[list[Buffer]], answer_bytes: int, stay_s: float = 0.0) -> None:
        self.stay_s = stay_s
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why the link ended
        self.moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = False
        self._batches = batches
        self._sent = 0
        self._unreceipted = len(batches)
        self._missing_bytes = answer_bytes

    def link_open(self, link: DialedLink) -> None:
        self.is_open = True
        self.link_writable(link)

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        self._unreceipted -= len(found.receipts)
        self._missing_bytes -= sum(map(len, found.batches))
        if self._unreceipted <= 0 and self._missing_bytes <= 0 and not self.moved.done():
            self.moved.set_result(None)

    def link_writable(self, link: DialedLink) -> None:
        while self._sent < len(self._batches) and link.is_writable:
            self._sent += 1
            link.send(self._batches[self._sent - 1], self._sent)

    def link_lost(self, link: DialedLink, reason: str) -> None:
        if self.lost.done():
            return  # what did not arrive in time is the reason
        self.lost.set_result(f"the connection was upgraded, but then it ended: {reason}")

    def missing(self, seconds: float) -> str:
        """Return what did not arrive."""
        if not self.is_open:
            return f"the connection was upgraded (HTTP 101), but nothing came over it within {seconds:g} s"
        missing = "data towards the relay" if self._unreceipted > 0 else "data from the relay"
        return f"the connection was upgraded (HTTP 101), but {missing} did not pass within {seconds:g} s"


async def ask_link(
    dialing: Dialing, identity: tuple[bytes, int, int], trial: LinkTrial, seconds: float, *, is_websocket: bool = False
) -> str:
    """Open a link and make a trial of it. Return why that failed; empty if it worked.

    `identity` is attachment id, epoch and generation.
    """
    try:
        async with asyncio.timeout(seconds):
            opened = await (open_websocket if is_websocket else upgrade)(dialing)
    except UpgradeRefusedError as error:
        return str(error)
    except TimeoutError:
        return f"no answer to the request for an upgrade within {seconds:g} s"
    except Exception as error:
        return describe_failure(error, dialing.base)
    return await _try(opened, identity, trial, seconds)


async def _try(
    opened: Upgraded | OpenedWebSocket, identity: tuple[bytes, int, int], trial: LinkTrial, seconds: float
) -> str:
    lost = asyncio.get_running_loop().create_future()

    def closed(error: Exception | None) -> None:
        opened.on_lost(error)
        if not lost.done():
            lost.set_result(None)

    link = DialedLink(trial, _now_us, closed)
    link.begin(opened.transport, hello(*identity), opened.early)
    outcomes: list[asyncio.Future[Any]] = [trial.moved, trial.lost]
    await asyncio.wait(outcomes, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if trial.moved.done():
        await _stay(link, trial)
    elif not trial.lost.done():
        trial.lost.set_result(trial.missing(seconds))
    reason = trial.lost.result() if trial.lost.done() else ""
    link.abort()
    await asyncio.wait([lost], timeout=_CLOSE_S)
    await opened.close()
    return reason


async def _stay(link: DialedLink, trial: LinkTrial) -> None:
    """Keep the link in use until its time is over, or it ends."""
    ends_s = time.monotonic() + trial.stay_s
    while not trial.lost.done() and (left_s := ends_s - time.monotonic()) > 0:
        await asyncio.wait([trial.lost], timeout=min(left_s, _BEAT_S))
        link.handle_timeout(_now_us())


def _now_us() -> int:
    return time.monotonic_ns() // 1000
