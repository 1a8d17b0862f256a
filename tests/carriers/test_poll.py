"""The POST requests of the poll carrier, and the path to the relay: headers, tokens, refusals (7.9), TLS, proxies."""

from random import Random

import pytest
import truststore

from tests.carriers.harness import ask, echo, end, noise, say_and_hear
from tests.support.certificates import CA, TLS, server_tls
from tests.support.http_relay import HttpTestRelay, token_of
from tests.support.loops import in_loop
from tests.support.proxies import UpstreamProxy
from tests.support.relays import Fault
from tunnel import DeniedError, NotAuthenticatedError, UnreachableError, attach
from tunnel.carriers.dialing.dialing import Dialing, retry_after_us
from tunnel.carriers.http.http_exchanger import HttpExchanger
from tunnel.exchange import LaneConfig, Lanes
from tunnel.wire import Attach, Status, StatusCode, encode_envelope


async def use(relay: HttpTestRelay, **options: object) -> None:
    """Attach a service and a client, and move some data."""
    async with relay.attach("ann", **options) as service, relay.attach("bob", **options) as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await ask(reader, writer, noise(100_000))
        await end(writer)


# requests


@in_loop
async def test_the_headers_keep_caches_and_compression_away() -> None:
    async with HttpTestRelay() as relay:
        await use(relay)
    _, headers = relay.seen[0]
    assert headers["Authorization"] == f"Bearer {token_of('ann')}"
    assert headers["Cache-Control"] == "no-store, no-transform"
    assert headers["Accept-Encoding"] == "identity"
    assert headers["Content-Type"] == "application/octet-stream"
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("", "", 0),
        ("7", "", 7),
        (" 0 ", "", 0),
        ("-1", "", 0),
        ("soon", "", 0),
        ("9" * 20, "", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 30),
        ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:30 GMT", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "today", 0),
        ("Wed, 21 Oct 2015 07:28:30 -0000", "Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_7_9_retry_after_may_be_seconds_or_a_date(value: str, date: str, seconds: int) -> None:
    headers = {name: text for name, text in (("Retry-After", value), ("Date", date)) if text}
    assert retry_after_us(headers) == seconds * 1_000_000


@in_loop
async def test_one_http_connection_is_enough() -> None:
    config = LaneConfig(lanes_start=1, lanes_max=1, one_connection=True, pull_interval_us=20_000)
    async with HttpTestRelay() as relay:
        await use(relay, lanes=config)


# authentication


@in_loop
async def test_a_wrong_token_is_reported_at_once() -> None:
    async with HttpTestRelay() as relay:
        with pytest.raises(NotAuthenticatedError, match="check the token"):
            async with relay.attach("ann", token="tnl_00000009_nobody"):
                pass


@in_loop
async def test_a_revoked_token_ends_the_attachment_with_a_reason() -> None:
    async with HttpTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        server = await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        assert client.refusal is None
        refusal = b"".join(encode_envelope(Status(StatusCode.NOT_AUTHORISED, text="the token was revoked")))
        relay.fault = lambda message: Fault(401, refusal)
        with pytest.raises(NotAuthenticatedError, match="the token was revoked"):
            await ask(reader, writer, b"hello")
        with pytest.raises(NotAuthenticatedError):
            await client.open_connection("echo")
        assert not client.is_attached
        assert isinstance(client.refusal, NotAuthenticatedError)
        await server.wait_closed()
        writer.close()


@pytest.mark.parametrize("status", [302, 401, 403, 415])
@in_loop
async def test_after_the_first_attach_a_refusal_by_an_intermediary_ends_nothing(status: int) -> None:
    """A login page appears, or a filter objects to one body; the exchange is repeated until it passes (7.9)."""
    async with HttpTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        faults = [Fault(status, b"<html>sign in</html>")] * 3
        relay.fault = lambda message: faults.pop() if faults else None
        await ask(reader, writer, b"hello")
        assert faults == []
        assert client.refusal is None
        writer.close()


@in_loop
async def test_statuses_403_and_415_are_denials_before_the_first_attach() -> None:
    for fault, error in ((Fault(403, b"never"), DeniedError), (Fault(415), DeniedError)):
        async with HttpTestRelay() as relay:
            relay.fault = lambda message, fault=fault: fault  # type: ignore[misc]
            with pytest.raises(error):
                await relay.attach("ann").start()


@in_loop
async def test_the_token_goes_to_no_other_origin() -> None:
    async with HttpTestRelay() as relay, HttpTestRelay() as other:
        relay.fault = lambda message: Fault(307, b"", {"Location": f"{other.url}/exchange"})
        with pytest.raises(UnreachableError, match="HTTP 307"):
            await relay.attach("ann").start()
        assert other.seen == []


# when no relay answers


@in_loop
async def test_an_address_without_a_relay_is_reported() -> None:
    async with HttpTestRelay() as relay:
        pass
    with pytest.raises(UnreachableError, match=r"no relay answers at http://127.*the connection was refused.*the URL"):
        await relay.attach("ann", attach_timeout=0.3).start()


@in_loop
async def test_a_page_that_answers_instead_of_a_relay_is_quoted() -> None:
    async with HttpTestRelay() as relay:
        relay.fault = lambda message: Fault(200, b"<html>Welcome to our hotel") if isinstance(message, Attach) else None
        with pytest.raises(UnreachableError, match="Welcome to our hotel"):
            await relay.attach("ann", attach_timeout=3).start()


# TLS


@in_loop
async def test_a_private_certificate_authority_is_trusted_if_it_is_named() -> None:
    async with HttpTestRelay(tls=server_tls()) as relay:
        await use(relay, ca=CA)
        with pytest.raises(UnreachableError, match="certificate"):
            await relay.attach("ann").start()


@in_loop
async def test_a_client_certificate_is_presented() -> None:
    async with HttpTestRelay(tls=server_tls(client_certificates=True)) as relay:
        await use(relay, ca=CA, cert=str(TLS / "client.pem"))


# proxies


@in_loop
async def test_a_proxy_carries_plain_http() -> None:
    async with HttpTestRelay() as relay, UpstreamProxy(user="me:s3cret") as proxy:
        await use(relay, proxy=f"http://me:s3cret@127.0.0.1:{proxy.port}")
        assert proxy.heads[0].startswith(f"POST {relay.url}/exchange".encode())
        with pytest.raises(NotAuthenticatedError, match="proxy"):
            await relay.attach("ann", proxy=f"127.0.0.1:{proxy.port}").start()


@in_loop
async def test_a_proxy_for_tls_sees_no_token() -> None:
    async with HttpTestRelay(tls=server_tls()) as relay, UpstreamProxy(user="me:s3cret") as proxy:
        await use(relay, ca=CA, proxy=f"http://me:s3cret@127.0.0.1:{proxy.port}")
        assert all(head.startswith(b"CONNECT ") and b"Bearer" not in head for head in proxy.heads)
        assert all("Proxy-Authorization" not in headers for _, headers in relay.seen)
        with pytest.raises(
            NotAuthenticatedError,
            match="but does not name a scheme: write http://USER:PASSWORD@HOST:PORT into a file",
        ):
            await relay.attach("ann", ca=CA, proxy=f"http://127.0.0.1:{proxy.port}").start()


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert Dialing("http://relay").proxy is None
    monkeypatch.setenv("http_proxy", "http://one:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://u%40x:p@two:2")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert str(Dialing("http://relay").proxy) == "http://one:1"
    dialing = Dialing("https://relay", token="t")
    assert str(dialing.proxy) == "http://two:2"
    assert Dialing("https://inside.example").proxy is None
    assert Dialing("https://relay", proxy=None).proxy is None
    assert Dialing("https://relay", proxy="").proxy is None
    assert dialing.description == "https://relay through http://two:2"
    monkeypatch.setenv("all_proxy", "three:3")
    monkeypatch.delenv("HTTPS_PROXY")
    assert str(Dialing("https://relay").proxy) == "http://three:3"


# arguments


WRONG = [
    ({"url": "relay.example"}, "write https://HOST"),
    ({"url": "ftp://relay"}, "write https://HOST"),
    ({"url": "http://[1"}, "is not a URL"),
    ({"url": "https://me:pw@relay"}, "not contain user and password"),
    ({"url": "https://relay?x=1"}, "not have a query"),
    ({"token": "two words"}, "copied whole"),
    ({"token": ""}, "copied whole"),
    ({"proxy": "socks5://h:1"}, "is not an HTTP proxy"),
    ({"ca": "/does/not/exist"}, "ca="),
    ({"cert": "/does/not/exist"}, "cert="),
    ({"cert": ("a", "b", "c", "d")}, "cert="),
    ({"carrier": "pigeon"}, "one of auto, poll, link, stream"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_wrong_arguments_are_reported_at_once(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        attach(**{"url": "https://relay", "proxy": None, **arguments})  # type: ignore[arg-type]


def test_certificates_of_the_operating_system_are_trusted_by_default() -> None:
    assert isinstance(Dialing("https://relay", proxy=None).tls, truststore.SSLContext)
    assert not isinstance(Dialing("https://relay", proxy=None, ca=CA).tls, truststore.SSLContext)
    assert Dialing("http://relay", proxy=None).tls is None


def test_authorities_may_be_a_directory() -> None:
    assert Dialing("https://relay", proxy=None, ca=str(TLS)).tls is not None


@in_loop
async def test_a_request_abandoned_before_it_starts_reports_nothing() -> None:
    class NeverNotified:
        def on_answered(self, *_: object) -> None:
            raise AssertionError

        def on_failed(self, *_: object, final: bool = False) -> None:
            raise AssertionError

        def on_received(self, *_: object) -> bool:
            raise AssertionError

        def on_ended(self, *_: object) -> None:
            raise AssertionError

        def ready(self) -> None:
            raise AssertionError

        def on_opened(self, request_id: int) -> None:
            raise AssertionError

        def on_sent(self, size_bytes: int) -> None:
            raise AssertionError

    exchanger = HttpExchanger(Dialing("http://127.0.0.1:9", proxy=None), LaneConfig())
    exchanger.start(NeverNotified())
    request = Lanes(LaneConfig(), bytes(32), Random(1)).poll_request(0)
    assert request is not None
    exchanger.send(request)
    exchanger.abandon(request.id)
    exchanger.abandon(request.id)
    await exchanger.close()
