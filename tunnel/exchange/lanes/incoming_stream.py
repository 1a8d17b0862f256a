"""The endpoint's half of one streamed answer: what came, which confirmation is owed, and when it counts as cut.

Clause 7.20 of docs/PROTOCOL.md.
"""

from tunnel.exchange.config import KIB, SECOND_US
from tunnel.exchange.envelope_stream import EnvelopeStream
from tunnel.exchange.lanes.lane import Lane
from tunnel.exchange.stream_times import OWED_US, beat_after_us
from tunnel.wire import Answer, Buffer

__all__ = ["IncomingStream"]

# After this many bytes a confirmation leaves at once, since the relay's window must not fill up. It does not leave at
# once while _SAID_MAX confirmations have no answer.
_URGENT_BYTES = 256 * KIB
_SAID_MAX = 2
_GRACE_US_MIN = SECOND_US  # 7.20
_ENVELOPE_US_MAX = 10 * SECOND_US  # longest time from the first byte of an envelope to its last, without the grace


class IncomingStream:
    """A stream whose first envelope came. `body` splits the bytes that follow into envelopes.

    It is *proven* when the relay has heard that the first envelope came; from then on, packets come on it. When it is
    *over*, nothing more is taken from it, but a confirmation may still be *owed*: the relay must hear what came.

    One thing because each envelope decides both which confirmation is owed and when the stream counts as cut.
    """

    def __init__(
        self,
        lane: Lane,
        request_id: int,
        body: EnvelopeStream,
        first: Answer,
        lasts_us: int,
        limit_bytes: int,
        now: int,
    ) -> None:
        self.lane = lane
        self.request_id = request_id
        self.number = first.number
        self.first_serial = self.serial = first.serial  # `serial`: of the newest whole envelope
        self.opened_us = now
        self.is_proven = False
        self.is_over = False
        self.taken_bytes = 0
        self.known_serial = 0  # the relay has heard that all envelopes up to this serial came
        self._body = body
        self._lasts_us = lasts_us
        self._limit_bytes = limit_bytes
        self._owed_us: int | None = now  # a confirmation must leave by then; None: nothing is owed
        self._overdue_us = now
        self._owed_bytes = 0  # bytes of packets that came since the last confirmation left
        self._said: list[int] = []  # serials in confirmations of which the relay may not have heard
        self._packets_serial = first.serial  # of the newest envelope that is worth a confirmation
        self._empty = 0  # empty envelopes in succession
        self._heard_us = now
        self._began_us = now  # when the first byte of the present envelope came

    # what comes

    def feed(self, piece: Buffer, now: int) -> list[Buffer]:
        """Process the next piece of the body. Return the envelopes that are whole now."""
        was_between = not self._body.held_bytes
        whole = self._body.feed(piece)
        self.taken_bytes += len(piece)
        self._heard_us = now
        if was_between or whole:
            self._began_us = now
        return whole

    @property
    def is_broken(self) -> bool:
        """Whether something came that is not an envelope."""
        return self._body.is_broken

    def fits(self, answer: Answer) -> bool:
        """Return whether this is the next envelope."""
        return (
            not self.is_over
            and answer.lane == self.lane.index
            and answer.number == self.number
            and answer.serial == self.serial + 1
            and not answer.piece
        )

    def take(self, answer: Answer, now: int) -> None:
        """Take the next envelope. Only one with packets is worth a confirmation of its own."""
        self.serial = answer.serial
        if not len(answer.data):
            self._empty += 1
            return
        self._empty = 0
        self._packets_serial = answer.serial
        self._owed_bytes += len(answer.data)
        if self._owed_us is None:
            self._owed_us = self._overdue_us = now + OWED_US
        self._hurry(now)

    def _hurry(self, now: int) -> None:
        if self._owed_us is not None and self._owed_bytes >= _URGENT_BYTES and len(self._said) < _SAID_MAX:
            self._owed_us = min(self._owed_us, now)

    # what is owed

    @property
    def owed_us(self) -> int | None:
        """By when a confirmation must leave, or None if nothing is owed."""
        return self._owed_us

    @property
    def overdue_us(self) -> int:
        """By when an owed confirmation must leave, even if only one lane is free."""
        return self._overdue_us

    def is_urgent(self, now: int) -> bool:
        """Return whether so much came that a confirmation should leave before its time."""
        return self._owed_us is not None and self._owed_us <= now < self._overdue_us

    @property
    def unheard(self) -> bool:
        """Whether packets came of which the relay has not heard. Each request confirms them until one is answered."""
        return self._packets_serial > self.known_serial

    def take_confirmation(self) -> int:
        """Record that a request leaves with a confirmation. Return the serial for it."""
        self._owed_us = None
        self._owed_bytes = 0
        if not self._said or self._said[-1] < self.serial:
            self._said.append(self.serial)
        return self.serial

    def known(self, serial: int, now: int) -> bool:
        """Record that the relay has heard a confirmation. Return whether that proves the stream."""
        self.known_serial = max(self.known_serial, serial)
        self._said = [said for said in self._said if said > self.known_serial]
        self._hurry(now)
        if self.is_proven or self.is_over or serial < self.first_serial:
            return False
        self.is_proven = True
        return True

    def finish(self, now: int, *, is_cut: bool) -> None:
        """End the stream. If it was cut, the relay must soon hear what came, and send the rest by another way."""
        self.is_over = True
        if is_cut or self.unheard:
            self._owed_us = now

    # when

    def cut_us(self, srtt_us: int) -> int:
        """Return when the stream counts as cut, unless more comes before. An unproven one must be proven, too."""
        grace_us = max(_GRACE_US_MIN, 4 * srtt_us)
        cut_us = self._heard_us + beat_after_us(self._empty) + grace_us
        if not self.is_proven:
            cut_us = min(cut_us, self.opened_us + grace_us)
        if self._body.held_bytes:
            cut_us = min(cut_us, self._began_us + _ENVELOPE_US_MAX + grace_us)
        return cut_us

    def renew_us(self) -> int:
        """Return when the next stream should be opened: when three quarters of this one's time or bytes are used."""
        if self.taken_bytes * 4 >= self._limit_bytes * 3:
            return 0
        return self.opened_us + self._lasts_us * 3 // 4
