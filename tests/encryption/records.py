"""A client that makes TLS records itself, such as `ssl` never makes, with the secrets of a session of its own."""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tunnel.encryption.tls import TlsSession, offering_context

__all__ = ["APPLICATION_DATA", "KEY_UPDATE", "RecordMaker"]

APPLICATION_DATA = 23  # content types (RFC 8446, 5.1)
_HANDSHAKE = 22
KEY_UPDATE = 24  # handshake type (RFC 8446, 4.6.3)
_HASH = hashlib.sha384  # of TLS_AES_256_GCM_SHA384, which OpenSSL prefers
_KEY_BYTES, _IV_BYTES = 32, 12


class RecordMaker:
    """The client of a session, whose `tls` does the handshake. Afterwards only `record` may make its bytes."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "secrets"
        context = offering_context()
        context.keylog_filename = str(self._log)
        self.tls = TlsSession(context, server_side=False)
        self._secret = b""
        self._sequence = 0

    def begin(self, sequence: int = 0) -> None:
        """Take over from the session, which has written `sequence` records since the handshake."""
        words = [line.split() for line in self._log.read_text().splitlines()]
        (secret,) = [word[2] for word in words if word[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._secret, self._sequence = bytes.fromhex(secret), sequence

    def record(self, data: bytes, kind: int = APPLICATION_DATA, padding: int = 0) -> bytes:
        """Return one record."""
        inner = data + bytes([kind]) + bytes(padding)
        header = b"\x17\x03\x03" + struct.pack("!H", len(inner) + 16)
        nonce = self._sequence.to_bytes(_IV_BYTES)
        nonce = bytes(one ^ other for one, other in zip(self._expand(b"iv", _IV_BYTES), nonce, strict=True))
        self._sequence += 1
        return header + AESGCM(self._expand(b"key", _KEY_BYTES)).encrypt(nonce, inner, header)

    def key_update(self, *, wants_answer: bool) -> bytes:
        """Return a KeyUpdate. The records after it have the next key."""
        made = self.record(bytes([KEY_UPDATE, 0, 0, 1, wants_answer]), _HANDSHAKE)
        self._secret, self._sequence = self._expand(b"traffic upd", _HASH().digest_size), 0
        return made

    def _expand(self, label: bytes, size: int) -> bytes:
        """Return the output of HKDF-Expand-Label (RFC 8446, 7.1)."""
        label = b"tls13 " + label
        info = struct.pack("!HB", size, len(label)) + label + b"\0\x01"
        assert size <= _HASH().digest_size
        return hmac.new(self._secret, info, _HASH).digest()[:size]
