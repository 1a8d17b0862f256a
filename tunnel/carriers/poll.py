"""The carriers that use only exchanges over HTTP/1.1, and thus work through anything that lets HTTP pass."""

import asyncio
from random import Random

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.exchanging import ExchangingCarrier
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes

__all__ = ["PollCarrier"]

_TRY_S = 3.0  # the longest time that the first try of a stream may take


class PollCarrier(ExchangingCarrier):
    """Lanes over HTTP/1.1, without links. With `streams`, the relay may answer pulls with streams, if the path lets
    them pass (7.20)."""

    def __init__(
        self,
        dialing: Dialing,
        secret: bytes,
        random: Random,
        *,
        name: str = "",
        config: LaneConfig | None = None,
        streams: bool = False,
    ) -> None:
        config = config or LaneConfig()
        lanes = Lanes(config, secret, random, endpoint_name=name, streams=streams)
        super().__init__(lanes, HttpExchanger(dialing, config))

    async def until_ready(self) -> None:
        """Return when answers are streamed, or a first try has failed or lasts too long, or none will be made."""
        if self._streams is None:
            return
        tried = asyncio.get_running_loop().create_future()
        self._when_settled = tried
        self._look_whether_settled()
        try:
            async with asyncio.timeout(_TRY_S):
                await tried
        except TimeoutError:
            pass
        finally:
            self._when_settled = None
