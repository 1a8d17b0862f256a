"""The functions that create an attachment: over HTTP, or in memory to a relay in the same process.

`endpoint_making`, which does the work, is imported when an attachment is made: see `attachment.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tunnel.attachment import Attachment
from tunnel.carrier_names import CARRIERS
from tunnel.carrier_rates import check_links, pull_interval_us
from tunnel.defaults import ATTACH_TIMEOUT_S, LINGER_S

if TYPE_CHECKING:
    from tunnel.attached_endpoint import AttachedEndpoint
    from tunnel.carriers.base import Carrier
    from tunnel.carriers.memory import Relay
    from tunnel.exchange import LaneConfig
    from tunnel.listener import ExitHandler
    from tunnel.traces.record import TraceSink

__all__ = ["attach", "import_all", "memory_attach"]

_AWAY_US = 1_000_000  # some tries, since a path may refuse one of them by accident; a relay that starts takes longer
_imported = threading.Event()  # set when the modules that an attachment needs have been imported


def attach(
    url: str | Sequence[str],
    *,
    token: str | None = None,
    proxy: str | None = "env",
    ca: str | None = None,
    cert: str | Sequence[str] | None = None,
    carrier: str = "auto",
    user_timeout: float = 300.0,
    name: str = "",
    exit_handler: ExitHandler | None = None,
    attach_timeout: float | None = ATTACH_TIMEOUT_S,
    linger: float = LINGER_S,
    lanes: LaneConfig | None = None,
    links: int = 1,
    pull_interval: float = 0.0,
    wait: bool | None = None,
    trace: TraceSink | None = None,
    insecure_http: bool = False,
    headers: Mapping[str, str] | None = None,
    hostname: str | None = None,
    sni: str | None = None,
    encryption: str = "auto",
    peer_key: str | Sequence[str] = (),
    known_peers: str | Path | None = None,
    key: str | Path | None = None,
    rate: str = "",
    road_memory: str | Path | None = None,
) -> Attachment:
    """Return an attachment to the relay at `url`; use it as `async with attach(...) as t`. Raise ValueError when an
    argument is wrong; within an event loop, the first attachment of a process may raise it when it is started.

    `url`: one URL, or several that lead to the same relay. Links use them in turn, exchanges use the first. `proxy`:
    "env" for the usual environment variables, None or "none" for no proxy, or a URL, which may hold user and password;
    they are sent only after the proxy has asked for them. `ca`: a PEM file, or a directory of them, with the
    authorities to trust instead of the system's. `cert`: a PEM file with certificate and key, or a pair of files.

    `carrier`: "poll" uses exchanges only, each with a complete answer. "stream" also lets the relay stream its answers,
    where the path lets them pass. "auto" does the same, and also tries a link, and else a WebSocket, which more proxies
    pass. "link" and "websocket" try only the one that they name, wait for the first try, and repeat it more often.
    `links`: the number of links to keep open, 1 to 4; one carries everything, the others are spares, and share no load.
    `pull_interval`: the seconds between pulls while neither a link nor a WebSocket is open; the relay may change it. 0:
    the relay holds pulls until data comes. `road_memory`: a file that remembers for "auto" what worked on this path.

    `insecure_http`: send the token even to an http:// relay on another machine, or through another machine, where
    everybody on the way can read it. It allows the same for `headers`. `headers`, `hostname`, `sni`: what a gateway
    before the relay asks for. The headers are added to every request; `hostname` replaces the URL's host in the Host
    header. In TLS, the server is asked for the name `sni`, else `hostname`, else the URL's host, and its certificate
    must be for this name. None of these is sent to a proxy that opens connections for us, or to another origin.
    `name`: the endpoint name; a newer attachment of the same user and name replaces the older one. `user_timeout`: the
    seconds without an answer after which a connection is lost. `rate`: the bytes per second, such as "20 MiB/s", that
    all connections together may move in each direction; they share it fairly, and bytes that exceed it wait.
    `wait`: before a relay has ever answered, keep trying for `attach_timeout` seconds whatever else answers (True); or
    raise UnreachableError at once after a definite answer (a page, a 404, a proxy that refuses; 7.9 of the protocol),
    and after 5 s (False) or 1 s (None) if the host cannot be reached. The logger "tunnel.attaching" tells of waits.

    `encryption`: "auto" encrypts a stream if the exit or service supports it, "require" opens and accepts only
    encrypted streams, "off" encrypts none. `peer_key`: the fingerprint of the key that the other end must have, or
    several of them; it implies "require". `known_peers`: the file of the keys that were seen before, to which the first
    key of a new peer is added; without it, and without a peer key, any key is accepted. `key`: the file of this
    endpoint's own key, for streams that it accepts (as a service or an exit); it is made if it does not exist.
    """
    urls = _require_known(carrier, links, url)
    how: dict[str, Any] = {"headers": headers, "hostname": hostname, "sni": sni, "insecure_http": insecure_http}
    how |= {"token": token, "proxy": proxy, "ca": ca, "cert": cert, "is_exit": exit_handler is not None}
    lane_options = (lanes, pull_interval, wait, carrier == "stream")
    encrypting, kept = (encryption, urls[0], peer_key, known_peers, key), (name, attach_timeout, linger, trace, rate)
    ways = (carrier, urls, how, name, links, road_memory)
    make = partial(_make, ways, lane_options, encrypting, kept, user_timeout, exit_handler)
    return Attachment(make, later=_must_not_wait() and not _imported.is_set())


def _make(
    ways: tuple[str, list[str], dict[str, Any], str, int, str | Path | None],
    lane_options: tuple[LaneConfig | None, float, bool | None, bool],
    encrypting: tuple[str, str, str | Sequence[str], str | Path | None, str | Path | None],
    kept: tuple[str, float | None, float, TraceSink | None, str],
    user_timeout: float,
    exit_handler: ExitHandler | None,
) -> AttachedEndpoint:
    """Make what an attachment needs from the arguments of `attach`, in groups."""
    import_all()
    from tunnel import endpoint_making as making

    settings = making.encryption_settings(*encrypting)
    maker = making.carrier_maker(*ways, _lane_config(*lane_options))
    return making.attached_endpoint(*maker, user_timeout, exit_handler, settings, making.kept_settings(*kept))


def import_all() -> None:
    """Import what attachments need, which takes most of a second the first time."""
    from tunnel import endpoint_making  # noqa: F401
    from tunnel.carriers import dialing, link, poll  # noqa: F401

    _imported.set()


def _must_not_wait() -> bool:
    """Return whether this is called within an event loop, which must not wait for imports."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _lane_config(lanes: LaneConfig | None, pull_interval: float, wait: bool | None, eager: bool) -> LaneConfig:
    from tunnel.exchange import LaneConfig

    found = lanes or LaneConfig()
    if eager:
        found = replace(found, stream_after_us=0)
    if pull_interval:
        found = replace(found, pull_interval_us=pull_interval_us(pull_interval))
    if wait is None:
        return replace(found, wait=False, away_us=_AWAY_US)
    return replace(found, wait=wait)


def _require_known(carrier: str, links: int, url: str | Sequence[str]) -> list[str]:
    """Return the URLs as a list. Raise ValueError if an argument is wrong."""
    urls = [url] if isinstance(url, str) else list(url)
    if carrier not in CARRIERS:
        raise ValueError(f"carrier must be one of {', '.join(CARRIERS)}, not {carrier!r}")
    check_links(links)
    if not urls:
        raise ValueError("an attachment needs at least one URL")
    return urls


def memory_attach(
    relay: Relay,
    *,
    user: str,
    user_timeout: float = 300.0,
    name: str = "",
    identity: bytes | None = None,
    exit_handler: ExitHandler | None = None,
    attach_timeout: float | None = ATTACH_TIMEOUT_S,
    linger: float = LINGER_S,
    lanes: LaneConfig | None = None,
    trace: TraceSink | None = None,
    encryption: str = "off",
    key: str | Path | None = None,
    rate: str = "",
) -> Attachment:
    """Return an attachment to a relay in this process and event loop. With an `exit_handler` it is an inline exit.

    `identity` is the attachment id (16 bytes); by default a random secret determines it. `encryption`, `key` and `rate`
    are as in `attach`; encryption is off by default, since the relay's process holds the bytes of such an
    attachment anyway.
    """
    from tunnel import endpoint_making as making
    from tunnel.carriers.memory import MemoryCarrier

    def make(secret: bytes, random: Random) -> Carrier:
        is_exit = exit_handler is not None
        return MemoryCarrier(
            relay, secret, random, user=user, name=name, is_exit=is_exit, identity=identity, config=lanes
        )

    settings = making.encryption_settings(encryption, "memory", (), None, key)
    rest = making.kept_settings(name, attach_timeout, linger, trace, rate)
    return Attachment(lambda: making.attached_endpoint(make, None, user_timeout, exit_handler, settings, rest))
