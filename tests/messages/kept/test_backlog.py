"""The backlog in memory: which messages it discards, and which it never returns."""

import asyncio
import tracemalloc

import pytest

from tests.support.loops import in_loop
from tunnel.messages.errors import MessageTooLargeError
from tunnel.messages.kept.backlog import BacklogItem, DiscardPolicy, MemoryBacklog


class World:
    """A backlog whose clock the test sets, and the messages that it discarded."""

    def __init__(self, policy: DiscardPolicy, **limits: int) -> None:
        self.now = 0.0
        self.lost: list[bytes] = []
        self.backlog = MemoryBacklog(
            policy, discarded=lambda item: self.lost.append(item.payload), clock=lambda: self.now, **limits
        )

    def rest(self) -> list[bytes]:
        found = []
        while (item := self.backlog.get_nowait()) is not None:
            found.append(item.payload)
        return found


@pytest.mark.parametrize(
    ("policy", "kept", "lost"),
    [
        (DiscardPolicy.OLDEST, [b"c", b"d", b"e"], [b"a", b"b"]),
        (DiscardPolicy.NEWEST, [b"a", b"b", b"c"], [b"d", b"e"]),
        (DiscardPolicy.PRIORITY, [b"a", b"c", b"d"], [b"b", b"e"]),
        (DiscardPolicy.EXPIRED, [b"a", b"b", b"d"], [b"c", b"e"]),
    ],
)
def test_each_policy_discards_its_messages(policy: DiscardPolicy, kept: list[bytes], lost: list[bytes]) -> None:
    world = World(policy, messages_max=3)
    put = world.backlog.put
    taken = [
        put(b"a", priority=5, ttl=9),
        put(b"b", priority=1),
        put(b"c", priority=2, ttl=5),
        put(b"d", priority=3, ttl=8),
        put(b"e", priority=1, ttl=6),
    ]
    assert taken[4] is (b"e" not in lost)
    assert world.lost == lost
    assert world.backlog.discarded_count == 2
    assert len(world.backlog) == 3
    assert world.rest() == kept


def test_bytes_are_bounded_too() -> None:
    world = World(DiscardPolicy.OLDEST, bytes_max=10)
    for payload in (b"1234", b"5678", b"90ab"):
        world.backlog.put(payload)
    assert world.backlog.size_bytes == 8
    assert world.lost == [b"1234"]
    with pytest.raises(MessageTooLargeError, match="has 11 bytes, the backlog holds 10: raise bytes_max"):
        world.backlog.put(bytes(11))
    with pytest.raises(ValueError, match="positive"):
        MemoryBacklog(messages_max=0)


def test_a_backlog_holds_as_much_as_its_limits_say() -> None:
    world = World(DiscardPolicy.OLDEST, bytes_max=10)
    for payload in (bytes(10), b"12345", b"67890"):
        assert world.backlog.put(payload)
    assert world.lost == [bytes(10)]
    assert world.rest() == [b"12345", b"67890"]
    smallest = MemoryBacklog(messages_max=1, bytes_max=1)
    assert smallest.put(b"a")
    assert smallest.put(b"b")
    assert smallest.get_nowait() == BacklogItem(b"b")
    default = MemoryBacklog()
    for _ in range(100_001):
        default.put(b"")
    assert (len(default), default.discarded_count) == (100_000, 1)


def test_numbers_count_all_messages_that_came() -> None:
    world = World(DiscardPolicy.OLDEST, messages_max=2)
    backlog = world.backlog
    assert (backlog.first_number, backlog.next_number) == (0, 0)
    for payload in (b"a", b"b", b"c"):
        backlog.put(payload)
    assert (backlog.first_number, backlog.next_number) == (1, 3)
    assert world.rest() == [b"b", b"c"]
    assert (backlog.first_number, backlog.next_number) == (3, 3)


def test_a_reader_sees_messages_from_a_number_on_and_removes_none() -> None:
    backlog = World(DiscardPolicy.OLDEST).backlog
    for payload in (b"aa", b"bb", b"cc"):
        backlog.put(payload)
    assert backlog.peek(0, 100) == (0, [b"aa", b"bb", b"cc"])
    assert backlog.peek(1, 100) == (1, [b"bb", b"cc"])
    assert backlog.peek(3, 100) == backlog.peek(0, 0) == (3, [])
    assert backlog.peek(0, 1) == backlog.peek(0, 2) == (0, [b"aa"])
    assert backlog.peek(0, 3) == (0, [b"aa", b"bb"])
    assert len(backlog) == 3


def test_a_reader_gets_no_messages_from_both_sides_of_a_discarded_one() -> None:
    """The reader could not tell which message is missing."""
    world = World(DiscardPolicy.PRIORITY, messages_max=4)
    for payload, priority in ((b"a", 2), (b"b", 2), (b"c", 1), (b"d", 2), (b"e", 2)):
        world.backlog.put(payload, priority=priority)
    assert world.lost == [b"c"]
    assert world.backlog.peek(0, 100) == (0, [b"a", b"b"])
    assert world.backlog.peek(2, 100) == (3, [b"d", b"e"])


def test_a_reader_gets_no_expired_message() -> None:
    world = World(DiscardPolicy.OLDEST)
    for number in range(200):
        world.backlog.put(b"%d" % number, ttl=1)
    for payload in (b"x", b"y"):
        world.backlog.put(payload)
    world.now = 1.0
    assert world.backlog.peek(0, 100) == (200, [b"x", b"y"])
    assert (len(world.lost), len(world.backlog)) == (200, 2)


def test_expired_messages_are_not_returned() -> None:
    world = World(DiscardPolicy.OLDEST)
    world.backlog.put(b"short", ttl=1)
    world.backlog.put(b"long", ttl=3)
    world.now = 1.0
    assert world.rest() == [b"long"]
    assert world.lost == [b"short"]


@pytest.mark.parametrize("policy", [DiscardPolicy.PRIORITY, DiscardPolicy.EXPIRED])
def test_the_discard_order_does_not_grow_without_end(policy: DiscardPolicy) -> None:
    world = World(policy, messages_max=10)
    for number in range(1000):
        world.backlog.put(b"%d" % number, ttl=1e6)
        if number >= 5:
            world.backlog.get_nowait()
    assert len(world.backlog._order) < 100
    for number in range(20):
        world.backlog.put(b"%d" % number, ttl=1e6 - number)
    assert len(world.rest()) == 10


def test_messages_that_stay_keep_their_place_in_the_discard_order() -> None:
    world = World(DiscardPolicy.PRIORITY, messages_max=100)
    for _ in range(89):
        world.backlog.put(b"", priority=5)
    world.backlog.put(b"least", priority=0)
    for _ in range(85):  # the heap is rebuilt meanwhile
        world.backlog.get_nowait()
    for _ in range(96):
        world.backlog.put(b"", priority=5)
    assert world.lost == [b"least"]


@pytest.mark.parametrize("policy", DiscardPolicy)
def test_expired_messages_make_room_before_any_that_is_alive(policy: DiscardPolicy) -> None:
    world = World(policy, messages_max=3)
    world.backlog.put(b"alive", priority=1)
    world.backlog.put(b"short", priority=9, ttl=1)
    world.backlog.put(b"alive, too", priority=1, ttl=50)
    world.now = 1.0
    assert world.backlog.put(b"new", priority=1, ttl=9)
    assert world.lost == [b"short"]
    assert world.rest() == [b"alive", b"alive, too", b"new"]


def test_only_as_many_expired_messages_are_dropped_at_once_as_are_allowed() -> None:
    world = World(DiscardPolicy.OLDEST)
    for _ in range(5):
        world.backlog.put(b"", ttl=1)
    world.backlog.put(b"alive")
    assert not world.backlog.sweep(9)
    world.now = 1.0
    assert world.backlog.sweep(3)
    assert len(world.backlog) == 3
    assert not world.backlog.sweep(3)
    assert (len(world.backlog), len(world.lost)) == (1, 5)


def test_expired_messages_leave_nothing_behind() -> None:
    world = World(DiscardPolicy.OLDEST, messages_max=10)
    for number in range(1000):
        world.backlog.put(b"", ttl=1e6 + number)
        if number >= 5:
            world.backlog.get_nowait()
    assert len(world.backlog._expiring) < 100
    for _ in range(10):
        world.backlog.put(b"", ttl=1)
    world.now = 1.0
    assert world.backlog.put(b"new")
    assert world.rest() == [b"new"]


@pytest.mark.parametrize(
    ("policy", "priority", "ttl"),
    [(DiscardPolicy.NEWEST, 9, None), (DiscardPolicy.PRIORITY, 2, None), (DiscardPolicy.EXPIRED, 0, 30)],
)
def test_messages_that_come_together_are_kept_or_discarded_together(
    policy: DiscardPolicy, priority: int, ttl: float | None
) -> None:
    """One of them would have room if the first were discarded: it is not discarded for nothing."""
    world = World(policy, messages_max=3)
    world.backlog.put(b"least", priority=1, ttl=20)
    world.backlog.put(b"most", priority=5)
    assert not world.backlog.put_all([b"x", b"y", b"z"], priority=priority, ttl=ttl)
    assert (world.lost, world.backlog.discarded_count) == ([b"x", b"y", b"z"], 3)
    assert (world.backlog.first_number, world.backlog.next_number) == (0, 2)
    assert world.backlog.put(b"top", priority=9)
    world.backlog.put(b"over", priority=9)
    if policy is not DiscardPolicy.NEWEST:  # the order of what was not discarded is as before
        assert world.lost[3:] == [b"least"]


def test_more_messages_at_once_than_the_limit_are_an_error() -> None:
    backlog = World(DiscardPolicy.OLDEST, messages_max=2, bytes_max=10).backlog
    backlog.put(b"kept")
    with pytest.raises(MessageTooLargeError, match="3 messages come at once, the backlog holds 2: raise messages_max"):
        backlog.put_all([b"a", b"b", b"c"])
    with pytest.raises(MessageTooLargeError, match="the 2 messages have 11 bytes"):
        backlog.put_all([bytes(10), b"b"])
    assert backlog.put_all([b"a", b"b"])
    assert backlog.peek(0, 100) == (1, [b"a", b"b"])


def test_messages_that_are_freed_do_not_count_as_discarded() -> None:
    world = World(DiscardPolicy.NEWEST, messages_max=3)
    for payload in (b"a", b"b", b"c"):
        world.backlog.put(payload)
    world.backlog.free(2)
    assert world.backlog.sweep(1)
    assert not world.backlog.sweep(9)
    assert (world.backlog.first_number, world.backlog.next_number, len(world.backlog)) == (2, 3, 1)
    world.backlog.free(99)
    world.backlog.free(1)
    assert world.backlog.put_all([b"d", b"e", b"f"])  # free messages make room
    assert (world.lost, world.backlog.size_bytes) == ([], 3)
    assert not world.backlog.sweep(9)
    assert world.backlog.first_number == 6


def test_numbers_may_begin_later() -> None:
    backlog = MemoryBacklog(first=1_000)
    assert (backlog.first_number, backlog.next_number) == (1_000, 1_000)
    backlog.put(b"a")
    assert backlog.peek(3, 100) == (1_000, [b"a"])
    backlog.begin_at(5)
    backlog.begin_at(2_000)
    backlog.put(b"b")
    assert backlog.peek(1_001, 100) == (2_000, [b"b"])


@in_loop
async def test_get_waits_for_a_message() -> None:
    backlog = MemoryBacklog()
    assert backlog.get_nowait() is None
    waiting = asyncio.ensure_future(backlog.get())
    await asyncio.sleep(0)
    backlog.put(b"x")
    assert await waiting == BacklogItem(b"x")


def _largest_step_bytes(policy: DiscardPolicy, ttl: float | None) -> int:
    """Return the most memory that one message took of a full backlog."""
    backlog, count, largest = MemoryBacklog(policy, messages_max=10_000), 0, 0
    tracemalloc.start()
    try:
        for number in range(35_000):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            if policy is DiscardPolicy.NEWEST:
                backlog.free(number - 9_000)
            count += backlog.put(b"", ttl=ttl)
            largest = max(largest, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert count == 35_000
    return largest


@pytest.mark.parametrize("policy", DiscardPolicy)
@pytest.mark.parametrize("ttl", [None, 1e6])
def test_no_message_makes_a_large_backlog_copy_all_the_others(policy: DiscardPolicy, ttl: float | None) -> None:
    """It would take long, and the event loop would stand still. A step that copies them needs memory for them.

    Other threads of the process need some, too, but hardly in each of three runs.
    """
    assert any(_largest_step_bytes(policy, ttl) < 60_000 for _ in range(3))
