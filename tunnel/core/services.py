"""The services that this endpoint offers, and their announcements to the relay (PROTOCOL 2.8)."""

from collections.abc import Callable

import msgspec

from tunnel.core.constants import BACKOFF_MAX_US, NEVER_US, SECOND_US
from tunnel.wire import (
    ListenState,
    ListenStatus,
    Options,
    Packet,
    PacketType,
    PublicPlace,
    decode_listen_state,
    encode_listen_state,
)

__all__ = ["Announcements", "Services"]


class _Announcement(msgspec.Struct):
    version: int
    packet: Packet
    interval_us: int
    due_us: int


_TOO_OLD = (
    "the relay is too old to open ports for people without the tunnel: ask its operator to update it, or offer the "
    "service without a public port"
)


class Announcements:
    """The announcements that the relay has not answered.

    The newest announcement of each name is repeated until the relay answers it: after a second, then with exponential
    backoff.
    """

    __slots__ = ("_send", "_unanswered", "_version", "due_us")

    def __init__(self, send: Callable[[Packet], None]) -> None:
        self.due_us = NEVER_US
        self._send = send
        self._unanswered: dict[str, _Announcement] = {}
        self._version = 0

    def is_answered(self, name: str) -> bool:
        """Return whether the relay has answered the latest announcement of this name."""
        return name not in self._unanswered

    def announce(
        self, name: str, status: ListenStatus, backlog: int, now: int, public: PublicPlace | None = None
    ) -> int:
        """Announce a service to the relay. Return the version of the announcement.

        Raise ValueError if the name or the backlog does not fit a packet.
        """
        version = self._version + 1
        payload = encode_listen_state(ListenState(version, status, backlog, name, options=Options(public=public)))
        self._version = version
        packet = Packet(PacketType.LISTEN_STATE, 0, 0, 0, payload)
        self._unanswered[name] = _Announcement(version, packet, SECOND_US, now + SECOND_US)
        self.due_us = min(self.due_us, now + SECOND_US)
        self._send(packet)
        return version

    def handle_answer(self, state: ListenState) -> bool:
        """Process the relay's answer. Return False if it does not answer the latest announcement of this name."""
        known = self._unanswered.get(state.name)
        if known is None or known.version != state.version:
            return False
        del self._unanswered[state.name]
        self._set_timer()
        return True

    def forget(self) -> None:
        """Forget all unanswered announcements: the relay has lost its state, so they must be made again."""
        self._unanswered.clear()
        self._set_timer()

    def handle_timeout(self, now: int) -> None:
        """Repeat the announcements that are due. Early and late calls do no harm."""
        for known in self._unanswered.values():
            if known.due_us <= now:
                known.interval_us = min(2 * known.interval_us, BACKOFF_MAX_US)
                known.due_us = now + known.interval_us
                self._send(known.packet)
        self._set_timer()

    def _set_timer(self) -> None:
        self.due_us = min((known.due_us for known in self._unanswered.values()), default=NEVER_US)


class _Service(msgspec.Struct):
    backlog: int
    version: int
    public: PublicPlace | None = None
    refused: bool = False  # the relay does not let this endpoint listen under the name (any more)


class Services:
    """The services that the application offers, refused ones included. The relay enforces their backlogs."""

    def __init__(self, send: Callable[[Packet], None]) -> None:
        self._services: dict[str, _Service] = {}
        self.refusals: dict[str, str] = {}  # by name: the text of a refusal that `poll_refusal` has not returned
        self.announcements = Announcements(send)

    def listen(self, name: str, backlog: int, now: int, public: PublicPlace | None = None) -> None:
        """Offer a service, also to people without the tunnel if `public`; a second call changes backlog and place.

        Raise ValueError if the name, the backlog or the place cannot be announced (2.8).
        """
        version = self.announcements.announce(name, ListenStatus.UP, backlog, now, public)
        self._services[name] = _Service(backlog, version, public)

    def unlisten(self, name: str, now: int) -> None:
        """Stop offering a service."""
        if self._services.pop(name, None) is not None:
            self.announcements.announce(name, ListenStatus.DOWN, 0, now)

    def announce_all(self, now: int) -> None:
        """Announce every service again, after a fresh attach."""
        self.announcements.forget()
        for name, service in self._services.items():
            service.version = self.announcements.announce(name, ListenStatus.UP, service.backlog, now, service.public)

    def is_refused(self, name: str) -> bool:
        """Return whether the relay does not let this endpoint listen under that name."""
        service = self._services.get(name)
        return service is not None and service.refused

    def poll_refusal(self) -> tuple[str, str] | None:
        """Return the name and the reason of a new refusal by the relay; None if there is none.

        A refusal is new if the name was allowed before, or if it is the first since the last call of `listen` for the
        name. The reason is empty if the rules do not allow the name.
        """
        while self.refusals:
            name, text = self.refusals.popitem()
            if self.is_refused(name):
                return name, text
        return None

    def receive_listen_state(self, packet: Packet) -> bool:
        """Process the relay's answer to an announcement, or a later refusal. Return False if the packet is neither."""
        state = decode_listen_state(packet.payload)
        service = None if state is None else self._services.get(state.name)
        if state is None or (not self.announcements.handle_answer(state) and service is None):
            return False
        if service is not None and state.version == service.version:
            is_too_old = state.state == ListenStatus.UP and state.options.public != service.public
            was_refused, service.refused = service.refused, state.state == ListenStatus.REFUSED or is_too_old
            if service.refused and not was_refused:
                self.refusals[state.name] = _TOO_OLD if is_too_old else state.text
        return True

    def is_answered(self, name: str) -> bool:
        """Return whether the relay has answered the latest announcement of this name."""
        return self.announcements.is_answered(name)

    def is_up(self, name: str) -> bool:
        """Return whether this endpoint accepts connections to that service."""
        return name in self._services
