"""People without the tunnel who mean harm, at the public ports and host names of two users; and which user pays for
them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import uvloop

from tests.servlet.rig import KEYS, LOOPBACK, TOKENS, until
from tests.servlet.web.public_ports_rig import echo, greet, request, rig, shut, talk, usual
from tests.support.loops import in_loop, run
from tunnel import PublicPlace, StreamReader, StreamWriter, attach
from tunnel.turns.meter import Start
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.web.public.request import PublicRequest


@in_loop
async def test_slow_heads_end_with_408_and_other_requests_are_served() -> None:
    async with rig(header_seconds=0.2) as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
        slow = [asyncio.ensure_future(talk(world.http, b"GET / HTTP/1.1\r\nHost: ann.ex")) for _ in range(20)]
        assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")
        for answer in await asyncio.gather(*slow):
            assert answer.startswith(b"HTTP/1.1 408 ")


@in_loop
async def test_a_request_that_is_complete_after_its_place_was_withdrawn_reaches_no_service() -> None:
    reached: list[StreamReader] = []

    async def note(reader: StreamReader, writer: StreamWriter) -> None:
        reached.append(reader)
        writer.close()

    async with rig() as world:
        port = world.ports["ann"]
        server = await world.serve("ann", "web", PublicPlace(port, http=True))
        client, writer = await asyncio.open_connection(LOOPBACK.host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        await until(lambda: world.public.open_connections)
        server.close()
        await until(lambda: not world.public.public_services)
        await world.users["ann"].start_server(note, "web")  # from now on, it is for users alone
        writer.write(b"\r\n")
        assert (await client.read()).startswith(b"HTTP/1.1 503 ")
        assert not reached
        await shut(writer)


@pytest.mark.parametrize("limit", [{"public_connections_per_address_max": 4}, {"public_connections_max": 8}])
@in_loop
async def test_one_address_cannot_take_all_connections(limit: dict[str, Any]) -> None:
    """It gets the number that the operator gave one address, and never more than half of all."""
    async with rig(**limit) as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
        silent = [
            await asyncio.open_connection(LOOPBACK.host, world.http, local_addr=("127.0.0.2", 0)) for _ in range(10)
        ]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in silent[4:]]
        for outcome in await asyncio.gather(*ended, return_exceptions=True):
            assert outcome == b"" or isinstance(outcome, ConnectionError)
        assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")
        await shut(*(writer for _, writer in silent))


@in_loop
async def test_the_strangers_of_one_user_leave_room_for_those_of_another() -> None:
    async with rig(public_connections_max=8) as world:
        await world.serve("ann", "raw", PublicPlace(world.ports["ann"]), echo)
        await world.serve("bob", "other", PublicPlace(world.ports["bob"]), echo)
        held = [await asyncio.open_connection(LOOPBACK.host, world.ports["ann"]) for _ in range(4)]
        for reader, writer in held:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        assert await talk(world.ports["ann"], b"x", ends=True, source="127.0.0.2") in (b"", b"reset")
        assert await talk(world.ports["bob"], b"x", ends=True, source="127.0.0.3") == b"x"
        await shut(*(writer for _, writer in held))


@in_loop
async def test_strangers_never_reach_a_user_who_shares_the_name_but_is_not_public() -> None:
    async with rig() as world:
        share = {user: msgspec.structs.replace(grant, listen=("shared",)) for user, grant in usual(world.ports).items()}
        world.running.relay.reload(replace(world.running.config, grants=world.grants(**share)))
        await world.serve("ann", "shared", PublicPlace(world.ports["ann"]), echo)

        async def private(reader: StreamReader, writer: StreamWriter) -> None:
            writer.write(b"private")
            writer.close()

        await world.users["bob"].start_server(private, "shared")
        for _ in range(4):
            assert await talk(world.ports["ann"], b"x", ends=True) == b"x"


@in_loop
async def test_an_endpoint_of_the_owner_may_be_called_public() -> None:
    """It and the relay's own endpoint for strangers do not replace each other, whichever comes first."""
    place = PublicPlace(host="ann.example", http=True)
    async with rig() as world:
        url = f"http://{world.running.addresses[0]}"
        async with attach(url, token=TOKENS["ann"], name="public", proxy=None, linger=0.1) as first:
            server = await first.start_server(greet, "site", public=place)
            assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")
            assert first.refusal is None
            server.close()
            await until(lambda: not world.public.public_services)
        await world.serve("ann", "site", place)
        async with attach(url, token=TOKENS["ann"], name="public", proxy=None, linger=0.1):
            assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")


@in_loop
async def test_a_user_whose_token_comes_back_gets_strangers_again() -> None:
    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
        assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")
        rest = TokenTable({user: keys for user, keys in KEYS.items() if user != "ann"})
        world.running.relay.reload(replace(world.running.config, tokens=rest))
        await until(lambda: not world.public.public_services)
        world.running.relay.reload(world.running.config)
        async with attach(f"http://{world.running.addresses[0]}", token=TOKENS["ann"], proxy=None, linger=0.1) as again:
            await again.start_server(greet, "site", public=PublicPlace(host="ann.example", http=True))
            assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")


@in_loop
async def test_a_user_cannot_open_and_close_places_without_end() -> None:
    """Each opening takes time from all users, so their number is limited. The limit of one user affects no other."""
    async with rig() as world:
        place, ports = PublicPlace(host="ann.example", http=True), world.public
        refused = 0
        for _ in range(300):
            refused += bool(ports.publish("ann", "site", place))
            ports.withdraw("site")
        assert refused == 200
        assert "were opened within 10 s" in ports.publish("ann", "site", place)
        assert ports.publish("bob", "other", PublicPlace(host="bob.example", http=True)) == ""
        assert world.running.relay.host.switch.stats().attachments <= 4
        ports.withdraw("other")


@in_loop
async def test_no_connection_is_counted_any_more_when_the_strangers_have_gone() -> None:
    async with rig() as world:
        await world.serve("ann", "raw", PublicPlace(world.ports["ann"]), echo)
        server = await world.serve("bob", "site", PublicPlace(host="bob.example", http=True))
        for number in range(30):
            _, writer = await asyncio.open_connection(LOOPBACK.host, world.ports["ann"] if number % 2 else world.http)
            writer.write(b"GET / HTTP/1.1\r\nHost: bob.example\r\n\r\n")
            writer.transport.abort()
            await shut(writer)
        await until(lambda: world.public.open_connections == 0)
        server.close()
        assert await talk(world.ports["ann"], b"x", ends=True) == b"x"
        await until(lambda: world.public.open_connections == 0)


@in_loop
async def test_the_rate_of_the_owner_and_no_other_holds_for_strangers() -> None:
    async with rig() as world:
        port = world.ports["ann"]
        slow = msgspec.structs.replace(usual(world.ports)["ann"], rate=256 << 10)
        world.running.relay.reload(replace(world.running.config, grants=world.grants(ann=slow)))
        await world.serve("ann", "raw", PublicPlace(port), echo)
        payload = bytes(100_000)
        assert await talk(port, payload, ends=True) == payload
        waits = world.running.relay.host.switch.rate_waits(0)
        assert {(each.user, each.rule, each.direction) for each in waits} == {("ann", "", "up"), ("ann", "", "down")}


CHUNKED = b"POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\na\r\n"


@contextmanager
def feeds() -> Iterator[list[int]]:
    """Yield a list that collects the sizes of the pieces that the relay parses."""
    sizes: list[int] = []
    feed = PublicRequest.feed

    def noted(self: PublicRequest, data: bytes) -> bytes:
        sizes.append(len(data))
        return feed(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublicRequest, "feed", noted)
        yield sizes


def test_tiny_chunks_are_parsed_in_small_pieces_for_which_the_owner_pays() -> None:
    """Otherwise one read of 256 KiB would stop the loop, and so all users, for half a second."""

    async def scenario() -> None:
        async with rig() as world:
            read: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            async def count(reader: StreamReader, writer: StreamWriter) -> None:
                data = await reader.readuntil(b"0\r\n\r\n")
                read.set_result(data.count(b"a"))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                writer.close()

            await world.serve("ann", "site", PublicPlace(host="ann.example", http=True), count)
            await world.serve("bob", "other", PublicPlace(host="bob.example", http=True))
            paid: Counter[str] = Counter()
            turns = world.running.relay.host.turns
            spent_since = turns.spent_since

            def noted(user: str, began: Start) -> float:
                paid[user] += 1
                return spent_since(user, began)

            turns.spent_since = noted  # type: ignore[method-assign]
            with feeds() as sizes:
                busy = asyncio.ensure_future(talk(world.http, CHUNKED % b"ann.example" + TINY * 9_000 + b"0\r\n\r\n"))
                assert (await request(world.http, "bob.example", source="127.0.0.2")).startswith(b"HTTP/1.1 200")
                assert (await busy).startswith(b"HTTP/1.1 200")
            assert await read >= 9_000
            assert max(sizes) <= 2048
            assert paid["@strangers"] == 2  # for parsing the heads of the two requests
            assert paid["ann"] >= len(sizes) - 3

    run(scenario(), uvloop.new_event_loop)


@in_loop
async def test_chunks_for_an_unknown_host_are_not_parsed_after_the_answer() -> None:
    async with rig() as world:
        with feeds() as sizes:
            answer = await talk(world.http, CHUNKED % b"nobody.example" + TINY * 10_000)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert sum(sizes) <= 2048
        await until(lambda: world.public.open_connections == 0)
