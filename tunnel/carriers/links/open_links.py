"""The open links of one carrier: the one in use, its further ones, and those that were replaced and drain."""

import socket
from collections import deque
from collections.abc import Iterable

from tunnel.carriers.links.dialed_link import DialedLink
from tunnel.carriers.links.open_link import OpenLink
from tunnel.exchange import LaneEvent
from tunnel.exchange.path.pulls import NEVER_US

__all__ = ["OpenLinks"]


class OpenLinks:
    """Every open link, and what it is for. The events of batches that are given up go to `events`.

    The further links are spares. But those that share the load (8.7) carry as well, if the link in use does.
    """

    def __init__(self, events: deque[LaneEvent]) -> None:
        self.in_use: OpenLink | None = None
        self.proven: OpenLink | None = None  # a link that works, but that the ladder has not chosen yet
        self.spares: list[OpenLink] = []
        self.draining: dict[OpenLink, int] = {}  # replaced links, and when to close them
        self.all: dict[DialedLink, OpenLink] = {}
        self._events = events

    @property
    def carrying(self) -> list[OpenLink]:
        """The links that carry, stalled ones included: the one in use first."""
        used = self.in_use
        if used is None:
            return []
        return [used, *(link for link in self.spares if link.line is not None and used.line is not None)]

    @property
    def working(self) -> list[OpenLink]:
        """The links that carry and do not stall."""
        return [link for link in self.carrying if not link.is_stalled]

    @property
    def waiting_bytes(self) -> int:
        """Bytes on the links that carry that have no receipt, and were not given up."""
        used = self.in_use
        if used is None:
            return 0
        if not self.spares:
            return used.waiting_bytes
        return sum(link.waiting_bytes for link in self.carrying)

    def next_line(self, used: OpenLink) -> OpenLink:
        """Return the link for the next batch: of those with room the one with the least load, or else the one in use,
        which is `used`."""
        best, room = used, used.room
        for link in self.carrying[1:]:
            if (not room or link.load < best.load) and link.room:
                best, room = link, link.room
        return best

    def stall(self, now: int) -> bool:
        """Give up the batches on links that stall, so that others send them again. Return whether there were any.

        The last link that works is not looked at: whether the road is silent is for the ladder to decide.
        """
        working = self.working
        late = sorted((link for link in working if _stalls_us(link) <= now), key=_stalls_us)
        late = late[: len(working) - 1]
        for link in late:
            self._events += link.stall(now)
        self.prefer_working()
        return bool(late)

    def stall_all(self, now: int) -> bool:
        """Give up the batches on all links that carry and wait for a receipt. Return whether a link is left that does
        not, so that it may work."""
        for link in self.working:
            if link.waiting_bytes:
                self._events += link.stall(now)
        return self.prefer_working()

    def prefer_working(self) -> bool:
        """Use one that works in place of the link in use, if that stalls. Return whether the link in use works."""
        used = self.in_use
        if used is None or not used.is_stalled:
            return used is not None
        for index, link in enumerate(self.spares):
            if link.line is not None and not link.is_stalled:
                self.in_use, self.spares[index] = link, used
                return True
        return False

    def dead(self, now: int) -> list[OpenLink]:
        """Return the links that have stalled for so long that they are to be closed."""
        return [link for link in self.spares if link.line is not None and link.line.dead_us <= now]

    def sockets(self) -> Iterable[socket.socket]:
        """Return the sockets of all links, as far as they are known."""
        return tuple(found for link in self.all for found in link.sockets())

    def add(self, link: DialedLink, road: str) -> OpenLink:
        """Add a link, which has no purpose yet."""
        opened = self.all[link] = OpenLink(link, road)
        return opened

    def replace(self, opened: OpenLink, drained_us: int) -> None:
        """Use this link from now on. Close the link before it at `drained_us`, and the spares as well if they are of
        another road. Close the links that were replaced earlier at once: where roads come and go, they would pile up.
        """
        before, self.in_use = self.in_use, opened
        if before is not None:
            for replaced in list(self.draining):
                self.shut(replaced)
            left = [before]
            if before.road != opened.road:
                left += self.spares
                self.spares = []
            for link in left:
                self.draining[link] = drained_us
                link.leave()

    def take_spare(self) -> OpenLink | None:
        """Return a spare that does not stall, and keep it no longer; None if there is none."""
        spare = next((link for link in self.spares if not link.is_stalled), None)
        if spare is not None:
            self.spares.remove(spare)
        return spare

    def shut_used(self) -> None:
        """Close the links that carry, of which none works. If the link in use is lost, close its further links."""
        lost = self.carrying or self.spares
        self.in_use, self.spares = None, [link for link in self.spares if link not in lost]
        for link in lost:
            self.shut(link)

    def take_proven(self) -> OpenLink | None:
        """Return the link that the ladder has not chosen yet, and keep it no longer."""
        proven, self.proven = self.proven, None
        return proven

    def shut(self, opened: OpenLink) -> None:
        """Close a link, and give up its batches without a receipt."""
        self.all.pop(opened.link, None)
        self.draining.pop(opened, None)
        opened.link.abort()
        self._events += opened.give_up()

    def drop_all(self) -> None:
        """Close every link."""
        self.in_use = self.proven = None
        self.spares = []
        for opened in list(self.all.values()):
            self.shut(opened)

    def next_timeout(self) -> int:
        """Return when to call `handle_timeout`."""
        due_us = min(self.draining.values(), default=NEVER_US)
        for link in self.all:
            receipt_us = link.state.due_us
            if receipt_us is not None and receipt_us < due_us:
                due_us = receipt_us
        if self.spares:
            due_us = min(due_us, self._stalls_us())
        return due_us

    def _stalls_us(self) -> int:
        """Return when `stall` or `dead` will find a link."""
        due_us = min((link.line.dead_us for link in self.spares if link.line is not None), default=NEVER_US)
        working = self.working
        return min(due_us, *map(_stalls_us, working)) if len(working) > 1 else due_us

    def handle_timeout(self, now: int) -> None:
        """Send the receipts that are due, and close the links that have drained."""
        for link in list(self.all):
            link.handle_timeout(now)
        for opened, drained_us in list(self.draining.items()):
            if now >= drained_us:
                self.shut(opened)


def _stalls_us(link: OpenLink) -> int:
    return link.line.stalls_us if link.line is not None else NEVER_US
