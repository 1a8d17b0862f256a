"""The time of the next try of a spare link."""

from random import Random

from tunnel.exchange import Refusal
from tunnel.exchange.backoff import Backoff
from tunnel.exchange.roads.spare_times import SpareTimes

MS = 1_000
SECOND = 1_000 * MS


class Low(Random):
    """Draws zeros, so that waits are whole."""

    def getrandbits(self, k: int, /) -> int:
        return 0


class High(Random):
    """Draws the highest number."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1


def test_waits_double_up_to_a_minute_and_are_short_again_after_a_success() -> None:
    times = SpareTimes(Low(), Backoff(Low()))
    assert times.due_us == 0
    waits = []
    for second in range(12):
        now = second * SECOND
        times.on_failed(now)
        waits.append((times.due_us - now) // MS)
    assert waits == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60000, 60000]
    times.on_opened()
    times.on_failed(0)
    assert times.due_us == 100 * MS


def test_up_to_a_quarter_of_a_wait_is_left_out() -> None:
    times = SpareTimes(High(), Backoff(High()))
    times.on_failed(0)
    assert 75 * MS <= times.due_us < 76 * MS


def test_a_try_waits_for_the_back_off_and_is_its_question() -> None:
    backoff = Backoff(Low())
    times = SpareTimes(Low(), backoff)
    for second in range(2):
        backoff.on_refused(Refusal.BUSY, second * SECOND, second * SECOND)
    assert times.due_us == 2 * SECOND
    times.on_attached()
    assert times.due_us == 2 * SECOND
    times.on_tried(2 * SECOND)
    assert times.due_us == backoff.next_us == 3 * SECOND
    backoff.on_answered(2 * SECOND)
    assert times.due_us == 0
