"""Conditions that an endpoint must meet between any two calls: right counters, bounded memory, no lost wake-up."""

from tests.fuzz.connection_world import World
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import State
from tunnel.core.constants import EARLY_BYTES_MAX, EARLY_PACKETS_MAX, HELD_BYTES_MAX, NEVER_US, SECOND_US
from tunnel.core.endpoint import Endpoint
from tunnel.core.receive.window import ReceiveWindow
from tunnel.core.send.window import SegmentState, SendWindow

__all__ = ["check_world"]

REFUSALS_MAX = 8300  # packets of no connection; bounded even if no batch ever leaves
TIMER_ENTRIES_PER_CONNECTION = 8  # entries of the heap, stale ones included
TIMER_ENTRIES_MIN = 128
HORIZON_US = 600 * SECOND_US  # no user timeout, keepalive or drain (at most twice the user timeout) ends later
PONGS_MAX = 4


def check_world(world: World) -> None:
    """Raise AssertionError for the first promise that does not hold."""
    endpoint = world.endpoint
    for connection in endpoint.connections.values():
        _check_sender(connection.sender.window, stopped=connection.sender.stopped)
        _check_receiver(connection, connection.receiver.window)
        _check_wake_up(endpoint, connection)
    _check_endpoint(world)


def _check_sender(window: SendWindow, *, stopped: bool) -> None:
    assert 0 <= window.acknowledged_offset <= window.sent_offset <= window.written_bytes
    assert sum(map(len, window._pending)) == window.pending_bytes
    assert list(window.outstanding) == list(range(window.oldest, window.next_sequence))
    if stopped:
        assert not window.outstanding
        return
    assert window.edge_used == sum(segment.size for segment in window.outstanding.values() if segment.charged)
    assert window.unacknowledged_bytes == window.pending_bytes + sum(s.size for s in window.outstanding.values())
    lost = [number for number, segment in window.outstanding.items() if segment.state is SegmentState.LOST]
    assert set(lost) <= set(window._lost), "a lost segment is not queued for retransmission"


def _kept_bytes(connection: Connection, window: ReceiveWindow) -> int:
    """Return the number of bytes that received data keeps in memory: a slice keeps its whole body there."""
    payloads = [chunk for chunk, _ in window._chunks]
    payloads += [item[1] for item in window._ahead.values()]
    payloads += [packet.payload for packet in connection.handshake._held]
    bodies = {id(getattr(payload, "obj", payload)): getattr(payload, "obj", payload) for payload in payloads}
    return sum(map(len, bodies.values()))


def _check_receiver(connection: Connection, window: ReceiveWindow) -> None:
    config = connection.owner.config
    assert window.delivered_offset <= window.received_offset or window.discarding
    assert window.buffered_bytes == sum(len(chunk) for chunk, _ in window._chunks)
    if not window.discarding:
        assert window.delivered_offset + window.buffered_bytes == window.received_offset
    assert window.pinned_bytes >= 0
    assert len(window._ahead) <= config.out_of_order_packets_max
    assert len(connection.handshake._held) <= EARLY_PACKETS_MAX
    assert len(connection.liveness._pongs) <= PONGS_MAX
    # Data that fills a gap may arrive although data beyond the gap fills the window; and slices may keep whole bodies.
    limit = 3 * window.size_bytes + EARLY_BYTES_MAX + 2 * HELD_BYTES_MAX
    assert _kept_bytes(connection, window) <= limit, f"{_kept_bytes(connection, window)} bytes kept, {limit} allowed"


def _check_wake_up(endpoint: Endpoint, connection: Connection) -> None:
    """Check that a connection that has something to do is queued for it, or has a timer running."""
    timers, sender = connection.timers, connection.sender
    deadline = min(timers.deadlines)  # timers.next() would repair the very error looked for here
    if connection.state is State.REQUESTED:
        return  # the application must act next
    wake_up = endpoint.next_timeout()
    assert deadline == NEVER_US or (wake_up is not None and wake_up <= deadline), "the endpoint misses this timer"
    if sender.sendable():
        assert connection.place.queued, "there is something to send, but the connection is not queued"
    if connection.outbound.wants_control():
        assert connection.id in endpoint._scheduler.control, "a control packet is due, but not queued"
    if connection.state in (State.CONNECTING, State.CLOSED_EARLY, State.DRAIN):
        assert deadline != NEVER_US, f"{connection.state} without a timer"
    if sender.suspended or sender.stopped:
        return
    flying = [s for s in sender.window.outstanding.values() if s.state <= SegmentState.RECEIPTED]
    assert not flying or deadline != NEVER_US, "packets are in flight, but no timer runs"


def _check_endpoint(world: World) -> None:
    endpoint = world.endpoint
    connections = len(endpoint.connections)
    dialled = sum(1 for session in world.live() if session.connection.identity.initiator)
    assert connections <= endpoint.config.connections_max + dialled
    assert len(endpoint._scheduler.strays) <= REFUSALS_MAX + connections, f"{len(endpoint._scheduler.strays)} strays"
    entries = len(endpoint._timers)
    assert entries <= TIMER_ENTRIES_MIN + TIMER_ENTRIES_PER_CONNECTION * connections, f"{entries} timers"
    budget = endpoint.budget
    open_ = endpoint.connections.values()
    granted = sum(connection.receiver.window._granted + connection._send_granted for connection in open_)
    assert budget.granted_bytes == granted <= budget.total_bytes
    assert len(endpoint._scheduler._carried) == len(world.batches)
    assert len(endpoint._admission._routes) <= connections
    wake_up = endpoint.next_timeout()
    assert wake_up is None or wake_up <= world.now + HORIZON_US, f"a timer in {wake_up - world.now} us"
