"""Makes what an attachment consists of, from the arguments of `tunnel.attach`.

This module and those that it imports take most of a second to import, so that `attaching.py` imports it late.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.carrier_names import CARRIERS
from tunnel.carriers.base import Carrier
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

__all__ = ["attached_endpoint", "carrier_maker", "encryption_settings", "kept_settings"]

_SECOND_US = 1_000_000
_EXIT_SEND_BUFFER_BYTES = 512 * 1024  # small, since an exit has many users; the core's budget lets a buffer grow


def kept_settings(
    name: str, attach_timeout: float | None, linger: float, trace: TraceSink | None, rate: str
) -> dict[str, Any]:
    """Return the arguments that an Attachment takes as they are, and the rate as a RateLimit."""
    kept: dict[str, Any] = {"name": name, "attach_timeout": attach_timeout, "linger": linger, "trace": trace}
    return {**kept, "rate_limit": RateLimit.parsed(rate)}


def carrier_maker(
    carrier: str,
    urls: list[str],
    how: dict[str, Any],
    name: str,
    links: int,
    road_memory: str | Path | None,
    lanes: LaneConfig,
) -> tuple[Callable[[bytes, Random], Carrier], Renew]:
    """Return a function that makes the carrier, and one that gives the carrier other secrets.

    `how` holds the settings of the carrier's connections.
    """
    from tunnel.carriers.dialing import Dialing  # here: it imports aiohttp, which memory_attach does not need
    from tunnel.carriers.exchanging import ExchangingCarrier
    from tunnel.carriers.link import LinkCarrier
    from tunnel.carriers.poll import PollCarrier

    kind = CARRIERS[carrier]
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
        if not kind.roads:
            return PollCarrier(dialing, secret, random, name=name, config=lanes, streams=kind.streams)
        more: dict[str, Any] = {"name": name, "config": lanes, "links": links, "others": others, "roads": kind.roads}
        if kind.roads == (carrier,):
            return LinkCarrier(dialing, secret, random, eager=True, **more)
        if road_memory is not None:
            proxy = str(dialing.proxy) if dialing.proxy is not None else None
            more |= _remembering(RoadMemory(Path(road_memory)), str(dialing.base), proxy)
        return LinkCarrier(dialing, secret, random, **more)

    return make, renew


def _remembering(memory: RoadMemory, relay: str, proxy: str | None) -> dict[str, Any]:
    """Return the arguments with which a carrier remembers the road of this path."""
    path = path_name(relay, proxy, local_network())
    found = memory.recall(path)
    return {"remembered": found.road if found is not None else "", "learned": partial(memory.keep, path)}


def encryption_settings(
    mode: str, relay: str, peer_key: str | Sequence[str], known_peers: str | Path | None, key: str | Path | None
) -> Encryption:
    """Return the settings of encryption, and make the key file if it is missing."""
    peer_keys = (peer_key,) if isinstance(peer_key, str) else tuple(peer_key)
    known = None if known_peers is None else KnownPeers(Path(known_peers))
    own = None if key is None else KeyFile(Path(key), make=True)
    return Encryption(trust_settings(mode, relay, peer_keys, known), own)


def attached_endpoint(
    make: Callable[[bytes, Random], Carrier],
    renew: Renew | None,
    user_timeout: float,
    exit_handler: ExitHandler | None,
    encryption: Encryption,
    rest: dict[str, Any],
) -> AttachedEndpoint:
    """Return the endpoint, not yet started."""
    config = replace(_endpoint_config(user_timeout, exit_handler), asks_services=encryption.asks_services)
    if rest["rate_limit"] is not None:
        config = _with_windows_for(rest["rate_limit"].rate, config)
    return AttachedEndpoint(make, config, exit_handler=exit_handler, encryption=encryption, renew=renew, **rest)


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
