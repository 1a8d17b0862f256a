"""The functions that create an attachment: over HTTP, or in memory to a relay in the same process.

`endpoint_making`, which does the work, is imported when an attachment is made: see `attachment.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Unpack

from tunnel.attachment import Attachment
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.defaults import ATTACH_TIMEOUT_S, LINGER_S, USER_TIMEOUT_S
from tunnel.ground.relay_options import OwnKeywords, RelayKeywords, RelayOptions

if TYPE_CHECKING:
    from tunnel.attached_endpoint import AttachedEndpoint
    from tunnel.carriers.base import Carrier
    from tunnel.carriers.memory import Relay
    from tunnel.exchange import LaneConfig
    from tunnel.several_relays import SeveralRelays
    from tunnel.streams.listener import ExitHandler
    from tunnel.traces.record import TraceSink

__all__ = ["AttachKeywords", "AttachOptions", "attach", "attach_with", "import_all", "memory_attach"]

_imported = threading.Event()  # set when the modules that an attachment needs have been imported


class AttachKeywords(RelayKeywords, total=False):
    """The keyword arguments of `attach`, which says what they mean."""

    name: str
    exit_handler: ExitHandler | None
    attach_timeout: float | None
    linger: float
    lanes: LaneConfig | None
    wait: bool | None
    trace: TraceSink | None
    known_peers: str | Path | None
    key: str | Path | None
    rate: str
    road_memory: str | Path | None
    further_relays: Sequence[tuple[str, str | OwnKeywords | None]]
    same_users: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions(RelayOptions):
    """All arguments of `attach` but the URL, each with its value or its default."""

    name: str = ""
    exit_handler: ExitHandler | None = None
    attach_timeout: float | None = ATTACH_TIMEOUT_S
    linger: float = LINGER_S
    lanes: LaneConfig | None = None
    wait: bool | None = None
    trace: TraceSink | None = None
    known_peers: str | Path | None = None
    key: str | Path | None = None
    rate: str = ""
    road_memory: str | Path | None = None
    further_relays: Sequence[tuple[str, str | OwnKeywords | None]] = field(default=(), repr=False)  # with secrets
    same_users: bool = False


def attach(url: str | Sequence[str], **options: Unpack[AttachKeywords]) -> Attachment:
    """Return an attachment to the relay at `url`; use it as `async with attach(...) as t`. Raise ValueError when an
    argument is wrong; within an event loop, the first attachment of a process may raise it when it is started.

    `url`: one URL, or several that lead to the same relay. Links use them in turn, exchanges use the first.
    `further_relays`: other relays, each as (URL, token), or as (URL, options), a dict that may hold `token`, `headers`,
    `hostname`, `sni`, `cert`, `proxy`, `ca` and `insecure_http`. The last three are those of the first relay if they
    are missing there; the others go to no relay but their own. New connections use the first relay that answers and
    leads to the target. Services and exits attach to all relays, others to the next one when they need it.
    `same_users`: for services and exits: each name of a user stands for the same user at all these relays, so a
    connection may move to another one when its relay is away or drains. `proxy`:
    "env" for the usual environment variables, None or "none" for no proxy, or a URL, which may hold user and password;
    they are sent only after the proxy has asked for them. `ca`: a PEM file, or a directory of them, with the
    authorities to trust instead of the system's. `cert`: a PEM file with certificate and key, or a pair of files.

    `carrier`: "poll" uses exchanges only, each with a complete answer. "stream" also lets the relay stream its answers,
    where the path lets them pass. "auto" does the same, and also tries a link, and else a WebSocket, which more proxies
    pass. "link" and "websocket" try only the one that they name, wait for the first try, and repeat it more often.
    `links`: the number of links to keep open, 1 to 4, which share the load; a single connection uses all of them.
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
    return attach_with(url, AttachOptions(**options))


def attach_with(
    url: str | Sequence[str], options: AttachOptions, kind: Callable[..., Attachment] = Attachment
) -> Attachment:
    """Do as `attach`. `kind` makes the attachment, from the arguments of its class."""
    urls = [url] if isinstance(url, str) else list(url)
    if options.carrier not in CARRIERS:
        raise ValueError(f"carrier must be one of {', '.join(CARRIERS)}, not {options.carrier!r}")
    if not urls:
        raise ValueError("an attachment needs at least one URL")
    return kind(partial(_make, urls, options), later=_must_not_wait() and not _imported.is_set())


def _make(urls: list[str], options: AttachOptions) -> AttachedEndpoint | SeveralRelays:
    import_all()
    from tunnel import endpoint_making as making

    if options.further_relays:
        return making.several_relays(urls, options)
    return making.attached_endpoint(*making.carrier_maker(urls, options), urls[0], options)


def import_all() -> None:
    """Import what attachments need, which takes most of a second the first time."""
    from tunnel import endpoint_making  # noqa: F401
    from tunnel.carriers import poll, roads  # noqa: F401
    from tunnel.carriers.dialing import dialing  # noqa: F401

    _imported.set()


def _must_not_wait() -> bool:
    """Return whether this is called within an event loop, which must not wait for imports."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def memory_attach(
    relay: Relay,
    *,
    user: str,
    user_timeout: float = USER_TIMEOUT_S,
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

    options = AttachOptions(
        user_timeout=user_timeout,
        name=name,
        exit_handler=exit_handler,
        attach_timeout=attach_timeout,
        linger=linger,
        trace=trace,
        encryption=encryption,
        key=key,
        rate=rate,
    )
    return Attachment(partial(making.attached_endpoint, make, None, "memory", options))
