"""An endpoint at several relays: each new connection takes the first relay that answers and leads to its target.

There is one `AttachedEndpoint` for each relay, with ids and connections of its own. So no relay learns what attaches at
another one, and users of one name at two relays have nothing in common unless `same_users` says so. When a relay is
away or drains, the core moves connections to a sibling at another relay, and the transports follow.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.core import Siblings, Stay, StayCause
from tunnel.driver import Driver
from tunnel.errors import RefusedError, TunnelError, UnreachableError
from tunnel.ground.carrier_limits import pull_interval_us
from tunnel.ground.relay_urls import is_same_relay
from tunnel.ground.special_targets import target_text
from tunnel.relay_place import RelayPlace
from tunnel.secret_renewal import Renew
from tunnel.status import AttachmentStats, Listeners, MoveState, RelayState, StatisticsCollector
from tunnel.streams.listener import Handler, Server, Sink, streams_sink
from tunnel.streams.rate_limit import RateLimit
from tunnel.streams.service_at_relays import ServiceAtRelays
from tunnel.streams.streams import StreamReader, StreamWriter, open_streams
from tunnel.streams.transport import MadeTransport
from tunnel.system.tasks import KeptTasks
from tunnel.traces.record import TraceCause
from tunnel.wire import PublicPlace, RejectReason

__all__ = ["SeveralRelays"]

_NEXT_S = 1.0  # a relay that has not answered for this time does not keep the next one waiting
# They say nothing of the target, so another relay may lead to it.
_ASK_NEXT = frozenset({RejectReason.NO_EXIT, RejectReason.NO_SUCH_SERVICE, RejectReason.SHUTTING_DOWN})
_MOVES_KEPT = 20  # for status
_MOVED_SINCE = {
    TraceCause.RELAY_DRAINED: "its relay was about to stop",
    TraceCause.RELAY_SILENT: "its relay did not answer",
    TraceCause.PEER_MOVED: "the other end moved it",
}
_STAYS_SINCE = {
    StayCause.OPENS: "it has no answer yet, and only open connections move",
    StayCause.FOLLOWS: "the other end decides when it moves",
    StayCause.BOUND: "the other end names no other relay for it (an exit or a service names them with --same-users)",
    StayCause.ALONE: "no other relay is usable",
}
_ENDPOINT = "refuses this endpoint"
_log = logging.getLogger(__name__)


def _service(name: str) -> str:
    return f"does not take the service {name}"


class _Away(Exception):
    """Raised when a relay stops answering while a connection waits for it, and another relay answers."""


class SeveralRelays:
    """Does the work of an `Attachment` to several relays, which are listed by preference.

    `sits_everywhere`: attach to all of them at once, since connections come from each. Otherwise attach to the first,
    and to the next when none answers, or when one is asked for what the others do not have. `start_server` attaches to
    all. What one relay refuses ends only what is open there; while another one serves, it is asked again from time to
    time, and at once with other secrets.
    `same_users`: equal names of users stand for the same user at all relays, so that connections which are accepted
    here may move from one to another. `endpoints`: the URL of each relay, and what makes an endpoint there.

    One thing because all methods are those of an attachment, and hand on to the endpoints.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[str, Callable[[], AttachedEndpoint]]],
        *,
        sits_everywhere: bool,
        attach_timeout: float | None,
        rate_limit: RateLimit | None,
        same_users: bool = False,
    ) -> None:
        self.rate_limit = rate_limit
        self.listeners = Listeners(self._report)
        self._places = [RelayPlace(url, make) for url, make in endpoints]
        self._siblings = Siblings(is_one_domain=same_users, seek=self._on_leaving)
        self._offers: list[_Offer] = []
        self._moves: deque[MoveState] = deque(maxlen=_MOVES_KEPT)
        self._moves_count = 0
        for place in self._places:
            place.endpoint.report_to(self.listeners, partial(self._on_change, place))
        self._join()
        self._sits_everywhere = sits_everywhere
        self._attach_timeout = attach_timeout
        self._changed: asyncio.Future[None]  # set when a relay begins or stops to answer, and then replaced
        self._tasks = KeptTasks()
        self._seeking: asyncio.TimerHandle | None = None  # when the next relay's turn comes, while none answers
        self._pull_interval_s: float | None = None  # the interval that was asked for last, for relays that start later
        self._used: RelayPlace | None = None  # where new connections go first, for the log
        self._is_twin_known = False  # it was said that two of the relays are one
        self._is_leaving = False  # no relay is asked again: a new endpoint there would take connections
        self._is_closed = False
        self._is_ended = False  # nothing is open any more; until then, connections of a closed one may move

    # lifecycle

    async def start(self) -> None:
        """Attach, and return when one relay has answered. Raise the first relay's error if all of them refuse."""
        self._changed = asyncio.get_running_loop().create_future()
        limit = asyncio.timeout(self._attach_timeout)
        try:
            async with limit:
                await self._start()
        except TimeoutError:
            if not limit.expired():
                raise
            error = UnreachableError(self._unreachable())
            await self._abandon()
            raise error from None
        except BaseException:
            await self._abandon()
            raise

    async def _start(self) -> None:
        self._seek(everywhere=self._sits_everywhere)
        while not self.is_attached:
            if all(place.refusal is not None for place in self._places):
                raise self._first_refusal()
            await asyncio.wait([self._changed])

    async def _abandon(self) -> None:
        """Give up a start. A relay may have answered already, in the same round of the loop."""
        self._is_closed = True
        await self._end_all()

    async def _end(self, place: RelayPlace) -> None:
        """End the presence at one relay, with what is still open there."""
        if place.starting is None:
            return
        place.starting.cancel()  # no effect if it is done
        await asyncio.gather(place.starting, return_exceptions=True)
        if not place.starting.cancelled() and place.error is None:  # else there is nothing to close
            await place.endpoint.end()

    def interrupt(self) -> None:
        """Abort the connections, as `AttachedEndpoint.interrupt` does."""
        for place in self._started():
            place.endpoint.interrupt()

    def leave(self) -> None:
        """Stop accepting connections, and tell the relays."""
        self._stop_asking()
        for place in self._open():
            place.endpoint.leave()

    async def close(self) -> None:
        """Stop accepting connections, wait for written bytes to arrive, then end everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_asking()
        for place in self._open():
            place.endpoint.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(place.endpoint.linger for place in self._places)):
                while waits := self._busy():  # none ends before all are empty: connections may move to one that is
                    await asyncio.gather(*(place.endpoint.until_empty() for place in waits))
        await self._end_all()
        await self._tasks.stop()

    async def _end_all(self) -> None:
        self._is_ended = True
        self._stop_seeking()
        self._stop_asking()
        await asyncio.gather(*(self._end(place) for place in self._places))

    # relays

    def _started(self) -> list[RelayPlace]:
        return [place for place in self._places if place.has_begun]

    def _open(self) -> list[RelayPlace]:
        return [place for place in self._started() if place.error is None]

    def _busy(self) -> list[RelayPlace]:
        """Return those that have connections, except relays that have never answered."""
        answered = [place for place in self._open() if place.is_present or (place.starting and place.starting.done())]
        return [place for place in answered if place.endpoint.has_connections]

    def _seek(self, *, everywhere: bool = False) -> None:
        """Begin to attach at the next relay, and at one more each second until one answers."""
        self._stop_seeking()
        if self._is_ended:
            return
        self._start_next(everywhere=everywhere)
        if any(place.starting is None for place in self._places):
            self._seeking = asyncio.get_running_loop().call_later(_NEXT_S, self._go_on_seeking)

    def _go_on_seeking(self) -> None:
        self._seeking = None
        self._seek_if_needed()

    def _on_leaving(self, number: int) -> None:
        """Attach to another relay, because connections are to leave one, unless there is another one already."""
        asyncio.get_running_loop().call_soon(self._seek_if_needed, self._places[number])

    def _seek_if_needed(self, left: RelayPlace | None = None) -> None:
        """Attach to the next relay if none serves, except perhaps one that connections are to leave."""
        others = [place for place in self._places if place is not left]
        serves = any(place.is_present and not place.endpoint.is_draining for place in others)
        if self._seeking is None and not serves:
            self._seek()

    def _stop_asking(self) -> None:
        self._is_leaving = True
        for place in self._places:
            place.stop_asking()

    def _stop_seeking(self) -> None:
        if self._seeking is not None:
            self._seeking.cancel()
            self._seeking = None

    def _start_next(self, *, everywhere: bool = False) -> None:
        """Begin to attach at the next relay, or at all others."""
        for place in self._places:
            if place.starting is None:
                self._begin(place)
                if not everywhere:
                    return

    def _begin(self, place: RelayPlace) -> None:
        place.starting = asyncio.get_running_loop().create_task(self._attach(place))
        self._tasks.keep(place.starting)

    async def _attach(self, place: RelayPlace) -> None:
        endpoint, place.has_begun = place.endpoint, True
        try:
            await endpoint.start()
        except TunnelError as error:
            if place.endpoint is endpoint:  # the relay was not asked again meanwhile
                place.error = error
                self._on_refused(place, error)
                self._seek()
                self._change()
            return
        if self._pull_interval_s is not None and place.endpoint is endpoint:
            place.endpoint.ask_for_pull_interval(self._pull_interval_s)

    def _on_change(self, place: RelayPlace, reason: str) -> None:
        """Note that a relay answers, or, with a reason, that it does not answer or has ended the attachment."""
        if place.refusal is not None:
            self._on_refused(place, place.refusal)
        elif place.is_present:
            place.on_accepted(_ENDPOINT)
        self._look_for_twin(place)
        if self.is_attached:
            self.listeners.present()
            for other in self._places:  # all had refused, and none was asked again, until new secrets ended this
                if other.refusal is not None and other.asking is None:
                    self._ask_later(other, other.refusal, _ENDPOINT)
        else:
            self.listeners.absent(reason)
            self._seek()
        self._change()

    def _look_for_twin(self, place: RelayPlace) -> None:
        """Say, once, if two of the relays are one under two names: each life of a relay has its own epoch."""
        epoch = place.endpoint.epoch
        twin = next((one for one in self._places if one is not place and one.endpoint.epoch == epoch), None)
        if twin is not None and not self._is_twin_known:
            self._is_twin_known = True
            _log.warning("%s and %s are one relay under two names: name it once", twin.url, place.url)

    def _change(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)
        used = self._usable()
        accepts_only = self._sits_everywhere or self._offers
        if used is not None and self._used is not None and used is not self._used and not accepts_only:
            _log.warning("new connections use the relay %s now, and no longer %s", used.url, self._used.url)
        self._used = used or self._used

    def _usable(self, without: Collection[RelayPlace] = ()) -> RelayPlace | None:
        """Return the relay for a new connection: the first that answers, one that drains last."""
        present = [place for place in self._places if place.is_present and place not in without]
        return min(present, key=lambda place: place.endpoint.is_draining, default=None)

    # secrets

    def renew_at(self, relay: str) -> Renew | None:
        """Return what passes new secrets to the carrier of this relay, by default the first, and asks the relay again
        if it has refused the previous ones. Raise ValueError if it is none of the relays."""
        alike = [place for place in self._places if not relay or is_same_relay(place.url, relay)]
        if not alike:
            raise ValueError(f"{relay} is none of the relays of this attachment: its secrets go to none of them")
        place = alike[0]
        renew = place.endpoint.renew_at("")
        if renew is None:
            return None

        def renew_and_ask(
            token: str | None, headers: Mapping[str, str], proxy: str | None, refused: Callable[[int], None]
        ) -> None:
            renew(token, headers, proxy, refused)
            if place.refusal is not None and not self._is_leaving:
                self._ask_again(place)

        return renew_and_ask

    def _on_refused(self, place: RelayPlace, error: TunnelError) -> None:
        """Ask a relay later that has refused this endpoint, and not yet for a service that it had refused before: a
        wrong password must not be sent again, and a wrong token not so soon."""
        place.stop_asking()
        self._ask_later(place, error, _ENDPOINT)

    def _ask_later(self, place: RelayPlace, error: Exception, what: str) -> None:
        if self._is_leaving:
            place.say(what, error, "not asked again, because this endpoint is about to end")
        else:
            place.ask_later(error, self._ask_if_served, what)

    def _ask_if_served(self, place: RelayPlace) -> None:
        """Ask a relay again for what it has refused, unless all relays have refused this endpoint."""
        place.asking = None
        if self.refusal is not None:
            return
        if place.refusal is not None:
            self._ask_again(place)
        else:
            refused = [offer for offer in self._offers if offer.service.why_not_at(place.url)]
            self._tasks.keep(asyncio.get_running_loop().create_task(self._offer_again(place, refused)))

    def _ask_again(self, place: RelayPlace) -> None:
        """Attach with a new endpoint at a relay that has refused the present one for good."""
        loop, old = asyncio.get_running_loop(), place.endpoint
        cores = [driver.endpoint for driver in old.drivers]
        self._siblings.members = [one for one in self._siblings.members if one.owner not in cores]
        if place.error is None:
            self._tasks.keep(loop.create_task(old.end()))
        place.error, place.has_begun, place.endpoint = None, False, place.make()
        place.endpoint.report_to(self.listeners, partial(self._on_change, place))
        place.endpoint.count_bytes(old.listeners.statistics)
        self._join()
        place.stop_asking()
        self._begin(place)
        self._tasks.keep(loop.create_task(self._offer_again(place, self._offers)))

    def _join(self) -> None:
        """Let connections move between the endpoints."""
        for number, place in enumerate(self._places):
            others = [other.endpoint for other in self._places if other is not place]
            place.endpoint.join(self._siblings, others, number, self._on_move)

    def _on_move(
        self, before: AttachedEndpoint, now: AttachedEndpoint, connection_id: int, target: str, cause: TraceCause
    ) -> None:
        urls = {place.endpoint: place.url for place in self._places}
        move = MoveState(
            time.time(), connection_id, target, urls.get(before, before.relay), urls[now], _MOVED_SINCE[cause]
        )
        self._moves.append(move)
        self._moves_count += 1
        _log.info("%s moves from %s to %s: %s", target, move.before, move.now, move.why)

    async def _offer_again(self, place: RelayPlace, offers: Sequence[_Offer]) -> None:
        """Offer these services of the attachment at a relay that is asked again."""
        endpoint = place.endpoint
        await asyncio.sleep(0)  # it begins to start
        for offer in offers:
            if place.endpoint is not endpoint:  # it was asked once more, for all services
                return
            if not offer.service.is_serving:  # perhaps its name is that of another one now
                continue
            try:
                server = await endpoint.serve(offer.take, offer.name, offer.backlog, offer.public)
            except TunnelError as error:
                if place.endpoint is endpoint:
                    self._on_service_refused(offer.service, place, error)
            else:
                place.on_accepted(_service(offer.name))
                offer.service.add(place.url, server)

    def _on_service_refused(self, service: ServiceAtRelays, place: RelayPlace, error: Exception) -> None:
        service.refuse(place.url, error)
        if place.refusal is None:
            self._ask_later(place, error, _service(service.name))

    def _first_refusal(self) -> TunnelError:
        found = [place.refusal for place in self._places if place.refusal is not None]
        return found[0].with_traceback(None)

    def _unreachable(self) -> str:
        said = "; ".join(f"{place.url}: {place.trouble or 'no answer'}" for place in self._started())
        return f"no relay answers within {self._attach_timeout:g} s ({said}): `tunnel doctor` finds out why"

    # connections

    async def connect_streams(
        self, host: str, port: int | None, seconds: float | None, limit: int
    ) -> tuple[StreamReader, StreamWriter]:
        """Connect, and return streams."""
        return open_streams(await self.connect(host, port, seconds), limit=limit)

    async def connect(self, host: str, port: int | None, seconds: float | None) -> MadeTransport:
        """Connect by the first relay that answers and leads to the target. Raise the first relay's error if none does.

        A relay that stops answering before it has opened the connection is left for another one.
        """
        loop = asyncio.get_running_loop()
        ends_s = None if seconds is None else loop.time() + seconds
        errors: dict[RelayPlace, TunnelError] = {}
        while True:
            place = await self._choose(errors)
            left_s = None if ends_s is None else max(0.0, ends_s - loop.time())
            try:
                return await self._connect(place, host, port, left_s, errors)
            except _Away:
                continue
            except TimeoutError as error:
                if left_s == seconds:
                    raise
                raise TimeoutError(f"{target_text(host, port)}: no answer within {seconds:g} s") from error
            except TunnelError as error:
                asks_next = isinstance(error, RefusedError) and error.reason in _ASK_NEXT
                if self._is_closed or (not asks_next and place.refusal is None):
                    raise
                errors[place] = error

    async def _choose(self, errors: dict[RelayPlace, TunnelError]) -> RelayPlace:
        """Return the relay to ask next: one that answers, else the first that may answer again. When a relay has said
        no already, another one must answer, each within a second. Raise the first error if there is none."""
        self._require_open()
        found, is_last = self._usable(errors), False
        while found is None and not is_last:
            is_last = not errors or all(place.starting is not None for place in self._places)
            self._seek()
            await asyncio.sleep(0)  # the relay whose turn has come begins to start
            if errors:
                await self._until(lambda: self._usable(errors) is not None, _NEXT_S)
            self._require_open()
            found = self._usable(errors)
        if found is None and not errors:
            found = next((place for place in self._started() if place.refusal is None), None)
        if found is None:
            raise next(iter(errors.values())).with_traceback(None) if errors else self._first_refusal()
        return found

    async def _until(self, reached: Callable[[], bool], seconds: float) -> None:
        """Return when `reached()` is true, or after this time, or when no relay is left that may change it."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + seconds
        while not reached() and (left_s := ends_s - loop.time()) > 0:
            if all(place.is_present or place.refusal is not None for place in self._places):
                return
            await asyncio.wait([self._changed], timeout=left_s)

    async def _connect(
        self, place: RelayPlace, host: str, port: int | None, seconds: float | None, errors: Collection[RelayPlace]
    ) -> MadeTransport:
        """Connect by this relay. Raise _Away if it stops answering, and another one that was not asked answers, or one
        has said no: then each relay has a second to answer, as in `_choose`."""
        opening = asyncio.ensure_future(place.endpoint.connect(host, port, seconds))
        try:
            while not opening.done():
                ends: list[asyncio.Future[Any]] = [opening, self._changed]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                is_away = not opening.done() and not place.is_present
                if is_away and (errors or self._usable() is not None):
                    raise _Away
            return opening.result()
        except BaseException:
            opening.cancel()
            (outcome,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(outcome, MadeTransport):  # it opened in the same round of the loop: nobody else owns it
                outcome.transport.abort()
            raise

    async def check(self, host: str, port: int | None, seconds: float) -> str:
        """Ask the relay that a new connection would use, as `AttachedEndpoint.check` does."""
        return await (await self._choose({})).endpoint.check(host, port, seconds)

    # services

    async def serve_streams(
        self, handler: Handler, limit: int, name: str, backlog: int, public: PublicPlace | None
    ) -> Server:
        """Offer a service: call `handler` with the streams of each connection."""
        return await self.serve(streams_sink(handler, limit, self._tasks.keep), name, backlog, public)

    async def serve(self, take: Sink, name: str, backlog: int, public: PublicPlace | None) -> Server:
        """Offer a service at every relay. Raise the first relay's error if none of them takes the name."""
        self._require_open()
        self._start_next(everywhere=True)
        await asyncio.sleep(0)  # the relays whose turn has only come begin to start
        places = [place for place in self._started() if place.refusal is None]
        if not places:
            raise self._first_refusal()
        offered = [asyncio.ensure_future(place.endpoint.serve(take, name, backlog, public)) for place in places]
        try:
            found = await asyncio.gather(*offered, return_exceptions=True)
        except BaseException:
            for one in await asyncio.gather(*offered, return_exceptions=True):
                if isinstance(one, Server):
                    one.close()
            raise
        outcomes = list(zip(places, found, strict=True))
        servers = {place.url: one for place, one in outcomes if isinstance(one, Server)}
        if not servers:
            raise next(one for one in found if isinstance(one, BaseException))
        by_url = {place.url: place for place in self._places}
        service = ServiceAtRelays(
            name, servers, lambda url, error: self._on_service_refused(service, by_url[url], error)
        )
        for place, outcome in outcomes:
            if isinstance(outcome, Exception):
                self._on_service_refused(service, place, outcome)
        self._offers = [offer for offer in self._offers if offer.service.is_serving]
        offer = _Offer(take, name, backlog, public, service)
        self._offers.append(offer)
        for place in self._places:
            if place not in places and place.starting is not None and place.refusal is None:  # asked again meanwhile
                self._tasks.keep(asyncio.get_running_loop().create_task(self._offer_again(place, [offer])))
        return Server(service)

    # status

    @property
    def is_attached(self) -> bool:
        """Whether, by our latest information, any relay knows this endpoint and answers."""
        return any(place.is_present for place in self._places)

    @property
    def refusal(self) -> TunnelError | None:
        """The first relay's error if all relays have refused this endpoint for good, else None."""
        return self._first_refusal() if all(place.refusal is not None for place in self._places) else None

    @property
    def refusals(self) -> dict[str, TunnelError]:
        """The error of each relay that has refused this endpoint for good, by its URL."""
        return {place.url: place.refusal for place in self._places if place.refusal is not None}

    def stats(self) -> AttachmentStats:
        """Return a snapshot of the endpoint at the relay that new connections use, with all connections.

        While no relay answers, it is that of the first one.
        """
        self._require_open()
        used = self._usable()
        shown = used or next(iter(self._started()), None)
        if shown is None:
            raise RuntimeError("the attachment is not open: use it within `async with tunnel.attach(...) as t`")
        found = shown.endpoint.stats()
        found.attached = self.is_attached
        found.moves, found.moves_count = list(self._moves), self._moves_count
        for place in self._started():
            one = place.endpoint.stats()
            state = RelayState(
                place.url, place.is_present, place is used, one.carrier, place.trouble, len(one.connections)
            )
            state.is_refused = place.refusal is not None
            state.services_refused = self._services_refused(place.url)
            found.relays.append(state)
            found.relay_of |= dict.fromkeys(one.connections, place.url)
            found.stays |= self._stays(place)
            if place is not shown:
                found.batches_unreceipted += one.batches_unreceipted
                found.packets_discarded += one.packets_discarded
                found.connections |= one.connections
                found.targets |= one.targets
                found.encryption |= one.encryption
        return found

    def _stays(self, place: RelayPlace) -> dict[int, str]:
        """Return why connections stay at this relay, although it does not serve them, by their ids."""
        found = (driver.endpoint.stays() for driver in place.endpoint.drivers)
        return {number: self._why(stay) for stays in found for number, stay in stays.items()}

    def _why(self, stay: Stay) -> str:
        if stay.asked is None:
            return _STAYS_SINCE[stay.cause]
        owner = stay.asked.owner
        urls = (one.url for one in self._places for driver in one.endpoint.drivers if driver.endpoint is owner)
        url = next(urls, "another relay")
        return f"through {url}, the other end did not take it: {stay.answer or 'no answer'}"

    def _services_refused(self, url: str) -> dict[str, str]:
        """Return why this relay does not take services, by their names."""
        found = {offer.name: offer.service.why_not_at(url) for offer in self._offers if offer.service.is_serving}
        return {name: why for name, why in found.items() if why}

    @property
    def drivers(self) -> list[Driver]:
        """The drivers, for metrics: the first is that of the relay that new connections use."""
        used = self._usable()
        return [
            driver
            for place in sorted(self._open(), key=lambda one: one is not used)
            for driver in place.endpoint.drivers
        ]

    def count_bytes(self, collector: StatisticsCollector | None) -> None:
        """Report the bytes to and from all relays to this object."""
        for place in self._places:
            place.endpoint.count_bytes(collector)

    async def set_pull_interval(self, seconds: float) -> float:
        """Ask each relay for another interval between pulls, and return the longest on which those that answer settle.

        One that is away now, or whose turn comes later, is told of it then. While none answers, wait for the first.
        """
        pull_interval_us(seconds)  # raises ValueError
        self._pull_interval_s = seconds
        asked: dict[RelayPlace, asyncio.Future[float]] = {}
        try:
            while True:
                self._require_open()
                for place in self._started():
                    if place not in asked and place.refusal is None:
                        asked[place] = asyncio.ensure_future(place.endpoint.set_pull_interval(seconds))
                pending = {place: one for place, one in asked.items() if not one.done()}
                settled = [one.result() for one in asked.values() if one.done() and one.exception() is None]
                if settled and not any(place.is_present for place in pending):
                    return max(settled)
                if all(place.refusal is not None for place in self._places):
                    raise self._first_refusal()
                ends: list[asyncio.Future[Any]] = [self._changed, *pending.values()]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in asked.values():
                one.cancel()
            await asyncio.gather(*asked.values(), return_exceptions=True)

    # internals

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the attachment is not open: use it within `async with tunnel.attach(...) as t`")

    def _report(self, message: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


@dataclass(frozen=True, slots=True)
class _Offer:
    """A service that is offered at each relay, and how."""

    take: Sink
    name: str
    backlog: int
    public: PublicPlace | None
    service: ServiceAtRelays
