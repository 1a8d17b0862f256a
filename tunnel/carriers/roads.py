"""The carrier that uses lanes until a road works, and then the road for everything, while it works (section 8).

The lanes attach and carry the first packets. Where no road passes, they let the relay stream its answers (7.20). When a
link is lost, the carrier gives up the batches without a receipt; the core sends their packets again, and the lanes take
over at once. Connections survive this migration. The ladder decides which roads are tried, and when; `RoadTries` keeps
them to one try at a time; `LinkOpener` opens the links; this carrier moves the batches.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from tunnel.carriers.base import Host
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.exchanging import Exchanger, ExchangingCarrier
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.carriers.links.dialed_link import DialedLink
from tunnel.carriers.links.link_opener import LinkOpener
from tunnel.carriers.links.open_link import OpenLink
from tunnel.carriers.links.open_links import OpenLinks
from tunnel.carriers.links.openers import OPENERS, Opener
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    Decision,
    Detached,
    Ladder,
    LaneConfig,
    LaneEvent,
    Lanes,
    LanesChanged,
    LinkInput,
    Next,
    PacketsReceived,
    Road,
    RoadReport,
    RoadTries,
    Step,
    Try,
)
from tunnel.exchange.path.pulls import NEVER_US
from tunnel.wire import Packet, parse_packets

__all__ = ["RoadCarrier"]

_DRAIN_US = 1_000_000  # for a link that another one has replaced: batches and receipts may still be on their way


class RoadCarrier(ExchangingCarrier):
    """The carrier that uses lanes and the roads "link" (TCP connections after an upgrade) and "websocket". A connection
    on either road is a link.

    `roads`: those that may be used, the best first. `remembered`: the road that carried here earlier, or "poll".
    `learned` is called when the road to remember changes, with its name and the state of each road.

    `eager`: `until_ready` waits for the first try of the best road, and no road rests for more than a second between
    two tries, even if none has ever worked.

    `links`: the number of links to keep open, through `dialing` and `others` in turn, which lead to the same relay.
    They share the load (8.7). An earlier relay does not let them: then one link carries everything, and the others are
    spares, one of which takes over at once when that link is lost or silent.

    `exchanger` and `openers` stand in for HTTP: one sends the exchanges, the others open a connection on each road.

    One thing because it only joins its parts: lanes, ladder, tries, opener and links. Two thirds of its methods are
    those of the protocols `Carrier` and `LinkOwner`.
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
        lanes = Lanes(config, secret, random, endpoint_name=name, streams=True)
        super().__init__(lanes, exchanger or HttpExchanger(dialing, config))
        assert lanes.streams is not None
        backoff, carried = lanes.path.backoff, lanes.streams.carried
        rungs = [Road(road) for road in roads]
        self._eager = eager
        self._ladder = Ladder(rungs, random, backoff=backoff, carried=carried, remembered=remembered, eager=eager)
        self._tries = RoadTries(random, backoff)
        self._opener = LinkOpener(self, lanes, self._ladder, (dialing, *others), openers or OPENERS, shares=links > 1)
        self._events: deque[LaneEvent] = deque()
        self._links = OpenLinks(self._events)
        self._links_max = links
        self._attached = False
        self._learned = learned
        self._noted = ""

    # Carrier

    @property
    def description(self) -> str:
        used = self._links.in_use
        if used is None:
            return super().description
        carrying, spares = len(self._links.carrying), len(self._links.spares)
        shared = f" over {carrying} connections" if carrying > 1 else ""
        spare = f" and {spares + 1 - carrying} spare" if spares >= carrying else ""
        return f"{used.road} {self.relay}{shared}{spare}"

    def roads(self) -> list[RoadReport]:
        """Return the state of each road, for people."""
        return self._ladder.reports()

    def secrets_renewed(self) -> None:
        if not self._closed:
            now = self._host.now()
            self._lanes.set_pulling(True, now)  # a pull shows at once whether the relay accepts the new secrets
            self._ladder.renew_soon(now)
            self._host.pump()

    def sockets(self) -> Iterable[socket.socket]:
        return self._links.sockets()

    def start(self, host: Host) -> None:
        super().start(host)
        self._opener.start(host)
        self._tried = asyncio.get_running_loop().create_future()

    async def until_ready(self) -> None:
        if self._eager:
            await asyncio.shield(self._tried)

    @property
    def has_events(self) -> bool:
        return bool(self._events or self._lane_events)

    def room(self, now: int) -> int:
        used = self._links.in_use
        if used is None or self._ladder.is_doubted:
            return super().room(now)
        if used.line is not None:
            return self._ladder.room(self._links.next_line(used).room)
        return self._ladder.room(used.room)

    def push(self, packets: list[Packet], token: int, now: int) -> bool:
        used = self._links.in_use
        if used is None or self._ladder.is_doubted:
            return super().push(packets, token, now)
        if used.line is not None:
            used = self._links.next_line(used)
        self._host.wrote(used.send(packets, token, now))
        self._sent(used, now)
        return False

    def _sent(self, used: OpenLink, now: int) -> None:
        self._ladder.on_sent(used.waiting_bytes if used.line is None else self._links.waiting_bytes, now)
        if used.link.state.closed:
            self.link_lost(used.link, used.link.state.closed)

    def advance(self, now: int) -> bool:
        moved = super().advance(now)
        if self._links.spares and self._relieve(now):
            moved = True
        due_us = self._ladder.next_timeout()
        if due_us is not None and due_us <= now:
            self._ladder.handle_timeout(now)
            self._act(now)
            moved = True
        used = self._links.in_use
        if used is not None and self._links_max > 1 and self._wants_spare() and self._tries.spare_due_us <= now:
            self._tries.begin_spare(used.road, now)
            self._opener.begin(used.road)
            moved = True
        if self._tries.next is not Next.NONE and self._tries.next_due_us <= now and self._has_turn(now):
            if self._tries.begin_next(now, carries=self._links.in_use is not None):
                self._opener.begin(self._tries.road)
            moved = True
        if self._tries.began_us is not None:
            self._make_way(now)
        return moved

    def next_timeout(self) -> int | None:
        tries, due_us = self._tries, self._links.next_timeout()
        lanes_us = self._lanes.next_timeout() if self._exchanger.is_ready else None
        if lanes_us is not None and lanes_us < due_us:
            due_us = lanes_us
        ladder_us = self._ladder.next_timeout()
        if ladder_us is not None and ladder_us < due_us:
            due_us = ladder_us
        if tries.began_us is not None:
            due_us = min(due_us, self._lanes.late_us(tries.began_us))
        if self._links_max > 1 and self._wants_spare():
            due_us = min(due_us, tries.spare_due_us)
        if tries.next is Next.END:
            due_us = min(due_us, tries.next_due_us)
        return due_us if due_us < NEVER_US else None

    def handle_timeout(self, now: int) -> None:
        super().handle_timeout(now)
        self._links.handle_timeout(now)
        if self._links.spares:
            self._relieve(now)
        self._ladder.handle_timeout(now)
        self._act(now)
        self._make_way(now)

    def poll_event(self) -> LaneEvent | None:
        if self._events:
            return self._events.popleft()
        if not self._lane_events:
            return None
        event = super().poll_event()
        match event:
            case AttachedEvent():
                self._attached = True
                self._tries.spare_times.on_attached()
                self._ladder.round_trip_us = self.round_trip_us
                self._ladder.on_attached(self._host.now())
            case Detached() | AttachRefused():
                # The links belong to a generation that has ended.
                self._attached = False
                self._tries.on_detached()
                self._lanes.set_holding(self._tries.may_hold)
                self._ladder.on_detached()
                self._drop_all(self._host.now())
            case LanesChanged() if self._links.in_use is not None and not self._ladder.is_doubted:
                return LanesChanged(len(self._links.carrying), 0)
        return event

    async def close(self) -> None:
        self._attached = False
        self._opener.abort()
        self._drop_all(self._host.now())
        await super().close()
        await self._opener.close()

    def on_moved(self, size: int) -> None:
        self._ladder.on_moved(size)

    def on_sent(self, size_bytes: int) -> None:
        had_moved = self._ladder.has_moved
        super().on_sent(size_bytes)
        if self._ladder.has_moved and not had_moved and not self._closed:
            self._host.pump()  # another road may be due earlier, and nothing else tells the driver

    # opening

    def _act(self, now: int) -> None:
        """Do what the ladder has decided."""
        decisions = self._ladder.decisions
        while decisions:
            self._do(decisions.popleft(), now)
            self._note()
        if self._streams is not None and self._streams.may_stream is not self._ladder.keeps_streams:
            self._streams.allow(self._ladder.keeps_streams, now)

    def _note(self) -> None:
        if (road := self._ladder.road_to_remember) not in ("", self._noted):
            self._noted = road
            self._learned(road, self._ladder.reports())

    def _do(self, decision: Decision, now: int) -> None:
        used = self._links.in_use
        match decision.step:
            case Step.TRY | Step.RENEW:
                if self._tries.want(decision.road, now, is_narrow=self._lanes.is_narrow, carries=used is not None):
                    self._opener.begin(decision.road)
                elif self._tries.next is Next.PULL:
                    self._lanes.set_holding(False)
            case Step.USE:
                self._tries.on_used()
                self._lanes.set_holding(self._tries.may_hold)
                proven = self._links.take_proven()
                if proven is not None:
                    self._replace(proven, now)
            case Step.PROBE:
                for link in self._links.working:
                    link.probe(now)
                    self._sent(link, now)
            case Step.RESUME:
                self._use_lanes(False, now)
            case Step.YIELD if used is not None:
                self._yield(used, decision.reason, now)
            case Step.LEAVE:
                self._drop_all(now)
            case Step.CLOSE if used is not None:
                self._host.trouble(f"the {used.road} was lost: {decision.reason}")
                self._links.shut_used()
                self._use_lanes(True, now)

    def _yield(self, used: OpenLink, reason: str, now: int) -> None:
        """Give up the batches without a receipt: a further link carries if there is one, or else the lanes do."""
        self._lanes.path.on_link_silent()
        if used.line is None and self._links.spares:
            self.link_lost(used.link, f"{reason}: a spare link takes over")
        elif used.line is not None and self._links.stall_all(now):
            self._ladder.on_renewed(now)
        else:
            self._events += used.give_up()
            self._use_lanes(True, now)

    def _relieve(self, now: int) -> bool:
        """Let other links carry what waits on those that stall, and close those that are dead. Return whether there
        were any."""
        has_stalled, dead = self._links.stall(now), self._links.dead(now)
        if has_stalled:
            self._ladder.on_given_up(self._links.waiting_bytes)
        for link in dead:
            self.link_lost(link.link, "the relay sent no receipt for 10 s")
        return has_stalled or bool(dead)

    def _wants_spare(self) -> bool:
        """Whether a spare link is missing."""
        if self._links.in_use is None or len(self._links.spares) + 1 >= self._links_max:
            return False
        return self._attached and not self._closed

    def _has_turn(self, now: int) -> bool:
        """Whether no pull is held, so that the road that waits for that may be tried."""
        return self._tries.next is not Next.PULL or (not self._lanes.holds and self._lanes.late_us(0) > now)

    def link_opened(self, link: DialedLink, road: str, sent_us: int) -> None:
        """Offer the link, which the relay has accepted, to the ladder; or keep it as a spare."""
        self._lanes.path.on_heard(sent_us, self._host.now())
        link.owner = self
        tried = self._end_try()
        if self._closed or not self._attached or tried is Try.STALE:
            link.abort()
            if not self._closed:
                self._host.pump()  # another road may wait for the end of this try
            return
        now = self._host.now()
        self._tries.spare_times.on_opened()
        used, opened = self._links.in_use, self._links.add(link, road)
        if used is not None and used.road == road and tried is Try.SPARE and not self._ladder.is_doubted:
            self._links.spares.append(opened)
            self._lines_changed()
        elif used is not None and used.road == road:
            self._replace(opened, now)
            self._ladder.on_renewed(now)
        else:
            self._links.proven = opened
            self._ladder.on_proven(road, now)
            self._act(now)
            if self._links.take_proven() is not None:  # the ladder has no use for it any more
                self._links.shut(opened)
        self._host.pump()

    def not_opened(self, road: str, reason: str, *, is_ban: bool = False) -> None:
        """Schedule the next try, because the request failed or the relay did not accept the link."""
        tried = self._end_try()
        now = self._host.now()
        if self._links.in_use is not None and not self._ladder.is_doubted:
            self._lanes.set_pulling(False, now)
        if tried is Try.SPARE:
            self._tries.spare_times.on_failed(now)
        elif tried is not Try.STALE:
            self._ladder.on_failed(road, reason, now, is_ban=is_ban)
            self._ladder.not_renewed(now)
            self._note()
        if not self._closed:
            self._host.pump()

    def _end_try(self) -> Try:
        """Note that a try has ended. Return its state until now."""
        tried = self._tries.end()
        self._opener.end()
        self._lanes.set_holding(self._tries.may_hold)
        if not self._tried.done():
            self._tried.set_result(None)
        return tried

    def _make_way(self, now: int) -> None:
        """Give up the try if it keeps an exchange waiting: perhaps the path carries few requests at once (8.6)."""
        began_us = self._tries.began_us
        if began_us is not None and self._lanes.late_us(began_us) <= now:
            self._tries.make_way(now)
            self._opener.make_way(self._tries.road)

    # while a link is open

    def link_open(self, link: DialedLink) -> None:
        """Do nothing: `link_opened` is called instead."""

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        used = self._links.all.get(link)
        if used is None:
            return
        now = found.now
        done, size = used.take_receipts(found.receipts, now)
        self._events += done
        for batch in found.batches:
            packets, discarded = parse_packets(batch)
            self._events.append(PacketsReceived(packets, discarded))
        self._lanes.path.on_known(used.receipted_us)
        if used is self._links.in_use or (used.line is not None and used in self._links.carrying):
            self._ladder.on_heard(now)
            if found.receipts:
                waiting_bytes = used.waiting_bytes
                if used.line is not None:
                    self._links.prefer_working()
                    waiting_bytes = self._links.waiting_bytes
                self._ladder.on_receipted(size, waiting_bytes, now, took_us=now - used.receipted_us)
            if found.batches:
                self._ladder.on_received(sum(map(len, found.batches)), now)
            if self._ladder.decisions:
                self._act(now)
                self._host.pump()
                return
        self._host.deliver()

    def link_writable(self, link: DialedLink) -> None:
        self._host.pump()

    def link_lost(self, link: DialedLink, reason: str) -> None:
        used = self._links.all.get(link)
        if used is None:
            return
        now = self._host.now()
        is_replaced = used in self._links.draining
        self._links.shut(used)
        if used in self._links.spares:
            self._links.spares.remove(used)
            self._tries.spare_times.on_failed(now)
            self._lines_changed()
        elif used is self._links.in_use:
            self._links.in_use = None
            self._take_over(used.road, reason, now)
        if not is_replaced and not self._closed:
            self._host.trouble(f"the {used.road} was lost: {reason}")
            self._host.pump()

    def _take_over(self, road: str, reason: str, now: int) -> None:
        """Use a further link, or the lanes, in place of the link in use, which is lost."""
        spare = self._links.take_spare()
        if spare is None:
            self._links.shut_used()
            self._ladder.on_lost(road, reason, now)
            self._use_lanes(True, now)
            return
        self._tries.spare_times.on_failed(now)
        if spare.line is not None:
            self._links.in_use = spare
            self._lines_changed()
        else:
            self._replace(spare, now)
            self._ladder.on_renewed(now)

    def _lines_changed(self) -> None:
        """Let the ladder and the core know that another number of links shares the load."""
        if self._links.in_use is not None and self._links.in_use.line is not None:
            self._ladder.on_given_up(self._links.waiting_bytes)
            self._ladder.connections = len(self._links.carrying)
            if not self._ladder.is_doubted:
                self._events.append(LanesChanged(self._ladder.connections, 0))

    def _replace(self, opened: OpenLink, now: int) -> None:
        """Use this link from now on. Close the link before it soon."""
        self._links.replace(opened, now + max(_DRAIN_US, 4 * self.round_trip_us))
        self._use_lanes(False, now)

    def _drop_all(self, now: int) -> None:
        was_used = self._links.in_use is not None
        self._links.drop_all()
        if was_used:
            self._use_lanes(True, now)

    def _use_lanes(self, used: bool, now: int) -> None:
        """Switch to the lanes or away from them. A link needs no pulls, and keeps packets in order as one lane does;
        several links that share the load do not, like several lanes."""
        self._lanes.set_pulling(used, now)
        lines = self._ladder.connections = len(self._links.carrying)
        self._events.append(
            LanesChanged(*((self._lanes.lane_count, self._lanes.pull_interval_us) if used else (lines, 0)))
        )
