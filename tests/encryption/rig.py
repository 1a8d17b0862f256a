"""Two endpoints on a virtual clock, with an encrypted connection between them."""

import atexit
import functools
import shutil
import ssl
import tempfile
from pathlib import Path

from tests.core.pair import SERVICE, Pair, Side
from tunnel.core import Connection, Event, Lost, Writable
from tunnel.core.events import Closed, Connected, PeerFinished, Readable
from tunnel.encryption.connection import EncryptedConnection, JudgeKey
from tunnel.encryption.keys import KeyFile
from tunnel.encryption.tls import TlsSession, offering_context
from tunnel.errors import TunnelError
from tunnel.wire import Packet

__all__ = ["CONTEXT", "Encrypted", "Party", "another_key", "key", "key_file", "opened", "sessions"]

CONTEXT = offering_context()


@functools.cache
def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="tunnel-keys-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@functools.cache
def _key(name: str) -> KeyFile:
    return KeyFile(_directory() / f"{name}.pem", make=True)


def key() -> KeyFile:
    """Return the acceptor's key."""
    return _key("key")


def another_key() -> KeyFile:
    """Return a key of another machine."""
    return _key("another")


def key_file() -> str:
    """Return the path of the acceptor's key."""
    return str(key().path)


def sessions(context: ssl.SSLContext | None = None) -> tuple[TlsSession, TlsSession]:
    """Return two established sessions."""
    client = TlsSession(CONTEXT, server_side=False)
    server = TlsSession(context or key().context, server_side=True)
    server.receive(client.start())
    client.receive(server.take())
    server.receive(client.take())
    assert client.is_established
    assert server.is_established
    assert client.peer_key() == key_fingerprint_of(context)
    return client, server


def key_fingerprint_of(context: ssl.SSLContext | None) -> str:
    return key().fingerprint if context in (None, key().context) else another_key().fingerprint


class Party:
    """One end: what a transport does with an encrypted connection, and what its application has learned."""

    def __init__(self, pair: Pair, side: Side, connection: Connection, tls: TlsSession, judge: JudgeKey | None) -> None:
        self.pair = pair
        self.side = side
        self.stream = EncryptedConnection(connection, tls, judge)
        self.received = bytearray()
        self.events: list[Event] = []
        self.is_reading = True
        self.to_write = memoryview(b"")
        self.finish_after = False
        self.read_bytes = 1 << 18

    def step(self) -> None:
        """Handle the events that have come, read and write."""
        while self.side.events:
            for event in self.stream.translate(self.side.events.pop(0), self.pair.now):
                self._handle(event)
            self._move()

    def write(self, data: bytes, *, finish: bool = False) -> None:
        self.to_write = memoryview(bytes(self.to_write) + data)
        self.finish_after = finish
        self._move()

    def finish(self) -> None:
        self.stream.finish(self.pair.now)

    def resume(self) -> None:
        self.is_reading = True
        self._move()

    @property
    def is_over(self) -> bool:
        return any(isinstance(event, Closed | Lost) for event in self.events)

    @property
    def saw_end(self) -> bool:
        return any(isinstance(event, PeerFinished) for event in self.events)

    @property
    def is_open(self) -> bool:
        return any(isinstance(event, Connected) for event in self.events)

    @property
    def error(self) -> TunnelError | None:
        return self.stream.failure

    @property
    def last(self) -> Event:
        return self.events[-1]

    def _handle(self, event: Event) -> None:
        assert not self.is_over, f"{event} after the last event"
        assert self.is_open or not isinstance(event, Readable | Writable | PeerFinished)
        self.events.append(event)

    def _move(self) -> None:
        now = self.pair.now
        if self.is_over or not self.is_open:
            return
        while self.is_reading and len(data := self.stream.read(self.read_bytes, now)):
            assert len(data) <= self.read_bytes
            self.received += data
        for event in self.stream.take_released():
            self._handle(event)
        if self.is_over:
            return
        if len(self.to_write):
            self.to_write = self.to_write[self.stream.write(self.to_write, now) :]
        if self.finish_after and not len(self.to_write):
            self.finish_after = False
            self.stream.finish(now)


class Encrypted:
    """A pair with one connection, whose initiator and acceptor have just begun to encrypt."""

    def __init__(
        self,
        *,
        judge: JudgeKey = lambda key: None,
        context: ssl.SSLContext | None = None,
        begin: bool = True,
        seed: int = 0,
    ) -> None:
        self.pair = Pair(seed=seed)
        ours, theirs = self.pair.open(SERVICE)
        client = TlsSession(CONTEXT, server_side=False)
        hello = client.start()
        server = TlsSession(context or key().context, server_side=True)
        self.a = Party(self.pair, self.pair.a, ours, client, judge)
        self.b = Party(self.pair, self.pair.b, theirs, server, None)
        self.parties = (self.a, self.b)
        self.pair.after_step = self.step
        for side in self.pair.sides:
            self._act_at_once(side)
        if begin:
            self.b.stream.begin(hello, self.pair.now)
            self.touch()

    def step(self) -> None:
        for party in self.parties:
            party.step()

    def _act_at_once(self, side: Side) -> None:
        """As the driver does, let the parties act on each event before the endpoint sends its answer."""
        receive = side.endpoint.receive_packets

        def received(packets: list[Packet], now: int) -> None:
            receive(packets, now)
            while (event := side.endpoint.poll_event()) is not None:
                side.events.append(event)
                self.step()

        side.endpoint.receive_packets = received  # type: ignore[method-assign]

    def touch(self) -> None:
        """Let the endpoints send what the parties have written."""
        for side in self.pair.sides:
            for connection in side.endpoint.connections.values():
                side.endpoint.touch(connection)

    def settle(self) -> None:
        """Run until nothing moves."""
        self.touch()
        self.pair.settle()
        for _ in range(3):
            self.step()
            self.pair.settle()

    def run_until_over(self) -> None:
        self.pair.run_until(lambda: self.a.is_over and self.b.is_over)

    def tamper(self, change: object) -> None:
        """Change each packet on the way, or drop it: `change(side, packet)` returns True to lose it."""

        def lose(side: Side, packet: Packet) -> bool:
            return bool(change(side, packet))  # type: ignore[operator]

        self.pair.lose = lose


def opened() -> Encrypted:
    """Return a pair whose handshake has ended."""
    both = Encrypted()
    both.settle()
    assert both.a.is_open
    assert both.b.is_open
    return both
