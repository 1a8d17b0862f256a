"""What people write for places: targets of connections, and addresses to listen at."""

from ipaddress import ip_address

from tunnel_client.errors import UsageError

__all__ = ["is_loopback", "join_address", "parse_bind", "parse_target"]

_PORT_MAX = 65535
LOOPBACK = "127.0.0.1"


def parse_target(text: str) -> tuple[str, int | None]:
    """HOST:PORT or [IPV6]:PORT; without a colon the name of a service, whose port is None. UsageError if neither."""
    host, colon, port = text.rpartition(":")
    if not colon and text:
        return text, None
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not _is_port(port, 1) or (":" in bare and bare == host):
        raise UsageError(f"{text!r} is no target: write HOST:PORT, [IPV6]:PORT, or the name of a service")
    return bare, int(port)


def parse_bind(text: str, *, host: str = LOOPBACK) -> tuple[str, int]:
    """PORT, HOST:PORT or [IPV6]:PORT; `host` where none is said. Port 0 is any that is free. UsageError if none."""
    named, colon, port = text.rpartition(":")
    bare = named.removeprefix("[").removesuffix("]")
    if not _is_port(port, 0) or (colon and not bare) or (":" in bare and bare == named):
        raise UsageError(f"{text!r} is no address to listen at: write PORT, or HOST:PORT as in 127.0.0.1:1080")
    return (bare if colon else host), int(port)


def join_address(host: str, port: int | None) -> str:
    """As `parse_target` reads it."""
    if port is None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_port(text: str, least: int) -> bool:
    return text.isascii() and text.isdigit() and least <= int(text) <= _PORT_MAX
