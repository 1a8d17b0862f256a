"""Opens a link and moves a batch each way, for `tunnel doctor`: an answer 101 alone proves nothing."""

import asyncio
import time

from tunnel.carriers.dialed_link import DialedLink, hello
from tunnel.carriers.dialing import Dialing
from tunnel.carriers.failures import describe_failure
from tunnel.carriers.upgrade import Upgraded, UpgradeRefusedError, upgrade
from tunnel.exchange import LinkInput
from tunnel.wire import Buffer

__all__ = ["ask_link"]

_CLOSE_S = 1.0


class _Trial:
    """Sends one batch when the link is open, and waits for its receipt and for a batch of the relay."""

    def __init__(self, packets: list[Buffer]) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_open = self.is_receipted = self.is_answered = False
        self._packets = packets

    def link_open(self, link: DialedLink) -> None:
        self.is_open = True
        link.send(self._packets, 1)

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        self.is_receipted |= bool(found.receipts)
        self.is_answered |= any(len(batch) for batch in found.batches)
        if self.is_receipted and self.is_answered:
            self.end("")

    def link_writable(self, link: DialedLink) -> None:
        """Do nothing: there is only one batch."""

    def link_lost(self, link: DialedLink, reason: str) -> None:
        self.end(f"the connection was upgraded, but then it ended: {reason}")

    def end(self, reason: str) -> None:
        """Note the outcome, if none was noted yet."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def missing(self, seconds: float) -> str:
        """Return what did not arrive."""
        if not self.is_open:
            return f"the connection was upgraded (HTTP 101), but nothing came over it within {seconds:g} s"
        missing = "data towards the relay" if not self.is_receipted else "data from the relay"
        return f"the connection was upgraded (HTTP 101), but {missing} did not pass within {seconds:g} s"


async def ask_link(dialing: Dialing, identity: tuple[bytes, int, int], packets: list[Buffer], seconds: float) -> str:
    """Open a link and send `packets`, which the relay must answer. Return why that failed; empty if it worked.

    `identity` is attachment id, epoch and generation.
    """
    try:
        async with asyncio.timeout(seconds):
            upgraded = await upgrade(dialing)
    except UpgradeRefusedError as error:
        return str(error)
    except TimeoutError:
        return f"no answer to the request for an upgrade within {seconds:g} s"
    except Exception as error:
        return describe_failure(error, dialing.base)
    return await _try(upgraded, identity, packets, seconds)


async def _try(upgraded: Upgraded, identity: tuple[bytes, int, int], packets: list[Buffer], seconds: float) -> str:
    trial = _Trial(packets)
    lost = asyncio.get_running_loop().create_future()

    def closed(error: Exception | None) -> None:
        upgraded.lost(error)
        if not lost.done():
            lost.set_result(None)

    link = DialedLink(trial, _now_us, closed)
    link.begin(upgraded.transport, hello(*identity), upgraded.early)
    done, _ = await asyncio.wait([trial.ended], timeout=seconds)
    reason = trial.ended.result() if done else trial.missing(seconds)
    link.abort()
    await asyncio.wait([lost], timeout=_CLOSE_S)
    await upgraded.close()
    return reason


def _now_us() -> int:
    return time.monotonic_ns() // 1000
