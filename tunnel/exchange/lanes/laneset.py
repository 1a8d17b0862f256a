"""The lanes of one generation, and the use of one lane's answer as evidence about the others (PROTOCOL 7.7)."""

from tunnel.exchange.flight import Flight
from tunnel.exchange.lanes.lane import Lane
from tunnel.wire import Answer

__all__ = ["LaneSet"]


class LaneSet:
    """All lanes of the present generation; none before it is attached. Callers pass the number of lanes in use.

    There are only a few lanes, so a search through all of them costs next to nothing, as long as it calls nothing.
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []

    def begin(self, count: int, packet_bytes_max: int, now: int) -> None:
        """Begin a generation with new lanes."""
        self.lanes = [Lane(index, packet_bytes_max, now) for index in range(count)]

    def end(self) -> None:
        """End the generation, and with it all lanes."""
        self.lanes = []

    def flights(self) -> list[Flight]:
        """Return the flight of each lane that has one."""
        found = []
        for lane in self.lanes:
            if lane.flight is not None:
                found.append(lane.flight)
        return found

    def pulls_in_flight(self) -> int:
        """Return the number of pulls in flight, without those whose answers may be streams."""
        count = 0
        for lane in self.lanes:
            if lane.flight is not None and lane.flight.pull and not lane.flight.stream:
                count += 1
        return count

    def held_pulls(self, sent_us: int, least_us: int) -> int:
        """Return the number of pulls in flight that the relay may have held when an exchange was sent at `sent_us`:
        those that left at least the shortest round trip before it."""
        count, before_us = 0, sent_us - least_us
        for lane in self.lanes:
            if lane.flight is not None and lane.flight.hold_us > 0 and lane.flight.first_sent_us <= before_us:
                count += 1
        return count

    def has_idle_and_pulls(self, count: int) -> tuple[bool, int]:
        """Return whether a lane among the first `count` is idle, and what `pulls_in_flight` does, with one search."""
        has_idle, pulls = False, 0
        for index, lane in enumerate(self.lanes):
            flight = lane.flight
            if flight is not None:
                if flight.pull and not flight.stream:
                    pulls += 1
            elif index < count and not lane.is_cut and not lane.streaming:
                has_idle = True
        return has_idle, pulls

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
            if (lane.flight is None and not lane.is_cut and not lane.streaming) and (
                best is None or lane.owes > best.owes
            ):
                best = lane
        return best

    def idle_count(self, count: int) -> int:
        """Return the number of idle lanes among the first `count`."""
        found = 0
        for lane in self.lanes[:count]:
            if lane.flight is None and not lane.is_cut and not lane.streaming:
                found += 1
        return found

    def wait_for_queue(self, queued_us: int) -> None:
        """Leave each attempt in flight this time for its answer (7.8)."""
        for lane in self.lanes:
            if lane.flight is not None:
                lane.flight.wait_for_queue(queued_us)

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
        for lane in self.lanes:
            if lane.flight is not None:
                lane.flight.hurry(sent_us, repeat_us)
