"""The packets of a lane's answers that are not confirmed, each under the serial that first carried it.

Clauses 7.3, 7.20 of docs/PROTOCOL.md.
"""

import msgspec

from tunnel.wire import Frame

__all__ = ["Confirmed", "Ledger"]


class _Entry(msgspec.Struct):
    serial: int
    frames: list[Frame]
    size: int
    sent_us: int


class Confirmed(msgspec.Struct):
    """The packets that a serial confirmed, and when the oldest and the newest of them were sent."""

    frames: list[Frame]
    size: int
    first_us: int
    sent_us: int


class Ledger:
    """The unconfirmed packets, oldest first."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.held_packets = 0
        self._entries: list[_Entry] = []

    @property
    def frames(self) -> list[Frame]:
        """All unconfirmed packets, in order."""
        return [frame for entry in self._entries for frame in entry.frames]

    @property
    def oldest_us(self) -> int | None:
        """When the oldest unconfirmed packet was sent, or None if there is none."""
        return self._entries[0].sent_us if self._entries else None

    def add(self, serial: int, frames: list[Frame], now: int) -> None:
        """Record packets that leave for the first time, under this serial."""
        if frames:
            size = sum(frame.size for frame in frames)
            self._entries.append(_Entry(serial, frames, size, now))
            self.held_bytes += size
            self.held_packets += len(frames)

    def confirm(self, serial: int) -> Confirmed:
        """Remove the packets of all serials up to this one, and return them."""
        confirmed = Confirmed([], 0, self._entries[0].sent_us if self._entries else 0, 0)
        count = 0
        for entry in self._entries:
            if entry.serial > serial:
                break
            count += 1
            self.held_bytes -= entry.size
            self.held_packets -= len(entry.frames)
            confirmed.frames += entry.frames
            confirmed.size += entry.size
            confirmed.sent_us = entry.sent_us
        del self._entries[:count]
        return confirmed

    def take_back(self) -> list[Frame]:
        """Remove all packets, and return them in order."""
        frames = self.frames
        self._entries.clear()
        self.held_bytes = self.held_packets = 0
        return frames

    def fit(self, limit_bytes: int) -> list[Frame]:
        """Keep the first packets, at most `limit_bytes` in total; remove the others, and return them in order."""
        kept: list[_Entry] = []
        rest: list[Frame] = []
        size = 0
        for entry in self._entries:
            count = 0
            while not rest and count < len(entry.frames) and size + entry.frames[count].size <= limit_bytes:
                size += entry.frames[count].size
                count += 1
            rest += entry.frames[count:]
            if count:
                frames = entry.frames[:count]
                kept.append(_Entry(entry.serial, frames, sum(frame.size for frame in frames), entry.sent_us))
        self._entries = kept
        self.held_bytes = size
        self.held_packets -= len(rest)
        return rest
