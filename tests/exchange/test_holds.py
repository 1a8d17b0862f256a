"""Holds on a virtual clock: they grow while the path endures them, and shrink where it cuts or forgets what waits."""

import itertools
from random import Random

import pytest

from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tunnel.exchange import LaneConfig
from tunnel.wire import Exchange, decode_envelope

SECOND = 1_000_000
MINUTE = 60 * SECOND
RELAY_HOLD_S = 65  # SwitchConfig.hold_us_max


class CuttingLoop(Loop):
    """A path that ends each request that has had no answer for `cut_s`: with a status, with a reset, or silently."""

    def __init__(self, cut_s: int, how: str, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._cut_us = cut_s * SECOND
        self._how = how
        self.cuts = 0

    def _travel(self, request: object, fate: Fate) -> None:
        super()._travel(request, fate)  # type: ignore[arg-type]
        handle = self._handles
        self.at(self.now + self._cut_us, lambda: self._cut(handle))

    def _cut(self, handle: int) -> None:
        found = self.waiting.pop(handle, None)  # nothing waits for the later answer of the relay
        if found is None:
            return
        self.cuts += 1
        if self._how == "status":
            self._answer(found[0], 504, b"<html>", 0)
        elif self._how == "reset":
            self.lanes.on_failed(found[0], self.now)


def relay(hold_s: int = RELAY_HOLD_S, *, streams: bool = False) -> Relay:
    return Relay(Random(2), hold_ms_max=hold_s * 1000, streams=streams)


def holds(loop: Loop, since_us: int = 0) -> list[int]:
    """Return the holds, in seconds, for which pulls have asked since `since_us`; repeats of pulls do not count."""
    found = []
    for time_us, request in loop.requests:
        message = decode_envelope(b"".join(request.body))
        if time_us >= since_us and request.pull and not request.repeat and isinstance(message, Exchange):
            found.append(message.hold_ms // 1000)
    return found


def watch(loop: Loop, until_us: int) -> set[int]:
    """Run in steps of 0.1 s. Return how many requests were in flight at these moments."""
    seen = set()
    while loop.now < until_us:
        loop.run(loop.now + SECOND // 10)
        seen.add(sum(1 for _ in loop.lanes._set.flights()) + len(loop.lanes._exchanges.streams.open))
    return seen


def test_an_idle_attachment_holds_one_request_for_up_to_55_seconds() -> None:
    loop = Loop(relay=relay())
    loop.queue.append(data_packet(1))
    loop.run(SECOND)
    assert watch(loop, 10 * MINUTE) == {1}
    assert holds(loop)[:6] == [1, 2, 4, 8, 15, 15]
    assert holds(loop, 5 * MINUTE) == [55] * 6
    assert sum(1 for time_us, _ in loop.requests if time_us >= 5 * MINUTE) == 6


def test_an_idle_stream_is_the_one_request_that_waits() -> None:
    loop = Loop(LaneConfig(lanes_start=3), relay=relay(streams=True), streams=True)
    loop.run(5 * SECOND)
    streamed = [(time_us, request) for time_us, request in loop.requests if request.stream]
    assert watch(loop, 10 * MINUTE) <= {1, 2, 3}  # 2 and 3: with a confirmation or the next stream
    asked = [time_us for time_us, request in loop.requests if request.stream]
    assert holds(loop, streamed[0][0] + SECOND) == [55] * (len(asked) - 1)  # all pulls are streams
    assert {(after - before) // SECOND for before, after in itertools.pairwise(asked)} == {41}
    assert not loop.in_flight(pull=True)


def test_a_relay_of_an_earlier_release_holds_for_30_seconds() -> None:
    loop = Loop(relay=relay(30))
    assert watch(loop, 10 * MINUTE) == {1}
    assert holds(loop, 5 * MINUTE) == [30] * 10
    assert all(request.repeat == 0 for _, request in loop.requests)


def test_an_endpoint_of_an_earlier_release_asks_for_15_seconds() -> None:
    loop = Loop(LaneConfig(hold_us=15 * SECOND), relay=relay())
    assert watch(loop, 10 * MINUTE) == {1}
    assert set(holds(loop, MINUTE)) == {15}


@pytest.mark.parametrize("how", ["status", "reset", "silence"])
@pytest.mark.parametrize(("cut_s", "endured_s"), [(10, 7), (20, 15), (30, 15), (50, 30), (60, 55), (100, 55)])
def test_a_path_that_cuts_teaches_the_endpoint_shorter_holds(cut_s: int, endured_s: int, how: str) -> None:
    """The waits between trials of a longer hold double, so that few requests are cut. One pull is held all the time."""
    loop = CuttingLoop(cut_s, how, relay=relay())
    assert watch(loop, 60 * MINUTE) == {1}
    usual = holds(loop, 20 * MINUTE)
    assert usual.count(endured_s) >= 0.95 * len(usual)
    repeats = sum(request.repeat > 0 for _, request in loop.requests)
    assert repeats == loop.cuts <= 12
    assert len(loop.requests) <= 60 * 60 / endured_s * 1.1 + 10


@pytest.mark.parametrize("how", ["status", "reset", "silence"])
@pytest.mark.parametrize("cut_s", [10, 20, 30, 50])
def test_packets_at_any_time_arrive_once_on_a_path_that_cuts(cut_s: int, how: str) -> None:
    """A packet waits at most until the end of the hold whose answer is lost."""
    random = Random(cut_s)
    loop = CuttingLoop(cut_s, how, relay=relay())
    sent_us: dict[int, int] = {}
    for name in range(60):
        loop.run(loop.now + random.randrange(100 * SECOND))
        sent_us[name] = loop.now
        loop.relay.give([data_frame(name)], loop.now)
        while len(loop.delivered) <= name:
            loop.run(loop.now + SECOND // 100)
            assert loop.now - sent_us[name] <= (60 if how == "silence" else 1) * SECOND
    assert loop.delivered == list(range(60))


def test_a_push_shows_that_a_held_answer_was_lost_and_shortens_holds() -> None:
    """A NAT forgets a silent flow after 20 s. The peer's reply to a push of 25 s leaves in the answer of the held pull,
    and is lost."""
    loop = CuttingLoop(20, "silence", relay=relay())
    for name in range(30):
        loop.run(loop.now + 3 * MINUTE)  # long enough for holds to grow
        pulled_us = max(time_us for time_us, request in loop.requests if request.pull)
        loop.run(pulled_us + 25 * SECOND)
        for word in (2 * name, 2 * name + 1):  # the second word brings the evidence
            loop.queue.append(data_packet(word))
            loop.run(loop.now + SECOND // 20)
            loop.relay.give([data_frame(word)], loop.now)
            loop.run(loop.now + SECOND)
        while len(loop.delivered) < 2 * name + 2:
            loop.run(loop.now + SECOND // 100)
    assert loop.delivered == list(range(60))
    assert holds(loop, loop.now - 10 * MINUTE).count(30) <= 2
