"""The lanes of one generation, and what one lane's answer says about the others (7.7)."""

from collections.abc import Iterator

from tunnel.exchange.flight import Flight
from tunnel.exchange.lane import Lane
from tunnel.wire import Answer

__all__ = ["LaneSet"]


class LaneSet:
    """At most a handful, so that looking at each costs nothing. Which of them are in use is said with each question."""

    def __init__(self, count: int, packet_bytes_max: int, now: int) -> None:
        self.lanes = [Lane(index, packet_bytes_max, now) for index in range(count)]

    def flights(self) -> Iterator[Flight]:
        """What is on its way."""
        for lane in self.lanes:
            if lane.flight is not None:
                yield lane.flight

    def pulls_out(self) -> int:
        """How many pulls are on their way."""
        return sum(flight.pull for flight in self.flights())

    def idle(self, count: int) -> Lane | None:
        """An idle lane among the first `count`; one that owes the relay a confirmation before others, whose packets
        the relay must keep until its next exchange."""
        best = None
        for lane in self.lanes[:count]:
            if lane.idle and (best is None or lane.owes > best.owes):
                best = lane
        return best

    def idle_count(self, count: int) -> int:
        """How many of the first `count` are idle."""
        return sum(lane.idle for lane in self.lanes[:count])

    def use_evidence(self, answer: Answer, repeat_us: int) -> None:
        """What other lanes wait for and the relay has answered is lost if it does not come until `repeat_us` (7.7)."""
        for index, number in answer.evidence:
            flight = self.lanes[index].flight if index < len(self.lanes) else None
            if flight is not None and number >= flight.number:
                flight.prove(repeat_us)

    def doubt_pulls(self, sent_us: int, repeat_us: int) -> None:
        """The path was silent, and a repeat sent at `sent_us` got through. Pulls held since before may have died in
        that silence, and their own deadlines are far: repeat them. A request costs less than a stream that stands."""
        for flight in self.flights():
            if flight.hold_us and flight.attempts and flight.attempts[0].sent_us < sent_us:
                flight.prove(repeat_us)
