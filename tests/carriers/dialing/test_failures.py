"""Failures of connections to a relay: each kind has a sentence of its own that says what to do."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.carriers.rig import KEY, rejected
from tests.support.certificates import CA, server_tls
from tests.support.http_relay import HttpTestRelay
from tests.support.loops import in_loop
from tunnel import UnreachableError, attach
from tunnel.carriers.dialing.failures import describe_failure, explain, is_final

BASE = URL("https://relay.example/")


def broken(reason: str) -> aiohttp.ClientConnectorSSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] as OpenSSL says")
    error.reason = reason
    return aiohttp.ClientConnectorSSLError(KEY, error)


FINAL = [
    (rejected(10), "expired", "the certificate of relay.example:443 has expired: check this machine's clock"),
    (rejected(9), "not-yet-valid", "the certificate of relay.example:443 is not valid yet: check this machine's clock"),
    (rejected(62), "wrong-name", "relay.example:443 shows is for another name: write in the URL the name"),
    (rejected(64), "wrong-name", "for another name"),
    (
        rejected(18, "self-signed"),
        "unknown-issuer",
        "does not trust the issuer of the certificate of relay.example:443",
    ),
    (rejected(20), "unknown-issuer", "name the issuer's certificate with --ca FILE; otherwise do not go on"),
    (rejected(23, "revoked"), "certificate", "is not accepted (revoked): ask the relay's operator"),
    (broken("WRONG_VERSION_NUMBER"), "plain-http", "relay.example:443 answers, but not in TLS: write http:// instead"),
    (broken("TLSV1_ALERT_PROTOCOL_VERSION"), "tls-version", "no version of TLS that this machine accepts"),
    (
        broken("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        "no-own-certificate",
        "asks for a certificate of yours: name the fil",
    ),
    (broken("TLSV1_ALERT_UNKNOWN_CA"), "own-certificate", "does not accept the certificate that --cert names"),
]
OTHERS = [
    (broken("BAD_RECORD_MAC"), "tls", "the TLS handshake with relay.example:443 failed ("),
    (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "x")), "refused", "the connection was refused"),
    (aiohttp.ClientConnectorError(KEY, ConnectionResetError()), "tls-cut", "relay.example:443 was cut during the TLS"),
    (aiohttp.ClientConnectorError(KEY, OSError(113, "No route")), "other", "No route"),
    (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "unknown")), "name", "the name relay.example cannot be resolved"),
    (aiohttp.ClientProxyConnectionError(KEY, OSError(1, "no")), "proxy", "the proxy cannot be reached (no)"),
    (TimeoutError(), "timeout", "no answer in time"),
    (aiohttp.ServerDisconnectedError(), "cut", "the connection was closed before an answer came"),
    (aiohttp.ClientPayloadError("half"), "cut", "half"),
    (ZeroDivisionError("x"), "other", "ZeroDivisionError: x"),
]


@pytest.mark.parametrize(("error", "kind", "text"), FINAL + OTHERS)
def test_each_kind_of_failure_has_its_sentence(error: Exception, kind: str, text: str) -> None:
    assert explain(error, BASE).kind == kind
    assert text in describe_failure(error, BASE)
    assert "\n" not in describe_failure(error, BASE)
    assert is_final(error, BASE) == ((error, kind, text) in FINAL)


def test_the_first_failure_over_plain_http_may_be_due_to_the_scheme() -> None:
    base = URL("http://relay.example/")
    error = aiohttp.ServerDisconnectedError()
    assert "the URL must begin with https://" in describe_failure(error, base, is_first=True)
    assert "https://" not in describe_failure(error, base)
    assert "https://" not in describe_failure(error, BASE, is_first=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_answer_that_breaks_the_rules_of_http_is_told_from_another_protocol(is_first: bool) -> None:
    base = URL("http://relay.example/")
    info = aiohttp.RequestInfo(base, "POST", CIMultiDictProxy(CIMultiDict()), base)
    error = aiohttp.ClientResponseError(info, (), status=400, message="Duplicate Content-Length:\n\n  b'x: 2'\n ^")
    error.__cause__ = BadHttpMessage("Duplicate Content-Length")
    found = explain(error, base, is_first=is_first)
    assert str(found).startswith("an answer of relay.example:80 is malformed (Duplicate Content-Length): a device on ")
    error.message = "Bad status line:\n  Expected HTTP/"
    assert (explain(error, base, is_first=is_first).kind == "no-http") is is_first


@asynccontextmanager
async def plain_server() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@in_loop
async def test_a_certificate_for_another_name_is_named_as_the_cause() -> None:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.2", 0, ssl=server_tls()) as server:
        url = f"https://127.0.0.2:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UnreachableError, match="shows is for another name: write in the URL"):
            await attach(url, ca=CA, proxy=None).start()


@in_loop
async def test_a_certificate_of_an_unknown_issuer_is_named_as_the_cause() -> None:
    async with HttpTestRelay(tls=server_tls()) as relay:
        with pytest.raises(UnreachableError, match="does not trust the issuer of the certificate"):
            await attach(relay.url, proxy=None).start()


@in_loop
async def test_plain_http_where_tls_is_expected_is_named_as_the_cause() -> None:
    async with plain_server() as url:
        with pytest.raises(UnreachableError, match=r"answers, but not in TLS: write http:// instead of https://"):
            await attach(url, proxy=None).start()


@in_loop
async def test_tls_where_plain_http_is_expected_is_named_as_the_cause() -> None:
    async with HttpTestRelay(tls=server_tls()) as relay:
        url = relay.url.replace("https:", "http:")
        with pytest.raises(UnreachableError, match="must begin with https://"):
            await attach(url, proxy=None, attach_timeout=1.0).start()
