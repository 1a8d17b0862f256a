"""The grammar of option values, and its error messages."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from loadtests.faultproxy.grammar import (
    Fault,
    parse_address,
    parse_duration_us,
    parse_probability,
    parse_size_bytes,
)
from loadtests.faultproxy.options import (
    Blackhole,
    Delay,
    Drop,
    Flip,
    Html,
    IdleCut,
    LateDuplicate,
    Status,
    Truncate,
    parse_upstream,
)

GOOD: list[tuple[Callable[[str], Any], str, Any]] = [
    (parse_probability, "0", 0.0),
    (parse_probability, "0.05", 0.05),
    (parse_probability, "1", 1.0),
    (parse_duration_us, "7us", 7),
    (parse_duration_us, "7µs", 7),
    (parse_duration_us, "50ms", 50_000),
    (parse_duration_us, "1.5s", 1_500_000),
    (parse_duration_us, " 2 min ", 120_000_000),
    (parse_duration_us, "1h", 3_600_000_000),
    (parse_size_bytes, "1000", 1000),
    (parse_size_bytes, "1B", 1),
    (parse_size_bytes, "64KiB", 65_536),
    (parse_size_bytes, "1.5MiB", 1_572_864),
    (parse_size_bytes, "1GiB", 1 << 30),
    (parse_address, "127.0.0.1:0", ("127.0.0.1", 0)),
    (parse_address, "[::1]:65535", ("::1", 65535)),
    (parse_address, "host.test:80", ("host.test", 80)),
    (parse_upstream, "http://127.0.0.1:8080", ("127.0.0.1", 8080)),
    (parse_upstream, "http://relay.test/", ("relay.test", 80)),
    (parse_upstream, "http://[::1]:81", ("::1", 81)),
    (Drop.parse, "0.05", Drop(0.05)),
    (Drop.parse, "0.05:silent", Drop(0.05, silent=True)),
    (LateDuplicate.parse, "0.01:60s", LateDuplicate(0.01, 60_000_000)),
    (Delay.parse, "50ms", Delay(50_000)),
    (Delay.parse, "50ms±20ms", Delay(50_000, 20_000)),
    (Delay.parse, "50ms+-20ms", Delay(50_000, 20_000)),
    (Delay.parse, "50ms +/- 20ms", Delay(50_000, 20_000)),
    (Truncate.parse, "0.01", Truncate(0.01)),
    (Truncate.parse, "0.01:short", Truncate(0.01, "", "short")),
    (Truncate.parse, "0.01:cut:response", Truncate(0.01, "response", "cut")),
    (Flip.parse, "0.01", Flip(0.01)),
    (Flip.parse, "0.01:bits=64:request", Flip(0.01, "request", 64)),
    (Status.parse, "503:0.02", Status(503, 0.02)),
    (Status.parse, "429:0.02:retry=1500ms:after", Status(429, 0.02, after=True, retry_after_s=2)),
    (Html.parse, "0.01", Html(0.01)),
    (Html.parse, "0.01:after", Html(0.01, after=True)),
    (IdleCut.parse, "20s", IdleCut(20_000_000)),
    (IdleCut.parse, "20s:silent", IdleCut(20_000_000, silent=True)),
    (Blackhole.parse, "30s@60s", Blackhole(30_000_000, 60_000_000)),
    (Blackhole.parse, "4min@1s:once:response", Blackhole(240_000_000, 1_000_000, once=True, side="response")),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_valid_values_are_parsed(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


BAD: list[tuple[Callable[[str], Any], str, str]] = [
    (parse_probability, "", "not a probability"),
    (parse_probability, "5%", "a number from 0 to 1, such as 0.05"),
    (parse_probability, "1.1", "not a probability"),
    (parse_probability, "-0.1", "not a probability"),
    (parse_probability, "nan", "not a probability"),
    (parse_duration_us, "5", "a duration with its unit"),
    (parse_duration_us, "-5s", "a duration with its unit"),
    (parse_duration_us, "5 parsecs", "a duration with its unit"),
    (parse_duration_us, "s", "a duration with its unit"),
    (parse_size_bytes, "1MB", "a size, such as"),
    (parse_size_bytes, "", "a size, such as"),
    (parse_address, "8080", "not an address: HOST:PORT"),
    (parse_address, ":8080", "not an address"),
    (parse_address, "::1:8080", "not an address"),
    (parse_address, "[host]:8080", "not an address"),
    (parse_address, "host:65536", "not an address"),
    (parse_address, "host:http", "not an address"),
    (parse_address, "host:²", "not an address"),
    (parse_upstream, "127.0.0.1:8080", "not a URL like"),
    (parse_upstream, "https://relay.test", "for TLS, let clients use CONNECT"),
    (parse_upstream, "http://", "not a URL like"),
    (parse_upstream, "http://[::1", "not a URL"),
    (parse_upstream, "http://host:99999", "not a URL"),
    (parse_upstream, "http://host/path", "only scheme, host and port"),
    (parse_upstream, "http://host?query", "only scheme, host and port"),
    (parse_upstream, "http://user@host", "only scheme, host and port"),
    (Drop.parse, "often", "not a probability"),
    (Drop.parse, "0.1:loud", "'loud' in '0.1:loud' is not known; expected after the value: silent"),
    (Drop.parse, "0.1:silent:silent", "has a word twice"),
    (Drop.parse, "", "too few parts"),
    (LateDuplicate.parse, "0.1", "too few parts"),
    (LateDuplicate.parse, "0.1:", "too few parts"),
    (LateDuplicate.parse, "0.1:60", "a duration with its unit"),
    (LateDuplicate.parse, "0.1:60s:x", "expected after the value: nothing"),
    (Delay.parse, "20ms±50ms", "the jitter is larger than the delay"),
    (Delay.parse, "50ms±", "a duration with its unit"),
    (Delay.parse, "50ms+20ms", "a duration with its unit"),
    (Truncate.parse, "0.1:request:response", "only one of these may be given: request, response"),
    (Truncate.parse, "0.1:short:cut", "only one of these may be given: short, cut"),
    (Flip.parse, "0.1:bits=65", "bits='65' is not a number from 1 to 64"),
    (Flip.parse, "0.1:bits=", "is not a number from 1 to 64"),
    (Flip.parse, "0.1:bits", "'bits' in '0.1:bits' is not known"),
    (Status.parse, "0.1:503", "is not a status from 300 to 599"),
    (Status.parse, "200:0.1", "is not a status from 300 to 599"),
    (Status.parse, "503", "too few parts"),
    (Status.parse, "503:0.1:retry=soon", "a duration with its unit"),
    (Status.parse, "503:0.1:retry=1s:retry=2s", "has a word twice"),
    (IdleCut.parse, "0s", "no time at all: give one above 0"),
    (Blackhole.parse, "30s", "too few parts, or an empty one: write LASTS@EVERY[:once][:request|:response]"),
    (Blackhole.parse, "60s@60s", "end before the next one begins"),
    (Blackhole.parse, "0s@60s", "give one above 0"),
    (Blackhole.parse, "0s@60s:once", "give one above 0"),
    (Blackhole.parse, "30s@60s:request:response", "only one of these may be given: request, response"),
]


@pytest.mark.parametrize(("parse", "text", "message"), BAD)
def test_invalid_values_are_refused_with_a_reason(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(
    ("fault", "grammar"),
    [
        (Drop, "P[:silent]"),
        (LateDuplicate, "P:DURATION"),
        (Delay, "D[±J]"),
        (Truncate, "P[:request|:response][:short|:cut]"),
        (Flip, "P[:request|:response][:bits=N]"),
        (Status, "CODE:P[:after][:retry=DURATION]"),
        (Blackhole, "LASTS@EVERY[:once][:request|:response]"),
    ],
)
def test_the_form_for_people_follows_from_the_fields(fault: type[Fault], grammar: str) -> None:
    assert fault.grammar() == grammar
