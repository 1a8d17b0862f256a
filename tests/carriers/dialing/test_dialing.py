"""Where a token may go: over TLS, or within this machine, unless its owner allows more."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.carriers.origin import optional_certificates
from tests.servlet.rig import until
from tests.support.certificates import TLS
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.ground.unused import let_go

CLEAR = [
    ("http://relay.example", None),
    ("http://10.0.0.1:8080", None),
    ("http://127.0.0.1.example", None),
    ("http://localhost.example", None),
    ("http://[fe80::1%25eth0]", None),
    ("http://[::ffff:10.0.0.1]", None),
    ("http://relay.example", "http://127.0.0.1:3128"),
    ("http://relay.example", "https://proxy.example"),
    ("http://127.0.0.1", "http://10.0.0.1:3128"),
    ("http://localhost", "http://proxy.example"),
]
PRIVATE = [
    ("https://relay.example", None),
    ("https://relay.example", "http://proxy.example:3128"),
    ("http://127.0.0.1:8080", None),
    ("http://127.8.9.10", None),
    ("http://[::1]:8080", None),
    ("http://[::ffff:127.0.0.1]", None),
    ("http://localhost.", None),
    ("http://relay.localhost", None),
    ("http://127.0.0.1", "http://localhost:3128"),
    ("http://127.0.0.1", "https://proxy.example"),
]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("127.0.0.1:8080", "is not a relay URL: .*; did you mean 'http://127.0.0.1:8080'"),
        ("relay.example/tunnel", "is not a relay URL: .*; did you mean 'https://relay.example/tunnel'"),
        ("https//relay.example", "; did you mean 'https://relay.example'"),
        ("https:/127.0.0.1:8443/x", "; did you mean 'https://127.0.0.1:8443/x'"),
        ("http:///[::1]:80", r"; did you mean 'http://\[::1\]:80'"),
        ("htp://relay.example", "is not a relay URL: write https://HOST or http://HOST:PORT$"),
        ("http://127.0.0.1 :8080", "is not a relay URL: write https://HOST"),
        ("http://::1:8080", r"is not a URL \(.*\): write an IPv6 address in brackets, http://\[::1\]:8080"),
        ("https://fe80::1:443/x", "write an IPv6 address in brackets"),
        ("http://127.0.0.1:80800", r"is not a URL \(Port out of range 0-65535\): write https://HOST"),
    ],
)
def test_a_relay_s_url_that_was_nearly_right_is_explained(url: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        Dialing(url, proxy=None)


@pytest.mark.parametrize(
    ("token", "error", "message"),
    [
        (b"tnl", TypeError, "the token is a str, not bytes: decode it"),
        ("tnl\n", ValueError, "the token begins or ends with white space: take it without"),
        ("\ttnl", ValueError, "the token begins or ends with white space"),
        ("t nl", ValueError, "has invalid characters: was it copied whole, on one line"),
        ("", ValueError, "the token is empty"),
    ],
)
def test_a_token_that_cannot_be_one_is_explained(token: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dialing("http://127.0.0.1", token=token, proxy=None)


@pytest.mark.parametrize(("relay", "proxy"), CLEAR)
def test_two_users_a_token_does_not_cross_a_network_unencrypted(relay: str, proxy: str | None) -> None:
    with pytest.raises(ValueError, match=r"unencrypted.*write https://, or allow it with --insecure-http"):
        Dialing(relay, token="tnl_x", proxy=proxy)
    assert "Authorization" not in Dialing(relay, proxy=proxy).headers
    assert "Authorization" in Dialing(relay, token="tnl_x", proxy=proxy, insecure_http=True).headers


@pytest.mark.parametrize(("relay", "proxy"), PRIVATE)
def test_a_token_goes_over_tls_or_within_this_machine(relay: str, proxy: str | None) -> None:
    assert "Authorization" in Dialing(relay, token="tnl_x", proxy=proxy).headers


def test_two_users_no_token_reaches_a_proxy_of_the_environment_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ValueError, match=r"through the proxy http://proxy\.example:3128"):
        Dialing("http://relay.localhost", token="tnl_x")


def test_a_program_must_allow_an_unencrypted_token_with_insecure_http() -> None:
    with pytest.raises(ValueError, match=r"attach\(insecure_http=True\)"):
        attach(["https://relay.example", "http://relay.example"], token="tnl_x", proxy=None)
    let_go(attach("http://relay.example", token="tnl_x", proxy=None, insecure_http=True))


@pytest.mark.parametrize("names", [("both.pem",), ("certificate.pem", "both.pem")])
def test_two_users_a_key_that_others_can_read_is_not_used(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes((TLS / "client.pem").read_bytes())
    cert = [str(tmp_path / name) for name in names]
    (tmp_path / "both.pem").chmod(0o600)
    Dialing("https://127.0.0.1", proxy=None, cert=cert)
    (tmp_path / "both.pem").chmod(0o644)
    with pytest.raises(ValueError, match=r"cert=.*both\.pem is open to other users .* ask for a new certificate"):
        Dialing("https://127.0.0.1", proxy=None, cert=cert)


@in_loop
async def test_our_certificate_is_shown_to_the_relay_and_not_to_its_proxy() -> None:
    shown: list[Any] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(writer.get_extra_info("peercert"))
        await reader.read()
        writer.close()

    ca, cert = str(TLS / "ca.pem"), str(TLS / "client.pem")
    dialing = Dialing("https://127.0.0.1", proxy="https://127.0.0.2", ca=ca, cert=cert)
    async with await asyncio.start_server(note, "127.0.0.1", 0, ssl=optional_certificates()) as server:
        port = server.sockets[0].getsockname()[1]
        for context in (dialing.tls, dialing._proxy_tls):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.close()
            await writer.wait_closed()
        await until(lambda: len(shown) == 2)
    assert [bool(certificate) for certificate in shown] == [True, False]


@pytest.mark.parametrize("is_folder", [False, True])
def test_two_users_authorities_that_others_can_add_are_not_trusted(is_folder: bool, tmp_path: Path) -> None:
    folder = tmp_path / "authorities"
    folder.mkdir()
    (folder / "ca.pem").write_bytes((TLS / "ca.pem").read_bytes())
    ca = folder if is_folder else folder / "ca.pem"
    Dialing("https://127.0.0.1", proxy=None, ca=str(ca))
    ca.chmod(0o1777 if is_folder else 0o666)
    with pytest.raises(ValueError, match=r"ca=.*every user of this machine can change"):
        Dialing("https://127.0.0.1", proxy=None, ca=str(ca))
