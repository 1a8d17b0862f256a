"""What filters on a path admit: bodies of some kind alone, or heads without some word."""

import json
import math
from collections import Counter
from collections.abc import Callable

from tests.field.messages import Head

__all__ = ["FILTERS", "entropy"]

_BITS_MAX = 7.5  # random bytes reach this from about 400 of them on
_WORD = "tunnel"


def entropy(body: bytes) -> float:
    """Return the bits of information per byte, from the frequencies of the bytes."""
    return -sum(count / len(body) * math.log2(count / len(body)) for count in Counter(body).values())


def _is_json(head: Head, body: bytes) -> bool:
    if head.fields.get("content-type", "").partition(";")[0] != "application/json":
        return False
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _is_text(head: Head, body: bytes) -> bool:
    return head.fields.get("content-type", "").startswith("text/") and body.isascii()


def _has_no_word(head: Head, body: bytes) -> bool:
    return _WORD not in repr(head).lower()


FILTERS: dict[str, Callable[[Head, bytes], bool]] = {
    "json": _is_json,
    "text": _is_text,
    "ascii": lambda head, body: body.isascii(),
    "entropy": lambda head, body: entropy(body) <= _BITS_MAX,
    "word": _has_no_word,
}
