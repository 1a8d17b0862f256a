"""After the chaos all parties behave: connections that still live must deliver everything in bounded steps."""

from tests.fuzz.connection_checks import check_world
from tests.fuzz.connection_ops import SERVICE
from tests.fuzz.connection_world import Session, World
from tests.fuzz.peer import Role
from tunnel.core.connection.state import State
from tunnel.core.constants import NEVER_US
from tunnel.core.errors import LocalProtocolError
from tunnel.wire import (
    Accepted,
    Connect,
    Edge,
    Options,
    Packet,
    PacketType,
    Target,
    TargetKind,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_edge,
    wrap,
)

__all__ = ["settle"]

IDLE_ROUNDS_MAX = 150  # each takes at most a second; together they last longer than the longest pause between repeats
WINDOW = 1 << 20
SEGMENTS_PER_ROUND = 16
BATCH_BYTES = 1 << 18


def settle(world: World) -> None:
    """Raise AssertionError if a connection between honest sides makes no progress."""
    world.flush()
    while world.batches:
        token, _ = world.batches.pop()
        world.endpoint.batch_done(token, True, world.now)
        world.events()
    waiting = _waiting(world)
    idle, before = 0, _progress(world)
    while waiting and idle < IDLE_ROUNDS_MAX:
        for session in waiting:
            _behave(world, session)
        world.flush()
        for session in waiting:
            while not session.closed and session.ended is None and world.read(session, WINDOW):
                pass
        while world.take_batch(BATCH_BYTES, arrives=True):
            world.endpoint.batch_done(world.batches.pop()[0], True, world.now)
            world.events()
        check_world(world)
        world.now += 1_000
        deadline = world.endpoint.next_timeout()
        if deadline is not None and not world.endpoint.wants_batch():
            world.now = max(world.now, min(deadline, world.now + 1_000_000))
        world.endpoint.handle_timeout(world.now)
        world.events()
        waiting = _waiting(world)
        idle = idle + 1 if _progress(world) == before else 0
        before = _progress(world)
    assert not waiting, "no progress: " + "; ".join(map(_describe, waiting))


def _progress(world: World) -> list[int]:
    """Return a value that changes with any progress."""
    peers = [session.peer for session in world.sessions.values()]
    return [session.read_bytes for session in world.sessions.values()] + [peer.in_order for peer in peers]


def _waiting(world: World) -> list[Session]:
    return [session for session in world.live() if not _complete(session)]


def _complete(session: Session) -> bool:
    """Return whether all data was read in both directions, or need not be, because the peer lied or refused, or the
    connection has ended."""
    peer, connection = session.peer, session.connection
    if peer.lied or peer.lied_acks or peer.rejected or session.ended is not None:
        return True
    sent = not connection.unacknowledged_bytes and connection.sender.window.idle
    read = session.closed or session.read_bytes == peer.sent_bytes
    ended = session.closed or session.finished or not peer.finished
    return sent and read and ended and connection.state is not State.REQUESTED


def _behave(world: World, session: Session) -> None:
    """Let application, relay and peer do their duty."""
    connection, peer = session.connection, session.peer
    if connection.state is State.REQUESTED:
        try:
            connection.accept(world.now)
        except LocalProtocolError:
            raise AssertionError("accept() was refused in the state REQUESTED") from None
    suspended = connection.handshake.suspended_since_us != NEVER_US
    unanswered = peer.base and connection.state in (State.CONNECTING, State.CLOSED_EARLY)
    if peer.role is Role.ACCEPTOR and (suspended or unanswered):
        peer.furthest = max(peer.furthest, WINDOW)
        accepted = Accepted(peer.route_key, suspended, WINDOW)
        world.send(peer, PacketType.ACCEPTED, encode_accepted(accepted), peer.first)
    elif suspended:
        connect = Connect(peer.route_key, True, Target(TargetKind.SERVICE, SERVICE), WINDOW, Options(user=peer.user))
        packet = Packet(PacketType.CONNECT, peer.own_id, connection.id, wrap(peer.first), encode_connect(connect))
        world.inbox.append((packet, peer))
    begin = max(0, peer.acknowledged - peer.first)
    for index in range(begin, min(begin + SEGMENTS_PER_ROUND, len(peer.segments))):
        world.send_segment(peer, index)
    if peer.base:
        edge = Edge(wrap(peer.newest), WINDOW)
        world.inbox.append((Packet(PacketType.EDGE, 0, connection.id, 0, encode_edge(edge)), None))
        world.send(peer, PacketType.ACK, encode_ack(peer.honest_ack(WINDOW, 0)))


def _describe(session: Session) -> str:
    connection, peer = session.connection, session.peer
    window = connection.sender.window
    numbered = peer.newest - peer.base + 1
    return (
        f"{connection.state.name}, wrote {session.written_bytes}, unacknowledged {connection.unacknowledged_bytes}, "
        f"in flight {len(window.outstanding)}, peer has {peer.in_order - peer.base + 1} of {numbered}; "
        f"read {session.read_bytes} of {peer.sent_bytes}, "
        f"suspended {connection.handshake.suspended_since_us != NEVER_US}"
    )
