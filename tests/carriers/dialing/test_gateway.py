"""Headers, Host and the name in TLS for a gateway before the relay: where they go, and where they must not go."""

import ssl
from typing import Any

import aiohttp
import pytest

from tests.carriers.origin import Origin, answer
from tests.support.certificates import CA, server_tls
from tests.support.loops import in_loop
from tests.support.proxies import UpstreamProxy
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.dialing.gateway import make_gateway
from tunnel.carriers.links.upgrade import UpgradeRefusedError, upgrade
from tunnel.carriers.links.websocket_dial import open_websocket
from tunnel.carriers.probes.probe import Prober
from tunnel.carriers.probes.probe_certificate import issuer_of
from tunnel.ground.relay_options import RelayOptions

SECRET = "s3cret-value"
HEADERS = {"CF-Access-Client-Id": "id.access", "CF-Access-Client-Secret": SECRET}


def tls(names: list[str | None]) -> ssl.SSLContext:
    """Return a server's context for localhost and 127.0.0.1, which records the name that each client asks for."""
    context = server_tls()
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    return context


async def ask(dialing: Dialing) -> int:
    """Send one request as carriers do, and return the status of the answer."""
    async with dialing.session() as session:
        response = await session.get(dialing.url("exchange"), headers=dialing.headers, proxy=dialing.proxy)
        response.close()
        return response.status


@in_loop
async def test_every_request_has_the_headers_and_the_host() -> None:
    async with Origin(answer("404 Not Found")) as relay:
        dialing = Dialing(relay.url, token="tnl_x", proxy=None, headers=HEADERS, hostname="relay.example:8443")
        assert await ask(dialing) == 404
        with pytest.raises(UpgradeRefusedError):
            await upgrade(dialing)
        async with Prober(dialing) as prober:
            await prober.page()
            await prober.attach()
    assert len(relay.heads) == 4
    for head in relay.heads:
        assert "\r\nHost: relay.example:8443\r\n" in head
        assert f"\r\nCF-Access-Client-Secret: {SECRET}\r\n" in head
    assert sum("Authorization: Bearer tnl_x" in head for head in relay.heads) == 3  # not in the request for the page


@pytest.mark.parametrize(
    ("host", "sni", "asked"),
    [
        ("localhost", None, "localhost"),
        ("localhost:8443", None, "localhost"),
        ("relay.example", "localhost", "localhost"),
        (None, "localhost", "localhost"),
        (None, None, None),  # an IP address is not sent as a name
    ],
)
@in_loop
async def test_the_certificate_is_for_the_name_that_tls_asks_for(
    host: str | None, sni: str | None, asked: str | None
) -> None:
    names: list[str | None] = []
    async with Origin(answer("200 OK"), tls=tls(names)) as relay:
        assert await ask(Dialing(relay.url, proxy=None, ca=CA, hostname=host, sni=sni)) == 200
        assert f"\r\nHost: {host or relay.url[8:]}\r\n" in relay.heads[0]
    assert names == [asked]


@pytest.mark.parametrize(("host", "sni"), [("other.example", None), ("localhost", "other.example")])
@in_loop
async def test_a_certificate_for_another_name_is_refused_before_any_request(host: str, sni: str | None) -> None:
    names: list[str | None] = []
    async with Origin(answer("200 OK"), tls=tls(names)) as relay:
        dialing = Dialing(relay.url, proxy=None, ca=CA, headers=HEADERS, hostname=host, sni=sni)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(dialing)
        assert relay.heads == []
        assert names == ["other.example"]
        assert await issuer_of(dialing)
        assert all(SECRET not in head for head in relay.heads)  # nothing has proved who this server is


@in_loop
async def test_a_proxy_that_gets_connect_sees_neither_headers_nor_host() -> None:
    names: list[str | None] = []
    async with Origin(answer("200 OK"), tls=tls(names)) as relay, UpstreamProxy(user="u:p") as proxy:
        through = f"http://u:p@127.0.0.1:{proxy.port}"
        dialing = Dialing(relay.url, proxy=through, ca=CA, headers=HEADERS, hostname="gateway.example", sni="localhost")
        assert await ask(dialing) == 200
        assert f"CF-Access-Client-Secret: {SECRET}" in relay.heads[0]
        assert "Host: gateway.example" in relay.heads[0]
    assert names == ["localhost"]
    assert len(proxy.heads) == 2
    for head in proxy.heads:
        assert head.startswith(b"CONNECT 127.0.0.1:")
        assert b"CF-Access" not in head
        assert b"gateway.example" not in head


@in_loop
async def test_a_redirect_is_not_followed() -> None:
    async with Origin(answer("200 OK")) as other, Origin(b"") as relay:
        relay.response = answer("302 Found", Location=f"{other.url}/login")
        with pytest.raises(UpgradeRefusedError, match="HTTP 302"):
            await upgrade(Dialing(relay.url, proxy=None, headers=HEADERS))
        assert SECRET in relay.heads[0]
        assert other.heads == []


def refused(**given: object) -> str:
    """Return the text of the error, which must not contain the secret."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        Dialing("https://relay.example", **{"proxy": None, **given})  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Host", "--hostname"),
        ("authorization", "--token-file"),
        ("X-Endpoint-Role", "sends itself"),
        ("Cache-Control", "sends itself"),
        ("Tunnel-Role", "sends itself"),
        ("Content-Length", "sends itself"),
        ("Content-Type", "sends itself"),
        ("Expect", "sends itself"),
        ("Proxy-Authorization", "sends itself"),
        ("Sec-WebSocket-Key", "sends itself"),
        ("Connection", "single connection"),
        ("TE", "single connection"),
        ("Transfer-Encoding", "single connection"),
        ("Upgrade", "single connection"),
        ("", "not allowed"),
        ("X Y", "not allowed"),
        ("X\r\nY", "not allowed"),
        ("X:", "not allowed"),
    ],
)
def test_our_own_headers_and_invalid_names_are_refused(name: str, text: str) -> None:
    assert text in refused(headers={name: SECRET})


@pytest.mark.parametrize("value", ["", " x", "x\r\nHost: y", "x\ny", "x\0", "ä"])
def test_a_value_cannot_begin_a_header_of_its_own(value: str) -> None:
    assert "visible" in refused(headers={"X-Key": value + SECRET if value else ""})


def test_a_header_is_given_once() -> None:
    assert "given twice" in refused(headers={"X-Key": "a", "x-key": SECRET})


@pytest.mark.parametrize("name", ["http://x", "a b", "a/b", "u@h", "h:", "h?", "h:99999", "h:0", " h", "h#x", "x\r\ny"])
def test_texts_that_are_no_names_are_refused(name: str) -> None:
    assert "--hostname" in refused(hostname=name)
    assert "--sni" in refused(sni=name)


def test_names_where_they_would_mean_nothing_are_refused() -> None:
    assert "without a port" in refused(sni="relay.example:443")
    with pytest.raises(ValueError, match="uses no TLS"):
        Dialing("http://127.0.0.1", proxy=None, sni="relay.example")
    with pytest.raises(ValueError, match="proxies replace the Host header"):
        Dialing("http://127.0.0.1", proxy="http://127.0.0.1:3128", hostname="relay.example")
    assert Dialing("http://127.0.0.1", proxy=None, hostname="b\u00fccher.example").headers["Host"] == (
        "xn--bcher-kva.example"
    )


def test_two_users_the_headers_do_not_cross_a_network_unencrypted() -> None:
    with pytest.raises(ValueError, match="the headers for the gateway would go to") as caught:
        Dialing("http://relay.example", proxy=None, headers=HEADERS)
    assert SECRET not in str(caught.value)
    allowed = Dialing("http://relay.example", proxy=None, headers=HEADERS, insecure_http=True)
    assert allowed.headers["CF-Access-Client-Secret"] == SECRET
    assert SECRET not in allowed.description + repr(make_gateway(allowed.base, HEADERS, RelayOptions()))


AGENT = "Mozilla/5.0 (X11; Linux x86_64)"


@pytest.mark.parametrize("name", ["User-Agent", "user-agent"])
@in_loop
async def test_a_user_agent_may_be_set_for_the_relay_and_the_proxy(name: str) -> None:
    async with Origin(answer("404 Not Found"), tls=server_tls()) as relay, UpstreamProxy() as proxy:
        through = f"http://127.0.0.1:{proxy.port}"
        dialing = Dialing(relay.url, proxy=through, ca=CA, headers={name: AGENT}, sni="localhost")
        assert await ask(dialing) == 404
    (head,) = relay.heads
    assert head.lower().count("\r\nuser-agent: ") == 1
    assert f": {AGENT}\r\n" in head
    assert f"\r\nUser-Agent: {AGENT}\r\n".encode() in proxy.heads[0]


@pytest.mark.parametrize("is_exit", [False, True])
@in_loop
async def test_with_a_user_agent_of_ones_own_no_request_has_our_name(*, is_exit: bool) -> None:
    async with Origin(answer("403 Forbidden")) as relay:
        options: dict[str, Any] = {"token": "tnl_x", "proxy": None, "headers": {"User-Agent": AGENT}}
        dialing = Dialing(f"{relay.url}/api", is_exit=is_exit, **options)
        assert await ask(dialing) == 403
        with pytest.raises(UpgradeRefusedError):
            await open_websocket(dialing)
    assert len(relay.heads) == 2
    for head in relay.heads:
        assert "tunnel" not in head.lower()
        assert f"\r\nX-Endpoint-Role: {'exit' if is_exit else 'endpoint'}\r\n" in head


def test_an_exit_names_its_role_to_earlier_relays_too() -> None:
    exits = [Dialing("http://127.0.0.1", proxy=None, is_exit=is_exit).headers for is_exit in (True, False)]
    assert [each.get("Tunnel-Role") for each in exits] == ["exit", None]


def test_a_user_agent_alone_is_no_secret() -> None:
    assert Dialing("http://relay.example", proxy=None, headers={"User-Agent": AGENT}).headers["User-Agent"] == AGENT
    with pytest.raises(ValueError, match="the headers for the gateway would go to"):
        Dialing("http://relay.example", proxy=None, headers={"User-Agent": AGENT, "X-Key": SECRET})
