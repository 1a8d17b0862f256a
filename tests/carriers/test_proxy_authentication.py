"""Proxies that demand authentication: over plain HTTP and TLS, for exchanges and links."""

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from tests.carriers.asking import PASSWORD, USER, AskingProxy, Basic, Digest, Guard, Ntlm, Unknown
from tests.carriers.harness import ask, echo, end, noise, say_and_hear
from tests.support.certificates import CA, TLS, server_tls
from tests.support.http_relay import HttpTestRelay, LinkTestRelay, token_of
from tests.support.loops import in_loop, run
from tunnel import NotAuthenticatedError, UnreachableError

CREDENTIALS = f"{USER}:{quote(PASSWORD, safe='')}"


async def use(relay: HttpTestRelay, proxy: AskingProxy, scheme: str = "http", **options: object) -> None:
    """Attach a service and a client through the proxy, and move some data."""
    options = {"proxy": f"{scheme}://{CREDENTIALS}@127.0.0.1:{proxy.port}", "ca": CA, **options}
    async with relay.attach("ann", **options) as service, relay.attach("bob", **options) as client:
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        await ask(reader, writer, noise(100_000))
        await end(writer)


def relay_for(carrier: str, tls: ssl.SSLContext | None) -> HttpTestRelay:
    return LinkTestRelay(tls=tls) if carrier == "link" else HttpTestRelay(tls=tls)


GUARDS: dict[str, Guard] = {
    "basic": Basic(),
    "digest": Digest(),
    "digest, old": Digest(qop=""),
    "digest, session": Digest("MD5-sess"),
    "digest, strong": Digest("SHA-256"),
    "digest, impatient": Digest("SHA-256-sess", uses=1),
}


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("carrier", ["poll", "link"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_a_proxy_that_demands_authentication_gets_it_once_it_has_asked(name: str, carrier: str, is_tls: bool) -> None:
    async def main() -> None:
        async with (
            relay_for(carrier, server_tls() if is_tls else None) as relay,
            AskingProxy(lambda: GUARDS[name]) as proxy,
        ):
            await use(relay, proxy)
        assert "" in proxy.headers  # no credentials are sent before the proxy asks
        if is_tls:
            assert all(head.startswith(b"CONNECT ") and b"Bearer" not in head for head in proxy.heads)
            assert all("Proxy-Authorization" not in headers for _, headers in relay.seen)

    run(main(), asyncio.new_event_loop if carrier == "poll" else uvloop.new_event_loop)
    guard = GUARDS[name]
    assert not isinstance(guard, Digest) or bool(guard.stale) == (guard.uses == 1)


@pytest.mark.parametrize("scheme", ["NTLM", "Negotiate"])
@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_authentication_may_take_several_messages(
    scheme: str, carrier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection authenticates with a conversation of its own."""
    Ntlm.know_the_user(monkeypatch, tmp_path)

    async def main() -> None:
        async with relay_for(carrier, server_tls()) as relay, AskingProxy(lambda: Ntlm(scheme)) as proxy:
            await use(relay, proxy)
            wrong = f"http://{USER}:wrong@127.0.0.1:{proxy.port}"
            with pytest.raises(NotAuthenticatedError, match=f"asks for {scheme}, but did not accept user {USER}"):
                await relay.attach("ann", ca=CA, proxy=wrong).start()

    run(main(), asyncio.new_event_loop if carrier == "poll" else uvloop.new_event_loop)


@in_loop
async def test_a_proxy_may_be_reached_over_tls() -> None:
    for tls in (None, server_tls()):
        async with HttpTestRelay(tls=tls) as relay, AskingProxy(Basic, tls=server_tls()) as proxy:
            await use(relay, proxy, "https")
            with pytest.raises(UnreachableError, match="certificate"):
                await relay.attach("ann", proxy=f"https://127.0.0.1:{proxy.port}").start()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_a_failed_authentication_says_what_to_do(
    is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    Ntlm.know_the_user(monkeypatch, tmp_path)
    known = f"{USER}:hidden@"
    cases: list[tuple[Guard, str, str]] = [
        (
            Basic(),
            "",
            r"127.0.0.1:\d+ asks for Basic \(test, of course\): write http://USER:PASSWORD@HOST:PORT into a file",
        ),
        (Basic(), known, rf"asks for Basic .* did not accept user {USER}: check user and password"),
        (Digest(), known, "asks for Digest, Basic .* did not accept user"),
        (Unknown(), known, "asks for pigeon, which tunnel does not support"),
    ]
    if not is_tls:
        cases.append((Ntlm("NTLM"), known, "asks for NTLM, which works only with a relay at https://"))
    else:
        monkeypatch.setattr("tunnel.carriers.dialing.challenges._knows_spnego", lambda: False)
        cases.append(
            (
                Ntlm("NTLM"),
                known,
                r"asks for NTLM, which needs the package pyspnego: install it with .* -m pip install pyspnego",
            )
        )

    async def main() -> None:
        for guard, credentials, text in cases:
            async with (
                HttpTestRelay(tls=server_tls() if is_tls else None) as relay,
                AskingProxy(lambda guard=guard: guard) as proxy,  # type: ignore[misc]
            ):
                url = f"http://{credentials}127.0.0.1:{proxy.port}"
                with pytest.raises(NotAuthenticatedError, match=text) as caught:
                    await relay.attach("ann", ca=CA, proxy=url).start()
                assert "hidden" not in str(caught.value)
                assert token_of("ann") not in str(caught.value)
                assert relay.seen == []

    run(main())
    assert "hidden" not in caplog.text


class AsksForUpgrades:
    """Admits exchanges, and no upgrade, whatever the password."""

    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        return None if uri.endswith("/exchange") else ['Basic realm="upgrades"']


@pytest.mark.parametrize("carrier", ["link", "websocket"])
def test_a_password_that_the_proxy_refuses_for_upgrades_is_sent_once(carrier: str) -> None:
    """The ladder tries again and again. Many proxies lock an account after three to five wrong passwords."""

    async def main() -> None:
        async with LinkTestRelay() as relay, AskingProxy(AsksForUpgrades) as proxy:
            url = f"http://{USER}:wrong@127.0.0.1:{proxy.port}"
            async with relay.attach("bob", proxy=url, carrier=carrier) as client:
                while client.stats().roads[0].tries < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert [header for header in proxy.headers if header] == ["Basic bWU6d3Jvbmc="]
                assert f"did not accept user {USER}" in client.stats().roads[0].why

    run(main(), uvloop.new_event_loop)


class Forgets:
    """Admits users with the password, but sometimes asks even them: at the requests (counted from 1) in `at`."""

    def __init__(self, *at: int) -> None:
        self.guard, self.count, self.at = Basic(), 0, at

    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        self.count += bool(header)
        return ['Basic realm="again"'] if self.count in self.at else self.guard.judge(method, uri, header)


@pytest.mark.parametrize("carrier", ["poll", "link"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "CONNECT"])
def test_a_proxy_that_asks_again_in_mid_transfer_is_asked_again(carrier: str, is_tls: bool) -> None:
    """Domain proxies do this: one in many answers is 407, although the password is right. Connections are cut now and
    then, so that there are many CONNECTs."""

    async def main() -> None:
        guard = Forgets(3, 7, 8, 20, 21)
        async with (
            relay_for(carrier, server_tls() if is_tls else None) as relay,
            AskingProxy(lambda: guard) as proxy,
        ):
            options = {"proxy": f"http://{CREDENTIALS}@127.0.0.1:{proxy.port}", "ca": CA}
            async with relay.attach("ann", ca=CA) as service, relay.attach("bob", **options) as client:
                await service.start_server(echo, "echo")
                reader, writer = await say_and_hear(client)
                while guard.count < 30:
                    await ask(reader, writer, noise(1000))
                    proxy.cut()
                await end(writer)

    run(main(), uvloop.new_event_loop)


@pytest.mark.parametrize("carrier", ["link", "websocket"])
def test_a_password_that_is_refused_for_upgrades_does_not_end_exchanges_that_need_none(carrier: str) -> None:
    async def main() -> None:
        async with LinkTestRelay() as relay, AskingProxy(AsksForUpgrades) as proxy:
            url = f"http://{USER}:wrong@127.0.0.1:{proxy.port}"
            async with (
                relay.attach("ann", carrier="poll") as service,
                relay.attach("bob", proxy=url, carrier=carrier) as client,
            ):
                await service.start_server(echo, "echo")
                while client.stats().roads[0].tries < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                reader, writer = await say_and_hear(client)
                for _ in range(5):
                    proxy.cut()
                    await ask(reader, writer, noise(1000))
                await end(writer)
                assert len([header for header in proxy.headers if header]) == 1

    run(main(), uvloop.new_event_loop)


@in_loop
async def test_a_client_certificate_is_presented_to_the_relay_behind_a_proxy() -> None:
    async with HttpTestRelay(tls=server_tls(client_certificates=True)) as relay, AskingProxy(Basic) as proxy:
        await use(relay, proxy, cert=str(TLS / "client.pem"))


@in_loop
async def test_an_address_that_is_not_a_proxy_is_reported() -> None:
    """The peer ends the connection, does not listen, or answers CONNECT with 502, an endless head, or something that is
    not HTTP."""
    answers = [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"x" * 200_000]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # attaching may end first
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[0])
        writer.close()

    async with HttpTestRelay(tls=server_tls()) as relay:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for text in ("closed the connection instead", "not HTTP", "Bad Gateway", "endless headers"):
            with pytest.raises(UnreachableError, match=text):
                await relay.attach("ann", ca=CA, proxy=proxy, attach_timeout=2).start()
            answers.pop(0)
        server.close()
        with pytest.raises(UnreachableError, match=r"the proxy cannot be reached \(the connection was refused\)"):
            await relay.attach("ann", ca=CA, proxy=proxy, attach_timeout=2).start()
