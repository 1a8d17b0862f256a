"""The tables of the admin listener: what is connected, and how the operator ends it.

GET answers with a page of a table (`tables.Wanted` says what the query may hold), DELETE ends what the query names.
A web page elsewhere can send neither: the header with the secret, and DELETE, need a leave that it does not get.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import structlog
from aiohttp import web

from tunnel.system.clock import now_us
from tunnel_servlet.switch.model import Listener, Route, RouteState, ServedAttachment
from tunnel_servlet.switch.operating.operator import Operator
from tunnel_servlet.switch.operating.rows import (
    AttachmentRow,
    ConnectionRow,
    ServiceRow,
    UserRow,
    attachment_row,
    bytes_passed,
    connection_row,
    service_row,
    shown_target,
)
from tunnel_servlet.switch.review import Ended
from tunnel_servlet.web.host import SwitchHost
from tunnel_servlet.web.live.denials import Denial, Denials
from tunnel_servlet.web.live.events import Events
from tunnel_servlet.web.live.tables import Table, Wanted
from tunnel_servlet.web.live.watch import Watch
from tunnel_servlet.web.operator_access import NO_STORE, order_of_operator, require_operator, source_of
from tunnel_servlet.web.relay import Relay

__all__ = ["Kicked", "add_tables"]

_log = structlog.get_logger("relay")
_OWN = "it is a part of the relay: end its connections instead, or drain the relay"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Kicked(msgspec.Struct):
    """What the operator has ended."""

    connections: int = 0
    attachments: int = 0
    user: str = ""
    name: str = ""  # of the target or the endpoint


def _tables(relay: Relay, watch: Watch) -> dict[str, Table[Any, Any]]:
    """Return the tables of one relay, by their names in URLs."""
    operator = relay.host.switch.operator
    return {
        "connections": _connections(operator, watch),
        "attachments": _attachments(operator),
        "users": _users(operator),
        "services": _services(operator),
        "denials": _denials(relay.denials),
    }


def add_tables(app: web.Application, relay: Relay) -> None:
    """Add the tables, and the ways to end what they show, to the application of the admin listener."""
    operator = relay.host.switch.operator
    watch = Watch(relay.host.switch)
    tables = _tables(relay, watch)
    events = Events(relay, tables, watch, time.monotonic())
    kicks = _Kicks(relay.host)

    def of_operator(handler: _Handler, act: str = "") -> _Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if act:
                order_of_operator(relay, request, act)
            else:
                require_operator(relay, request)
            try:
                return await handler(request)
            except ValueError as error:
                return web.Response(status=400, text=f"{error}\n", headers=NO_STORE)

        return guarded

    def shown(name: str) -> _Handler:
        async def show(request: web.Request) -> web.Response:
            return _json(await tables[name].page(Wanted.read(request.query)))

        return of_operator(show)

    def note(request: web.Request, act: str, **more: str) -> None:
        relay.audit.note_act(act, source_of(request), **more)

    async def end_connection(request: web.Request) -> web.Response:
        text = _named(request, "id")
        route = operator.connection(text)
        if route is None:
            return _missing(f"there is no connection {text}: it has ended")
        name = shown_target(route.target)
        note(request, "kick_connection", user=route.user, connection=f"{route.initiator.own_id:08x}")
        steps = iter([[operator.kick_connection(route, now_us())]])
        return _json(await kicks.run(steps, Kicked(user=route.user, name=name)))

    async def end_attachment(request: web.Request) -> web.Response:
        text = _named(request, "id")
        attachment = operator.attachment(text)
        if attachment is None:
            return _missing(f"there is no attachment {text}: it has ended")
        user = attachment.account.user
        if attachment not in operator.attachments_of(user):
            return web.Response(status=409, text=f"{text} cannot be ended: {_OWN}\n", headers=NO_STORE)
        note(request, "kick_attachment", user=user, endpoint=attachment.name)
        steps = operator.kick_attachments([attachment], now_us)
        return _json(await kicks.run(steps, Kicked(user=user, name=attachment.name)))

    async def end_user(request: web.Request) -> web.Response:
        user = _named(request, "name")
        attachments = operator.attachments_of(user)
        if not attachments:
            return _missing(f"no endpoint of {user} is attached")
        note(request, "kick_user", user=user)
        return _json(await kicks.run(operator.kick_attachments(attachments, now_us), Kicked(user=user)))

    for name in tables:
        app.router.add_get(f"/{name}", shown(name))
    app.router.add_get("/events", of_operator(events.serve))
    app.on_shutdown.append(events.close)
    app.router.add_delete("/connections", of_operator(end_connection, "kick_connection"))
    app.router.add_delete("/attachments", of_operator(end_attachment, "kick_attachment"))
    app.router.add_delete("/users", of_operator(end_user, "kick_user"))


class _Kicks:
    """Ends things step by step, to the end, even if the client that asked for it goes away."""

    def __init__(self, host: SwitchHost) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, steps: Iterator[list[Ended]], kicked: Kicked) -> Kicked:
        """Run the steps, and count in `kicked` what they end."""
        task = asyncio.get_running_loop().create_task(self._run(steps, kicked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)
        return kicked

    async def _run(self, steps: Iterator[list[Ended]], kicked: Kicked) -> None:
        for some in steps:
            self._host.let_serve()
            for ended in some:
                kicked.connections += ended.kind == "connection"
                kicked.attachments += ended.kind == "endpoint"
                _log.info("ended", user=ended.user, kind=ended.kind, target=ended.name, text=ended.text)
            await asyncio.sleep(0)


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=NO_STORE)


def _missing(why: str) -> web.Response:
    return web.Response(status=404, text=f"{why}\n", headers=NO_STORE)


def _named(request: web.Request, name: str) -> str:
    """Return the only value of the query. Raise ValueError if it is not there, or if there is another one."""
    if len(request.query) != 1 or not request.query.get(name):
        raise ValueError(f"the query must hold {name}=..., once, and nothing else")
    return request.query[name]


# --- the tables


def _connections(operator: Operator, watch: Watch) -> Table[Route, ConnectionRow]:
    def acceptor(route: Route) -> ServedAttachment | None:
        return None if route.acceptor is route.initiator else route.acceptor.attachment

    def users(route: Route) -> tuple[str, ...]:
        other = acceptor(route)
        return (route.user, "" if other is None else other.account.user)

    def words(route: Route) -> str:
        other, opener = acceptor(route), route.initiator.attachment
        names = (route.user, route.owner, opener.name, shown_target(route.target), route.state.value)
        return "\n".join(names if other is None else (*names, other.account.user, other.name))

    return Table(
        lambda: [route for route in operator.connections() if route.state is not RouteState.RELEASED],
        lambda route: connection_row(route, operator.epoch, now_us()),
        users=users,
        words=words,
        orders={
            "user": lambda route: route.user,
            "target": lambda route: shown_target(route.target),
            "state": lambda route: route.state.value,
            "age": lambda route: -route.opened_us,
            "bytes": lambda route: sum(bytes_passed(route)),
            "up": lambda route: bytes_passed(route)[0],
            "down": lambda route: bytes_passed(route)[1],
            "rate": lambda route: round(sum(watch.rates.get(route.number, (0, 0)))),
            "waiting": lambda route: sum(leg.queue.data_bytes for leg in {route.initiator, route.acceptor}),
        },
    )


def _attachments(operator: Operator) -> Table[ServedAttachment, AttachmentRow]:
    return Table(
        operator.attachments,
        lambda one: attachment_row(one, operator.epoch, now_us()),
        users=lambda one: (one.account.user,),
        words=lambda one: f"{one.account.user}\n{one.name}",
        orders={
            "user": lambda one: one.account.user,
            "name": lambda one: one.name,
            "age": lambda one: -one.attached_us,
            "silent": lambda one: -one.last_seen_us,
            "connections": lambda one: len(one.legs),
            "waiting": lambda one: one.mailbox.budget.held,
        },
    )


def _users(operator: Operator) -> Table[UserRow, UserRow]:
    return Table(
        operator.users,
        lambda row: row,
        users=lambda row: (row.user,),
        words=lambda row: row.user,
        orders={
            "user": lambda row: row.user,
            "attachments": lambda row: row.attachments,
            "connections": lambda row: row.connections,
            "held": lambda row: row.held_bytes,
            "bytes": lambda row: row.traffic.bytes_received + row.traffic.bytes_sent,
        },
    )


def _services(operator: Operator) -> Table[Listener, ServiceRow]:
    return Table(
        operator.services,
        lambda one: service_row(one, operator.epoch),
        users=lambda one: (one.attachment.account.user,),
        words=lambda one: f"{one.name}\n{one.attachment.account.user}\n{one.attachment.name}",
        orders={
            "name": lambda one: one.name,
            "user": lambda one: one.attachment.account.user,
            "pending": lambda one: one.pending,
        },
    )


def _denials(denials: Denials) -> Table[Denial, Denial]:
    return Table(
        denials.rows,
        lambda row: row,
        users=lambda row: (row.user,),
        words=lambda row: f"{row.user}\n{row.what}\n{row.text}",
        orders={
            "user": lambda row: row.user,
            "what": lambda row: row.what,
            "count": lambda row: row.count,
        },
    )
