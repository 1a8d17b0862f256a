"""The choice of the proxy to a relay: a named one, or that of the environment, unless NO_PROXY excludes the relay."""

import urllib.request
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

import msgspec
from yarl import URL

__all__ = ["Proxy", "choose_proxy"]

_PORTS = {"http": 80, "https": 443}


class Proxy(msgspec.Struct, frozen=True):
    """A proxy with its credentials. `url` contains no user and no password, so it may be shown."""

    url: URL
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Proxy({str(self.url)!r})"


_FORM = "write http://HOST:PORT"
_ESCAPES = ", with special characters of user and password as %XX"


def choose_proxy(relay: URL, choice: str | None) -> Proxy | None:
    """Return the proxy for a relay, or None. `choice`: as `proxy` in `attach`, or "none", which all commands accept.

    Raise ValueError, whose text contains no password, when the choice is not an HTTP proxy.
    """
    text = None if choice is None or choice.lower() == "none" else choice
    if choice == "env":
        proxies = urllib.request.getproxies_environment()
        bypassed = _is_bypassed(relay, proxies.get("no", ""))
        text = None if bypassed else proxies.get(relay.scheme, proxies.get("all"))
    if not text:
        return None
    if text.startswith("@"):
        raise ValueError(
            f"the proxy {text!r} names a file, which only the option --proxy reads: give the URL of the proxy"
        )
    user_part, _, shown = text.rpartition("@")
    try:
        url = URL(text if "://" in text else f"http://{text}")
    except ValueError:
        raise ValueError(f"the proxy {shown!r} is not a URL: {_FORM}{_ESCAPES if user_part else ''}") from None
    if "@" in url.raw_path_qs + url.raw_fragment:  # a slash in the password: the host would be a part of the secret
        raise ValueError(f"the proxy {shown!r} is not a URL: {_FORM}{_ESCAPES}")
    if url.scheme not in _PORTS or not url.host:
        raise ValueError(f"the proxy {shown!r} is not an HTTP proxy: {_FORM}")
    user, password = unquote(url.raw_user or ""), unquote(url.raw_password or "")
    if any(ord(letter) < 32 for letter in user + password) or ":" in user:
        raise ValueError(
            f"the proxy {shown!r}: its user has a colon, or user or password a control character, which cannot be sent"
        )
    return Proxy(url.with_user(None), user, password)


def _is_bypassed(relay: URL, no_proxy: str) -> bool:
    """Whether NO_PROXY excludes the relay. Its entries are hosts or domains, perhaps with a port, networks, or *."""
    host = (relay.host or "").rstrip(".").lower()
    for entry in no_proxy.lower().replace(",", " ").split():
        if entry == "*" or _is_in_network(host, entry):
            return True
        name, colon, port = entry.rpartition(":")
        if not colon or not port.isdigit() or (":" in name and not name.startswith("[")):
            name, port = entry, ""
        name = name.strip("[]").removeprefix("*").strip(".")
        if name and (host == name or host.endswith(f".{name}")) and port in ("", str(relay.port)):
            return True
    return False


def _is_in_network(host: str, entry: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except (ValueError, TypeError):
        return False
