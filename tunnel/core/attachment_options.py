"""What endpoint and relay tell each other about the attachment: OPTION with both ids 0 (PROTOCOL 2.7, 6.10, 9.9)."""

from collections.abc import Callable

from tunnel.core.constants import BACKOFF_MAX_US, NEVER_US, SECOND_US
from tunnel.wire import Option, Options, Packet, PacketType, decode_option, encode_option

__all__ = ["AttachmentOptions", "SettledInterval"]

_UNASKED = 0  # the version of an OPTION that answers nothing (2.7)

SettledInterval = tuple[int, int]  # what the endpoint asked for and what the relay settled on, in microseconds


class AttachmentOptions:
    """The pull interval that the endpoint wants, whether it leaves, and the OPTION that tells the relay.

    The newest OPTION is repeated until the relay answers it: after a second, then with exponential backoff. So each one
    holds all that the earlier ones held.
    """

    __slots__ = (
        "_interval_us",
        "_leaving",
        "_packet",
        "_send",
        "_version",
        "_wanted_ms",
        "due_us",
        "is_draining",
        "settled",
    )

    def __init__(self, send: Callable[[Packet], None]) -> None:
        self.due_us = NEVER_US
        self.is_draining = False  # the relay takes no new connections and attachments any more (9.9)
        self._send = send
        self._version = 0
        self._wanted_ms: int | None = None  # None: the interval in ATTACH holds
        self._leaving: bool | None = None
        self._packet: Packet | None = None  # the newest OPTION, until it is answered
        self._interval_us = SECOND_US  # from the last sending to the next repeat
        self.settled: SettledInterval | None = None  # what `poll_settled` returns next

    @property
    def is_answered(self) -> bool:
        """Whether the relay has answered the newest OPTION, or none was sent."""
        return self._packet is None

    def ask(self, wanted_ms: int, now: int) -> None:
        """Ask the relay for this interval between pulls; 0: pulls are held. Raise ValueError if it fits no packet."""
        self._tell(wanted_ms, self._leaving, now)

    def leave(self, now: int) -> None:
        """Tell the relay that this endpoint takes no further connections, and is about to end."""
        if self._leaving is None:
            self._tell(self._wanted_ms, True, now)

    def attached_afresh(self, now: int) -> None:
        """Tell it to a relay that did not know the attachment. It knows the interval, which ATTACH asks for."""
        self.is_draining = False
        if self._leaving is not None:
            self._tell(self._wanted_ms, self._leaving, now)

    def receive_option(self, packet: Packet) -> bool:
        """Process the relay's answer, or its word that it drains. Return False if the packet is neither: if it does not
        answer the newest OPTION."""
        option = decode_option(packet.payload)
        if option is not None and option.version == _UNASKED and option.options.draining:
            self.is_draining = True
            return True
        if option is None or self._packet is None or option.version != self._version:
            return False
        settled_ms = option.options.pull_interval_ms
        if settled_ms is not None and self._wanted_ms is not None:
            self.settled = self._wanted_ms * 1000, settled_ms * 1000
        self._packet = None
        self.due_us = NEVER_US
        return True

    def poll_settled(self) -> SettledInterval | None:
        """Return what was asked for and what the relay settled on, once for each answer; None if there is no news."""
        settled, self.settled = self.settled, None
        return settled

    def handle_timeout(self, now: int) -> None:
        """Repeat the OPTION if that is due. Early and late calls do no harm."""
        if self._packet is not None and self.due_us <= now:
            self._interval_us = min(2 * self._interval_us, BACKOFF_MAX_US)
            self.due_us = now + self._interval_us
            self._send(self._packet)

    def _tell(self, wanted_ms: int | None, leaving: bool | None, now: int) -> None:
        options = Options(pull_interval_ms=wanted_ms, leaving=leaving)
        payload = encode_option(Option(self._version + 1, options))
        self._version += 1
        self._wanted_ms, self._leaving = wanted_ms, leaving
        self._packet = Packet(PacketType.OPTION, 0, 0, 0, payload)
        self._interval_us = SECOND_US
        self.due_us = now + SECOND_US
        self._send(self._packet)
