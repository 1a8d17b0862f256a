"""Trouble is told at the third failure of one body, and its end once."""

from tests.exchange.loop import SECRET
from tunnel.exchange.events import Recovered, Troubled
from tunnel.exchange.flight import Flight
from tunnel.exchange.health import Health
from tunnel.wire import Attach


def failing(failures: int, last: str = "HTTP 502") -> Flight:
    flight = Flight(Attach(SECRET, 1, 0, 1), 0, wait_us=1, repeat_us=1, attempts_max=1)
    flight.failures = failures
    flight.last = last
    return flight


def test_the_third_failure_of_one_body_is_told_once() -> None:
    health = Health()
    assert health.last == ""
    assert health.failed(failing(1, "HTTP 503")) is None
    assert health.last == "HTTP 503"  # for whoever cannot wait for the third one
    assert health.failed(failing(2)) is None
    assert health.failed(failing(3)) == Troubled(3, "HTTP 502")
    assert health.failed(failing(4)) is None
    assert health.last == "HTTP 502"
    assert health.answered() == Recovered()
    assert health.last == ""
    assert health.answered() is None


def test_failures_of_different_bodies_are_not_trouble_yet() -> None:
    health = Health()
    assert [health.failed(failing(1)) for _ in range(8)] == [None] * 8


def test_a_body_that_fails_while_others_get_through_is_not_trouble() -> None:
    health = Health()
    for failures in range(1, 9):
        assert health.failed(failing(failures)) is None
        health.answered()
