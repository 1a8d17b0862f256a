"""The live page's stream of server-sent events: every two seconds the newest points, one table and one connection."""

import asyncio
import time
from typing import Any

import msgspec
from aiohttp import web

from tunnel.system.clock import now_us
from tunnel_servlet.switch.operating.rows import (
    AttachmentRow,
    ConnectionRow,
    attachment_row,
    connection_row,
    number_in,
)
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.live.tables import Page, Table, Wanted
from tunnel_servlet.web.live.watch import EVERY_S, Point, Watch
from tunnel_servlet.web.operator_access import NO_STORE, is_of_operator
from tunnel_servlet.web.relay import Relay

__all__ = ["LOOKERS_MAX", "Events"]

LOOKERS_MAX = 8
_ROWS_MAX = 200  # of the table, in each event
_PAYER = "relay:operator"  # the connections of an operator who has shown the secret make no room for strangers
_WRITE_S = 20.0  # time for a browser to take an event


class Detail(msgspec.Struct, frozen=True):
    """One connection and the endpoints at its ends."""

    row: ConnectionRow
    rate: tuple[float, float]
    opener: AttachmentRow
    acceptor: AttachmentRow | None


class Summary(msgspec.Struct, frozen=True):
    """The relay as a whole, at present."""

    ready: bool
    draining: bool
    uptime_s: int
    users: int
    attachments: int
    exits: int
    services: int
    open: int
    opening: int
    held_bytes: int
    held_bytes_max: int


class Event(msgspec.Struct, frozen=True):
    """One event. `rates` holds the bytes by second, up and down, of the connections in `table`."""

    points: list[Point]
    summary: Summary
    table: Page[Any]
    rates: list[tuple[float, float]]
    detail: Detail | None


class Events:
    """Serves the stream to those who look at the page."""

    def __init__(self, relay: Relay, tables: dict[str, Table[Any, Any]], watch: Watch, began_s: float) -> None:
        self._relay = relay
        self._tables = tables
        self._watch = watch
        self._began_s = began_s
        self._closing = asyncio.Event()

    async def close(self, _: web.Application) -> None:
        """End all streams."""
        self._closing.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send events until the page goes, the relay stops, or the secret is replaced.

        Raise ValueError for a query that is not understood.
        """
        query = dict(request.query)
        name, detail = query.pop("table", "connections"), query.pop("detail", "")
        if name not in self._tables:
            raise ValueError(f"there is no table {name!r}: table is one of {', '.join(self._tables)}")
        wanted = Wanted.read(query)
        if wanted.limit > _ROWS_MAX:
            raise ValueError(f"an event holds at most {_ROWS_MAX} rows")
        number = number_in(detail, "c", self._relay.host.switch.epoch) if detail else 0
        handler = request.protocol
        if self._watch.lookers >= LOOKERS_MAX or (
            isinstance(handler, RelayHandler) and not handler.turns.charge_to(_PAYER)
        ):
            text = f"{self._watch.lookers} pages look at this relay already: close one\n"
            return web.Response(status=429, text=text, headers=NO_STORE)
        self._watch.join()
        try:
            first = await self._event(name, wanted, number, list(self._watch.points))
            return await self._send(request, name, wanted, number, first)
        finally:
            self._watch.leave()

    async def _send(
        self, request: web.Request, name: str, wanted: Wanted, number: int, first: bytes
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**NO_STORE, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        event, at_s = first, self._newest_s()
        while True:
            async with asyncio.timeout(_WRITE_S):
                await response.write(event)
            if await self._is_over(request):
                return response
            await self._watch.look()
            points = [point for point in self._watch.points if point.at_s > at_s]
            event, at_s = await self._event(name, wanted, number, points), self._newest_s()

    async def _is_over(self, request: web.Request) -> bool:
        """Wait until the next event is due. Return whether none may be sent any more."""
        try:
            async with asyncio.timeout(EVERY_S):
                await self._closing.wait()
        except TimeoutError:
            return not is_of_operator(self._relay, request)
        return True

    def _newest_s(self) -> float:
        return self._watch.points[-1].at_s if self._watch.points else 0.0

    async def _event(self, name: str, wanted: Wanted, number: int, points: list[Point]) -> bytes:
        operator = self._relay.host.switch.operator
        await self._watch.look()
        page = await self._tables[name].page(wanted)
        rates = []
        if name == "connections":
            found = (number_in(row.id, "c", operator.epoch) for row in page.rows)
            rates = [self._watch.rates.get(one, (0.0, 0.0)) for one in found]
        event = Event(points, self._summary(), page, rates, self._detail(number) if number else None)
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _summary(self) -> Summary:
        relay = self._relay
        stats = relay.host.switch.stats()
        return Summary(
            ready=relay.is_ready and not relay.is_draining,
            draining=relay.is_draining,
            uptime_s=int(time.monotonic() - self._began_s),
            users=len(relay.host.switch.operator.users()),
            attachments=stats.attachments,
            exits=stats.exits,
            services=stats.listeners,
            open=stats.routes_bound,
            opening=stats.routes_open - stats.routes_bound,
            held_bytes=stats.bytes_held,
            held_bytes_max=relay.config.switch.process_bytes_max,
        )

    def _detail(self, number: int) -> Detail | None:
        operator, now = self._relay.host.switch.operator, now_us()
        route = operator.find(number)
        if route is None:
            return None
        opener, acceptor = route.initiator.attachment, route.acceptor.attachment
        has_acceptor = route.acceptor is not route.initiator
        return Detail(
            connection_row(route, operator.epoch, now),
            self._watch.rates.get(number, (0.0, 0.0)),
            attachment_row(opener, operator.epoch, now),
            attachment_row(acceptor, operator.epoch, now) if has_acceptor else None,
        )
