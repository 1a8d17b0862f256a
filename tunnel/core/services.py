"""What the relay is told of our services, until it has answered (2.8)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tunnel.core.constants import BACKOFF_MAX_US, NEVER_US, SECOND_US
from tunnel.wire import ListenState, ListenStatus, Packet, PacketType, encode_listen_state

__all__ = ["Announcements"]


class _Announcement(msgspec.Struct):
    version: int
    packet: Packet
    interval_us: int
    due_us: int


class Announcements:
    """The newest one of each name is repeated until the relay answers it: after a second, then ever more seldom."""

    __slots__ = ("_send", "_unanswered", "_version", "due_us")

    def __init__(self, send: Callable[[Packet], None]) -> None:
        self.due_us = NEVER_US
        self._send = send
        self._unanswered: dict[str, _Announcement] = {}
        self._version = 0

    def is_answered(self, name: str) -> bool:
        """Whether the relay has answered what it was told last of this name."""
        return name not in self._unanswered

    def announce(self, name: str, status: ListenStatus, backlog: int, now: int) -> int:
        """Tell the relay; the version of what it is told. ValueError when a packet cannot say it."""
        version = self._version + 1
        payload = encode_listen_state(ListenState(version, status, backlog, name))
        self._version = version
        packet = Packet(PacketType.LISTEN_STATE, 0, 0, 0, payload)
        self._unanswered[name] = _Announcement(version, packet, SECOND_US, now + SECOND_US)
        self.due_us = min(self.due_us, now + SECOND_US)
        self._send(packet)
        return version

    def answered(self, state: ListenState) -> bool:
        """The relay's answer; False if it is not one to what it was told last of this name."""
        known = self._unanswered.get(state.name)
        if known is None or known.version != state.version:
            return False
        del self._unanswered[state.name]
        self._see_to_timer()
        return True

    def forget(self) -> None:
        """The relay is another one: of what it was told this one knows nothing."""
        self._unanswered.clear()
        self._see_to_timer()

    def handle_timeout(self, now: int) -> None:
        """Repeat what is due; early or late calls are harmless."""
        for known in self._unanswered.values():
            if known.due_us <= now:
                known.interval_us = min(2 * known.interval_us, BACKOFF_MAX_US)
                known.due_us = now + known.interval_us
                self._send(known.packet)
        self._see_to_timer()

    def _see_to_timer(self) -> None:
        self.due_us = min((known.due_us for known in self._unanswered.values()), default=NEVER_US)
