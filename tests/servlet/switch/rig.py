"""Scenes of the switch: several exits, exits that leave, and a review of what exists after a change of the rules."""

from __future__ import annotations

from typing import Any

from tests.servlet.support import REPORTS, SECOND, Peer, Relay, accepted, connect, data, key, kinds, option
from tunnel.wire import (
    AbortReason,
    Accepted,
    Options,
    Packet,
    PacketType,
    Target,
    decode_abort,
    encode_accepted,
    inline_exit_id,
)
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.switch.decisions import Decision, SeparateExits
from tunnel_servlet.switch.review import Ended

__all__ = [
    "ALL",
    "LEAVING",
    "SILENT",
    "Expected",
    "Rules",
    "Scene",
    "aborted",
    "denied",
    "encrypted",
    "got",
    "inline_of",
    "reviewed",
    "scene",
    "separate",
]


class Expected(SeparateExits):
    """Rules that allow separate exits, and the news of them."""

    def __init__(self, *, may_come: bool = True) -> None:
        self.are_allowed = may_come
        self.news: list[str] = []

    def may_come(self) -> bool:
        return self.are_allowed

    def took_over(self, user: str, name: str) -> None:
        self.news.append(f"{user}/{name} took over")

    def on_last_left(self) -> None:
        self.news.append("left")

    def silent(self, user: str, name: str) -> None:
        self.news.append(f"{user}/{name} is silent")


def inline_of(relay: Relay) -> Peer:
    identity = inline_exit_id(relay.switch.epoch)
    return Peer(relay, "relay:exit", 90, "inline", is_exit=True, own_identity=identity).attached()


def separate(relay: Relay, seed: int = 2, name: str = "exit") -> Peer:
    return Peer(relay, "exits", seed, name, is_exit=True).attached()


def got(*exits: Peer) -> list[list[int]]:
    """Return the sources of the CONNECTs that each exit has got since the last call."""
    return [[packet.source for packet in one.push() if packet.type == PacketType.CONNECT] for one in exits]


ALL = {
    "ann": Grant(connect=(parse_rule("db.internal:5432"), parse_rule("web:80")), services=("reports",)),
    "bob": Grant(connect=(parse_rule("db.internal:5432"),), services=("reports",)),
    "rita": Grant(listen=("reports", "news")),
    "exits": Grant(exit=True),
}


class Rules:
    """Grants and users that can be replaced while the relay runs."""

    def __init__(self) -> None:
        self.table = GrantTable(ALL)
        self.users = set(ALL)

    def has_user(self, user: str) -> bool:
        return user in self.users

    def is_exit(self, user: str) -> bool:
        return self.table.is_exit(user)

    def authorise(self, user: str, target: Target) -> Decision:
        return self.table.authorise(user, target)

    def may_listen(self, user: str, name: str) -> bool:
        return self.table.may_listen(user, name)

    def may_share(self, user: str, name: str) -> bool:
        return self.table.may_share(user, name)


def reviewed(relay: Relay, rules: Rules) -> list[Ended]:
    """Check everything that is open against these rules. The switch checks its invariants after each step."""
    ended = []
    for one in relay.switch.review(rules, lambda: relay.now):
        relay.settle()
        ended += [one] if one is not None else []
    relay.settle()
    return ended


class Scene:
    """A relay with two clients, an exit and a service, whose rules can change."""

    def __init__(self) -> None:
        self.rules = Rules()
        rules = self.rules
        self.relay = Relay(authorise=rules.authorise, may_listen=rules.may_listen, may_share=rules.may_share)
        self.ann, self.bob, self.rita = (
            Peer(self.relay, user, seed).attached() for seed, user in enumerate(("ann", "bob", "rita"), 1)
        )
        self.exit = Peer(self.relay, "exits", 4, is_exit=True).attached()
        self.exit.push()
        assert self.rita.listen() == []

    def change(self, **grants: Grant) -> list[Ended]:
        """Replace the grants of some users."""
        self.rules.table = GrantTable({**ALL, **grants})
        return self.apply()

    def revoke(self, user: str) -> list[Ended]:
        """Revoke all tokens of a user."""
        self.rules.users.discard(user)
        return self.apply()

    def apply(self) -> list[Ended]:
        return reviewed(self.relay, self.rules)

    def serve(self, client: Peer, initiator: int, acceptor: int) -> None:
        """Bind a route from the client to the service."""
        client.push(connect(initiator, target=REPORTS))
        assert kinds(self.rita.push()) == ["CONNECT"]
        self.rita.push(accepted(initiator, acceptor))
        assert kinds(client.push()) == ["ACCEPTED"]

    def still_carries(self, client: Peer, acceptor: Peer, initiator: int, accepting: int, sequence: int = 101) -> bool:
        """Send data both ways on a route, and return whether it arrives."""
        assert client.push(data(initiator, accepting, sequence)) == []
        there = [packet for packet in acceptor.push() if packet.type == PacketType.DATA]
        acceptor.push(data(accepting, initiator, 501 + sequence))
        back = [packet for packet in client.push() if packet.type == PacketType.DATA]
        return len(there) == len(back) == 1


def denied(packets: list[Packet]) -> dict[tuple[int, int], str]:
    """Return the ids and texts of the ABORTs among the packets. Each must have the reason *denied by a rule*."""
    found = {}
    for packet in packets:
        if packet.type == PacketType.ABORT:
            abort = decode_abort(packet.payload)
            assert abort is not None
            assert abort.reason == AbortReason.DENIED
            found[packet.source, packet.destination] = abort.text
    return found


SILENT = 5 * SECOND
LEAVING = option(1, leaving=True)


def scene(**settings: Any) -> tuple[Relay, Expected, Peer, Peer, Peer]:
    """Return a relay, what it says of its exits, its inline exit, a separate one, and a client."""
    heard = Expected()
    relay = Relay(separate_exits=heard, **settings)
    inline, other = inline_of(relay), separate(relay)
    return relay, heard, inline, other, Peer(relay).attached()


def aborted(packets: list[Packet]) -> AbortReason:
    """Return the reason of an ABORT, which must be the only packet."""
    (packet,) = packets
    assert packet.type == PacketType.ABORT
    found = decode_abort(packet.payload)
    assert found is not None
    return AbortReason(found.reason)


def encrypted(initiator: int, own: int) -> Packet:
    """The ACCEPTED of an exit that encrypts the connection."""
    payload = encode_accepted(Accepted(key(initiator), False, 1 << 16, Options(encryption=b"")))
    return Packet(PacketType.ACCEPTED, initiator, own, 500, payload)
