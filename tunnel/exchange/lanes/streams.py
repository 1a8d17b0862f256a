"""The streamed answers of an endpoint's lanes (PROTOCOL 7.20): when to ask for one, what came on it, what is confirmed.

While a stream is proven, no ordinary pull is due: all packets from the relay come on it. Everything else is as without
streams.
"""

from random import Random

from tunnel.exchange.config import KIB, MIB, SECOND_US, LaneConfig
from tunnel.exchange.envelope_stream import EnvelopeStream
from tunnel.exchange.events import Abandoned, PacketsReceived
from tunnel.exchange.flight import Attempt, Flight
from tunnel.exchange.lanes.exchanges import Exchanges
from tunnel.exchange.lanes.incoming_stream import IncomingStream
from tunnel.exchange.lanes.lane import Lane
from tunnel.exchange.lanes.responses import judge
from tunnel.exchange.path.pacing import HoldLimit
from tunnel.exchange.path.pulls import NEVER_US, PullMode
from tunnel.exchange.roads.slow_road import Carried
from tunnel.exchange.roads.stream_road import StreamEvent, StreamRoad, StreamState
from tunnel.wire import Answer, Attached, Buffer, StatusCode, decode_envelope, parse_packets

__all__ = ["Streams"]

_STREAM_BYTES = 64 * MIB  # largest streamed answer; the next stream takes over without a pause
_ENVELOPE_SLACK_BYTES = 64 * KIB  # for header and evidence
_LANES_MIN = 3  # a stream is tried beside a pull, and a push must still find a lane
_LANES_BUSY = 5  # the stream's own, and enough for confirmations to leave often on a long path
_STREAMS_MAX = 2  # an older one stays open until a newer one is proven
_SPREAD_US = 2 * SECOND_US  # endpoints try again spread over this time after their relay has returned


class Streams:
    """The part of an endpoint's lanes that lets the relay answer pulls with streams. `Lanes` calls it."""

    def __init__(self, config: LaneConfig, exchanges: Exchanges, random: Random) -> None:
        self.carried = Carried()
        self.envelope_bytes_max = max(config.packet_bytes_max, config.answer_bytes_max) + _ENVELOPE_SLACK_BYTES
        self._exchanges = exchanges
        self._path = exchanges.path
        self._lane_set = exchanges.lane_set
        self._set = exchanges.streams
        self._random = random
        self._road = StreamRoad(config.stream_after_us)
        self.may_stream = True
        self._age = HoldLimit(config.stream_us, config.hold_us_min)
        self._path.confirms_streams()

    # getters

    @property
    def road(self) -> StreamState:
        """The state of the road: whether streams pass on this path."""
        return self._road.state

    @property
    def is_streaming(self) -> bool:
        """Whether packets from the relay come on a stream."""
        return self._set.is_proven

    @property
    def lane_count(self) -> int:
        """The number of lanes on which a stream is open or was asked for."""
        return len(self._set.open) + sum(flight.stream for flight in self._lane_set.flights())

    @property
    def is_settled(self) -> bool:
        """Whether a first try of a stream is over, or none will be made."""
        if self.is_streaming or self._road.state is StreamState.RESTING:
            return True
        attached = self._exchanges.registration.attached
        return attached is not None and (not attached.streams or self._path.lanes.most < _LANES_MIN)

    def is_awaiting(self, request_id: int) -> bool:
        """Return whether anything more is expected of the answer to this request."""
        return request_id in self._set.open or request_id in self._exchanges.attempts

    # commands

    def allow(self, may_stream: bool, now: int) -> None:
        """Set whether streams may be used."""
        if self.may_stream is not may_stream:
            self.may_stream = may_stream
            self._exchanges.nothing_due_until_us = 0
            if not may_stream:
                self.drop(now)

    def drop(self, now: int) -> None:
        """End the streams, which are of no more use. The next requests on their lanes tell the relay what has come."""
        for stream in list(self._set.open.values()):
            self._exchanges.events.append(Abandoned(stream.request_id))
            self._finish(stream, now, is_cut=True)

    # what the carrier reports

    def on_received(self, request_id: int, piece: Buffer, now: int) -> Buffer | None:
        """Process the next piece of the answer to a pull with `stream`. `piece` is kept without a copy.

        Return the whole answer if it turns out not to be a stream, else None.
        """
        self._exchanges.nothing_due_until_us = 0
        stream = self._set.open.get(request_id)
        if stream is not None:
            self._go_on(stream, stream.feed(piece, now), now)
            return None
        flight = self._exchanges.attempts.get(request_id)
        if flight is None or not flight.stream:
            return None
        attempt = flight.attempt(request_id)
        if attempt.body is None:
            attempt.body = EnvelopeStream(self.envelope_bytes_max)
        whole = attempt.body.feed(piece)
        return self._begin(flight, attempt, attempt.body, whole, now) if whole else None

    def on_ended(self, request_id: int, now: int) -> Buffer | None:
        """Process the end of an answer to a pull with `stream`. The last envelope shows whether anything is missing.

        Return the whole answer if it is not a stream, else None.
        """
        stream = self._set.open.get(request_id)
        if stream is not None:
            self._cut(stream, now)
            return None
        flight = self._exchanges.attempts.get(request_id)
        if flight is None:
            return None
        body = flight.attempt(request_id).body
        return b"" if body is None else body.rest

    def on_failed(self, request_id: int, now: int) -> None:
        """Process the end of the connection of a request, on which a stream may have come."""
        stream = self._set.open.get(request_id)
        if stream is not None:
            self._cut(stream, now, is_closed=True)

    def handle_timeout(self, now: int) -> None:
        """Cut the streams on which nothing came for too long."""
        for stream in list(self._set.open.values()):
            if stream.cut_us(self._path.round_trip.srtt_us) <= now:
                self._cut(stream, now)

    # what is due

    def cut_us(self) -> int:
        """Return when the first stream counts as cut, unless more comes before."""
        srtt_us = self._path.round_trip.srtt_us
        return min((stream.cut_us(srtt_us) for stream in self._set.open.values()), default=NEVER_US)

    def due_us(self) -> int:
        """Return when the next request that a stream needs is due."""
        return min(self._stream_due_us(), self._confirmation_due_us())

    def start_what_is_due(self, attached: Attached, now: int) -> None:
        """Start the requests that streams need now."""
        if self._stream_due_us() <= now:
            self._ask_for_stream(attached, now)
        owed = self._set.first_owed()
        if owed is not None and owed.is_urgent(now) and self._lane_set.idle_count(self._path.lanes.count) < 2:
            self._add_lane(_LANES_BUSY, now)
        while self._confirmation_due_us() <= now:
            stream = self._set.first_owed()
            lane = self._confirming_lane(stream) if stream is not None else None
            assert lane is not None  # else no confirmation is due
            self._exchanges.start(lane, lane.start_empty(attached, self._path.down.limit_bytes), now)

    def _ask_for_stream(self, attached: Attached, now: int) -> None:
        if self._lane_set.idle_count(self._path.lanes.count) < 2:
            self._add_lane(self._path.lanes.most, now)
        lane = self._lane_set.idle(self._path.lanes.count)
        assert lane is not None  # else no stream is due
        self._road.on_event(StreamEvent.TRIED, now)
        self._exchanges.start(lane, lane.start_stream(attached, self._age.hold_us, _STREAM_BYTES), now)

    def _add_lane(self, most: int, now: int) -> None:
        if self._path.lanes.count < most and self._path.lanes.add():
            self._lane_set.lanes[self._path.lanes.count - 1].used_us = now
            self._exchanges.tell_lanes()

    def _stream_due_us(self) -> int:
        """Return when the next stream is to be asked for. It never takes the last lane on which a request can leave."""
        exchanges, path = self._exchanges, self._path
        attached = exchanges.registration.attached
        if attached is None or not attached.streams:
            return NEVER_US
        if not exchanges.is_pulling or path.pulls.mode is not PullMode.HOLDING:
            return NEVER_US
        if not self.may_stream or path.formats.is_text:  # text is not streamed (7.19)
            return NEVER_US
        if path.lanes.most < _LANES_MIN or not path.held.are_free or len(self._set.open) >= _STREAMS_MAX:
            return NEVER_US
        if self._lane_set.idle_count(path.lanes.count) < 2 and path.lanes.count >= path.lanes.most:
            return NEVER_US
        if any(flight.stream for flight in self._lane_set.flights()):
            return NEVER_US
        due_us = self._road.due_us()
        for stream in self._set.open.values():
            due_us = max(due_us, stream.renew_us()) if stream.is_proven else NEVER_US
        return due_us

    def _confirming_lane(self, stream: IncomingStream) -> Lane | None:
        """Return the lane for a request that confirms this stream. A stream that is over is confirmed on its own lane
        if that lane is free: a request there also ends the stream at the relay."""
        if stream.is_over and stream.lane.idle:
            return stream.lane
        return self._lane_set.idle(self._path.lanes.count)

    def _confirmation_due_us(self) -> int:
        stream = self._set.first_owed()
        if stream is None or stream.owed_us is None or self._confirming_lane(stream) is None:
            return NEVER_US
        if stream.is_over or not stream.is_proven or self._lane_set.idle_count(self._path.lanes.count) > 1:
            return stream.owed_us
        return stream.overdue_us  # the last free lane is left to pushes as long as possible

    # answers

    def on_accepted(self, flight: Flight, body_bytes: int, now: int) -> None:
        """Learn from a complete answer, which is not a stream."""
        self._road.on_moved(body_bytes + flight.body_bytes)
        self.carried.up_bytes += flight.body_bytes
        self.carried.down_bytes += body_bytes
        if flight.stream:
            # Usually the relay gives a complete answer only to a repeat: no first envelope had come in time.
            self._road.on_event(StreamEvent.FAILED, now)
        self._learn_what_is_heard(flight, now)

    def on_attached(self, attached: Attached, now: int) -> None:
        """Begin a generation."""
        self._age.limit_to(attached.hold_ms_max * 1000)
        self._road.on_attached(now, self._random.getrandbits(16) * _SPREAD_US >> 16)

    def _learn_what_is_heard(self, flight: Flight, now: int) -> None:
        """Learn from the answer to a request which confirmations the relay has."""
        for stream in list(self._set.unheard):
            serial = 0
            if flight.confirms is not None and flight.confirms[0] == stream.lane.index:
                serial = flight.confirms[1]
            elif stream.is_over and flight.lane == stream.lane.index:
                serial = stream.serial  # the request had it in its field `serial_received`
            if stream.known(serial, now):
                self._road.on_event(StreamEvent.CONFIRMED, now)
                self._exchanges.tell_lanes()
            if stream.is_over and not stream.unheard and stream.owed_us is None:
                self._set.unheard.remove(stream)

    def _begin(
        self, flight: Flight, attempt: Attempt, body: EnvelopeStream, whole: list[Buffer], now: int
    ) -> Buffer | None:
        """Process the first envelopes of the answer to a pull with `stream`. Return it if it is whole, not a stream."""
        request_id = attempt.request_id
        message = decode_envelope(whole[0])
        if not isinstance(message, Answer) or not flight.answers(message):
            self._exchanges.events.append(Abandoned(request_id))
            return whole[0]
        if not message.goes_on or len(message.data):
            return whole[0]
        self._exchanges.close(flight, request_id)
        lane = self._lane_set.lanes[flight.lane]
        stream = IncomingStream(lane, request_id, body, message, self._age.hold_us, _STREAM_BYTES, now)
        lane.begin_stream(message)
        self._set.open[request_id] = stream
        self._set.unheard.append(stream)
        self._exchanges.recover()
        self._path.on_passed(flight, attempt, now)
        held_pulls = self._lane_set.held_pulls(attempt.sent_us, self._path.round_trip.least_us)
        self._path.on_streamed(attempt, held_pulls, now)
        self._road.on_event(StreamEvent.PASSED, now)
        self._learn_what_is_heard(flight, now)
        self._lane_set.use_evidence(message, now + self._path.round_trip.grace_us)
        self._go_on(stream, whole[1:], now)
        if not self.may_stream:  # it was asked for earlier
            self.drop(now)
        return None

    def _go_on(self, stream: IncomingStream, whole: list[Buffer], now: int) -> None:
        """Process the next envelopes of a stream."""
        for data in whole:
            message = decode_envelope(data)
            if not isinstance(message, Answer) or not stream.fits(message):
                self._end_by(stream, data, now)
                return
            self._take(stream, message, now)
            if stream.is_over:
                return
        if stream.is_broken:
            self._cut(stream, now)

    def _take(self, stream: IncomingStream, answer: Answer, now: int) -> None:
        self._exchanges.recover()
        stream.take(answer, now)
        stream.lane.take(answer, now)
        if len(answer.data):
            self._road.on_moved(len(answer.data))
            self.carried.down_bytes += len(answer.data)
            packets, discarded = parse_packets(answer.data)
            self._exchanges.events.append(PacketsReceived(packets, discarded))
        self._lane_set.use_evidence(answer, now + self._path.round_trip.grace_us)
        if not answer.goes_on:
            self._age.on_endured(now - stream.opened_us)
            self._finish(stream, now, is_cut=False)
        if stream.lane.is_exhausted:
            self._exchanges.attach_again()

    # the ends of streams

    def _end_by(self, stream: IncomingStream, data: Buffer, now: int) -> None:
        """End a stream because of something that is not its next envelope: perhaps the relay's word on why it ends."""
        outcome = judge(200, data, 0)
        self._cut(stream, now)
        # After NOT_AUTHORISED, the next exchange tells whether the endpoint has another valid token by now.
        if outcome.code and outcome.code != StatusCode.NOT_AUTHORISED:
            self._exchanges.end_generation(outcome.verdict, outcome, 200)

    def _cut(self, stream: IncomingStream, now: int, *, is_closed: bool = False) -> None:
        """End a stream from which something is missing. The next request on its lane tells the relay what has come."""
        if not is_closed:
            self._exchanges.events.append(Abandoned(stream.request_id))
        self._age.cut(now - stream.opened_us)
        self._road.on_event(StreamEvent.FAILED, now)
        self._finish(stream, now, is_cut=True)

    def _finish(self, stream: IncomingStream, now: int, *, is_cut: bool) -> None:
        self._exchanges.nothing_due_until_us = 0
        self._set.open.pop(stream.request_id, None)
        if not self.is_streaming:
            self._exchanges.tell_lanes()
        stream.finish(now, is_cut=is_cut)
        stream.lane.end_stream(now, owes=stream.owed_us is not None)
        if stream.owed_us is None and not stream.unheard:
            self._set.unheard.remove(stream)
        self._path.pulls.resume()
