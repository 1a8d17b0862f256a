"""The scripted proxy: its behaviours, all but the delay, in front of an upstream that answers every request with the
request's body, version and names of fields."""

import asyncio

import pytest

from tests.field.flows import SCANNED
from tests.field.messages import encode, read_body, read_head
from tests.field.rig import _WAIT_S, a_front, a_proxy, answer_all
from tests.field.scripted import BEHAVIOURS, Behaviour
from tests.support.loops import in_loop


async def answer_with_the_names(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the names of the request's fields as the body, which no proxy that strips headers changes."""
    head = await read_head(reader)
    assert head is not None
    await read_body(reader, head, is_answer=False)
    fields = {"x-other": "x", "date": "today", "cache-control": "no-store"}
    writer.write(encode("HTTP/1.1 200 OK", fields, " ".join(head.fields).encode(), {}))
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("status", ["401", "404", "407"])
@in_loop
async def test_one_request_in_a_number_fails_with_a_status(status: str) -> None:
    async with a_proxy(Behaviour(fails_every=3, failure=status)) as connect:
        assert await (await connect()).statuses(6) == f"200 200 {status} 200 200 {status}"


@in_loop
async def test_one_request_in_a_number_is_reset() -> None:
    async with a_proxy(Behaviour(fails_every=2, failure="reset")) as connect:
        client = await connect()
        assert await client.statuses(1) == "200"
        with pytest.raises(ConnectionResetError):
            await client.ask()


@in_loop
async def test_one_answer_in_a_number_is_cut_in_its_middle() -> None:
    async with a_proxy(Behaviour(fails_every=2, failure="half")) as connect:
        client = await connect()
        assert (await client.ask(b"x" * 1000))[1] == b"x" * 1000
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await client.ask(b"x" * 1000)
        assert 0 < len(caught.value.partial) < 1000


@in_loop
async def test_early_hints_come_before_each_answer() -> None:
    async with a_proxy(Behaviour(early_hints=True)) as connect:
        client = await connect()
        client.writer.write(encode("POST /x HTTP/1.1", {"host": "h"}, b"", {}))
        heads = [await read_head(client.reader), await read_head(client.reader)]
        assert [head.words[1] for head in heads if head is not None] == ["103", "200"]


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(requests_bytes_max=1000),
        Behaviour(answers_bytes_max=1000),
        Behaviour(quiet_after_bytes=1000),
        Behaviour(segment_bytes_max=1000),
    ],
    ids=["requests", "answers", "connections", "segments"],
)
@in_loop
async def test_what_is_too_large_vanishes_and_all_that_follows_on_the_connection(behaviour: Behaviour) -> None:
    async with a_proxy(behaviour) as connect:
        lossy, other = await connect(), await connect()
        assert (await other.ask(b"x" * 100))[1] == b"x" * 100
        for size in (2000, 100):
            lossy.writer.write(encode("POST /x HTTP/1.1", {"host": "h"}, b"x" * size, {}))
        lossy.writer.write_eof()
        assert await lossy.reader.read() == b""


@in_loop
async def test_a_connection_ends_when_it_has_carried_its_quota() -> None:
    async with a_proxy(Behaviour(bytes_per_connection=1000)) as connect:
        client = await connect()
        assert (await client.ask(b"x" * 300))[1] == b"x" * 300
        assert (await client.ask(b"x" * 900))[1] == b"x" * 900
        assert await client.reader.read() == b""


@in_loop
async def test_a_shaper_passes_all_bytes_on_whatever_they_are() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5000))
        await writer.drain()
        writer.close()

    async with a_proxy(Behaviour(bytes_per_s=1 << 20), echo) as connect:
        client = await connect()
        client.writer.write(bytes(range(250)) * 20)
        assert await client.reader.read() == bytes(range(250)) * 20


@in_loop
async def test_it_forwards() -> None:
    async with a_proxy(Behaviour()) as connect:
        client = await connect()
        head, body = await client.ask(b"abc", {"tunnel-role": "endpoint"})
        assert (head.words[1], body, head.fields["x-version"]) == ("200", b"abc", "HTTP/1.1")
        assert "tunnel-role" in head.fields["x-fields"]
        assert await client.statuses(3) == "200 200 200"


@in_loop
async def test_the_first_requests_are_redirected_to_a_login_page() -> None:
    async with a_proxy(Behaviour(login_first=2)) as connect:
        client = await connect()
        head, _ = await client.ask()
        assert head.fields["location"] == "http://login.invalid/"
        assert await client.statuses(2) == "302 200"


@pytest.mark.parametrize("status", [302, 403])
@in_loop
async def test_an_outage_begins_once_bytes_have_moved(status: int) -> None:
    async with a_proxy(Behaviour(outage_status=status, outage_after_bytes=10, outage_s=_WAIT_S)) as connect:
        client = await connect()
        assert (await client.ask(b"12345"))[1] == b"12345"
        assert await client.statuses(2) == f"{status} {status}"


@in_loop
async def test_an_outage_of_0_s_refuses_nothing() -> None:
    async with a_proxy(Behaviour(outage_status=403, outage_after_bytes=1, outage_s=0)) as connect:
        client = await connect()
        assert (await client.ask(b"12345"))[1] == b"12345"
        assert await client.statuses(2) == "200 200"


@in_loop
async def test_one_answer_in_three_is_empty() -> None:
    async with a_proxy(Behaviour(empty_every=3)) as connect:
        client = await connect()
        assert [(await client.ask(b"x"))[1] for _ in range(6)] == [b"x", b"x", b"", b"x", b"x", b""]


@in_loop
async def test_further_connections_wait() -> None:
    async with a_proxy(Behaviour(connections_max=1)) as connect:
        first, second = await connect(), await connect()
        assert await first.statuses(1) == "200"
        waiting = asyncio.ensure_future(second.statuses(1))
        assert await first.statuses(2) == "200 200"
        assert not waiting.done()
        first.writer.close()
        assert await waiting == "200"


@pytest.mark.parametrize(("closes", "told"), [("told", "close"), ("silently", None)])
@in_loop
async def test_it_closes_after_an_answer(closes: str, told: str | None) -> None:
    async with a_proxy(Behaviour(closes=closes)) as connect:
        client = await connect()
        head, _ = await client.ask()
        assert head.fields.get("connection") == told
        assert await client.reader.read() == b""


@in_loop
async def test_unknown_headers_are_stripped_from_requests_and_from_answers() -> None:
    sent = {"tunnel-role": "endpoint", "cache-control": "no-store", "accept": "*/*"}
    async with a_proxy(Behaviour(strips_headers=True), answer_with_the_names) as connect:
        head, names = await (await connect()).ask(b"", sent)
        assert set(names.decode().split()) == {"host", "authorization", "accept", "content-length", "connection"}
        assert set(head.fields) == {"date", "content-length"}


@pytest.mark.parametrize(
    ("alters", "sent", "comes"),
    [
        ("line-ends", b"a\nb\r\n\r", b"a\r\nb\r\n\r"),
        ("letters", b"a\xffb", "a\ufffdb".encode()),
        ("percents", b"%41%zz%", b"A%zz%"),
        ("zeros", b"a\0b", b"ab"),
        ("ends", b" a \r\n", b" a"),
    ],
)
@in_loop
async def test_bodies_arrive_altered(alters: str, sent: bytes, comes: bytes) -> None:
    async with a_proxy(Behaviour(alters=alters)) as connect:
        assert (await (await connect()).ask(sent))[1] == comes


@in_loop
async def test_the_type_of_requests_and_answers_is_replaced() -> None:
    async def answer_with_the_type(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        assert head is not None
        await read_body(reader, head, is_answer=False)
        writer.write(encode("HTTP/1.1 200 OK", {"content-type": "a/b"}, head.fields["content-type"].encode(), {}))
        await writer.drain()
        writer.close()

    async with a_proxy(Behaviour(types="text/plain"), answer_with_the_type) as connect:
        head, body = await (await connect()).ask(b"x", {"content-type": "c/d"})
        assert (head.fields["content-type"], body) == ("text/plain", b"text/plain")


@in_loop
async def test_it_speaks_http_1_0() -> None:
    async with a_proxy(Behaviour(http_10=True)) as connect:
        client = await connect()
        head, _ = await client.ask()
        assert (head.words[0], head.fields["x-version"]) == ("HTTP/1.0", "HTTP/1.0")
        assert await client.reader.read() == b""


@pytest.mark.parametrize(("scans", "status"), [("403", "403"), ("page", "200")])
@in_loop
async def test_a_scanner_answers_in_place_of_the_relay(scans: str, status: str) -> None:
    async with a_proxy(Behaviour(scans=scans)) as connect:
        client = await connect()
        head, body = await client.ask(b"before " + SCANNED[0] + b" after")
        assert (head.words[1], b"blocked" in body) == (status, True)
        assert (await client.ask(b"harmless"))[1] == b"harmless"


@in_loop
async def test_a_scanner_resets() -> None:
    async with a_proxy(Behaviour(scans="reset")) as connect:
        client = await connect()
        client.writer.write(encode("POST /x HTTP/1.1", {"host": "h"}, SCANNED[1], {}))
        with pytest.raises(ConnectionResetError):  # and not an end of stream
            await client.reader.read()


@in_loop
async def test_an_upstream_that_is_down_is_a_502() -> None:
    upstream = await asyncio.start_server(answer_all, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]
    upstream.close()
    await upstream.wait_closed()
    async with a_front(Behaviour(), port) as connect:
        assert await (await connect()).statuses(1) == "502"


def test_every_behaviour_does_something() -> None:
    assert all(behaviour != Behaviour() for behaviour in BEHAVIOURS.values())
