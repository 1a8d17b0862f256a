"""How devices on a path alter the bodies of requests and answers, in the belief that all of them are text."""

import re
from collections.abc import Callable

__all__ = ["ALTERATIONS"]

_ENCODED = re.compile(rb"%([0-9a-fA-F]{2})")


def _line_ends(body: bytes) -> bytes:
    return body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _letters(body: bytes) -> bytes:
    return body.decode("utf-8", "replace").encode()


def _percents(body: bytes) -> bytes:
    return _ENCODED.sub(lambda found: bytes([int(found[1], 16)]), body)


ALTERATIONS: dict[str, Callable[[bytes], bytes]] = {
    "line-ends": _line_ends,
    "letters": _letters,
    "percents": _percents,
    "zeros": lambda body: body.replace(b"\0", b""),
    "ends": bytes.rstrip,
}
