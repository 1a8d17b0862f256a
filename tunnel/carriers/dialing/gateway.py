"""What a gateway in front of a relay asks for: headers of its own, a Host header, and a name in TLS.

All of it is part of the requests to the relay, so that it goes where the token goes: never to a proxy that opens a
connection for us (CONNECT), and never to another origin. Values of headers may be secrets. No error quotes them.
"""

import re
from collections.abc import Mapping

import aiohttp
import msgspec
from yarl import URL

from tunnel.ground.relay_options import RelayOptions

__all__ = ["Gateway", "ask_for_name", "make_gateway"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110, 5.6.2
_VALUE = re.compile(r"[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?")  # RFC 9110, 5.5, without obsolete bytes
_AUTHORITY = re.compile(r"[^\s\x00-\x1f\x7f/?#@\\]*[^\s\x00-\x1f\x7f/?#@\\:]")  # host and port, without a user
_OPTIONS = {
    "host": "--hostname NAME or attach(hostname=...)",
    "authorization": "--token-file FILE or attach(token=...), for the relay's token",
}
_OWN = frozenset({"accept-encoding", "cache-control", "expect", "x-endpoint-role"})
_OWN_BEGINNINGS = ("content-", "proxy-", "sec-websocket-", "tunnel-")
_HOP_BY_HOP = frozenset(
    {"connection", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}  # RFC 9110, 7.6.1
)


class Gateway(msgspec.Struct, frozen=True):
    """`headers` to add to every request, Host among them if it is set; the name for TLS, if it is not the URL's."""

    headers: dict[str, str] = {}
    tls_name: str | None = None

    def __repr__(self) -> str:
        return f"Gateway({', '.join(self.headers)}; tls_name={self.tls_name!r})"


def make_gateway(relay: URL, headers: Mapping[str, str], options: RelayOptions) -> Gateway:
    """Return the settings for requests with these headers. Raise ValueError, with advice, if one is wrong.

    The certificate is checked against `sni`, else against `hostname` without its port, else against the URL's host.
    """
    hostname, sni = options.hostname, options.sni
    made: dict[str, str] = {}
    for name, value in headers.items():
        _check(name, value, {each.lower() for each in made})
        made[name] = value
    tls_name = None
    if hostname:
        host = _authority(hostname, "the host name (--hostname)")
        port = "" if host.explicit_port is None else f":{host.explicit_port}"
        made["Host"] = f"{host.host_subcomponent}{port}"
        tls_name = host.raw_host
    if sni:
        if relay.scheme != "https":
            raise ValueError(f"a name for TLS (--sni) is given, but {relay} uses no TLS: write https:// or omit --sni")
        server = _authority(sni, "the name for TLS (--sni)")
        if server.explicit_port is not None:
            raise ValueError(f"the name for TLS (--sni) is {sni!r}: write it without a port")
        tls_name = server.raw_host
    return Gateway(made, tls_name if relay.scheme == "https" else None)


def ask_for_name(name: str) -> aiohttp.ClientMiddlewareType:
    """Return a middleware that asks for this name in TLS, and checks the certificate against it."""

    async def middleware(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        request.server_hostname = name
        return await handler(request)

    return middleware


def _check(name: str, value: str, others: set[str]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("the name of a header has characters that are not allowed there: write 'NAME: VALUE'")
    low = name.lower()
    if low in _OPTIONS:
        raise ValueError(f"the header {name} cannot be given as a header: use {_OPTIONS[low]} instead")
    if low in _OWN or low.startswith(_OWN_BEGINNINGS):
        raise ValueError(f"the header {name} is one that the tunnel sends itself: omit it")
    if low in _HOP_BY_HOP:
        raise ValueError(f"the header {name} concerns a single connection, which the tunnel manages itself: omit it")
    if low in others:
        raise ValueError(f"the header {name} is given twice: give it once, with both values")
    if not _VALUE.fullmatch(value):
        raise ValueError(f"the value of the header {name} is empty, or has letters that are not visible ASCII")


def _authority(text: str, what: str) -> URL:
    form = "write a name such as relay.example"
    if not _AUTHORITY.fullmatch(text):
        raise ValueError(f"{what} is {text!r}, which is not a name: {form}")
    try:
        url = URL(f"https://{text}")
        if url.explicit_port != 0 and url.raw_host:
            return url
    except ValueError as error:
        raise ValueError(f"{what} is {text!r}, which is not a name ({error}): {form}") from None
    raise ValueError(f"{what} is {text!r}, which is not a name: {form}")
