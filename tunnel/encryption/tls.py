"""A TLS 1.3 session without I/O, which only encrypts and decrypts. It knows nothing of connections or of trust.

Whether the peer's key is the right one is for the caller to decide, by `peer_key`: certificates only carry keys here.
"""

import ssl
from pathlib import Path

from tunnel.encryption.fingerprint import key_fingerprint
from tunnel.wire import Buffer

__all__ = [
    "AHEAD_BYTES_MAX",
    "FEED_BYTES_MAX",
    "RECORD_BYTES",
    "TlsFault",
    "TlsSession",
    "accepting_context",
    "offering_context",
]

AHEAD_BYTES_MAX = 64 * 1024  # most plaintext that is decrypted before its reader wants it
FEED_BYTES_MAX = 48 * 1024
"""The most ciphertext per call of `receive` beyond what the reader wants now. It completes at most AHEAD_BYTES_MAX of
plaintext: three whole records, and one of which the first part was fed before."""
RECORD_BYTES = 16 * 1024  # the largest plaintext of a record (RFC 8446, 5.1)
_HEADER_BYTES = 5
_GROUP_RECORDS = 16  # after each group of at most 16 decrypted records, those without data are counted
_WITHOUT_DATA_MAX = 16
"""Largest number of records after the handshake that carry no data, such as KeyUpdate, which `ssl` never sends. Each
costs 0.1 ms and may cause an answer; a peer that reads no answers could keep us busy and fill our memory."""


class TlsFault(Exception):
    """The peer's bytes are not a valid continuation of the session. The text says what was wrong with them."""


def offering_context() -> ssl.SSLContext:
    """Return the context of initiators. It checks no certificate: see `TlsSession.peer_key`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _restricted(context)


def accepting_context(file: Path) -> ssl.SSLContext:
    """Return the context of acceptors, with the key and the certificate in a PEM file.

    Raise ssl.SSLError, OSError or ValueError if one of the two is missing, if they do not belong together, or if the
    key is itself encrypted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, password=_no_password)
    context.num_tickets = 0
    return _restricted(context)


def _no_password() -> str:
    """Refuse an encrypted key: without this function, OpenSSL would ask for a password on the terminal, and wait."""
    raise ValueError("the private key is encrypted with a password, for which nothing can ask here")


def _restricted(context: ssl.SSLContext) -> ssl.SSLContext:
    """Allow TLS 1.3 only, without tickets. (A context that `ssl.SSLContext` makes, as here, ignores SSLKEYLOGFILE.)"""
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    return context


class TlsSession:
    """One side of a TLS session. After each call that may have made bytes for the peer, `take` returns them."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self.is_established = False
        self.peer_ended = False  # the peer's close_notify has come: its plaintext is complete
        self._header = b""  # the part that has come of a record's header
        self._record_rest = 0  # bytes of a record that are still to come
        self._without_data = 0  # number of records after the handshake that carried no data
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)

    def start(self) -> bytes:
        """Begin as the client, and return the ClientHello."""
        self._shake_hands()
        return self.take()

    def take(self) -> bytes:
        """Return the bytes for the peer that were made since the last call."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def receive(self, data: Buffer) -> bytes:
        """Take bytes of the peer, and return all plaintext that they complete.

        So no whole record ever waits inside; `end` would lose it. Raise TlsFault if a byte is not as the peer sent it,
        if bytes follow the peer's end, or if too many records carry no data.
        """
        view = memoryview(data)
        parts: list[bytes] = []
        while len(view):
            size, records = self._next_group(view)
            self._incoming.write(view[:size])
            view = view[size:]
            was_established, before = self.is_established, len(parts)
            if not was_established:
                self._shake_hands()
            if self.is_established:
                self._decrypt(parts)
            if was_established and not self.peer_ended:
                self._without_data += records - (len(parts) - before)  # each part is of a record of its own
                if self._without_data > _WITHOUT_DATA_MAX:
                    raise TlsFault("too many records without data")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _next_group(self, view: memoryview) -> tuple[int, int]:
        """Return how many of these bytes to decrypt at once, and how many records end in them."""
        position = records = 0
        while position < len(view) and records < _GROUP_RECORDS:
            if not self._record_rest and not self._header and position + _HEADER_BYTES <= len(view):
                self._record_rest = view[position + 3] << 8 | view[position + 4]
                position += _HEADER_BYTES
            elif not self._record_rest:
                piece = bytes(view[position : position + _HEADER_BYTES - len(self._header)])
                position += len(piece)
                self._header += piece
                if len(self._header) < _HEADER_BYTES:
                    break
                self._record_rest = int.from_bytes(self._header[3:])
                self._header = b""
            step = min(self._record_rest, len(view) - position)
            self._record_rest -= step
            position += step
            records += not self._record_rest
        return position, records

    def write(self, data: Buffer) -> None:
        """Encrypt plaintext. The session must be established."""
        view = memoryview(data)
        while len(view):
            view = view[self._tls.write(view) :]

    def end(self) -> None:
        """Make a close_notify: nothing is written after it. Reading continues."""
        try:
            self._tls.unwrap()
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return  # the close_notify is made; whether the peer's has come is no matter here
        except ssl.SSLError as error:
            raise TlsFault(_text(error)) from None

    def peer_key(self) -> str:
        """Return the fingerprint of the key that the peer has proved to hold. Raise TlsFault if it is unreadable."""
        certificate = self._tls.getpeercert(binary_form=True)
        found = key_fingerprint(certificate) if certificate else None
        if found is None:
            raise TlsFault("the peer's certificate is malformed")
        return found

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise TlsFault(_text(error)) from None
        self.is_established = True

    def _decrypt(self, parts: list[bytes]) -> None:
        """Add the plaintext of each record that is complete."""
        try:
            while not self.peer_ended:
                part = self._tls.read(RECORD_BYTES)
                if part:
                    parts.append(part)
                else:
                    self.peer_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.peer_ended = True
        except ssl.SSLError as error:
            raise TlsFault(_text(error)) from None
        if self.peer_ended and self._incoming.pending:
            raise TlsFault("bytes follow the end of the encrypted stream")


def _text(error: ssl.SSLError) -> str:
    return (error.reason or "unknown TLS error").lower().replace("_", " ")
