"""Which failures end the attempts to reach a relay that has never answered (PROTOCOL 7.9)."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.carriers.rig import KEY, rejected
from tunnel.carriers.dialing.failures import TLS_CUT, describe_failure, is_refused
from tunnel.carriers.http.patience import Patience
from tunnel.exchange import LaneConfig
from tunnel.exchange.config import OR_WAIT

AWAY_S = 5.0
BASE = URL("http://relay.example/")
REFUSED = ConnectionRefusedError(111, "Connect call failed")
BOTH = OSError(
    "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), "
    "[Errno 111] Connect call failed ('127.0.0.1', 9)"
)
UNLIKE = OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 101] Network is unreachable")
INFO = aiohttp.RequestInfo(BASE, "POST", CIMultiDictProxy(CIMultiDict()), BASE)
AWAY = {
    "refused": (aiohttp.ClientConnectorError(KEY, REFUSED), "check host and port of the URL, and that the relay runs"),
    "unroutable": (aiohttp.ClientConnectorError(KEY, OSError(101, "Network is unreachable")), "check host and port"),
    "unknown name": (
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "unknown")),
        "check the host in the URL",
    ),
    "no name server": (
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_AGAIN, "try again")),
        "check the host in the URL",
    ),
    "a proxy of an unknown name": (
        aiohttp.ClientProxyConnectionError(KEY, socket.gaierror(socket.EAI_NONAME, "unknown")),
        "check the proxy",
    ),
    "a proxy without a route": (aiohttp.ClientProxyConnectionError(KEY, OSError(113, "No route")), "check the proxy"),
}
WEATHER = {
    "no answer": TimeoutError(),
    "cut": aiohttp.ServerDisconnectedError(),
    "reset": aiohttp.ClientOSError(104, "reset"),
    "half an answer": aiohttp.ClientPayloadError("half"),
}


def test_of_several_addresses_all_must_refuse() -> None:
    assert is_refused(REFUSED)
    assert is_refused(BOTH)
    assert not is_refused(UNLIKE)
    assert not is_refused(OSError(101, "Network is unreachable"))
    assert not is_refused(OSError("nothing about numbers"))
    assert describe_failure(aiohttp.ClientConnectorError(KEY, BOTH), BASE) == "the connection was refused"


@pytest.mark.parametrize("case", AWAY)
def test_a_host_that_cannot_be_reached_is_final_after_5_s(case: str) -> None:
    error, advice = AWAY[case]
    patience = Patience(BASE, LaneConfig(wait=False))
    assert patience.on_failed(error, 100.0) == (describe_failure(error, BASE), False)
    assert not patience.on_failed(error, 100.0 + AWAY_S - 0.01)[1]
    text, is_final = patience.on_failed(error, 100.0 + AWAY_S)
    assert is_final
    assert f"{describe_failure(error, BASE)} for 5 s: {advice}" in text
    assert text.endswith(OR_WAIT)


@pytest.mark.parametrize("error", [REFUSED, BOTH], ids=["one address", "two addresses"])
def test_a_proxy_that_refuses_the_connection_is_final_at_once(error: OSError) -> None:
    text, is_final = Patience(BASE, LaneConfig(wait=False)).on_failed(
        aiohttp.ClientProxyConnectionError(KEY, error), 0.0
    )
    assert is_final
    assert text.startswith("the proxy cannot be reached (the connection was refused): check the proxy that --proxy")


def test_what_does_not_answer_in_http_is_final_the_second_time() -> None:
    error = aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line")
    patience = Patience(BASE, LaneConfig(wait=False))
    assert not patience.on_failed(error, 0.0)[1]
    assert not patience.on_failed(TimeoutError(), 0.0)[1]
    assert not patience.on_failed(error, 0.0)[1]
    text, is_final = patience.on_failed(error, 0.0)
    assert is_final
    assert "does not answer in HTTP: write https:// if TLS is spoken there, or check host and port of the URL" in text


def test_a_connection_that_is_cut_during_the_handshake_is_not_called_absent() -> None:
    patience = Patience(BASE.with_scheme("https"), LaneConfig(wait=False))
    error = aiohttp.ClientConnectorError(KEY, ConnectionResetError())
    assert not patience.on_failed(error, 0.0)[1]
    text, is_final = patience.on_failed(error, AWAY_S)
    assert is_final
    assert f"was cut during the TLS handshake for 5 s: {TLS_CUT}" in text


def test_what_answers_with_malformed_http_is_final_the_second_time() -> None:
    error = aiohttp.ClientResponseError(INFO, (), status=400, message="Invalid header token:\n")
    error.__cause__ = BadHttpMessage("Invalid header token")
    patience = Patience(BASE, LaneConfig(wait=False))
    assert not patience.on_failed(error, 0.0)[1]
    text, is_final = patience.on_failed(error, 0.0)
    assert is_final
    assert text.endswith(OR_WAIT)
    assert "URL" not in text.removesuffix(OR_WAIT).replace("https:// URL", "")


@pytest.mark.parametrize("case", WEATHER)
def test_weather_is_never_final_and_starts_the_5_s_anew(case: str) -> None:
    patience = Patience(BASE, LaneConfig(wait=False))
    refused = AWAY["refused"][0]
    assert not patience.on_failed(refused, 0.0)[1]
    for second in range(1, 60):
        assert not patience.on_failed(WEATHER[case], float(second))[1]
    assert not patience.on_failed(refused, 61.0)[1]
    assert patience.on_failed(refused, 61.0 + AWAY_S)[1]


@pytest.mark.parametrize("wait", [None, True])
def test_with_wait_and_by_default_only_what_never_changes_is_final(wait: bool | None) -> None:
    patience = Patience(BASE, LaneConfig(wait=wait))
    for error in (*(error for error, _ in AWAY.values()), aiohttp.ClientProxyConnectionError(KEY, REFUSED)):
        assert patience.on_failed(error, 0.0) == (describe_failure(error, BASE, is_first=True), False)
        assert not patience.on_failed(error, 3600.0)[1]
    assert patience.on_failed(rejected(10), 0.0)[1]


def test_after_the_first_answer_nothing_is_final_but_what_never_changes() -> None:
    patience = Patience(BASE, LaneConfig(wait=False))
    patience.on_answered()
    for error in (*(error for error, _ in AWAY.values()), aiohttp.ClientProxyConnectionError(KEY, REFUSED)):
        assert not patience.on_failed(error, 0.0)[1]
        assert not patience.on_failed(error, 3600.0)[1]
    assert patience.on_failed(rejected(10), 0.0)[1]
