"""Makes what an attachment consists of, from the options of `tunnel.attach`.

This module and those that it imports take most of a second to import, so that `attaching.py` imports it late.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.attaching import AttachOptions
from tunnel.carriers.base import Carrier
from tunnel.core import EndpointConfig
from tunnel.encryption.keys import KeyFile
from tunnel.encryption.known_peers import KnownPeers
from tunnel.encryption.settings import Encryption
from tunnel.encryption.trust import trust_settings
from tunnel.exchange import LaneConfig
from tunnel.ground.carrier_limits import pull_interval_us
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.relay_options import own_options
from tunnel.ground.relay_urls import is_same_relay
from tunnel.road_memory import RoadMemory, local_network, path_name
from tunnel.secret_renewal import Renew
from tunnel.several_relays import SeveralRelays
from tunnel.streams.rate_limit import RateLimit

__all__ = ["attached_endpoint", "carrier_maker", "several_relays"]

_SECOND_US = 1_000_000
_TROUBLE_US = 300_000  # at several relays: another one may answer, so connections need not wait for this one
_AWAY_US = 1_000_000  # some tries, since a path may refuse one of them by accident; a relay that starts takes longer
_EXIT_SEND_BUFFER_BYTES = 512 * 1024  # small, since an exit has many users; the core's budget lets a buffer grow


def carrier_maker(urls: list[str], options: AttachOptions) -> tuple[Callable[[bytes, Random], Carrier], Renew]:
    """Return a function that makes the carrier, and one that gives the carrier other secrets."""
    from tunnel.carriers.dialing.dialing import Dialing  # here: it imports aiohttp, which memory_attach does not need
    from tunnel.carriers.exchanging import ExchangingCarrier
    from tunnel.carriers.poll import PollCarrier
    from tunnel.carriers.roads import RoadCarrier

    kind, lanes, name = CARRIERS[options.carrier], _lane_config(options), options.name
    dialing, *others = dialings = [Dialing(url, options, is_exit=options.exit_handler is not None) for url in urls]
    made: list[ExchangingCarrier] = []

    def make(secret: bytes, random: Random) -> Carrier:
        made[:] = [_made(secret, random)]  # the one before has ended
        return made[0]

    def renew(token: str | None, headers: Mapping[str, str], proxy: str | None, refused: Callable[[int], None]) -> None:
        found = [each.other_secrets(token, headers, proxy) for each in dialings]  # checked before any of them is used
        for each, secrets in zip(dialings, found, strict=True):
            each.renew(secrets, refused)
        for one in made:
            one.secrets_renewed()

    def _made(secret: bytes, random: Random) -> ExchangingCarrier:
        if not kind.roads:
            return PollCarrier(dialing, secret, random, name=name, config=lanes, streams=kind.streams)
        eager = kind.roads == (options.carrier,)
        make_carrier = partial(RoadCarrier, dialing, secret, random, name=name, config=lanes, links=options.links)
        make_carrier = partial(make_carrier, others=others, roads=kind.roads, eager=eager)
        if eager or options.road_memory is None:
            return make_carrier()
        proxy = str(dialing.proxy) if dialing.proxy is not None else None
        path, memory = path_name(str(dialing.base), proxy, local_network()), RoadMemory(Path(options.road_memory))
        found = memory.recall(path)
        return make_carrier(remembered=found.road if found is not None else "", learned=partial(memory.keep, path))

    return make, renew


def _lane_config(options: AttachOptions) -> LaneConfig:
    found = options.lanes or LaneConfig()
    if options.carrier == "stream":
        found = replace(found, stream_after_us=0)
    if options.pull_interval:
        found = replace(found, pull_interval_us=pull_interval_us(options.pull_interval))
    if options.wait is None:
        return replace(found, wait=False, away_us=_AWAY_US)
    return replace(found, wait=options.wait)


def _encryption(options: AttachOptions, relay: str, others: tuple[str, ...]) -> Encryption:
    """Return the settings of encryption, and make the key file if it is missing."""
    peer_keys = (options.peer_key,) if isinstance(options.peer_key, str) else tuple(options.peer_key)
    known = None if options.known_peers is None else KnownPeers(Path(options.known_peers))
    own = None if options.key is None else KeyFile(Path(options.key), make=True)
    return Encryption(trust_settings(options.encryption, relay, peer_keys, known, others), own)


def several_relays(urls: list[str], options: AttachOptions) -> SeveralRelays:
    """Return an endpoint at the relay of these URLs and at `further_relays`. Raise ValueError if two have one URL.

    Each relay gets its own token, and what its own gateway asks for: secrets go to no other origin.
    """
    limit = RateLimit.parse(options.rate)
    lanes = replace(options.lanes or LaneConfig(), trouble_us=_TROUBLE_US)
    first = replace(options, further_relays=(), wait=True, attach_timeout=None, lanes=lanes)
    planned = [(urls, first), *(([url], first.for_another(own_options(own))) for url, own in options.further_relays)]
    names = [found[0] for found, _ in planned]
    for number, name in enumerate(names):
        before = next((other for other in names[:number] if is_same_relay(name, other)), None)
        if before is not None:
            alike = f" (as {before})" * (before.rstrip("/") != name.rstrip("/"))
            raise ValueError(f"{name} is named twice{alike}: name each relay once")
    return SeveralRelays(
        [
            (found[0], partial(attached_endpoint, *carrier_maker(found, each), found[0], each, limit, tuple(names)))
            for found, each in planned
        ],
        sits_everywhere=options.exit_handler is not None,
        attach_timeout=options.attach_timeout,
        rate_limit=limit,
        same_users=options.same_users,
    )


def attached_endpoint(
    make: Callable[[bytes, Random], Carrier],
    renew: Renew | None,
    relay: str,
    options: AttachOptions,
    limit: RateLimit | None = None,
    relays: tuple[str, ...] = (),
) -> AttachedEndpoint:
    """Return the endpoint, not yet started. `relay` is the name under which keys of peers are remembered; the keys that
    are known at one of `relays` are the only ones at each of them. `limit`: one that it shares with others."""
    encryption, limit = _encryption(options, relay, relays), limit or RateLimit.parse(options.rate)
    config = replace(_endpoint_config(options), asks_services=encryption.asks_services)
    if limit is not None:
        config = _with_windows_for(limit.rate, config)
    return AttachedEndpoint(
        make,
        config,
        name=options.name,
        exit_handler=options.exit_handler,
        attach_timeout=options.attach_timeout,
        linger=options.linger,
        trace=options.trace,
        encryption=encryption,
        rate_limit=limit,
        renew=renew,
        url=relay,
    )


def _with_windows_for(rate: int, config: EndpointConfig) -> EndpointConfig:
    """Return the settings with receive windows for a rate, since a peer sends a whole window at its own speed.

    The first window is at most what the rate moves in 100 ms, and the largest at most what it moves in a second; but
    neither of these limits is below 16 KiB.
    """
    start = max(config.window_bytes_min, min(config.window_bytes_start, rate // 10))
    return replace(config, window_bytes_start=start, window_bytes_max=max(start, min(config.window_bytes_max, rate)))


def _endpoint_config(options: AttachOptions) -> EndpointConfig:
    timeout_us = round(options.user_timeout * _SECOND_US)
    if options.exit_handler is None:
        return EndpointConfig(user_timeout_us=timeout_us)
    return EndpointConfig(user_timeout_us=timeout_us, exit=True, send_buffer_bytes_max=_EXIT_SEND_BUFFER_BYTES)
