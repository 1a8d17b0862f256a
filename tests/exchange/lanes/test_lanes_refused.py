"""Paths that refuse requests altogether for a while: repeats must end a ban, not feed it (7.9)."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from tests.exchange.limits import RateBan
from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tests.exchange.rig import MS, SECOND, attached_loop, received
from tunnel.exchange import BatchDone, Recovered, Refusal, Request, Troubled

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


def done(loop: Loop) -> list[tuple[int, BatchDone]]:
    return [(at_us, event) for at_us, event in loop.events if isinstance(event, BatchDone)]


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


BANNED = Fate(status=429)
SWALLOWED = Fate(request_lost=True, taken=True)


UNTOLD = [Fate(status=403), Fate(status=503, retry_after_us=SECOND), SWALLOWED]


@pytest.mark.parametrize(("refusal", "bans"), [(BANNED, 1), *((untold, 2) for untold in UNTOLD)])
def test_a_ban_for_the_number_of_requests_comes_once_or_twice_if_it_could_be_an_outage(
    refusal: Fate, bans: int
) -> None:
    """It lasts until no request has come for 30 s. Afterwards, no request is refused any more."""
    loop = with_traffic(attached())
    loop.fate = ban = RateBan(refusal)
    loop.run(bans * 100 * SECOND)
    assert len(ban.began_us) == bans
    refused, passed = ban.refused, len(received(loop))
    loop.run(5 * MINUTE)
    assert ban.refused == refused
    assert len(received(loop)) > passed + 900


@pytest.mark.parametrize("refusal", [BANNED, SWALLOWED])
@pytest.mark.parametrize("seed", range(5))
def test_a_ban_of_thirty_seconds_that_each_request_renews_ends_within_seventy(refusal: Fate, seed: int) -> None:
    loop = with_traffic(attached(seed=seed))
    loop.fate = ban = RateBan(refusal)
    loop.run(2 * MINUTE)
    began_us = ban.began_us[0]
    assert any(event.ok and began_us + 30 * SECOND < at_us < began_us + 70 * SECOND for at_us, event in done(loop))


@pytest.mark.parametrize("outage", UNTOLD)
@pytest.mark.parametrize("lasts_s", [8, 20, 70, 200])
def test_a_relay_that_was_away_is_found_soon_and_asked_as_often_as_before(outage: Fate, lasts_s: int) -> None:
    """A proxy accepts the connections meanwhile, and answers nothing, 403 or 503."""
    loop = with_traffic(attached())
    loop.run(10 * SECOND)
    back_us = loop.now + lasts_s * SECOND
    loop.fate = lambda request, now: outage if now < back_us else Fate()
    loop.run(back_us)
    passed = len(received(loop))
    loop.until(lambda: len(received(loop)) > passed, back_us + (46 if outage is SWALLOWED else 84) * SECOND)
    loop.run(loop.now + SECOND)
    count = len(loop.requests)
    loop.run(loop.now + 10 * SECOND)
    assert len(loop.requests) - count > 80  # no gap is left
    assert loop.lanes.path.pace.gap_us == 0


@pytest.mark.parametrize("answers_s", [6, 30])
def test_late_answers_of_a_proxy_show_that_nobody_drops_requests(answers_s: int) -> None:
    loop = with_traffic(attached())
    loop.run(10 * SECOND)
    back_us = loop.now + 100 * SECOND

    def fate(request: Request, now: int) -> Fate:
        if now < back_us:
            loop.at(now + answers_s * SECOND, lambda: loop.lanes.on_answered(request.id, 504, b"<html>", 0, loop.now))
        return SWALLOWED if now < back_us else Fate()

    loop.fate = fate
    loop.run(back_us)
    passed = len(received(loop))
    loop.until(lambda: len(received(loop)) > passed, back_us + 2 * SECOND)
    assert loop.lanes.path.pace.gap_us == 0


def test_a_ban_of_a_minute_that_each_request_renews_ends_if_something_is_answered() -> None:
    for refusal in (BANNED, Fate(status=403)):
        loop = with_traffic(attached())
        loop.fate = ban = RateBan(refusal, ban_us=MINUTE)
        loop.run(4 * MINUTE)
        began_us = ban.began_us[0]
        assert any(event.ok and at_us > began_us + MINUTE for at_us, event in done(loop))


def test_a_limiter_that_is_silent_cuts_large_requests() -> None:
    """It drops the connection once it has read the head of a request, so that the rest of the body is reset."""
    loop = attached()
    for tenth in range(1, 1800):
        loop.at(loop.now + tenth * 100 * MS, lambda: loop.queue.extend([data_packet(1, 8_000)] * 6))
    ban = RateBan(SWALLOWED)

    def fate(request: Request, now: int) -> Fate:
        found = ban(request, now)
        is_large = sum(map(len, request.body)) > 10_000
        return Fate(request_lost=True, taken=True, reported=True) if found is SWALLOWED and is_large else found

    loop.fate = fate
    loop.run(2 * MINUTE)
    began_us = ban.began_us[0]
    assert any(event.ok and began_us + 30 * SECOND < at_us < began_us + 80 * SECOND for at_us, event in done(loop))


@pytest.mark.interpreted
@pytest.mark.parametrize("tells_time", [False, True])
def test_one_request_asks_whether_silence_goes_on_even_if_nobody_has_told_the_time(
    monkeypatch: pytest.MonkeyPatch, *, tells_time: bool
) -> None:
    """The silence is judged before the next request leaves. Eight requests pass away before it counts as a ban."""
    loop = with_traffic(attached())
    if not tells_time:
        monkeypatch.setattr(loop.lanes, "handle_timeout", lambda now: None)
    loop.fate = ban = RateBan(SWALLOWED)
    loop.until(lambda: bool(ban.began_us), MINUTE)
    passed = len(received(loop))
    loop.until(lambda: len(received(loop)) > passed, 2 * MINUTE)
    assert ban.refused <= 8 + 2


def test_a_path_that_opens_no_connection_is_asked_each_second() -> None:
    """It is away, and may be back at any time; or whoever drops packets does not count requests."""
    loop = with_traffic(attached())
    loop.run(10 * SECOND)
    loop.fate = lambda request, now: Fate(request_lost=True)
    loop.run(40 * SECOND)
    late = sent(loop, 20 * SECOND)
    assert max(after - before for before, after in pairwise(late)) <= 2 * SECOND


def test_a_path_that_takes_requests_and_stands_still_goes_on_as_soon_as_any_is_answered() -> None:
    """As of a machine that was stopped: it answers what it has taken, and nobody has counted requests."""
    loop = with_traffic(attached())
    loop.run(10 * SECOND)
    loop.fate = lambda request, now: Fate(delay_us=max(0, 40 * SECOND - now))
    loop.run(41 * SECOND)
    assert max(at_us for at_us, event in done(loop) if event.ok) > 40 * SECOND
    loop.fate = lambda request, now: Fate()
    count = len(loop.requests)
    loop.run(50 * SECOND)
    assert len(loop.requests) - count > 80  # no gap is left
    assert loop.lanes.path.pace.gap_us == 0


@pytest.mark.parametrize("stood_s", [6, 8, 12])
def test_a_download_goes_on_when_what_stood_still_answers_all_requests_from_before(stood_s: int) -> None:
    """Nothing comes for the repeats that seemed to be dropped: the answers to the first attempts end the exchanges."""
    loop = attached()
    loop.relay.give([data_frame(name, 8_000) for name in range(20_000)])
    loop.until(lambda: len(loop.relay.outbox.frames) < 8_000, 10 * SECOND)
    until_us = loop.now + stood_s * SECOND
    loop.fate = lambda request, now: Fate(delay_us=max(0, until_us - now))
    loop.run(until_us)
    assert loop.lanes.path.backoff.next_us > until_us + 2 * SECOND  # it was taken for a ban
    left = len(loop.relay.outbox.frames)
    loop.run(until_us + 2 * SECOND)
    assert len(loop.relay.outbox.frames) < left // 2
    assert loop.lanes.path.pace.gap_us == 0


def test_few_requests_earn_no_ban_so_silence_after_them_is_an_outage() -> None:
    loop = attached()
    for second in range(40):
        loop.at(loop.now + second * SECOND, lambda name=second: loop.queue.append(data_packet(name)))  # type: ignore[misc]
    loop.run(10 * SECOND)
    loop.fate = lambda request, now: SWALLOWED
    loop.run(40 * SECOND)
    late = sent(loop, 20 * SECOND)
    assert max(after - before for before, after in pairwise(late)) <= 2 * SECOND


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
        if request.lane < 0 or sum(map(len, request.body)) <= 700:
            return Fate()
        times.append(now)
        return refusal

    loop.fate = fate
    loop.resends = True
    loop.queue.append(data_packet(1, 1400))
    loop.run(20 * SECOND)
    ((said_us, said),) = [(at_us, event) for at_us, event in loop.events if isinstance(event, Troubled)]
    assert said_us <= times[2] + 5 * SECOND
    assert said.is_partial
    assert said.last.startswith("requests that carry data are refused, here one of 14")
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


def test_a_pause_that_came_with_the_refusal_of_a_road_ends_in_time() -> None:
    """The lanes had nothing to do before the end of a hold of 15 s."""
    loop = attached()
    loop.until(
        lambda: loop.in_flight(pull=True) > 0 and (loop.lanes.next_timeout() or 0) > loop.now + 5 * SECOND, MINUTE
    )
    refused_us, passed = loop.now, len(received(loop))
    loop.lanes.path.backoff.on_refused(Refusal.BANNED, loop.now, loop.now, retry_after_us=2 * SECOND)
    loop.queue.append(data_packet(1))
    loop.run(loop.now + 3 * SECOND)
    assert len(received(loop)) == passed + 1
    assert sent(loop, refused_us + 1)[0] == 2 * SECOND - 1


def test_a_road_that_opens_ends_a_pause_at_once() -> None:
    loop = attached()
    loop.lanes.path.backoff.on_refused(Refusal.BANNED, loop.now, loop.now, retry_after_us=20 * SECOND)
    loop.queue.append(data_packet(1))
    loop.run(loop.now + SECOND)
    assert (loop.lanes.next_timeout() or 0) > 10 * SECOND
    loop.lanes.path.on_heard(loop.now, loop.now)
    assert (loop.lanes.next_timeout() or 0) < 2 * SECOND  # the deadline of a pull
