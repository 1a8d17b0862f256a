"""The format in which bodies pass on this path (7.19): learned from refusals and answers, and tried again."""

from tunnel.exchange.config import SECOND_US
from tunnel.wire import TEXT_FORMATS, BodyFormat

__all__ = ["BodyFormats"]

# Text is a third longer, and no stream passes with it. So the plain format is tried again after this time, and after
# twice as long each time, up to the maximum. A try that fails costs one repeat.
_AGAIN_US_MIN = SECOND_US
_AGAIN_US_MAX = 600 * SECOND_US


class BodyFormats:
    """`now` is the format for the next bodies."""

    def __init__(self) -> None:
        self.now = BodyFormat.PLAIN
        self._known = tuple(BodyFormat)  # those that the relay understands, in the order in which they are tried
        # The sizes of the smallest bodies that were refused. Smaller ones prove nothing: a filter that measures how
        # random a body looks lets every small one pass.
        self._refused_bytes: dict[BodyFormat, int] = {}
        self._again_us = 0  # when the plain format may be tried again
        self._wait_us = _AGAIN_US_MIN

    @property
    def count(self) -> int:
        """The number of formats that the relay understands, as far as is known."""
        return len(self._known)

    @property
    def is_text(self) -> bool:
        """Whether bodies leave as text."""
        return self.now in TEXT_FORMATS

    def after(self, tried: BodyFormat, *, streams: bool = False) -> BodyFormat:
        """Return the format to try after this one. A request for a stream never leaves as text."""
        known = self._known
        if streams:
            known = tuple(each for each in known if each not in TEXT_FORMATS)
        return known[(known.index(tried) + 1) % len(known)] if tried in known else BodyFormat.PLAIN

    def usual(self, *, streams: bool) -> BodyFormat:
        """Return the format for a body that tries no other one."""
        return BodyFormat.PLAIN if streams and self.is_text else self.now

    def is_due(self, body_bytes: int, now: int) -> bool:
        """Return whether the first attempt of a body of this size, which leaves now, shall try the plain format."""
        if not self.is_text or now < self._again_us or body_bytes < self._refused_bytes.get(BodyFormat.PLAIN, 0):
            return False
        self._again_us = now + self._wait_us
        self._wait_us = min(2 * self._wait_us, _AGAIN_US_MAX)
        return True

    def on_refused(self, tried: BodyFormat, body_bytes: int) -> None:
        """Learn that an intermediary refused a body of this size, perhaps because of its format."""
        self._refused_bytes[tried] = min(body_bytes, self._refused_bytes.get(tried, body_bytes))

    def on_passed(self, tried: BodyFormat, body_bytes: int, now: int) -> None:
        """Learn that the relay has answered a body of this size in this format."""
        fails_now = body_bytes >= self._refused_bytes.get(self.now, body_bytes + 1)
        if body_bytes < self._refused_bytes.get(tried, 0) and not fails_now:
            return
        self._refused_bytes.pop(tried, None)
        if tried not in TEXT_FORMATS:
            self._wait_us = _AGAIN_US_MIN
        elif not self.is_text:
            self._again_us = now + self._wait_us
        self.now = tried

    def unknown_to_relay(self) -> None:
        """Learn that this relay does not understand text."""
        self._known = tuple(each for each in self._known if each not in TEXT_FORMATS)
        if self.is_text:
            self.now = BodyFormat.PLAIN
