"""The lanes of an endpoint that also lets the relay answer pulls with streams (PROTOCOL 7.20).

While a stream is proven, no ordinary pull is due: all packets from the relay come on it. Everything else is as without
streams. If a request with `stream` gets the status 200, the caller passes each piece of the answer to `received`, and
then calls `ended`. With any other status it calls `answered` with the whole body, as for other requests.
"""

from random import Random

from tunnel.exchange.config import KIB, MIB, SECOND_US, LaneConfig
from tunnel.exchange.envelope_stream import EnvelopeStream
from tunnel.exchange.events import Abandoned, PacketsReceived
from tunnel.exchange.flight import Attempt, Flight
from tunnel.exchange.incoming_stream import IncomingStream
from tunnel.exchange.lane import Lane
from tunnel.exchange.lanes import Lanes
from tunnel.exchange.pacing import HoldLimit
from tunnel.exchange.pulls import NEVER_US, PullMode
from tunnel.exchange.responses import Verdict, judge
from tunnel.exchange.slow_road import Carried
from tunnel.exchange.stream_road import RoadEvent, RoadState, StreamRoad
from tunnel.wire import Answer, Attached, Buffer, Exchange, StatusCode, decode_envelope, parse_packets

__all__ = ["StreamingLanes"]

_STREAM_BYTES = 64 * MIB  # largest streamed answer; the next stream takes over without a pause
_ENVELOPE_SLACK_BYTES = 64 * KIB  # for header and evidence
_LANES_MIN = 3  # a stream is tried beside a pull, and a push must still find a lane
_LANES_BUSY = 5  # the stream's own, and enough for confirmations to leave often on a long path
_STREAMS_MAX = 2  # an older one stays open until a newer one is proven
_SPREAD_US = 2 * SECOND_US  # endpoints try again spread over this time after their relay has returned


class StreamingLanes(Lanes):
    """Lanes with streamed answers."""

    def __init__(
        self,
        config: LaneConfig,
        secret: bytes,
        random: Random,
        *,
        endpoint_name: str = "",
        identity: bytes | None = None,
    ) -> None:
        super().__init__(config, secret, random, endpoint_name=endpoint_name, identity=identity)
        self._path.confirms_streams()
        self.carried = Carried()
        self._road = StreamRoad(config.stream_after_us)
        self._may_stream = True
        self._age = HoldLimit(config.stream_us, config.hold_us_min)
        self._envelope_bytes = max(config.packet_bytes_max, config.answer_bytes_max) + _ENVELOPE_SLACK_BYTES
        self._now = 0
        self._streams: dict[int, IncomingStream] = {}  # open ones by request id, the newest at the end
        self._unheard: list[IncomingStream] = []  # open streams, and ended ones until the relay has heard what came

    # getters

    @property
    def road(self) -> RoadState:
        """The state of the road: whether streams pass on this path."""
        return self._road.state

    @property
    def is_streaming(self) -> bool:
        """Whether packets from the relay come on a stream."""
        return any(stream.is_proven for stream in self._streams.values())

    @property
    def is_settled(self) -> bool:
        """Whether a first try of a stream is over, or none will be made."""
        if self.is_streaming or self._road.state is RoadState.RESTING:
            return True
        attached = self._registration.attached
        return attached is not None and (not attached.streams or self._path.lanes.most < _LANES_MIN)

    def receipted(self, sent_us: int) -> None:
        """Record that the relay has sent the receipt of a batch that left on a link at `sent_us`."""
        self._path.known_us = max(self._path.known_us, sent_us)

    def awaits(self, request_id: int) -> bool:
        """Return whether anything more is expected of the answer to this request."""
        return request_id in self._streams or request_id in self._open

    # commands

    def set_pulling(self, pulling: bool) -> None:
        super().set_pulling(pulling)
        if not pulling:
            self._drop_streams()

    def set_streaming(self, may_stream: bool) -> None:
        """Set whether streams may be used."""
        if self._may_stream is not may_stream:
            self._may_stream = may_stream
            self._nothing_due_until_us = 0
            if not may_stream:
                self._drop_streams()

    def received(self, request_id: int, piece: Buffer, now: int) -> None:
        """Process the next piece of the answer to a pull with `stream`. `piece` is kept without a copy."""
        self._nothing_due_until_us = 0
        self._now = now
        stream = self._streams.get(request_id)
        flight = self._open.get(request_id)
        if stream is not None:
            self._go_on(stream, stream.feed(piece, now), now)
        elif flight is not None and flight.stream:
            attempt = flight.attempt(request_id)
            if attempt.body is None:
                attempt.body = EnvelopeStream(self._envelope_bytes)
            whole = attempt.body.feed(piece)
            if whole:
                self._begin(flight, attempt, attempt.body, whole, now)

    def ended(self, request_id: int, now: int) -> None:
        """Process the end of an answer to a pull with `stream`. The last envelope shows whether anything is missing."""
        stream = self._streams.get(request_id)
        flight = self._open.get(request_id)
        if stream is not None:
            self._cut(stream, now)
        elif flight is not None:
            body = flight.attempt(request_id).body
            self.answered(request_id, 200, b"" if body is None else body.rest, 0, now)

    def answered(self, request_id: int, status: int, body: Buffer, retry_after_us: int, now: int, by: str = "") -> None:
        self._now = now
        super().answered(request_id, status, body, retry_after_us, now, by)

    def failed(self, request_id: int, now: int) -> None:
        self._now = now
        stream = self._streams.get(request_id)
        if stream is not None:
            self._cut(stream, now, is_closed=True)
        else:
            super().failed(request_id, now)

    def handle_timeout(self, now: int) -> None:
        self._now = now
        for stream in list(self._streams.values()):
            if stream.cut_us(self._path.round_trip.srtt_us) <= now:
                self._cut(stream, now)
        super().handle_timeout(now)

    # starting exchanges

    def _due_us(self, now: int) -> int:
        due_us = super()._due_us(now)
        for stream in self._streams.values():
            due_us = min(due_us, stream.cut_us(self._path.round_trip.srtt_us))
        if now < self._path.next_us:
            return due_us
        return min(due_us, self._stream_due_us(), self._confirmation_due_us())

    def _pull_due_us(self) -> int:
        if self.is_streaming or not self._pulling or self._set.idle(self.lane_count) is None:
            return NEVER_US
        asked = sum(flight.stream for flight in self._set.flights())
        lanes = self.lane_count - asked - len(self._streams)  # a push must still find a lane
        return self._path.pulls.due_us(self._set.pulls_in_flight(), lanes)

    def _push_lane(self) -> Lane | None:
        if self.is_streaming and not self._keeps_lane():
            return self._set.idle(self.lane_count)
        return super()._push_lane()

    def _start_what_is_due(self, attached: Attached, now: int) -> None:
        super()._start_what_is_due(attached, now)
        if self._stream_due_us() <= now:
            self._ask_for_stream(attached, now)
        owed = self._first_owed()
        if owed is not None and owed.is_urgent(now) and self._set.idle_count(self.lane_count) < 2:
            self._add_lane(_LANES_BUSY, now)
        while self._confirmation_due_us() <= now:
            stream = self._first_owed()
            lane = self._confirming_lane(stream) if stream is not None else None
            assert lane is not None  # else no confirmation is due
            self._start(lane, lane.start_empty(attached, self._path.down.limit_bytes), now)

    def _start(self, lane: Lane, exchange: Exchange, now: int) -> None:
        for own in self._unheard:
            if own.lane is lane:
                own.said()  # the field `serial_received` of this request is the confirmation
        stream = self._first_owed() or next((stream for stream in self._unheard if stream.unheard), None)
        if stream is not None and stream.lane is not lane:
            exchange.confirms = stream.lane.index, stream.said()
        super()._start(lane, exchange, now)

    def _ask_for_stream(self, attached: Attached, now: int) -> None:
        if self._set.idle_count(self.lane_count) < 2:
            self._add_lane(self._path.lanes.most, now)
        lane = self._set.idle(self.lane_count)
        assert lane is not None  # else no stream is due
        self._road.happened(RoadEvent.TRIED, now)
        self._start(lane, lane.start_stream(attached, self._age.hold_us, _STREAM_BYTES), now)

    def _add_lane(self, most: int, now: int) -> None:
        if self.lane_count < most and self._path.lanes.add():
            self._set.lanes[self.lane_count - 1].used_us = now
            self._tell_lanes()

    def _stream_due_us(self) -> int:
        """Return when the next stream is to be asked for. It never takes the last lane on which a request can leave."""
        attached, path = self._registration.attached, self._path
        if attached is None or not attached.streams or not self._pulling or path.pulls.mode is not PullMode.HOLDING:
            return NEVER_US
        if not self._may_stream or path.formats.is_text:  # text is not streamed (7.19)
            return NEVER_US
        if path.lanes.most < _LANES_MIN or not path.held.are_free or len(self._streams) >= _STREAMS_MAX:
            return NEVER_US
        if self._set.idle_count(self.lane_count) < 2 and self.lane_count >= path.lanes.most:
            return NEVER_US
        if any(flight.stream for flight in self._set.flights()):
            return NEVER_US
        due_us = self._road.due_us()
        for stream in self._streams.values():
            due_us = max(due_us, stream.renew_us()) if stream.is_proven else NEVER_US
        return due_us

    def _first_owed(self) -> IncomingStream | None:
        first: IncomingStream | None = None
        for stream in self._unheard:
            if stream.owed_us is not None and (first is None or stream.owed_us < (first.owed_us or 0)):
                first = stream
        return first

    def _confirming_lane(self, stream: IncomingStream) -> Lane | None:
        """Return the lane for a request that confirms this stream. A stream that is over is confirmed on its own lane
        if that lane is free: a request there also ends the stream at the relay."""
        if stream.is_over and stream.lane.idle:
            return stream.lane
        return self._set.idle(self.lane_count)

    def _confirmation_due_us(self) -> int:
        stream = self._first_owed()
        if stream is None or stream.owed_us is None or self._confirming_lane(stream) is None:
            return NEVER_US
        if stream.is_over or not stream.is_proven or self._set.idle_count(self.lane_count) > 1:
            return stream.owed_us
        return stream.overdue_us  # the last free lane is left to pushes as long as possible

    # answers

    def _accept(self, flight: Flight, attempt: Attempt, answer: Answer, body_bytes: int, now: int) -> None:
        self._road.moved(body_bytes + flight.body_bytes)
        self.carried.up_bytes += flight.body_bytes
        self.carried.down_bytes += body_bytes
        if flight.stream:
            # Usually the relay gives a complete answer only to a repeat: no first envelope had come in time.
            self._road.happened(RoadEvent.FAILED, now)
        self._relay_heard(flight, now)
        super()._accept(flight, attempt, answer, body_bytes, now)

    def _relay_heard(self, flight: Flight, now: int) -> None:
        """Learn from the answer to a request which confirmations the relay has."""
        for stream in list(self._unheard):
            serial = 0
            if flight.confirms is not None and flight.confirms[0] == stream.lane.index:
                serial = flight.confirms[1]
            elif stream.is_over and flight.lane == stream.lane.index:
                serial = stream.serial  # the request had it in its field `serial_received`
            if stream.known(serial, now):
                self._road.happened(RoadEvent.CONFIRMED, now)
                self._tell_lanes()
            if stream.is_over and not stream.unheard and stream.owed_us is None:
                self._unheard.remove(stream)

    def _begin(self, flight: Flight, attempt: Attempt, body: EnvelopeStream, whole: list[Buffer], now: int) -> None:
        """Process the first envelopes of the answer to a pull with `stream`."""
        request_id = attempt.request_id
        message = decode_envelope(whole[0])
        if not isinstance(message, Answer) or not flight.answers(message):
            self._events.append(Abandoned(request_id))
            self.answered(request_id, 200, whole[0], 0, now)
            return
        if not message.goes_on or len(message.data):
            self.answered(request_id, 200, whole[0], 0, now)
            return
        self._close(flight, request_id)
        lane = self._set.lanes[flight.lane]
        stream = IncomingStream(lane, request_id, body, message, self._age.hold_us, _STREAM_BYTES, now)
        lane.begin_stream(message)
        self._streams[request_id] = stream
        self._unheard.append(stream)
        self._heard()
        self._path.passed(flight, attempt, now)
        held_pulls = self._set.held_pulls(attempt.sent_us, self._path.round_trip.least_us)
        self._path.streamed(attempt, held_pulls, now)
        self._road.happened(RoadEvent.PASSED, now)
        self._relay_heard(flight, now)
        self._set.use_evidence(message, now + self._path.round_trip.grace_us)
        self._go_on(stream, whole[1:], now)
        if not self._may_stream:  # it was asked for earlier
            self._drop_streams()

    def _go_on(self, stream: IncomingStream, whole: list[Buffer], now: int) -> None:
        """Process the next envelopes of a stream."""
        for data in whole:
            message = decode_envelope(data)
            if not isinstance(message, Answer) or not stream.fits(message):
                self._end_stream(stream, data, now)
                return
            self._take(stream, message, now)
            if stream.is_over:
                return
        if stream.is_broken:
            self._cut(stream, now)

    def _take(self, stream: IncomingStream, answer: Answer, now: int) -> None:
        self._heard()
        stream.take(answer, now)
        stream.lane.take(answer, now)
        if len(answer.data):
            self._road.moved(len(answer.data))
            self.carried.down_bytes += len(answer.data)
            packets, discarded = parse_packets(answer.data)
            self._events.append(PacketsReceived(packets, discarded))
        self._set.use_evidence(answer, now + self._path.round_trip.grace_us)
        if not answer.goes_on:
            self._age.endured(now - stream.opened_us)
            self._finish(stream, now, is_cut=False)
        if stream.lane.exhausted:
            self.attach_again()

    # the ends of streams

    def _drop_streams(self) -> None:
        """End the streams, which are of no more use. The next requests on their lanes tell the relay what has come."""
        for stream in list(self._streams.values()):
            self._events.append(Abandoned(stream.request_id))
            self._finish(stream, self._now, is_cut=True)

    def _end_stream(self, stream: IncomingStream, data: Buffer, now: int) -> None:
        """End a stream because of something that is not its next envelope: perhaps the relay's word on why it ends."""
        outcome = judge(200, data, 0)
        self._cut(stream, now)
        if not outcome.code or outcome.code == StatusCode.NOT_AUTHORISED:
            return  # the next exchange tells whether the endpoint has another valid token by now
        if outcome.verdict is Verdict.FATAL:
            self._refuse(outcome.refused(200))
        elif outcome.verdict in (Verdict.STALE, Verdict.UNKNOWN):
            self.attach_again(outbid=outcome.verdict is Verdict.STALE)

    def _cut(self, stream: IncomingStream, now: int, *, is_closed: bool = False) -> None:
        """End a stream from which something is missing. The next request on its lane tells the relay what has come."""
        if not is_closed:
            self._events.append(Abandoned(stream.request_id))
        self._age.cut(now - stream.opened_us)
        self._road.happened(RoadEvent.FAILED, now)
        self._finish(stream, now, is_cut=True)

    def _finish(self, stream: IncomingStream, now: int, *, is_cut: bool) -> None:
        self._nothing_due_until_us = 0
        self._streams.pop(stream.request_id, None)
        if not self.is_streaming:
            self._tell_lanes()
        stream.finish(now, is_cut=is_cut)
        stream.lane.end_stream(now, owes=stream.owed_us is not None)
        if stream.owed_us is None and not stream.unheard:
            self._unheard.remove(stream)
        self._path.pulls.resume()

    def _end(self) -> None:
        for stream in self._streams.values():
            stream.is_over = True
            self._events.append(Abandoned(stream.request_id))
        self._streams.clear()
        self._unheard.clear()
        super()._end()

    # attaching

    def _accept_attached(self, flight: Flight, request_id: int, message: Attached, now: int) -> None:
        super()._accept_attached(flight, request_id, message, now)
        if self.attached:
            self._age.limit_to(message.hold_ms_max * 1000)
            self._road.attached(now, self._random.getrandbits(16) * _SPREAD_US >> 16)
