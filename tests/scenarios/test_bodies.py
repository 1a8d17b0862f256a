"""Answers that arrive altered although the HTTP is valid (scenarios 6, 8, 9, 15, 17, and a replay for 37)."""

import asyncio
import gzip
import re

import pytest
from aiohttp import web

from loadtests.harness.ports import hold_port
from tests.real.transfers import MIB, a_relay, client, move, until
from tests.scenarios.meddler import Meddle, Original, a_meddler, whole
from tests.servlet.rig import Client, attach_body
from tests.support.loops import run
from tunnel import UnreachableError
from tunnel.exchange import LaneConfig
from tunnel.wire import StatusCode

SMALL_BODIES = LaneConfig(body_bytes_max=64 << 10, answer_bytes_max=64 << 10)  # smaller bodies, hence more exchanges
PAGE = b"<!doctype html><title>Log in</title>"


async def rechunked(original: Original) -> web.StreamResponse:
    response = web.StreamResponse(status=original.status)
    response.enable_chunked_encoding()
    await response.prepare(original.request)
    for start in range(0, len(original.answer), 1000):
        await response.write(original.answer[start : start + 1000])
    await response.write_eof()
    return response


async def interim(original: Original) -> web.StreamResponse:
    transport = original.request.transport
    assert transport is not None
    lines = (b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: </style.css>; rel=preload")
    transport.write(b"HTTP/1.1 " + lines[original.number % 3] + b"\r\n\r\n")
    return whole(original)


def sometimes(altered: bytes | None = None, status: int = 0, **headers: str) -> Meddle:
    """Replace one answer in five."""

    async def meddle(original: Original) -> web.StreamResponse:
        if original.number % 5:
            return whole(original)
        return whole(original, altered, status, **headers)

    return meddle


async def marked(original: Original) -> web.StreamResponse:
    return whole(original) if original.number % 5 else whole(original, b"\xef\xbb\xbf" + original.answer + b"\n")


async def compressed(original: Original) -> web.StreamResponse:
    return whole(original) if original.number % 5 else squeezed(original)


async def cut(original: Original) -> web.StreamResponse:
    """Truncate one answer in three, each at another place, with a Content-Length that fits."""
    if original.number % 3:
        return whole(original)
    return whole(original, original.answer[: original.number * 7919 % len(original.answer)])


def squeezed(original: Original) -> web.Response:
    return whole(original, gzip.compress(original.answer), Content_Encoding="gzip")


async def always_squeezed(original: Original) -> web.StreamResponse:
    return squeezed(original)


async def always_mislabelled(original: Original) -> web.StreamResponse:
    return whole(original, Content_Encoding="br")


async def always_in_brotli(original: Original) -> web.StreamResponse:
    """(There is no module for brotli here: the bytes only look as if.)"""
    return whole(original, original.answer[::-1], Content_Encoding="br")


MEDDLERS: dict[str, Meddle] = {
    "9 a body in chunks": rechunked,
    "9 a byte-order mark and a line end": marked,
    "9 a body that was compressed": compressed,
    "9 all bodies are compressed": always_squeezed,
    "9 all bodies are said to be compressed": always_mislabelled,
    "15 unsolicited interim answers": interim,
    "15 a late refusal of Expect": sometimes(b"no expectations", 417),
    "6 a body that is cut": cut,
    "8 a page to log in": sometimes(PAGE, 200, Content_Type="text/html"),
}


@pytest.mark.parametrize("name", MEDDLERS)
def test_altered_answers_cost_only_time(name: str) -> None:
    async def main() -> None:
        async with (
            a_relay(relay),
            a_meddler(relay, MEDDLERS[name]) as (url, seen),
            client(url, lanes=SMALL_BODIES) as attachment,
        ):
            await move(attachment, MIB // 2, connections=1)
            assert len(seen) > 10

    with hold_port() as relay:
        run(main())


async def always_a_page(original: Original) -> web.StreamResponse:
    return whole(original, PAGE)


@pytest.mark.parametrize(
    ("meddle", "text"),
    [(always_in_brotli, r"a device on the path compresses answers \(br\)"), (always_a_page, "Log in")],
)
def test_9_a_device_that_alters_every_answer_is_reported(meddle: Meddle, text: str) -> None:
    async def main() -> None:
        async with a_relay(relay), a_meddler(relay, meddle) as (url, _):
            attachment = client(url, attach_timeout=None)
            starting = asyncio.create_task(attachment.start())
            await asyncio.sleep(0)
            await until(lambda: re.search(text, attachment.stats().trouble))
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    with hold_port() as relay:
        run(main())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_17_a_redirect_is_an_error_and_does_not_get_the_token(status: int) -> None:
    async def main() -> None:
        async def listen(original: Original) -> web.StreamResponse:
            raise AssertionError("the client followed the redirect")

        async def redirect(original: Original) -> web.StreamResponse:
            return whole(original, b"", status, Location=f"{elsewhere}/exchange")

        async with (
            a_relay(relay),
            a_meddler(relay, listen) as (elsewhere, seen),
            a_meddler(relay, redirect) as (url, _),
        ):
            with pytest.raises(UnreachableError, match=f"HTTP {status}"):
                await client(url).start()
            assert seen == []

    with hold_port() as relay:
        run(main())


def test_37_a_captured_exchange_is_useless_to_another_user() -> None:
    """If its owner sends it again, it changes nothing; another user gets the answer for an unknown attachment."""

    async def main() -> None:
        async def nothing(original: Original) -> web.StreamResponse:
            return whole(original)

        async with (
            a_relay(relay) as running,
            a_meddler(relay, nothing) as (url, seen),
            client(url, lanes=SMALL_BODIES) as attachment,
            Client(running, "ann") as thief,
            Client(running, "bob") as owner,
        ):
            moving = asyncio.create_task(move(attachment, MIB // 2, connections=1))
            replayed = 0
            while not moving.done():
                await asyncio.sleep(0)
                for original in seen[replayed:]:
                    replayed += 1
                    theirs = await thief.post(original.body)
                    if original.number > 1:  # the first is ATTACH: its secret does not help the thief
                        assert (theirs.status, theirs.message.code) == (404, StatusCode.UNKNOWN)
                        assert (await owner.post(original.body)).status in (200, 409)
            await moving
            assert replayed > 5
            assert (await owner.post(attach_body(9))).status == 200

    with hold_port() as relay:
        run(main())
