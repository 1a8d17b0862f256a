"""The formats in which a body may travel (7.19), each named by its media type."""

import enum
from collections.abc import Callable

from tunnel.wire.buffers import Buffer
from tunnel.wire.envelope import MAGIC
from tunnel.wire.form_data import FORM_TYPE, unwrap_form, wrap_form
from tunnel.wire.text_body import text_bytes, unwrap_text, wrap_text

__all__ = ["TEXT_FORMATS", "BodyFormat", "body_bytes_max", "unwrap_answer", "unwrap_body", "wrap_answer", "wrap_body"]


class BodyFormat(enum.Enum):
    """The value is the media type of the body."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    PLAIN = "application/octet-stream"
    FORM = FORM_TYPE  # as the file of a form
    JSON = "application/json"
    TEXT = "text/plain"  # the same document as JSON, under a type that filters for text expect


TEXT_FORMATS = (BodyFormat.JSON, BodyFormat.TEXT)
_TYPES: dict[BodyFormat, str] = {kind: kind.value for kind in BodyFormat}  # `value` is a function of Python
_PLAIN_TYPE = _TYPES[BodyFormat.PLAIN]


def wrap_body(kind: BodyFormat, body: list[Buffer], random_hex: Callable[[int], str]) -> tuple[str, bytes]:
    """Return the Content-Type of a request body in this format, and its bytes. `random_hex` is as in `wrap_form`."""
    if kind is BodyFormat.FORM:
        return wrap_form(body, random_hex)
    return _TYPES[kind], wrap_text(body) if kind in TEXT_FORMATS else b"".join(body)


def unwrap_body(kind: BodyFormat, content_type: str, body: bytes) -> Buffer | str:
    """Return the plain body, or a text that says why this one is malformed. `content_type` is the whole header."""
    if kind is BodyFormat.FORM:
        return unwrap_form(content_type, body)
    return unwrap_text(body) if kind in TEXT_FORMATS else body


def wrap_answer(kind: BodyFormat, body: bytes) -> tuple[str, bytes]:
    """Return the Content-Type and the bytes of the answer to a request in this format: text is answered with text."""
    if kind in TEXT_FORMATS:
        return _TYPES[kind], wrap_text([body])
    return _PLAIN_TYPE, body


def unwrap_answer(body: bytes) -> bytes:
    """Return the plain answer if this text holds one; otherwise the body as it is."""
    found = unwrap_text(body) if body.lstrip()[:1] == b"{" else ""
    return found if isinstance(found, bytes) and found[:4] == MAGIC else body


def body_bytes_max(kind: BodyFormat, limit: int) -> int:
    """Return the most bytes that a body may have in this format, if limits allow a plain body of `limit` bytes."""
    return text_bytes(limit) if kind in TEXT_FORMATS else limit
