"""The compression of devices on the path is undone, within a limit."""

import gzip
import zlib

import pytest

from tunnel.carriers.http.codings import undone

BODY = b"abc" * 1000
GZIPPED = gzip.compress(BODY, mtime=0)  # the time is a part of it, and the tests' names must not change


@pytest.mark.parametrize(
    ("coding", "body"),
    [("gzip", GZIPPED), ("X-GZIP", GZIPPED), ("deflate", zlib.compress(BODY))],
)
def test_it_is_undone_up_to_the_limit(coding: str, body: bytes) -> None:
    assert undone(body, coding, len(BODY)) == BODY
    assert undone(body, coding, 10) == BODY[:10]


@pytest.mark.parametrize(("coding", "body"), [("br", b"abc"), ("gzip", b"abc"), ("gzip, br", GZIPPED)])
def test_what_cannot_be_undone_is_none(coding: str, body: bytes) -> None:
    assert undone(body, coding, 10) is None
