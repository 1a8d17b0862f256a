"""Hostile operations: those of a lying relay, of other endpoints, and of peers that break the protocol."""

from tests.fuzz.connection_ops import SERVICE, WINDOWS, some_peer
from tests.fuzz.connection_world import World
from tests.fuzz.draw import SIZES
from tests.fuzz.peer import Peer
from tunnel.wire import (
    Ack,
    Connect,
    Dropped,
    Edge,
    End,
    ListenState,
    ListenStatus,
    Options,
    Packet,
    PacketType,
    Target,
    TargetKind,
    encode_ack,
    encode_connect,
    encode_dropped,
    encode_edge,
    encode_end,
    encode_listen_state,
    wrap,
)

__all__ = ["flood", "lying_ack", "lying_data", "relay_drops", "relay_edge", "relay_listens", "replay", "stranger"]


# the relay, honest or lying


def near(world: World, peer: Peer) -> int:
    """Return one of the newest sequence numbers of the endpoint's stream, or one just or far beyond them."""
    around = world.draw.byte()
    if around < 128:
        return (peer.newest or peer.first) - around % 8
    return (peer.newest or peer.first) + (1, 2, 40, 1 << 20, (1 << 31) - 1, 1 << 31)[around % 6]


def relay_drops(world: World) -> None:
    peer, choice = some_peer(world), world.draw.byte()
    first = near(world, peer)
    last = first + world.draw.below(20) - 2
    reason = 1 if choice < 160 else 2 if choice < 240 else choice & 7
    dropped = Dropped(reason, wrap(first), wrap(last), world.draw.pick(WINDOWS))
    world.inbox.append((Packet(PacketType.DROPPED, 0, peer.their_id, 0, encode_dropped(dropped)), None))


def relay_edge(world: World) -> None:
    peer = some_peer(world)
    edge = Edge(wrap(near(world, peer)), world.draw.pick(WINDOWS))
    world.inbox.append((Packet(PacketType.EDGE, 0, peer.their_id, 0, encode_edge(edge)), None))


def relay_listens(world: World) -> None:
    draw = world.draw
    state = ListenState(draw.below(8), ListenStatus(draw.below(3)), 1, draw.pick((SERVICE, "other")))
    world.inbox.append((Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(state)), None))


# other endpoints, and peers that lie


def stranger(world: World) -> None:
    """Send any packet with guessed ids; a guess of the right pair of ids would make the sender the peer itself."""
    draw = world.draw
    peer = some_peer(world)
    kind, choice = draw.below(22), draw.byte()
    known = kind in (PacketType.ACCEPTED, PacketType.REJECTED, PacketType.CONNECT, PacketType.DROPPED, PacketType.EDGE)
    if known:
        return  # operations of their own send these
    destination = peer.their_id if choice & 3 else draw.number()
    source = draw.pick((0, peer.own_id + 1, draw.number()))
    ours = any(session.connection.identity.peer_id == source for session in world.live())
    if not ours and (source != peer.own_id):
        packet = Packet(kind, source, destination, wrap(near(world, peer)), draw.raw(choice >> 2), choice)
        packet.version = 1 + (choice & 16 == 16)
        world.inbox.append((packet, None))


def lying_ack(world: World) -> None:
    """Send an ACK of data never sent, of too much, with impossible ranges, or one that is merely very odd."""
    draw = world.draw
    peer = some_peer(world)
    cumulative = near(world, peer)
    ranges: list[tuple[int, int]] = []
    for _ in range(draw.below(6)):
        first = cumulative + draw.below(8)
        ranges.append((wrap(first), wrap(first + draw.pick((0, 0, 1, 3, 300, (1 << 31) - 1)))))
    ack = Ack(wrap(cumulative), draw.pick(WINDOWS), draw.number(), wrap(near(world, peer)), draw.byte(), ranges)
    world.send(peer, PacketType.ACK, encode_ack(ack))


def lying_data(world: World) -> None:
    """Let a peer lie: other bytes under a used number, a number far away, a wrong end, or any packet."""
    draw = world.draw
    peer, choice = some_peer(world), draw.byte()
    if not world.hostile:
        return
    peer.lied = True
    sequence = peer.next_sequence() + draw.pick((0, 0, -1, 1, 2, 60, 70, (1 << 31) - 1, -(1 << 31)))
    if choice & 3 == 0:
        world.send(peer, PacketType.DATA, draw.raw(choice >> 2), sequence)
    elif choice & 3 == 1:
        world.send(peer, PacketType.DATA, bytes(draw.pick(SIZES)), sequence)
    elif choice & 3 == 2:
        end = End(draw.pick((peer.sent_bytes, draw.number(), 2**64 - 1)), draw.raw(16).ljust(16, b"\0"), draw.number())
        peer.ends.append((end.length, end.digest))
        world.send(peer, PacketType.CLOSE if choice & 4 else PacketType.FINISH, encode_end(end), sequence)
    else:
        world.send(peer, draw.below(20), draw.raw(choice >> 2), sequence)


def replay(world: World) -> None:
    """Return the endpoint's own packets to it, as a confused relay might. Their ids do not fit: it must ignore them."""
    if world.batches:
        _, packets = world.draw.pick(world.batches)
        world.inbox.extend((packet, None) for packet in packets if packet.type != PacketType.CONNECT)


def flood(world: World) -> None:
    """Send the same packet up to 255 times in one body, as a peer that wants to exhaust memory might."""
    draw = world.draw
    peer, choice = some_peer(world), draw.byte()
    kinds = (PacketType.CONNECT, PacketType.ACK, PacketType.PING, PacketType.DATA)
    kind = kinds[choice & 3]
    if kind is PacketType.CONNECT:
        target = Target(TargetKind.SERVICE, "nobody listens")
        connect = Connect(bytes([100 + draw.below(8)]) * 16, bool(choice & 4), target, 0, Options(user="flood"))
        packet = Packet(kind, 1 + draw.byte(), 0, draw.number(), encode_connect(connect))
        world.inbox.extend([(packet, None)] * choice)
    elif kind is PacketType.DATA:
        packet = Packet(kind, 1, draw.number(), 0, b"x")
        if packet.destination not in world.sessions:
            world.inbox.extend([(packet, None)] * choice)
    else:
        payload = encode_ack(peer.honest_ack(draw.pick(WINDOWS), 0)) if kind is PacketType.ACK else b""
        for _ in range(choice if peer.base else 0):
            world.send(peer, kind, payload)
