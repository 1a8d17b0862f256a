"""Recognises the redirect of a server that answers in TLS alone. No relay redirects."""

from yarl import URL

__all__ = ["is_to_https"]


def is_to_https(asked: URL, location: str) -> bool:
    """Whether a redirect leads from http:// to the same place at https://, so that the relay's URL is wrong."""
    try:
        there = asked.join(URL(location))
    except ValueError:
        return False
    is_same_place = there.host == asked.host and there.path == asked.path
    return is_same_place and (asked.scheme, there.scheme) == ("http", "https")
