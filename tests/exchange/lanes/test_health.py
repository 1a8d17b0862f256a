"""Trouble is reported once: when one body has failed three times and failures have lasted for 750 ms. Its end is
reported, too."""

from tests.exchange.loop import SECRET
from tunnel.exchange.events import Recovered, Troubled
from tunnel.exchange.flight import Flight
from tunnel.exchange.lanes.health import Health
from tunnel.wire import Attach, Exchange

MS = 1_000


def failing(failures: int, last: str = "HTTP 502") -> Flight:
    flight = Flight(Attach(SECRET, 1, 0, 1), 0, wait_us=1, repeat_us=1, attempts_max=1)
    flight.failures = failures
    flight.last = last
    return flight


def test_the_third_failure_of_one_body_is_reported_once() -> None:
    health = Health()
    assert health.last == ""
    assert health.on_failed(failing(1, "HTTP 503"), 0) is None
    assert health.last == "HTTP 503"  # for callers that cannot wait for the third failure
    assert health.on_failed(failing(2), 800 * MS) is None
    assert health.on_failed(failing(3), 900 * MS) == Troubled(3, "HTTP 502")
    assert health.on_failed(failing(4), 1000 * MS) is None
    assert health.last == "HTTP 502"
    assert health.on_answered() == Recovered()
    assert health.last == ""
    assert health.on_answered() is None


def test_failures_in_quick_succession_are_not_reported_before_they_have_lasted() -> None:
    health = Health()
    for number in range(1, 6):
        assert health.on_failed(failing(number), 10_000 * MS + number * MS) is None
    assert health.on_failed(failing(6), 10_750 * MS) is None
    assert health.on_failed(failing(7), 10_751 * MS) == Troubled(7, "HTTP 502")


def test_failures_before_an_answer_do_not_count() -> None:
    health = Health()
    health.on_failed(failing(1), 0)
    assert health.on_answered() is None
    assert [health.on_failed(failing(number), 800 * MS + number * MS) for number in (2, 3, 4)] == [None] * 3


def test_failures_of_different_bodies_are_not_trouble_yet() -> None:
    health = Health()
    assert [health.on_failed(failing(1), number * 1000 * MS) for number in range(8)] == [None] * 8


def test_a_body_that_fails_while_others_get_through_is_not_trouble() -> None:
    health = Health()
    for failures in range(1, 9):
        assert health.on_failed(failing(failures), failures * 1000 * MS) is None
        health.on_answered()


def push(size: int, refusals: int) -> Flight:
    flight = Flight(
        Exchange(bytes(16), 1, 1, 0, 1, 0, 0, 1, payload=[bytes(size)]), 0, wait_us=1, repeat_us=1, attempts_max=1
    )
    flight.failures = flight.refusals = refusals
    flight.last = "HTTP 413"
    return flight


def test_pushes_that_are_refused_while_pulls_pass_are_reported_once_and_so_is_the_first_of_that_size_that_passes() -> (
    None
):
    health = Health()
    big, small = push(4000, 0), push(20, 0)
    for refusals in range(1, 9):
        big.failures = big.refusals = refusals
        told = health.on_failed(big, refusals * 500 * MS)
        assert (told is not None) is (refusals == 3)
        assert told is None or (told.is_partial and told.last.endswith("while others pass: HTTP 413"))
        assert health.on_answered(small, refusals * 500 * MS) is None
    assert health.on_answered(big) == Recovered()
    assert health.on_answered(big) is None


def test_silence_says_nothing_about_data_while_others_pass() -> None:
    health = Health()
    for failures in range(1, 9):
        silent = push(4000, 0)
        silent.failures = failures
        assert health.on_failed(silent, failures * 1000 * MS) is None
        health.on_answered(push(20, 0))


def test_an_answer_to_an_exchange_that_left_before_the_refusals_does_not_show_that_others_pass() -> None:
    health = Health()
    big = push(4000, 0)
    for refusals in range(1, 9):
        big.failures = big.refusals = refusals
        health.on_answered(push(20, 0), 499 * MS)
        assert health.on_failed(big, refusals * 500 * MS) is None


def test_an_attachment_may_ask_for_earlier_reports() -> None:
    health = Health(300 * MS)
    assert health.on_failed(failing(1), 0) is None
    assert health.on_failed(failing(2), 200 * MS) is None
    assert health.on_failed(failing(3), 300 * MS) == Troubled(3, "HTTP 502")
