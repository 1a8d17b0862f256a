"""The doctor's exchanges: an examination must neither give the token away nor weaken what follows it."""

import aiohttp
import pytest

from loadtests.harness.ports import hold_port
from tests.carriers.origin import Origin, answer
from tests.carriers.test_poll import server_tls
from tests.support.loops import in_loop
from tunnel.carriers.dialing import Dialing
from tunnel.carriers.probe import ProbeError, Prober
from tunnel.carriers.probe_certificate import issuer_of


@in_loop
async def test_examining_a_certificate_sends_no_token_to_a_server_that_is_not_trusted() -> None:
    async with Origin(answer("404 Not Found"), tls=server_tls()) as stranger:
        assert await issuer_of(Dialing(stranger.url, token="tnl_x", proxy=None))
        assert stranger.heads
        assert [head for head in stranger.heads if "tnl_x" in head or "authorization" in head.lower()] == []


@in_loop
async def test_after_a_certificate_was_examined_servers_are_verified_again() -> None:
    async with Origin(answer("404 Not Found"), tls=server_tls()) as stranger:
        dialing = Dialing(stranger.url, token="tnl_x", proxy=None)
        assert await issuer_of(dialing)
        before = len(stranger.heads)
        async with dialing.session() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(dialing.url("exchange"), headers=dialing.headers)
        assert len(stranger.heads) == before


@in_loop
async def test_after_an_examination_that_failed_servers_are_verified_as_before() -> None:
    with hold_port() as port:
        dialing = Dialing(f"https://127.0.0.1:{port}", proxy=None)
        before = dialing.tls
        with pytest.raises(ProbeError, match="the connection was refused"):
            await issuer_of(dialing)
        assert dialing.tls is before


@in_loop
async def test_the_token_of_a_probe_follows_no_redirect() -> None:
    async with Origin(answer("200 OK")) as other, Origin(b"") as relay:
        relay.response = answer("307 Temporary Redirect", Location=f"{other.url}/exchange")
        async with Prober(Dialing(relay.url, token="tnl_x", proxy=None)) as prober:
            assert (await prober.attach()).status == 307
        assert other.heads == []
        assert "Authorization: Bearer tnl_x" in relay.heads[0]
