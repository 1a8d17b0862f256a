"""The lanes of one generation, and the use of one lane's answer as evidence about the others (PROTOCOL 7.7)."""

from collections.abc import Iterator

from tunnel.exchange.flight import Flight
from tunnel.exchange.lane import Lane
from tunnel.wire import Answer

__all__ = ["LaneSet"]


class LaneSet:
    """All lanes of one generation. Callers pass the number of lanes in use.

    There are only a few lanes, so a search through all of them costs next to nothing.
    """

    def __init__(self, count: int, packet_bytes_max: int, now: int) -> None:
        self.lanes = [Lane(index, packet_bytes_max, now) for index in range(count)]

    def flights(self) -> Iterator[Flight]:
        """Yield the flight of each lane that has one."""
        for lane in self.lanes:
            if lane.flight is not None:
                yield lane.flight

    def pulls_in_flight(self) -> int:
        """Return the number of pulls in flight, without those whose answers may be streams."""
        return sum(flight.pull and not flight.stream for flight in self.flights())

    def held_pulls(self, sent_us: int, least_us: int) -> int:
        """Return the number of pulls in flight that the relay may have held when an exchange was sent at `sent_us`:
        those that left at least the shortest round trip before it."""
        return sum(flight.hold_us > 0 and flight.first_sent_us <= sent_us - least_us for flight in self.flights())

    def least_failed_push(self, but: Flight) -> Flight | None:
        """Of the pushes in flight with unexplained failures, without `but`, return the one with the fewest; or None."""
        pushes = [flight for flight in self.flights() if not flight.pull and flight.unexplained and flight is not but]
        return min(pushes, key=lambda flight: flight.unexplained, default=None)

    def idle(self, count: int) -> Lane | None:
        """Return an idle lane among the first `count`, or None.

        A lane with unconfirmed packets goes first, since the relay must keep them until the lane's next exchange.
        """
        best = None
        for lane in self.lanes[:count]:
            if lane.idle and (best is None or lane.owes > best.owes):
                best = lane
        return best

    def idle_count(self, count: int) -> int:
        """Return the number of idle lanes among the first `count`."""
        return sum(lane.idle for lane in self.lanes[:count])

    def use_evidence(self, answer: Answer, repeat_us: int) -> None:
        """Repeat at `repeat_us` each flight that the relay has answered, unless its answer comes before that (7.7)."""
        for index, number in answer.evidence:
            flight = self.lanes[index].flight if index < len(self.lanes) else None
            if flight is not None and number >= flight.number:
                flight.repeat_early(repeat_us, is_answered=True)

    def doubt_pulls(self, sent_us: int, repeat_us: int) -> None:
        """Repeat at `repeat_us` the held pulls that were sent before `sent_us`.

        Call it when the path was silent and a repeat sent at `sent_us` was answered. Older pulls may have been lost in
        that silence, and their own deadlines are far away. An extra request costs less than a stalled stream.
        """
        for flight in self.flights():
            if flight.hold_us and flight.attempts and flight.attempts[0].sent_us < sent_us:
                flight.repeat_early(repeat_us)

    def hurry(self, sent_us: int, repeat_us: int) -> None:
        """Repeat at `repeat_us` each flight that has missed a deadline: an attempt of another one, sent at
        `sent_us`, was answered, so the path works again."""
        for flight in self.flights():
            flight.hurry(sent_us, repeat_us)
