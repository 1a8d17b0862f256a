"""Requests of people without the tunnel: whatever comes, the service gets one request with one head, or none."""

from __future__ import annotations

from ipaddress import ip_address

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_servlet.access.proxies import client_in
from tunnel_servlet.web.public.proxy_header import proxy_header
from tunnel_servlet.web.public.request import BadRequest, PublicRequest

WORDS = (
    *(b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"GET http://a/ HTTP/1.1\r\n", b"PUT * HTTP/1.0\r\n"),
    *(b"Host: a.example\r\n", b"host:b.example:80\r\n", b"Host : x\r\n", b"X-Forwarded-For: 6.6.6.6\r\n"),
    *(
        b"X_Forwarded_For: 6.6.6.6\r\n",
        b"X.Forwarded.For: 6.6.6.6\r\n",
        b"CF-Connecting-IP: 6.6.6.6\r\n",
        b"Forwarded: for=6.6.6.6\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:\tchunked\r\n", b"Transfer-Encoding: x\r\n"),
    *(b"Connection: Upgrade, Content-Length\r\n", b"Upgrade: websocket\r\n", b"Upgrade: h2c\r\n"),
    *(
        b" folded: 1\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
    ),
    *(b"3;x=\r\nabc\r\n", b"ffffffffffffffffffff\r\n", b"-1\r\n", b"x" * 20_000),
)


def written(data: bytes, parts: list[int]) -> tuple[PublicRequest, bytes]:
    """Feed the data in parts of these sizes; return the request and the bytes that the service gets."""
    request, out, at = PublicRequest("192.0.2.7", "http"), b"", 0
    for size in [*parts, len(data)]:
        if data[at : at + size]:
            out += request.feed(data[at : at + size])
        at += size
    return request, out


def outcome(data: bytes, parts: list[int]) -> tuple[PublicRequest, bytes] | BadRequest:
    try:
        return written(data, parts)
    except BadRequest as bad:
        return bad


def parsed(out: bytes) -> tuple[list[h11.Request], bytes, bool]:
    """Return the heads, the body, and whether the request is whole, as another parser finds them."""
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(out)
    heads, body = [], b""
    while True:
        event = reader.next_event()
        if isinstance(event, h11.Request):
            heads.append(event)
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return heads, body + reader.trailing_data[0], True
        else:
            return heads, body, False


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.lists(st.integers(1, 40), max_size=6))
def test_any_bytes_are_one_request_or_none(words: list[bytes], parts: list[int]) -> None:
    data = b"GET / HTTP/1.1\r\nHost: a.example\r\n" + b"".join(words)
    found = outcome(data, parts)
    if isinstance(found, BadRequest):
        assert 400 <= found.status < 600
        assert found.text
        return
    request, out = found
    if not out:
        assert not request.host
        return
    heads, body, is_whole = parsed(out)
    assert is_whole == request.is_complete
    assert len(heads) == 1
    assert b"6.6.6.6" not in out[: out.index(b"\r\n\r\n")]
    names = [name for name, _ in heads[0].headers]
    assert names.count(b"x-forwarded-for") == names.count(b"connection") == names.count(b"host") == 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert b"HTTP/1.1" not in body


# Headers that servers, frameworks and delivery networks read as the client's address, host, scheme, user or key.
CLAIMS = (
    "Forwarded, X-Forwarded, Forwarded-For, X-Forwarded-For, X-Forwarded-For-Original, X-Original-Forwarded-For, "
    "X-Vercel-Forwarded-For, X-Forward-For, X-Forwarder-For, Forwarded-For-IP, HTTP-X-Forwarded-For, X-Real-IP, "
    "Real-IP, X-Client-IP, Client-IP, X-Cluster-Client-IP, Cluster-Client-IP, True-Client-IP, X-True-Client-IP, "
    "CF-Connecting-IP, CF-Connecting-IPv6, CF-Pseudo-IPv4, Fastly-Client-IP, Fly-Client-IP, DO-Connecting-IP, "
    "X-Remote-IP, X-Remote-Addr, Remote-Addr, X-Originating-IP, Proxy-Client-IP, WL-Proxy-Client-IP, "
    "X-Azure-ClientIP, X-Azure-SocketIP, X-AppEngine-User-IP, X-NF-Client-Connection-IP, X-Sucuri-ClientIP, "
    "Incap-Client-IP, Ali-CDN-Real-IP, CDN-Src-IP, X-ProxyUser-Ip, X-Envoy-External-Address, "
    "CloudFront-Viewer-Address, X-Original-Remote-Addr, X-Custom-IP-Authorization, X-Coming-From, X-Host, "
    "X-Original-Host, X-HTTP-Host-Override, X-Scheme, X-URL-Scheme, Front-End-Https, X-ARR-SSL, X-Original-URL, "
    "X-Rewrite-URL, Remote-User, X-Remote-User, X-Auth-Request-User, X-WebAuth-User, X-Client-Cert, X-ARR-ClientCert, "
    "SSL-Client-Verify, X-SSL-Client-S-DN, Client-Cert, Proxy"
).split(", ")
SPELLINGS = {
    "as it is": lambda name: name,
    "in lower case with underscores": lambda name: name.lower().replace("-", "_"),
    "with dots": lambda name: name.replace("-", "."),
    "with several other letters": lambda name: name.replace("-", "!", 1).replace("-", "~").upper(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("claim", CLAIMS)
def test_two_users_no_spelling_of_a_client_s_claim_reaches_a_service(claim: str, spelling: str) -> None:
    name = SPELLINGS[spelling](claim)
    _, out = written(f"GET / HTTP/1.1\r\nHost: a.example\r\n{name}: 6.6.6.6\r\nX-Kept: yes\r\n\r\n".encode(), [])
    assert b"6.6.6.6" not in out
    assert b"X-Kept: yes\r\n" in out


@pytest.mark.parametrize(
    "line",
    [
        "Transfer_Encoding: 6.6.6.6",  # it frames the request for a service that takes it for Transfer-Encoding
        "Content.Length: 6.6.6.6",
        "Host_: 6.6.6.6",
        "Proxy_Connection: 6.6.6.6",
        "Connection: x_named\r\nX-Named: 6.6.6.6",
        "Connection: X-Named\r\nx.named: 6.6.6.6",
    ],
)
def test_two_users_no_other_spelling_of_a_header_for_one_hop_reaches_a_service(line: str) -> None:
    _, out = written(f"GET / HTTP/1.1\r\nHost: a.example\r\n{line}\r\n\r\n".encode(), [])
    assert b"6.6.6.6" not in out


@pytest.mark.parametrize(
    "name",
    ["Accept", "Cookie", "User-Agent", "Authorization", "Origin", "Referer", "X-Requested-With", "X-CSRF-Token",
     "X-HTTP-Method-Override", "Idempotency-Key", "X-Api-Key", "Sec-WebSocket-Key", "Sec-Fetch-Site", "Max-Forwards",
     "X-Shipping-Zip", "Tip", "Stripe-Signature", "X-Hub-Signature-256", "traceparent", "From", "Content_Type"],
)  # fmt: skip
def test_the_headers_of_honest_clients_reach_the_service(name: str) -> None:
    _, out = written(f"GET / HTTP/1.1\r\nHost: a.example\r\n{name}: a value\r\n\r\n".encode(), [])
    assert f"\r\n{name}: a value\r\n".encode() in out


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waits(data: bytes) -> None:
    found = outcome(data, [7, 50])
    if isinstance(found, BadRequest):
        assert 400 <= found.status < 600
    else:
        assert found[0].is_complete or not found[0].host or found[1]


@pytest.mark.parametrize(
    ("host", "name"),
    [("A.example", "a.example"), ("a.example:8080", "a.example"), ("a.example.", "a.example"), ("[::1]:80", "[::1]")],
)
def test_the_name_of_the_host_is_read_without_its_port_and_in_lower_case(host: str, name: str) -> None:
    request, _ = written(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), [])
    assert request.host == name


def test_a_whole_head_is_limited_as_one_that_comes_in_parts() -> None:
    lines = b"".join(b"X: %s\r\n" % (b"x" * 500) for _ in range(34))
    found = outcome(b"GET / HTTP/1.1\r\nHost: a.example\r\n" + lines + b"\r\n", [])
    assert isinstance(found, BadRequest)
    assert (found.status, found.text) == (431, "the head of the request has more than 16384 bytes")


def test_a_body_does_not_count_as_part_of_the_head() -> None:
    request, out = written(b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 20000\r\n\r\n" + bytes(20_000), [])
    assert request.is_complete
    assert out.endswith(bytes(20_000))


def test_small_chunks_that_come_together_are_one_chunk() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, out = written(head + b"1\r\na\r\n" * 100, [])
    assert out.endswith(b"\r\n\r\n64\r\n" + b"a" * 100 + b"\r\n")


def test_chunks_arrive_as_chunks_and_trailers_do_not() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    request, out = written(head + b"4;x=1\r\nbody\r\n0\r\nX-Forwarded-For: 6.6.6.6\r\n\r\nrest", [])
    assert request.is_complete
    assert out.endswith(b"\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
    assert b"6.6.6.6" not in out


@pytest.mark.parametrize(("version", "family", "size"), [(4, 0x11, 12), (6, 0x21, 36)])
def test_a_proxy_header_has_the_addresses_and_ports_in_the_format_of_version_2(
    version: int, family: int, size: int
) -> None:
    client, server = ("192.0.2.7", "198.51.100.1") if version == 4 else ("2001:db8::7%eth0", "2001:db8::1")
    raw = proxy_header((client, 40_000), (server, 443))
    assert raw[:12] == b"\r\n\r\n\x00\r\nQUIT\n"
    assert (raw[12], raw[13], int.from_bytes(raw[14:16], "big"), len(raw)) == (0x21, family, size, 16 + size)
    assert raw[-4:] == (40_000).to_bytes(2, "big") + (443).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("client", "server", "shown"),
    [
        ("2001:db8::7", "198.51.100.1", ("2001:db8::7", "::ffff:198.51.100.1")),
        ("192.0.2.7", "2001:db8::1", ("::ffff:192.0.2.7", "2001:db8::1")),
        ("::ffff:192.0.2.7", "198.51.100.1", ("192.0.2.7", "198.51.100.1")),
        ("::ffff:192.0.2.7", "::ffff:198.51.100.1", ("192.0.2.7", "198.51.100.1")),
        ("::ffff:192.0.2.7", "2001:db8::1%eth0", ("::ffff:192.0.2.7", "2001:db8::1")),
    ],
)
def test_a_proxy_header_has_one_family_whatever_the_two_addresses_are(
    client: str, server: str, shown: tuple[str, str]
) -> None:
    """A proxy in front may have told the client's address, and need not use the family in which it reaches the
    relay."""
    raw = proxy_header((client, 40_000), (server, 443))
    packed = [ip_address(host).packed for host in shown]
    assert raw[13] == {4: 0x11, 16: 0x21}[len(packed[0])]
    assert raw[14:] == (2 * len(packed[0]) + 4).to_bytes(2, "big") + b"".join(packed) + b"\x9c\x40\x01\xbb"
    assert client_in(raw[:16], raw[16:]) == (client.removeprefix("::ffff:"), 40_000)
