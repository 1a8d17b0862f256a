"""HTTP of a forward proxy: CONNECT, requests with absolute URLs rewritten for their target, and refusals."""

import pytest

from tunnel import DeniedError, RefusedError, RejectReason, UnreachableError
from tunnel_client.proxy.http_connect import HEAD_BYTES_MAX, HttpRequest, parse_http
from tunnel_client.proxy.requests import MalformedError, Parsed, Why, why


def parsed(text: str) -> HttpRequest:
    data = text.replace("\n", "\r\n").encode() + b"\r\n\r\n"
    found = parse_http(data + b"rest")
    assert isinstance(found, Parsed)
    assert found.size == len(data)
    assert isinstance(found.request, HttpRequest)
    return found.request


@pytest.mark.parametrize(
    ("target", "place"),
    [("db.internal:443", ("db.internal", 443)), ("[::1]:80", ("::1", 80)), ("127.0.0.1:1", ("127.0.0.1", 1))],
)
def test_a_connect_names_its_target(target: str, place: tuple[str, int]) -> None:
    request = parsed(f"CONNECT {target} HTTP/1.1\nHost: {target}\nProxy-Authorization: Basic eA==")
    assert (request.host, request.port) == place
    assert (request.early, request.body_bytes) == (b"", None)
    assert request.success_answer() == b"HTTP/1.1 200 Connection established\r\n\r\n"


def test_a_request_with_an_absolute_url_is_rewritten_for_its_target() -> None:
    request = parsed(
        "GET http://me:secret@Web.example:8080/a?b=c%20d HTTP/1.1\nHost: other\nProxy-Connection: keep-alive\n"
        "Proxy-Authorization: Basic eA==\nConnection: x-mine, close\nX-Mine: 1\nX-Kept:  a b \nCookie: c"
    )
    assert (request.host, request.port, request.body_bytes) == ("Web.example", 8080, 0)
    assert request.early == (
        b"GET /a?b=c%20d HTTP/1.1\r\nHost: Web.example:8080\r\nX-Kept: a b\r\nCookie: c\r\nConnection: close\r\n\r\n"
    )
    assert request.success_answer() == b""


@pytest.mark.parametrize(
    ("line", "place", "first"),
    [
        ("GET http://a HTTP/1.0", ("a", 80), b"GET / HTTP/1.0"),
        ("GET http://[::1]/ HTTP/1.1", ("::1", 80), b"GET / HTTP/1.1"),
        ("HEAD HTTP://a:1?q HTTP/1.1", ("a", 1), b"HEAD /?q HTTP/1.1"),
        ("OPTIONS http://a HTTP/1.1", ("a", 80), b"OPTIONS * HTTP/1.1"),
    ],
)
def test_the_request_line_is_rewritten_for_the_target(line: str, place: tuple[str, int], first: bytes) -> None:
    request = parsed(line)
    assert (request.host, request.port) == place
    assert request.early.startswith(first + b"\r\n")


def test_the_length_of_a_body_is_parsed() -> None:
    post = "POST http://a/ HTTP/1.1"
    assert parsed(f"{post}\nContent-Length: 12").body_bytes == 12
    assert parsed(f"{post}\nContent-Length: 12\nContent-Length: 12").body_bytes == 12
    assert parsed(f"{post}\nTransfer-Encoding: chunked").body_bytes is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("GET / HTTP/1.1", "this is a proxy: tell your client"),
        ("GET https://a/ HTTP/1.1", "only http:// URLs"),
        ("GET ftp://a/ HTTP/1.1", "only http:// URLs"),
        ("GET http:/// HTTP/1.1", "only http:// URLs"),
        ("GET http://[::1/ HTTP/1.1", "the URL is malformed"),
        ("GET http://é/ HTTP/1.1", "the URL is malformed"),
        ("GET http://a:0/ HTTP/1.1", "the target is not HOST:PORT"),
        ("CONNECT db.internal HTTP/1.1", "the target is not HOST:PORT"),
        ("CONNECT ::1:80 HTTP/1.1", "the target is not HOST:PORT"),
        ("CONNECT :80 HTTP/1.1", "the target is not HOST:PORT"),
        ("CONNECT a:99999 HTTP/1.1", "the target is not HOST:PORT"),
        ("hello", "not a request of HTTP/1.1"),
        ("CONNECT a\x01b:80 HTTP/1.1", "not a request of HTTP/1.1"),
        ("CONNECT a\x7f:80 HTTP/1.1", "not a request of HTTP/1.1"),
        ("GET http://a/\x1b[2J HTTP/1.1", "not a request of HTTP/1.1"),
        ("GET http://a/\nX-Injected:b HTTP/1.1", "not a request of HTTP/1.1"),
        ("GET http://a/ HTTP/2.0", "not a request of HTTP/1.1"),
        ("GET  http://a/ HTTP/1.1", "not a request of HTTP/1.1"),
        ("GET http://a/ HTTP/1.1\nno colon", "header field"),
        ("GET http://a/ HTTP/1.1\nspace : before", "header field"),
        ("GET http://a/ HTTP/1.1\nA: b\n folded", "header field"),
        ("GET http://a/ HTTP/1.1\nA: b\rc", "header field"),
        ("POST http://a/ HTTP/1.1\nContent-Length: 1\nContent-Length: 2", "Content-Length is not one number"),
        ("POST http://a/ HTTP/1.1\nContent-Length: -1", "Content-Length is not one number"),
        ("POST http://a/ HTTP/1.1\nContent-Length: 1\nTransfer-Encoding: chunked", "both a Content-Length and"),
    ],
)
def test_invalid_requests_are_refused(text: str, answer: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parsed(text)
    assert caught.value.answer.startswith(b"HTTP/1.1 400 Bad Request: ")
    assert answer in caught.value.answer.decode()


def test_a_head_may_come_in_pieces_and_has_a_largest_size() -> None:
    assert parse_http(b"GET http://a/ HTTP/1.1\r\n\r") is None
    assert parse_http(b"x" * HEAD_BYTES_MAX) is None
    for data in (b"x" * (HEAD_BYTES_MAX + 1), b"x" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n"):
        with pytest.raises(MalformedError) as caught:
            parse_http(data)
        assert caught.value.answer.startswith(b"HTTP/1.1 431 ")


def test_refusals_name_the_reason() -> None:
    request = HttpRequest("a", 1)
    codes = {reason: int(request.refusal_answer(reason, "because")[9:12]) for reason in Why}
    assert codes == {
        Why.DENIED: 403,
        Why.NOT_RESOLVED: 502,
        Why.REFUSED: 502,
        Why.UNREACHABLE: 502,
        Why.TIMED_OUT: 504,
        Why.BUSY: 503,
        Why.LOST: 502,
    }
    assert request.refusal_answer(Why.DENIED, "no rule for ü").endswith("\r\n\r\nno rule for ü\n".encode())
    assert b"Content-Length: 15\r\n" in request.refusal_answer(Why.DENIED, "no rule for ü")


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("no rule allows db:5432: ask its operator", "no rule allows db:5432: ask its operator"),
        ("two\r\nSet-Cookie: lines\n\tand a tab", "two Set-Cookie: lines and a tab"),
        ("no rule for ü\x00\x7f €", "no rule for ? ?"),
        ("x" * 2000, "x" * 397 + "..."),
        (" \r\n ", ""),
    ],
)
def test_the_reason_phrase_says_why_because_clients_show_no_body_of_a_refused_connect(text: str, phrase: str) -> None:
    """It is one line of visible ASCII, whatever the relay or the target said."""
    head, _, body = HttpRequest("a", 1).refusal_answer(Why.DENIED, text).partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0].decode("ascii") == f"HTTP/1.1 403 Forbidden{': ' + phrase if phrase else ''}"
    assert [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]] == [
        b"Content-Type",
        b"Content-Length",
        b"Connection",
        b"Cache-Control",
    ]
    assert body == f"{text}\n".encode()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeniedError(""), Why.DENIED),
        (RefusedError("", RejectReason.REFUSED), Why.REFUSED),
        (RefusedError("", RejectReason.NAME_NOT_RESOLVED), Why.NOT_RESOLVED),
        (RefusedError("", RejectReason.TIMED_OUT), Why.TIMED_OUT),
        (RefusedError("", RejectReason.VERSION), Why.UNREACHABLE),
        (TimeoutError(), Why.TIMED_OUT),
        (UnreachableError(), Why.LOST),
    ],
)
def test_each_error_has_its_reason(error: Exception, reason: Why) -> None:
    assert why(error) is reason


def test_a_malformed_request_of_no_known_protocol_gets_no_answer() -> None:
    assert MalformedError("neither SOCKS nor HTTP").answer == b""
