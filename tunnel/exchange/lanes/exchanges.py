"""The exchanges of one endpoint that are under way: each starts, leaves, is repeated, fails and ends here.

`Exchanges` is what the parts of the lanes share. `Lanes` decides which exchange starts, and accepts the answers.
`Streams` does so for streamed answers (7.20).
"""

from collections import deque
from random import Random

from tunnel.exchange.config import SECOND_US, LaneConfig
from tunnel.exchange.events import (
    Abandoned,
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    Request,
)
from tunnel.exchange.flight import Attempt, Flight, repeat_delay
from tunnel.exchange.lanes.health import Health
from tunnel.exchange.lanes.lane import Lane
from tunnel.exchange.lanes.laneset import LaneSet
from tunnel.exchange.lanes.refusals import Refusals
from tunnel.exchange.lanes.registration import OTHER_VERSION, SEVERAL_RELAYS, Registration
from tunnel.exchange.lanes.responses import Outcome, Verdict
from tunnel.exchange.lanes.stream_set import StreamSet
from tunnel.exchange.path.path_model import PathModel
from tunnel.wire import VERSION, Attached, Exchange

__all__ = ["Exchanges"]


class Exchanges:
    """The lanes and flights of the present generation, the identity that each request carries, and what was learned of
    the path.

    An attempt that fails leaves its flight as it is, so that the same body is repeated. A flight ends with its answer,
    with its generation, or because its body is too large.
    """

    def __init__(
        self, config: LaneConfig, secret: bytes, random: Random, *, endpoint_name: str, identity: bytes | None
    ) -> None:
        self.registration = Registration(secret, endpoint_name, config, identity=identity)
        self.path = PathModel(config, random)
        self.refusals = Refusals(config, self.path, self.registration)
        self.health = Health(config.trouble_us)
        self.lane_set = LaneSet()
        self.streams = StreamSet()
        self.attach: Flight | None = None
        self.attempts: dict[int, Flight] = {}  # the flight of each open attempt, by request id
        self.events: deque[LaneEvent] = deque()
        self.is_refused = False  # for good
        self.is_pulling = True
        self.nothing_due_until_us = 0  # nothing is due before this time, unless a call resets it to 0
        self._config = config
        self._random = random
        self._attach_at_us = 0  # the next ATTACH leaves no earlier
        self._next_id = 0

    @property
    def attach_at_us(self) -> int:
        """When the next ATTACH may start."""
        return self._attach_at_us

    def flights(self) -> list[Flight]:
        """Return each body in flight: that of ATTACH, and those of the lanes."""
        found = [] if self.attach is None else [self.attach]
        for lane in self.lane_set.lanes:
            if lane.flight is not None:
                found.append(lane.flight)
        return found

    # starting and sending

    def start_attach(self, now: int) -> None:
        """Start ATTACH under the present generation."""
        self.attach = self.path.flight(self.registration.request(), now)
        self._attach_at_us = now + repeat_delay(SECOND_US, self._random)

    def start(self, lane: Lane, exchange: Exchange, now: int) -> None:
        """Start an exchange on its lane. It also confirms what came on streams."""
        if self.streams.unheard:
            self.streams.confirm(lane, exchange)
        lane.flight = self.path.flight(exchange, now)

    def send(self, flight: Flight, now: int) -> Request:
        """Return the next attempt of a flight, which leaves now."""
        self._next_id += 1
        request, evicted = flight.send(self._next_id, now, self._random, self.refusals.prepare(flight))
        self.attempts[request.id] = flight
        self.path.on_sent(now, silent=sum(other.silent for other in self.flights()) if flight.silent else 0)
        if evicted is not None:
            del self.attempts[evicted]
            self.events.append(Abandoned(evicted))
        return request

    # failures

    def check_silence(self, flight: Flight, now: int) -> None:
        """Count a failure if an answer did not come in time."""
        if flight.check_silence(now):
            newest = flight.attempts[-1]
            if newest.is_open and (newest.repeat or self.path.backoff.doubts_silence):
                self.path.backoff.on_silent(newest.sent_us)
            self._failed_once(flight, now)

    def fail(
        self, flight: Flight, request_id: int, text: str, retry_after_us: int, now: int, *, explained: bool = False
    ) -> None:
        """Record that one attempt failed. Its flight goes on, unless its body is too large."""
        self.nothing_due_until_us = 0
        del self.attempts[request_id]
        flight.fail(request_id, text, retry_after_us, now, explained=explained)
        self._failed_once(flight, now)

    def _failed_once(self, flight: Flight, now: int) -> None:
        self.path.lanes.on_failed(now)
        troubled = self.health.on_failed(flight, now)
        if troubled is not None:
            self.events.append(troubled)
        if self.refusals.is_too_large(flight, now):
            self._abandon(flight)
            self._give_up(self.lane_set.lanes[flight.lane])
        elif flight is not self.attach and self.refusals.wants_probe(flight, self.lane_set):
            self._probe(flight, now)
        self.refusals.review_sizes(self.lane_set)

    def _probe(self, flight: Flight, now: int) -> None:
        """Pull without a hold, to find out whether small bodies pass while this push fails.

        Without a lane for the pull, give up another push that fails. This one stays: its failures count as proof.
        """
        attached = self.registration.attached
        assert attached is not None  # else no push is in flight
        lane = self.lane_set.idle(self.path.lanes.count)
        if lane is None and self.path.lanes.add():
            lane = self.lane_set.lanes[self.path.lanes.count - 1]
            self.tell_lanes()
        elif lane is None and (other := self.lane_set.least_failed_push(but=flight)) is not None:
            lane = self.lane_set.lanes[other.lane]
            self._abandon(other)
            self._give_up(lane)
        if lane is not None and lane.idle:
            self.start(lane, lane.start_pull(attached, 0, self.path.down.limit_bytes), now)

    def refuse(self, flight: Flight, request_id: int, status: int, outcome: Outcome, now: int) -> None:
        """Process a response that is neither ANSWER nor ATTACHED."""
        verdict = self.refusals.judge(flight, request_id, outcome, now, attaching=flight is self.attach)
        if verdict is Verdict.REPEAT:
            self.fail(flight, request_id, outcome.text, outcome.retry_after_us, now, explained=outcome.is_explained)
            return
        self.close(flight, request_id)
        if verdict in (Verdict.FATAL, Verdict.STALE, Verdict.UNKNOWN):
            self.end_generation(verdict, outcome, status)
        else:
            self._give_up(self.lane_set.lanes[flight.lane])

    # the ends of flights

    def close(self, flight: Flight, request_id: int) -> Attempt:
        """End the flight with this attempt and abandon its other attempts."""
        attempt = flight.take(request_id)
        del self.attempts[request_id]
        self._abandon(flight)
        return attempt

    def _abandon(self, flight: Flight) -> None:
        for attempt in flight.attempts:
            del self.attempts[attempt.request_id]
            self.events.append(Abandoned(attempt.request_id))
        flight.attempts = []

    def _give_up(self, lane: Lane) -> None:
        """Give up the lane's exchange. The relay may or may not have its batch (4.10), and may have sent packets."""
        lane.owes = True
        token = lane.give_up()
        if token is not None:
            self.events.append(BatchDone(token, ok=False))

    # answers

    def recover(self, flight: Flight | None = None, sent_us: int = -1) -> None:
        """Record a valid answer: the path works. `sent_us`: when the attempt left that was answered."""
        recovered = self.health.on_answered(flight, sent_us)
        if recovered is not None:
            self.events.append(recovered)

    def tell_lanes(self) -> None:
        """Report that the number of lanes, or the way in which packets come, may have changed."""
        self.events.append(LanesChanged(self.path.lanes.count, self.path.pulls.interval_us))

    # generations

    def accept_attached(self, flight: Flight, request_id: int, message: Attached, now: int) -> None:
        """Begin a generation with the relay's answer to ATTACH, unless it shows that this relay cannot serve."""
        problem = self.registration.accept(message, now, known_us=self.path.known_us)
        if problem:
            self.fail(flight, request_id, problem, 0, now)
            return
        attempt = self.close(flight, request_id)
        if message.version != VERSION:
            self.registration.attached = None  # AttachedEvent was not emitted, so Detached must not be either
            self._refuse_for_good(AttachRefused(0, 0, OTHER_VERSION.format(message.version, VERSION)))
            return
        if self.registration.meets_several_relays:
            self.registration.attached = None
            self._refuse_for_good(AttachRefused(0, 0, SEVERAL_RELAYS))
            return
        self.attach = None
        self.recover()
        self.path.on_passed(flight, attempt, now)
        self.path.on_timed(attempt, now)
        self.path.limit_to(message)
        self.lane_set.begin(self.path.lanes.most, self._config.packet_bytes_max, now)
        interval_us, both_ran_us = self.path.pulls.interval_us, self.registration.both_ran_us
        limits = (message.packet_bytes_max, message.initial_edge_bytes, interval_us, message.packets_max)
        self.events.append(AttachedEvent(message.epoch, self.registration.is_fresh, *limits, both_ran_us))
        self.tell_lanes()

    def attach_again(self, *, outbid: bool = False) -> None:
        """Give up all batches and attach under a higher generation.

        This is needed when the relay no longer knows the attachment, or a lane's numbers are used up. `outbid`: the
        relay knows a higher generation than ours.
        """
        self._end()
        if not self.registration.renew(outbid=outbid):
            self._refuse_for_good(AttachRefused(0, 0, "no generation is left: attach with another secret"))

    def end_generation(self, verdict: Verdict, outcome: Outcome, status: int) -> None:
        """End the generation as a response demands: for good, or to attach again."""
        if verdict is Verdict.FATAL:
            self._refuse_for_good(outcome.refuse(status))
        elif verdict in (Verdict.STALE, Verdict.UNKNOWN):
            self.attach_again(outbid=verdict is Verdict.STALE)

    def _end(self) -> None:
        """End all flights and give up their batches."""
        self.nothing_due_until_us = 0
        for request_id in self.streams.end():
            self.events.append(Abandoned(request_id))
        for flight in self.flights():
            self._abandon(flight)
        for lane in self.lane_set.lanes:
            self._give_up(lane)
        self.attach = None
        self.lane_set.end()
        if self.registration.attached is not None:
            self.events.append(Detached())

    def _refuse_for_good(self, refused: AttachRefused) -> None:
        self._end()
        self.registration.attached = None
        self.is_refused = True
        self.events.append(refused)
