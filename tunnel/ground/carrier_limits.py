"""The number of links and the interval between pulls that a user may choose for an attachment."""

__all__ = ["LINKS_MAX", "check_links", "pull_interval_us"]

LINKS_MAX = 4  # the default limit of a relay for one attachment
_LEAST_S, _MOST_S = 0.001, (2**32 - 1) / 1000  # PROTOCOL 2.7, 7.11: 32 bits of milliseconds


def check_links(links: int) -> None:
    """Raise ValueError unless an attachment may have this number of links."""
    if not 1 <= links <= LINKS_MAX:
        raise ValueError(f"an attachment has from 1 to {LINKS_MAX} links, not {links}")


def pull_interval_us(seconds: float) -> int:
    """Return an interval between pulls in microseconds, rounded to milliseconds. Raise ValueError if it is too short or
    too long."""
    if seconds and not _LEAST_S <= seconds <= _MOST_S:
        raise ValueError(f"the pull interval must be 0, or from {_LEAST_S} to {_MOST_S:.0f} seconds, not {seconds:g}")
    return round(seconds * 1000) * 1000
