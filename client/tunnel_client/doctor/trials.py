"""The exchanges of an examination: none raises, and all keep to a rate that the path allows. Failures are counted."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from tunnel.carriers.probe import ProbeError, Prober, Reply

__all__ = ["ANSWER_S", "TRIES", "Trials"]

ANSWER_S = 10.0
TRIES = 3


@dataclass
class Trials:
    """The exchanges that were made so far, and what they showed, for all steps.

    `median_s` and `worst_s` are the median and the longest time of an exchange. `pause_s` is the least time between two
    requests, once a rate limit is known; `failed` has the exchanges that a working path would have answered.
    `requests_max` is the number of requests that pass at once, or 0 if no limit was found. `products` names the hops
    that were recognised, `writers` those of them that wrote into answers to requests for the relay.
    """

    prober: Prober
    made: int = 0
    failed: list[Reply] = field(default_factory=list)
    median_s: float = 0.0
    worst_s: float = 0.0
    pause_s: float = 0.0
    requests_max: int = 0
    products: list[str] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)

    @property
    def lanes(self) -> int:
        """The number of exchanges that the relay takes at once."""
        assert self.prober.attached is not None
        return self.prober.attached.lanes

    async def once(
        self, work: Coroutine[object, object, Reply], seconds: float = ANSWER_S, *, is_test: bool = False
    ) -> Reply:
        """Return the reply, of kind `lost` if none came. `is_test`: a failure does not count against the path."""
        began = time.monotonic()
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
            began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                reply = await work
        except ProbeError as error:
            reply = _lost(str(error) or "no answer came", began)
        except TimeoutError:
            reply = _lost(f"no answer within {seconds:g} s", began)
        if not is_test:
            self.made += 1
            if reply.kind not in ("answer", "attached"):
                self.failed.append(reply)
        return reply

    async def answered(
        self, make: Callable[[], Coroutine[object, object, Reply]], seconds: float = ANSWER_S, *, is_test: bool = False
    ) -> Reply:
        """Try up to three times to get the relay's answer; return the last reply. A timeout is not tried again."""
        for _ in range(TRIES):
            reply = await self.once(make(), seconds, is_test=is_test)
            if reply.kind in ("answer", "attached", "status") or (reply.kind == "lost" and reply.seconds >= seconds):
                break
        return reply


def _lost(text: str, began: float) -> Reply:
    return Reply("lost", 0, text, time.monotonic() - began, {})
