"""The dialing half of an attachment's lanes: attach, push, pull, repeat, learn (sections 6 and 7).

Whatever was called, drain in this order: `poll_request` until None, `poll_event` until None, then wait for
`next_timeout`. Push before draining requests, so that batches find the idle lanes before pulls do. With
`one_connection` a repeat takes the place of its lane's request before, whose `Abandoned` follows: close the old
connection first.
"""

from collections import deque
from collections.abc import Iterator
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
    PacketsReceived,
    Request,
)
from tunnel.exchange.flight import Attempt, Flight, repeat_delay
from tunnel.exchange.health import Health
from tunnel.exchange.lane import Lane
from tunnel.exchange.laneset import LaneSet
from tunnel.exchange.path_model import AnswerSeen, PathModel
from tunnel.exchange.pulls import NEVER_US
from tunnel.exchange.registration import Registration
from tunnel.exchange.responses import Outcome, Verdict, judge
from tunnel.wire import VERSION, Answer, Attached, Buffer, Exchange, Packet, encode_packets

__all__ = ["Lanes"]


class Lanes:
    """All lanes of one attachment. Errors of the path and of the relay never raise: they become repeats and events."""

    def __init__(self, config: LaneConfig, secret: bytes, random: Random, *, endpoint_name: str = "") -> None:
        self._config = config
        self._random = random
        self._registration = Registration(secret, endpoint_name, config)
        self._path = PathModel(config)
        self.health = Health()
        self._attach: Flight | None = None
        self._attach_at_us = 0  # not earlier
        self._set = LaneSet(0, 0, 0)
        self._open: dict[int, Flight] = {}  # by request id
        self._next_id = 0
        self._events: deque[LaneEvent] = deque()
        self._refused = False
        self._pulling = True
        self._rest_until_us = 0  # nothing is due before, unless something changes it

    # getters

    @property
    def attached(self) -> bool:
        """Whether the relay knows us, as far as we know."""
        return self._registration.attached is not None

    @property
    def attachment_id(self) -> bytes:
        """What exchanges and links name us by (6.1)."""
        return self._registration.id

    @property
    def epoch(self) -> int:
        """Of the relay that we are attached to; 0 while we are not."""
        return self._registration.attached.epoch if self._registration.attached is not None else 0

    @property
    def generation(self) -> int:
        """The present one (6.2)."""
        return self._registration.generation

    @property
    def lane_count(self) -> int:
        """Lanes in use."""
        return self._path.lanes.count

    @property
    def pull_interval_us(self) -> int:
        """As settled with the relay; 0: pulls are held or follow each other."""
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
        """The longest hold that is asked for at present."""
        return self._path.hold.hold_us

    @property
    def srtt_us(self) -> int:
        """Smoothed time of exchanges that are answered at once; 0 before the first."""
        return self._path.round_trip.srtt_us

    def room(self, now: int) -> int:
        """Bytes of packets that a push may carry now; 0: not attached, or no lane is free."""
        return self._path.room_bytes if self._push_lane() is not None else 0

    # commands

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        """Send a batch; `BatchDone(token, ...)` follows once. One packet may be larger than the room, more may not."""
        lane, attached = self._push_lane(), self._registration.attached
        if lane is None or attached is None:
            raise ValueError("no lane is free: push only while room() is not 0")
        if not packets:
            raise ValueError("a batch has at least one packet")
        self._rest_until_us = 0
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
        """Whether to pull at all: not while a link carries what comes. A pull that is out stays out."""
        self._pulling = pulling
        self._rest_until_us = 0

    def set_pull_interval(self, interval_us: int) -> None:
        """The relay settled on another interval (OPTION, 2.7)."""
        self._rest_until_us = 0
        self._path.settle_interval(interval_us)
        self._tell_lanes()

    def attach_again(self, *, outbid: bool = False) -> None:
        """Give up all batches and attach under a higher generation: as when a link learns that the relay forgot us.
        `outbid`: the relay knows a higher one than ours."""
        self._end()
        if not self._registration.renew(outbid=outbid):
            self._refuse(AttachRefused(0, 0, "no generation is left: attach with another secret"))

    def answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, now: int) -> None:
        """A complete HTTP response came. `body` is kept by reference and must not change."""
        flight = self._open.get(request_id)
        if flight is None:
            return
        self._rest_until_us = 0
        outcome = judge(status, body, retry_after_us)
        message = outcome.message
        if isinstance(message, Answer) and flight.answers(message):
            self._accept(flight, self._close(flight, request_id), message, len(body), now)
        elif isinstance(message, Attached) and flight is self._attach:
            self._accept_attached(flight, request_id, message, now)
        elif message is not None:
            self._fail(flight, request_id, f"HTTP {status}: the answer to something else", 0, now)
        else:
            self._refused_once(flight, request_id, status, outcome, now)

    def failed(self, request_id: int, now: int) -> None:
        """The connection could not be made, was reset or cut."""
        flight = self._open.get(request_id)
        if flight is not None:
            self._fail(flight, request_id, "the connection failed", 0, now)

    def handle_timeout(self, now: int) -> None:
        """Time has passed. Early or late calls are harmless."""
        for flight in self._flights():
            self._check_silence(flight, now)
        until_us = self._idle_until_us()
        while until_us is not None and until_us <= now:
            self._path.lanes.give_back()
            self._tell_lanes()
            until_us = self._idle_until_us()

    # polls

    def poll_request(self, now: int) -> Request | None:
        """The next request to send, None when there is none."""
        if self._refused or now < self._rest_until_us:
            return None
        attached = self._registration.attached
        if attached is None and self._attach is None and self._attach_at_us <= now:
            self._attach = self._path.flight(self._registration.request(), now)
            self._attach_at_us = now + repeat_delay(SECOND_US, self._random)
        if attached is not None:
            self._start_what_is_due(attached, now)
        for flight in self._flights():
            if flight.next_us <= now:
                return self._send(flight, now)
        self._rest_until_us = self._due_us()
        return None

    def poll_event(self) -> LaneEvent | None:
        """The next event, None when there is none."""
        return self._events.popleft() if self._events else None

    def next_timeout(self) -> int | None:
        """When `handle_timeout` and `poll_request` have something to do without being told; None: never."""
        due_us = NEVER_US if self._refused else self._rest_until_us or self._due_us()
        return due_us if due_us < NEVER_US else None

    def _due_us(self) -> int:
        if not self.attached and self._attach is None:
            return self._attach_at_us
        due_us = min((flight.next_us for flight in self._flights()), default=NEVER_US)
        if not self.attached:
            return due_us
        idle_us = self._idle_until_us()
        return min(due_us, self._pull_due_us(), NEVER_US if idle_us is None else idle_us)

    # starting exchanges

    def _flights(self) -> Iterator[Flight]:
        if self._attach is not None:
            yield self._attach
        yield from self._set.flights()

    def _push_lane(self) -> Lane | None:
        """Where a push goes; with several lanes the last idle one is left to the pull that is always held."""
        reserved = self._pulling and self._path.holding and not self._set.pulls_out()
        if reserved and self._set.idle_count(self.lane_count) == 1:
            return None
        return self._set.idle(self.lane_count)

    def _pull_due_us(self) -> int:
        if not self._pulling or self._set.idle(self.lane_count) is None:
            return NEVER_US
        return self._path.pulls.due_us(self._set.pulls_out(), self.lane_count)

    def _start_what_is_due(self, attached: Attached, now: int) -> None:
        for lane in self._set.lanes:
            if lane.unsent:
                self._start_piece(lane, attached, now)
            elif lane.idle and lane.expects:
                self._start(lane, lane.start_pull(attached, 0, self._path.down.limit_bytes), now)
        while self._pull_due_us() <= now:
            idle = self._set.idle(self.lane_count)
            assert idle is not None  # else no pull is due
            hold_us = self._path.pulls.started(self._path.hold.hold_us, now)
            self._start(idle, idle.start_pull(attached, hold_us, self._path.down.limit_bytes), now)

    def _start_piece(self, lane: Lane, attached: Attached, now: int) -> None:
        self._start(lane, lane.start_piece(attached, self._path.room_bytes, self._path.down.limit_bytes), now)

    def _start(self, lane: Lane, exchange: Exchange, now: int) -> None:
        lane.flight = self._path.flight(exchange, now)

    def _send(self, flight: Flight, now: int) -> Request:
        self._check_silence(flight, now)
        self._next_id += 1
        request, evicted = flight.send(self._next_id, now, self._random)
        self._open[request.id] = flight
        if evicted is not None:
            del self._open[evicted]
            self._events.append(Abandoned(evicted))
        return request

    # failures

    def _check_silence(self, flight: Flight, now: int) -> None:
        if flight.check_silence(now):
            self._failed_once(flight, now)

    def _fail(self, flight: Flight, request_id: int, text: str, retry_after_us: int, now: int) -> None:
        """One attempt failed; its flight goes on."""
        self._rest_until_us = 0
        del self._open[request_id]
        flight.fail(request_id, text, retry_after_us, now)
        self._failed_once(flight, now)

    def _failed_once(self, flight: Flight, now: int) -> None:
        self._path.lanes.failed(now)
        troubled = self.health.failed(flight, now)
        if troubled is not None:
            self._events.append(troubled)

    def _refused_once(self, flight: Flight, request_id: int, status: int, outcome: Outcome, now: int) -> None:
        """A response that is neither ANSWER nor ATTACHED."""
        verdict = outcome.verdict
        if verdict is Verdict.FATAL:
            self._close(flight, request_id)
            self._refuse(AttachRefused(status, outcome.code, outcome.text))
        elif verdict is Verdict.STALE or (verdict is Verdict.UNKNOWN and flight is not self._attach):
            self._close(flight, request_id)
            self.attach_again(outbid=verdict is Verdict.STALE)
        elif verdict is Verdict.TOO_LARGE and self._shrinks(flight, now):
            self._close(flight, request_id)
            self._give_up(self._set.lanes[flight.lane])
        else:
            self._fail(flight, request_id, outcome.text, outcome.retry_after_us, now)

    def _shrinks(self, flight: Flight, now: int) -> bool:
        return flight is not self._attach and not flight.pull and self._path.up.refused(flight.body_bytes, now)

    def _close(self, flight: Flight, request_id: int) -> Attempt:
        """The flight ends with this attempt; the others are abandoned."""
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
        """Its batch may be at the relay or not (4.10); what the relay answered is unknown, too."""
        lane.owes = True
        token = lane.give_up()
        if token is not None:
            self._events.append(BatchDone(token, ok=False))

    # answers

    def _accept(self, flight: Flight, attempt: Attempt, answer: Answer, body_bytes: int, now: int) -> None:
        self._heard()
        lane = self._set.lanes[flight.lane]
        arrived = AnswerSeen(attempt, body_bytes, not len(answer.data), answer.more)
        if self._path.answered(flight, arrived, now):
            self._set.lanes[self.lane_count - 1].used_us = now
            self._tell_lanes()
        packets, discarded = lane.accept(answer, now)
        token = lane.receipt()
        # The receipt goes first: what came may acknowledge what it carried.
        if token is not None:
            self._events.append(BatchDone(token, ok=True))
        if packets or discarded is not None:
            self._events.append(PacketsReceived(packets, discarded))
        repeat_us = now + self._path.round_trip.grace_us
        self._set.use_evidence(answer, repeat_us)
        # Not after a repeat that was itself due to doubt: pulls would cast it on each other for ever.
        if attempt.repeat and flight.silent and not flight.proven:
            self._set.doubt_pulls(attempt.sent_us, repeat_us)
        if lane.exhausted:
            self.attach_again()

    def _heard(self) -> None:
        recovered = self.health.answered()
        if recovered is not None:
            self._events.append(recovered)

    def _idle_until_us(self) -> int | None:
        """When the highest lane is to be given back. Not while its packets wait for confirmation: pulls see to that."""
        if not self._set.lanes:
            return None
        lane = self._set.lanes[self.lane_count - 1]
        return self._path.lanes.idle_until_us(lane.used_us) if lane.idle and not lane.owes else None

    def _tell_lanes(self) -> None:
        self._events.append(LanesChanged(self.lane_count, self.pull_interval_us))

    # attaching

    def _accept_attached(self, flight: Flight, request_id: int, message: Attached, now: int) -> None:
        problem = self._registration.accept(message)
        if problem:
            self._fail(flight, request_id, problem, 0, now)
            return
        attempt = self._close(flight, request_id)
        if message.version != VERSION:
            self._registration.attached = None  # nobody was told of it: no Detached
            self._refuse(AttachRefused(0, 0, f"the relay chose version {message.version}, which we do not speak"))
            return
        self._attach = None
        self._heard()
        self._path.round_trip.sample(now - attempt.sent_us, now)
        self._path.bound(message)
        self._set = LaneSet(self._path.lanes.most, self._config.packet_bytes_max, now)
        limits = (message.packet_bytes_max, message.initial_edge_bytes, self.pull_interval_us)
        self._events.append(AttachedEvent(message.epoch, self._registration.is_fresh, *limits))
        self._tell_lanes()

    def _end(self) -> None:
        """All flights end, and their batches are given up."""
        self._rest_until_us = 0
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
