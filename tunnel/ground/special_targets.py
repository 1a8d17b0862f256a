"""Targets that are neither a host nor an address: Unix sockets and SRV records at the exit (docs/PROTOCOL.md, 2.1).

Their host begins with a prefix, and their port is SPECIAL_PORT. No name of a host contains a colon, so an older relay
refuses them as it refuses a host that does not exist.
"""

from ipaddress import ip_address

__all__ = ["NO_HOST", "SPECIAL_PORT", "SRV_PREFIX", "SRV_SHOWN", "UNIX_PATH_BYTES_MAX", "UNIX_PREFIX", "target_text"]

UNIX_PREFIX = "unix:"  # before the absolute path of a socket
SRV_PREFIX = "srv:"  # before the name of an SRV record
SRV_SHOWN = "srv/"  # as people and rules write SRV_PREFIX
SPECIAL_PORT = 1  # the lowest that CONNECT can hold; it means nothing
NO_HOST = "is neither an address nor a name"  # what a relay says of a host that no target can have
UNIX_PATH_BYTES_MAX = 107  # sun_path of Linux has 108 bytes, with a zero at the end


def target_text(host: str, port: int | None) -> str:
    """Return a target in the form for people: HOST:PORT, SERVICE, unix:PATH or srv/NAME."""
    if port is None or host.startswith(UNIX_PREFIX):
        return host
    if host.startswith(SRV_PREFIX):
        return SRV_SHOWN + host.removeprefix(SRV_PREFIX)
    return f"[{host}]:{port}" if _is_ipv6(host) else f"{host}:{port}"


def _is_ipv6(host: str) -> bool:
    try:
        return ":" in host and ip_address(host).version == 6
    except ValueError:
        return False
