"""The options of `tunnel expose` for people without the tunnel: mistakes, and a public port that leads to a service."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.harness.ports import hold_port
from tests.client.cli.commands.rig import LOOPBACK, echo, target
from tests.servlet.rig import TOKENS, relay, settings
from tests.support.loops import in_loop
from tunnel import DeniedError, PublicPlace, attach
from tunnel.ground.exit_codes import USAGE
from tunnel_client.cli.commands.expose import Exposing
from tunnel_client.cli.main import main
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address
from tunnel_servlet.access.grants import Grant, GrantTable, parse_public_address


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("a", "b:1", "--client-address", "none"), "--client-address needs --public PORT or --public-host HOST"),
        (("a", "b:1", "c", "d:1", "--public", "80"), "concern one service: start a command for each"),
        (("udp/a", "b:1", "--public", "80"), "reach no service of datagrams: leave the public port out"),
        (
            ("a", "b:1", "--public-host", "x y"),
            "--public-host x y: x y is no public place: give a port from 1 to 65535",
        ),
        (("a", "b:1", "--public-host", "10.0.0.1"), "10.0.0.1 is no public place"),
        (("a", "b:1", "--public", "80", "--encryption", "require"), "leave out --encryption require"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expose", *words, "--relay", "http://127.0.0.1:1", "--insecure-http"]) == USAGE
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", ""])
def test_a_word_that_is_no_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["expose", "a", "b:1", f"--public={port}"])
    assert "is not a port from 1 to 65535" in capsys.readouterr().err


@in_loop
async def test_a_public_port_leads_to_the_local_service_and_another_user_is_refused() -> None:
    with hold_port() as port:
        ann = Grant(listen=("*",), public=(parse_public_address(f"{LOOPBACK}:{port}"),))
        grants = GrantTable({"ann": ann, "bob": Grant(listen=("*",))})
        async with target(echo) as local, relay(settings(grants=grants, switch={"settle_us": 1})) as running:
            url = f"http://{running.addresses[0]}"
            async with (
                attach(url, token=TOKENS["ann"], proxy=None, linger=0.1) as one,
                attach(url, token=TOKENS["bob"], proxy=None, linger=0.1) as other,
            ):
                place = PublicPlace(port)
                with pytest.raises(DeniedError, match="no rule allows the user port"):
                    async with Exposing(other, "b", Address(LOOPBACK, local), Traffic(other), public=place):
                        pass
                async with Exposing(one, "a", Address(LOOPBACK, local), Traffic(one), public=place):
                    reader, writer = await asyncio.open_connection(LOOPBACK, port)
                    writer.write(b"hello")
                    writer.write_eof()
                    assert await reader.read() == b"hello"
                    writer.close()
                    await writer.wait_closed()
