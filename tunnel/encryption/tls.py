"""A TLS 1.3 session without I/O: ciphertext in, plaintext out, and back. It knows nothing of connections or of trust.

Whether the peer's key is the right one is for the caller to decide, by `peer_key`: certificates only carry keys here.
"""

import ssl
from pathlib import Path

from tunnel.encryption.fingerprint import key_fingerprint
from tunnel.wire import Buffer

__all__ = ["AHEAD_BYTES_MAX", "FEED_BYTES_MAX", "TlsFault", "TlsSession", "accepting_context", "offering_context"]

AHEAD_BYTES_MAX = 64 * 1024
"""The most that one call of `receive` decrypts: three whole records, and one of which the first part was fed before."""
FEED_BYTES_MAX = 48 * 1024  # of ciphertext per call of `receive`
_RECORD_BYTES = 16 * 1024  # the largest plaintext of a record (RFC 8446, 5.1)


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

    Raise ssl.SSLError, OSError or ValueError if the file has none, if they do not belong together, or if the key is
    encrypted itself.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, password=_no_password)
    context.num_tickets = 0
    return _restricted(context)


def _no_password() -> str:
    """Refuse an encrypted key: without this function, OpenSSL would ask for a password on the terminal, and wait."""
    raise ValueError("the private key is encrypted with a password, for which nothing can ask here")


def _restricted(context: ssl.SSLContext) -> ssl.SSLContext:
    """Allow TLS 1.3 only, without tickets. (A context made like this one ignores SSLKEYLOGFILE.)"""
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    return context


class TlsSession:
    """One side of a TLS session. `take` returns the bytes for the peer, after every call that may have made some."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self.is_established = False
        self.peer_ended = False  # the peer's close_notify has come: its plaintext is complete
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
        """Take bytes of the peer, at most FEED_BYTES_MAX; return all plaintext that they complete.

        So no whole record ever waits inside, which `end` would lose. Raise TlsFault if a byte is not as the peer sent
        it, and if bytes follow the peer's end.
        """
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()
        return self._decrypt() if self.is_established else b""

    def write(self, data: Buffer) -> None:
        """Encrypt plaintext. Only an established session does."""
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

    def _decrypt(self) -> bytes:
        parts = []
        try:
            while not self.peer_ended:
                part = self._tls.read(_RECORD_BYTES)
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
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _text(error: ssl.SSLError) -> str:
    return (error.reason or "unknown TLS error").lower().replace("_", " ")
