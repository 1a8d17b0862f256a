"""The carriers that use only exchanges over HTTP/1.1, and thus work through anything that lets HTTP pass."""

from random import Random

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.exchanging import ExchangingCarrier
from tunnel.carriers.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes, StreamingLanes

__all__ = ["PollCarrier"]


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
        lanes = (StreamingLanes if streams else Lanes)(config, secret, random, endpoint_name=name)
        super().__init__(lanes, HttpExchanger(dialing, config.answer_bytes_max))
