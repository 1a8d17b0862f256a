"""Which URLs lead to a server that no one on the way can replace."""

import re

__all__ = ["is_secure_link", "is_secure_url"]

# Of the characters of a URL only: about others, such as \\ or letters that look like a, programs and people disagree.
_URL = re.compile(
    r"(https://[!$-.0-;=A-Z\[\]_a-z~]+|http://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?)(/[!$-;=@-\[\]_a-z~]*)?"
)
_QUERY = re.compile(r"[!-;=?-\[\]_a-z~]*")


def is_secure_url(url: str) -> bool:
    """Whether this URL, without a query, leads to a server that TLS authenticates, or to this machine."""
    return _URL.fullmatch(url) is not None


def is_secure_link(url: str) -> bool:
    """Do as `is_secure_url`, for a URL that people open: it may have a query."""
    place, _, query = url.partition("?")
    return is_secure_url(place) and _QUERY.fullmatch(query) is not None
