"""The carrier that uses lanes until a road works, and then the road for everything, while it works (section 8).

The lanes attach and carry the first packets. Where no link passes, they let the relay stream its answers (7.20). When a
link is lost, the carrier gives up the batches without a receipt; the core sends their packets again, and
the lanes take over at once. Connections survive this migration. The ladder decides which roads are tried, and when;
this carrier opens the links and moves the batches.
"""

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import aiohttp

from tunnel.carriers.base import Host
from tunnel.carriers.dialed_link import DialedLink, hello
from tunnel.carriers.dialing import Dialing
from tunnel.carriers.exchanging import Exchanger, ExchangingCarrier
from tunnel.carriers.http_exchanger import HttpExchanger
from tunnel.carriers.link_greeting import MADE_WAY, NARROW_US, Greeting
from tunnel.carriers.open_link import OpenLink
from tunnel.carriers.openers import OPENERS, Opened, Opener, why_not
from tunnel.carriers.upgrade import UpgradeRefusedError
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    Decision,
    Detached,
    Ladder,
    LaneConfig,
    LaneEvent,
    LanesChanged,
    LinkInput,
    PacketsReceived,
    Road,
    RoadReport,
    SpareTimes,
    Step,
    StreamingLanes,
)
from tunnel.exchange.pulls import NEVER_US
from tunnel.tasks import KeptTasks
from tunnel.wire import Packet, parse_packets

__all__ = ["LinkCarrier"]

SECOND = 1_000_000  # us

_OPEN_S = 10.0  # longest time that the upgrade may take
_DRAIN_US = SECOND  # for a link that another one has replaced: batches and receipts may still be on their way


class LinkCarrier(ExchangingCarrier):
    """The carrier that uses lanes and the roads "link" (TCP connections after an upgrade) and "websocket".

    `roads`: those that may be used, the best first. `remembered`: the road that carried here earlier, or "poll".
    `learned` is called when the road to remember changes, with its name and the state of each road.

    `eager`: `prepared` waits for the first try of the best road, and no road rests for more than a second between two
    tries, even if none has ever worked.

    `links`: the number of links to keep open, through `dialing` and `others` in turn, which lead to the same relay. One
    link carries everything. The others are spares, and one takes over at once when that link is lost or silent.

    `exchanger` and `openers` stand in for HTTP: one sends the exchanges, the others open a connection on each road.
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
        roads: Sequence[str] = ("link",),
        remembered: str = "",
        learned: Callable[[str, list[RoadReport]], None] = lambda road, roads: None,
        exchanger: Exchanger | None = None,
        openers: Mapping[str, Opener] | None = None,
    ) -> None:
        config = config or LaneConfig()
        lanes = StreamingLanes(config, secret, random, endpoint_name=name)
        super().__init__(lanes, exchanger or HttpExchanger(dialing, config))
        self._openers: Mapping[str, Opener] = openers or OPENERS
        self._dialing = dialing
        self._eager = eager
        rungs = [Road(road) for road in roads]
        self._ladder = Ladder(
            rungs, random, backoff=lanes.backoff, carried=lanes.carried, remembered=remembered, eager=eager
        )
        self._events: deque[LaneEvent] = deque()
        self._open_links: dict[DialedLink, OpenLink] = {}
        self._line: OpenLink | None = None  # the link in use
        self._proven: OpenLink | None = None  # a link that works, but that the ladder has not chosen yet
        self._spares: list[OpenLink] = []
        self._draining: dict[OpenLink, int] = {}  # replaced links, and when to close them
        self._links_max = links
        self._dialings = itertools.cycle((dialing, *others))
        self._opening: asyncio.Task[None] | None = None
        self._greeting: Greeting | None = None
        self._closing = KeptTasks()
        self._attached = False
        self._is_spare = False  # the link that is being opened is a spare; otherwise, it is for the ladder
        self._is_stale = False  # the link that is being opened belongs to a generation that has ended
        self._learned = learned
        self._noted = ""
        self._next_road = ""  # to be opened for the ladder after the present opening
        self._spare_times = SpareTimes(random, lanes.backoff)
        self._narrow_until_us = 0  # until then, the path seems to carry few requests at once: an exchange had to wait
        self._waiting_road = ""  # a road to be tried when no pull is held
        self._opening_road = ""
        self._tried_us: int | None = None  # when the present try began, while exchanges may have to wait for it

    # Carrier

    @property
    def description(self) -> str:
        if self._line is None:
            return super().description
        spare = f" and {len(self._spares)} spare" if self._spares else ""
        return f"{self._line.road} {self._dialing.description}{spare}"

    def roads(self) -> list[RoadReport]:
        """Return the state of each road, for people."""
        return self._ladder.reports()

    def secrets_renewed(self) -> None:
        if not self._closed:
            self._lanes.set_pulling(True)  # a pull shows at once whether the relay accepts the new secrets
            self._ladder.renew_soon(self._host.now())
            self._host.pump()

    def sockets(self) -> Iterable[socket.socket]:
        return tuple(found for link in self._open_links for found in link.sockets())

    def start(self, host: Host) -> None:
        super().start(host)
        self._loop = asyncio.get_running_loop()
        self._tried = self._loop.create_future()

    async def prepared(self) -> None:
        if self._eager:
            await asyncio.shield(self._tried)

    def room(self, now: int) -> int:
        line = self._line
        if line is None or self._ladder.is_doubted:
            return super().room(now)
        return self._ladder.room(line.batch_bytes) if line.link.is_writable else 0

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        line = self._line
        if line is None or self._ladder.is_doubted:
            super().push(packets, token, now)
            return
        self._host.wrote(line.send(packets, token, now))
        self._sent(line, now)

    def _sent(self, line: OpenLink, now: int) -> None:
        self._ladder.sent(line.waiting_bytes, now)
        if line.link.state.closed:
            self.link_lost(line.link, line.link.state.closed)

    def advance(self, now: int) -> bool:
        moved = super().advance(now)
        due_us = self._ladder.next_timeout()
        if due_us is not None and due_us <= now:
            self._ladder.handle_timeout(now)
            self._act(now)
            moved = True
        if self._may_open_spare() and self._spare_times.due_us <= now and self._line is not None:
            self._spare_times.tried(now)
            self._begin(self._line.road, is_spare=True)
            moved = True
        may_ask = self._lanes.backoff.next_us <= now
        road = ""
        if self._next_road and may_ask and self._opening is None:
            road, self._next_road = self._next_road, ""
        elif self._waiting_road and may_ask and not self._lanes.holds and self._lanes.late_us(0) > now:
            road, self._waiting_road = self._waiting_road, ""
        if road:
            self._lanes.backoff.sent(now)
            self._begin(road, is_spare=False)
            moved = True
        self._make_way(now)
        return moved

    def next_timeout(self) -> int | None:
        due_us = NEVER_US
        for own_us in (super().next_timeout(), self._ladder.next_timeout()):
            if own_us is not None and own_us < due_us:
                due_us = own_us
        for link in self._open_links:
            receipt_us = link.state.next_timeout()
            if receipt_us is not None and receipt_us < due_us:
                due_us = receipt_us
        due_us = min((due_us, *self._draining.values()))
        if self._tried_us is not None:
            due_us = min(due_us, self._lanes.late_us(self._tried_us))
        if self._may_open_spare() and self._spare_times.due_us < due_us:
            due_us = self._spare_times.due_us
        if self._next_road and self._opening is None:
            due_us = min(due_us, self._lanes.backoff.next_us)
        return due_us if due_us < NEVER_US else None

    def handle_timeout(self, now: int) -> None:
        super().handle_timeout(now)
        for link in list(self._open_links):
            link.handle_timeout(now)
        for line, drained_us in list(self._draining.items()):
            if now >= drained_us:
                self._shut(line)
        self._ladder.handle_timeout(now)
        self._act(now)
        self._make_way(now)

    def poll_event(self) -> LaneEvent | None:
        if self._events:
            return self._events.popleft()
        event = super().poll_event()
        match event:
            case AttachedEvent():
                self._attached = True
                self._spare_times.attached()
                self._ladder.round_trip_us = self.round_trip_us
                self._ladder.attached(self._host.now())
            case Detached() | AttachRefused():
                # The links belong to a generation that has ended.
                self._attached = False
                self._is_stale, self._next_road, self._waiting_road = True, "", ""
                self._lanes.set_holding(True)
                self._ladder.detached()
                self._drop_all()
            case LanesChanged() if self._line is not None and not self._ladder.is_doubted:
                return LanesChanged(1, 0)
        return event

    async def close(self) -> None:
        self._attached = False
        opening = self._opening
        if opening is not None:
            opening.cancel()
            self._closing.keep(opening)
        if self._greeting is not None:
            self._greeting.link.abort()
        self._drop_all()
        await super().close()
        await self._closing.done()

    def moved(self, size: int) -> None:
        self._ladder.moved(size)

    # opening

    def _act(self, now: int) -> None:
        """Do what the ladder has decided."""
        while (decision := self._ladder.poll_decision()) is not None:
            self._do(decision, now)
            self._note()
        if self._streaming is not None:
            self._streaming.set_streaming(self._ladder.keeps_streams)

    def _note(self) -> None:
        if (road := self._ladder.learned) not in ("", self._noted):
            self._noted = road
            self._learned(road, self._ladder.reports())

    def _do(self, decision: Decision, now: int) -> None:
        line = self._line
        match decision.step:
            case Step.TRY if line is None and (now < self._narrow_until_us or self._lanes.is_narrow):
                # The try takes the turn of the held pull, and not that of a push.
                self._waiting_road = decision.road
                self._lanes.set_holding(False)
            case Step.TRY | Step.RENEW:
                self._begin(decision.road, is_spare=False)
            case Step.USE:
                self._waiting_road = ""  # a spare link may have proven the road meanwhile
                self._lanes.set_holding(True)
                proven = self._take_proven()
                if proven is not None:
                    self._replace(proven, now)
            case Step.PROBE if line is not None:
                line.probe(now)
                self._sent(line, now)
            case Step.RESUME:
                self._use_lanes(False)
            case Step.YIELD if line is not None and self._spares:
                self.link_lost(line.link, f"{decision.reason}: a spare link takes over")
            case Step.YIELD if line is not None:
                self._events += line.give_up()
                self._use_lanes(True)
            case Step.LEAVE:
                self._drop_all()
            case Step.CLOSE if line is not None:
                self._host.trouble(f"the {line.road} was lost: {decision.reason}")
                self._line = None
                self._shut(line)
                self._use_lanes(True)

    def _may_open_spare(self) -> bool:
        if self._line is None or len(self._spares) + 1 >= self._links_max:
            return False
        return self._attached and self._opening is None and not self._next_road and not self._closed

    def _begin(self, road: str, *, is_spare: bool) -> None:
        if self._opening is not None:
            self._next_road = road
            return
        self._is_spare, self._is_stale = is_spare, False
        self._tried_us = self._host.now() if self._line is None else None
        self._opening_road = road
        self._opening = self._loop.create_task(self._open(road))

    async def _open(self, road: str) -> None:
        """Try once to open a link: request an upgrade, then greet. A failure is handled by `not_opened`."""
        dialing = next(self._dialings)
        secrets, sent_us = dialing.secrets, self._host.now()
        try:
            async with asyncio.timeout(_OPEN_S):
                opened = await self._openers[road](dialing)
        except Exception as error:
            if isinstance(error, UpgradeRefusedError | aiohttp.ClientHttpProxyError):
                dialing.answered(secrets, error.status)
            text, refusal, wait_us = why_not(error, dialing)
            if refusal is not None:
                self._lanes.backoff.refused(refusal, sent_us, self._host.now(), retry_after_us=wait_us)
            self.not_opened(road, text, is_ban=refusal is not None and refusal.is_ban)
        else:
            self._greet(Greeting(self, road, dialing, secrets, sent_us), opened)

    def _greet(self, owner: Greeting, opened: Opened) -> None:
        lanes = self._lanes
        self._greeting = owner
        greeting = hello(lanes.attachment_id, lanes.epoch, lanes.generation)
        owner.begin(opened, greeting, self._ladder.proof_us / SECOND, self._host.now, self._closing)

    def link_opened(self, link: DialedLink, road: str, sent_us: int) -> None:
        """Offer the link, which the relay has accepted, to the ladder; or keep it as a spare."""
        self._lanes.backoff.answered(sent_us)
        is_spare, is_stale = self._is_spare, self._is_stale
        link.owner = self
        self._tried_once()
        if self._closed or not self._attached or is_stale:
            link.abort()
            if not self._closed:
                self._host.pump()  # another road may wait for the end of this try
            return
        now = self._host.now()
        self._spare_times.opened()
        line = self._open_links[link] = OpenLink(link, road)
        if self._line is not None and self._line.road == road and is_spare and not self._ladder.is_doubted:
            self._spares.append(line)
        elif self._line is not None and self._line.road == road:
            self._replace(line, now)
            self._ladder.renewed(now)
        else:
            self._proven = line
            self._ladder.proven(road, now)
            self._act(now)
            if self._take_proven() is not None:  # the ladder has no use for it any more
                self._shut(line)
        self._host.pump()

    def not_opened(self, road: str, reason: str, *, is_ban: bool = False) -> None:
        """Schedule the next try, because the request failed or the relay did not accept the link."""
        is_spare, is_stale = self._is_spare, self._is_stale
        self._tried_once()
        now = self._host.now()
        if self._line is not None and not self._ladder.is_doubted:
            self._lanes.set_pulling(False)
        if is_spare:
            self._spare_times.failed(now)
        elif not is_stale:
            self._ladder.failed(road, reason, now, is_ban=is_ban)
            self._ladder.not_renewed(now)
            self._note()
        if not self._closed:
            self._host.pump()

    def _tried_once(self) -> None:
        """Note that a try has ended."""
        self._opening = self._greeting = self._tried_us = None
        self._lanes.set_holding(not self._waiting_road)
        if not self._tried.done():
            self._tried.set_result(None)

    def _make_way(self, now: int) -> None:
        """Give up the try if it keeps an exchange waiting: perhaps the path carries few requests at once (8.6)."""
        if self._tried_us is None or self._opening is None or self._lanes.late_us(self._tried_us) > now:
            return
        self._tried_us = None
        self._narrow_until_us = now + NARROW_US
        if self._greeting is not None:
            self._greeting.make_way(MADE_WAY)
        else:
            self._opening.cancel()
            self._closing.keep(self._opening)
            self.not_opened(self._opening_road, MADE_WAY)

    # while a link is open

    def link_open(self, link: DialedLink) -> None:
        """Do nothing: `link_opened` is called instead."""

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        line = self._open_links.get(link)
        if line is None:
            return
        now = self._host.now()
        done, size = line.receipted(found.receipts, now)
        self._events += done
        for batch in found.batches:
            packets, discarded = parse_packets(batch)
            self._events.append(PacketsReceived(packets, discarded))
        if self._streaming is not None:
            self._streaming.receipted(line.receipted_us)
        if line is self._line:
            if found.receipts:
                self._ladder.receipted(size, line.waiting_bytes, now, took_us=now - line.receipted_us)
            self._ladder.on_received(sum(map(len, found.batches)), now)
            self._act(now)
        self._host.pump()

    def link_writable(self, link: DialedLink) -> None:
        self._host.pump()

    def link_lost(self, link: DialedLink, reason: str) -> None:
        line = self._open_links.get(link)
        if line is None:
            return
        now = self._host.now()
        is_replaced = line in self._draining
        self._shut(line)
        if line in self._spares:
            self._spares.remove(line)
            self._spare_times.failed(now)
        elif line is self._line:
            self._line = None
            self._take_over(line.road, reason, now)
        if not is_replaced and not self._closed:
            self._host.trouble(f"the {line.road} was lost: {reason}")
            self._host.pump()

    def _take_over(self, road: str, reason: str, now: int) -> None:
        """Use a spare link, or the lanes, in place of the link in use, which is lost."""
        if self._spares:
            self._replace(self._spares.pop(0), now)
            self._ladder.renewed(now)
            self._spare_times.failed(now)
        else:
            self._ladder.lost(road, reason, now)
            self._use_lanes(True)

    def _take_proven(self) -> OpenLink | None:
        """Return the link that the ladder has not chosen yet, and keep it no longer. It is a method because the
        compiler assumes that an attribute still has the value assigned last, whatever was called since."""
        proven, self._proven = self._proven, None
        return proven

    def _replace(self, line: OpenLink, now: int) -> None:
        """Use this link from now on. Close the link before it soon, and the spares as well if they are of another road.
        Close the links that were replaced earlier at once: where roads come and go, they would pile up."""
        before, self._line = self._line, line
        if before is not None:
            for replaced in list(self._draining):
                self._shut(replaced)
            drained_us = now + max(_DRAIN_US, 4 * self.round_trip_us)
            self._draining[before] = drained_us
            if before.road != line.road:
                self._draining.update(dict.fromkeys(self._spares, drained_us))
                self._spares = []
        self._use_lanes(False)

    def _shut(self, line: OpenLink) -> None:
        """Close a link, and give up its batches without a receipt."""
        self._open_links.pop(line.link, None)
        self._draining.pop(line, None)
        line.link.abort()
        self._events += line.give_up()

    def _drop_all(self) -> None:
        had_line, self._line, self._proven = self._line is not None, None, None
        self._spares = []
        for line in list(self._open_links.values()):
            self._shut(line)
        if had_line:
            self._use_lanes(True)

    def _use_lanes(self, used: bool) -> None:
        """Switch to the lanes or away from them. A link needs no pulls, and keeps packets in order as one lane does."""
        self._lanes.set_pulling(used)
        self._events.append(LanesChanged(*((self._lanes.lane_count, self._lanes.pull_interval_us) if used else (1, 0))))
