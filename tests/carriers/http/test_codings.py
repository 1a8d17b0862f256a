"""The compression of devices on the path is undone, within a limit."""

import gzip
import zlib

import pytest

from tunnel.carriers.http.codings import undone

BODY = b"abc" * 1000


@pytest.mark.parametrize(
    ("coding", "body"),
    [("gzip", gzip.compress(BODY)), ("X-GZIP", gzip.compress(BODY)), ("deflate", zlib.compress(BODY))],
)
def test_it_is_undone_up_to_the_limit(coding: str, body: bytes) -> None:
    assert undone(body, coding, len(BODY)) == BODY
    assert undone(body, coding, 10) == BODY[:10]


@pytest.mark.parametrize(("coding", "body"), [("br", b"abc"), ("gzip", b"abc"), ("gzip, br", gzip.compress(BODY))])
def test_what_cannot_be_undone_is_none(coding: str, body: bytes) -> None:
    assert undone(body, coding, 10) is None
