"""The endpoint's half of an attachment's lanes: it attaches, pushes, pulls, repeats and learns (sections 6 and 7).

After any call, the caller must collect in this order: `poll_request` until None, `poll_event` until None, then wait for
`next_timeout`. Push before collecting requests, so that batches get the idle lanes before pulls do. With
`LaneConfig.one_connection`, a repeat replaces the previous request of its lane, and the event `Abandoned` names that
request: close its connection before sending the repeat.
"""

from collections import deque
from collections.abc import Iterator
from random import Random

from tunnel.exchange.backoff import Refusal
from tunnel.exchange.config import MILLISECOND_US, SECOND_US, LaneConfig
from tunnel.exchange.events import (
    Abandoned,
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    PacketsReceived,
    Request,
)
from tunnel.exchange.flight import Attempt, Flight, most_due, repeat_delay
from tunnel.exchange.health import Health
from tunnel.exchange.lane import Lane
from tunnel.exchange.laneset import LaneSet
from tunnel.exchange.path_model import AnswerSeen, PathModel
from tunnel.exchange.pulls import NEVER_US
from tunnel.exchange.refusals import Refusals
from tunnel.exchange.registration import OTHER_VERSION, SEVERAL_RELAYS, Registration
from tunnel.exchange.responses import Outcome, Verdict, judge
from tunnel.wire import VERSION, Answer, Attached, Buffer, Exchange, Packet, encode_packets

__all__ = ["Lanes"]

# An exchange that takes longer than this and than 4 times the least round trip counts as waiting for its turn, as on a
# path that carries few requests at once. (Not 4 SRTT, which grows with such waits.)
_WAITS_US_MIN = 500 * MILLISECOND_US


class Lanes:
    """All lanes of one attachment. Errors of the path and the relay cause repeats and events, never exceptions."""

    def __init__(
        self,
        config: LaneConfig,
        secret: bytes,
        random: Random,
        *,
        endpoint_name: str = "",
        identity: bytes | None = None,
    ) -> None:
        self._config = config
        self._random = random
        self._registration = Registration(secret, endpoint_name, config, identity=identity)
        self._path = PathModel(config, random)
        self.backoff = self._path.backoff  # of all requests to the relay
        self._refusals = Refusals(config, self._path, self._registration)
        self.health = Health()
        self._attach: Flight | None = None
        self._attach_at_us = 0  # the next ATTACH leaves no earlier
        self._set = LaneSet(0, 0, 0)
        self._open: dict[int, Flight] = {}  # by request id
        self._next_id = 0
        self._events: deque[LaneEvent] = deque()
        self._refused = False
        self._pulling = True
        self._nothing_due_until_us = 0  # nothing is due before this time, unless a call resets it to 0

    # getters

    @property
    def attached(self) -> bool:
        """Whether the relay has answered the present ATTACH, and has not reported the attachment as unknown since."""
        return self._registration.attached is not None

    @property
    def attachment_id(self) -> bytes:
        """The attachment id that exchanges and links carry (6.1)."""
        return self._registration.id

    @property
    def epoch(self) -> int:
        """The epoch of the relay; 0 while not attached."""
        return self._registration.attached.epoch if self._registration.attached is not None else 0

    @property
    def generation(self) -> int:
        """The present generation (6.2)."""
        return self._registration.generation

    @property
    def lane_count(self) -> int:
        """The number of lanes in use."""
        return self._path.lanes.count

    @property
    def pull_interval_us(self) -> int:
        """The pull interval on which the relay settled. With 0, pulls are sent by the rules of 7.15."""
        return self._path.pulls.interval_us

    @property
    def body_bytes(self) -> int:
        """The present limit of a request body."""
        return self._path.up.limit_bytes

    @property
    def answer_bytes(self) -> int:
        """The present limit of a response body."""
        return self._path.down.limit_bytes

    @property
    def hold_us(self) -> int:
        """The longest hold that a pull asks for at present."""
        return self._path.hold.hold_us

    @property
    def srtt_us(self) -> int:
        """The smoothed time of exchanges that are answered at once; 0 before the first one."""
        return self._path.round_trip.srtt_us

    @property
    def is_narrow(self) -> bool:
        """Whether the path is known to carry only a few requests at once."""
        return not self._path.held.are_free

    @property
    def holds(self) -> bool:
        """Whether a pull that the relay may hold is in flight."""
        return any(flight.hold_us for flight in self._set.flights())

    def late_us(self, since_us: int) -> int:
        """Return when an exchange in flight counts as waiting for its turn. Time before `since_us` does not count."""
        began_us = min((flight.first_sent_us + flight.hold_us for flight in self._set.flights()), default=NEVER_US)
        return max(began_us, since_us) + max(_WAITS_US_MIN, 4 * self._path.round_trip.least_us)

    def room(self, now: int) -> int:
        """Return how many bytes of packets a push may carry now: 0 if no lane is free or the pace (7.18) forbids it."""
        if self._push_lane() is None or not self._path.allows(now):
            return 0
        return self._path.room_bytes

    # commands

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        """Send a batch. `BatchDone(token, ...)` follows exactly once.

        A batch of one packet may be larger than `room`; a batch of several may not. Raise ValueError if no lane is
        free, or if the batch is empty or too large.
        """
        lane, attached = self._push_lane(), self._registration.attached
        if lane is None or attached is None:
            raise ValueError("no lane is free: push only while room() is not 0")
        if not packets:
            raise ValueError("the batch is empty: push at least one packet")
        self._nothing_due_until_us = 0
        buffers = encode_packets(packets)
        size = sum(map(len, buffers))
        if size > self._path.room_bytes:
            if len(packets) > 1:
                raise ValueError(f"a batch of {size} bytes does not fit the room of {self._path.room_bytes}")
            lane.cut(token, b"".join(buffers))
            self._start_piece(lane, attached, now)
        else:
            self._start(lane, lane.start_push(attached, token, buffers, self._path.down.limit_bytes), now)

    def set_pulling(self, pulling: bool) -> None:
        """Set whether to send pulls. They are not needed while a link is in use. A pull in flight is not withdrawn."""
        self._pulling = pulling
        self._nothing_due_until_us = 0

    def set_holding(self, holding: bool) -> None:
        """Set whether pulls may be held. A pull in flight is not withdrawn."""
        if self._path.may_hold is not holding:
            self._path.may_hold = holding
            self._path.settle_interval(self.pull_interval_us)
            self._nothing_due_until_us = 0

    def set_pull_interval(self, settled_us: int, *, wanted_us: int) -> None:
        """Use the interval on which the relay has settled (OPTION, 2.7), and ask for `wanted_us` in each ATTACH."""
        self._nothing_due_until_us = 0
        self._registration.pull_interval_us = wanted_us
        self._path.settle_interval(settled_us)
        self._tell_lanes()

    def attach_again(self, *, outbid: bool = False) -> None:
        """Give up all batches and attach under a higher generation.

        The lanes do this when the relay no longer knows the attachment, or a lane's numbers are used up. `outbid`: the
        relay knows a higher generation than ours.
        """
        self._end()
        if not self._registration.renew(outbid=outbid):
            self._refuse(AttachRefused(0, 0, "no generation is left: attach with another secret"))

    def answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, now: int, by: str = "") -> None:
        """Process a complete HTTP response. `body` is kept and must not change; `by` names the server, if it did so."""
        flight = self._open.get(request_id)
        if flight is None:
            return
        self._nothing_due_until_us = 0
        outcome = judge(status, body, retry_after_us, by)
        message = outcome.message
        if message is not None or outcome.code:  # the relay answered
            self._path.heard(flight.attempt(request_id).sent_us)
        if isinstance(message, Answer) and flight.answers(message) and not message.goes_on:
            self._accept(flight, self._close(flight, request_id), message, len(body), now)
        elif isinstance(message, Attached) and flight is self._attach:
            self._accept_attached(flight, request_id, message, now)
        elif message is not None:
            self._fail(flight, request_id, f"HTTP {status}: the body answers another request", 0, now)
        else:
            self._refused_once(flight, request_id, status, outcome, now)

    def failed(self, request_id: int, now: int) -> None:
        """Record that the HTTP connection of a request could not be opened, was reset or was cut."""
        flight = self._open.get(request_id)
        if flight is not None:
            self.backoff.refused(Refusal.CLOSED, flight.attempt(request_id).sent_us, now)
            self._fail(flight, request_id, "the HTTP connection failed", 0, now)

    def handle_timeout(self, now: int) -> None:
        """Process deadlines that have passed. Early and late calls do no harm."""
        for flight in self._flights():
            self._check_silence(flight, now)
        until_us = self._idle_until_us()
        while until_us is not None and until_us <= now:
            self._path.lanes.give_back()
            self._tell_lanes()
            until_us = self._idle_until_us()

    # polls

    def poll_request(self, now: int) -> Request | None:
        """Return the next request to send, or None."""
        if self._refused or now < self._nothing_due_until_us:
            return None
        attached = self._registration.attached
        if attached is None and self._attach is None and self._attach_at_us <= now:
            self._attach = self._path.flight(self._registration.request(), now)
            self._attach_at_us = now + repeat_delay(SECOND_US, self._random)
        if attached is not None and now >= self._path.next_us:
            self._start_what_is_due(attached, now)
        while (due := most_due(self._flights(), now, self.backoff.repeat_us, self._path.question)) is not None:
            if not self._path.allows(now):
                break
            self._check_silence(due, now)
            if due is self._attach or self._set.lanes[due.lane].flight is due:
                return self._send(due, now)
        self._nothing_due_until_us = self._due_us(now)
        return None

    def poll_event(self) -> LaneEvent | None:
        """Return the next event, or None."""
        return self._events.popleft() if self._events else None

    def next_timeout(self) -> int | None:
        """Return the time at which the caller must call `handle_timeout` and `poll_request`; None: not needed."""
        due_us = NEVER_US if self._refused else self._nothing_due_until_us or self._due_us(0)
        return due_us if due_us < NEVER_US else None

    def _due_us(self, now: int) -> int:
        pace_us = self._path.next_us
        if not self.attached and self._attach is None:
            return max(pace_us, self._attach_at_us)
        due_us = min((flight.due_us(self.backoff.repeat_us) for flight in self._flights()), default=NEVER_US)
        if not self.attached:
            return max(pace_us, due_us)
        idle_us = self._idle_until_us()
        # No request leaves before the pace allows it; by then, the caller may also find room for a push.
        due_us = pace_us if now < pace_us else min(due_us, self._pull_due_us())
        return min(due_us, NEVER_US if idle_us is None else idle_us)

    # starting exchanges

    def _flights(self) -> Iterator[Flight]:
        if self._attach is not None:
            yield self._attach
        yield from self._set.flights()

    def _push_lane(self) -> Lane | None:
        """Return the lane for a push, or None. With several lanes, the last idle one may be kept for a pull."""
        if self._keeps_lane():
            return None
        reserved = self._pulling and self._path.holding and not self._set.pulls_in_flight()
        if reserved and self._set.idle_count(self.lane_count) == 1:
            return None
        return self._set.idle(self.lane_count)

    def _keeps_lane(self) -> bool:
        """Whether the last lane that is left is kept for pulls, because the size of a push is in doubt (7.16)."""
        left = self._set.idle_count(self.lane_count) + self._path.lanes.most - self.lane_count
        return left == 1 < self._path.lanes.most and self._refusals.doubts(self._set)

    def _pull_due_us(self) -> int:
        if not self._pulling or self._set.idle(self.lane_count) is None:
            return NEVER_US
        return self._path.pulls.due_us(self._set.pulls_in_flight(), self.lane_count)

    def _start_what_is_due(self, attached: Attached, now: int) -> None:
        for lane in self._set.lanes:
            if lane.unsent:
                self._start_piece(lane, attached, now)
            elif lane.idle and lane.expects:
                self._start(lane, lane.start_pull(attached, 0, self._path.down.limit_bytes), now)
        while self._pull_due_us() <= now:
            idle = self._set.idle(self.lane_count)
            assert idle is not None  # else no pull is due
            hold_us = self._refusals.hold_us(self._path.pulls.started(self._path.hold.hold_us, now), self._set)
            self._start(idle, idle.start_pull(attached, hold_us, self._path.down.limit_bytes), now)

    def _start_piece(self, lane: Lane, attached: Attached, now: int) -> None:
        self._start(lane, lane.start_piece(attached, self._path.room_bytes, self._path.down.limit_bytes), now)

    def _start(self, lane: Lane, exchange: Exchange, now: int) -> None:
        lane.flight = self._path.flight(exchange, now)

    def _send(self, flight: Flight, now: int) -> Request:
        self._next_id += 1
        request, evicted = flight.send(self._next_id, now, self._random, self._refusals.prepare(flight))
        self._open[request.id] = flight
        self._path.sent(now, in_silence=flight.silent and sum(other.silent for other in self._flights()) > 1)
        if evicted is not None:
            del self._open[evicted]
            self._events.append(Abandoned(evicted))
        return request

    # failures

    def _check_silence(self, flight: Flight, now: int) -> None:
        if flight.check_silence(now):
            self._failed_once(flight, now)

    def _fail(
        self, flight: Flight, request_id: int, text: str, retry_after_us: int, now: int, *, explained: bool = False
    ) -> None:
        """Record that one attempt failed. Its flight goes on, unless its body is too large."""
        self._nothing_due_until_us = 0
        del self._open[request_id]
        flight.fail(request_id, text, retry_after_us, now, explained=explained)
        self._failed_once(flight, now)

    def _failed_once(self, flight: Flight, now: int) -> None:
        self._path.lanes.failed(now)
        troubled = self.health.failed(flight, now)
        if troubled is not None:
            self._events.append(troubled)
        if self._refusals.is_too_large(flight, now):
            self._abandon(flight)
            self._give_up(self._set.lanes[flight.lane])
        elif flight is not self._attach and self._refusals.wants_probe(flight, self._set):
            self._probe(flight, now)

    def _probe(self, flight: Flight, now: int) -> None:
        """Pull without a hold, to find out whether small bodies pass while this push fails.

        Without a lane for the pull, give up another push that fails. This one stays: its failures count as proof.
        """
        attached = self._registration.attached
        assert attached is not None  # else no push is in flight
        lane = self._set.idle(self.lane_count)
        if lane is None and self._path.lanes.add():
            lane = self._set.lanes[self.lane_count - 1]
            self._tell_lanes()
        elif lane is None and (other := self._set.least_failed_push(but=flight)) is not None:
            lane = self._set.lanes[other.lane]
            self._abandon(other)
            self._give_up(lane)
        if lane is not None and lane.idle:
            self._start(lane, lane.start_pull(attached, 0, self._path.down.limit_bytes), now)

    def _refused_once(self, flight: Flight, request_id: int, status: int, outcome: Outcome, now: int) -> None:
        """Process a response that is neither ANSWER nor ATTACHED."""
        verdict = self._refusals.judge(flight, request_id, outcome, now, attaching=flight is self._attach)
        if verdict is Verdict.REPEAT:
            self._fail(flight, request_id, outcome.text, outcome.retry_after_us, now, explained=outcome.is_explained)
            return
        self._close(flight, request_id)
        if verdict is Verdict.FATAL:
            self._refuse(outcome.refused(status))
        elif verdict in (Verdict.STALE, Verdict.UNKNOWN):
            self.attach_again(outbid=verdict is Verdict.STALE)
        else:
            self._give_up(self._set.lanes[flight.lane])

    def _close(self, flight: Flight, request_id: int) -> Attempt:
        """End the flight with this attempt and abandon its other attempts."""
        attempt = flight.take(request_id)
        del self._open[request_id]
        self._abandon(flight)
        return attempt

    def _abandon(self, flight: Flight) -> None:
        for attempt in flight.attempts:
            del self._open[attempt.request_id]
            self._events.append(Abandoned(attempt.request_id))
        flight.attempts = []

    def _give_up(self, lane: Lane) -> None:
        """Give up the lane's exchange. The relay may or may not have its batch (4.10), and may have sent packets."""
        lane.owes = True
        token = lane.give_up()
        if token is not None:
            self._events.append(BatchDone(token, ok=False))

    # answers

    def _accept(self, flight: Flight, attempt: Attempt, answer: Answer, body_bytes: int, now: int) -> None:
        self._heard(flight, attempt.sent_us)
        self._path.passed(flight, attempt, now)
        lane = self._set.lanes[flight.lane]
        held_pulls = self._set.held_pulls(attempt.sent_us, self._path.round_trip.least_us)
        arrived = AnswerSeen(attempt, body_bytes, not len(answer.data), answer.more, held_pulls)
        self._refusals.passed(flight, attempt, answer, self._set, now)
        if self._path.answered(flight, arrived, now):
            self._set.lanes[self.lane_count - 1].used_us = now
            self._tell_lanes()
        packets, discarded = lane.accept(answer, now)
        token = lane.receipt()
        # The receipt goes first, since the packets that came may acknowledge those that this exchange carried.
        if token is not None:
            self._events.append(BatchDone(token, ok=True))
        if packets or discarded is not None:
            self._events.append(PacketsReceived(packets, discarded))
        repeat_us = now + self._path.round_trip.grace_us
        self._set.use_evidence(answer, repeat_us)
        self._set.hurry(attempt.sent_us, repeat_us)
        # A repeat that doubt_pulls or evidence caused is no reason to doubt: pulls would trigger each other forever.
        if attempt.repeat and flight.silent and not flight.repeats_early:
            self._set.doubt_pulls(attempt.sent_us, repeat_us)
        if lane.exhausted:
            self.attach_again()

    def _heard(self, flight: Flight | None = None, sent_us: int = -1) -> None:
        recovered = self.health.answered(flight, sent_us)
        if recovered is not None:
            self._events.append(recovered)

    def _idle_until_us(self) -> int | None:
        """Return when the highest lane is to be given back, or None.

        A lane with unconfirmed packets is kept until an exchange on it has confirmed them.
        """
        if not self._set.lanes:
            return None
        lane = self._set.lanes[self.lane_count - 1]
        return self._path.lanes.idle_until_us(lane.used_us) if lane.idle and not lane.owes else None

    def _tell_lanes(self) -> None:
        self._events.append(LanesChanged(self.lane_count, self.pull_interval_us))

    # attaching

    def _accept_attached(self, flight: Flight, request_id: int, message: Attached, now: int) -> None:
        problem = self._registration.accept(message, now, known_us=self._path.known_us)
        if problem:
            self._fail(flight, request_id, problem, 0, now)
            return
        attempt = self._close(flight, request_id)
        if message.version != VERSION:
            self._registration.attached = None  # AttachedEvent was not emitted, so Detached must not be either
            self._refuse(AttachRefused(0, 0, OTHER_VERSION.format(message.version, VERSION)))
            return
        if self._registration.meets_several_relays:
            self._registration.attached = None
            self._refuse(AttachRefused(0, 0, SEVERAL_RELAYS))
            return
        self._attach = None
        self._heard()
        self._path.passed(flight, attempt, now)
        self._path.round_trip.sample(now - attempt.sent_us, now)
        self._path.limit_to(message)
        self._set = LaneSet(self._path.lanes.most, self._config.packet_bytes_max, now)
        limits = (message.packet_bytes_max, message.initial_edge_bytes, self.pull_interval_us, message.packets_max)
        both_ran_us = self._registration.both_ran_us
        self._events.append(AttachedEvent(message.epoch, self._registration.is_fresh, *limits, both_ran_us))
        self._tell_lanes()

    def _end(self) -> None:
        """End all flights and give up their batches."""
        self._nothing_due_until_us = 0
        for flight in self._flights():
            self._abandon(flight)
        for lane in self._set.lanes:
            self._give_up(lane)
        self._attach = None
        self._set = LaneSet(0, 0, 0)
        if self.attached:
            self._events.append(Detached())

    def _refuse(self, refused: AttachRefused) -> None:
        self._end()
        self._registration.attached = None
        self._refused = True
        self._events.append(refused)
