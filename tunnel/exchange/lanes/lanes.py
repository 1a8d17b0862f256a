"""The endpoint's half of an attachment's lanes: it attaches, pushes, pulls, repeats and learns (sections 6 and 7).

After any call, the caller must collect in this order: `poll_request` until None, `poll_event` until None, then wait for
`next_timeout`. Push before collecting requests, so that batches get the idle lanes before pulls do. With
`LaneConfig.one_connection`, a repeat replaces the previous request of its lane, and the event `Abandoned` names that
request: close its connection before sending the repeat.

With `streams`, the relay may answer pulls with streams (7.20). If a request with `stream` then gets the status 200, the
caller passes each piece of the answer to `on_received`, and then calls `on_ended`. With any other status it calls
`on_answered` with the whole body, as for other requests.
"""

from random import Random

from tunnel.exchange.backoff import Question, Refusal
from tunnel.exchange.config import MILLISECOND_US, LaneConfig
from tunnel.exchange.events import BatchDone, LaneEvent, PacketsReceived, Request
from tunnel.exchange.flight import Attempt, Flight, most_due
from tunnel.exchange.lanes.exchanges import Exchanges
from tunnel.exchange.lanes.lane import Lane
from tunnel.exchange.lanes.responses import judge
from tunnel.exchange.lanes.streams import Streams
from tunnel.exchange.path.path_model import AnswerSeen
from tunnel.exchange.path.pulls import NEVER_US
from tunnel.wire import Answer, Attached, Buffer, Packet, encode_packets

__all__ = ["Lanes"]

# An exchange that takes longer than this and than 4 times the least round trip counts as waiting for its turn, as on a
# path that carries few requests at once. (Not 4 SRTT, which grows with such waits.)
_WAITS_US_MIN = 500 * MILLISECOND_US


class Lanes:
    """All lanes of one attachment. Errors of the path and the relay cause repeats and events, never exceptions.

    Its parts may be read: `registration` is the identity at the relay, `path` what was learned of the path, `health`
    its trouble, and `streams` the streamed answers, or None if all answers are complete.
    """

    def __init__(
        self,
        config: LaneConfig,
        secret: bytes,
        random: Random,
        *,
        endpoint_name: str = "",
        identity: bytes | None = None,
        streams: bool = False,
    ) -> None:
        exchanges = self._exchanges = Exchanges(config, secret, random, endpoint_name=endpoint_name, identity=identity)
        self.registration = exchanges.registration
        self.path = exchanges.path
        self.health = exchanges.health
        self.streams = Streams(config, exchanges, random) if streams else None
        self._refusals = exchanges.refusals
        self._set = exchanges.lane_set
        self._attempts = exchanges.attempts
        self.events = exchanges.events
        self._pace_us = 0  # `nothing_due_until_us` is void once this differs: requests for roads change the pauses, too

    # getters

    @property
    def is_attached(self) -> bool:
        """Whether the relay has answered the present ATTACH, and has not reported the attachment as unknown since."""
        return self.registration.attached is not None

    @property
    def lane_count(self) -> int:
        """The number of lanes in use."""
        return self.path.lanes.count

    @property
    def pull_interval_us(self) -> int:
        """The pull interval on which the relay settled. With 0, pulls are sent by the rules of 7.15."""
        return self.path.pulls.interval_us

    @property
    def is_narrow(self) -> bool:
        """Whether the path is known to carry only a few requests at once."""
        return not self.path.held.are_free

    @property
    def holds(self) -> bool:
        """Whether a pull that the relay may hold is in flight."""
        return any(flight.hold_us for flight in self._set.flights())

    def late_us(self, since_us: int) -> int:
        """Return when an exchange in flight counts as waiting for its turn. Time before `since_us` does not count."""
        began_us = min((flight.first_sent_us + flight.hold_us for flight in self._set.flights()), default=NEVER_US)
        return max(began_us, since_us) + max(_WAITS_US_MIN, 4 * self.path.round_trip.least_us)

    def room(self, now: int) -> int:
        """Return how many bytes of packets a push may carry now: 0 if no lane is free or the pace (7.18) forbids it."""
        if self._push_lane() is None or not self.path.allows(now):
            return 0
        return self.path.room_bytes

    # commands

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        """Send a batch. `BatchDone(token, ...)` follows exactly once.

        A batch of one packet may be larger than `room`; a batch of several may not. Raise ValueError if no lane is
        free, or if the batch is empty or too large.
        """
        lane, attached = self._push_lane(), self.registration.attached
        if lane is None or attached is None:
            raise ValueError("no lane is free: push only while room() is not 0")
        if not packets:
            raise ValueError("the batch is empty: push at least one packet")
        self._exchanges.nothing_due_until_us = 0
        buffers = encode_packets(packets)
        size = sum(map(len, buffers))
        if size > self.path.room_bytes:
            if len(packets) > 1:
                raise ValueError(f"a batch of {size} bytes does not fit the room of {self.path.room_bytes}")
            lane.cut(token, b"".join(buffers))
            self._start_piece(lane, attached, now)
        else:
            exchange = lane.start_push(attached, token, buffers, self.path.down.limit_bytes)
            self._exchanges.start(lane, exchange, now)

    def set_pulling(self, pulling: bool, now: int) -> None:
        """Set whether to send pulls. They are not needed while a link is in use. A pull in flight is not withdrawn."""
        self._exchanges.is_pulling = pulling
        self._exchanges.nothing_due_until_us = 0
        if not pulling and self.streams is not None:
            self.streams.drop(now)

    def set_holding(self, holding: bool) -> None:
        """Set whether pulls may be held. A pull in flight is not withdrawn."""
        if self.path.may_hold is not holding:
            self.path.may_hold = holding
            self.path.settle_interval(self.pull_interval_us)
            self._exchanges.nothing_due_until_us = 0

    def set_pull_interval(self, settled_us: int, *, wanted_us: int) -> None:
        """Use the interval on which the relay has settled (OPTION, 2.7), and ask for `wanted_us` in each ATTACH."""
        self._exchanges.nothing_due_until_us = 0
        self.registration.pull_interval_us = wanted_us
        self.path.settle_interval(settled_us)
        self._exchanges.tell_lanes()

    # what the carrier reports

    def on_answered(
        self, request_id: int, status: int, body: Buffer, retry_after_us: int, now: int, by: str = ""
    ) -> None:
        """Process a complete HTTP response. `body` is kept and must not change; `by` names the server, if it did so."""
        flight = self._attempts.get(request_id)
        if flight is None:
            return
        exchanges = self._exchanges
        exchanges.nothing_due_until_us = 0
        outcome = judge(status, body, retry_after_us, by)
        message = outcome.message
        if message is not None or outcome.code:  # the relay answered
            self.path.on_heard(flight.attempt(request_id).sent_us, now, is_late=flight.silent)
        if isinstance(message, Answer) and flight.answers(message) and not message.goes_on:
            self._accept(flight, exchanges.close(flight, request_id), message, len(body), now)
        elif isinstance(message, Attached) and flight is exchanges.attach:
            exchanges.accept_attached(flight, request_id, message, now)
            if self.streams is not None and self.is_attached:
                self.streams.on_attached(message, now)
        elif message is not None:
            exchanges.fail(flight, request_id, f"HTTP {status}: the body answers another request", 0, now)
        else:
            exchanges.refuse(flight, request_id, status, outcome, now)

    def on_received(self, request_id: int, piece: Buffer, now: int) -> None:
        """Process the next piece of the answer to a pull with `stream`. `piece` is kept without a copy."""
        whole = self.streams.on_received(request_id, piece, now) if self.streams is not None else None
        if whole is not None:
            self.on_answered(request_id, 200, whole, 0, now)

    def on_ended(self, request_id: int, now: int) -> None:
        """Process the end of an answer to a pull with `stream`."""
        whole = self.streams.on_ended(request_id, now) if self.streams is not None else None
        if whole is not None:
            self.on_answered(request_id, 200, whole, 0, now)

    def on_opened(self, request_id: int) -> None:
        """Record that a connection is open, which takes this request from now on."""
        flight = self._attempts.get(request_id)
        if flight is not None:
            flight.attempt(request_id).is_open = True

    def on_failed(self, request_id: int, now: int) -> None:
        """Record that the HTTP connection of a request could not be opened, was reset or was cut."""
        flight = self._attempts.get(request_id)
        if flight is not None:
            attempt = flight.attempt(request_id)
            self.path.backoff.on_refused(Refusal.CUT if attempt.is_open else Refusal.CLOSED, attempt.sent_us, now)
            self._exchanges.fail(flight, request_id, "the HTTP connection failed", 0, now)
        elif self.streams is not None:
            self.streams.on_failed(request_id, now)

    # time

    def handle_timeout(self, now: int) -> None:
        """Process deadlines that have passed. Early and late calls do no harm."""
        if self.streams is not None:
            self.streams.handle_timeout(now)
        for flight in self._exchanges.flights():
            self._exchanges.check_silence(flight, now)
        until_us = self._idle_until_us()
        while until_us is not None and until_us <= now:
            self.path.lanes.give_back()
            self._exchanges.tell_lanes()
            until_us = self._idle_until_us()

    def next_timeout(self) -> int | None:
        """Return the time at which the caller must call `handle_timeout` and `poll_request`; None: not needed."""
        exchanges, path = self._exchanges, self.path
        is_known = max(path.pace.next_us, path.backoff.next_us) == self._pace_us
        known_us = exchanges.nothing_due_until_us if is_known else 0
        due_us = (
            NEVER_US if exchanges.is_refused else known_us or self._due_us(0, path.next_us, exchanges.flights(), None)
        )
        return due_us if due_us < NEVER_US else None

    # polls

    def poll_request(self, now: int) -> Request | None:
        """Return the next request to send, or None."""
        exchanges, path = self._exchanges, self.path
        pace_us = max(path.pace.next_us, path.backoff.next_us)  # `next_us`, without a call
        if exchanges.is_refused or (now < exchanges.nothing_due_until_us and pace_us == self._pace_us):
            return None
        attached = self.registration.attached
        if attached is None and exchanges.attach is None and exchanges.attach_at_us <= now:
            exchanges.start_attach(now)
        if path.backoff.doubts_silence:
            for flight in exchanges.flights():
                exchanges.check_silence(flight, now)
            path.backoff.judge_silence(now)
            pace_us = path.next_us
        pull_us = None
        if attached is not None and now >= pace_us:
            pull_us = self._start_what_is_due(attached, now)
        while True:
            flights = exchanges.flights()
            due = most_due(flights, now, path.backoff.repeat_us, self._question)
            if due is None or not path.allows(now):
                break
            exchanges.check_silence(due, now)
            if due is exchanges.attach or self._set.lanes[due.lane].flight is due:
                return exchanges.send(due, now)
            pull_us, pace_us = None, path.next_us
        self._pace_us = path.next_us if due is not None else pace_us
        exchanges.nothing_due_until_us = self._due_us(now, self._pace_us, flights, pull_us)
        return None

    def _question(self) -> Question:
        return self.path.question

    def poll_event(self) -> LaneEvent | None:
        """Return the next event, or None."""
        return self.events.popleft() if self.events else None

    # what is due

    def _due_us(self, now: int, pace_us: int, flights: list[Flight], pull_us: int | None) -> int:
        """Return when something is due. `pull_us`: when the next pull is, if that is known."""
        exchanges, is_attached = self._exchanges, self.registration.attached is not None
        if not is_attached and exchanges.attach is None:
            return max(pace_us, exchanges.attach_at_us)
        repeat_us = self.path.backoff.repeat_us
        due_us = NEVER_US
        for flight in flights:
            flight_us = max(flight.next_us, repeat_us) if flight.silent else flight.next_us  # `due_us`, without a call
            if flight_us < due_us:
                due_us = flight_us
        if not is_attached:
            return max(pace_us, due_us)
        idle_us = self._idle_until_us()
        # No request leaves before the pace allows it; by then, the caller may also find room for a push.
        due_us = pace_us if now < pace_us else min(due_us, self._pull_due_us() if pull_us is None else pull_us)
        if self.streams is not None:
            due_us = min(due_us, self.streams.cut_us())
            if now >= pace_us:
                due_us = min(due_us, self.streams.due_us())
        return min(due_us, NEVER_US if idle_us is None else idle_us)

    def _idle_until_us(self) -> int | None:
        """Return when the highest lane is to be given back, or None.

        A lane with unconfirmed packets is kept until an exchange on it has confirmed them.
        """
        if not self._set.lanes:
            return None
        lane = self._set.lanes[self.path.lanes.count - 1]
        if lane.flight is not None or lane.owes or lane.is_cut or lane.streaming:
            return None
        return self.path.lanes.idle_until_us(lane.used_us)

    def _pull_due_us(self) -> int:
        lanes = self.path.lanes.count
        if not self._exchanges.is_pulling:
            return NEVER_US
        has_idle, pulls = self._set.has_idle_and_pulls(lanes)
        if not has_idle:
            return NEVER_US
        if self.streams is not None:
            if self.streams.is_streaming:
                return NEVER_US
            lanes -= self.streams.lane_count  # a push must still find a lane
        return self.path.pulls.due_us(pulls, lanes)

    # starting exchanges

    def _push_lane(self) -> Lane | None:
        """Return the lane for a push, or None. With several lanes, the last idle one may be kept for a pull."""
        count, most = self.path.lanes.count, self.path.lanes.most
        idle_count = self._set.idle_count(count)
        if not idle_count:
            return None
        # The last lane that is left is kept for pulls, because the size of a push is in doubt (7.16).
        if idle_count + most - count == 1 < most and self._refusals.doubts(self._set):
            return None
        if idle_count == 1:
            needs_pulls = self._exchanges.is_pulling and (self.streams is None or not self.streams.is_streaming)
            if needs_pulls and self.path.holding and not self._set.pulls_in_flight():
                return None
        return self._set.idle(count)

    def _start_what_is_due(self, attached: Attached, now: int) -> int | None:
        """Start them. Return when the next pull is due, if that is known."""
        for lane in self._set.lanes:
            if lane.is_cut and lane.flight is None:
                self._start_piece(lane, attached, now)
            elif lane.expects and lane.idle:
                self._start_pull(lane, attached, 0, now)
        while (pull_us := self._pull_due_us()) <= now:
            idle = self._set.idle(self.path.lanes.count)
            assert idle is not None  # else no pull is due
            hold_us = self._refusals.hold_us(self.path.pulls.on_started(self.path.hold.hold_us, now), self._set)
            self._start_pull(idle, attached, hold_us, now)
        if self.streams is None:
            return pull_us
        self.streams.start_what_is_due(attached, now)
        return None

    def _start_piece(self, lane: Lane, attached: Attached, now: int) -> None:
        exchange = lane.start_piece(attached, self.path.room_bytes, self.path.down.limit_bytes)
        self._exchanges.start(lane, exchange, now)

    def _start_pull(self, lane: Lane, attached: Attached, hold_us: int, now: int) -> None:
        self._exchanges.start(lane, lane.start_pull(attached, hold_us, self.path.down.limit_bytes), now)

    # answers

    def _accept(self, flight: Flight, attempt: Attempt, answer: Answer, body_bytes: int, now: int) -> None:
        if self.streams is not None:
            self.streams.on_accepted(flight, body_bytes, now)
        self._exchanges.recover(flight, attempt.sent_us)
        self.path.on_passed(flight, attempt, now)
        lane = self._set.lanes[flight.lane]
        held_pulls = self._set.held_pulls(attempt.sent_us, self.path.round_trip.least_us)
        data_bytes = len(answer.data)
        arrived = AnswerSeen(attempt, body_bytes, not data_bytes, answer.more, held_pulls)
        self._refusals.on_passed(flight, attempt, answer, data_bytes, self._set, now)
        if self.path.on_answered(flight, arrived, now):
            self._set.lanes[self.lane_count - 1].used_us = now
            self._exchanges.tell_lanes()
        packets, discarded = lane.accept(answer, now)
        token = lane.take_receipt()
        # The receipt goes first, since the packets that came may acknowledge those that this exchange carried.
        if token is not None:
            self.events.append(BatchDone(token, ok=True))
        if packets or discarded is not None:
            self.events.append(PacketsReceived(packets, discarded))
        repeat_us = now + self.path.round_trip.grace_us
        self._set.wait_for_queue(self.path.round_trip.queue_us(now))
        self._set.use_evidence(answer, repeat_us)
        self._set.hurry(attempt.sent_us, repeat_us)
        # A repeat that doubt_pulls or evidence caused is no reason to doubt: pulls would trigger each other forever.
        if attempt.repeat and flight.silent and not flight.repeats_early:
            self._set.doubt_pulls(attempt.sent_us, repeat_us)
        if lane.is_exhausted:
            self._exchanges.attach_again()
