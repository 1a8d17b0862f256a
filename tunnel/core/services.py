"""The services that this endpoint offers, and what the relay is told of them until it has answered (2.8)."""

from collections.abc import Callable

import msgspec

from tunnel.core.constants import BACKOFF_MAX_US, NEVER_US, SECOND_US
from tunnel.wire import (
    ListenState,
    ListenStatus,
    Packet,
    PacketType,
    decode_listen_state,
    encode_listen_state,
)

__all__ = ["Announcements", "Services"]


class _Announcement(msgspec.Struct):
    version: int
    packet: Packet
    interval_us: int
    due_us: int


class Announcements:
    """The newest one of each name is repeated until the relay answers it: after a second, then with backoff."""

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


class _Service(msgspec.Struct):
    backlog: int
    version: int
    waiting: int = 0  # accepted, and not yet seen by the application
    refused: bool = False  # by the relay


class Services:
    """Which services are up, and how many of their connections the application has not seen yet."""

    def __init__(self, send: Callable[[Packet], None]) -> None:
        self._services: dict[str, _Service] = {}
        self.announcements = Announcements(send)

    def listen(self, name: str, backlog: int, now: int) -> None:
        """The service is up; a second call changes the backlog. ValueError when that cannot be announced (2.8)."""
        known = self._services.get(name)
        waiting = known.waiting if known is not None else 0
        version = self.announcements.announce(name, ListenStatus.UP, backlog, now)
        self._services[name] = _Service(backlog, version, waiting)

    def unlisten(self, name: str, now: int) -> None:
        """The service is down."""
        if self._services.pop(name, None) is not None:
            self.announcements.announce(name, ListenStatus.DOWN, 0, now)

    def announce_all(self, now: int) -> None:
        """A relay that does not know us must hear of every service."""
        self.announcements.forget()
        for name, service in self._services.items():
            service.version = self.announcements.announce(name, ListenStatus.UP, service.backlog, now)

    def refused(self, name: str) -> bool:
        """Whether the relay's rules do not let us listen under that name."""
        service = self._services.get(name)
        return service is not None and service.refused

    def receive_listen_state(self, packet: Packet) -> bool:
        """The relay's answer to an announcement; False if it answers none."""
        state = decode_listen_state(packet.payload)
        service = None if state is None else self._services.get(state.name)
        if state is None or (not self.announcements.answered(state) and service is None):
            return False
        if service is not None and state.version == service.version:
            service.refused = state.state == ListenStatus.REFUSED
        return True

    # the backlog

    def is_up(self, name: str) -> bool:
        """Whether connections to that service are accepted."""
        return name in self._services

    def has_room(self, name: str) -> bool:
        """Whether its backlog has room for another connection."""
        service = self._services[name]
        return service.waiting < service.backlog

    def took(self, name: str) -> None:
        """A connection was accepted that the application has not seen."""
        self._services[name].waiting += 1

    def surfaced(self, name: str) -> None:
        """The application has seen a connection, or never will: there is room in the backlog."""
        service = self._services.get(name)
        if service is not None:
            service.waiting = max(0, service.waiting - 1)
