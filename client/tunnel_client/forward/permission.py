"""Asks the relay, before local ports listen, whether its rules allow the targets that these ports lead to."""

import asyncio
from collections.abc import Iterable

import structlog

from tunnel import Attachment, DeniedError
from tunnel.streams.datagrams import UDP_PREFIX
from tunnel_client.places import PROTOCOLS, ForwardSpec

__all__ = ["require_allowed"]

_log = structlog.get_logger("tunnel")
_ASKED_MAX = 100  # targets; of further ones, people learn at their first connection


async def require_allowed(attachment: Attachment, specs: Iterable[ForwardSpec]) -> None:
    """Log each target that the rules deny. Raise DeniedError, of the last one, if they deny all of them.

    If the relay does not answer, as one that does not know such questions, nothing is denied.
    """
    given = {_asked(spec): spec for spec in specs}
    asked = dict(list(given.items())[:_ASKED_MAX])
    answers = await asyncio.gather(*(_denial(attachment, *target) for target in asked))
    denials = [(spec, denial) for spec, denial in zip(asked.values(), answers, strict=True) if denial is not None]
    are_all = bool(denials) and len(denials) == len(given)
    for spec, denial in denials[:-1] if are_all else denials:
        _log.warning("denied", forward=str(spec), text=f"{denial}; connections fail until a rule allows them")
    if are_all:
        raise denials[-1][1]


def _asked(spec: ForwardSpec) -> tuple[str, int | None]:
    """Return host and port as a connection of this forward names them."""
    host, port = spec.target.host, spec.target.port
    return (host if port is None or spec.protocol == PROTOCOLS[0] else UDP_PREFIX + host), port


async def _denial(attachment: Attachment, host: str, port: int | None) -> DeniedError | None:
    try:
        await attachment.check(host, port)
    except DeniedError as error:
        return error
    return None
