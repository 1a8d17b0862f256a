"""Headers of frames: a client cannot fill the broker's memory, or its time, with what is not a body."""

from __future__ import annotations

import asyncio
import json
import struct
from functools import partial
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, until
from tests.messages.streams import stream_pair
from tests.support.loops import in_loop
from tunnel.messages import BrokerClient, CallChannel, MessageTooLargeError, TopicSpec, split_address
from tunnel.messages.broker.protocol import FETCH, METRICS
from tunnel.messages.calls.calls import Request, Response
from tunnel.messages.calls.frames import (
    ANSWER_HEADER_BYTES_MAX,
    FIELDS_MAX,
    REQUEST_HEADER_BYTES_MAX,
    CallHeader,
    FrameDecoder,
    FrameFlag,
    encode_frame,
)
from tunnel.messages.errors import MalformedFrameError, RemoteCallError


def raw_frame(header: dict[str, object], body: bytes = b"") -> bytes:
    data = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


async def ends(client: BrokerClient, data: bytes) -> bool:
    """Whether the broker ends a connection that sends these bytes."""
    reader, writer = await asyncio.open_connection(*split_address(client.address))
    try:
        writer.write(data)
        async with asyncio.timeout(5):
            return not await reader.read(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()


LONG = "x" * REQUEST_HEADER_BYTES_MAX
ATTACKS: dict[str, dict[str, object]] = {
    "a long field": {"code": FETCH, "opaque": 1, "extFields": {"topic": LONG}},
    "a long name": {"code": FETCH, "opaque": 1, "extFields": {LONG: ""}},
    "many fields": {"code": FETCH, "opaque": 1, "extFields": {str(each): "" for each in range(FIELDS_MAX + 1)}},
    "a long remark": {"code": FETCH, "opaque": 1, "remark": LONG},
    "an unknown part": {"code": FETCH, "opaque": 1, "unknown": LONG},
    "an answer": {"code": 0, "opaque": 1, "flag": FrameFlag.RESPONSE, "extFields": {"topic": LONG}},
    "a cancellation": {"code": 0, "opaque": 1, "flag": FrameFlag.CANCEL, "extFields": {"topic": LONG}},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_two_users_a_header_over_its_limits_ends_its_own_connection(attack: str, tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client):
            assert await ends(client, raw_frame(ATTACKS[attack]))
            assert broker.counters.malformed_connections == 1
            await client.producer().send("t", b"of the victim")

    check()


def test_two_users_a_long_header_is_refused_before_it_arrives() -> None:
    decoder = FrameDecoder()
    with pytest.raises(MalformedFrameError, match=f"header of {REQUEST_HEADER_BYTES_MAX + 1} bytes"):
        list(decoder.feed(struct.pack(">II", 1 << 20, REQUEST_HEADER_BYTES_MAX + 1)))
    expecting = FrameDecoder()
    expecting.expects_answers = True
    assert list(expecting.feed(struct.pack(">II", 4 << 20, ANSWER_HEADER_BYTES_MAX))) == []
    expecting = FrameDecoder()
    expecting.expects_answers = True
    assert len(list(expecting.feed(raw_frame(ATTACKS["an answer"])))) == 1
    with pytest.raises(MalformedFrameError, match="a request with a header"):
        list(expecting.feed(raw_frame(ATTACKS["a long field"])))


def test_a_caller_learns_of_a_header_that_is_too_long() -> None:
    for fields in ({"topic": LONG}, {str(each): "" for each in range(FIELDS_MAX + 1)}):
        with pytest.raises(MessageTooLargeError, match="header"):
            encode_frame(CallHeader(FETCH, 1, 0, "", fields))
    answer = encode_frame(CallHeader(0, 1, FrameFlag.RESPONSE, "", {"offsets": LONG}))
    expecting = FrameDecoder()
    expecting.expects_answers = True
    assert len(list(expecting.feed(b"".join(answer)))) == 1


@in_loop
async def test_two_users_the_headers_of_requests_that_wait_are_charged() -> None:
    """As are the objects of a request: neither many fields nor empty bodies come for nothing."""
    refused: list[bool] = []

    async def wait(request: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    async def ask(channel: CallChannel, fields: dict[str, str]) -> None:
        try:
            await channel.call(1, b"", fields)
        except RemoteCallError:
            refused.append(True)

    def has_refused(count: int) -> bool:
        return len(refused) >= count

    for fields, most in (({}, 100), ({"a": "x" * 7000}, 14), ({str(each): "" for each in range(64)}, 20)):
        refused.clear()
        async with (
            stream_pair() as (near, far),
            CallChannel(*far, {1: wait}, handled_bytes_max=100_000),
            CallChannel(*near) as channel,
        ):
            asking = [asyncio.ensure_future(ask(channel, fields)) for _ in range(150)]
            await until(partial(has_refused, 150 - most))
            assert len(refused) < 150
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@in_loop
async def test_two_users_the_charge_of_a_request_ends_with_it(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        for _ in range(50):
            await client.table.call(client.address, METRICS, bytes(1 << 20), {"a": "x" * 7000})
