"""Settings of a relay, as values that are checked when they are made. `config` parses them."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

import msgspec

__all__ = ["AuditSettings", "ListenAddress", "ProxySettings", "ServiceLimits", "TlsFiles"]

_LIMIT_MAX = 1 << 40
_UNIX = "unix:"
_PORT_MAX = 65535
_FILE_BYTES_MIN = 64 * 1024  # the most that is written to a file at once


class TlsFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of PEM files. With `client_ca`, the relay accepts only clients whose certificate that authority signed, and
    with `client_optional`, also those that show no certificate."""

    certificate: str
    key: str
    client_ca: str = ""
    client_optional: bool = False


class ListenAddress(msgspec.Struct, frozen=True):
    """An address to listen on. `tls` is None if the address was given without a scheme. A Unix socket has its path as
    `host`, and no port."""

    host: str
    port: int
    tls: bool | None = None

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return self.host.startswith("/")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.is_unix:
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        if self.is_unix:
            return f"{_UNIX}{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """The limits outside the switch: HTTP, links, tokens and the exit. Times are in seconds."""

    header_seconds: float = 10
    """Time from the first byte of a request, or from connecting, to the end of its headers."""
    body_seconds: float = 30
    """Time from the headers to the end of the body, and from the header of a link's batch to its end."""
    keepalive_seconds: float = 75
    """How long an idle connection stays open: longer than a proxy in front keeps it (nginx: 60)."""
    answer_seconds: float = 60
    """Time for a client to read an answer; then the relay cuts the connection."""
    tls_seconds: float = 10
    """Time for a TLS handshake."""
    connections_max: int = 10_000
    """Open connections of clients. The relay lowers this limit to three quarters of the files that it may open.
    Connections on which no valid token came yet take at most half of it; for each beyond this, the relay closes the
    oldest of the address that has most."""
    connections_per_address_max: int = 1024
    """Connections from one address (an IPv6 /64; a /56 has twice, a /48 four times as many) on which no valid token
    came yet: at most a quarter of `connections_max`. For each beyond this, the relay closes the oldest."""
    connections_per_user_max: int = 2048
    """Connections of one user: those whose latest request had the user's token. No user has more than stay free."""
    waiting_bytes_max: int = 256 << 20
    """Bytes of unfinished bodies and batches, and of answers that clients have not read yet. A user gets no more
    of them when it holds as many as are free, so one user alone gets at most half."""
    link_opening_seconds: float = 10
    """Time from the upgrade to the first message on a link."""
    link_batch_bytes_max: int = 4 << 20
    """The largest batch that the relay accepts on a link."""
    auth_failures_per_minute: int = 20
    """Wrong tokens from one address that the relay answers with 401; to further ones it answers 429."""
    dial_seconds: float = 10
    """How long an exit waits for a target, including name resolution."""
    exit_connections_max: int = 8192
    """Connections of one exit, including those that it is still dialling. A user gets no more of them when it has
    as many as are free, so one user alone gets at most half."""
    drain_seconds: float = 60
    """How long a draining relay waits for connections to end, if `tunnel-relay drain` names no other time."""
    public_connections_max: int = 2048
    """Open connections of people without the tunnel, at all public places. The services of one user get no more of
    them when they have as many as are free, so those of one user alone get at most half."""
    public_connections_per_address_max: int = 64
    """The same from one address (one /64 network of IPv6). They are never more than half of
    `public_connections_max`."""
    trace_bytes_max: int = 1 << 30
    """Bytes of all trace files in the folder `trace`; the oldest are removed when there are more."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least = 0.001 if name.endswith("_seconds") else 1
            if not least <= getattr(self, name) <= _LIMIT_MAX:
                raise ValueError(f"{name} must be at least {least} and at most {_LIMIT_MAX}, not {getattr(self, name)}")


class ProxySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proxies in front of the relay: the networks of those that it trusts, and whether their connections begin with a
    PROXY header of version 2."""

    trusted: tuple[str, ...] = ()
    proxy_protocol: bool = False


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The audit: where its events go. `syslog` is a socket of this machine, or HOST:PORT for UDP.

    `required`: no connection is opened while events cannot be written. `files_max` counts the present file, too.
    `events_per_minute`: of each user, other than connections that were opened or ended; more are only counted.
    """

    to: Literal["file", "syslog", "stdout"] = "file"
    file: str = "audit.jsonl"
    file_bytes_max: int = 64 << 20
    files_max: int = 16
    fsync: bool = False
    syslog: str = "/dev/log"
    required: bool = False
    events_per_minute: int = 600

    def __post_init__(self) -> None:
        least = {"file_bytes_max": _FILE_BYTES_MIN, "files_max": 1, "events_per_minute": 1}
        for name, low in least.items():
            if not low <= getattr(self, name) <= _LIMIT_MAX:
                raise ValueError(f"{name} must be at least {low}, not {getattr(self, name)}")
        host, _, port = self.syslog.rpartition(":")
        if not self.syslog.startswith("/") and not (host and port.isdecimal() and 1 <= int(port) <= _PORT_MAX):
            raise ValueError(f"syslog is a path such as /dev/log, or HOST:PORT, not {self.syslog!r}")
        if not self.file:
            raise ValueError("file must not be empty")
