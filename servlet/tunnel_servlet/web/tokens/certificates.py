"""The certificates that clients have shown: TLS has checked that an authority of the relay signed them."""

import hashlib
import ssl
from collections.abc import Callable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from aiohttp import web

from tunnel_servlet.access.certificates import FINGERPRINT, names_in
from tunnel_servlet.access.tokens import Identity

__all__ = ["Certificate", "CertificateUsers", "Certificates"]


class Certificate(NamedTuple):
    """The parts of a client's certificate that the relay looks at."""

    names: tuple[str, ...]
    expires_s: int  # the time from which it is not valid, in seconds since the epoch

    @property
    def key_id(self) -> str:
        """An id for logs, from the fingerprint."""
        return f"cert-{self.names[-1].removeprefix(f'{FINGERPRINT}:')[:16]}"


class Certificates:
    """Reads the certificate of each connection once."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[object, Certificate | None] = WeakKeyDictionary()

    def shown(self, request: web.Request) -> Certificate | None:
        """Return the certificate that the client of this request has shown in TLS; None if it has shown none."""
        connection = request.protocol
        if connection not in self._known:
            self._known[connection] = _read(request)
        return self._known[connection]


class CertificateUsers:
    """The users who have proved by a certificate who they are, as long as such a certificate is valid.

    Each certificate is kept, and not only the latest date: the rules may take one of them from the user.
    """

    def __init__(self) -> None:
        self._shown: dict[str, dict[Identity, None]] = {}

    def add(self, identity: Identity) -> None:
        """Note that the user has shown this certificate, which is valid."""
        self._shown.setdefault(identity.user, {})[identity] = None

    def is_present(self, user: str, now_s: float) -> bool:
        """Whether a certificate that the user has shown is valid."""
        return any(identity.expires_s > now_s for identity in self._shown.get(user, ()))

    def drop_expired(self, now_s: float) -> list[str]:
        """Forget the certificates that have expired. Return the users who have no other."""
        expired = [one for shown in self._shown.values() for one in shown if one.expires_s <= now_s]
        for identity in expired:
            self._drop(identity)
        return sorted({identity.user for identity in expired} - self._shown.keys())

    def drop_invalid(self, why_ended: Callable[[Identity], str]) -> Iterator[None]:
        """Forget the certificates that the rules have taken from their users, in steps."""
        for identity in [one for shown in self._shown.values() for one in shown]:
            if why_ended(identity):
                self._drop(identity)
            yield

    def _drop(self, identity: Identity) -> None:
        shown = self._shown.get(identity.user, {})
        shown.pop(identity, None)
        if not shown:
            self._shown.pop(identity.user, None)


def _read(request: web.Request) -> Certificate | None:
    tls = request.get_extra_info("ssl_object")
    found = request.get_extra_info("peercert")
    if tls is None or not found:
        return None
    digest = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
    return Certificate(names_in(found, digest), int(ssl.cert_time_to_seconds(found["notAfter"])))
