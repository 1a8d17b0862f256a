"""Two endpoints in one program, without network and clock: each packet that one sends reaches the other at once.

The core of the tunnel does no I/O. It gets packets and the time from its caller, and returns packets to send.
"""

from random import Random

from tunnel.core import Connection, ConnectRequested, Endpoint, EndpointConfig, Event
from tunnel.wire import PacketType, Target, TargetKind

__all__ = ["CLIENT", "SERVER", "Two"]

CLIENT, SERVER = "client", "server"
_SECOND_US = 1_000_000


class Two:
    """A client and a server. `packets` has, for each packet sent, its sender, type, source, destination and number."""

    def __init__(self) -> None:
        self.now = _SECOND_US
        self.packets: list[tuple[str, PacketType, int, int, int]] = []
        config = EndpointConfig(exit=True)
        self.endpoints = {
            CLIENT: Endpoint(config, Random(1), endpoint_id=b"c" * 16, name=CLIENT),
            SERVER: Endpoint(config, Random(2), endpoint_id=b"s" * 16, name=SERVER),
        }
        self.events: dict[str, list[Event]] = {CLIENT: [], SERVER: []}
        for endpoint in self.endpoints.values():
            endpoint.on_attached(True, 1 << 20, 1 << 30, self.now)
            endpoint.carrier_changed(1, 0, self.now)

    def exchange(self) -> None:
        """Deliver packets in both directions, until neither endpoint wants to send."""
        while any([self._deliver(CLIENT, SERVER), self._deliver(SERVER, CLIENT)]):
            pass

    def _deliver(self, sender: str, receiver: str) -> bool:
        endpoint = self.endpoints[sender]
        batch = endpoint.next_batch(1 << 20, self.now) if endpoint.wants_batch() else None
        if batch is None:
            return False
        for packet in batch.packets:
            kind = PacketType(packet.type)
            self.packets.append((sender, kind, packet.source, packet.destination, packet.sequence))
        endpoint.batch_done(batch.token, True, self.now)
        self.endpoints[receiver].receive_packets(batch.packets, self.now)
        for name, each in self.endpoints.items():
            while (event := each.poll_event()) is not None:
                self.events[name].append(event)
        return True

    def open(self) -> tuple[Connection, Connection]:
        """Open a connection, and return its two ends."""
        target = Target(TargetKind.TCP, "broker", 7676)
        client = self.endpoints[CLIENT].connect(target, self.now)
        self.exchange()
        (asked,) = (event for event in self.events[SERVER] if isinstance(event, ConnectRequested))
        self.endpoints[SERVER].accept(asked.connection_id, self.now)
        self.exchange()
        return client, self.endpoints[SERVER].connections[asked.connection_id]

    def wait(self, seconds: float) -> None:
        """Let time pass: timers fire, and the packets that they cause are delivered."""
        end = self.now + round(seconds * _SECOND_US)
        while True:
            due = [at for each in self.endpoints.values() if (at := each.next_timeout()) is not None and at <= end]
            if not due:
                break
            self.now = max(self.now, min(due))
            for endpoint in self.endpoints.values():
                endpoint.handle_timeout(self.now)
            self.exchange()
        self.now = end

    def types(self, sender: str) -> list[str]:
        """Return the types of the packets that one endpoint sent, in order and without acknowledgements."""
        return [kind.name for name, kind, *_ in self.packets if name == sender and kind is not PacketType.ACK]
