"""The functions that create an attachment: over HTTP, or in memory to a relay in the same process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tunnel.attachment import ATTACH_TIMEOUT_S, LINGER_S, Attachment
from tunnel.carrier_rates import check_links, pull_interval_us
from tunnel.carriers.base import Carrier
from tunnel.carriers.memory import MemoryCarrier, Relay
from tunnel.core import EndpointConfig
from tunnel.encryption.keys import KeyFile
from tunnel.encryption.known_peers import KnownPeers
from tunnel.encryption.settings import Encryption
from tunnel.encryption.trust import trust_settings
from tunnel.exchange import LaneConfig
from tunnel.listener import ExitHandler
from tunnel.rate_limit import RateLimit
from tunnel.road_memory import RoadMemory, local_network, path_name
from tunnel.secret_renewal import Renew
from tunnel.traces.record import TraceSink

__all__ = ["CARRIERS", "attach", "memory_attach"]

CARRIERS = ("auto", "poll", "link", "stream", "websocket")
ROADS = ("link", "websocket")  # the roads that "auto" tries, the best first
_SECOND_US = 1_000_000
_EXIT_SEND_BUFFER_BYTES = 512 * 1024  # small, since an exit has many users; the core's budget lets a buffer grow


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
    await_login: bool | None = None,
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
    argument is wrong.

    `url`: one URL, or several that lead to the same relay, for example through different ports. Links use them in turn,
    exchanges use the first. `proxy`: "env" for the usual environment variables, None or "none" for no proxy, or a URL,
    which may hold user and password; they are sent only after the proxy has asked for them. `ca`: a PEM file, or a
    directory of them, with the authorities to trust instead of those that the operating system trusts. `cert`: a PEM
    file with certificate and key, or a pair of files.

    `carrier`: "poll" uses exchanges only, each with a complete answer. "stream" also lets the relay stream its answers,
    where the path lets them pass. "auto" does the same, and also tries a link, and else a WebSocket, which more proxies
    pass. "link" and "websocket" try only the one that they name, wait for the first try, and repeat it more often.
    `links`: the number of links to keep open, 1 to 4; one carries everything, the others are spares.
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
    `await_login`: if a login page of the network answers before a relay ever has, keep trying for `attach_timeout`
    seconds (True) or raise UnreachableError at once (False). By default, only a redirect raises it at once.

    `encryption`: "auto" encrypts a stream if the exit or service supports it, "require" opens and accepts only
    encrypted streams, "off" encrypts none. `peer_key`: the fingerprint of the key that the other end must have, or
    several of them; it implies "require". `known_peers`: the file of the keys that were seen before, to which the first
    key of a new peer is added; without it, and without a peer key, any key is accepted. `key`: the file of this
    endpoint's own key, for streams that it accepts (as a service or an exit); it is made if it does not exist.
    """
    urls = _require_known(carrier, links, url)
    settings = _encryption(encryption, urls[0], peer_key, known_peers, key)
    lanes = _lane_config(lanes, pull_interval, await_login, eager=carrier == "stream")
    how: dict[str, Any] = {"headers": headers, "hostname": hostname, "sni": sni, "insecure_http": insecure_http}
    how |= {"token": token, "proxy": proxy, "ca": ca, "cert": cert, "is_exit": exit_handler is not None}
    maker = _maker(carrier, urls, how, name, lanes, links, road_memory)
    return _attachment(*maker, user_timeout, exit_handler, settings, _rest(name, attach_timeout, linger, trace, rate))


def _rest(name: str, attach_timeout: float | None, linger: float, trace: TraceSink | None, rate: str) -> dict[str, Any]:
    """Return the arguments that an Attachment takes as they are, and the rate as a RateLimit."""
    kept: dict[str, Any] = {"name": name, "attach_timeout": attach_timeout, "linger": linger, "trace": trace}
    return {**kept, "rate_limit": RateLimit.parsed(rate)}


def _lane_config(
    lanes: LaneConfig | None, pull_interval: float, await_login: bool | None, *, eager: bool
) -> LaneConfig:
    found = lanes or LaneConfig()
    if eager:
        found = replace(found, stream_after_us=0)
    if pull_interval:
        found = replace(found, pull_interval_us=pull_interval_us(pull_interval))
    return found if await_login is None else replace(found, await_login=await_login)


def _maker(
    carrier: str,
    urls: list[str],
    how: dict[str, Any],
    name: str,
    lanes: LaneConfig,
    links: int,
    road_memory: str | Path | None,
) -> tuple[Callable[[bytes, Random], Carrier], Renew]:
    """Return a function that makes the carrier, and one that gives the carrier other secrets.

    `how` holds the settings of the carrier's connections.
    """
    from tunnel.carriers.dialing import Dialing  # here: it imports aiohttp, which memory_attach does not need
    from tunnel.carriers.exchanging import ExchangingCarrier

    dialing, *others = dialings = [Dialing(url, **how) for url in urls]
    made: list[ExchangingCarrier] = []

    def make(secret: bytes, random: Random) -> Carrier:
        made.append(_made(secret, random))
        return made[-1]

    def renew(token: str | None, headers: Mapping[str, str], proxy: str | None, refused: Callable[[int], None]) -> None:
        found = [each.other_secrets(token, headers, proxy) for each in dialings]  # checked before any of them is used
        for each, secrets in zip(dialings, found, strict=True):
            each.renew(secrets, refused)
        for one in made:
            one.secrets_renewed()

    def _made(secret: bytes, random: Random) -> ExchangingCarrier:
        from tunnel.carriers.link import LinkCarrier
        from tunnel.carriers.poll import PollCarrier

        if carrier in ("poll", "stream"):
            return PollCarrier(dialing, secret, random, name=name, config=lanes, streams=carrier == "stream")
        more: dict[str, Any] = {"name": name, "config": lanes, "links": links, "others": others}
        if carrier != "auto":
            return LinkCarrier(dialing, secret, random, eager=True, roads=(carrier,), **more)
        if road_memory is not None:
            proxy = str(dialing.proxy) if dialing.proxy is not None else None
            more |= _remembering(RoadMemory(Path(road_memory)), str(dialing.base), proxy)
        return LinkCarrier(dialing, secret, random, roads=ROADS, **more)

    return make, renew


def _remembering(memory: RoadMemory, relay: str, proxy: str | None) -> dict[str, Any]:
    """Return the arguments with which a carrier remembers the road of this path."""
    path = path_name(relay, proxy, local_network())
    found = memory.recall(path)
    return {"remembered": found.road if found is not None else "", "learned": partial(memory.keep, path)}


def _encryption(
    mode: str, relay: str, peer_key: str | Sequence[str], known_peers: str | Path | None, key: str | Path | None
) -> Encryption:
    peer_keys = (peer_key,) if isinstance(peer_key, str) else tuple(peer_key)
    known = None if known_peers is None else KnownPeers(Path(known_peers))
    own = None if key is None else KeyFile(Path(key), make=True)
    return Encryption(trust_settings(mode, relay, peer_keys, known), own)


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

    def make(secret: bytes, random: Random) -> Carrier:
        is_exit = exit_handler is not None
        return MemoryCarrier(
            relay, secret, random, user=user, name=name, is_exit=is_exit, identity=identity, config=lanes
        )

    settings = _encryption(encryption, "memory", (), None, key)
    rest = _rest(name, attach_timeout, linger, trace, rate)
    return _attachment(make, None, user_timeout, exit_handler, settings, rest)


def _attachment(
    make: Callable[[bytes, Random], Carrier],
    renew: Renew | None,
    user_timeout: float,
    exit_handler: ExitHandler | None,
    encryption: Encryption,
    rest: dict[str, Any],
) -> Attachment:
    config = replace(_endpoint_config(user_timeout, exit_handler), asks_services=encryption.asks_services)
    if rest["rate_limit"] is not None:
        config = _with_windows_for(rest["rate_limit"].rate, config)
    attachment = Attachment(make, config, exit_handler=exit_handler, encryption=encryption, **rest)
    if renew is not None:
        attachment.renew_by(renew)
    return attachment


def _with_windows_for(rate: int, config: EndpointConfig) -> EndpointConfig:
    """Return the settings with receive windows for a rate, since a peer sends a whole window at its own speed.

    The first window is at most what the rate moves in 100 ms, and the largest at most what it moves in a second; but
    neither of these limits is below 16 KiB.
    """
    start = max(config.window_bytes_min, min(config.window_bytes_start, rate // 10))
    return replace(config, window_bytes_start=start, window_bytes_max=max(start, min(config.window_bytes_max, rate)))


def _endpoint_config(user_timeout: float, exit_handler: ExitHandler | None) -> EndpointConfig:
    timeout_us = round(user_timeout * _SECOND_US)
    if exit_handler is None:
        return EndpointConfig(user_timeout_us=timeout_us)
    return EndpointConfig(user_timeout_us=timeout_us, exit=True, send_buffer_bytes_max=_EXIT_SEND_BUFFER_BYTES)
