"""Conditions that must hold after every step, checked at a cost proportional to what the step touched; and those that
must hold at the end."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tests.sim.node import Node
from tests.sim.relay import RelayHost
from tests.sim.violation import Violation
from tunnel.core import Connection, State
from tunnel.core.constants import EARLY_BYTES_MAX
from tunnel.core.send.window import TRICKLE_BYTES, SegmentState
from tunnel_servlet.switch import invariants as servlet_invariants
from tunnel_servlet.switch.lifecycle import BEYOND_MAX
from tunnel_servlet.switch.switch import Switch

__all__ = ["check_node_step", "check_nothing_left", "check_quiet", "check_relay_step", "check_routes"]

DEEP_EVERY = 64  # steps between the checks that recount everything
SPINS_MAX = 2_000  # pumps of one node at one instant


def check_node_step(node: Node) -> None:
    """After `Node.pump`, check the connections that it touched, the shared budget, and the clock."""
    endpoint = node.endpoint
    touched, node.touched = node.touched, {}
    for connection_id in touched:
        connection = endpoint.connections.get(connection_id)
        if connection is not None:
            _check_connection(node, connection)
    budget = endpoint.budget
    if not 0 <= budget.granted_bytes <= budget.total_bytes:
        raise Violation(f"{node}: {budget.granted_bytes} bytes of windows granted of {budget.total_bytes}")
    _check_time(node)


def _check_time(node: Node) -> None:
    """Nothing may be due now or in the past after everything was drained, and time must advance."""
    now_us = node.now_us
    for name, due_us in (("endpoint", node.endpoint.next_timeout()), ("lanes", node.mover.next_timeout())):
        if due_us is not None and due_us <= now_us:
            raise Violation(f"{node}: the next timeout of its {name} lies {now_us - due_us} us in the past")
    if now_us != node.pumped_at_us:
        node.pumped_at_us, node.spins = now_us, 0
    node.spins += 1
    if node.spins > SPINS_MAX:
        raise Violation(f"{node}: pumped {SPINS_MAX} times while the clock stood still")


def _check_connection(node: Node, connection: Connection) -> None:
    if connection.state in (State.DRAIN, State.CLOSED):
        return
    _check_sending(node, connection)
    _check_receiving(node, connection)
    if node.clock.steps % DEEP_EVERY == 0:
        _check_sums(node, connection)


def _check_sending(node: Node, connection: Connection) -> None:
    """The bytes in flight fit the window (64 KiB until it is known, 3.6) and the edge; written bytes fit the buffer."""
    window = connection.sender.window
    edge = max(window.peer_edge, EARLY_BYTES_MAX)
    party = node.parties.get(connection.id)
    peer = party.peer() if party is not None else None
    if peer is not None and not peer.connection.receiver.window.discarding:
        # the end of the window as its reader knows it, too, and not only as the writer does
        edge = max(min(window.peer_edge, peer.connection.receiver.window.right_edge), EARLY_BYTES_MAX)
    if window.sent_offset > edge:
        beyond = window.sent_offset - edge
        raise Violation(f"{node}, connection {connection.id}: {beyond} bytes sent beyond the peer's window")
    # 4.11: one packet of up to 1 KiB may leave while the load is 0, whatever the edge
    load_max = max(window.edge_bytes, node.edge_used.get(connection.id, 0), TRICKLE_BYTES)
    if window.edge_used > load_max:
        oldest = window.outstanding.get(window.oldest)
        # 4.11: the oldest packet may be sent again, whatever the edge
        allowed = oldest.size if oldest is not None and oldest.charged else 0
        if window.edge_used - allowed > load_max:
            raise Violation(
                f"{node}, connection {connection.id}: {window.edge_used} bytes in flight, "
                f"the relay has room for {window.edge_bytes}"
            )
    node.edge_used[connection.id] = window.edge_used
    limit = max(window.buffer_bytes_max, node.spec.endpoint.send_buffer_bytes_max, node.spec.endpoint.window_bytes_max)
    if not 0 <= window.unacknowledged_bytes <= limit:
        raise Violation(f"{node}, connection {connection.id}: {window.unacknowledged_bytes} bytes kept for sending")


def _check_receiving(node: Node, connection: Connection) -> None:
    """The bytes kept for the reader fit the window that was announced; 3.6 allows 64 KiB before that."""
    window = connection.receiver.window
    kept = window.buffered_bytes + window._ahead_bytes
    if kept > max(window.size_bytes, EARLY_BYTES_MAX) or window.size_bytes > node.spec.endpoint.window_bytes_max:
        raise Violation(
            f"{node}, connection {connection.id}: {kept} bytes kept in a window of {window.size_bytes}, "
            f"at most {node.spec.endpoint.window_bytes_max}"
        )
    if len(window._ahead) > node.spec.endpoint.out_of_order_packets_max:
        raise Violation(f"{node}, connection {connection.id}: {len(window._ahead)} packets kept beyond a gap")


def _check_sums(node: Node, connection: Connection) -> None:
    """The counters equal a recount."""
    window, reading = connection.sender.window, connection.receiver.window
    charged = sum(segment.size for segment in window.outstanding.values() if segment.charged)
    if charged != window.edge_used:
        raise Violation(f"{node}, connection {connection.id}: edge_used {window.edge_used}, charged {charged}")
    for segment in window.outstanding.values():
        if segment.charged and segment.state >= SegmentState.LOST:
            raise Violation(
                f"{node}, connection {connection.id}: {segment.sequence} is charged, and {segment.state.name}"
            )
    buffered = reading.received_offset - reading.delivered_offset
    if buffered != reading.buffered_bytes and not reading.discarding:
        raise Violation(
            f"{node}, connection {connection.id}: {buffered} bytes buffered, {reading.buffered_bytes} counted"
        )


def check_relay_step(relay: RelayHost) -> None:
    """Nothing may be due in the past, and every account is within its limits.

    Now and then, also run all self-checks of the switch: mailboxes, unconfirmed packets and reservations are within
    their limits, and all sums are right. The more routes there are, the less often these run.
    """
    due_us = relay.switch.next_timeout()
    if due_us is not None and due_us < relay.now_us:
        raise Violation(f"relay: its next timeout lies {relay.now_us - due_us} us in the past")
    budget = relay.switch._context.budget
    if budget.held > budget.hard_bytes:
        raise Violation(f"relay: {budget.held} bytes are kept of {budget.hard_bytes}")
    _check_accounts(relay.switch)
    relay.steps_unchecked += 1
    if relay.steps_unchecked > DEEP_EVERY + 2 * len(relay.switch._routes):
        relay.steps_unchecked = 0
        relay.front.check()
        check_switch(relay.switch)


def _check_accounts(switch: Switch) -> None:
    """Every account is within its limit."""
    config = switch.config
    for account in switch._registry.accounts.values():
        budget = account.budget
        if budget.held > budget.hard_bytes or budget.reserved > budget.pool_bytes:
            raise Violation(f"relay: {account.user} holds {budget.held} bytes, {budget.reserved} are reserved")
        attachments_max = config.attachments_per_user_max + min(len(account.beyond), BEYOND_MAX)
        if account.routes > config.routes_per_user_max or account.attachments > attachments_max:
            raise Violation(f"relay: {account.user} has {account.routes} routes, {account.attachments} attachments")


def check_nothing_left(relay: RelayHost) -> None:
    """When the relay has forgotten all endpoints, every account is exactly zero."""
    check_switch(relay.switch)
    stats = relay.switch.stats()
    left = {name: value for name, value in msgspec.structs.asdict(stats).items() if isinstance(value, int) and value}
    if left:
        raise Violation(f"relay: something is left of endpoints that have gone: {left}")
    relay.front.check()
    relay.front.check_empty()


def check_switch(switch: Switch) -> None:
    """The switch's own invariants, and the memory of its lanes: at most an answer and a packet in each direction."""
    limit_bytes = switch.config.body_bytes_max + 2 * switch.config.packet_bytes_max
    for attachment in switch._registry.by_id.values():
        for lane, _ in attachment.lanes.values():
            if lane.held_bytes > limit_bytes:
                raise Violation(f"relay: lane {lane.lane} of {attachment.name} keeps {lane.held_bytes} bytes")
    try:
        servlet_invariants.check(switch._context, switch._attention, switch._registry, switch._routes)
    except servlet_invariants.InvariantError as error:
        raise Violation(f"relay: {error}") from error


def check_quiet(nodes: Iterable[Node], switch: Switch) -> None:
    """Long after the last stream ended, no connection and no granted window may remain."""
    for node in nodes:
        left = [connection.state for connection in node.endpoint.connections.values()]
        if left:
            states = ", ".join(sorted({state.name for state in left}))
            raise Violation(f"{node}: {len(left)} connections are left ({states})")
        if node.endpoint.budget.granted_bytes:
            raise Violation(f"{node}: {node.endpoint.budget.granted_bytes} bytes of windows were not given back")
    check_routes(switch)


def check_routes(switch: Switch) -> None:
    """The relay's counters are right, and it has no route left."""
    check_switch(switch)
    routes = switch.stats().routes
    if routes:
        raise Violation(f"relay: {routes} routes are left")
