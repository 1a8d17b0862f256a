"""The carrier for an endpoint in the process and event loop of its relay: real lanes and envelopes, no HTTP."""

from collections.abc import Callable
from random import Random
from typing import Protocol, TypeAlias

from tunnel.carriers.exchanging import ExchangingCarrier, Outcomes
from tunnel.exchange import LaneConfig, Lanes, Request

__all__ = ["Answered", "MemoryCarrier", "Relay"]

Answered: TypeAlias = Callable[[int, bytes], None]  # HTTP status, body


class Relay(Protocol):
    """A relay in this process, which answers exchanges."""

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool, identity: bytes | None = None) -> int:
        """Send a request and return a number that names it. `answered` is called once, after this method has
        returned. `identity` is the id that an ATTACH gives the endpoint, instead of the one that its secret gives."""

    def gone(self, number: int) -> None:
        """Drop the request with this number: `answered` is not called."""


class MemoryCarrier(ExchangingCarrier):
    """Exchanges with a relay in this process, on behalf of `user`.

    `identity` is the attachment id; without it the id follows from the secret, as over HTTP (6.1).
    """

    def __init__(
        self,
        relay: Relay,
        secret: bytes,
        random: Random,
        *,
        user: str,
        name: str = "",
        is_exit: bool = False,
        identity: bytes | None = None,
        config: LaneConfig | None = None,
    ) -> None:
        lanes = Lanes(config or LaneConfig(), secret, random, endpoint_name=name, identity=identity)
        super().__init__(lanes, _Exchanger(relay, user, is_exit=is_exit, identity=identity))


class _Exchanger:
    description = "memory"
    is_ready = True
    waits_for = ""

    def __init__(self, relay: Relay, user: str, *, is_exit: bool, identity: bytes | None) -> None:
        self._identity = identity
        self._relay = relay
        self._user = user
        self._is_exit = is_exit
        self._open: dict[int, int] = {}  # request id -> the relay's number
        self._outcomes: Outcomes

    def start(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def send(self, request: Request) -> None:
        body = b"".join(request.body)

        def answered(status: int, answer: bytes) -> None:
            del self._open[request.id]
            self._outcomes.answered(request.id, status, answer, 0)

        self._open[request.id] = self._relay.post(
            self._user, body, answered, is_exit=self._is_exit, identity=self._identity
        )
        self._outcomes.sent(len(body))

    def abandon(self, request_id: int) -> None:
        number = self._open.pop(request_id, None)
        if number is not None:
            self._relay.gone(number)

    async def close(self) -> None:
        for request_id in list(self._open):
            self.abandon(request_id)
