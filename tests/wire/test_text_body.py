"""A body as text: what is wrapped can be unwrapped, and nothing else is taken for it."""

import json
from secrets import token_hex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.wire import MAGIC, BodyFormat, body_bytes_max, unwrap_answer, unwrap_body, wrap_answer, wrap_body
from tunnel.wire.text_body import text_bytes, unwrap_text, wrap_text

BODY = b"some \xfb\xef\xff bytes"
TEXT = wrap_text([BODY])
TEXTS = [BodyFormat.JSON, BodyFormat.TEXT]


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_what_is_wrapped_can_be_unwrapped_and_is_json_in_ascii(body: list[bytes]) -> None:
    text = wrap_text([*body])
    whole = b"".join(body)
    assert unwrap_text(text) == whole
    assert list(json.loads(text.decode("ascii"))) == ["data"]
    assert len(text) <= text_bytes(len(whole))
    assert wrap_text([whole]) == text


@given(st.binary(max_size=60) | st.text(alphabet=' {}":dataAz09-_+/=\n').map(str.encode))
def test_any_bytes_are_unwrapped_or_refused_with_a_reason(data: bytes) -> None:
    found = unwrap_text(data)
    if isinstance(found, str):
        assert found
    else:
        assert json.loads(data)["data"]
        assert len(data) <= text_bytes(len(found))


def test_letters_that_devices_write_in_another_way_do_not_occur() -> None:
    assert TEXT == b'{"data":"c29tZSD77_8gYnl0ZXM"}'


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace(b":", b" : "),
        b"\r\n" + TEXT + b"\n",
        b'{\n  "data": "' + TEXT[9:-2] + b'"\n}\n',
        json.dumps(json.loads(TEXT), indent=4).encode(),
    ],
)
def test_a_device_may_write_the_json_with_other_spaces(text: bytes) -> None:
    assert unwrap_text(text) == BODY


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "JSON document"),
        (b'{"data":"', "JSON document"),
        (b'{"data":"AA', "JSON document"),
        (TEXT[:-1], "JSON document"),
        (TEXT + b"x", "JSON document"),
        (b" " * 65 + TEXT, "JSON document"),
        (TEXT + b" " * 65, "JSON document"),
        (b'{"Data":"AA"}', "JSON document"),
        (b'{"data":["AA"]}', "JSON document"),
        (b'{"data":"AA","more":"AA"}', "base64url"),
        (b'{"data":"A"}', "base64url"),
        (b'{"data":"AA=="}', "base64url"),
        (b'{"data":"AA+A"}', "base64url"),
        (b'{"data":"AA/A"}', "base64url"),
        (b'{"data":"AA A"}', "base64url"),
        (b'{"data":"A\\u0041AA"}', "base64url"),
        (b'{"data":"AA\xff\xff"}', "base64url"),
    ],
)
def test_other_bodies_are_refused_with_a_reason(text: bytes, problem: str) -> None:
    found = unwrap_text(text)
    assert isinstance(found, str)
    assert problem in found


@pytest.mark.parametrize("kind", BodyFormat)
def test_each_format_is_named_by_its_media_type_and_can_be_undone(kind: BodyFormat) -> None:
    content_type, body = wrap_body(kind, [BODY[:5], BODY[5:]], token_hex)
    assert content_type.partition(";")[0] == kind.value
    found = unwrap_body(kind, content_type, body)
    assert bytes(found) == BODY  # type: ignore[arg-type]  # no error
    assert body.isascii() is (kind in TEXTS)
    assert body_bytes_max(kind, 1000) == (text_bytes(1000) if kind in TEXTS else 1000)


@pytest.mark.parametrize("kind", BodyFormat)
def test_a_request_as_text_is_answered_with_text_of_the_same_type(kind: BodyFormat) -> None:
    envelope = MAGIC + BODY
    content_type, answer = wrap_answer(kind, envelope)
    assert content_type == (kind.value if kind in TEXTS else "application/octet-stream")
    assert (answer == envelope) is (kind not in TEXTS)
    assert unwrap_answer(answer) == envelope


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error":"no"}', b'{"data":"no"}', TEXT, MAGIC + BODY])
def test_an_answer_that_holds_no_envelope_stays_as_it_is(body: bytes) -> None:
    assert unwrap_answer(body) == body
