"""Examines the certificate that a relay, or a device in its place, shows: for `tunnel doctor`."""

import ssl
from typing import Any

import aiohttp

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.dialing.failures import Failure, explain
from tunnel.carriers.probes.probe import ProbeError

__all__ = ["issuer_of"]


async def issuer_of(dialing: Dialing) -> str:
    """Return the issuer of the server's certificate, trusted or not. Raise ProbeError if there is no certificate."""
    trusting = _context()
    trusting.verify_mode = ssl.CERT_NONE
    raw = (await _shown(dialing, trusting)).getpeercert(binary_form=True) or b""
    # Python decodes only a certificate that was verified, so the second connection trusts this very certificate.
    anchored = _context()
    anchored.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        anchored.load_verify_locations(cadata=raw)
        certificate = (await _shown(dialing, anchored)).getpeercert() or {}
    except (ProbeError, ssl.SSLError):
        return "an unknown issuer"
    parts: Any = certificate.get("issuer", ())
    issuer = {key: value for part in parts for key, value in part}
    names = [issuer[key] for key in ("commonName", "organizationName") if issuer.get(key)]
    return ", ".join(dict.fromkeys(names)) or "an issuer without a name"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return context


async def _shown(dialing: Dialing, context: ssl.SSLContext) -> ssl.SSLObject:
    """Connect to the relay's address and return the TLS object after the handshake."""
    seen: list[ssl.SSLObject] = []

    class Seen(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            seen.append(self)

    context.sslobject_class = Seen
    kept, dialing.tls = dialing.tls, context
    try:
        async with (
            dialing.session() as session,
            session.get(
                dialing.url("link"),
                headers={"Accept-Encoding": "identity"},  # no token: the server is not authenticated
                allow_redirects=False,
                proxy=dialing.proxy,
                proxy_headers=dialing.proxy_headers or None,
            ),
        ):
            pass
    except (aiohttp.ClientError, OSError) as error:
        if not seen:
            raise ProbeError(explain(error, dialing.base)) from error
    finally:
        dialing.tls = kept
    if not seen:
        raise ProbeError(Failure("tls", "no TLS handshake took place", "check that the URL starts with https://"))
    return seen[-1]
