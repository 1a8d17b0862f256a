"""A proxy that asks for a password (407): final before the first attach; after it, only if that goes on (7.9)."""

from collections.abc import Callable

from tests.exchange.loop import Fate, Loop, data_frame, data_packet
from tests.exchange.rig import MS, SECOND, STEADY, attached_loop, pushes, received
from tunnel.exchange import AttachRefused, Request

ASKED = Fate(status=407, body=b"who are you")
MINUTE = 60 * SECOND


def sent_after(loop: Loop, since_us: int) -> list[int]:
    return [time_us for time_us, _ in loop.requests if time_us >= since_us]


def asked_from(loop: Loop, since_us: int, until_us: int = 1 << 60) -> Callable[[Request, int], Fate]:
    return lambda request, now: ASKED if since_us <= now < until_us else Fate()


def test_before_the_first_attach_it_is_final_at_once() -> None:
    loop = Loop(STEADY, lambda request, now: ASKED)
    loop.run(MINUTE)
    assert len(loop.told(AttachRefused)) == len(loop.requests) == 1


def test_one_in_many_answers_ends_nothing_and_delays_nothing() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes(ASKED)
    loop.run(200 * MS)
    assert loop.told(AttachRefused) == []
    assert received(loop) == [1]


def test_every_thirtieth_request_for_five_minutes_ends_nothing() -> None:
    loop = attached_loop()
    loop.fate = lambda request, now: ASKED if request.id % 30 == 7 else Fate()
    names = range(100, 3100)
    for name in names:
        loop.at(loop.now + name * 100 * MS, lambda name=name: loop.queue.append(data_packet(name)))  # type: ignore[misc]
    loop.run(330 * SECOND)
    assert loop.told(AttachRefused) == []
    assert received(loop) == list(names)


def test_a_password_that_has_become_wrong_is_sent_a_few_times_and_then_no_more() -> None:
    """At most one request at a time, after those that were in flight; at the end the text says what the proxy wants."""
    loop = attached_loop()
    loop.run(3 * SECOND)
    began_us = loop.now
    loop.fate = asked_from(loop, began_us)
    loop.queue.extend(data_packet(name, 60_000) for name in range(20))
    loop.run(began_us + 10 * MINUTE)
    (refused,) = loop.told(AttachRefused)
    assert isinstance(refused, AttachRefused)
    assert refused.status == 407
    assert "who are you" in refused.text
    (ended_us,) = (time_us for time_us, event in loop.events if event is refused)
    assert MINUTE <= ended_us - began_us < 2 * MINUTE
    first_us = min(sent_after(loop, began_us))
    asks = sent_after(loop, first_us + 1)
    assert 6 <= len(asks) <= 9
    assert sent_after(loop, ended_us) == []


def test_requests_that_left_together_count_once() -> None:
    """Eight lanes are refused at the same moment: that is one reason to ask again, not eight."""
    loop = attached_loop()
    loop.run(3 * SECOND)
    loop.fate = asked_from(loop, loop.now, loop.now + MS)
    loop.queue.extend(data_packet(name, 60_000) for name in range(3))
    loop.run(loop.now + 300 * MS)
    assert sorted(received(loop)) == [0, 1, 2]


def test_the_row_ends_with_an_answer_of_the_relay() -> None:
    loop = attached_loop()
    for second in range(5, 400, 10):
        loop.at(second * SECOND, lambda: loop.queue.append(data_packet(1)))
    loop.fate = lambda request, now: ASKED if 5 * SECOND <= now % (10 * SECOND) < 7 * SECOND else Fate()
    loop.run(400 * SECOND)
    assert loop.told(AttachRefused) == []
    assert len(received(loop)) == 40


def test_an_answer_to_an_older_request_does_not_end_the_row() -> None:
    """A pull that passed the proxy before is answered later: that says nothing about the password."""
    loop = attached_loop()
    loop.run(3_500 * MS)
    began_us = loop.now
    loop.fate = asked_from(loop, began_us)
    loop.queue.append(data_packet(1))
    loop.at(began_us + 200 * MS, lambda: loop.relay.give([data_frame(9)], loop.now))
    loop.run(began_us + 700 * MS)
    assert loop.delivered == [9]
    assert len(sent_after(loop, began_us)) == 2  # the push and one repeat; then a pause of a second


def test_it_is_no_reason_to_send_smaller_bodies() -> None:
    loop = attached_loop()
    loop.run(3 * SECOND)
    before = loop.lanes.path.up.limit_bytes
    loop.fate = lambda request, now: ASKED if request.lane >= 0 and not request.pull and now < 30 * SECOND else Fate()
    loop.queue.extend(data_packet(name, 60_000) for name in range(3))
    loop.run(50 * SECOND)
    assert sorted(received(loop)) == [0, 1, 2]
    assert loop.lanes.path.up.limit_bytes >= before


def test_after_a_restart_of_the_relay_a_refused_attach_is_repeated() -> None:
    loop = attached_loop()
    loop.run(3 * SECOND)
    loop.relay.restart()
    refusals = [ASKED, ASKED]
    loop.fate = lambda request, now: refusals.pop() if request.lane < 0 and refusals else Fate()
    loop.queue.append(data_packet(1))
    loop.run(20 * SECOND)
    assert loop.told(AttachRefused) == []
    assert loop.lanes.is_attached
