"""The heap of timers: O(1) to query, no timer forgotten, no stale entry kept forever."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tunnel_servlet.switch.deadlines import Deadline, Deadlines


def timers(count: int) -> tuple[Deadlines, list[Deadline], list[tuple[int, int]]]:
    fired: list[tuple[int, int]] = []

    def note(number: int) -> Deadline:
        return Deadline(lambda now: fired.append((number, now)))

    return Deadlines(), [note(number) for number in range(count)], fired


def fire(deadlines: Deadlines, now: int) -> None:
    for deadline in deadlines.pop_expired(now):
        deadline.fire(now)


def test_timers_fire_in_order_and_once() -> None:
    deadlines, (first, second, third), fired = timers(3)
    deadlines.set(third, 30)
    deadlines.set(first, 10)
    deadlines.set(second, 10)
    assert deadlines.next_timeout() == 10
    fire(deadlines, 9)
    assert fired == []
    fire(deadlines, 40)
    fire(deadlines, 40)
    assert fired == [(0, 40), (1, 40), (2, 40)]
    assert deadlines.next_timeout() is None


def test_a_postponed_timer_fires_at_the_later_time() -> None:
    deadlines, (timer,), fired = timers(1)
    deadlines.set(timer, 10)
    deadlines.set(timer, 20)
    assert deadlines.next_timeout() == 10
    fire(deadlines, 15)
    assert fired == []
    assert deadlines.next_timeout() == 20
    fire(deadlines, 20)
    assert fired == [(0, 20)]


def test_an_advanced_timer_fires_once() -> None:
    deadlines, (timer,), fired = timers(1)
    deadlines.set(timer, 20)
    deadlines.set(timer, 10)
    assert deadlines.next_timeout() == 10
    fire(deadlines, 30)
    assert fired == [(0, 30)]
    assert len(deadlines) == 0


def test_a_cleared_timer_does_not_fire_and_may_be_set_again() -> None:
    deadlines, (timer,), fired = timers(1)
    deadlines.clear(timer)
    deadlines.set(timer, 10)
    deadlines.clear(timer)
    deadlines.clear(timer)
    fire(deadlines, 10)
    assert fired == []
    deadlines.set(timer, 20)
    deadlines.clear(timer)
    deadlines.set(timer, 25)
    fire(deadlines, 25)
    assert fired == [(0, 25)]


def test_stale_entries_do_not_accumulate() -> None:
    deadlines, many, fired = timers(1000)
    for number, timer in enumerate(many):
        deadlines.set(timer, 2000)
        deadlines.set(timer, 1000 + number)
        if number % 2:
            deadlines.clear(timer)
    for timer in many[::2][10:]:
        deadlines.clear(timer)
    assert len(deadlines) < 100
    assert deadlines.next_timeout() == 1000
    deadlines.set(many[1], 1001)
    fire(deadlines, 5000)
    assert [number for number, _ in fired] == [0, 1, *range(2, 20, 2)]


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(1, 50)), st.booleans()), max_size=60))
def test_every_timer_fires_when_it_is_due(steps: list[tuple[int, int | None, bool]]) -> None:
    deadlines, many, fired = timers(6)
    due: dict[int, int] = {}
    now = 0
    for number, delay, passes in steps:
        if delay is None:
            deadlines.clear(many[number])
            due.pop(number, None)
        else:
            deadlines.set(many[number], now + delay)
            due[number] = now + delay
        now += passes * 7
        expected = sorted(number for number, time in due.items() if time <= now)
        fire(deadlines, now)
        assert sorted(number for number, _ in fired) == expected
        for number in expected:
            del due[number]
        fired.clear()
        asked = deadlines.next_timeout()
        assert not due or (asked is not None and now < asked <= min(due.values()))


def test_stale_entries_are_removed_once_they_are_more_than_half() -> None:
    deadlines, many, fired = timers(200)
    for number, timer in enumerate(many):
        deadlines.set(timer, 1000 + number)
    for timer in many[:100]:
        deadlines.clear(timer)
    assert len(deadlines) == 200
    deadlines.clear(many[100])
    assert len(deadlines) == 99
    for timer in many[101:133]:
        deadlines.clear(timer)
    assert len(deadlines) == 99  # rebuilding the heap is not worth it for a few
    fire(deadlines, 2000)
    assert [number for number, _ in fired] == list(range(133, 200))


def test_setting_timers_again_does_not_inflate_the_count_of_stale_entries() -> None:
    deadlines, many, fired = timers(200)
    for timer in many:
        deadlines.set(timer, 1000)
        deadlines.clear(timer)
        deadlines.set(timer, 1000)  # in use again
        deadlines.set(timer, 1000)  # and once more
    assert len(deadlines) == 200
    for timer in many[:100]:
        deadlines.set(timer, 900)  # the later entry is stale
    assert len(deadlines) == 300
    fire(deadlines, 950)
    assert len(deadlines) == 200
    fire(deadlines, 1000)
    assert len(fired) == 200
    assert len(deadlines) == 0


def test_stale_entries_that_were_removed_no_longer_count() -> None:
    deadlines, many, _ = timers(400)
    for round_ in range(3):  # the timers are cleared; their stale entries reach the top of the heap and are removed
        for timer in many[:60]:
            deadlines.set(timer, 100 + round_)
            deadlines.clear(timer)
        fire(deadlines, 100 + round_)
    for timer in many[:100]:
        deadlines.set(timer, 1000)
    for timer in many[:60]:
        deadlines.clear(timer)
    assert len(deadlines) == 100


def test_the_count_of_stale_entries_is_always_exact() -> None:
    deadlines, many, _ = timers(150)
    random, now, rebuilt = Random(5), 0, 0
    for _ in range(4000):
        timer = many[random.getrandbits(8) % len(many)]
        kind = random.getrandbits(3)
        before = len(deadlines)
        if kind < 3:
            deadlines.set(timer, now + 1 + random.getrandbits(11))
        elif kind < 7:
            deadlines.clear(timer)
            rebuilt += len(deadlines) < before
        else:
            now += random.getrandbits(3)
            for due in deadlines.pop_expired(now):
                assert due.due_us is None
        stale = sum(at_us != found.armed_us or found.due_us is None for at_us, _, found in deadlines._heap)
        assert deadlines._stale == stale
        running = [found for found in many if found.due_us is not None]
        assert len(running) == len(deadlines) - stale
    assert rebuilt
