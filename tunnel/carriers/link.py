"""The carrier that uses lanes until it can open a link, which carries everything while it works (section 8).

The lanes attach and carry the first packets. Where no link passes, they let the relay stream its answers (7.20). When
the link is lost, the carrier gives up the batches that the link has not receipted; the core sends their packets again,
and the lanes take over at once. Connections survive this migration.
"""

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from tunnel.carriers.base import Host
from tunnel.carriers.dialed_link import DialedLink, hello
from tunnel.carriers.dialing import Dialing
from tunnel.carriers.exchanging import ExchangingCarrier
from tunnel.carriers.failures import describe_failure
from tunnel.carriers.http_exchanger import HttpExchanger
from tunnel.carriers.upgrade import Upgraded, UpgradeRefusedError, upgrade
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneConfig,
    LaneEvent,
    LanesChanged,
    LinkInput,
    LinkPace,
    PacketsReceived,
    StreamingLanes,
)
from tunnel.exchange.pulls import NEVER_US
from tunnel.tasks import KeptTasks
from tunnel.wire import Packet, encode_packets, parse_packets

__all__ = ["LinkCarrier"]

MS = 1_000
SECOND = 1_000 * MS

_DOUBT_US = SECOND  # without a receipt for this long, a spare link or the lanes take over
_DOUBT_US_MAX = 8 * SECOND  # it doubles up to this whenever the receipts come late: the link is only slow
_DEAD_US = 10 * SECOND  # without a receipt for this long, the link is closed
_OPEN_S = 10.0  # for the upgrade, and again for the greeting
_RETRY_US_MIN = 100 * MS
_RETRY_US_MAX = SECOND  # if a link has worked before
_RETRY_US_RARE = 60 * SECOND  # if none ever has, or while another link works


class LinkCarrier(ExchangingCarrier):
    """The carrier that uses lanes and links.

    `eager`: `prepared` waits for the first try of a link, and tries follow every second even if none has ever worked.

    `links`: the number of links to keep open, in turn to `dialing` and `others`, which lead to the same relay. One link
    carries everything. The others are spares, and one takes over at once when that link is lost or silent.
    """

    def __init__(
        self,
        dialing: Dialing,
        secret: bytes,
        random: Random,
        *,
        name: str = "",
        config: LaneConfig | None = None,
        eager: bool = False,
        links: int = 1,
        others: Sequence[Dialing] = (),
    ) -> None:
        config = config or LaneConfig()
        lanes = StreamingLanes(config, secret, random, endpoint_name=name)
        super().__init__(lanes, HttpExchanger(dialing, config.answer_bytes_max))
        self._dialing = dialing
        self._random = random
        self._worked = self._eager = eager
        self._events: deque[LaneEvent] = deque()
        self._link: DialedLink | None = None  # the open link in use
        self._spares: list[DialedLink] = []  # open, but not in use
        self._links_max = links
        self._dialings = itertools.cycle((dialing, *others))
        self._opening: asyncio.Task[None] | None = None
        self._greeting: DialedLink | None = None
        self._closing = KeptTasks()
        self._attached = False
        self._retry_at_us = 0
        self._retry_us = _RETRY_US_MIN
        self._pace = LinkPace()
        self._progress_us = 0  # time of the last receipt, or of the first batch that waits for one
        self._doubted = False
        self._doubt_us = _DOUBT_US
        self._forgotten = 0  # number of batches that were given up; their receipts may still come

    # Carrier

    @property
    def description(self) -> str:
        if self._link is None:
            return super().description
        spare = f" and {len(self._spares)} spare" if self._spares else ""
        return f"link {self._dialing.description}{spare}"

    def sockets(self) -> Iterable[socket.socket]:
        return tuple(found for link in self._open_links() for found in link.sockets())

    def start(self, host: Host) -> None:
        super().start(host)
        self._loop = asyncio.get_running_loop()
        self._tried = self._loop.create_future()

    async def prepared(self) -> None:
        if self._eager:
            await asyncio.shield(self._tried)

    def room(self, now: int) -> int:
        link = self._link
        if link is None or self._doubted:
            return super().room(now)
        return self._pace.batch_bytes if link.is_writable else 0

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        link = self._link
        if link is None or self._doubted:
            super().push(packets, token, now)
            return
        if not self._pace.waits:
            self._progress_us = now
        before = link.state.unreceipted_bytes
        link.send(encode_packets(packets), token)
        size = link.state.unreceipted_bytes - before
        self._pace.sent(size, now)
        self._host.wrote(size)
        if link.state.closed:
            self.link_lost(link, link.state.closed)

    def advance(self, now: int) -> bool:
        moved = super().advance(now)
        if self._may_open() and self._retry_at_us <= now:
            self._opening = self._loop.create_task(self._open())
            moved = True
        return moved

    def next_timeout(self) -> int | None:
        due_us = super().next_timeout()
        link_us = self._link_timeout()
        if link_us < NEVER_US and (due_us is None or link_us < due_us):
            due_us = link_us
        if self._may_open() and (due_us is None or self._retry_at_us < due_us):
            due_us = self._retry_at_us
        return due_us

    def handle_timeout(self, now: int) -> None:
        super().handle_timeout(now)
        link = self._link
        if link is None:
            return
        for open_link in self._open_links():
            open_link.handle_timeout(now)
        if self._doubted and now >= self._progress_us + _DEAD_US:
            self.link_lost(link, f"the relay sent no receipt for {_DEAD_US // SECOND} s")
        elif self._pace.waits and now >= self._progress_us + self._doubt_us and self._spares:
            self.link_lost(link, "the relay sent no receipt in time: a spare link takes over")
        elif self._pace.waits and now >= self._progress_us + self._doubt_us:
            self._give_up(link)
            self._doubted = True
            self._use_lanes(True)

    def poll_event(self) -> LaneEvent | None:
        if self._events:
            return self._events.popleft()
        event = super().poll_event()
        if event is None:
            return None
        match event:
            case AttachedEvent():
                self._attached = True
                self._retry_at_us = 0
            case Detached() | AttachRefused():
                # The links belong to a generation that has ended.
                self._attached = False
                self._drop_all()
            case LanesChanged() if self._link is not None and not self._doubted:
                return LanesChanged(1, 0)
        return event

    async def close(self) -> None:
        self._attached = False
        opening = self._opening
        if opening is not None:
            opening.cancel()
            self._closing.keep(opening)
        if self._greeting is not None:
            self._greeting.abort()
        self._drop_all()
        await super().close()
        await self._closing.done()

    # opening

    def _may_open(self) -> bool:
        if self._link is not None and len(self._spares) + 1 >= self._links_max:
            return False
        return self._attached and self._opening is None and not self._closed

    def _open_links(self) -> Iterator[DialedLink]:
        if self._link is not None:
            yield self._link
            yield from self._spares

    async def _open(self) -> None:
        """Try once to open a link: request an upgrade, then greet. A failure is handled by `not_opened`."""
        dialing = next(self._dialings)
        try:
            async with asyncio.timeout(_OPEN_S):
                upgraded = await upgrade(dialing)
        except UpgradeRefusedError as error:
            self.not_opened(str(error))
        except Exception as error:
            self.not_opened(describe_failure(error, dialing.base))
        else:
            self._greet(upgraded)

    def _greet(self, upgraded: Upgraded) -> None:
        lanes = self._lanes
        timer = self._loop.call_later(_OPEN_S, upgraded.transport.abort)

        def closed(error: Exception | None) -> None:
            timer.cancel()
            upgraded.lost(error)
            self._closing.keep(self._loop.create_task(upgraded.close()))

        link = self._greeting = DialedLink(_Opening(self, timer), self._host.now, closed)
        link.begin(upgraded.transport, hello(lanes.attachment_id, lanes.epoch, lanes.generation), upgraded.early)

    def link_open(self, link: DialedLink) -> None:
        """Use the link, which the relay has accepted, from now on; keep it as a spare if there is a link already."""
        self._tried_once()
        if self._closed or not self._attached:
            link.abort()
            return
        self._worked = True
        self._retry_us = _RETRY_US_MIN
        if self._link is None:
            self._use(link)
        else:
            self._spares.append(link)
        self._host.pump()

    def _use(self, link: DialedLink) -> None:
        self._link = link
        self._doubted = False
        self._forgotten = 0
        self._use_lanes(False)

    def not_opened(self, reason: str) -> None:
        """Schedule the next try, because the request failed or the relay did not accept the link."""
        self._tried_once()
        self._retry_later()
        if not self._closed:
            self._host.pump()

    def _tried_once(self) -> None:
        self._opening = self._greeting = None
        if not self._tried.done():
            self._tried.set_result(None)

    def _retry_later(self) -> None:
        most_us = _RETRY_US_MAX if self._worked and self._link is None else _RETRY_US_RARE
        wait_us = min(self._retry_us, most_us)
        self._retry_us = min(2 * wait_us, most_us)
        self._retry_at_us = self._host.now() + wait_us - self._random.getrandbits(16) * wait_us // (4 << 16)

    # while it is open

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        if link is not self._link and link not in self._spares:
            return
        now = self._host.now()
        for token in found.receipts:
            self._progress_us = now
            if self._forgotten:
                self._forgotten -= 1
            else:
                self._pace.receipted(now)
                self._events.append(BatchDone(token, ok=True))
        for batch in found.batches:
            packets, discarded = parse_packets(batch)
            self._events.append(PacketsReceived(packets, discarded))
        if found.receipts and self._doubted:
            self._doubted = False
            self._doubt_us = min(2 * self._doubt_us, _DOUBT_US_MAX)
            self._use_lanes(False)
        self._host.pump()

    def link_writable(self, link: DialedLink) -> None:
        self._host.pump()

    def link_lost(self, link: DialedLink, reason: str) -> None:
        if link in self._spares:
            self._spares.remove(link)
            self._retry_later()
        elif link is self._link:
            self._drop()
        else:
            return
        if not self._closed:
            self._host.trouble(f"the link was lost: {reason}")
            self._host.pump()

    def _drop(self) -> None:
        """Close the link in use; a spare link or the lanes take over (8.3)."""
        link, self._link = self._link, None
        if link is None:
            return
        link.abort()
        self._give_up(link)
        if self._spares:
            self._use(self._spares.pop(0))
        else:
            self._doubted = False
            self._use_lanes(True)
        self._retry_later()

    def _drop_all(self) -> None:
        spares, self._spares = self._spares, []
        for link in spares:
            link.abort()
        self._drop()

    def _give_up(self, link: DialedLink) -> None:
        """Give up the batches that this link has not receipted, so that they are sent another way."""
        unreceipted = link.state.unreceipted
        for token in unreceipted[self._forgotten :]:
            self._events.append(BatchDone(token, ok=False))
        self._forgotten = len(unreceipted)
        self._pace.forget()

    def _link_timeout(self) -> int:
        if self._link is None:
            return NEVER_US
        due_us = NEVER_US
        if self._pace.waits or self._doubted:
            due_us = self._progress_us + (_DEAD_US if self._doubted else self._doubt_us)
        receipt_us = self._link.state.next_timeout()
        if receipt_us is not None and receipt_us < due_us:
            due_us = receipt_us
        for spare in self._spares:
            receipt_us = spare.state.next_timeout()
            if receipt_us is not None and receipt_us < due_us:
                due_us = receipt_us
        return due_us

    def _use_lanes(self, used: bool) -> None:
        """Switch to the lanes or away from them. A link needs no pulls, and keeps packets in order as one lane does."""
        self._lanes.set_pulling(used)
        lanes = LanesChanged(self._lanes.lane_count, self._lanes.pull_interval_us) if used else LanesChanged(1, 0)
        self._events.append(lanes)


class _Opening:
    """Owns a link until the relay has sent its greeting, then hands the link to the carrier."""

    def __init__(self, carrier: LinkCarrier, timer: asyncio.TimerHandle) -> None:
        self._carrier = carrier
        self._timer = timer

    def link_open(self, link: DialedLink) -> None:
        self._timer.cancel()
        link.owner = self._carrier
        self._carrier.link_open(link)

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        """Do nothing: no input comes before the greeting."""

    def link_writable(self, link: DialedLink) -> None:
        """Do nothing: no batch is written before the greeting."""

    def link_lost(self, link: DialedLink, reason: str) -> None:
        self._carrier.not_opened(reason)
