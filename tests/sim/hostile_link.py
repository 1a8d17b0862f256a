"""A link of a hostile user: its batches arrive at once, and it may give no receipts."""

from __future__ import annotations

from random import Random
from typing import Protocol

from tests.sim.clock import Clock
from tests.sim.randomness import chance
from tests.sim.relay import RelayHost
from tunnel.wire import Packet, attachment_id, batch_end, parse_frames, parse_packets
from tunnel_servlet.access.connections import CountedConnection

__all__ = ["Guest", "HostileLink"]

_BATCH_BYTES = 64 * 1024


class Guest:
    """One attachment of a hostile user."""

    def __init__(self, secret: bytes, name: str = "") -> None:
        self.secret = secret
        self.identity = attachment_id(secret)
        self.name = name
        self.epoch = 0
        self.generation = 1
        self.numbers: dict[int, int] = {}
        self.serials: dict[int, int] = {}
        self.routes: list[tuple[int, int]] = []  # own id and peer id of accepted connections
        self.next_id = 1


class LinkOwner(Protocol):
    """The hostile user, as its links see it."""

    clock: Clock
    relay: RelayHost
    random: Random
    source: str
    user: str
    links: list[HostileLink]

    def take(self, guest: Guest, packets: list[Packet]) -> None: ...


class HostileLink:
    """The relay handles this link as one over TCP: it takes a batch in parts, and charges each part to the user."""

    shares = False

    def __init__(self, owner: LinkOwner, guest: Guest) -> None:
        self.guest = guest
        self._owner = owner
        self._relay = owner.relay
        self._number = 0
        self._front = owner.relay.front
        self._counted: CountedConnection | None = None
        self._reads = chance(owner.random, 0.5)

    def open(self) -> bool:
        """Connect and upgrade. Return whether the relay took the link."""
        guest = self.guest
        self._counted = self._front.open(self._owner.source, self._owner.user, 0)
        if self._counted is None:
            return False
        names = guest.identity, guest.epoch, guest.generation
        self._number = self._relay.link_opened(self, self._owner.user, *names)
        if not self._number:
            self._front.leave(self._counted)
        return bool(self._number)

    def send(self, batch: bytes) -> None:
        """Send a whole batch, except while the relay reads nothing from the user. An empty batch ends the link."""
        relay, user = self._relay, self._owner.user
        if not self._number or relay.front.wait_us(user, relay.now_us):
            return
        if not batch:
            self.close()
            return
        offset, switch = 0, relay.switch
        while offset < len(batch) and self._number:
            end = batch_end(batch, offset, switch.config.packets_per_body_max)
            frames = parse_frames(batch[offset:end])[0]
            switch.link_packets(self._number, frames, relay.now_us)
            relay.front.charge(user, len(frames), end - offset, relay.now_us)
            offset = end
            relay.pump()

    def send_half(self, length: int) -> None:
        """Send a part of a batch of this length. The relay ends the link if that is too much, or after `body_us`."""
        if not self._number or self._counted is None or self._counted.held_bytes:
            return
        if self._counted.hold(length):
            self._owner.clock.after(self._relay.limits.body_us, self.close)
        else:
            self.close()

    def receipt(self, count: int) -> None:
        """Claim to have received this many batches."""
        if self._number:
            self._relay.switch.link_receipted(self._number, count, self._relay.now_us)
            self._relay.pump()

    def close(self) -> None:
        """End the connection."""
        number, self._number = self._number, 0
        self._forget()
        if number:
            self._relay.link_closed(number)

    def _forget(self) -> None:
        if self in self._owner.links:
            self._owner.links.remove(self)
        if self._counted is not None:
            self._front.leave(self._counted)

    # --- RelayLink

    def signalled(self) -> None:
        """Do nothing: `fill_down` fetches whatever waits."""

    def fill_down(self) -> None:
        """Take batches, and give a receipt for each of them, or for none."""
        switch = self._relay.switch
        while self._number and (frames := switch.poll_link(self._number, _BATCH_BYTES, self._relay.now_us)):
            self._owner.take(self.guest, parse_packets(b"".join(frame.data for frame in frames))[0])
            if self._reads:
                switch.link_receipted(self._number, 1, self._relay.now_us)

    def cut_by_relay(self) -> None:
        """The switch has ended the link, or the relay has died."""
        self._number = 0
        self._forget()
