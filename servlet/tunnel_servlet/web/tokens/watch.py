"""Ends what depends on a token when the token expires or is revoked."""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Protocol

from tunnel_servlet.access.tokens import Identity

__all__ = ["LOOK_S", "TokenBound", "TokenWatch"]

LOOK_S = 30.0  # the machine's clock may be set: look at least this often whether a token has expired
_SOON_S = 0.01  # the event loop's clock may be a little ahead


class TokenBound(Protocol):
    """An object whose life depends on a token: the relay ends it when the token expires or is revoked."""

    identity: Identity

    def end(self, text: str) -> None:
        """End at once. `text` is the reason, for people."""


class TokenWatch:
    """The objects that depend on tokens, and a timer for the next token that expires.

    `why_ended(identity)` returns why a token is not valid any more. `next_s()` returns the seconds until the next token
    expires; infinity if none ever does. `look_again()` is called when one may have.
    """

    def __init__(
        self, why_ended: Callable[[Identity], str], next_s: Callable[[], float], look_again: Callable[[], None]
    ) -> None:
        self._why_ended = why_ended
        self._next_s = next_s
        self._look_again = look_again
        self._watched: dict[Identity, dict[TokenBound, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watched: TokenBound) -> None:
        """From now on until `remove` is called, end `watched` as soon as its token is not valid any more."""
        self._watched.setdefault(watched.identity, {})[watched] = None

    def remove(self, watched: TokenBound) -> None:
        """Stop watching an object that has ended."""
        same = self._watched.get(watched.identity, {})
        same.pop(watched, None)
        if not same:
            self._watched.pop(watched.identity, None)

    @property
    def objects(self) -> list[TokenBound]:
        """The objects that would end."""
        return [watched for same in self._watched.values() for watched in same]

    @property
    def identities(self) -> set[Identity]:
        """Those for which something is open."""
        return set(self._watched)

    def end_invalid(self) -> Iterator[None]:
        """End the objects whose tokens are not valid any more, in steps, of one token or object each."""
        for identity in list(self._watched):
            why = self._why_ended(identity)
            for watched in list(self._watched.get(identity, ())) if why else ():
                watched.end(why)
                yield
            yield

    def look(self) -> None:
        """Set the timer. Call it when the tokens have changed."""
        self.close()
        left_s = self._next_s()
        if left_s < math.inf:
            wait_s = min(max(left_s, _SOON_S), LOOK_S) if left_s > 0 else LOOK_S  # 0: all have expired
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._look_again()
        self.look()
