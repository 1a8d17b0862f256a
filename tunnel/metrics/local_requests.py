"""Which HTTP requests a listener on this machine answers: none of a web page, whatever its server is called."""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

__all__ = ["is_loopback", "why_a_page"]

_HOST = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]*)?", re.IGNORECASE)


def why_a_page(remote: str | None, hosts: Iterable[str], *, has_origin: bool) -> str:
    """Say why the request is taken for that of a web page; return an empty text if it is not.

    A browser sends an Origin, or the name of the page's server as Host, and such a name may lead to this machine (DNS
    rebinding). Requests from other machines may name any Host: probes of Kubernetes name the address of the pod.
    """
    if has_origin:
        return "this listener does not answer web pages"
    if is_loopback(remote) and not all(map(_is_local_host, hosts)):
        return "a request from this machine must name localhost, 127.0.0.1 or [::1] as its Host"
    return ""


def is_loopback(address: str | None) -> bool:
    """Return whether this is an address of this machine that others cannot use."""
    try:
        found = ip_address(address or "")
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found.is_loopback


def _is_local_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and (found[1].lower() == "localhost" or is_loopback(found[1].strip("[]")))
