"""The link beside the lanes: opened, lost, silent, refused (section 8)."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiohttp import web

import tunnel
from tests.carriers.harness import MIB, ask, echo, end, noise, say_and_hear
from tests.carriers.rig import moved_by, until
from tests.support.certificates import TLS
from tests.support.http_relay import LinkTestRelay, token_of
from tests.support.loops import HANGING_S, in_loop, in_loop_within, run
from tests.support.proxies import UpstreamProxy
from tunnel.carriers.halves.link_protocol import LINK_LANE
from tunnel.carriers.links.dialed_link import hello
from tunnel.exchange import Next, Refusal
from tunnel.system.clock import now_us
from tunnel.wire import Exchange, decode_envelope


@in_loop
async def test_a_link_carries_everything_and_nothing_is_pulled() -> None:
    async with LinkTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        assert (moved_by(service), moved_by(client)) == ("link", "link")
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        before = relay.requests
        await ask(reader, writer, noise(2 * MIB))
        assert relay.requests <= before + 2  # pulls that the relay held when the link opened
        await end(writer)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_link_works_over_tls(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem")

    async def main() -> None:
        ca = str(TLS / "ca.pem")
        async with (
            LinkTestRelay(tls=context) as relay,
            UpstreamProxy() as proxy,
            relay.attach("ann", ca=ca) as service,
            relay.attach("bob", ca=ca, proxy=f"http://127.0.0.1:{proxy.port}") as client,
        ):
            assert (moved_by(service), moved_by(client)) == ("link", "link")
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            await ask(reader, writer, noise(MIB))
            await end(writer)

    run(main(), new_loop)


@in_loop
async def test_after_a_restart_of_the_relay_both_links_open_again() -> None:
    async with LinkTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        relay.restart()
        await ask(reader, writer, noise(MIB))
        await until(lambda: moved_by(client) == moved_by(service) == "link")
        await end(writer)


GREETINGS = {
    "a page": b"<html>hello",
    "the end": b"",
    "too much": b"TUNL\x01\x04\x00\x00\x7f\xff\xff\xff" + bytes(100),
}


@pytest.mark.parametrize("greeting", GREETINGS)
def test_lanes_carry_on_whatever_answers_the_request_for_a_link(greeting: str) -> None:
    class Strange(LinkTestRelay):
        async def take_link(self, request: web.Request, transport: asyncio.Transport) -> None:
            transport.write(GREETINGS[greeting])
            transport.close()

    async def main() -> None:
        async with Strange() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
            assert (moved_by(service), moved_by(client)) == ("poll", "poll")
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            await ask(reader, writer, noise(10_000))
            await end(writer)

    run(main())


def test_an_attachment_that_ends_while_its_link_opens_ends_the_link_and_causes_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay has accepted the link and has not greeted yet. An error that only the loop reports would count, too."""
    # The client then waits for the greeting for days.
    monkeypatch.setattr("tunnel.carriers.links.link_opener.SECOND", 1)
    accepted: asyncio.Queue[asyncio.Transport] = asyncio.Queue()
    told: list[str] = []

    class Listener:
        def read_closed(self, text: str) -> None:
            told.append(text)

    class Slow(LinkTestRelay):
        async def take_link(self, request: web.Request, transport: asyncio.Transport) -> None:
            accepted.put_nowait(transport)
            await asyncio.Event().wait()  # until the end of the connection cancels this handler

    @in_loop_within(HANGING_S)
    async def scenario() -> None:
        async with Slow() as relay:
            async with relay.attach("ann", carrier="auto") as client:
                client.add_error_listener(Listener())
                transport = await accepted.get()
                await until(lambda: client._endpoint._driver.carrier._opener._greeting is not None)  # type: ignore[union-attr]
                assert not transport.is_closing()
            await until(transport.is_closing)
            assert relay.links == 1
        assert told == []

    scenario()


def test_the_greeting_names_the_attachment() -> None:
    message = decode_envelope(hello(b"i" * 16, 5, 7))
    assert isinstance(message, Exchange)
    assert (message.attachment_id, message.epoch, message.generation) == (b"i" * 16, 5, 7)
    assert (message.lane, message.number, message.serial_received, message.data) == (LINK_LANE, 0, 0, b"")


def test_the_greeting_asks_to_share_the_load() -> None:
    message = decode_envelope(hello(b"i" * 16, 5, 7, shares=True))
    assert isinstance(message, Exchange)
    assert message.serial_received == 1


@in_loop
async def test_receipts_on_a_link_show_that_the_relay_still_knows_the_attachment() -> None:  # 6.3
    async with LinkTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        lanes = client._endpoint._driver.carrier._lanes  # type: ignore[union-attr]
        before_us = lanes.path.known_us
        await ask(reader, writer, b"are you there?")
        await until(lambda: lanes.path.known_us > before_us)
        await end(writer)


@in_loop
async def test_a_spare_link_takes_over_from_a_link_that_is_cut() -> None:
    async with LinkTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob", links=3) as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        for number in range(4):
            await until(lambda: client.stats().carrier.endswith("over 3 connections"))
            asking = asyncio.create_task(ask(reader, writer, noise(MIB, number)))
            await asyncio.sleep(0)
            ends = [link for link in relay.host.links.values() if link.identity.user == "bob"]  # type: ignore[attr-defined]
            for link in ends[number % 2 : number % 2 + 2]:
                link.end("cut by the test")
            await asking
            assert moved_by(client) == "link"
        await end(writer)


@in_loop
async def test_a_spare_link_takes_over_from_a_silent_one() -> None:
    async with LinkTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob", links=2) as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await until(lambda: client.stats().carrier.endswith("over 2 connections"))
        first = next(link for link in relay.host.links.values() if link.identity.user == "bob")  # type: ignore[attr-defined]
        first._transport.pause_reading()  # type: ignore[attr-defined]
        await ask(reader, writer, b"are you there?")
        assert moved_by(client) == "link"
        await end(writer)


@in_loop
async def test_all_links_carry_both_ways() -> None:
    async with LinkTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob", links=3) as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await until(lambda: client.stats().carrier.endswith("over 3 connections"))
        links = [link for link in relay.host.links.values() if link.identity.user == "bob"]  # type: ignore[attr-defined]
        await ask(reader, writer, noise(16 * MIB))
        assert all(link.state._sent and link.state._received for link in links)  # type: ignore[attr-defined]
        await end(writer)


class Banning(LinkTestRelay):
    """Accepts one link. After `may_answer`, it asks for a pause of 25 s in answer to each request for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if not self.links:
            return await super()._link(request)
        self.links += 1
        await self.may_answer.wait()
        return web.Response(status=429, headers={"Retry-After": "25"})


@in_loop
async def test_no_spare_link_is_opened_and_none_again_in_a_pause_that_a_refused_upgrade_asks_for() -> None:
    relay = Banning()
    async with relay, relay.attach("bob", links=2) as client:
        relay.may_answer.set()
        await until(lambda: relay.links == 2)
        await asyncio.sleep(1)  # without a pause, a spare is tried again after 0.1 s, 0.2 s, 0.4 s
        assert relay.links == 2
        next(iter(relay.host.links.values())).end("cut by the test")
        await asyncio.sleep(1)  # and a link that was lost after 0.1 s
        assert relay.links == 2
        assert client.stats().roads[0].state == "resting"


@in_loop
async def test_a_renewal_that_waited_for_the_end_of_another_try_waits_for_the_pause_after_it() -> None:
    relay = Banning()
    async with relay, relay.attach("bob", links=2) as client:
        await until(lambda: relay.links == 2)
        client.renew_secrets(token=token_of("bob"), proxy=None)
        await asyncio.sleep(0.2)  # the renewal is due
        relay.may_answer.set()
        await asyncio.sleep(1)
        assert relay.links == 2


@in_loop
async def test_a_road_that_waits_for_the_end_of_held_pulls_waits_for_a_pause_too() -> None:
    relay = LinkTestRelay()
    relay.refuse_links = True
    async with relay, relay.attach("bob") as client:
        await until(lambda: relay.links == 1)
        carrier: Any = client._endpoint._driver.carrier  # type: ignore[union-attr]
        carrier._lanes.set_holding(False)
        await client.start_server(echo, "echo")  # its answer ends the pull that is held
        await until(lambda: not carrier._lanes.holds)
        links = relay.links
        carrier._lanes.path.backoff.on_refused(Refusal.BANNED, now_us(), now_us(), retry_after_us=25_000_000)
        assert not carrier._tries.want("link", now_us(), is_narrow=True, carries=False)
        await asyncio.sleep(1)
        assert (relay.links, carrier._tries.next) == (links, Next.PULL)


@in_loop
async def test_a_pause_that_the_refusal_of_a_link_asks_for_ends_for_exchanges_too() -> None:
    """The lanes wait for the end of a hold meanwhile, so they must learn when the pause ends."""

    class Busy(LinkTestRelay):
        lanes: Any = None

        async def _link(self, request: web.Request) -> web.StreamResponse:
            await until(lambda: self.lanes is not None)
            self.lanes._exchanges.nothing_due_until_us = now_us() + 15_000_000
            return web.Response(status=429, headers={"Retry-After": "2"})

    relay = Busy()
    async with relay, relay.attach("bob") as client:
        carrier: Any = client._endpoint._driver.carrier  # type: ignore[union-attr]
        relay.lanes = lanes = carrier._lanes
        await until(lambda: lanes.path.backoff.next_us > now_us())
        assert lanes.next_timeout() <= lanes.path.backoff.next_us


@in_loop
async def test_a_ban_that_a_link_ends_leaves_a_gap_for_exchanges() -> None:
    """As one does that an exchange ends: otherwise they earn it again."""

    class Busy(LinkTestRelay):
        is_banned = False

        async def _link(self, request: web.Request) -> web.StreamResponse:
            await until(lambda: self.is_banned)
            return await super()._link(request)

    relay = Busy()
    async with relay, relay.attach("bob", carrier="auto") as client:
        carrier: Any = client._endpoint._driver.carrier  # type: ignore[union-attr]
        path = carrier._lanes.path
        await until(lambda: relay.links == 0 and carrier._opener._opening is not None)
        now = now_us()
        for _ in range(50):
            path.backoff.on_sent(now)
        path.backoff.on_refused(Refusal.BANNED, now, now, retry_after_us=60_000_000)
        path.backoff._ban_us = 1  # its pause has ended, and a link's request left then
        path.backoff._row.first_us = 0
        relay.is_banned = True
        await until(lambda: moved_by(client) == "link")
        assert path.pace.gap_us > 0


@in_loop
async def test_links_open_at_the_urls_of_a_relay_by_turns() -> None:
    hosts: list[str] = []

    class Noting(LinkTestRelay):
        async def _link(self, request: web.Request) -> web.StreamResponse:
            hosts.append(request.url.host or "")
            return await super()._link(request)

    async with Noting() as relay:
        urls = [relay.url, relay.url.replace("127.0.0.1", "localhost")]
        async with tunnel.attach(urls, token=token_of("bob"), proxy=None, carrier="link", links=2) as client:
            for count in range(2, 6):
                await until(lambda: client.stats().carrier.endswith("over 2 connections"))
                assert hosts == (["127.0.0.1", "localhost"] * 3)[:count]
                next(iter(relay.host.links.values())).end("cut by the test")
                await until(lambda count=count: len(hosts) > count)  # type: ignore[misc]


@pytest.mark.parametrize(("url", "links"), [("http://127.0.0.1:1", 0), ("http://127.0.0.1:1", 5), ([], 1)])
def test_links_and_urls_are_checked(url: str | list[str], links: int) -> None:
    with pytest.raises(ValueError, match="at least one URL" if not url else f"from 1 to 4 links, not {links}"):
        tunnel.attach(url, links=links)
