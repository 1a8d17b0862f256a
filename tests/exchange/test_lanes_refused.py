"""Paths that refuse requests altogether for a while: repeats must end a ban, not feed it (7.9)."""

from collections.abc import Callable
from random import Random

import pytest

from tests.exchange.loop import Fate, Loop, Relay, data_packet
from tests.exchange.rig import MS, SECOND, attached_loop, received
from tunnel.exchange import Recovered, Request, Troubled

MINUTE = 60 * SECOND


class RenewedBan:
    """From `start_us` on, requests are refused until none has come for 10 s."""

    def __init__(self, start_us: int, status: int = 429) -> None:
        self.ended_us = 0
        self._asked_us = start_us
        self._start_us = start_us
        self._status = status

    def __call__(self, request: Request, now: int) -> Fate:
        if now < self._start_us or self.ended_us:
            return Fate()
        if now - self._asked_us >= 10 * SECOND:
            self.ended_us = now
            return Fate()
        self._asked_us = now
        return Fate(status=self._status)


def attached(*, seed: int = 1, streams: bool = False) -> Loop:
    loop = Loop(seed=seed, streams=streams, relay=Relay(Random(2), streams=streams))
    loop.run(30 * MS)
    return loop


def sent(loop: Loop, since_us: int) -> list[int]:
    return [time_us - since_us for time_us, _ in loop.requests if time_us >= since_us]


def refused_from(since_us: int, status: int) -> Callable[[Request, int], Fate]:
    return lambda request, now: Fate(status=status) if now >= since_us else Fate()


def with_traffic(loop: Loop) -> Loop:
    """Let packets come all the time, as from several connections."""
    for tenth in range(1, 4000):
        loop.at(loop.now + tenth * 100 * MS, lambda name=tenth: loop.queue.append(data_packet(name)))  # type: ignore[misc]
    return loop


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_always_refused_asks_twelve_times_in_the_first_minute_and_twice_in_the_fifth(
    status: int, streams: bool
) -> None:
    loop = with_traffic(attached(streams=streams))
    loop.run(3 * SECOND)
    began_us = loop.now
    loop.fate = refused_from(began_us, status)
    loop.run(began_us + 5 * MINUTE)
    times = sent(loop, began_us)
    in_flight = 3  # requests that leave before the first refusal comes
    assert sum(at_us < MINUTE for at_us in times) <= 12 + in_flight
    assert sum(at_us >= 4 * MINUTE for at_us in times) <= 2


def test_an_endpoint_that_has_never_been_attached_asks_as_seldom() -> None:
    loop = Loop(fate=refused_from(0, 429))
    loop.run(5 * MINUTE)
    times = sent(loop, 0)
    assert sum(at_us < MINUTE for at_us in times) <= 12
    assert sum(at_us >= 4 * MINUTE for at_us in times) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_a_ban_that_each_request_renews_ends_with_the_first_request_after_ten_seconds(seed: int) -> None:
    loop = with_traffic(attached(seed=seed))
    loop.run(3 * SECOND)
    ban = RenewedBan(loop.now)
    loop.fate = ban
    loop.run(30 * SECOND)
    assert 0 < ban.ended_us < 20 * SECOND
    assert len(received(loop)) > 200


def test_while_a_body_is_refused_others_pass() -> None:
    """The body gives the reason for this 403: requests with other bodies are answered, and need not wait long."""
    loop = with_traffic(attached_loop())
    loop.run(3 * SECOND)
    first_us = loop.now
    refused: list[tuple[int, int]] = []

    def fate(request: Request, now: int) -> Fate:
        if not refused and request.lane >= 0 and not request.pull:
            refused.append((request.lane, request.number))
        return Fate(status=403) if (request.lane, request.number) in refused else Fate()

    loop.fate = fate
    loop.run(first_us + 20 * SECOND)
    assert len(received(loop)) > 200


@pytest.mark.parametrize(
    "refusal",
    [
        Fate(status=413, body=b"<title>Too big</title>"),
        Fate(status=403, body=b"<title>Scanned</title>"),
        Fate(status=200, body=b"<title>Blocked</title>"),
        Fate(request_lost=True, reported=True),
    ],
)
def test_when_only_data_is_refused_that_is_said_within_five_seconds_of_the_third_refusal(refusal: Fate) -> None:
    """Pulls pass, so that nothing else is wrong: without a word the connections would be silent for ever."""
    loop = attached()
    loop.run(3 * SECOND)
    times: list[int] = []

    def fate(request: Request, now: int) -> Fate:
        if request.lane < 0 or sum(map(len, request.body)) <= 2000:
            return Fate()
        times.append(now)
        return refusal

    loop.fate = fate
    loop.resends = True
    loop.queue.append(data_packet(1, 3000))
    loop.run(20 * SECOND)
    ((said_us, said),) = [(at_us, event) for at_us, event in loop.events if isinstance(event, Troubled)]
    assert said_us <= times[2] + 5 * SECOND
    assert said.is_partial
    assert said.last.startswith("requests that carry data are refused, here one of 3")
    if refusal.status:
        assert f"HTTP {refusal.status}" in said.last
        assert repr(refusal.body[7:-8].decode()) in said.last
    assert loop.told(Recovered) == []
    loop.fate = lambda request, now: Fate()
    loop.run(30 * SECOND)
    assert received(loop) == [1]
    assert len(loop.told(Recovered)) == 1
    assert len(loop.told(Troubled)) == 1


def test_after_an_outage_of_eight_seconds_the_relay_is_found_within_two() -> None:
    for reported in (Fate(status=502), Fate(request_lost=True, reported=True)):
        loop = attached_loop(packets=1)
        start_us = loop.now
        loop.fate = lambda request, now, end_us=start_us + 8 * SECOND, away=reported: (  # type: ignore[misc]
            away if now < end_us else Fate()
        )
        loop.run(start_us + 10 * SECOND)
        assert received(loop) == [1]
