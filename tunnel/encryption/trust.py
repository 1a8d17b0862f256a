"""Which keys an initiator accepts: those that `--peer-key` names, or those in `known_peers`, or a new peer's first one.

`PeerTrust` judges one connection. It applies the table in `decisions` and words the errors.
"""

from dataclasses import dataclass, field

from tunnel.encryption.decisions import OPENING, Answer, Mode, Opening
from tunnel.encryption.fingerprint import is_fingerprint
from tunnel.encryption.known_peers import KnownPeers, peer_name
from tunnel.errors import PeerKeyError, TunnelError
from tunnel.system.clock import now_us
from tunnel.wire import Target

__all__ = ["PeerTrust", "TrustSettings", "trust_settings"]


# After a peer has not taken up an offer, it gets no other one for this time: to make one costs a tenth of a connection
# (140 us). The time is short, because the peer may be restarted with a key.
_VAIN_US = 2_000_000
_PEERS_MAX = 1000  # remembered peers


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """The settings of an initiator. With `peer_keys`, the file is neither read nor written."""

    mode: Mode
    relay: str
    peer_keys: tuple[str, ...] = ()
    known_peers: KnownPeers | None = None
    relays: tuple[str, ...] = ()  # those of this endpoint: a key that is known at one of them is known at each
    clear_until_us: dict[tuple[str, str], int] = field(default_factory=dict, compare=False)
    """By relay and peer: until when an offer would be in vain, because the peer has just answered one in clear."""


def trust_settings(
    encryption: str,
    relay: str,
    peer_keys: tuple[str, ...],
    known_peers: KnownPeers | None,
    relays: tuple[str, ...] = (),
) -> TrustSettings:
    """Check and return the settings. Raise ValueError, with advice, if they make no sense."""
    if encryption not in [mode.value for mode in Mode]:
        choices = ", ".join(mode.value for mode in Mode)
        raise ValueError(f"encryption must be one of {choices}, not {encryption!r}")
    for key in peer_keys:
        if not is_fingerprint(key):
            raise ValueError(
                f"{key!r} is not a key: give the line that begins with SHA256:, as `tunnel-relay exit --show-key` "
                "prints it"
            )
    mode = Mode(encryption)
    if peer_keys and mode is Mode.OFF:
        raise ValueError("a peer key requires encryption, but encryption is off: leave one of the two out")
    return TrustSettings(Mode.REQUIRE if peer_keys else mode, relay, peer_keys, known_peers, relays)


class PeerTrust:
    """The judgement of one connection. `is_verified`: the peer's key was known before, and not just taken on trust."""

    def __init__(self, settings: TrustSettings, target: Target) -> None:
        self._settings = settings
        self._peer = peer_name(target)
        self._known: tuple[str, ...] = settings.peer_keys
        self._place = "the configured peer key"
        self.is_verified = False
        if not self._known and settings.known_peers is not None:
            self._learn(settings.known_peers)

    @property
    def may_offer(self) -> bool:
        """Whether to offer encryption. If not, the connection is in clear, as if the peer had not taken up an offer."""
        if self._decide(Answer.CLEAR) is not Opening.GO_ON_CLEAR:
            return True
        return now_us() >= self._settings.clear_until_us.get((self._settings.relay, self._peer), 0)

    def judge_clear(self, *, by_inline_exit: bool = False) -> TunnelError | None:
        """Return the error that ends the connection because the acceptor does not encrypt; None to go on in clear."""
        if self._decide(Answer.CLEAR) is Opening.GO_ON_CLEAR:
            peers = self._settings.clear_until_us
            if len(peers) >= _PEERS_MAX:
                peers.clear()
            peers[self._settings.relay, self._peer] = now_us() + _VAIN_US
            return None
        place = "the setting peer_key (--peer-key)" if self._settings.peer_keys else self._place
        if by_inline_exit:
            keys = ", ".join(self._known)
            wanted = f"{place} lists a key for it ({keys})" if keys else "encryption is required"
            return PeerKeyError(
                f"the connection to {self._who()} would not be encrypted, but {wanted}. The relay's inline exit took "
                "it, which never encrypts: no exit in a process of its own was attached, or none answered. Ask the "
                'operator to start `tunnel-relay exit` with its key, and to set exit = "none" in the relay\'s '
                "configuration"
            )
        if self._known:
            why = (
                f"{place} lists a key for it ({', '.join(self._known)}). Either its operator no longer runs it "
                "with that key: ask the operator to run it with --key"
            )
        else:
            why = "encryption is required. Either its operator runs it without a key: ask the operator to add --key"
        return PeerKeyError(
            f"the connection to {self._who()} would not be encrypted, but {why}; or something on the way has removed "
            "the offer to encrypt"
        )

    def judge_key(self, key: str) -> TunnelError | None:
        """Return the error that ends the connection because the acceptor has this key; None to accept the key."""
        if not self._known:
            answer = Answer.NEW_KEY
        else:
            answer = Answer.SAME_KEY if key in self._known else Answer.OTHER_KEY
        decision = self._decide(answer)
        self.is_verified = decision is Opening.ENCRYPT
        if decision is Opening.REFUSE_KEY:
            return self._changed(key)
        if decision is Opening.TRUST and self._settings.known_peers is not None:
            return self._remember(self._settings.known_peers, key)
        return None

    def _remember(self, file: KnownPeers, key: str) -> TunnelError | None:
        """Take the key on trust, unless another process has seen another key meanwhile."""
        try:
            known = file.remember(self._settings.relay, self._peer, key)
        except ValueError as error:
            return PeerKeyError(f"the key of {self._who()} cannot be remembered: {error}")
        self._known, self._place = known.keys, f"{file.path}, line {known.line}"
        return None if key in known.keys else self._changed(key)

    def _learn(self, file: KnownPeers) -> None:
        relays = self._settings.relays or (self._settings.relay,)
        try:
            known = [found for relay in relays if (found := file.find(relay, self._peer)) is not None]
        except ValueError as error:
            raise PeerKeyError(str(error)) from None
        if known:
            self._known = tuple(dict.fromkeys(key for one in known for key in one.keys))
            self._place = f"{file.path}, line {' and '.join(str(one.line) for one in known)},"

    def _decide(self, answer: Answer) -> Opening:
        return OPENING[self._settings.mode, bool(self._known), answer]

    def _changed(self, key: str) -> PeerKeyError:
        return PeerKeyError(
            f"the key of {self._who()} is {key}, but {self._place} has {', '.join(self._known)}: another machine may "
            "answer in its place. Ask its operator whether the key was changed; if so, put the new key there"
        )

    def _who(self) -> str:
        return f"{self._peer} at {self._settings.relay}"
