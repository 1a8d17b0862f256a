"""Recognises by its head a request whose body costs little to parse."""

import re

__all__ = ["is_plain"]

_REQUEST_LINE = re.compile(rb"(?!CONNECT )[A-Z]+ [!-~]+ HTTP/1\.[01]\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n")
_COSTLY = re.compile(rb"\r\n(?:transfer-encoding|upgrade)[ \t]*:")


def is_plain(data: bytes, head_bytes_max: int) -> bool:
    """Whether the data is one request, complete or not, of which only the head takes time to parse.

    The head must be whole and within `head_bytes_max`, and state the length of the body. The data may also continue a
    head that began in earlier data. The answer then still holds: the parser refuses a head with two lengths, or with a
    length and a transfer encoding.
    """
    end = data.find(b"\r\n\r\n", 0, head_bytes_max)
    if end < 0 or _REQUEST_LINE.match(data) is None:
        return False
    head = data[: end + 2].lower()
    length = _LENGTH.search(head)
    return length is not None and len(data) - end - 4 <= int(length[1]) and _COSTLY.search(head) is None
