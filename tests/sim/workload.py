"""The applications: both ends of every stream, and what each of them saw."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from tests.sim.clock import Alarm, Clock
from tests.sim.faults import FaultKind
from tests.sim.streams import Ending, Flow, StreamSpec, content
from tests.sim.violation import Violation
from tunnel.core import (
    Closed,
    Connected,
    Connection,
    Event,
    Flushed,
    Lost,
    LostReason,
    PeerClosed,
    PeerClosedError,
    PeerFinished,
    Refused,
)
from tunnel.wire import Buffer, RejectReason

__all__ = ["Host", "Outcome", "Party", "Stream"]


class Outcome(enum.Enum):
    """How a stream ended for one of its applications."""

    CLEAN = "clean"
    LOST = "lost"
    REFUSED = "refused"
    DIED = "died with its endpoint"


class Host(Protocol):
    """The parts of a node that a party uses."""

    index: int
    clock: Clock

    @property
    def now_us(self) -> int: ...

    def later(self, delay_us: int, action: Callable[[], None]) -> Alarm:
        """Run `action` after the delay, if this life of the node still lasts; a paused node runs it after the pause."""

    def struck(self, kind: FaultKind, connection_id: int) -> None: ...

    def moved(self, party: Party, size: int) -> None: ...

    def ended(self, party: Party) -> None: ...


class Channel(Protocol):
    """A connection, or its encryption, as an application uses it."""

    def read(self, size_max: int, now: int) -> Buffer: ...

    def write(self, data: Buffer, now: int) -> int: ...

    def finish(self, now: int) -> None: ...

    def close(self, now: int) -> None: ...

    def abort(self, now: int) -> None: ...


class Stream:
    """One stream: its bytes, and its two ends, as soon as they exist."""

    def __init__(self, seed: int, spec: StreamSpec) -> None:
        self.spec = spec
        self.up = content(seed, spec.number, "up", spec.up.size)
        self.down = self.up if spec.echo else content(seed, spec.number, "down", spec.down.size)
        self.initiator: Party | None = None
        self.acceptor: Party | None = None
        self.dead_acceptors: list[Party] = []
        """Earlier acceptors, which have died. The initiator may still take one of them for its peer."""
        self.refusals = 0
        """Refusals by a relay that did not know the service (yet); the initiator tried again."""

    @property
    def aborted_unheard(self) -> bool:
        """Whether the acceptor aborted before the initiator got its ACCEPTED.

        The initiator then gets REJECTED, with *refused* if no ACCEPTED had left, and does not try again (3.2).
        """
        acceptor, initiator = self.acceptor, self.initiator
        aborted = acceptor is not None and acceptor.aborted
        return aborted and initiator is not None and initiator.refusal in (RejectReason.GONE, RejectReason.REFUSED)

    @property
    def parties(self) -> list[Party]:
        return [party for party in (self.initiator, self.acceptor) if party is not None]

    def __str__(self) -> str:
        return f"stream {self.spec.number} ({self.spec.label})"


class Party:
    """One end of one stream. `act` does all that the flows of the stream allow at this moment, and never more."""

    def __init__(self, host: Host, stream: Stream, is_initiator: bool, connection: Connection) -> None:
        spec = stream.spec
        self.host = host
        self.stream = stream
        self.spec = spec
        self.is_initiator = is_initiator
        self.connection = connection
        self.channel: Channel = connection  # what the application reads and writes
        self.outcome: Outcome | None = None
        self.reason: LostReason | None = None
        self.refusal: RejectReason | int | None = None
        self.text = ""
        self.ended_us = -1  # virtual time
        self.connected = not is_initiator
        self.written = 0
        self.read = 0
        self.ended_writing = False  # finish() or close() was called, or the peer closed
        self.finished = False  # this party ended its direction itself
        self.at_end = False
        self.closed = False  # close() was called
        self.aborted = False
        self._out = stream.up if is_initiator else stream.down
        self._expected = stream.down if is_initiator else stream.up
        self._writes: Flow = spec.up if is_initiator else spec.down
        self._reads: Flow = spec.down if is_initiator else spec.up
        self._write_at_us = 0
        self._read_at_us = 0
        self._stop_at = self._reads.stop_at
        self._alarms_us = [-1, -1]  # the latest alarms for reading and for writing
        self._slow_noted = False

    # events

    def handle(self, event: Event) -> None:
        """Handle an event of the endpoint about this connection."""
        if self.outcome is not None:
            raise Violation(f"{self}: {event} after the end ({self.outcome.value})")
        match event:
            case Connected():
                self.connected = True
            case PeerFinished():
                self._check_end()
            case Closed():
                self._record_outcome(Outcome.CLEAN, None, "")
                return
            case Lost(reason=reason, text=text):
                self._record_outcome(Outcome.LOST, reason, text)
                return
            case Refused(reason=refusal, text=text):
                self.refusal = refusal
                self._record_outcome(Outcome.REFUSED, None, f"{getattr(refusal, 'name', refusal)}: {text}")
                return
            case PeerClosed():
                self.ended_writing = True  # writing is over; received data can still be read
            case Flushed():
                return
        self.act()

    def act(self) -> None:
        """Read, write and end as far as the flows allow now."""
        if self.outcome is not None or self.closed or self.aborted:
            return
        self._read()
        self._write()
        self._end()

    def strike_midway(self) -> None:
        """End the stream in its middle, by a close or an abort, as its scenario says."""
        if self.outcome is not None or self.closed or self.aborted:
            return
        if self.spec.ending is Ending.ABORT:
            self.aborted = True
            self.channel.abort(self.host.now_us)
        else:
            self._close()

    def die(self) -> None:
        """The endpoint has died, and its applications with it."""
        if self.outcome is None:
            self.outcome = Outcome.DIED

    def peer(self) -> Party | None:
        """Return the party at the other end of this connection, or None if no application there has got it yet.

        A successor of a dead acceptor may have accepted a repeated CONNECT while the initiator still talks to the dead
        one.
        """
        if not self.is_initiator:
            return self.stream.initiator
        peer_id = self.connection.identity.peer_id
        dead = (each for each in self.stream.dead_acceptors if each.connection.id == peer_id)
        return next(dead, self.stream.acceptor)

    def __str__(self) -> str:
        side = "initiator" if self.is_initiator else "acceptor"
        return f"{self.stream}, {side} at node {self.host.index}"

    # reading, writing and ending

    def _read(self) -> None:
        flow = self._reads
        while not self.at_end:
            now_us = self.host.now_us
            if now_us < self._read_at_us:
                return self._wake_at(0, self._read_at_us)
            if 0 <= self._stop_at <= self.read:
                self._stop_at = -1
                self._read_at_us = now_us + flow.stop_us
                self.host.struck(FaultKind.STOPPED_READER, self.connection.id)
                continue
            data = self.channel.read(flow.read_bytes, now_us)
            if not len(data):
                return None
            self._take(bytes(data))
            if flow.read_pause_us:
                self._read_at_us = now_us + flow.read_pause_us
                if not self._slow_noted:
                    self._slow_noted = True
                    self.host.struck(FaultKind.SLOW_READER, self.connection.id)
        return None

    def _take(self, data: bytes) -> None:
        end = self.read + len(data)
        if self._expected[self.read : end] != data:
            raise Violation(f"{self}: bytes {self.read} to {end} differ from those written")
        writer = self.peer()
        if writer is None or writer.written < end:
            raise Violation(f"{self}: read {end} bytes, more than were written")
        self.read = end
        self.host.moved(self, len(data))

    def _write(self) -> None:
        flow = self._writes
        limit = len(self._out)
        while self.written < limit and not self.ended_writing:
            now_us = self.host.now_us
            if now_us < self._write_at_us:
                return self._wake_at(1, self._write_at_us)
            if self.read < flow.start_after:
                return None
            end = min(self.written + flow.write_bytes, limit)
            if self.spec.echo and not self.is_initiator:
                end = min(end, self.read)
            wanted = end - self.written
            if not wanted:
                return None
            try:
                taken = self.channel.write(self._out[self.written : end], now_us)
            except PeerClosedError:
                self.ended_writing = True  # the event PeerClosed is on its way
                return None
            self.written += taken
            if taken < wanted:
                return None
            if flow.write_pause_us:
                self._write_at_us = now_us + flow.write_pause_us
        return None

    def _end(self) -> None:
        all_written = self.written == len(self._out)
        ending = self.spec.ending
        if ending is Ending.SIMULTANEOUS:
            if all_written and self.read == len(self._expected):
                self._close()
        elif ending in (Ending.CLOSE, Ending.EARLY) and self.is_initiator:
            if all_written:
                self._close()
        elif all_written and not self.ended_writing:
            self.ended_writing = self.finished = True
            self.channel.finish(self.host.now_us)
        if self.at_end and self.ended_writing and not self.closed:
            self._close()

    # helpers

    def _check_end(self) -> None:
        """A clean end comes once, and only after the last byte that the peer will ever write."""
        if self.at_end:
            raise Violation(f"{self}: a second end of stream")
        self.at_end = True
        writer = self.peer()
        found = f"{self}: end of stream after {self.read} bytes"
        if writer is None:
            raise Violation(f"{found}, although no application writes")
        if self.read != writer.written:
            raise Violation(f"{found}, but {writer.written} were written")
        if not writer.finished:
            raise Violation(f"{found}, but the writer has not ended its direction")

    def _close(self) -> None:
        self.closed = self.ended_writing = self.finished = True
        self.channel.close(self.host.now_us)

    def _record_outcome(self, outcome: Outcome, reason: LostReason | None, text: str) -> None:
        self.outcome, self.reason, self.text = outcome, reason, text
        self.ended_us = self.host.clock.now_us
        self.host.ended(self)

    def _wake_at(self, which: int, time_us: int) -> None:
        if self._alarms_us[which] != time_us:
            self._alarms_us[which] = time_us
            self.host.later(time_us - self.host.now_us, self.act)
