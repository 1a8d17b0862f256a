"""Requests to an identity provider, and the one that asks a relay for its provider, with the errors of tunnel."""

from collections.abc import Mapping
from typing import Any

from tunnel.carriers.dialing import asking
from tunnel.carriers.dialing.bounded_responses import bound_responses
from tunnel.carriers.dialing.challenges import Challenge
from tunnel.errors import UnreachableError
from tunnel.ground.printable import printable
from tunnel.ground.relay_options import RelayOptions

__all__ = ["ask", "ask_relay", "bound_responses"]


async def ask(url: str, path: RelayOptions, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Do as `asking.ask`. Raise UnreachableError if there is no answer in JSON, or if the URL or the path
    cannot be used: a provider names URLs, and a file with authorities may go."""
    try:
        return await asking.ask(url, path, form)
    except asking.NoAnswerError as error:
        raise UnreachableError(str(error)) from None
    except ValueError as error:
        raise UnreachableError(f"{printable(url)} cannot be asked: {error}") from None


async def ask_relay(url: str, path: RelayOptions) -> list[Challenge]:
    """Do as `asking.ask_relay`. Raise UnreachableError if nothing answers."""
    try:
        return await asking.ask_relay(url, path)
    except asking.NoAnswerError as error:
        raise UnreachableError(str(error)) from None
