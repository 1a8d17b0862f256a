"""The invariants of the switch, which hold whatever input came.

Only tests and the simulator check them: a check visits every object and recounts from scratch what the other modules
count incrementally.
"""

from collections import Counter
from collections.abc import Iterable

from tunnel.wire import HEADER_SIZE, Frame, PacketType
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.mailboxes.budgets import charge
from tunnel_servlet.switch.mailboxes.mailbox import Mailbox
from tunnel_servlet.switch.mailboxes.queues import RouteQueue
from tunnel_servlet.switch.model import Account, Attention, Leg, Listener, Route, RouteState, ServedAttachment
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.routes.routes import RouteTable

__all__ = ["InvariantError", "check"]


class InvariantError(AssertionError):
    """The switch's state contradicts itself."""


def check(context: SwitchContext, attention: Attention, registry: Registry, routes: RouteTable) -> None:
    """Raise InvariantError if an invariant does not hold."""
    for attachment in registry.by_id.values():
        _check_attachment(attachment, context.config)
    for account in registry.accounts.values():
        _check_tokens(account, registry)
    _check_budgets(context, registry)
    _check_routes(registry, routes)
    _ensure(not attention.awake, "an attachment with waiting packets was not served")


def _ensure(condition: bool, text: str) -> None:
    if not condition:
        raise InvariantError(text)


def _charge(frames: Iterable[Frame]) -> int:
    return sum(map(charge, frames))


def _expand(counts: dict[int, int]) -> list[int]:
    return [value for value, count in counts.items() for _ in range(count)]


def _check_attachment(attachment: ServedAttachment, config: SwitchConfig) -> None:
    mailbox = attachment.mailbox
    carrier = attachment.streams.carrier
    _ensure(not (attachment.held_lanes and mailbox.waiting and carrier is None), "a pull is held while something waits")
    _ensure(carrier is None or carrier.carries, "a stream that is over carries packets")
    open_streams = [lane for lane, _ in attachment.lanes.values() if lane.stream_due_us is not None]
    _ensure(set(open_streams) == set(attachment.streams.lanes), "a stream was lost, or outlived its lane")
    _ensure(not open_streams or attachment.streams.deadline.due_us is not None, "a stream has no timer")
    _ensure(len(attachment.held_lanes) <= config.lanes_max, "more pulls are held than there are lanes")
    links_max = max(config.links_per_attachment_max, config.shared_links_per_attachment_max)
    _ensure(len(attachment.links) <= links_max, "too many links")
    _ensure(not attachment.held_lanes or attachment.hold.due_us is not None, "a held pull has no timer")
    _ensure(attachment.expiry.due_us is not None, "the attachment would never expire")
    outboxes = [outbox for _, outbox in attachment.lanes.values()]
    outstanding = sum(_charge(outbox.taken) for outbox in outboxes)
    outstanding += sum(_charge(link.unreceipted_frames()) for link in attachment.links.values())
    incoming = sum(outbox.incoming_bytes for outbox in outboxes)
    queues = [leg.queue for leg in attachment.legs.values()]
    queues += [route.acceptor.queue for route in attachment.handed.values() if route.state is RouteState.HANDED]
    awaited = [route.initiator.own_id for route in attachment.handed.values() if route.state is RouteState.HANDED]
    _ensure(sorted(awaited) == sorted(_expand(attachment.awaited)), "the awaited initiators were miscounted")
    wanted = [route.route_key for route in attachment.handed.values() if route.state is RouteState.HANDED]
    _ensure(all(key in mailbox.wanted for key in wanted), "a CONNECT would be lost")
    _ensure(
        all(key in attachment.handed for key in mailbox.wanted),
        "a CONNECT is wanted that was not handed to this attachment",
    )
    _check_mailbox(mailbox, queues, outstanding, incoming)
    _ensure(len(mailbox.general) <= config.general_packets_max, "too many packets of no route")
    _ensure(len(mailbox.notices) <= config.notices_max, "too many notices")


def _check_tokens(account: Account, registry: Registry) -> None:
    heard = [one.credential for one in registry.by_id.values() if one.account is account and one.is_heard]
    counted = Counter(credential.token for credential in heard if credential.endpoints_max)
    _ensure(account.heard == counted, "the endpoints of a token were miscounted")


def _check_mailbox(mailbox: Mailbox, queues: list[RouteQueue], outstanding: int, incoming: int) -> None:
    budget = mailbox.budget
    parcel = mailbox.parcel
    _ensure(bool(parcel) == (mailbox.parcel_queue is not None), "a parcel has no queue, or a queue has an empty parcel")
    held = outstanding + incoming + _charge(mailbox.general.values()) + _charge(parcel)
    for queue in queues:
        held += _check_queue(queue, parcel if queue is mailbox.parcel_queue else [])
        listed = any(queue is found for ring in (mailbox.fresh, mailbox.ring) for found in ring)
        _ensure(
            queue.listed == listed == queue.has_data,
            "a stream is listed although no packet of it waits, or is not listed although one waits",
        )
        listed = any(queue is found for found in mailbox.control_ring)
        _ensure(
            queue.control_listed == listed == queue.has_control,
            "control packets are listed without waiting, or wait unlisted",
        )
    _ensure(budget.held == held, f"{budget.held} bytes are counted as held, but {held} are held")
    _ensure(
        budget.outstanding == outstanding,
        f"{budget.outstanding} bytes are counted as outstanding, but {outstanding} are outstanding",
    )
    _ensure(budget.reserved == sum(queue.reserved_bytes for queue in queues), "reservations do not add up")
    _ensure(budget.beyond == sum(queue.beyond for queue in queues), "the use of the pool does not add up")


def _check_queue(queue: RouteQueue, parcel: list[Frame]) -> int:
    """Check a queue and return the bytes that it holds, as charged, beside its packets in the parcel of the mailbox."""
    frames = queue.frames
    data = {key: len(frame.data) - HEADER_SIZE for key, frame in frames.items() if frame.type == PacketType.DATA}
    control = [frame for frame in frames.values() if frame.type != PacketType.DATA]
    control += queue.control.values()
    _ensure(queue.keys == sorted(frames), "the keys of the stream do not match its packets, or are out of order")
    parcel_bytes = sum(len(frame.data) - HEADER_SIZE for frame in parcel if frame.type == PacketType.DATA)
    _ensure(queue.data_bytes == sum(data.values()) + parcel_bytes, "the waiting payload was miscounted")
    _ensure(queue.beyond == max(0, queue.data_bytes - queue.reserved_bytes), "the pool was miscounted")
    late_bytes = sum(size for key, size in data.items() if key <= queue.ledger.s)
    _ensure(queue.ledger.late_bytes == late_bytes, "the late payload was miscounted")
    _ensure(queue.control_bytes == _charge(control), "control packets were miscounted")
    return _charge(frames.values()) + _charge(queue.control.values()) + _charge(queue.acks)


def _check_budgets(context: SwitchContext, registry: Registry) -> None:
    process = context.budget
    mailboxes = [attachment.mailbox.budget for attachment in registry.by_id.values()]
    accounts = [account.budget for account in registry.accounts.values()]
    for level in [process, *accounts, *mailboxes]:
        _ensure(level.held <= level.hard_bytes, f"{level.held} of {level.hard_bytes} bytes are held")
        _ensure(level.reserved <= level.pool_bytes, f"{level.reserved} of {level.pool_bytes} bytes are reserved")
    for level in [process, *accounts]:
        below = [budget for budget in mailboxes if level in budget.levels()]
        for name in ("held", "reserved", "beyond", "outstanding"):
            total = sum(getattr(budget, name) for budget in below)
            _ensure(getattr(level, name) == total, f"{name} is not the sum of the levels below")


def _check_routes(registry: Registry, routes: RouteTable) -> None:
    found: dict[Route, None] = {}
    for attachment in registry.by_id.values():
        opened = 0
        for own_id, leg in attachment.legs.items():
            _check_leg(attachment, own_id, leg)
            found[leg.route] = None
            opened += leg is leg.route.initiator and not leg.route.is_lingering
        _ensure(attachment.routes_opened == opened, "open routes were miscounted")
        for key, route in attachment.handed.items():
            _ensure(
                route.route_key == key and route.acceptor.attachment is attachment,
                "an attachment lists a route under a wrong key, or one that was handed to another attachment",
            )
            _ensure(route in found or route.initiator.own_id in route.initiator.attachment.legs, "a route is lost")
        owners = Counter(route.user for route in attachment.handed.values())
        _ensure(attachment.accepted == owners, "a user's routes to an acceptor were miscounted")
        handed = attachment.handed.values()
        resumes = Counter(one.user for one in handed if one.resume and one.state is RouteState.HANDED)
        _ensure(attachment.resuming == resumes, "a user's resumes without an answer were miscounted")
        for listener in attachment.listeners.values():
            pending = Counter(route.turn for route in attachment.handed.values() if route.listener is listener)
            _ensure(listener.pending == pending.total(), "a listener's pending CONNECTs were miscounted")
            _ensure(listener.pending_of == pending, "a user's pending CONNECTs were miscounted")
    for account in registry.accounts.values():
        owned = [attachment for attachment in registry.by_id.values() if attachment.account is account]
        _ensure(account.attachments == len(owned), "a user's attachments were miscounted")
        _ensure(
            account.routes == sum(attachment.routes_opened for attachment in owned), "a user's routes were miscounted"
        )
    for state in (RouteState.PARKED, RouteState.WAITING, RouteState.HANDED, RouteState.BOUND):
        _ensure(routes.counts[state] == sum(route.state is state for route in found), f"miscounted: {state.value}")
    _ensure(routes.aborted == sum(route.is_aborted for route in found), "aborted routes were miscounted")
    numbers = {route.number: route for route in found}
    _ensure(routes.by_number == numbers, "the operator does not see all routes, or sees others")
    parked = {route for waiting in routes.parked.values() for route in waiting}
    _ensure(
        all(route.state is RouteState.PARKED for route in parked), "a route that is listed as parked has another state"
    )
    _ensure(len(parked) == routes.counts[RouteState.PARKED], "a parked resume is lost")
    _check_waiting([route for route in found if route.state is RouteState.WAITING], registry, routes)


def _check_waiting(waiting: list[Route], registry: Registry, routes: RouteTable) -> None:
    _ensure(len(waiting) == len(routes.waiting), "a waiting route is lost")
    _ensure(routes.waiting.poll_changed() is None, "a queue was not looked at")
    for attachment in registry.by_id.values():
        for listener in attachment.listeners.values():
            _ensure(
                not any(listener.has_room(route.turn) and _waits_for(route, listener) for route in waiting),
                "a route waits although a listener has room",
            )


def _waits_for(route: Route, listener: Listener) -> bool:
    return route.waits_for == listener.name and listener.takes(route.owner)


def _check_leg(attachment: ServedAttachment, own_id: int, leg: Leg) -> None:
    route = leg.route
    _ensure(leg.own_id == own_id and leg.attachment is attachment, "a leg is listed under the wrong id")
    _ensure(attachment.mailbox.queues.get(own_id) is leg.queue, "a leg's queue is not in its mailbox")
    if route.state is RouteState.BOUND:
        _ensure(leg.far.far is leg and leg.far_id == leg.far.own_id, "the legs of a route do not point at each other")
        _ensure(leg.far.attachment.legs.get(leg.far_id) is leg.far, "the other side of a route is lost")
        _ensure(route.is_lingering == (route.deadline.due_us is not None), "a route has the wrong timer")
    else:
        _ensure(leg is route.initiator and leg.far_id == 0, "a route that is not bound has two sides")
        _ensure(route.deadline.due_us is not None, "a route that is not bound has no timer")
