"""The carrier that uses only exchanges over HTTP/1.1, and thus works through anything that lets HTTP pass."""

from random import Random

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.exchanging import ExchangingCarrier
from tunnel.carriers.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes

__all__ = ["PollCarrier"]


class PollCarrier(ExchangingCarrier):
    """Lanes over HTTP/1.1, without links."""

    def __init__(
        self, dialing: Dialing, secret: bytes, random: Random, *, name: str = "", config: LaneConfig | None = None
    ) -> None:
        config = config or LaneConfig()
        lanes = Lanes(config, secret, random, endpoint_name=name)
        super().__init__(lanes, HttpExchanger(dialing, config.answer_bytes_max))
