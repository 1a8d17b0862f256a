"""The relay's switch among endpoints of several users, which the fuzzer plays.

Packets that `switch_ops.py` makes up are marked with their sender. Their receiver checks that a CONNECT of one side and
an ACCEPTED of the other have connected it with the sender.
"""

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from tests.fuzz.draw import Draw
from tunnel.wire import (
    HTTP_STATUS,
    Answer,
    Attached,
    Frame,
    PacketType,
    RejectReason,
    Status,
    Target,
    TargetKind,
    asked_about,
    attachment_id,
    decode_accepted,
    decode_connect,
    decode_envelope,
    parse_frames,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo
from tunnel_servlet.switch.model import Listener, Route, ServedAttachment
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.switch.switch import Switch

__all__ = ["FORBIDDEN", "MARK", "NAMES", "Party", "SwitchWorld"]

MARK = struct.Struct("!4sBII")  # magic, number of the sender, source, destination
_MAGIC = b"mark"
FORBIDDEN = "forbidden"
NAMES = ("reports", "backups", "news", FORBIDDEN)
TIMERS_MIN = 256
TIMERS_PER_THING = 8  # heap entries per attachment and route, stale ones included

_FROM_RELAY = (PacketType.DROPPED, PacketType.EDGE, PacketType.LISTEN_STATE)
_ROUTED = (PacketType.DATA, PacketType.ACK, PacketType.PING, PacketType.PONG, PacketType.PROBE, PacketType.SHUTDOWN)


def authorise(user: str, target: Target) -> Decision:
    """Decide who serves the target, a service or an exit; every user may reach all targets but FORBIDDEN."""
    if target.host == FORBIDDEN:
        return Deny(text="no")
    return Hand(HandTo.SERVICE if target.kind is TargetKind.SERVICE else HandTo.EXIT)


def may_listen(user: str, name: str) -> bool:
    """Return whether the user may listen under the name."""
    return name != FORBIDDEN


class Party:
    """One endpoint, as far as the relay can tell."""

    def __init__(self, number: int, user: str, *, is_exit: bool) -> None:
        self.number = number
        self.user = user
        self.is_exit = is_exit
        self.secret = bytes([number + 1]) * 32
        self.identity = attachment_id(self.secret)
        self.generation = 1
        self.epoch = 0
        self.numbers: dict[int, int] = {}  # by lane: number of the newest exchange
        self.serials: dict[int, int] = {}  # by lane: newest serial received
        self.outbox: list[bytes] = []  # packets that leave with the next push, or on a link
        self.asked: list[tuple[bytes, int]] = []  # route key and source of every CONNECT that it has sent
        self.handed: list[tuple[bytes, int]] = []  # route key and source of every CONNECT that it has received
        self.meant: set[tuple[bytes, int]] = set()  # of every CONNECT that the relay has handed to it, received or not
        self.answers: set[tuple[bytes, int, int]] = set()  # route key, source and own id of its ACCEPTEDs
        self.ids: list[int] = []  # ids of its own connections
        self.peers: list[int] = []  # ids of other parties' connections that it has seen
        self.links: list[int] = []
        self.names: list[str] = []  # of services that it has, or perhaps has, announced


def _numbers_in(counts: dict[str, Any]) -> Iterator[int]:
    for value in counts.values():
        if isinstance(value, dict):
            yield from _numbers_in(value)
        else:
            yield value


class SwitchWorld:
    """`open` holds the HTTP exchanges without an answer: handle -> party, lane, and the limit of the answer."""

    def __init__(self, draw: Draw, config: SwitchConfig, random: Random) -> None:
        self.draw = draw
        self.config = config
        self.now = 1_000_000
        self.switch = Switch(config, random, authorise, may_listen=may_listen)
        self._hand = self.switch._routes.hand
        self.switch._routes.hand = self._handed  # type: ignore[method-assign]  # a CONNECT need not ever be received
        users = ("alice", "alice", "bob", "eve", "exit")
        self.parties = [Party(number, user, is_exit=user == "exit") for number, user in enumerate(users)]
        self.open: dict[int, tuple[Party, int, int]] = {}
        self.pairs: set[tuple[int, int, int, int]] = set()  # (party, id, party, id) of sides that may exchange packets
        self.handle = 0
        self.links = 0

    # requests

    def request(
        self, party: Party, body: bytes, lane: int = -1, limit: int = 1 << 32, whose: Party | None = None
    ) -> None:
        """Deliver a body of the party, which is answered now or later. `whose`: the party that the body names."""
        self.handle += 1
        self.open[self.handle] = whose or party, lane, limit
        rest = self.switch.request(self.handle, party.user, body, self.now, is_exit=party.is_exit, in_parts=True)
        while rest is not None and self.switch.go_on(rest, self.now):
            pass
        self.collect()

    def collect(self) -> None:
        """Take the switch's output. When a link takes packets, this can cause more output."""
        self._collect_responses()
        while (link := self.switch.poll_link_ready()) is not None:
            owner = next((party for party in self.parties if link in party.links), None)
            while owner is not None and (frames := self.switch.poll_link(link, 1 << 16, self.now)):
                self._received(owner, frames)
            self._collect_responses()
        while (link := self.switch.poll_link_end()) is not None:
            for party in self.parties:
                party.links = [own for own in party.links if own != link]

    def _collect_responses(self) -> None:
        while (response := self.switch.poll_response()) is not None:
            party, lane, limit = self.open.pop(response.handle)  # KeyError: answered twice, or after it was lost
            self._answered(party, lane, limit, response)

    def _answered(self, party: Party, lane: int, limit: int, response: RelayResponse) -> None:
        body = b"".join(response.body)
        message = decode_envelope(body)
        if isinstance(message, Status):
            assert response.status == HTTP_STATUS[message.code]
            return
        assert response.status == 200
        if isinstance(message, Attached):
            assert message.attachment_id == party.identity
            party.epoch, party.generation = message.epoch, message.generation
            return
        assert isinstance(message, Answer), message
        assert message.lane == lane
        assert len(body) <= max(limit, 16 + 16 + 6 * self.config.lanes_max), f"{len(body)} bytes, {limit} asked for"
        party.serials[lane] = message.serial
        if not message.piece:
            frames, discarded = parse_frames(message.data)
            assert discarded is None
            self._received(party, frames)

    # packets

    def accepted(self, party: Party, payload: bytes, source: int, destination: int) -> None:
        """Record an ACCEPTED of the party. If that CONNECT is handed to it, before or after (all draw from a few keys,
        and guess them), the party and the CONNECT's sender may exchange packets."""
        accepted = decode_accepted(payload)
        if accepted is not None:
            party.answers.add((accepted.route_key, source, destination))
            self._pair(party, accepted.route_key, source)

    def _handed(
        self, route: Route, acceptor: ServedAttachment, listener: Listener | None, now: int
    ) -> RejectReason | None:
        """Let the relay hand on a CONNECT, and check that its receiver may serve it."""
        refused = self._hand(route, acceptor, listener, now)
        if refused is None:
            party = next(party for party in self.parties if party.identity == acceptor.identity)
            if not route.resume:
                name = route.target.host if route.target.kind is TargetKind.SERVICE else None
                assert party.is_exit or name in party.names, f"CONNECT to {route.target} handed to a stranger"
            party.meant.add((route.route_key, route.initiator.own_id))
            self._pair(party, route.route_key, route.initiator.own_id)
        return refused

    def _pair(self, party: Party, route_key: bytes, source: int) -> None:
        """Let the sender of a CONNECT and the party that has accepted it exchange packets, if it was handed to it."""
        if (route_key, source) not in party.meant:
            return
        own_ids = [own for key, asked, own in party.answers if (key, asked) == (route_key, source)]
        for asker in self.parties:
            if (route_key, source) in asker.asked:
                self.pairs.update((asker.number, source, party.number, own) for own in own_ids)
                self.pairs.update((party.number, own, asker.number, source) for own in own_ids)

    def _received(self, party: Party, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.type == PacketType.CONNECT:
                self._received_connect(party, frame)
            elif frame.type == PacketType.ACCEPTED:
                assert frame.source in party.ids, "ACCEPTED for an id that is not the receiver's"
                party.peers.append(frame.destination)
            elif frame.type == PacketType.REJECTED:
                assert frame.source in party.ids, "REJECTED for an id that is not the receiver's"
            elif frame.type not in _FROM_RELAY and (frame.source or frame.destination):
                self._received_routed(party, frame)

    def _received_connect(self, party: Party, frame: Frame) -> None:
        connect = decode_connect(frame.payload)
        assert connect is not None
        named = (connect.route_key, frame.source)
        askers = [asker for asker in self.parties if named in asker.asked and asker.user == connect.options.user]
        assert askers, f"CONNECT of {connect.options.user}, which that user never sent"
        assert connect.target.host != FORBIDDEN, "CONNECT to a forbidden target"
        assert asked_about(connect.target) is None, "a question was handed on"
        assert named in party.meant, "a CONNECT reached a party that it was not handed to"
        party.handed.append(named)
        party.peers.append(frame.source)

    def _received_routed(self, party: Party, frame: Frame) -> None:
        whose = [pair[0] for pair in self.pairs if pair[1:] == (frame.source, party.number, frame.destination)]
        assert whose, f"type {frame.type} from {frame.source} to {frame.destination}, which no CONNECT has connected"
        payload = bytes(frame.payload)
        if len(payload) >= MARK.size and payload[:4] == _MAGIC and frame.type in _ROUTED:
            _, sender, source, _ = MARK.unpack_from(payload)
            assert sender in whose, f"a packet of party {sender} crossed to {party.number}"
            assert source == frame.source, "the packet's source differs from the id that it was sent with"

    # what must hold

    def check(self) -> None:
        """Raise AssertionError for the first promise that does not hold."""
        switch, config = self.switch, self.config
        switch.check_invariants()
        stats = switch.stats()
        assert stats.bytes_held <= config.process_bytes_max
        assert stats.attachments <= config.attachments_max
        assert stats.routes <= config.routes_max
        things = stats.attachments + stats.routes
        assert stats.timers <= TIMERS_MIN + TIMERS_PER_THING * things, f"{stats.timers} timers for {things} things"
        assert set(self.open) == set(switch._held), "a request is neither answered nor held"
        assert stats.parked_pulls == len(switch._held)
        assert min(_numbers_in(msgspec.to_builtins(stats.counters))) >= 0
