"""Applications on encrypted streams, with TLS between application and connection, as `tunnel.streams.transport` has it.

A seed repeats its run although TLS draws its own random bytes, since no size and no time depends on them: the key is of
Ed25519, whose signatures all have the same length, and its certificate has a fixed serial number.
"""

from __future__ import annotations

import functools
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tests.sim.violation import Violation
from tests.sim.workload import Host, Party, Stream
from tunnel.core import Connected, Connection, Event
from tunnel.encryption.connection import EncryptedConnection
from tunnel.encryption.tls import TlsSession, accepting_context, offering_context

__all__ = ["EncryptedParty", "offer", "take_up"]


class EncryptedParty(Party):
    """A party whose bytes pass through TLS. Its connection carries ciphertext."""

    def __init__(self, host: Host, stream: Stream, is_initiator: bool, connection: Connection, tls: TlsSession) -> None:
        super().__init__(host, stream, is_initiator, connection)
        judge = (lambda key: None) if is_initiator else None
        self.encrypted = EncryptedConnection(connection, tls, judge)
        self.channel = self.encrypted

    def handle(self, event: Event) -> None:
        """Handle an event of the endpoint about this connection."""
        if isinstance(event, Connected) and self.is_initiator and not self.connection.handshake.is_encrypted:
            raise Violation(f"{self}: its peer has accepted it in clear")
        for shown in self.encrypted.translate(event, self.host.now_us):
            super().handle(shown)
        self._show_released()

    def act(self) -> None:
        """Read, write and end as far as the flows allow now."""
        super().act()
        self._show_released()

    def strike_midway(self) -> None:
        """End the stream in its middle, by a close or an abort, as its scenario says."""
        super().strike_midway()
        self._show_released()

    def _show_released(self) -> None:
        """Handle the events that had to wait until the application had read everything."""
        while self.outcome is None and (events := self.encrypted.take_released()):
            for event in events:
                super().handle(event)


def offer() -> tuple[TlsSession, bytes]:
    """Return the session of an initiator, and its ClientHello."""
    tls = TlsSession(_offering(), server_side=False)
    return tls, tls.start()


def take_up() -> TlsSession:
    """Return the session of an acceptor."""
    return TlsSession(_accepting(), server_side=True)


@functools.cache
def _offering() -> ssl.SSLContext:
    return offering_context()


@functools.cache
def _accepting() -> ssl.SSLContext:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tunnel")])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .sign(key, None)
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "key.pem"
        file.write_bytes(private + certificate.public_bytes(encoding))
        return accepting_context(file)
