"""The verdicts on HTTP responses (PROTOCOL 7.9, 7.10)."""

import pytest

from tunnel.exchange.lanes.responses import Verdict, judge, quoted, title_of
from tunnel.wire import HTTP_STATUS, Answer, Attach, Attached, Message, Status, StatusCode, checksum, encode_envelope


def encoded(message: Message) -> bytes:
    return b"".join(encode_envelope(message))


CODES = {
    StatusCode.UNKNOWN: Verdict.UNKNOWN,
    StatusCode.CORRUPT: Verdict.REPEAT,
    StatusCode.STALE: Verdict.STALE,
    StatusCode.TOO_LARGE: Verdict.TOO_LARGE,
    StatusCode.BUSY: Verdict.REPEAT,
    StatusCode.NOT_AUTHORISED: Verdict.FATAL,
    StatusCode.DENIED: Verdict.FATAL,
    StatusCode.MALFORMED: Verdict.FATAL,
}


@pytest.mark.parametrize("code", StatusCode)
def test_every_code_of_the_relay_has_its_meaning(code: StatusCode) -> None:
    outcome = judge(HTTP_STATUS[code], encoded(Status(code, 1500, "why")), 0)
    assert outcome.verdict is CODES[code]
    assert outcome.text.endswith("from the relay: why")
    assert (outcome.code, outcome.retry_after_us) == (code, 1_500_000)


def test_a_status_without_a_text_is_reported_with_its_code() -> None:
    outcome = judge(503, encoded(Status(StatusCode.BUSY)), 0)
    assert outcome.text == f"HTTP 503 from the relay: code {int(StatusCode.BUSY)}, without a reason"


def test_the_longer_of_both_retry_afters_is_obeyed() -> None:
    assert judge(503, encoded(Status(StatusCode.BUSY, 1500)), 2_000_000).retry_after_us == 2_000_000


def test_a_code_of_a_later_version_is_judged_by_its_status() -> None:
    assert judge(413, encoded(Status(99)), 0).verdict is Verdict.TOO_LARGE
    assert judge(500, encoded(Status(99)), 0).verdict is Verdict.REPEAT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 401, 403, 415])
def test_refusals_and_redirects_of_another_party_are_foreign(status: int) -> None:
    assert judge(status, b"", 0).verdict is Verdict.FOREIGN
    assert judge(status, encoded(Status(99)), 0).verdict is Verdict.FATAL


def test_407_asks_for_a_password() -> None:
    assert judge(407, b"", 0).verdict is Verdict.ASKED
    assert judge(407, encoded(Status(99)), 0).verdict is Verdict.FATAL  # the relay itself answered


def test_413_of_a_proxy_asks_for_smaller_bodies() -> None:
    assert judge(413, b"<html>too large</html>", 0).verdict is Verdict.TOO_LARGE


@pytest.mark.parametrize("status", [200, 204, 400, 404, 405, 408, 425, 429, 451, 500, 502, 503, 504])
def test_everything_else_without_our_magic_is_repeated(status: int) -> None:
    outcome = judge(status, b"<html>\n\x1b[2J please  sign in</html>", 7)
    assert outcome.verdict is Verdict.REPEAT
    assert outcome.text.startswith(f"HTTP {status}, but not from a relay")
    assert outcome.text.endswith(": \\x1b[2J please sign in")
    assert outcome.retry_after_us == 7


def test_a_429_of_the_relay_without_a_retry_after_asks_for_a_second() -> None:
    assert judge(429, encoded(Status(StatusCode.BUSY)), 0).retry_after_us == 1_000_000
    assert judge(429, encoded(Status(StatusCode.BUSY)), 5).retry_after_us == 5
    assert judge(503, encoded(Status(StatusCode.BUSY)), 0).retry_after_us == 0
    assert judge(429, b"slow down", 0).retry_after_us == 0


@pytest.mark.parametrize(("status", "longest_s"), [(200, 2), (403, 2), (429, 20), (502, 2), (503, 2), (504, 2)])
def test_of_the_answers_of_intermediaries_only_a_429_asks_for_a_long_wait(status: int, longest_s: int) -> None:
    """Varnish asks for 5 s when the relay is away for one, and a page of a proxy may ask for minutes."""
    assert judge(status, b"away", 20_000_000).retry_after_us == longest_s * 1_000_000
    assert judge(status, encoded(Status(StatusCode.BUSY)), 20_000_000).retry_after_us == 20_000_000
    assert judge(429, b"away", 86_400_000_000).retry_after_us == 30_000_000


@pytest.mark.parametrize(("status", "too_many"), [(200, None), (403, None), (429, True), (502, None), (503, False)])
def test_a_refusal_may_mean_that_requests_are_too_many(status: int, too_many: bool | None) -> None:
    assert judge(status, b"no", 0).too_many is too_many
    assert judge(status, encoded(Status(StatusCode.BUSY)), 0).too_many is None


@pytest.mark.parametrize(("status", "size"), [(406, 120), (407, 500), (408, 120), (502, 120)])
def test_the_quote_of_a_foreign_body_is_bounded(status: int, size: int) -> None:
    text = judge(status, b"x" * 1000, 0).text
    assert text.startswith(f"HTTP {status}, but not from a relay")
    assert text.endswith(f": {'x' * size}")
    assert text.count("x") == size + text.split(": ")[0].count("x")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"hello", "it may be a login or block page"),
        (
            400,
            b"<h1>The plain HTTP request was sent to HTTPS port",
            "this port speaks TLS: the URL must begin with https://",
        ),
        (302, b"it leads to http://portal/", "it may be a login or block page"),
        (401, b"", "a proxy or another server asks for credentials of its own"),
        (403, b"", "a proxy or another server forbids this"),
        (404, b"", "check the path of the relay's URL"),
        (429, b"", "a proxy or another server limits the rate of requests"),
        (500, b"", "a server on the way failed"),
        (501, b"", "a proxy or another server does not support POST requests"),
        (502, b"", "a proxy cannot reach the relay"),
    ],
)
def test_a_foreign_answer_is_explained(status: int, body: bytes, reason: str) -> None:
    assert f"HTTP {status}, but not from a relay ({reason}" in judge(status, body, 0).text


def test_a_damaged_answer_is_named_as_the_cause() -> None:
    damaged = bytearray(encoded(Status(StatusCode.BUSY)))
    damaged[-1] ^= 1
    assert judge(200, bytes(damaged), 0).text.startswith("HTTP 200, but the answer arrived damaged (the body is ")


def test_an_empty_body_is_named() -> None:
    assert judge(502, b"", 0).text.endswith("an empty body")


def test_answers_are_handed_on() -> None:
    assert judge(200, encoded(Answer(1, 2, 3)), 0).verdict is Verdict.ANSWER
    attached = Attached(bytes(16), 1, 1, True, 1, 1, 1, 0, 1, 1)
    assert judge(200, encoded(attached), 0).message == attached


def test_a_damaged_answer_is_repeated() -> None:
    body = bytearray(encoded(Answer(1, 2, 3)))
    body[-1] ^= 1
    assert judge(200, body, 0).verdict is Verdict.REPEAT
    assert (
        judge(200, body[:20], 0).text
        == "HTTP 200, but the answer arrived damaged (the body is shorter than its length field says)"
    )


def test_our_own_request_sent_back_is_repeated() -> None:
    outcome = judge(200, encoded(Attach(bytes(32), 1, 0, 1)), 0)
    assert (outcome.verdict, outcome.text) == (
        Verdict.REPEAT,
        "HTTP 200, but the answer is our own request, which a proxy or another server sent back",
    )


def test_another_version_is_fatal() -> None:
    body = bytearray(encoded(Answer(1, 2, 3)))
    body[4] = 2
    body[12:16] = checksum(body[:12], bytes(4), body[16:]).to_bytes(4, "big")
    found = judge(200, body, 0)
    assert found.verdict is Verdict.FATAL
    assert found.text == "HTTP 200: the relay speaks another protocol version: update the older side"


def test_a_body_that_is_not_text_can_be_quoted() -> None:
    assert judge(200, b"\xff\xfe<html>", 0).text.endswith("\ufffd\ufffd<html>")


@pytest.mark.parametrize(
    ("status", "body", "is_page"),
    [
        (302, b"", True),
        (200, b" \n<!DOCTYPE HTML>\n<p>", True),
        (200, b"<html lang=en>", True),
        (511, b"<html>", True),
        (200, b"hello", False),
        (200, b"", False),
        (404, b"<html>", False),
        (403, b"<html>", False),
    ],
)
def test_redirects_and_html_are_pages(status: int, body: bytes, is_page: bool) -> None:
    assert judge(status, body, 0).is_page is is_page


def test_the_title_of_a_page_is_quoted() -> None:
    text = judge(200, b"<html><head>" + bytes(200) + b"<TITLE class=x>\n Sign\x1b in </title>", 0).text
    assert text.endswith(": the page 'Sign\\x1b in'")
    assert judge(200, b"<html><title> </title>", 0).text.endswith(": an empty body") is False


@pytest.mark.parametrize(
    "page",
    [
        b"<html><head></head><body><h1>403\nForbidden</h1><hr>no</body></html>",
        b"\n<!DOCTYPE html><p>403</p> <b>Forbidden</b> no",
        b"<?xml version='1.0'?><h1>403 Forbidden no",
    ],
)
def test_a_page_without_a_title_is_quoted_without_its_tags(page: bytes) -> None:
    assert quoted(page) == "403 Forbidden no"
    assert judge(404, page, 0).text.endswith(": 403 Forbidden no")


def test_what_is_no_page_is_quoted_as_it_is() -> None:
    assert quoted(b"a < b and c > d") == "a < b and c > d"
    assert quoted(b"x" * 500) == "x" * 120
    assert quoted(b"<p></p>") == "a page without text"
    assert quoted(b"") == "an empty body"


@pytest.mark.parametrize("unit", [b"<title", b"<title a", b"<title>", b"<title>" + b"a" * 201, b"<", b" "])
def test_two_users_a_page_without_a_title_costs_no_more_than_its_size(unit: bytes) -> None:
    """A search that began again at each `<title`, and read on to the end, would take minutes on these 2 MiB."""
    page = (unit * (1 << 21))[: 1 << 21]
    assert title_of(page) == b""
    assert "page" not in judge(502, page, 0).text


def test_a_title_s_tag_ends_where_the_next_tag_begins() -> None:
    assert title_of(b"<title a<b c>d<") == b""
    assert title_of(b"<title a<title c>d<") == b"d"


def test_a_title_is_searched_only_near_the_beginning_of_a_page() -> None:
    assert title_of(b" " * 60_000 + b"<title>near</title>") == b"near"
    assert title_of(b" " * 70_000 + b"<title>far</title>") == b""
