"""How to get an attachment: over HTTP from anywhere, or in memory beside the relay."""

from collections.abc import Sequence
from random import Random

from tunnel.attachment import ATTACH_TIMEOUT_S, LINGER_S, Attachment
from tunnel.carriers.base import Carrier
from tunnel.carriers.memory import MemoryCarrier, Relay
from tunnel.core import EndpointConfig
from tunnel.exchange import LaneConfig
from tunnel.listener import ExitHandler
from tunnel.traces.record import TraceSink

__all__ = ["CARRIERS", "attach", "memory_attach"]

CARRIERS = ("auto", "poll", "link")
_SECOND_US = 1_000_000
_LINKS_MAX = 4  # what a relay takes of one attachment, unless it is configured otherwise


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
    trace: TraceSink | None = None,
) -> Attachment:
    """Attach to the relay at `url`: `async with attach(...) as t`.

    `proxy`: "env" for the usual variables, None for none, or a URL, with user and password if need be: they are told
    only when it asks. `ca`: a file of certificates to trust instead of those that the operating system trusts. `cert`:
    a PEM file with certificate and key, or a pair of files.
    `carrier`: "poll" for plain exchanges alone; "auto" and "link" also try an upgraded connection, "link" more often.
    `links`: so many links are kept open, from 1 to 4: one carries everything, and when it is lost another takes over at
    once. Several URLs are ways to the same relay, its ports for example: links use them in turn, exchanges the first.
    `name`: replaces an older attachment of this user and name. `user_timeout`: seconds without an answer after which a
    connection is lost. ValueError when an argument is wrong.
    """
    if carrier not in CARRIERS:
        raise ValueError(f"carrier must be one of {', '.join(CARRIERS)}, not {carrier!r}")
    from tunnel.carriers.dialing import Dialing  # aiohttp: imported by those who need it

    urls = [url] if isinstance(url, str) else list(url)
    if not 1 <= links <= _LINKS_MAX or not urls:
        raise ValueError(f"an attachment has from 1 to {_LINKS_MAX} links, and at least one URL")
    dialing, *others = (
        Dialing(one, token=token, proxy=proxy, ca=ca, cert=cert, is_exit=exit_handler is not None) for one in urls
    )

    def make(secret: bytes, random: Random) -> Carrier:
        from tunnel.carriers.link import LinkCarrier
        from tunnel.carriers.poll import PollCarrier

        if carrier == "poll":
            return PollCarrier(dialing, secret, random, name=name, config=lanes)
        return LinkCarrier(
            dialing, secret, random, name=name, config=lanes, eager=carrier == "link", links=links, others=others
        )

    config = _endpoint_config(user_timeout, exit_handler)
    return Attachment(
        make,
        config,
        name=name,
        exit_handler=exit_handler,
        attach_timeout=attach_timeout,
        linger=linger,
        trace=trace,
    )


def memory_attach(
    relay: Relay,
    *,
    user: str,
    user_timeout: float = 300.0,
    name: str = "",
    exit_handler: ExitHandler | None = None,
    attach_timeout: float | None = ATTACH_TIMEOUT_S,
    linger: float = LINGER_S,
    lanes: LaneConfig | None = None,
    trace: TraceSink | None = None,
) -> Attachment:
    """Attach to a relay in this process and event loop; with an `exit_handler`, as its exit."""

    def make(secret: bytes, random: Random) -> Carrier:
        is_exit = exit_handler is not None
        return MemoryCarrier(relay, secret, random, user=user, name=name, is_exit=is_exit, config=lanes)

    config = _endpoint_config(user_timeout, exit_handler)
    return Attachment(
        make,
        config,
        name=name,
        exit_handler=exit_handler,
        attach_timeout=attach_timeout,
        linger=linger,
        trace=trace,
    )


def _endpoint_config(user_timeout: float, exit_handler: ExitHandler | None) -> EndpointConfig:
    return EndpointConfig(user_timeout_us=round(user_timeout * _SECOND_US), exit=exit_handler is not None)
