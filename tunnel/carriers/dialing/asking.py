"""Requests to an identity provider, and the one that asks a relay for its provider. Their answers are bounded.

No redirect is followed: a form holds a secret, which is for this server alone.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

from tunnel.carriers.dialing.challenges import Challenge, parse_challenges
from tunnel.carriers.dialing.dialing import Dialing, trust_also
from tunnel.carriers.dialing.failures import describe_failure
from tunnel.ground.relay_options import RelayOptions

__all__ = ["NoAnswerError", "ask", "ask_relay"]

ANSWER_S = 15.0  # for the whole of one answer
_ANSWER_BYTES_MAX = 64 << 10
_REFUSALS = (400, 401, 403)
_FAILURES = (OSError, aiohttp.ClientError, TimeoutError, UnicodeError)


class NoAnswerError(Exception):
    """No answer that can be used has come. The text says why."""


async def ask(url: str, path: RelayOptions, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of the answer; with a form, send it by POST. Raise NoAnswerError if there is no
    answer in JSON. A refusal may be empty, as some providers send it: its JSON is empty, too.

    Of the `path` to the relay, the proxy and the authorities count here as well, besides those that the system trusts.
    Nothing else is sent: what a gateway asks for is for the relay.
    """
    place = URL(url)
    dialing = Dialing(str(place.origin()), RelayOptions(proxy=path.proxy, ca=path.ca))
    if dialing.tls is not None and path.ca is not None:
        dialing.tls = trust_also(path.ca)
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": dialing.headers["User-Agent"]}
    method = "GET" if form is None else "POST"
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            dialing.session(reuse=False) as session,
            session.request(method, place, data=form, headers=headers, **_fixed(dialing)) as response,
        ):
            body = await _read(response, url)
            status = response.status
    except TimeoutError:
        raise NoAnswerError(f"{place.origin()} has not answered within {ANSWER_S:g} s") from None
    except _FAILURES as error:
        raise NoAnswerError(f"{place.origin()} does not answer: {describe_failure(error, place)}") from None
    if status in _REFUSALS and not body.strip():
        return status, {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NoAnswerError(f"{url} answered {status} without JSON that an identity provider would send")
    return status, found


async def ask_relay(url: str, path: RelayOptions) -> list[Challenge]:
    """Return the challenges with which the relay answers a request without a token; none if it takes such requests.

    Raise NoAnswerError if nothing answers, and ValueError if a setting cannot be used.
    """
    dialing = Dialing(url, path, token=None, cert=None)
    headers = {**dialing.headers, "Content-Type": "application/octet-stream"}
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            dialing.session(reuse=False) as session,
            session.post(dialing.url("exchange"), data=b"", headers=headers, **_fixed(dialing)) as response,
        ):
            return parse_challenges(response.headers.getall("WWW-Authenticate", []))
    except TimeoutError:
        raise NoAnswerError(f"no relay has answered at {url} within {ANSWER_S:g} s") from None
    except _FAILURES as error:
        text = describe_failure(error, dialing.base, is_first=True)
        raise NoAnswerError(f"no relay answers at {url}: {text}") from None


def _fixed(dialing: Dialing) -> dict[str, Any]:
    """Return the arguments of every request."""
    return {"allow_redirects": False, "proxy": dialing.proxy, "proxy_headers": dialing.proxy_headers or None}


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _ANSWER_BYTES_MAX:
            raise NoAnswerError(f"the answer of {url} is longer than {_ANSWER_BYTES_MAX >> 10} KiB")
    return bytes(body)
