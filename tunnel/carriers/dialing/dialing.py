"""The settings for HTTP connections to a relay: its URL, our token, the proxy, and the authorities that TLS trusts."""

import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Unpack

import aiohttp
import truststore
from aiohttp.connector import SocketFactoryType
from aiohttp.helpers import is_ip_address
from yarl import URL

from tunnel.carriers.dialing.bounded_responses import bound_responses
from tunnel.carriers.dialing.challenges import Introduction
from tunnel.carriers.dialing.dial_secrets import DialSecrets, SecretsInUse
from tunnel.carriers.dialing.gateway import ask_for_name, make_gateway
from tunnel.carriers.dialing.names import SharedResolver, find
from tunnel.carriers.dialing.proxies import Proxy, choose_proxy
from tunnel.carriers.dialing.proxy_connect import ConnectConnector, introduce
from tunnel.ground.printable import printable
from tunnel.ground.relay_options import RelayKeywords, RelayOptions
from tunnel.system.lookups import LOOKUPS
from tunnel.system.private_files import require_private, require_trusted

__all__ = ["READ_BUFFER_BYTES", "Dialing", "retry_after_us", "server_of", "trust_also"]

_ROLE_HEADER = "X-Endpoint-Role"
_EARLIER_ROLE_HEADER = "Tunnel-Role"  # the only one that earlier relays know
_USER_AGENT = "tunnel/1"
_SECOND_US = 1_000_000
READ_BUFFER_BYTES = 256 * 1024  # reading pauses while more than twice this number of bytes of an answer wait
_KEY_SEEN = "ask for a new certificate if another user may have read the key"
_URL_FORM = "write https://HOST or http://HOST:PORT"
_NEARLY_URL = re.compile(r"(https?):?/+([A-Za-z0-9\[]\S*)")
_HOST_IN_URL = re.compile(r"[A-Za-z0-9.-]+(?::\d+)?(?:/\S*)?")
_IPV6_IN_URL = re.compile(r"://[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:")


class Dialing:
    """The settings that all requests to a relay share. Raise ValueError, with advice, when one is invalid.

    `given` replaces single ones of the `options`, of which those that concern only lanes and connections do nothing.
    """

    def __init__(
        self,
        url: str,
        options: RelayOptions | None = None,
        *,
        is_exit: bool = False,
        **given: Unpack[RelayKeywords],
    ) -> None:
        self._options = options = replace(options or RelayOptions(), **given)
        self.base = _relay_url(url)
        self._is_exit = is_exit
        self._proxy = choose_proxy(self.base, options.proxy)
        self._tls_name = make_gateway(self.base, {}, options).tls_name
        self._secrets = SecretsInUse(self._made(options.token, options.headers or {}, self._proxy))
        is_tls = self.base.scheme == "https"
        self.tls = _tls_context(options.ca, options.cert) if is_tls else None
        if options.hostname and not is_tls and self._proxy is not None:
            raise ValueError(
                f"the host name {options.hostname!r} (--hostname) would not reach {self.base} through the proxy "
                f"{self.proxy}, since proxies replace the Host header of plain HTTP: write https://, or this name in "
                "the URL"
            )
        self._proxy_tls: ssl.SSLContext | None = None
        if self._proxy is not None and self._proxy.url.scheme == "https":
            self._proxy_tls = _tls_context(options.ca, None)  # our certificate is for the relay only
        self.proxy_headers: dict[str, str] = {}
        through = f" through {self.proxy}" if self.proxy is not None else ""
        self.description = f"{self.base}{through}"

    @property
    def proxy(self) -> URL | None:
        """The proxy's URL without user and password; None without a proxy."""
        return self._proxy.url if self._proxy is not None else None

    # secrets

    @property
    def secrets(self) -> DialSecrets:
        """The secrets for the next request."""
        return self._secrets.now

    @property
    def headers(self) -> dict[str, str]:
        """All headers of the next request, except those that depend on its body."""
        return self._secrets.now.headers

    @property
    def gateway_headers(self) -> dict[str, str]:
        """Those of `headers` that a gateway before the relay asks for."""
        return self._secrets.now.gateway_headers

    def other_secrets(self, token: str | None, headers: Mapping[str, str], proxy: str | None) -> DialSecrets:
        """Return secrets for `renew`: another token, other headers, another user and password at the same proxy.

        Raise ValueError, with advice, if one is invalid.
        """
        chosen = choose_proxy(self.base, proxy)
        if (None if chosen is None else chosen.url) != self.proxy:
            raise ValueError("an attachment cannot change its proxy: make a new attachment")
        return self._made(token, headers, chosen)

    def renew(self, secrets: DialSecrets, refused: Callable[[int], None]) -> None:
        """Use other secrets from the next request on, as `SecretsInUse.renew` does."""
        self._secrets.renew(secrets, refused)

    def on_answered(self, sent: DialSecrets, status: int, *, by_relay: bool = False) -> bool:
        """Learn whether secrets are accepted, as in `SecretsInUse.answered`."""
        return self._secrets.on_answered(sent, status, by_relay=by_relay)

    def _made(self, token: str | None, headers: Mapping[str, str], proxy: Proxy | None) -> DialSecrets:
        sent = {
            "Cache-Control": "no-store, no-transform",
            "Accept-Encoding": "identity",
            "User-Agent": _USER_AGENT,
            # The relay refuses an endpoint that wrongly claims to be an exit. An endpoint without an exit handler does
            # not claim it, so the relay sends it no targets, even if its user may be an exit.
            _ROLE_HEADER: "exit" if self._is_exit else "endpoint",
        }
        given = {name.lower() for name in headers}
        if self._is_exit and "user-agent" not in given:  # a path to which we must not be known may refuse this name
            sent[_EARLIER_ROLE_HEADER] = "exit"
        if token is not None:
            if not isinstance(token, str):
                raise TypeError("the token is a str, not bytes: decode it")
            if token != token.strip():
                raise ValueError("the token begins or ends with white space: take it without, as in text.strip()")
            if not token.isascii() or not token.isprintable() or " " in token or not token:
                raise ValueError("the token is empty or has invalid characters: was it copied whole, on one line?")
            sent["Authorization"] = f"Bearer {token}"
        gateway = make_gateway(self.base, headers, self._options)
        if not self._options.insecure_http:
            has_secrets = bool(given - {"user-agent"})
            for what in ("the token",) * (token is not None) + ("the headers for the gateway",) * has_secrets:
                _require_private(what, self.base, None if proxy is None else proxy.url)
        introduction = None
        if proxy is not None:
            where, is_tls = proxy.url, self.base.scheme == "https"
            introduction = Introduction(
                str(where).rstrip("/"), where.host or "", proxy.user, proxy.password, can_talk=is_tls
            )
        own = {name: value for name, value in sent.items() if name.lower() not in given}
        return DialSecrets({**own, **gateway.headers}, gateway.headers, introduction)

    def _user_agent(self) -> str:
        """Return the name under which a proxy sees us: the one that a gateway sees, which is no secret."""
        headers = self._secrets.now.headers
        return next(value for name, value in headers.items() if name.lower() == "user-agent")

    def _introduction(self) -> Introduction:
        introduction = self._secrets.now.introduction
        assert introduction is not None  # only requests through a proxy ask for it
        return introduction

    # connections

    @property
    def _next_hop(self) -> URL:
        """The URL of the host to which connections are opened. A proxy itself looks up the name of the relay."""
        return self.base if self._proxy is None else self._proxy.url

    @property
    def has_name(self) -> bool:
        """Whether the host to which connections are opened has a name, which must be looked up."""
        return not is_ip_address(self._next_hop.host)

    async def find_name(self) -> None:
        """Look up the host to which connections are opened. OSError or UnicodeError on failure."""
        hop = self._next_hop
        await find(hop.host or "", hop.port or 0)

    def doubt_name(self) -> None:
        """Look the host up again before the next connection, since none can be opened to the addresses of before."""
        LOOKUPS.doubt(self._next_hop.host or "")

    @property
    def lookup(self) -> str:
        """For people, how long connections have waited for the addresses of their host; empty if they do not wait."""
        host = self._next_hop.host or ""
        waiting_s = LOOKUPS.waiting_s(host)
        return "" if waiting_s is None else f"looking up {host} has taken {waiting_s:.0f} s"

    def url(self, name: str) -> URL:
        """Return the URL of one of the relay's two resources, exchange and link."""
        return self.base / name

    def session(
        self,
        *,
        reuse: bool = True,
        make_socket: SocketFactoryType | None = None,
        middlewares: tuple[aiohttp.ClientMiddlewareType, ...] = (),
    ) -> aiohttp.ClientSession:
        """Return a new session, without connections. It ignores netrc and the environment, and decompresses nothing.

        Without `reuse` each request gets a connection of its own. `make_socket` makes the sockets, except those for
        CONNECT through a proxy. `middlewares` see each response before aiohttp follows a redirect.
        The session has no headers of its own: aiohttp would send them, and thus the token, to the proxy as well.
        """
        connector: aiohttp.BaseConnector
        if self._tls_name is not None:
            middlewares += (ask_for_name(self._tls_name),)
        if self._proxy is None or self.tls is None:
            tls = self.tls or self._proxy_tls
            connector = aiohttp.TCPConnector(
                limit=0,
                force_close=not reuse,
                ssl=tls if tls is not None else True,
                socket_factory=make_socket,
                resolver=SharedResolver(),
                use_dns_cache=False,
            )
            if self._proxy is not None:
                middlewares += (introduce(self._introduction),)
        else:
            present = (self._introduction, self._user_agent)
            connector = ConnectConnector(self._proxy, *present, self.tls, self._proxy_tls, reuse=reuse)
        bound_responses(connector)
        return aiohttp.ClientSession(
            connector=connector,
            middlewares=middlewares,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            read_bufsize=READ_BUFFER_BYTES,
        )


def _relay_url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as error:
        is_bare = _IPV6_IN_URL.search(text) is not None
        form = "write an IPv6 address in brackets, http://[::1]:8080" if is_bare else _URL_FORM
        raise ValueError(f"{text!r} is not a URL ({error}): {form}") from None
    if url.scheme not in ("http", "https") or not url.host or " " in url.host:
        scheme = "http" if text.startswith(("127.", "localhost")) else "https"
        nearly = _NEARLY_URL.fullmatch(text)
        meant = f"{nearly[1]}://{nearly[2]}" if nearly else f"{scheme}://{text}" if _HOST_IN_URL.fullmatch(text) else ""
        guess = f"; did you mean {meant!r}?" if meant else ""
        raise ValueError(f"{text!r} is not a relay URL: {_URL_FORM}{guess}")
    if url.user is not None or url.password is not None:
        raise ValueError("a relay URL must not contain user and password: remove them and give the token instead")
    if url.query_string or url.fragment:
        raise ValueError("a relay URL must not have a query or a fragment: remove the part after ? or #")
    return url


def _require_private(what: str, relay: URL, proxy: URL | None) -> None:
    """Raise ValueError if others could read the secret on its way: neither TLS nor this machine protects it."""
    if relay.scheme == "https":
        return
    if not _is_here(relay):
        where = f"to {relay}"
    elif proxy is not None and proxy.scheme != "https" and not _is_here(proxy):
        where = f"through the proxy {proxy}"
    else:
        return
    raise ValueError(
        f"{what} would go {where} unencrypted, and everybody on the way could use that: write https://, or allow it "
        "with --insecure-http, TUNNEL_INSECURE_HTTP=1 or attach(insecure_http=True)"
    )


def _is_here(url: URL) -> bool:
    """Whether the URL always means this machine."""
    host = (url.host or "").rstrip(".")
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _tls_context(ca: str | None, cert: str | Sequence[str] | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in `ca`, else those that the operating system trusts."""
    context: ssl.SSLContext
    try:
        if ca is not None:
            require_trusted(Path(ca))
        if ca is None:
            context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        elif os.path.isdir(ca):
            context = ssl.create_default_context(capath=ca)
        else:
            context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise _unusable_ca(ca, error) from None
    if cert is not None:
        files = [cert] if isinstance(cert, str) else list(cert)
        try:
            require_private(Path(files[1 if len(files) > 1 else 0]), if_seen=_KEY_SEEN)
            context.load_cert_chain(*files)
        except (OSError, ValueError, TypeError) as error:
            text = f"cert={cert!r} cannot be used: {error}: name a PEM file with certificate and key, or two files"
            raise ValueError(text) from None
    return context


def trust_also(ca: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities in `ca`, and those that the operating system trusts."""
    context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        require_trusted(Path(ca))
        context.load_verify_locations(**({"capath": ca} if os.path.isdir(ca) else {"cafile": ca}))
    except (OSError, ValueError) as error:
        raise _unusable_ca(ca, error) from None
    return context


def _unusable_ca(ca: str | None, error: Exception) -> ValueError:
    why = getattr(error, "strerror", "") or error
    return ValueError(f"ca={ca!r} cannot be used: {why}: name a PEM file, or a directory of them")


def server_of(headers: Mapping[str, str]) -> str:
    """Return how the server and the proxies before it name themselves, on one line for people."""
    found = [f"{name}: {headers[name]:.60}" for name in ("Server", "Via") if headers.get(name)]
    return printable("; ".join(found))


def retry_after_us(headers: Mapping[str, str]) -> int:
    """Return the wait that Retry-After asks for, or 0. A date counts from the response's Date, so no clock is read."""
    value = headers.get("Retry-After", "").strip()
    if not value:
        return 0
    if value.isdecimal() and len(value) < 10:
        return int(value) * _SECOND_US
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers["Date"])
    except (ValueError, TypeError, KeyError):
        return 0
    return max(0, round(wait.total_seconds())) * _SECOND_US
