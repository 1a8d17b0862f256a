"""The packets that wait for an attachment, as a lane of the relay takes them."""

from typing import Protocol

from tunnel.wire import Frame

__all__ = ["PACKETS_ANY", "Outbox"]

PACKETS_ANY = 1 << 31  # no limit


class Outbox(Protocol):
    """The frames that wait for an attachment. All lanes of the attachment take from the same outbox."""

    def take(self, limit_bytes: int, packets_max: int = PACKETS_ANY) -> list[Frame]:
        """Remove and return the frames that leave next, at most `limit_bytes` in total and at most `packets_max`.

        If the first frame alone is larger than that, return only this frame: the lane cuts it into pieces.
        """
        ...

    def put_back(self, frames: list[Frame]) -> None:
        """Put the frames that were taken last back to the front, in this order. An outbox must not refuse them."""
        ...

    def on_confirmed(self, frames: list[Frame]) -> None:
        """Forget the frames that were taken first: they have arrived."""
        ...

    def waits(self) -> bool:
        """Return whether `take` would return anything."""
        ...
