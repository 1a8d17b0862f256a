"""Explains answers that are not the relay's: who sent them, what they mean, and what to do about them. No I/O."""

import re
from collections.abc import Iterable

from tunnel.carriers.probes.probe import Reply
from tunnel_client.doctor.products import products_in

__all__ = [
    "NO_CACHE",
    "REFUSALS_OF_RATE",
    "advice_for",
    "described",
    "is_altered",
    "is_from_limiter",
    "is_silent",
    "may_be_from_limiter",
    "sender_of",
    "tallied",
]

REFUSALS_OF_RATE = frozenset({403, 420, 429, 503, 509})
"""The statuses with which hops answer when too many requests come. Only 429 always means that."""

NO_CACHE = "ask its operator not to store answers to POST requests, or use an https:// URL"

_LIMITERS = frozenset({420, 429, 509})
_UNCLEAR = frozenset({403, 407, 503})

_SIGN_IN = (
    "it may be a login or block page: open the relay's URL in a browser, sign in, and try again; if the page stays, "
    "ask the network's operator to allow the relay"
)
_BEHIND = "a proxy cannot reach the relay: check host and port of the URL, and that the relay runs"
_PATH = "check the URL, including its path"
_ALLOW = "ask its operator to allow POST requests to the relay"

# The first line that matches wins: (product, status, words on the page, advice). 0 stands for every status.
_ADVICE: tuple[tuple[str, int, re.Pattern[str], str], ...] = tuple(
    (product, status, re.compile(words), advice)
    for product, status, words, advice in (
        (
            "Squid",
            403,
            "ERR_TOO_BIG",
            "a rule about the size of answers (reply_body_max_size) refuses this one: ask its operator to raise it",
        ),
        ("Squid", 403, "", "its access rules (ACL) refuse this request: ask its operator to allow the relay's host"),
        ("Squid", 503, "", _BEHIND),
        ("Squid", 502, "", _BEHIND),
        ("tinyproxy", 403, "", "its filter or its access rules refuse the relay: ask its operator to allow it"),
        ("Privoxy", 403, "", "it blocks the relay's address: ask its operator for an exception"),
        ("haproxy", 403, "", f"one of its rules (http-request deny) refuses this: {_ALLOW}"),
        ("haproxy", 503, "", _BEHIND),
        ("ModSecurity", 0, "", "a rule of this web application firewall refuses the request: ask for an exception"),
        ("Cloudflare", 403, "", "its firewall or bot rules refuse the request: ask for an exception for the relay"),
        ("F5 BIG-IP ASM", 0, "", "a rule of this web application firewall refuses the request: ask for an exception"),
        ("Imperva Incapsula", 0, "", "this web application firewall refuses the request: ask for an exception"),
        (
            "",
            429,
            "",
            "too many requests come from this address: try again later, or ask its operator for a higher rate",
        ),
        ("", 405, "", "no POST requests are allowed there: check the URL, including its path"),
        ("", 411, "", "it demands a length that it removed itself: ask the network's operator, or use https://"),
        ("", 413, "", "it allows only very small bodies: ask its operator to allow more, or use https://"),
        ("", 415, "", "it does not let bodies of this type pass: ask its operator to allow application/octet-stream"),
        ("", 421, "", "the name in the URL leads to another server there: check it"),
        ("", 431, "", "the token or other headers are too large for it: ask its operator to allow larger headers"),
        (
            "",
            204,
            "",
            "a device answers in place of the relay, and without any content: check the URL, or use https://",
        ),
        ("", 200, "", _SIGN_IN),
        ("", 401, "", "it wants credentials of its own, not those of the relay: ask its operator"),
        ("", 403, "", _SIGN_IN),
        ("", 451, "", "it blocks the relay: ask the network's operator"),
        ("", 511, "", _SIGN_IN),
        ("", 502, "", _BEHIND),
        ("", 503, "", _BEHIND),
        ("", 504, "", _BEHIND),
    )
)


def is_from_limiter(reply: Reply) -> bool:
    """Return whether the reply says that too many requests come."""
    if reply.kind not in ("foreign", "status"):
        return False
    return reply.status in _LIMITERS or (reply.status == 503 and reply.wait_ms > 0)


def may_be_from_limiter(reply: Reply) -> bool:
    """Return whether the reply may come from a limiter, or may concern the question alone: limiters also answer with
    such a status, end the connection, or stay silent."""
    return reply.kind == "lost" or (reply.kind == "foreign" and reply.status in _UNCLEAR)


def is_silent(reply: Reply) -> bool:
    """Return whether nothing came in the time that the question had."""
    return reply.kind == "lost" and reply.text.startswith("no answer within")


def sender_of(reply: Reply) -> str:
    """Return the product that sent a foreign answer, or an empty string."""
    found = products_in(reply.headers, reply.page)
    return found[0] if found else ""


def is_altered(reply: Reply) -> bool:
    """Whether a relay answers, and its answer, or the request, arrived with other bytes."""
    return reply.kind == "damaged" or (reply.kind == "status" and reply.status == 400)


def described(reply: Reply) -> str:
    """Describe a reply that is not the expected answer, for people."""
    if reply.kind == "lost":
        return reply.text
    if reply.kind == "damaged":
        return f"HTTP {reply.status}, damaged: {reply.text}"
    if reply.kind == "status":
        return f"HTTP {reply.status} from the relay, {reply.text}".rstrip(", ")
    sender = sender_of(reply)
    if "location" in reply.headers and 300 <= reply.status < 400:
        return f"HTTP {reply.status}, which leads to {reply.headers['location'].partition('?')[0]}"
    if sender and reply.page:
        return f"HTTP {reply.status} from {sender}"  # the page of a known product says no more than the status
    return f"HTTP {reply.status}{f' from {sender}' if sender else ''}, {reply.text or 'an empty body'}"


def advice_for(reply: Reply) -> str:
    """Return what to do about a foreign answer."""
    sender = sender_of(reply)
    words = f"{reply.page} {reply.headers.get('x-squid-error', '')}"
    for product, status, pattern, advice in _ADVICE:
        if sender.startswith(product) and status in (0, reply.status) and pattern.search(words):
            return advice
    return _PATH


def tallied(replies: Iterable[Reply]) -> str:
    """Return how often each kind of failure came, the most frequent one first."""
    counts: dict[str, int] = {}
    for reply in replies:
        text = described(reply)
        counts[text] = counts.get(text, 0) + 1
    parts = sorted(counts.items(), key=lambda item: -item[1])
    return "; ".join(f"{count} times {text}" if count > 1 else text for text, count in parts)
