"""Operations on an endpoint whose application, carrier and peers are honest: one function per operation."""

from collections.abc import Callable

from tests.fuzz.connection_world import Session, World
from tests.fuzz.draw import SIZES
from tests.fuzz.peer import Peer, Role
from tunnel.core.connection.state import State
from tunnel.core.errors import LocalProtocolError, PeerClosedError
from tunnel.wire import (
    HEADER_SIZE,
    Abort,
    AbortReason,
    Accepted,
    Connect,
    Option,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    Target,
    TargetKind,
    encode_abort,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_option,
    encode_rejected,
)

__all__ = [
    "SERVICE",
    "WINDOWS",
    "Operation",
    "answer",
    "app_answer",
    "app_end",
    "app_listen",
    "app_read",
    "app_write",
    "arrive",
    "carrier_attached",
    "carrier_batch",
    "carrier_changed",
    "carrier_done",
    "dial",
    "knock",
    "peer_acks",
    "peer_ends",
    "peer_option",
    "peer_resends",
    "peer_says",
    "peer_signals",
    "some_peer",
    "step_time",
]

SERVICE = "reports"
TIMES_US = (0, 1, 1_000, 24_999, 25_000, 200_000, 10**6, 5 * 10**6, 30 * 10**6, 61 * 10**6, 241 * 10**6, 301 * 10**6)
WINDOWS = (0, 1, 1024, 4096, 16384, 65536, 2**20, 2**31 - 1, 2**31, 2**32 - 1)

Operation = Callable[[World], None]


def some_peer(world: World) -> Peer:
    return world.draw.pick(world.peers)


def some_session(world: World) -> Session | None:
    live = world.live()
    return world.draw.pick(live) if live else None


# the application


def dial(world: World) -> None:
    """Call connect()."""
    draw = world.draw
    if len(world.peers) < 6:
        peer = Peer(Role.ACCEPTOR, 1 + draw.below(2**16), b"", draw.number(), len(world.peers))
        world.expect(peer)
        world.endpoint.connect(Target(TargetKind.SERVICE, SERVICE), world.now)


def app_write(world: World) -> None:
    session, size = some_session(world), world.draw.pick(SIZES)
    if session is None:
        return
    try:
        world.write(session, size)
    except (LocalProtocolError, PeerClosedError):
        assert session.connection.state is not State.OPEN or session.connection.closing.finished_writing


def app_read(world: World) -> None:
    session, size = some_session(world), world.draw.pick(SIZES)
    if session is not None:
        world.read(session, size)


def app_end(world: World) -> None:
    """Call finish(), close() or abort()."""
    session, kind = some_session(world), world.draw.below(8)
    if session is None:
        return
    try:
        if kind < 4:
            session.connection.finish(world.now)
        elif kind < 7:
            session.closed = session.closed or session.connection.state is not State.REQUESTED
            session.connection.close(world.now)
        else:
            session.closed = True
            session.connection.abort(world.now, AbortReason.APPLICATION, world.draw.text(200))
    except LocalProtocolError:
        assert session.connection.state is State.REQUESTED
    world.events()


def app_answer(world: World) -> None:
    """Call accept() or refuse()."""
    session, kind = some_session(world), world.draw.below(4)
    if session is None:
        return
    try:
        if kind:
            world.endpoint.accept(session.connection.id, world.now)
        else:
            text = "x" * world.draw.pick(SIZES)
            world.endpoint.refuse(session.connection.id, RejectReason.UNREACHABLE, text, world.now)
    except LocalProtocolError:
        assert session.connection.state is not State.REQUESTED
    except ValueError:
        assert session.connection.state is State.REQUESTED, "a refusal with too long a text changed the state"
    world.events()


def app_listen(world: World) -> None:
    if world.draw.below(4):
        world.endpoint.listen(SERVICE, world.draw.below(4), world.now)
    else:
        world.endpoint.unlisten(SERVICE, world.now)


# the carrier


def carrier_batch(world: World) -> None:
    choice = world.draw.byte()
    world.take_batch((16 << 10, 64 << 10, 20_000, 1 << 20)[choice & 3], arrives=choice & 12 != 0)


def carrier_done(world: World) -> None:
    if world.batches:
        ok = world.draw.below(4) > 0
        token, _ = world.batches.pop(world.draw.below(len(world.batches)))
        world.endpoint.batch_done(token, ok, world.now)
        world.events()


def carrier_attached(world: World) -> None:
    draw = world.draw
    fresh, packet, edge = draw.below(4) > 0, draw.pick((1048, 4096, 65536, 2**20, 2**24)), draw.pick(WINDOWS)
    if draw.below(4) == 3:
        world.endpoint.on_detached(world.now)
    else:
        world.endpoint.on_attached(fresh, packet, edge, world.now)
    world.events()


def carrier_changed(world: World) -> None:
    world.endpoint.carrier_changed(1 + world.draw.below(8), world.draw.pick(TIMES_US), world.now)
    world.events()


def step_time(world: World) -> None:
    """Let time pass, or wait for the next timer."""
    choice = world.draw.byte()
    if choice & 1:
        deadline = world.endpoint.next_timeout()
        if deadline is not None:
            world.now = max(world.now, deadline)
    else:
        world.now += TIMES_US[(choice >> 2) % len(TIMES_US)]
    if choice & 2:
        return  # the caller is late
    world.endpoint.handle_timeout(world.now)
    world.events()
    deadline = world.endpoint.next_timeout()
    assert deadline is None or deadline > world.now, "the next timeout is still due after all timeouts were handled"


# the honest peer


def knock(world: World) -> None:
    """Let a peer send CONNECT: a new one, or the repetition of an earlier one."""
    draw = world.draw
    again = [peer for peer in world.peers if peer.role is Role.INITIATOR]
    choice = draw.byte()
    if again and choice & 1:
        peer = draw.pick(again)
    elif len(world.peers) < 6:
        own_id, key, user = 1 + draw.below(2**16), bytes([draw.below(8)]) * 16, "u" * (choice >> 7)
        known = world.find(own_id, key, user)
        peer = known or world.expect(Peer(Role.INITIATOR, own_id, key, draw.number(), len(world.peers), user))
    else:
        return
    kind = TargetKind.TCP if choice & 2 else TargetKind.SERVICE
    target = Target(kind, SERVICE, 80 if choice & 2 else 0)
    options = Options(packet_bytes_max=draw.pick((None, 0, 1048, 5000, 2**32 - 1)), user=peer.user)
    resume = choice & 12 == 12
    window = draw.pick(WINDOWS)
    peer.furthest = max(peer.furthest, window)
    connect = Connect(peer.route_key, resume, target, window, options)
    world.send(peer, PacketType.CONNECT, encode_connect(connect), peer.first)
    if resume:
        world.inbox[-1][0].destination = peer.their_id
    world.flush()  # the next CONNECT may come from another peer with the same names


def answer(world: World) -> None:
    """Send ACCEPTED, or rarely REJECTED."""
    draw = world.draw
    peer, choice = some_peer(world), draw.byte()
    if peer.role is Role.INITIATOR or not (peer.base or world.hostile):
        return  # only CONNECT tells a peer the route key
    if choice & 15 == 15:
        reason = 1 + draw.below(14)
        rejected = Rejected(peer.route_key, reason, draw.text(100))
        world.inbox.append((Packet(PacketType.REJECTED, peer.their_id, 0, 0, encode_rejected(rejected)), peer))
        return
    options = Options(packet_bytes_max=draw.pick((None, 0, 1048, 5000, 2**32 - 1)), endpoint_id=bytes(16))
    window = draw.pick(WINDOWS)
    peer.furthest = max(peer.furthest, window)
    accepted = Accepted(peer.route_key, bool(choice & 16), window, options)
    world.send(peer, PacketType.ACCEPTED, encode_accepted(accepted), peer.first, choice >> 5)


def peer_says(world: World) -> None:
    """Send new bytes of the peer's stream, usually at once."""
    peer, size, choice = some_peer(world), world.draw.pick(SIZES), world.draw.byte()
    config, session = world.endpoint.config, world.sessions.get(peer.their_id)
    window = config.window_bytes_min if session is None else session.connection.receiver.window.size_bytes
    size = min(size, config.packet_bytes_max - HEADER_SIZE, window)
    for _ in range(1 + (choice & 3)):
        peer.say(size)
        if choice & 12 and peer.segments:
            world.send_segment(peer, -1)


def peer_resends(world: World) -> None:
    peer = some_peer(world)
    if peer.segments:
        world.send_segment(peer, world.draw.below(len(peer.segments)), world.draw.byte())


def peer_ends(world: World) -> None:
    peer, choice = some_peer(world), world.draw.byte()
    kind = PacketType.CLOSE if choice & 1 else PacketType.FINISH
    peer.end(kind, peer.in_order if choice & 2 and peer.base and kind is PacketType.CLOSE else None)
    if choice & 12:
        for index in range(len(peer.segments)) if choice & 16 else [-1] if peer.segments else []:
            world.send_segment(peer, index)


def peer_acks(world: World) -> None:
    peer, window = some_peer(world), world.draw.pick(WINDOWS)
    if peer.base:
        world.send(peer, PacketType.ACK, encode_ack(peer.honest_ack(window, world.draw.pick(TIMES_US[:6]))))


def peer_signals(world: World) -> None:
    """Send PING, PONG, PROBE, NOOP, SHUTDOWN or ABORT."""
    peer, choice = some_peer(world), world.draw.byte()
    kinds = (PacketType.PING, PacketType.PONG, PacketType.PROBE, PacketType.NOOP)
    if choice < 240:
        world.send(peer, kinds[choice & 3], world.draw.raw(choice >> 2))
    elif choice < 248:
        world.send(peer, PacketType.SHUTDOWN)
    else:
        world.send(peer, PacketType.ABORT, encode_abort(Abort(choice - 247, "x" * world.draw.byte())))


def peer_option(world: World) -> None:
    draw = world.draw
    numbers = [draw.number() if draw.flag() else None for _ in range(4)]
    size = draw.pick(SIZES)
    size = size if world.hostile else min(size, world.endpoint.config.packet_bytes_max - 400)
    filler = bytes([99, 0, 255]) + bytes(255)  # options of an unknown kind
    options = Options(
        packet_bytes_max=numbers[0],
        keepalive_ms=numbers[1],
        user_timeout_ms=numbers[2],
        pull_interval_ms=numbers[3],
        unknown=filler * (size // 258),
    )
    peer = some_peer(world)
    if not peer.finished:
        peer.option(encode_option(Option(draw.number(), options)))
        world.send_segment(peer, -1)


def arrive(world: World) -> None:
    world.flush()
