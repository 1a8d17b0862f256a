"""The encryption of an attachment: `trust` decides on the streams that it opens, `key` serves those that it accepts."""

import ssl
from dataclasses import dataclass, field

from tunnel.encryption.decisions import ACCEPTING, Accepting, Mode
from tunnel.encryption.keys import KeyFile
from tunnel.encryption.tls import TlsSession, offering_context
from tunnel.encryption.trust import PeerTrust, TrustSettings
from tunnel.encryption.turns import HandshakeSlot, HandshakeTurns
from tunnel.errors import RefusedError
from tunnel.wire import OFFER_BYTES_MAX, RejectReason, Target

__all__ = ["Encryption", "Offer"]


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of one CONNECT: the session that it begins, the ClientHello, and the judgement of the answer."""

    tls: TlsSession
    client_hello: bytes
    trust: PeerTrust


@dataclass(slots=True)
class Encryption:
    """The settings of one attachment. Without a `key`, it accepts all streams in clear, or none if encryption is
    required."""

    trust: TrustSettings = TrustSettings(Mode.OFF, "")
    key: KeyFile | None = None
    _context: ssl.SSLContext | None = None
    _turns: HandshakeTurns = field(default_factory=HandshakeTurns)

    @property
    def mode(self) -> Mode:
        """The mode, as it was given or as a peer key implies it."""
        return self.trust.mode

    @property
    def asks_services(self) -> bool:
        """Whether the core must ask the attachment about each CONNECT to a service, in place of accepting it."""
        return self.mode is Mode.REQUIRE or (self.mode is Mode.AUTO and self.key is not None)

    def offer(self, target: Target) -> Offer | None:
        """Return the offer to encrypt a new connection; None if the mode is off, or if the offer would be in vain.

        Raise PeerKeyError if the file of known peers cannot be used.
        """
        if self.mode is Mode.OFF:
            return None
        trust = PeerTrust(self.trust, target)
        if not trust.may_offer:
            return None
        if self._context is None:
            self._context = offering_context()
        tls = TlsSession(self._context, server_side=False)
        client_hello = tls.start()
        if len(client_hello) > OFFER_BYTES_MAX:
            raise ValueError(
                f"the TLS library offers {len(client_hello)} bytes, but at most {OFFER_BYTES_MAX} fit a CONNECT: "
                "configure it with fewer groups"
            )
        return Offer(tls, client_hello, trust)

    def take_up(self, offer: bytes, user: str) -> HandshakeSlot | None:
        """Return the handshake for a CONNECT that has come with this offer; None: accept the connection in clear.

        The caller calls `leave` when the handshake has ended, or if it does not accept the connection. Raise
        RefusedError, with the reason for REJECTED, if the connection must not be accepted.
        """
        decision = ACCEPTING[self.mode, bool(offer)]
        if self.key is None:
            decision = Accepting.REFUSE if self.mode is Mode.REQUIRE else Accepting.CLEAR
        if decision is Accepting.REFUSE:
            raise RefusedError(_NO_KEY if self.key is None else _NO_OFFER, RejectReason.DENIED)
        if decision is Accepting.CLEAR:
            return None
        slot = self._turns.enter(offer, user)
        if slot is None:
            raise RefusedError("too many TLS handshakes of this user are unfinished", RejectReason.BUSY)
        return slot

    def session(self) -> TlsSession:
        """Return a new TLS session for the acceptor of a connection. A changed key file takes effect here."""
        if self.key is None:
            raise RuntimeError("an attachment without a key cannot accept encrypted streams")
        return TlsSession(self.key.context, server_side=True)


_NO_OFFER = (
    "only encrypted connections are accepted here, and this one does not offer encryption: update the client or turn "
    "its encryption on, unless something on the way has removed the offer"
)
_NO_KEY = "encryption is required here, but there is no key: the operator must name a key file"
