"""The request that turns an HTTP connection into a raw one: what it takes over, and where it must not go."""

import asyncio
from typing import cast

import pytest

from tests.carriers.origin import Origin, answer
from tests.support.loops import in_loop
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.links.dialed_link import DialedLink, LinkOwner
from tunnel.carriers.links.upgrade import UpgradeRefusedError, upgrade

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel-link/1\r\n\r\n"


@in_loop
async def test_bytes_that_arrive_with_the_101_are_kept() -> None:
    async with Origin(SWITCHING + b"the first message") as relay:
        upgraded = await upgrade(Dialing(relay.url, proxy=None))
        assert upgraded.early == b"the first message"
        upgraded.transport.abort()
        upgraded.on_lost(None)
        await upgraded.close()


@in_loop
async def test_the_token_follows_no_redirect_of_a_link() -> None:
    async with Origin(answer("200 OK")) as other, Origin(b"") as relay:
        relay.response = answer("307 Temporary Redirect", Location=f"{other.url}/link")
        with pytest.raises(UpgradeRefusedError, match="HTTP 307"):
            await upgrade(Dialing(relay.url, token="tnl_x", proxy=None))
        assert other.heads == []
        assert "Authorization: Bearer tnl_x" in relay.heads[0]


@in_loop
async def test_a_page_in_place_of_an_upgrade_is_quoted_without_its_tags() -> None:
    head = b"<!DOCTYPE html><html><head><style>" + b"p {}" * 100 + b"</style>"
    for page, said in ((head + b"<title>Blocked</title>", "the page 'Blocked'"), (b"<h1>Bad</h1>\n<p>no", "Bad no")):
        async with Origin(answer("403 Forbidden", page)) as relay:
            with pytest.raises(UpgradeRefusedError) as caught:
                await upgrade(Dialing(relay.url, proxy=None))
        assert str(caught.value) == f"HTTP 403 instead of an upgrade: {said}"


@in_loop
async def test_a_refused_upgrade_leaves_no_connection_open() -> None:
    async with Origin(answer("404 Not Found", b"no link here")) as relay:
        with pytest.raises(UpgradeRefusedError, match="HTTP 404 instead of an upgrade: no link here"):
            await upgrade(Dialing(relay.url, proxy=None))
        async with asyncio.timeout(10):
            assert await relay.ended.get() == relay.ports[0]


@in_loop
@pytest.mark.parametrize("more", [b"Content-Length: 0", b"Connection: close"])
async def test_a_connection_that_ends_with_the_101_is_called_so(more: bytes) -> None:
    """Some proxies end the answer where the link would begin."""
    async with Origin(b"HTTP/1.1 101 Switching Protocols\r\n" + more + b"\r\n\r\n") as relay:
        with pytest.raises(ConnectionResetError, match="ended the connection with the answer 101"):
            (await upgrade(Dialing(relay.url, proxy=None))).transport.abort()


class LostTransport(asyncio.Transport):
    """As asyncio's, once it was lost while it was closing with bytes to write."""

    def abort(self) -> None:
        raise AttributeError("'NoneType' object has no attribute 'call_soon'")


@in_loop
async def test_an_upgraded_connection_that_was_lost_is_closed_without_an_abort() -> None:
    async with Origin(SWITCHING) as relay:
        upgraded = await upgrade(Dialing(relay.url, proxy=None))
        upgraded.transport.abort()
        upgraded.on_lost(None)
        upgraded.transport = LostTransport()
        await upgraded.close()


@in_loop
async def test_a_link_that_was_lost_is_not_aborted() -> None:
    lost: list[str] = []

    class Owner:
        def link_lost(self, link: DialedLink, reason: str) -> None:
            lost.append(reason)

    link = DialedLink(cast(LinkOwner, Owner()), lambda: 0, lambda error: None)
    link._transport = LostTransport()
    link.connection_lost(None)
    link.abort()
    assert lost == ["the connection was closed"]
