"""Points in time as the relay's files and texts write them: in UTC, to the second or to the minute; and seconds."""

import re
from calendar import monthrange, timegm

__all__ = ["SECONDS_DIGITS_MAX", "is_seconds", "read_instant", "show_instant"]

SECONDS_DIGITS_MAX = 12  # 30,000 years, which timers still count; with some hundred digits they raise
_INSTANT = re.compile(r"([1-9]\d{3})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)Z", re.ASCII)


def read_instant(text: str) -> int:
    """Return the seconds since the epoch of a time such as 2027-01-31T18:00:00Z. Raise ValueError for other texts."""
    found = _INSTANT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a time: write it as in 2027-01-31T18:00:00Z, in UTC")
    year, month, day, hour, minute, second = map(int, found.groups())
    if not (1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1] and hour < 24 and minute < 60 and second < 60):
        raise ValueError(f"{text!r} is not a time: the calendar has no such day or hour")
    return timegm((year, month, day, hour, minute, second))


def show_instant(text: str) -> str:
    """Return a stored time for people, to the minute; an empty text stays empty."""
    return f"{text[:10]} {text[11:16]} UTC" if text else ""


def is_seconds(text: str) -> bool:
    """Whether this is a whole number of seconds for which a timer can wait."""
    return text.isascii() and text.isdigit() and len(text) <= SECONDS_DIGITS_MAX
