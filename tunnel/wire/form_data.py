"""A request body as the file of a form: `multipart/form-data` with one part (7.19, RFC 7578).

Some web application firewalls refuse `application/octet-stream`, but let uploads of files pass.
"""

import re
from collections.abc import Callable

from tunnel.wire.buffers import Buffer

__all__ = ["FORM_TYPE", "unwrap_form", "wrap_form"]

FORM_TYPE = "multipart/form-data"
_BOUNDARY = re.compile(
    r"""; *boundary=("?)([0-9A-Za-z'()+_,./:=?-]{1,70})\1 *(?:;|$)""", re.IGNORECASE
)  # RFC 2046, 5.1.1
_HEADERS_BYTES_MAX = 512  # of the form's only part


def wrap_form(body: list[Buffer], random_hex: Callable[[int], str]) -> tuple[str, bytes]:
    """Return the Content-Type of the form and its bytes. `random_hex(n)` returns n random bytes as hex digits.

    The body is not searched for the boundary: at a given place, the body is equal to it with a probability of 2**-128.
    """
    boundary = random_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="data.bin"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    whole = b"".join((head.encode(), *body, f"\r\n--{boundary}--\r\n".encode()))
    return f"{FORM_TYPE}; boundary={boundary}", whole


def unwrap_form(content_type: str, form: bytes) -> memoryview | str:
    """Return the content of the form's only part, or a text that says why the form is malformed."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return "the Content-Type of the form names no valid boundary"
    boundary = found[2]
    opening = f"--{boundary}\r\n".encode()
    if not form.startswith(opening):
        return "the form does not begin with its boundary"
    start = form.find(b"\r\n\r\n", len(opening) - 2, len(opening) + _HEADERS_BYTES_MAX)
    if start < 0:
        return f"the headers of the form's part do not end within {_HEADERS_BYTES_MAX} bytes"
    closing = f"\r\n--{boundary}--".encode()
    end = len(form) - len(closing)
    if form.endswith(b"\r\n"):
        end -= 2  # the line break after the form, which is optional
    if end < start + 4 or not form.startswith(closing, end):
        return "the form does not end with its boundary after one part"
    return memoryview(form)[start + 4 : end]
