"""The web server's sockets, deadlines and TLS, and its refusal of requests that are not valid HTTP."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import LOOPBACK, TOKENS, Client, attach_body, relay, settings
from tests.servlet.web.rig import HEAD, answer, certificates, close, connect, files
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.wire import Attached, EnvelopeError, StatusCode, decode_envelope
from tunnel_servlet.config import ConfigError, ListenAddress, TlsFiles
from tunnel_servlet.web.http.tls import contexts, tls_context

__all__ = ["certificates"]

SHORT = 0.05  # seconds; the tests wait for the end of the connection, however long that takes


@pytest.mark.parametrize("sent", [b"", b"P", HEAD], ids=["nothing", "a letter", "a part"])
@in_loop
async def test_a_connection_without_complete_headers_times_out(sent: bytes) -> None:
    async with relay(settings(limits={"header_seconds": SHORT})) as running:
        reader, writer = await connect(running)
        writer.write(sent)
        assert await reader.read() == b""
        await close(writer)


@in_loop
async def test_the_deadline_applies_to_every_request_of_a_connection() -> None:
    async with relay(settings(limits={"header_seconds": SHORT})) as running:
        reader, writer = await connect(running)
        body = attach_body()
        for _ in range(3):
            writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status, _ = await answer(reader)
            assert status == 200
        writer.write(HEAD)
        assert await reader.read() == b""
        await close(writer)


@in_loop
async def test_an_idle_connection_has_its_own_deadline() -> None:
    async with relay(settings(limits={"header_seconds": SHORT, "keepalive_seconds": 2 * SHORT})) as running:
        reader, writer = await connect(running)
        body = attach_body()
        writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"connection: close" not in head.lower()  # the relay would serve another request
        await reader.read()  # the rest of the answer, and the end
        await close(writer)


@in_loop
async def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async with relay(settings(limits={"body_seconds": SHORT})) as running:
        reader, writer = await connect(running)
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\nTUNL")
        status, body = await answer(reader)
        message = decode_envelope(body)
        assert status == 408
        assert not isinstance(message, EnvelopeError)
        assert message.code is StatusCode.BUSY  # type: ignore[union-attr]  # a STATUS
        await close(writer)


@in_loop
async def test_a_truncated_body_disturbs_no_other_client() -> None:
    async with relay() as running, Client(running) as client:
        _, writer = await connect(running)
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\nTUNL")
        await close(writer)
        assert isinstance(await client.attach(), Attached)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer tnl_secret\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 10_000 + b"\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZ\r\n",
    ],
    ids=["TLS", "NUL", "two lengths", "long line", "bad chunk"],
)
@in_loop
async def test_invalid_http_is_refused_without_logging_its_token(request_: bytes) -> None:
    with capture_logs() as logs:
        async with relay() as running:
            reader, writer = await connect(running)
            writer.write(request_)
            status, body = await answer(reader)
            assert status == 400
            assert body == b"Bad Request" or decode_envelope(body) is not EnvelopeError.NOT_OURS
            await close(writer)
    assert "tnl_secret" not in str(logs)


@in_loop
async def test_an_address_in_use_is_explained() -> None:
    async with relay() as running:
        with pytest.raises(ConfigError, match=r"listen: cannot listen on 127\.0\.0\.1:[0-9]+: .*choose another"):
            await relay(settings(listen=(running.addresses[0],))).__aenter__()
        with pytest.raises(ConfigError, match=r"admin: cannot listen on 127\.0\.0\.1:[0-9]+: .*choose another"):
            await relay(settings(admin=running.addresses[0], admin_secret="x" * 32)).__aenter__()


@in_loop
async def test_a_relay_listens_on_several_addresses() -> None:
    async with relay(settings(listen=(LOOPBACK, ListenAddress("::1", 0)))) as running:
        assert len({address.port for address in running.addresses}) == 2
        async with aiohttp.ClientSession() as session:
            for address in running.addresses:
                async with session.get(f"http://{address}/") as response:
                    assert response.status == 404


# --- TLS


@pytest.mark.real("openssl")
@in_loop
async def test_a_relay_serves_over_tls(certificates: Path) -> None:
    config = settings(tls=files(certificates))
    async with relay(config) as running:
        url = f"https://{running.addresses[0]}"
        async with attach(url, token=TOKENS["ann"], proxy=None, ca=str(certificates / "ca.pem")) as client:
            assert client.is_attached


@pytest.mark.real("openssl")
@in_loop
async def test_with_a_client_ca_only_clients_with_its_certificates_connect(certificates: Path) -> None:
    config = settings(tls=files(certificates, "ca.pem"))
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    async with relay(config) as running:
        url = f"https://{running.addresses[0]}/"
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(url, ssl=context)
            context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
            async with session.get(url, ssl=context) as response:
                assert response.status == 404


@pytest.mark.real("openssl")
def test_tls_applies_to_the_configured_listeners(certificates: Path) -> None:
    plain, secure, silent = (ListenAddress("127.0.0.1", 0, tls) for tls in (False, True, None))
    both = contexts(settings(listen=(plain, secure, silent), tls=files(certificates)))
    assert [context is not None for _, context in both] == [False, True, True]
    assert contexts(settings(listen=(plain, silent)))[1][1] is None


@pytest.mark.real("openssl")
def test_wrong_certificate_files_are_explained(certificates: Path) -> None:
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        tls_context(TlsFiles(str(certificates / "relay.pem"), str(certificates / "client.key")))
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        tls_context(TlsFiles("missing", "missing"))
    with pytest.raises(ConfigError, match=r"missing\.key cannot be read \(No such file or directory\): name two PEM"):
        tls_context(TlsFiles(str(certificates / "relay.pem"), "missing.key"))
    with pytest.raises(
        ConfigError, match=r"missing\.pem cannot be read \(No such file or directory\): name a PEM file"
    ):
        tls_context(files(certificates, "missing.pem"))
    with pytest.raises(ConfigError, match="holds no certificates"):
        tls_context(files(certificates, "ca.key"))


@pytest.mark.real("openssl")
def test_two_users_a_key_that_others_can_read_and_certificates_that_others_can_change_are_refused(
    certificates: Path,
) -> None:
    key, authority = certificates / "relay.key", certificates / "ca.pem"
    for mode in (0o644, 0o640):
        key.chmod(mode)
        with pytest.raises(ConfigError, match=r"relay\.key is open to other users .* use a new key and certificate"):
            tls_context(files(certificates))
    key.chmod(0o600)
    authority.chmod(0o666)
    with pytest.raises(ConfigError, match=r"every user of this machine can change .*ca\.pem"):
        tls_context(files(certificates, "ca.pem"))
    authority.chmod(0o644)
    (certificates / "relay.pem").chmod(0o666)
    with pytest.raises(ConfigError, match=r"every user of this machine can change .*relay\.pem"):
        tls_context(files(certificates))
    (certificates / "relay.pem").chmod(0o644)  # the other tests use it, too
