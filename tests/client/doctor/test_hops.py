"""The doctor behind scripted hops, in front of a real relay: what it recognises, and that no answer makes it crash."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.doctor.hops import Request, connections_at_most, hop, one_request_at_a_time, says
from tests.client.doctor.limiters import bits
from tests.client.doctor.rig import doctor, quick
from tests.client.rig import TOKEN, Rig, greet

__all__ = ["doctor", "quick"]

_LENGTH = re.compile(rb"(?i)content-length: *\d+")
_LAST = "reliability"  # the last step on the path: if the report has it, the doctor did not stop early


def with_length(head: bytes, body: bytes) -> bytes:
    return _LENGTH.sub(b"Content-Length: %d" % len(body), head) + body


def with_body(request: Request, body: bytes) -> Request:
    head = _LENGTH.sub(b"Content-Length: %d" % len(body), request.head)
    return Request(request.number, head, body, request.relay)


async def plain(request: Request) -> bytes:
    return b"".join(await request.pass_on())


def test_one_empty_answer_in_ten_is_recognised(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        return says("200 OK") if request.number % 10 == 0 else await plain(request)

    code, found, _ = doctor(hop(rig, script))
    assert code == 0
    assert found[_LAST][0] == "note"
    assert "times HTTP 200, an empty body" in found[_LAST][1]
    assert found["body limit"][0] == found["answer limit"][0] == "ok"


@pytest.mark.parametrize("seconds", [0.3, 3600])
def test_a_cache_that_asks_for_the_url_alone_is_named_in_each_examination(
    rig: Rig, doctor: Any, seconds: float
) -> None:
    stored: dict[bytes, tuple[bytes, float]] = {}

    async def script(request: Request) -> bytes:
        key, now_s = request.head.partition(b"\r\n")[0], time.monotonic()
        if key not in stored or stored[key][1] < now_s:
            stored[key] = await plain(request), now_s + seconds
        return stored[key][0]

    url = hop(rig, script)
    code, found, report = doctor(url)
    assert (code, found["caching"][0], found["other steps"][0]) == (3, "problem", "not tried")
    assert "a hop answers from its cache in place of the relay" in found["caching"][1]
    assert not {"poll", "rate limit"} & found.keys()
    if seconds > 60:
        code, found, report = doctor(url)  # the cache has the answer to the first examination's ATTACH
        assert (code, found["relay"][0]) == (3, "problem")
        assert "a hop answers from its cache in place of a relay" in found["relay"][1]
    assert "not to store answers to POST" in str(report)


def test_an_answer_to_another_request_now_and_then_is_no_cache(rig: Rig, doctor: Any) -> None:
    before = b""

    async def script(request: Request) -> bytes:
        nonlocal before
        newest, before = before, await plain(request)
        return newest if request.number % 10 == 0 else before

    code, found, _ = doctor(hop(rig, script))
    assert (code, found[_LAST][0]) == (0, "note")
    assert "the answer to another request" in found[_LAST][1]


def test_a_redirect_in_mid_transfer_is_named_with_its_target(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        if request.number % 7 == 0:
            return says("302 Found", Location="http://login.invalid/?session=s")
        return await plain(request)

    _, found, _ = doctor(hop(rig, script))
    assert "HTTP 302, which leads to http://login.invalid/" in found[_LAST][1]


def test_a_hop_that_closes_connections_silently_is_named_and_no_exchange_fails(rig: Rig, doctor: Any) -> None:
    code, found, _ = doctor(hop(rig, plain, closes=True))
    assert code == 0
    assert "closes HTTP connections after an answer without saying so" in found["connections"][1]
    assert found[_LAST][0] == "ok"  # later exchanges open connections of their own
    assert found["idle limit"][0] == "not tried"


def test_a_hop_that_speaks_http_1_0_and_so_closes_connections_is_noted(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        return (await plain(request)).replace(b"HTTP/1.1", b"HTTP/1.0", 1)

    _, found, _ = doctor(hop(rig, script))
    assert found["http"][0] == "note"
    assert "closes the HTTP connection after each answer" in found["connections"][1]
    assert found[_LAST][0] == "ok"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_connections_that_a_hop_allows_at_once_are_counted(rig: Rig, doctor: Any, most: int) -> None:
    code, found, _ = doctor(connections_at_most(rig, most))
    assert code == 0
    assert found["at once"][2]["requests"] == most


def test_the_connections_that_a_hop_allows_at_once_are_left_to_the_target(rig: Rig, doctor: Any) -> None:
    """None of the doctor's own is open any more: an attach that gets a 403 would be refused for good."""
    refusal = says("403 Forbidden", b"<title>Too many connections</title>")
    _, found, _ = doctor(connections_at_most(rig, 2, refusal), f"127.0.0.1:{rig.serve(greet)}")
    assert found["target"][0] == "ok"


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("refusal", [b"", says("429 Too Many Requests"), says("503 Busy"), says("403 No")])
def test_one_request_at_a_time_is_no_limit_of_the_rate(
    rig: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch, refusal: bytes, drops: bool
) -> None:
    monkeypatch.setattr("tunnel_client.doctor.trials.SILENCE_S", 2.0)
    monkeypatch.setattr("tunnel_client.doctor.carrier_steps._ATTACH_S", 0.5)
    code, found, _ = doctor(one_request_at_a_time(rig, refusal, drops=drops))
    assert code == 0
    assert "rate limit" not in found
    assert found["at once"][2]["requests"] == 1
    assert found["connections"][0] == "note"
    assert ("drops further ones" in found["connections"][1]) is drops
    assert found["hold limit"][0] == found["body limit"][0] == "ok"


def test_requests_that_queue_before_the_relay_are_counted(rig: Rig, doctor: Any) -> None:
    slots = asyncio.Semaphore(2)

    async def script(request: Request) -> bytes:
        async with slots:
            return await plain(request)

    _, found, _ = doctor(hop(rig, script))
    assert found["at once"][2]["requests"] == 2
    assert "the others wait until one of these is answered" in found["at once"][1]


def test_an_access_rule_about_connections_is_not_blamed_on_the_relay(rig: Rig, doctor: Any) -> None:
    waiting = 0

    async def script(request: Request) -> bytes:
        nonlocal waiting
        waiting += 1
        try:
            if waiting > 2:
                return says("403 Forbidden", X_Squid_Error="ERR_ACCESS_DENIED 0", Server="squid/5.7")
            return await plain(request)
        finally:
            waiting -= 1

    code, found, _ = doctor(hop(rig, script))
    assert code == 0
    assert found["at once"][2]["requests"] == 2
    assert "the others fail (HTTP 403 from Squid 5.7" in found["at once"][1]


@pytest.mark.parametrize("most", [4 << 10, 64 << 10])
def test_a_limit_of_answers_is_found_and_everything_else_works_within_it(rig: Rig, doctor: Any, most: int) -> None:
    async def script(request: Request) -> bytes:
        head, body = await request.pass_on()
        return says("403 Forbidden", Server="squid/5.7") if len(body) > most else head + body

    code, found, _ = doctor(hop(rig, script))
    assert code == 0
    assert found["answer limit"][0] == "note"
    assert found["answer limit"][2]["answer_bytes"] == most
    assert found["body limit"][0] == found["hold limit"][0] == found[_LAST][0] == "ok"


def test_answers_that_are_all_too_large_are_a_problem(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        head, body = await request.pass_on()
        return says("502 Bad Gateway") if len(body) > 900 else head + body

    code, found, report = doctor(hop(rig, script), "127.0.0.1:1")
    assert code == 3
    assert found["answer limit"][0] == "problem"
    assert found["target"][:2] == ("not tried", "the problem above comes first: ")
    assert report["summary"].startswith("the tunnel does not work here")


def test_requests_that_are_all_too_large_are_a_problem(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        return says("413 Too Large") if len(request.body) > 900 else await plain(request)

    code, found, _ = doctor(hop(rig, script))
    assert code == 3
    assert found["body limit"][0] == "problem"
    assert found["answer limit"][0] == "not tried"
    assert found["altering"][0] == "ok"


def test_a_limit_of_8_kib_still_carries_the_tunnel(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        return says("413 Too Large") if len(request.body) > 8192 else await plain(request)

    code, found, _ = doctor(hop(rig, script))
    assert (code, found["body limit"][0]) == (0, "note")
    assert found["body limit"][2]["body_bytes"] == 8192


def test_a_floor_below_what_the_tunnel_needs_a_filter_for_noise_and_get_alone_are_told_apart(
    rig: Rig, doctor: Any
) -> None:
    async def floor(request: Request) -> bytes:
        return says("403 Forbidden") if len(request.body) > 512 else await plain(request)

    async def noise(request: Request) -> bytes:
        return says("403 Forbidden") if request.body and bits(request.body) > 7.2 else await plain(request)

    async def get(request: Request) -> bytes:
        return await plain(request) if request.head.startswith(b"GET ") else says("403 Forbidden")

    code, found, _ = doctor(hop(rig, floor))
    assert (code, found["body limit"][0]) == (3, "problem")
    assert "the tunnel needs 1.5 KiB" in found["body limit"][1]
    assert "filter" not in found
    code, found, _ = doctor(hop(rig, noise))
    assert (code, found["filter"][0]) == (0, "note")
    assert "of noise pass in the form of text (application/json)" in found["filter"][1]
    assert "body limit" not in found
    code, found, _ = doctor(hop(rig, get))
    assert (code, found["relay"][2]["method"]) == (3, "GET")
    assert "lets GET requests pass, but no POST (HTTP 403" in found["relay"][1]


def test_a_hop_that_upgrades_and_then_says_nothing_carries_no_link(
    rig: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel_client.doctor.carrier_steps.LINK_S", 0.2)

    async def script(request: Request) -> bytes:
        if b"GET /link" in request.head:
            return (
                b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: tunnel-link/1\r\nContent-Length: 0\r\n\r\n"
            )
        return await plain(request)

    code, found, _ = doctor(hop(rig, script))
    assert code == 0
    assert found["link"][2] == {"carrier": "link", "works": False}
    assert "but nothing came over it within 0.2 s" in found["link"][1]


def test_a_hop_that_removes_the_token_is_named_as_the_cause(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        request.head = re.sub(rb"(?im)^authorization:[^\n]*\n", b"", request.head)
        return await plain(request)

    code, found, report = doctor(hop(rig, script))
    assert code == 4
    assert "removes the header Authorization" in found["relay"][1]
    assert report["next"].startswith("tunnel doctor ")
    assert TOKEN not in str(report)


def test_two_relays_behind_one_address_are_a_problem(rig: Rig, doctor: Any) -> None:
    with Rig() as other:
        ports = rig.running.addresses[0].port, other.running.addresses[0].port

        async def script(request: Request) -> bytes:
            request.relay = ports[request.number % 2]
            return await plain(request)

        code, found, report = doctor(hop(rig, script))
    assert code == 3
    assert found["relays"][0] == "problem"
    assert "ip_hash" in found["relays"][1]
    assert found["other steps"][0] == "not tried"
    assert report["summary"].startswith("the tunnel does not work here")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (b"\xef\xbb\xbf", b"", "a hop put 3 bytes in front of the relay's answer"),
        (b"", b"<!-- scanned -->", "a hop added 16 bytes to the relay's answer"),
    ],
)
def test_a_hop_that_adds_to_every_answer_is_found(
    rig: Rig, doctor: Any, before: bytes, after: bytes, text: str
) -> None:
    async def script(request: Request) -> bytes:
        head, body = await request.pass_on()
        return with_length(head, before + body + after)

    code, found, report = doctor(hop(rig, script))
    assert code == 7
    assert text in found["relay"][1]
    assert "https://" in found["relay"][1]
    assert "browser" not in str(report)


@pytest.mark.parametrize("is_request", [True, False])
def test_a_hop_that_alters_binary_bodies_is_found_and_passed_as_text(rig: Rig, doctor: Any, is_request: bool) -> None:
    def alter(body: bytes) -> bytes:
        return body.decode("utf-8", "replace").encode()

    async def script(request: Request) -> bytes:
        if is_request:
            return await plain(with_body(request, alter(request.body)))
        head, body = await request.pass_on()
        return with_length(head, alter(body))

    code, found, _ = doctor(hop(rig, script))
    assert code == 0
    assert found["relay"][0] == "note"
    assert "a hop alters binary bodies" in found["relay"][1]
    assert "application/json passes, and the tunnel uses it" in found["relay"][1]


def test_a_hop_that_alters_only_large_bodies_is_found(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        altered = request.body.replace(b"\n", b" ") if len(request.body) > 4000 else request.body
        return await plain(with_body(request, altered))

    code, found, _ = doctor(hop(rig, script))
    assert code == 0
    assert "a hop alters bodies that are not text" in found["filter"][1]


def test_answers_that_are_lost_are_no_requests_that_came_twice(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        head, body = await request.pass_on()
        return head + body[: len(body) // (2 if request.number % 5 == 0 else 1)]

    _, found, _ = doctor(hop(rig, script, closes=True))
    assert found["repeats"][0] == "ok"


def test_an_answer_that_breaks_the_rules_of_http_is_no_reason_to_change_the_scheme(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        head, body = await request.pass_on()
        return head.replace(b"\r\n", b"\r\nContent-Length: %d\r\n" % len(body), 1) + body

    code, found, _ = doctor(hop(rig, script))
    assert code == 3
    assert "is malformed (Duplicate Content-Length)): a device on the way breaks answers" in found["relay"][1]


def test_a_server_that_answers_in_tls_alone_is_told_from_a_login_page(rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        return says("301 Moved Permanently", Location="https://127.0.0.1/exchange")

    code, found, _ = doctor(hop(rig, script))
    assert code == 3
    assert "write https:// in place of http:// in the relay's URL" in found["relay"][1]
    assert "sign in" not in found["relay"][1]


@pytest.mark.parametrize("page", [b"", b"<title>Sign in</title>"])
def test_a_hop_that_compresses_is_distinguished_from_a_compressed_page(rig: Rig, doctor: Any, page: bytes) -> None:
    async def script(request: Request) -> bytes:
        head, body = await request.pass_on()
        return with_length(head[:-2] + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(page or body))

    code, found, _ = doctor(hop(rig, script))
    if page:
        assert (code, found["relay"][0]) == (3, "problem")
        assert "a page titled 'Sign in'" in found["relay"][1]
    else:
        assert (code, found["compression"][0]) == (0, "note")
        assert "a hop compresses answers (gzip), although they say no-transform" in found["compression"][1]


@pytest.mark.parametrize(("more", "verdict"), [("poll", "ok"), ("link", "note")])
def test_carriers_of_later_versions_are_tried(
    rig: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch, more: str, verdict: str
) -> None:
    monkeypatch.setattr("tunnel_client.doctor.carrier_steps.CARRIERS", ("auto", "poll", "link", more))
    monkeypatch.setattr("tunnel_client.doctor.carrier_steps._ATTACH_S", 1.0)
    _, found, _ = doctor(hop(rig, plain))
    assert found[more][0] == verdict


def test_a_forward_proxy_is_named_by_its_page_for_a_host_that_exists_nowhere(rig: Rig, doctor: Any) -> None:
    asked: list[bytes] = []

    async def script(request: Request) -> bytes:
        if b"tunnel-doctor.invalid" in request.head:
            asked.append(request.head)
            return says("502 Bad Gateway", Server="mitmproxy 12.0.1")
        return await plain(request)

    code, found, _ = doctor(rig.url, "--proxy", hop(rig, script))
    assert code == 0
    assert found["hops"][2]["products"] == ["mitmproxy 12.0.1"]
    assert TOKEN.encode() not in asked[0]


STRANGE = {
    "nothing but 204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "no HTTP": b"220 mail.example ESMTP\r\n",
    "zeros": bytes(4096),
    "half a status line": b"HTTP/1.1",
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    "a length that is too long": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    "a broken chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "an upgrade that was not asked for": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "a date beyond all calendars": says("200 OK", Date="Mon, 01 Jan 99999 00:00:00 GMT"),
    "a header that is no text": b"HTTP/1.1 403 No\r\nServer: \xff\xfe\x00nginx\r\nContent-Length: 0\r\n\r\n",
    "a redirect to nowhere": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    "gzip that is none": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "an early hint alone": b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "our magic alone": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTUNL",
    "nothing": b"",
}


@pytest.mark.parametrize("name", STRANGE)
def test_the_doctor_survives_every_strange_answer(name: str, home: Path, rig: Rig, doctor: Any) -> None:
    async def script(request: Request) -> bytes:
        return STRANGE[name]

    code, found, report = doctor(hop(rig, script, closes=True))
    assert code in (3, 7)
    assert found["relay"][0] == "problem"
    assert report["next"]


@pytest.mark.parametrize("name", STRANGE)
def test_the_doctor_survives_strange_answers_in_mid_examination(
    name: str, home: Path, rig: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("LINK_S", "_ATTACH_S"):  # neither succeeds
        monkeypatch.setattr(f"tunnel_client.doctor.carrier_steps.{patience}", 0.5)

    async def script(request: Request) -> bytes:
        return STRANGE[name] if request.number > 12 else await plain(request)

    code, found, _ = doctor(hop(rig, script, closes=True))
    assert code == 3
    assert found["relay"][0] == "ok"
    assert "problem" in {verdict for verdict, _, _ in found.values()}
