"""The acts of hostile users: each draws its sizes and its victims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.hostile import GUESTS_MAX, HostileUser
from tests.sim.hostile_link import Guest
from tests.sim.randomness import between, chance, log_between, pick
from tunnel.wire import (
    SECRET_SIZE,
    Ack,
    Connect,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    PacketType,
    Target,
    encode_ack,
    encode_connect,
    encode_listen_state,
    encode_option,
)

__all__ = ["ACTS"]

WIDE = 2**32 - 1
TOO_MANY = 1025  # packets in one body


def _some(user: HostileUser, most: int) -> int:
    return log_between(user.random, 1, most)


def tiny_packets(user: HostileUser) -> None:
    """Send empty packets that have no route, sometimes more than a body may hold."""
    kind = pick(user.random, (PacketType.PING, PacketType.DATA, PacketType.ACK, PacketType.NOOP, 200))
    guest = user.guest()
    count = TOO_MANY if chance(user.random, 0.1) else _some(user, 1000)
    user.push(guest, [Packet(kind, number + 1, 1, number, b"") for number in range(count)])


def empty_batch(user: HostileUser) -> None:
    """Open a link, and send an empty batch on it."""
    link = user.open_link(user.guest())
    if link is not None:
        link.send(b"")


def links(user: HostileUser) -> None:
    """Open links, sometimes more than the relay allows; give receipts for batches that never came."""
    guest = user.guest()
    for _ in range(_some(user, 6)):
        link = user.open_link(guest)
        if link is not None and chance(user.random, 0.3):
            link.receipt(_some(user, 1000))


def half_batch(user: HostileUser) -> None:
    """Send a part of a batch on each of some links."""
    for _ in range(_some(user, 6)):
        link = user.open_link(user.guest())
        if link is not None:
            link.send_half(log_between(user.random, 1, 4 << 20))


def unfinished_bodies(user: HostileUser) -> None:
    """Begin requests whose bodies never end."""
    for _ in range(_some(user, 40)):
        user.leave_unfinished(log_between(user.random, 1, 1 << 20))


def unread_answers(user: HostileUser) -> None:
    """Send exchanges, and read no answer."""
    guest = user.guest()
    for _ in range(_some(user, 10)):
        user.send(guest, user.body(guest, b""), reads=False)


def repeats(user: HostileUser) -> None:
    """Send one request again and again."""
    guest = user.guest()
    body = user.body(guest, b"", pull=chance(user.random, 0.5))
    for _ in range(_some(user, 50)):
        user.send(guest, body, reads=chance(user.random, 0.5))


def pulls(user: HostileUser) -> None:
    """Send pulls on nine lanes, and lose some of their connections."""
    guest = user.guest()
    for lane in range(9):
        exchange = user.send(guest, user.body(guest, b"", lane=lane, pull=True))
        if chance(user.random, 0.2):
            user.relay.gone(user, exchange)


def streams(user: HostileUser) -> None:
    """Ask for streamed answers on nine lanes, read some of them, and confirm serials that came or never came."""
    random, guest = user.random, user.guest()
    for lane in range(9):
        limit = log_between(random, 1, 1 << 30)
        body = user.body(guest, b"", lane=lane, pull=True, stream=True, answer_bytes_max=limit)
        exchange = user.send(guest, body, reads=chance(random, 0.5))
        if chance(random, 0.2):
            user.relay.gone(user, exchange)
        if chance(random, 0.3):
            user.send(guest, body)
    for lane in range(4):
        serial = guest.serials.get(lane, 0) if chance(random, 0.7) else log_between(random, 1, WIDE)
        user.send(guest, user.body(guest, b"", lane=pick(random, (5, 6, 7)), confirms=(lane, serial)))


def wild_exchanges(user: HostileUser) -> None:
    """Send exchanges with any number, serial, generation and answer limit, and pieces of packets."""
    random, guest = user.random, user.guest()
    for _ in range(_some(user, 20)):
        changes: dict[str, Any] = pick(
            random,
            (
                {"serial_received": log_between(random, 1, WIDE)},
                {"number": log_between(random, 1, WIDE)},
                {"generation": between(random, 0, 5)},
                {"answer_bytes_max": log_between(random, 1, 1000)},
                {"piece": True, "piece_offset": between(random, 0, 3) * 50},
                {"lane": log_between(random, 1, 60_000)},
                {"attachment_id": pick(random, user.surroundings.attachments())},
            ),
        )
        user.send(guest, user.body(guest, random.randbytes(between(random, 0, 100)), **changes))


def garbage(user: HostileUser) -> None:
    """Send a damaged body, and one that is no message."""
    random, guest = user.random, user.guest()
    damaged = bytearray(user.body(guest, random.randbytes(_some(user, 4000))))
    damaged[between(random, 0, len(damaged) - 1)] ^= 1 << between(random, 0, 7)
    user.send(guest, bytes(damaged))
    user.send(guest, random.randbytes(_some(user, 4000)))


def attaches(user: HostileUser) -> None:
    """Attach again and again: with new secrets, higher generations, and names of others."""
    random = user.random
    for _ in range(_some(user, 40)):
        if user.guests and chance(random, 0.3):
            guest = pick(random, user.guests)
            guest.generation = min(WIDE, guest.generation + log_between(random, 1, 1000))
            user.attach(guest)
        elif len(user.guests) < GUESTS_MAX or chance(random, 0.5):
            user.new_guest(pick(random, ("", "mine", "client-0", "exit-1", "service-1")))
        else:
            user.attach(Guest(random.randbytes(SECRET_SIZE)))


def _connect(user: HostileUser, guest: Guest, target: Target, **options: object) -> Packet:
    random = user.random
    guest.next_id += 1
    endpoint_id = options.get("endpoint_id")
    said = Options(user="ann", endpoint_id=endpoint_id if isinstance(endpoint_id, bytes) else None)
    payload = encode_connect(Connect(random.randbytes(16), endpoint_id is not None, target, WIDE, said))
    return Packet(PacketType.CONNECT, guest.next_id, 0, random.getrandbits(32), payload)


def refused_connects(user: HostileUser) -> None:
    """Ask again and again for a target that no rule allows."""
    guest, target = user.guest(), user.surroundings.targets()[-1]
    user.push(guest, [_connect(user, guest, target) for _ in range(_some(user, 300))])


def connects(user: HostileUser) -> None:
    """Connect to the services and exits of others, with a window of 2^32 - 1 bytes, and acknowledge nothing."""
    guest = user.guest()
    if len(guest.routes) < 8:
        user.push(guest, [_connect(user, guest, pick(user.random, user.surroundings.targets())) for _ in range(3)])
    user.push(guest, [], pull=True)


def windows(user: HostileUser) -> None:
    """Acknowledge what never came, with windows of 2^32 - 1 bytes; send data and ends that do not fit."""
    random, guest = user.random, user.guest()
    packets = []
    for own, peer in guest.routes[-8:]:
        sequence = random.getrandbits(32)
        ack = encode_ack(Ack(sequence, WIDE, 0, sequence, 0, []))
        packets.append(Packet(PacketType.ACK, own, peer, 0, ack))
        kind = pick(random, (PacketType.DATA, PacketType.FINISH, PacketType.CLOSE, PacketType.ABORT, PacketType.OPTION))
        size = log_between(random, 1, 4000)
        packets += [Packet(kind, own, peer, (sequence + number) % 2**32, bytes(size)) for number in range(20)]
    user.push(guest, packets)


def resumes(user: HostileUser) -> None:
    """Resume connections that were never there, at the endpoints of others."""
    random, guest = user.random, user.guest()
    packets = []
    for _ in range(_some(user, 50)):
        target = pick(random, user.surroundings.targets())
        packets.append(_connect(user, guest, target, endpoint_id=pick(random, user.surroundings.attachments())))
    user.push(guest, packets)


def listens(user: HostileUser) -> None:
    """Announce many names, those of others among them."""
    random, guest = user.random, user.guest()
    packets = []
    for number in range(_some(user, 300)):
        name = pick(random, (f"eve {number}", "service-0", "service-1", "service-2"))
        status = pick(random, (ListenStatus.UP, ListenStatus.UP, ListenStatus.DOWN))
        state = ListenState(between(random, 1, 9), status, log_between(random, 1, 60_000), name)
        packets.append(Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(state)))
    packets.append(Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(9, Options(pull_interval_ms=WIDE)))))
    user.push(guest, packets)


def stolen_ids(user: HostileUser) -> None:
    """Send packets with the ids of other users' connections."""
    random, guest = user.random, user.guest()
    kinds = (PacketType.DATA, PacketType.SHUTDOWN, PacketType.ABORT, PacketType.CLOSE, PacketType.REJECTED)
    packets = []
    for own, peer in user.surroundings.connections()[:20]:
        for source, destination in ((own, peer), (peer, own), (own, 0), (0, own)):
            packets.append(Packet(pick(random, kinds), source, destination, random.getrandbits(32), bytes(20)))
    user.push(guest, packets)


ACTS: dict[str, Callable[[HostileUser], None]] = {
    act.__name__: act
    for act in (
        tiny_packets, empty_batch, links, half_batch, unfinished_bodies, unread_answers, repeats, pulls, streams,
        wild_exchanges, garbage, attaches, refused_connects, connects, windows, resumes, listens, stolen_ids,
    )
}  # fmt: skip
