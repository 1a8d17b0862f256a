"""Connections, attachments, users and services as the operator sees them: rows of tables, made when they are asked for.

An id such as c17-9f3a names a connection, a7-9f3a an attachment. Its last part is that of the relay's epoch, so that an
id that was read before a restart does not name something else afterwards.
"""

import re

import msgspec

from tunnel.ground.special_targets import target_text
from tunnel.wire import Target, TargetKind
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.inline_id import is_own_name
from tunnel_servlet.switch.model import Account, Listener, Route, ServedAttachment
from tunnel_servlet.switch.stats import Traffic

__all__ = [
    "AttachmentRow",
    "ConnectionRow",
    "ServiceRow",
    "UserRow",
    "attachment_id_text",
    "attachment_row",
    "bytes_passed",
    "connection_id_text",
    "connection_row",
    "number_in",
    "service_row",
    "shown_target",
    "user_row",
]

_ID = re.compile(r"([ac])([1-9][0-9]{0,17})-([0-9a-f]{4})")
_EPOCH_MASK = 0xFFFF
_SECOND = 1_000_000


class ConnectionRow(msgspec.Struct):
    """A connection. *Up* is from the endpoint that opened it, *down* is to it."""

    id: str
    user: str  # who opened it
    owner: str  # if a stranger opened it: the user whose service is public
    endpoint: str  # the name of the endpoint that opened it
    attachment: str
    target: str
    state: str  # a value of RouteState
    acceptor_user: str  # of the exit or service; empty until there is one
    acceptor_endpoint: str
    acceptor_attachment: str
    age_s: int  # since this relay's process knows of it
    bytes_up: int  # payload that has left the relay, without repeats; a stream that was resumed begins at 0 again
    bytes_down: int
    waiting_up: int  # payload that waits in the relay
    waiting_down: int


class AttachmentRow(msgspec.Struct):
    """An endpoint that is attached."""

    id: str
    user: str
    name: str
    role: str  # "exit", "service", "client" or, for those in the relay's own process, "relay"
    source: str  # the address from which it attached, as the relay or a trusted proxy in front of it sees it
    carrier: str  # "link", "exchange" or "memory"
    links: int
    age_s: int
    silent_s: int  # since something came from it
    connections: int  # it opened or accepted them
    services: int
    waiting_bytes: int  # of packets, with their overhead; those without a receipt count, too
    waiting_bytes_max: int


class UserRow(msgspec.Struct):
    """A user with an endpoint that is attached, and what the user occupies of each budget."""

    user: str
    attachments: int
    attachments_max: int
    connections: int  # the user opened them
    connections_max: int
    held_bytes: int
    held_bytes_max: int
    traffic: Traffic


class ServiceRow(msgspec.Struct):
    """A service that an endpoint offers."""

    name: str
    user: str
    endpoint: str
    attachment: str
    backlog: int
    pending: int  # connections that it has not answered yet
    public: str  # where people without the tunnel reach it; empty: nowhere


def connection_id_text(route: Route, epoch: int) -> str:
    """Return the id of a connection."""
    return f"c{route.number}-{epoch & _EPOCH_MASK:04x}"


def attachment_id_text(attachment: ServedAttachment, epoch: int) -> str:
    """Return the id of an attachment, for people."""
    return f"a{attachment.number}-{epoch & _EPOCH_MASK:04x}"


def number_in(text: str, kind: str, epoch: int) -> int:
    """Return the number in an id of this kind, "c" or "a"; 0 if the id is from before a restart.

    Raise ValueError if it is no such id.
    """
    found = _ID.fullmatch(text)
    if found is None or found[1] != kind:
        what, example = ("a connection", "c17-9f3a") if kind == "c" else ("an attachment", "a7-9f3a")
        raise ValueError(f"{text!r} is not the id of {what}: one looks like {example}, and `tunnel-relay ps` shows it")
    return int(found[2]) if int(found[3], 16) == epoch & _EPOCH_MASK else 0


def shown_target(target: Target) -> str:
    """Return a target as people write it."""
    return target_text(target.host, target.port if target.kind == TargetKind.TCP else None)


def bytes_passed(route: Route) -> tuple[int, int]:
    """Return the payload that has left the relay, up and down. While the route has no acceptor, none has."""
    initiator, acceptor = route.initiator, route.acceptor
    down = initiator.queue.ledger.passed_bytes
    return (0, down) if acceptor is initiator else (acceptor.queue.ledger.passed_bytes, down)


def connection_row(route: Route, epoch: int, now: int) -> ConnectionRow:
    """Return the row of a connection."""
    initiator = route.initiator
    acceptor = None if route.acceptor is initiator else route.acceptor
    other = None if acceptor is None else acceptor.attachment
    up, down = bytes_passed(route)
    return ConnectionRow(
        id=connection_id_text(route, epoch),
        user=route.user,
        owner=route.owner,
        endpoint=initiator.attachment.name,
        attachment=attachment_id_text(initiator.attachment, epoch),
        target=shown_target(route.target),
        state=route.state.value,
        acceptor_user="" if other is None else other.account.user,
        acceptor_endpoint="" if other is None else other.name,
        acceptor_attachment="" if other is None else attachment_id_text(other, epoch),
        age_s=(now - route.opened_us) // _SECOND,
        bytes_up=up,
        bytes_down=down,
        waiting_up=0 if acceptor is None else acceptor.queue.data_bytes,
        waiting_down=initiator.queue.data_bytes,
    )


def attachment_row(attachment: ServedAttachment, epoch: int, now: int) -> AttachmentRow:
    """Return the row of an attachment."""
    services = sum(listener.is_up for listener in attachment.listeners.values())
    is_own = is_own_name(attachment.account.user)
    role = "exit" if attachment.is_exit else "relay" if is_own else "service" if services else "client"
    budget = attachment.mailbox.budget
    return AttachmentRow(
        id=attachment_id_text(attachment, epoch),
        user=attachment.account.user,
        name=attachment.name,
        role=role,
        source=attachment.origin.forwarded or attachment.origin.source,
        carrier="memory" if is_own else "link" if attachment.links else "exchange",
        links=len(attachment.links),
        age_s=(now - attachment.attached_us) // _SECOND,
        silent_s=(now - attachment.last_seen_us) // _SECOND,
        connections=len(attachment.legs),
        services=services,
        waiting_bytes=budget.held,
        waiting_bytes_max=budget.hard_bytes,
    )


def user_row(account: Account, config: SwitchConfig) -> UserRow:
    """Return the row of a user."""
    return UserRow(
        user=account.user,
        attachments=account.attachments,
        attachments_max=config.attachments_per_user_max,
        connections=account.routes,
        connections_max=config.routes_per_user_max,
        held_bytes=account.budget.held,
        held_bytes_max=account.budget.hard_bytes,
        traffic=account.traffic,
    )


def service_row(listener: Listener, epoch: int) -> ServiceRow:
    """Return the row of a service."""
    attachment = listener.attachment
    return ServiceRow(
        name=listener.name,
        user=attachment.account.user,
        endpoint=attachment.name,
        attachment=attachment_id_text(attachment, epoch),
        backlog=listener.backlog,
        pending=listener.pending,
        public="" if listener.public is None else str(listener.public),
    )
