"""How to reach a relay over HTTP: its URL, our token, the proxy in between, and whom TLS trusts."""

import base64
import os
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

import aiohttp
from yarl import URL

__all__ = ["Dialing", "describe_failure", "is_final", "retry_after_us"]

_SECOND_US = 1_000_000
_READ_BUFFER_BYTES = 256 * 1024
_FINAL = (aiohttp.ClientConnectorCertificateError, aiohttp.InvalidURL)


class Dialing:
    """What does not change between requests. ValueError, with what to write instead, when something cannot be."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        proxy: str | None = "env",
        ca: str | None = None,
        cert: str | Sequence[str] | None = None,
    ) -> None:
        self.base = _relay_url(url)
        self.proxy, credentials = _proxy_of(self.base, proxy)
        self.headers = {
            "Cache-Control": "no-store, no-transform",
            "Accept-Encoding": "identity",
            "User-Agent": "tunnel/1",
        }
        if token is not None:
            if not token.isascii() or not token.isprintable() or " " in token or not token:
                raise ValueError("the token holds characters that no token has: was it copied whole, on one line?")
            self.headers["Authorization"] = f"Bearer {token}"
        self.proxy_headers: dict[str, str] = {}
        if self.base.scheme == "https":
            self.proxy_headers = credentials  # for CONNECT: the relay never sees them
        else:
            self.headers |= credentials
        self.tls = _tls_context(ca, cert) if self.base.scheme == "https" else None
        through = f" through {self.proxy}" if self.proxy is not None else ""
        self.description = f"{self.base}{through}"

    def url(self, name: str) -> URL:
        """That of one of the relay's two resources."""
        return self.base / name

    def session(self) -> aiohttp.ClientSession:
        """A session without any connection yet. It reads no netrc and no environment, and decompresses nothing.

        Nor has it headers of its own: aiohttp would send those to the proxy as well, the token included.
        """
        connector = aiohttp.TCPConnector(limit=0, ssl=self.tls if self.tls is not None else True)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            read_bufsize=_READ_BUFFER_BYTES,
        )


def _relay_url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is no relay URL: write https://HOST or http://HOST:PORT")
    if url.user is not None or url.password is not None:
        raise ValueError("a relay URL holds no user and no password: give the token instead")
    if url.query_string or url.fragment:
        raise ValueError("a relay URL holds no query and no fragment")
    return url


def _proxy_of(relay: URL, choice: str | None) -> tuple[URL | None, dict[str, str]]:
    """The proxy for this relay, and the header that introduces us to it."""
    text = choice
    if choice == "env":
        proxies = urllib.request.getproxies_environment()
        bypassed = urllib.request.proxy_bypass(f"{relay.host}:{relay.port}")
        text = None if bypassed else proxies.get(relay.scheme, proxies.get("all"))
    if not text:
        return None, {}
    url = URL(text if "://" in text else f"http://{text}")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"the proxy {url.with_user(None)} is not one for HTTP: write http://HOST:PORT")
    if url.user is None:
        return url, {}
    pair = f"{unquote(url.raw_user or '')}:{unquote(url.raw_password or '')}"
    credentials = base64.b64encode(pair.encode()).decode("ascii")
    return url.with_user(None), {"Proxy-Authorization": f"Basic {credentials}"}


def _tls_context(ca: str | None, cert: str | Sequence[str] | None) -> ssl.SSLContext:
    try:
        if ca is not None and os.path.isdir(ca):
            context = ssl.create_default_context(capath=ca)
        else:
            context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"ca={ca!r} cannot be used: {error}") from None
    if cert is not None:
        files = [cert] if isinstance(cert, str) else list(cert)
        try:
            context.load_cert_chain(*files)
        except (OSError, ssl.SSLError, TypeError) as error:
            raise ValueError(f"cert={cert!r} cannot be used: {error}") from None
    return context


def retry_after_us(headers: Mapping[str, str]) -> int:
    """What Retry-After asks for; a date is taken against the response's own, so no clock is read. 0 without one."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal() and len(value) < 10:
        return int(value) * _SECOND_US
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers["Date"])
    except (ValueError, TypeError, KeyError):
        return 0
    return max(0, round(wait.total_seconds())) * _SECOND_US


def describe_failure(error: BaseException) -> str:
    """What went wrong with a connection, on one line for a person."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def is_final(error: BaseException) -> bool:
    """Whether trying again is of no use as long as nobody changes something: wrong certificates, wrong addresses."""
    return isinstance(error, _FINAL)
