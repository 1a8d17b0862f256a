"""Operations of endpoints on a relay: one function per operation."""

from collections.abc import Callable

from tests.fuzz.checksums import repair_envelope, repair_packets
from tests.fuzz.draw import SIZES, Draw
from tests.fuzz.switch_world import MARK, NAMES, Party, SwitchWorld
from tunnel.wire import (
    Accepted,
    Attach,
    Connect,
    Exchange,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    PacketType,
    Rejected,
    Target,
    TargetKind,
    encode_accepted,
    encode_connect,
    encode_envelope,
    encode_listen_state,
    encode_option,
    encode_rejected,
    parse_frames,
    question_about,
    whole_packet,
)

__all__ = [
    "Operation",
    "accept",
    "attach",
    "attach_as",
    "connect",
    "control",
    "data",
    "exchange",
    "gone",
    "link",
    "listen",
    "odd_exchange",
    "piece",
    "route",
    "settings",
    "step_time",
    "turn",
    "wild_body",
    "wild_packet",
]

Operation = Callable[[SwitchWorld], None]

TIMES_US = (0, 1, 1_000, 100_000, 1_000_000, 5_000_000, 30_000_000, 60_000_000, 301_000_000)
LIMITS = (1 << 20, 16_384, 2000, 0, 2**32 - 1)
_GENERATION_MAX = 2**32 - 1  # 7.11
_SEQUENCES = (0, 1, 2, 3, 40, 2**31 - 1, 2**31, 2**32 - 1)


def _party(world: SwitchWorld) -> Party:
    return world.draw.pick(world.parties)


def _own_id(draw: Draw, party: Party) -> int:
    return draw.pick(party.ids) if party.ids and draw.byte() & 7 else 1 + draw.below(12)


def _peer_id(draw: Draw, party: Party) -> int:
    return draw.pick(party.peers) if party.peers and draw.byte() & 7 else draw.below(12)


def _sequence(draw: Draw) -> int:
    return draw.pick(_SEQUENCES)


# attachments and exchanges


def attach_as(world: SwitchWorld, party: Party, name: str) -> None:
    """Send ATTACH with the party's present generation."""
    message = Attach(party.secret, party.generation, 0, 1 << 20, (1, 1), name)
    world.request(party, b"".join(encode_envelope(message)))
    party.numbers, party.serials = {}, {}


def attach(world: SwitchWorld) -> None:
    """Attach again, under the same, a higher or a lower generation, or with another party's secret."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    party.generation = min(_GENERATION_MAX, max(1, party.generation + (0, 1, 1, -1)[choice & 3]))
    name = ("", "", "desk", "other")[choice >> 2 & 3]
    if choice & 16:
        attach_as(world, party, name)
        return
    stolen = draw.pick(world.parties)
    message = Attach(stolen.secret, draw.number(), draw.number(), draw.number(), (1, 1 + draw.below(2)), name)
    if stolen is party:
        party.generation, party.numbers, party.serials = message.generation, {}, {}
    elif stolen.user == party.user or party.is_exit:
        return  # the relay cannot notice the stolen secret, and need not
    world.request(party, b"".join(encode_envelope(message)), whose=stolen)


def _exchange(world: SwitchWorld, party: Party, message: Exchange, whose: Party | None = None) -> None:
    body = b"".join(encode_envelope(message, mask=7 if message.number & 3 == 3 else None))
    world.request(party, body, message.lane, message.answer_bytes_max, whose)


def turn(world: SwitchWorld, party: Party, lane: int, *, hold_ms: int, limit: int, pull: bool) -> None:
    """Send the next number of the lane: confirm all answers; a push carries the packets that wait."""
    party.numbers[lane] = party.numbers.get(lane, 0) + 1
    payload = b""
    if not pull:
        payload, party.outbox = b"".join(party.outbox), []
    message = Exchange(
        attachment_id=party.identity,
        epoch=party.epoch,
        generation=party.generation,
        lane=lane,
        number=party.numbers[lane],
        serial_received=party.serials.get(lane, 0),
        hold_ms=hold_ms,
        answer_bytes_max=limit,
        pull=pull,
        payload=payload,
    )
    _exchange(world, party, message)


def exchange(world: SwitchWorld) -> None:
    """Take a turn as an honest endpoint."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    lane, hold_ms = (choice >> 3) % world.config.lanes_max, 20_000 if choice & 2 else 0
    limit = LIMITS[0] if choice & 4 else draw.pick(LIMITS)
    turn(world, party, lane, hold_ms=hold_ms, limit=limit, pull=bool(choice & 1))


def route(world: SwitchWorld, asker: Party, acceptor: Party, target: Target, key: bytes) -> None:
    """Bind a route between id 1 of `asker` and id 2 of `acceptor`, as honest endpoints do. Both are attached."""
    connect_payload = encode_connect(Connect(key, False, target, 65536))
    asker.asked.append((key, 1))
    asker.ids.append(1)
    accepted_payload = encode_accepted(Accepted(key, False, 65536, Options(endpoint_id=acceptor.identity)))
    if target.kind is TargetKind.SERVICE:
        payload = encode_listen_state(ListenState(1, ListenStatus.UP, 3, target.host))
        acceptor.names.append(target.host)
        acceptor.outbox.append(whole_packet(Packet(PacketType.LISTEN_STATE, 0, 0, 0, payload)))
        turn(world, acceptor, 0, hold_ms=0, limit=1 << 20, pull=False)
    asker.outbox.append(whole_packet(Packet(PacketType.CONNECT, 1, 0, 0, connect_payload)))
    turn(world, asker, 0, hold_ms=0, limit=1 << 20, pull=False)
    turn(world, acceptor, 0, hold_ms=0, limit=1 << 20, pull=True)
    acceptor.ids.append(2)
    world.accepted(acceptor, accepted_payload, 1, 2)
    acceptor.outbox.append(whole_packet(Packet(PacketType.ACCEPTED, 1, 2, 0, accepted_payload)))
    turn(world, acceptor, 0, hold_ms=0, limit=1 << 20, pull=False)
    turn(world, asker, 0, hold_ms=0, limit=1 << 20, pull=True)


def odd_exchange(world: SwitchWorld) -> None:
    """Send an exchange with any number, serial, lane, generation, epoch or attachment."""
    draw = world.draw
    party, named, choice = _party(world), _party(world), draw.byte()
    lane = draw.below(4)
    last = party.numbers.get(lane, 0)
    number = (last, max(0, last - 1), last + 2, draw.number())[choice & 3]
    party.numbers[lane] = max(last, number)
    message = Exchange(
        attachment_id=named.identity if choice & 64 else party.identity,
        epoch=draw.number() if choice & 4 else party.epoch,
        generation=draw.below(6) if choice & 8 else party.generation,
        lane=lane if choice & 16 else draw.number() & 0xFFFF,
        number=number,
        serial_received=draw.pick((party.serials.get(lane, 0), 0, draw.number())),
        hold_ms=draw.number(),
        answer_bytes_max=draw.number(),
        piece_offset=draw.number(),
        pull=draw.flag(),
        piece=bool(choice & 32),
        payload=draw.raw(draw.below(100)),
    )
    _exchange(world, party, message, named if choice & 64 else party)


def piece(world: SwitchWorld) -> None:
    """Send a packet in pieces, complete or not."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    lane, size = draw.below(world.config.lanes_max), draw.pick((1, 50, 5000, 40_000))
    packet = whole_packet(_marked(world, party, PacketType.DATA, draw.pick(SIZES)))
    if choice & 3 == 3:
        packet = packet[:4] + draw.number().to_bytes(4, "big") + packet[8:]
    for index in range(1 + choice % 64):
        offset = index * size
        if offset >= len(packet):
            break
        party.numbers[lane] = party.numbers.get(lane, 0) + 1
        message = Exchange(
            attachment_id=party.identity,
            epoch=party.epoch,
            generation=party.generation,
            lane=lane,
            number=party.numbers[lane],
            serial_received=party.serials.get(lane, 0),
            hold_ms=0,
            answer_bytes_max=1 << 20,
            piece_offset=offset,
            piece=True,
            payload=packet[offset : offset + size],
        )
        _exchange(world, party, message)


# packets, which leave with the party's next exchange


def _marked(world: SwitchWorld, party: Party, kind: int, size: int) -> Packet:
    draw = world.draw
    source, destination = _own_id(draw, party), _peer_id(draw, party)
    payload = MARK.pack(b"mark", party.number, source, destination).ljust(size, b"x")
    return Packet(kind, source, destination, _sequence(draw), payload, draw.below(3))


def data(world: SwitchWorld) -> None:
    """Send DATA, on routes that exist or not."""
    party, size, count = _party(world), world.draw.pick(SIZES), 1 + world.draw.below(4)
    packet = _marked(world, party, PacketType.DATA, size)
    for number in range(count):
        packet.sequence = (packet.sequence + number) % 2**32
        party.outbox.append(whole_packet(packet))


def control(world: SwitchWorld) -> None:
    """Send another type of packet, one that is forwarded or one that must not be."""
    draw = world.draw
    party = _party(world)
    kind = draw.pick((5, 6, 6, 6, 7, 9, 10, 12, 13, 14, 15, 16, 17, 18, 99))
    packet = _marked(world, party, kind, draw.pick((13, 20, 100, 1000)))
    for _ in range(1 + draw.below(8)):
        party.outbox.append(whole_packet(packet))


def connect(world: SwitchWorld) -> None:
    """Send CONNECT to an exit or a service: a new one, a repetition, a resume, or a question."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    source, key = 1 + draw.below(12), bytes([draw.below(6)]) * 16
    if party.asked and choice & 1:
        key, source = draw.pick(party.asked)
    target = Target(TargetKind.SERVICE, draw.pick(NAMES))
    if choice & 2:
        target = Target(TargetKind.TCP, draw.pick(NAMES), 80)
    endpoint = draw.pick(world.parties).identity if choice & 12 == 12 else None
    if choice & 32 and endpoint is None:
        target = question_about(target)
    unknown = bytes([99, 0, 250]) + bytes(250) if choice & 16 else b""
    options = Options(user="root", endpoint_id=endpoint, unknown=unknown)
    payload = encode_connect(Connect(key, choice & 12 == 12, target, 65536, options))
    party.asked.append((key, source))
    party.ids.append(source)
    party.outbox.append(whole_packet(Packet(PacketType.CONNECT, source, 0, _sequence(draw), payload, draw.below(3))))


def accept(world: SwitchWorld) -> None:
    """Answer a CONNECT with ACCEPTED or REJECTED: one that the party was given, or one of another party."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    key, source = bytes([draw.below(6)]) * 16, 1 + draw.below(12)
    if party.handed and choice & 7:
        key, source = draw.pick(party.handed)
    own = _own_id(draw, party)
    if choice & 0x70 == 0x70:
        payload = encode_rejected(Rejected(key, 1 + draw.below(14), draw.text(40)))
        party.outbox.append(whole_packet(Packet(PacketType.REJECTED, source, own, 0, payload)))
        return
    party.ids.append(own)
    payload = encode_accepted(Accepted(key, bool(choice & 8), 65536, Options(endpoint_id=party.identity)))
    world.accepted(party, payload, source, own)
    party.outbox.append(whole_packet(Packet(PacketType.ACCEPTED, source, own, _sequence(draw), payload, draw.below(3))))


def listen(world: SwitchWorld) -> None:
    """Send LISTEN_STATE, or OPTION of the attachment."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    kind, payload = PacketType.LISTEN_STATE, b""
    if choice & 7:
        status = ListenStatus.UP if choice & 24 else ListenStatus(draw.below(3))
        name = draw.pick(NAMES)
        party.names.append(name)
        payload = encode_listen_state(ListenState(draw.below(16), status, draw.below(4), name))
    else:
        kind = PacketType.OPTION
        payload = encode_option(Option(draw.below(16), Options(pull_interval_ms=draw.number())))
    party.outbox.append(whole_packet(Packet(kind, 0, 0, 0, payload)))


def wild_packet(world: SwitchWorld) -> None:
    """Send bytes that are packets, or nearly."""
    draw = world.draw
    party, choice, raw = _party(world), draw.byte(), draw.raw(draw.below(120))
    raw = repair_packets(raw) if choice & 3 else raw
    for frame in parse_frames(raw)[0]:
        if frame.type == PacketType.CONNECT:
            party.asked.append((bytes(frame.payload[:16]), frame.source))
            party.ids.append(frame.source)
        elif frame.type == PacketType.LISTEN_STATE:
            party.names += NAMES
        elif frame.type == PacketType.ACCEPTED:
            party.ids.append(frame.destination)
            world.accepted(party, bytes(frame.payload), frame.source, frame.destination)
    party.outbox.append(raw)


def wild_body(world: SwitchWorld) -> None:
    """Send any bytes as a body: as they are, with a right envelope, or zeros up to the limit of a body or beyond it."""
    draw = world.draw
    party, choice = _party(world), draw.byte()
    raw = draw.raw(draw.byte())
    if choice & 1:
        raw = repair_envelope(raw)
        if len(raw) > 60 and raw[5] in (1, 3):
            return  # other operations send a whole ATTACH or EXCHANGE
    elif choice & 2:
        raw = bytes(world.config.body_bytes_max + choice // 64)
    world.request(party, raw)


# links and other operations


def link(world: SwitchWorld) -> None:
    """Open a link, send packets over it, confirm a batch, or close it."""
    draw, switch = world.draw, world.switch
    party, choice = _party(world), draw.byte()
    if choice & 3 == 0 or not party.links:
        world.links += 1
        generation = party.generation if choice & 12 else draw.number()
        names, shares = (party.user, party.identity, party.epoch, generation), bool(choice & 16)
        if switch.link_opened(world.links, *names, world.now, shares=shares):
            party.links.append(world.links)
    else:
        number = draw.pick(party.links)
        if choice & 3 == 1:
            frames = parse_frames(b"".join(party.outbox))[0]
            party.outbox = []
            switch.link_packets(number, frames, world.now)
        elif choice & 3 == 2:
            switch.link_receipted(number, draw.below(5), world.now)
        else:
            party.links.remove(number)
            switch.link_closed(number, world.now)
    world.collect()


def gone(world: SwitchWorld) -> None:
    """End the connection of a held request."""
    if world.open:
        handle = world.draw.pick(list(world.open))
        world.switch.on_gone(handle, world.now)
        del world.open[handle]
        world.collect()


def settings(world: SwitchWorld) -> None:
    """Let the relay drain, or let an endpoint attach again under the next generation."""
    party = _party(world)
    if world.draw.byte() > 240:
        world.switch.drain()
        for _ in world.switch.tell_draining(lambda: world.now):
            world.collect()
    elif party.generation < _GENERATION_MAX:
        party.generation += 1
        attach_as(world, party, "")


def step_time(world: SwitchWorld) -> None:
    """Let time pass, or wait for the next timer."""
    choice = world.draw.byte()
    if choice & 1:
        world.now = max(world.now, world.switch.next_timeout() or 0)
    else:
        world.now += TIMES_US[(choice >> 2) % len(TIMES_US)]
    if choice & 2:
        return  # the caller is late
    world.switch.handle_timeout(world.now)
    world.collect()
    deadline = world.switch.next_timeout()
    assert deadline is None or deadline > world.now, "the next timeout is still due after all timeouts were handled"
