"""Lists of relays, as options and variables of the environment name them, and the token of each."""

import re
from collections.abc import Sequence

from tunnel.ground.relay_urls import relay_key

__all__ = ["pair_tokens", "split_files", "split_relays", "tokens_of"]


def split_relays(text: str) -> list[str]:
    """Return the URLs of relays in a text, in which commas or white space divide them."""
    return [url for url in re.split(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)|\s+", text.strip()) if url]


def split_files(text: str) -> list[str]:
    """Return the names of files that the option --token-file has named."""
    return text.split("\n") if text else []


def pair_tokens(urls: Sequence[str], tokens: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return each relay with its token; without any token, each without one. Raise ValueError if the numbers differ: a
    token must not go to another relay than its own."""
    if not tokens:
        return [(url, None) for url in urls]
    if len(urls) != len(tokens):
        raise ValueError(
            f"{len(urls)} relay{'s are' * (len(urls) > 1) or ' is'} named, but {len(tokens)} "
            f"token{'s' * (len(tokens) > 1)}: each relay needs its own, in the same order (--token-file for each, or "
            "TUNNEL_TOKEN with spaces between them)"
        )
    return list(zip(urls, tokens, strict=True))


def tokens_of(urls: Sequence[str], pairs: Sequence[tuple[str, str | None]]) -> list[str]:
    """Return the token of each relay, from relays of the environment with theirs. Raise ValueError if one has none."""
    known = {relay_key(url): token or "" for url, token in pairs}
    for url in urls:
        if not known.get(relay_key(url)):
            raise ValueError(
                f"{url} has no token in the environment: those in TUNNEL_TOKEN belong to the relays that TUNNEL_RELAY "
                "names, and it is not among them: give --token-file for each relay"
            )
    return [known[relay_key(url)] for url in urls]
