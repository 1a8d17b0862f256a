"""The backlog in memory: which messages it discards, and which it never returns."""

import asyncio

import pytest

from tests.support.loops import in_loop
from tunnel.messages.backlog import BacklogItem, DiscardPolicy, MemoryBacklog
from tunnel.messages.errors import MessageTooLargeError


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
    with pytest.raises(MessageTooLargeError):
        world.backlog.put(bytes(11))
    with pytest.raises(ValueError, match="positive"):
        MemoryBacklog(messages_max=0)


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


@in_loop
async def test_get_waits_for_a_message() -> None:
    backlog = MemoryBacklog()
    assert backlog.get_nowait() is None
    waiting = asyncio.ensure_future(backlog.get())
    await asyncio.sleep(0)
    backlog.put(b"x")
    assert await waiting == BacklogItem(b"x")
