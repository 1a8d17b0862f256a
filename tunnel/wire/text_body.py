"""A body as text: a JSON document that holds the plain body in base64 (7.19, RFC 4648, section 5).

Some gateways let JSON or text alone pass, and some filters refuse bodies that look encrypted. Text in base64 has 6 bits
of information per byte, and letters that no device has a reason to write in another way.
"""

import re
from base64 import urlsafe_b64encode
from binascii import Error, a2b_base64

from tunnel.wire.buffers import Buffer

__all__ = ["text_bytes", "unwrap_text", "wrap_text"]

_HEAD, _TAIL = b'{"data":"', b'"}'
_SPACES_MAX = 64  # in one place; a device that parses JSON and writes it again puts a few
_SPACES = rb"[ \t\r\n]{0,%d}" % _SPACES_MAX
_FIRST = re.compile(rb'%b\{%b"data"%b:%b"' % ((_SPACES,) * 4))  # what stands before the letters of the data
_LAST = re.compile(rb'"%b\}%b' % ((_SPACES,) * 2))  # what stands after them
_LAST_BYTES_MAX = 2 + 2 * _SPACES_MAX
# The letters of base64url as those of base64; every other byte as one that a2b_base64 refuses.
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_TO_BASE64 = bytes(
    {ord("-"): ord("+"), ord("_"): ord("/")}.get(byte, byte if byte in _LETTERS else ord("!")) for byte in range(256)
)


def text_bytes(size: int) -> int:
    """Return the most bytes that the text of a body of this size may have."""
    return (size * 4 + 2) // 3 + len(_HEAD) + len(_TAIL) + 6 * _SPACES_MAX


def wrap_text(body: list[Buffer]) -> bytes:
    """Return the body as text, in ASCII."""
    return b"".join((_HEAD, urlsafe_b64encode(b"".join(body)).rstrip(b"="), _TAIL))


def unwrap_text(text: bytes) -> bytes | str:
    """Return the body that the text holds, or a sentence that says why the text is malformed."""
    first = _FIRST.match(text)
    last = text.rfind(b'"', max(0, len(text) - _LAST_BYTES_MAX))
    if first is None or last < first.end() or _LAST.fullmatch(text, last) is None:
        return 'the text is not a JSON document {"data":"..."}'
    letters = text[first.end() : last].translate(_TO_BASE64)
    try:
        return a2b_base64(letters + b"=" * (-len(letters) % 4), strict_mode=True)
    except Error:
        return "the data of the text is not base64url without padding"
