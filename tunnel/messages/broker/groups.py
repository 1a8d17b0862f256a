"""The members of groups, and which of them has which partition of a topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import msgspec

from tunnel.ground.printable import counted
from tunnel.messages.broker.events import note
from tunnel.messages.broker.protocol import LIMIT, NOT_OWNER
from tunnel.messages.broker.users import OPERATOR, Holdings
from tunnel.messages.errors import RemoteCallError

__all__ = ["Group", "Groups"]

_MEMBERS_MAX = 1_000  # in one group: each change wakes all of them
_CHANGES_MAX = 10  # generations of a group at once; then, there is one in _CHANGE_S
_CHANGE_S = 1.0
_REMOVED_AT_ONCE = 10  # members; each may take 1 ms


class _Member(msgspec.Struct):
    user: str
    owner: object  # the connection that joined last: when an older one of the same member ends, the member stays
    ends: float  # when its session ends


class Group:
    """The members of a group that read one topic. `generation` grows when members join or leave, and when a caller has
    forced a position: all members then ask again for their partitions and positions.

    After a few generations, there is at most one in a second. Until the next one, members that have joined have no
    partitions: a member that joins and leaves all the time delays itself, and the others work meanwhile.
    """

    def __init__(self, generation: int, now: float) -> None:
        self.generation = generation
        self.members: dict[str, _Member] = {}  # by name, in the order of joining
        self.places = Holdings(_MEMBERS_MAX)
        self._assigned: dict[str, int] = {}  # the members of this generation, with their places in the order
        self._changes_left = float(_CHANGES_MAX)
        self._counted_at = now
        self._is_changed = False  # the next generation has not begun yet
        self._waiters: set[asyncio.Future[None]] = set()

    def partitions_of(self, member: str, count: int) -> list[int]:
        """Return the partitions that a member has, if the topic has `count` of them."""
        place = self._assigned.get(member)
        return [] if place is None else list(range(place, count, len(self._assigned)))

    def change(self, now: float) -> None:
        """Begin a new generation, and wake those that wait for one; or let `catch_up` do so later."""
        self._is_changed = True
        self.catch_up(now)

    def catch_up(self, now: float) -> None:
        """Begin the generation that is due."""
        self._changes_left = min(_CHANGES_MAX, self._changes_left + (now - self._counted_at) / _CHANGE_S)
        self._counted_at = now
        if not self._is_changed or self._changes_left < 1:
            return
        self._changes_left -= 1
        self._is_changed = False
        self.generation += 1
        self._assigned = {name: place for place, name in enumerate(self.members)}
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until_changed(self, generation: int, seconds: float) -> None:
        """Wait until there is another generation, or until the time has passed."""
        if self.generation != generation:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


class Groups:
    """All groups of a broker. Members are kept in memory: after a restart they join again.

    `emptied` is called with a group and a topic when the group's last member for that topic has left.
    """

    def __init__(
        self,
        session_s: float,
        *,
        emptied: Callable[[str, str], None] = lambda group, topic: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._emptied = emptied
        self._session_s = session_s
        self._clock = clock
        self._groups: dict[tuple[str, str], Group] = {}
        # Generations differ from those before a restart, so that a member cannot take an old one for the present one.
        self._generation = time.time_ns() // 1_000_000

    def join(self, group: str, topic: str, member: str, owner: object, user: str = OPERATOR) -> Group:
        """Add a member to a group, or prolong its session. A user may have no more members than there is room for."""
        now = self._clock()
        found = self._groups.get((group, topic)) or Group(self._generation, now)
        known = found.members.get(member)
        if known is None:
            if not found.places.may_add(user):
                raise RemoteCallError(
                    LIMIT,
                    f"the group {group} has {counted(len(found.members), 'member')}, and {user or 'the operator'} may "
                    "have no more of them: use another group",
                )
            found.places.add(user)
            self._groups[group, topic] = found
        payer = user if known is None else known.user
        found.members[member] = _Member(payer, owner, now + self._session_s)
        if known is None:
            found.change(now)
            note("member_joined", group=group, topic=topic, member=member, members=len(found.members))
        return found

    def leave(self, group: str, topic: str, member: str, owner: object) -> None:
        """Remove a member. Harmless if there is none of this name on this connection."""
        found = self._groups.get((group, topic))
        if found is None or member not in found.members or found.members[member].owner is not owner:
            return
        found.places.add(found.members.pop(member).user, -1)
        found.change(self._clock())
        note("member_left", group=group, topic=topic, member=member, members=len(found.members))
        if not found.members:
            self._generation = max(self._generation, found.generation)
            del self._groups[group, topic]
            self._emptied(group, topic)

    def check_owner(self, group: str, topic: str, member: str, partition: int, count: int) -> None:
        """Raise RemoteCallError NOT_OWNER unless the partition belongs to the member."""
        found = self._groups.get((group, topic))
        if found is None or partition not in found.partitions_of(member, count):
            raise RemoteCallError(
                NOT_OWNER, f"partition {partition} of {topic} no longer belongs to {member} in the group {group}"
            )

    def rewound(self, group: str, topic: str) -> None:
        """Let the members of a group ask for their positions again."""
        found = self._groups.get((group, topic))
        if found is not None:
            found.change(self._clock())

    def topic_deleted(self, topic: str) -> None:
        """Let the members of all groups that read a topic ask again at once."""
        for key, found in self._groups.items():
            if key[1] == topic:
                found.change(self._clock())

    def expire(self) -> Iterator[None]:
        """Remove the members whose session has ended, and begin the generations that are due.

        Yield after some removals, so that the caller can let others run.
        """
        now, removed = self._clock(), 0
        for (group, topic), found in list(self._groups.items()):
            for name, member in list(found.members.items()):
                if member.ends >= now or found.members.get(name) is not member:  # it has joined again meanwhile
                    continue
                self.leave(group, topic, name, member.owner)
                removed += 1
                if removed % _REMOVED_AT_ONCE == 0:
                    yield
            found.catch_up(now)

    def has_members(self, group: str, topic: str) -> bool:
        """Whether a group has members that read a topic."""
        return (group, topic) in self._groups

    @property
    def members(self) -> int:
        """The number of members of all groups."""
        return sum(len(found.members) for found in self._groups.values())
