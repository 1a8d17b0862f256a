"""A connection with TLS inside: it has a connection's methods, and stands between a transport of `tunnel.streams` and
the real connection.

The owner passes each event of the connection to `translate` and acts on the events that come back. After every call of
`read`, `close` or `abort`, `take_released` may return more events. `Connected` means here that the stream is encrypted
with a key that was accepted, and at the acceptor also that it is bound to the CONNECT that opened it. Before that,
nothing that the other application wrote is shown, and nothing that our application writes is sent.
"""

from collections.abc import Callable

from msgspec.structs import replace

from tunnel.core import (
    Closed,
    Connected,
    Connection,
    ConnectionStats,
    Event,
    LocalProtocolError,
    Lost,
    LostReason,
    PeerClosed,
    PeerClosedError,
    PeerFinished,
    Readable,
    State,
    Writable,
)
from tunnel.core.connection.base import ConnectionIdentity
from tunnel.core.constants import PACKET_PAYLOAD_MAX
from tunnel.encryption.binding import VERDICT_SAME, binding_of
from tunnel.encryption.tls import FEED_BYTES_MAX, RECORD_BYTES, TlsFault, TlsSession
from tunnel.errors import IntegrityError, LostError, TunnelError
from tunnel.wire import AbortReason, Buffer

__all__ = ["STREAM_BYTES_MAX", "EncryptedConnection", "JudgeKey"]

STREAM_BYTES_MAX = 256 * 1024**3
"""The most ciphertext in one direction. AES-GCM must not protect more than 2**24.5 whole records with one key
(RFC 8446, 5.5), and `ssl` cannot change the key."""
_CHUNK_BYTES = PACKET_PAYLOAD_MAX  # the most plaintext that is encrypted at once: as much as a full packet holds
_ENDED = (State.PEER_CLOSED, State.DRAIN, State.CLOSED)
_TRUNCATED = "the encrypted stream was cut before its end"

JudgeKey = Callable[[str], TunnelError | None]
"""Takes the key of the acceptor. Returns None if it is accepted, else the error with which the stream ends."""


class EncryptedConnection:
    """A connection whose stream is encrypted, at its initiator (with `judge`) or at its acceptor (without).

    One thing because its state is two counts of the same bytes, before and after encryption: whether an end may be
    passed on, or what was lost with it, is known from both at once.
    """

    def __init__(
        self, connection: Connection, tls: TlsSession, judge: JudgeKey | None = None, label: str = "the stream"
    ) -> None:
        self.id = connection.id
        self.failure: TunnelError | None = None  # why this layer ended the connection
        self.peer_key = ""  # the fingerprint of the acceptor's key, once an initiator has accepted it; else empty
        self.is_ready = False  # whether the application may write
        self._connection = connection
        self._tls = tls
        self._judge = judge
        self._label = label  # for people, in errors
        identity: ConnectionIdentity = connection.identity
        binding = binding_of(identity.target, identity.route_key)
        self._binding = binding  # the first bytes that the initiator sends
        self._awaited = VERDICT_SAME if judge is not None else binding  # bytes that must still come first
        self._plain: Buffer = b""  # decrypted bytes that were not read
        self._pending: Buffer = b""  # encrypted bytes that the connection has not taken
        self._made_bytes = self._taken_bytes = 0  # of ciphertext: made, and read from the connection
        self._written_bytes = self._read_bytes = 0  # of plaintext, by the application
        self._data_end = 0  # where in the ciphertext the last plaintext of the application ends
        self._write_refused = False
        self._finishing = self._closing = False  # the application has called finish() or close()
        self._tls_ended = self._end_passed = False  # the close_notify was made; the end was passed on to the connection
        self._held: list[Event] = []  # events of an end, which the reader must not see before it has read everything

    # starting

    def begin(self, client_hello: Buffer, now: int) -> None:
        """Answer the initiator's ClientHello. Call this at the acceptor, right after `accept`."""
        self._take_in(client_hello, now)

    @property
    def is_verified(self) -> bool:
        """Whether the peer's binding or verdict has come, which shows that the peer has the same CONNECT as we have."""
        return self.is_ready and not self._awaited

    def give_up(self, text: str, now: int) -> None:
        """End the connection because the handshake takes too long. No effect once `is_ready` is true."""
        if not self.is_ready and self.failure is None:
            self._fail(LostError(f"{self._label}: {text}", LostReason.TIMEOUT), now, AbortReason.USER_TIMEOUT, text)

    # commands

    @property
    def state(self) -> State:
        """The state of the connection."""
        return self._connection.state

    @property
    def unacknowledged_bytes(self) -> int:
        """The number of bytes that were written and not yet acknowledged, as ciphertext."""
        return self._connection.unacknowledged_bytes + len(self._pending)

    def snapshot(self) -> ConnectionStats:
        """Return the counters of the connection.

        `bytes_written`, `bytes_acknowledged` and `bytes_delivered` count the application's plaintext. While bytes are
        unacknowledged, `bytes_acknowledged` is an estimate, because the peer acknowledges ciphertext.
        """
        stats = self._connection.snapshot()
        acknowledged, written = stats.bytes_acknowledged, self._written_bytes
        if acknowledged < self._data_end:
            written = written * acknowledged // self._data_end
        return replace(
            stats, bytes_written=self._written_bytes, bytes_acknowledged=written, bytes_delivered=self._read_bytes
        )

    def write(self, data: Buffer, now: int) -> int:
        """Encrypt and write bytes. Return the number taken; if it is less than all, wait for Writable."""
        if self._connection.state in _ENDED:
            raise PeerClosedError("the connection is closed: the peer will not read further data")
        if self._finishing or self._closing:
            raise LocalProtocolError("write() after finish() or close()")
        taken = 0
        view = memoryview(data)
        while taken < len(view):
            if not self.is_ready or self.failure is not None or not self._push(now):
                self._write_refused = True
                break
            # The ciphertext of at most one record has to wait for room in the connection.
            chunk = view[taken : taken + min(_CHUNK_BYTES, max(self._connection.room, RECORD_BYTES))]
            if self._made_bytes + 2 * len(chunk) > STREAM_BYTES_MAX:
                self._fail_by_length(now)
                break
            self._tls.write(chunk)
            taken += len(chunk)
            self._written_bytes += len(chunk)
            self._collect()
            self._data_end = self._made_bytes
        self._push(now)
        return taken

    def flush(self, waiting_bytes: int = 0) -> None:
        """Speed up Flushed, as `Connection.flush` does.

        It has no effect while bytes wait in the transport, since the size of their ciphertext is not known: call it
        again when they have been written.
        """
        if not waiting_bytes:
            self._connection.flush(len(self._pending))

    def read(self, size_max: int, now: int) -> Buffer:
        """Return the next bytes of the stream, at most `size_max`; b"" if there are none now, or at its end."""
        if not self.is_ready or self._closing:
            return b""
        self._pull(size_max, now)
        data, self._plain = self._plain[:size_max], self._plain[size_max:]
        self._read_bytes += len(data)
        return data

    def finish(self, now: int) -> None:
        """End this direction after everything written."""
        self._finishing = True
        self._end(now)

    def close(self, now: int) -> None:
        """Deliver everything written, and read nothing more."""
        self._closing = True
        self._plain = b""
        self._held = [event for event in self._held if not isinstance(event, PeerFinished)]
        self._end(now)

    def abort(self, now: int, reason: AbortReason = AbortReason.APPLICATION, text: str = "") -> None:
        """End the connection at once; the peer gets an error with this reason and text."""
        self._plain = self._pending = b""
        is_over = any(isinstance(event, Closed | Lost) for event in self._held)
        self._held = [Lost(self.id, LostReason.ABORTED, "")] if is_over else []
        self._connection.abort(now, reason, text)

    # events

    def translate(self, event: Event, now: int) -> list[Event]:
        """Process an event of the connection; return the events that the owner has to process instead."""
        match event:
            case Connected():
                return []
            case Readable():
                return self._readable(now)
            case Writable():
                return self._writable(now)
            case PeerFinished():
                return self._peer_finished(event, now)
            case PeerClosed():
                self._pending = b""
                return [PeerClosed(self.id, self._junked_bytes())]
            case Closed() | Lost():
                return self._over(event)
        return [event]

    def take_released(self) -> list[Event]:
        """Return the events that waited for the reader, if it has read everything or will read no more."""
        if not self._held or len(self._plain):
            return []
        events, self._held = self._held, []
        return events

    def _readable(self, now: int) -> list[Event]:
        if self.is_ready:
            return [] if self._closing else [Readable(self.id)]
        self._pull(0, now)
        if not self.is_ready:
            return []
        events: list[Event] = [Connected(self.id)]
        if self._write_refused:
            self._write_refused = False
            events.append(Writable(self.id))
        if not self._closing:
            events.append(Readable(self.id))
        self._end(now)
        return events

    def _writable(self, now: int) -> list[Event]:
        if not self._push(now):
            return []
        self._end(now)
        if not self._write_refused or not self.is_ready:
            return []
        self._write_refused = False
        return [Writable(self.id)]

    def _peer_finished(self, event: Event, now: int) -> list[Event]:
        if self.failure is not None or self._closing:
            return []
        if not self._tls.peer_ended:
            self._fail_integrity(_TRUNCATED, now)
            return []
        self._held.append(event)
        return self.take_released()

    def _junked_bytes(self) -> int:
        """Return how many bytes the application has written and the peer has not acknowledged, as ciphertext.

        The verdict and the close_notify do not count: a peer that has closed does not miss them.
        """
        return max(0, self._data_end - self._connection.snapshot().bytes_acknowledged)

    def _over(self, event: Closed | Lost) -> list[Event]:
        if self.failure is not None:
            reason = getattr(self.failure, "reason", LostReason.INTEGRITY)
            return [Lost(self.id, reason, str(self.failure))]
        if isinstance(event, Lost):
            if event.reason is not LostReason.PEER_CLOSED:
                self._held.clear()
                return [event]
            if not self._junked_bytes():
                event = Closed(self.id)
        self._held.append(event)
        return self.take_released()

    # the inner workings

    def _pull(self, wanted_bytes: int, now: int) -> None:
        """Decrypt until there is plaintext to read, or nothing more to decrypt.

        At most `tls.AHEAD_BYTES_MAX` of the plaintext is more than the reader wants now.
        """
        while not len(self._plain) and self.failure is None and not (self.is_ready and self._closing):
            data = self._connection.read(wanted_bytes + FEED_BYTES_MAX, now)
            if not len(data):
                return
            self._take_in(data, now)

    def _take_in(self, data: Buffer, now: int) -> None:
        self._taken_bytes += len(data)
        if self._taken_bytes > STREAM_BYTES_MAX:
            self._fail_by_length(now)
            return
        try:
            plain = self._tls.receive(data)
            if self._judge is not None and self._tls.is_established and not self.is_ready:
                self._judge_key(self._judge, now)
        except TlsFault as fault:
            self._fail_integrity(f"the encrypted stream was altered on the way ({fault})", now)
            return
        if self.failure is None:
            plain = self._without_awaited(plain, now) if self._awaited else plain
            self._plain = b"" if self._closing else plain
            self._push(now)

    def _judge_key(self, judge: JudgeKey, now: int) -> None:
        """Decide at the initiator whether this is the right peer; if so, send the binding."""
        key = self._tls.peer_key()
        error = judge(key)
        if error is not None:
            self._fail(error, now, AbortReason.INTEGRITY, "the initiator does not accept this key")
            return
        self.peer_key = key
        self._tls.write(self._binding)
        self.is_ready = True

    def _without_awaited(self, plain: bytes, now: int) -> bytes:
        """Compare the first bytes with those that must come first, and return the rest."""
        size = min(len(plain), len(self._awaited))
        if plain[:size] != self._awaited[:size]:
            self._fail_integrity("the relay led the connection elsewhere than its initiator asked for", now)
            return b""
        self._awaited = self._awaited[size:]
        if not self._awaited and self._judge is None:
            self._tls.write(VERDICT_SAME)
            self.is_ready = True
        return plain[size:]

    def _collect(self) -> None:
        """Add what the TLS session has made to the bytes that wait for the connection."""
        made = self._tls.take()
        self._made_bytes += len(made)
        self._pending = b"".join((self._pending, made)) if len(self._pending) else made

    def _push(self, now: int) -> bool:
        """Write the ciphertext that waits. Return whether none waits any more."""
        self._collect()
        if self._end_passed:
            self._pending = b""  # an answer to a key update; no reader waits for it
        elif len(self._pending):
            try:
                taken = self._connection.write(self._pending, now)
            except PeerClosedError:
                self._pending = b""  # the event PeerClosed says what was lost
                return True
            self._pending = memoryview(self._pending)[taken:]
        return not len(self._pending)

    def _end(self, now: int) -> None:
        """Pass on an end that was asked for, as soon as all before it has left this layer."""
        if not (self._finishing or self._closing) or not self.is_ready or self.failure is not None:
            return
        if not self._tls_ended:
            self._tls_ended = True
            self._tls.end()
        if not self._push(now):
            return
        self._end_passed = True
        if self._closing:
            self._connection.close(now)
        else:
            self._connection.finish(now)

    def _fail_integrity(self, text: str, now: int) -> None:
        error = IntegrityError(f"{self._label}: {text}: do not use the received data")
        self._fail(error, now, AbortReason.INTEGRITY, text)

    def _fail_by_length(self, now: int) -> None:
        text = f"an encrypted stream ends after {STREAM_BYTES_MAX // 1024**3} GiB in one direction"
        error = LostError(f"{self._label}: {text}: open another connection", LostReason.PROTOCOL)
        self._fail(error, now, AbortReason.PROTOCOL, text)

    def _fail(self, error: TunnelError, now: int, tell: AbortReason, text: str) -> None:
        """End the connection with this error. The peer gets `tell` and `text`, which the relay can read, too."""
        self.failure = error
        self._plain = self._pending = b""
        self._held.clear()
        if self._connection.state is State.DRAIN:
            # The connection has ended here, so only the peer must still learn, by ABORT, that what came is not what it
            # wrote. If its CLOSE has only just been read, the ABORT is in time: no ACK of this CLOSE has left yet.
            self._connection.fail(LostReason.INTEGRITY, tell, now, text)
        else:
            self._connection.abort(now, tell, text)
