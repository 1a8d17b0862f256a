"""What the relay is told of services is repeated until it answers (2.8)."""

import pytest

from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.services import Announcements
from tunnel.wire import ListenState, ListenStatus, Packet, decode_listen_state

UP, DOWN, REFUSED = ListenStatus.UP, ListenStatus.DOWN, ListenStatus.REFUSED


class Told:
    """Announcements, and what they sent."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.announcements = Announcements(self.packets.append)

    def states(self) -> list[ListenState | None]:
        """What was sent since it was asked last."""
        found = [decode_listen_state(packet.payload) for packet in self.packets]
        self.packets.clear()
        return found


def answer(version: int, name: str, status: ListenStatus = UP) -> ListenState:
    return ListenState(version, status, 0, name)


def test_it_is_repeated_after_a_second_and_then_ever_more_seldom() -> None:
    told = Told()
    told.announcements.announce("a", UP, 5, 7)
    assert told.announcements.due_us == 7 + SECOND_US
    assert told.states() == [ListenState(1, UP, 5, "a")]
    times, now = [], 7
    for _ in range(9):
        now = told.announcements.due_us
        told.announcements.handle_timeout(now - 1)
        assert told.states() == []
        told.announcements.handle_timeout(now)
        assert told.states() == [ListenState(1, UP, 5, "a")]
        times.append((now - 7) // SECOND_US)
    assert times == [1, 3, 7, 15, 31, 63, 123, 183, 243]


@pytest.mark.parametrize("status", [UP, DOWN, REFUSED])
def test_any_answer_of_the_same_version_ends_it(status: ListenStatus) -> None:
    told = Told()
    assert told.announcements.announce("a", UP, 5, 0) == 1
    assert not told.announcements.is_answered("a")
    assert told.announcements.answered(answer(1, "a", status))
    assert told.announcements.is_answered("a")
    assert told.announcements.due_us == NEVER_US
    assert not told.announcements.answered(answer(1, "a", status))


def test_an_answer_to_something_older_or_another_name_says_nothing() -> None:
    told = Told()
    told.announcements.announce("a", UP, 5, 0)
    assert told.announcements.announce("a", DOWN, 0, 0) == 2
    assert not told.announcements.answered(answer(1, "a"))
    assert not told.announcements.answered(answer(2, "b"))
    assert not told.announcements.is_answered("a")


def test_each_name_has_its_own_time() -> None:
    told = Told()
    told.announcements.announce("a", UP, 5, 0)
    told.announcements.announce("b", UP, 6, SECOND_US // 2)
    told.states()
    told.announcements.handle_timeout(SECOND_US)
    assert told.states() == [ListenState(1, UP, 5, "a")]
    assert told.announcements.due_us == SECOND_US // 2 + SECOND_US
    told.announcements.answered(answer(2, "b"))
    assert told.announcements.due_us == 3 * SECOND_US


def test_an_earlier_time_is_not_put_off_by_a_later_announcement() -> None:
    told = Told()
    told.announcements.announce("a", UP, 5, 0)
    told.announcements.announce("b", UP, 5, 10)
    assert told.announcements.due_us == SECOND_US


def test_another_relay_was_told_nothing() -> None:
    told = Told()
    told.announcements.announce("a", DOWN, 0, 0)
    told.announcements.forget()
    assert told.announcements.due_us == NEVER_US
    assert told.announcements.is_answered("a")


def test_what_cannot_be_said_is_not_remembered() -> None:
    told = Told()
    with pytest.raises(ValueError, match="too long"):
        told.announcements.announce("x" * 256, UP, 1, 0)
    assert (told.packets, told.announcements.due_us) == ([], NEVER_US)
    assert told.announcements.announce("a", UP, 1, 0) == 1
