"""An event is one line, whatever is in it, and the document lists its kinds and fields."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunnel_servlet.audit.event import FIELDS, AuditEvent, Kind, decode_event, encode_event, time_text

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "AUDIT.md").read_text()


def rows(title: str) -> list[str]:
    """Return the names in the first column of the table under this heading."""
    part = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)


def test_the_document_lists_each_kind_and_each_field_in_their_order() -> None:
    assert rows("Events") == [kind.value for kind in Kind]
    assert rows("Fields") == list(FIELDS)


CHOSEN = ("two\nlines", '"}\n{"event":"admin"}', "\x00\x1b[31m\u2028", "\r\n", "\x7f\x9b31m\u202e")


@pytest.mark.parametrize("text", CHOSEN)
def test_whatever_a_peer_has_chosen_an_event_is_one_line(text: str) -> None:
    event = AuditEvent(event=Kind.CONNECTION_REFUSED, user="ann", target=text, endpoint=text)
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line[:-1].decode("ascii").isprintable()
    assert decode_event(line) == event


def test_fields_that_an_event_does_not_have_are_not_in_its_line() -> None:
    assert encode_event(AuditEvent(event=Kind.ADMIN, sent_bytes=0)) == b'{"event":"admin","sent_bytes":0}\n'


@pytest.mark.parametrize("line", [b"", b"{", b'{"event":"nothing"}', b"\xff", b"[]", b'{"event":"admin","number":"1"}'])
def test_a_line_that_is_no_event_is_none(line: bytes) -> None:
    assert decode_event(line) is None


def test_a_newer_relay_may_write_fields_that_this_one_does_not_know() -> None:
    assert decode_event(b'{"event":"admin","later":1}') == AuditEvent(event=Kind.ADMIN)


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this machine be in a zone whose time is ten hours ahead."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "EAST-10")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_times_are_utc_wherever_the_machine_is() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"


def test_times_are_texts_that_sort_as_they_follow_each_other() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"
    assert time_text(1_764_432_000_000_001) == "2025-11-29T16:00:00.000001Z"
    assert time_text(999_999) < time_text(1_000_000)
