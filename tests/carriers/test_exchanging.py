"""What a carrier of lanes tells them about this machine."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.exchange.loop import SECRET
from tests.exchange.rig import encoded, status
from tunnel.carriers.exchanging import ExchangingCarrier, Outcomes
from tunnel.exchange import AttachRefused, LaneConfig, Lanes, Request
from tunnel.exchange.lanes.registration import SEVERAL_RELAYS
from tunnel.wire import Attached, StatusCode, attachment_id

HOUR_S = 3600
WAKES = 30


class ForgetfulRelay:
    """An exchanger to a relay that forgets each attachment as soon as something is sent; and the driver's clock."""

    description, is_ready, waits_for = "poll http://relay", True, ""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.now_us = 1_000_000

    def start(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes

    def send(self, request: Request) -> None:
        self.requests.append(request)

    def abandon(self, request_id: int) -> None:
        self.requests = [request for request in self.requests if request.id != request_id]

    def answer(self, generation: int) -> None:
        """Answer the requests that have come."""
        requests, self.requests = self.requests, []
        for request in requests:
            attached = Attached(attachment_id(SECRET), 5, generation, True, 1_000_000, 60_000, 15_000, 0, 60_000, 4)
            body = encoded(attached) if request.lane < 0 else status(StatusCode.UNKNOWN)
            self.outcomes.on_answered(request.id, 200 if request.lane < 0 else 404, body, 0)

    async def close(self) -> None:
        self.requests.clear()

    def now(self) -> int:
        return self.now_us

    def pump(self) -> None:
        """Do nothing: the test goes on by itself."""

    deliver = pump

    def wrote(self, size_bytes: int) -> None:
        """Count nothing."""

    def trouble(self, text: str, *, final: bool = False) -> None:
        raise AssertionError(text)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="nothing else knows of a sleep here")
@pytest.mark.parametrize(("nap_s", "refusals"), [(HOUR_S, []), (0, [SEVERAL_RELAYS])])
def test_a_relay_that_forgot_a_laptop_in_each_of_its_sleeps_is_one_relay(
    monkeypatch: pytest.MonkeyPatch, nap_s: int, refusals: list[str]
) -> None:
    slept_s = 0
    read = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + slept_s)
    relay = ForgetfulRelay()
    lanes = Lanes(LaneConfig(), SECRET, Random(1))
    carrier = ExchangingCarrier(lanes, relay)
    carrier.start(relay)
    told = []
    for _ in range(4 * WAKES):
        carrier.handle_timeout(relay.now_us)
        carrier.advance(relay.now_us)
        relay.answer(lanes.registration.generation)
        while (event := carrier.poll_event()) is not None:
            told.append(event)
        relay.now_us += 500_000
        slept_s += nap_s
    assert lanes.registration.generation > (WAKES if nap_s else 10)
    assert [event.text for event in told if isinstance(event, AttachRefused)] == refusals
