"""Lanes against a small relay of ServedLanes, on a virtual clock; tests decide the fate of each request."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tunnel.exchange import (
    Abandoned,
    AttachedEvent,
    BatchDone,
    LaneConfig,
    LaneEvent,
    Lanes,
    PacketsReceived,
    Reply,
    Request,
    ServedLane,
    ServedLimits,
)
from tunnel.exchange.path.window import PathWindow
from tunnel.exchange.served.outbox import PACKETS_ANY
from tunnel.wire import (
    HTTP_STATUS,
    Attach,
    Attached,
    Buffer,
    Exchange,
    Frame,
    Packet,
    PacketType,
    Status,
    StatusCode,
    attachment_id,
    decode_envelope,
    encode_envelope,
    frame_of,
)

__all__ = ["SECRET", "Fate", "Loop", "MemoryOutbox", "Relay", "data_frame", "data_packet"]

SECRET = bytes(range(32))


def data_packet(name: int, size: int = 8) -> Packet:
    """Make a packet whose name, its sequence number, tells it from others."""
    return Packet(PacketType.DATA, 1, 2, name, bytes([name % 251]) * size)


def data_frame(name: int, size: int = 8) -> Frame:
    return frame_of(data_packet(name, size))


class MemoryOutbox:
    """Frames that wait, first in, first out."""

    def __init__(self, frames: list[Frame] | None = None) -> None:
        self.frames = deque(frames or [])
        self.freed = 0
        self.is_withheld = False  # true while only a stream may take the frames

    def take(self, limit_bytes: int, packets_max: int = PACKETS_ANY) -> list[Frame]:
        taken: list[Frame] = []
        size = 0
        while self.waits() and (not taken or (size + self.frames[0].size <= limit_bytes and len(taken) < packets_max)):
            size += self.frames[0].size
            taken.append(self.frames.popleft())
            if size > limit_bytes:
                break
        return taken

    def put_back(self, frames: list[Frame]) -> None:
        self.frames.extendleft(reversed(frames))

    def on_confirmed(self, frames: list[Frame]) -> None:
        self.freed += len(frames)

    def waits(self) -> bool:
        return bool(self.frames) and not self.is_withheld


class Relay:
    """A relay with one attachment. It routes nothing: packets that arrive are kept; tests give it packets to send."""

    def __init__(
        self, random: Random, lanes: int = 8, answer_bytes_max: int = 2**20, *, streams: bool = False, **limits: int
    ) -> None:
        self.limits = ServedLimits(lanes=lanes, answer_bytes_max=answer_bytes_max, streams=streams)
        self.limits.hold_us_max = limits.get("hold_ms_max", 15_000) * 1000
        self.window = PathWindow()
        self.streams: dict[int, ServedLane] = {}  # by handle
        self.pieces: list[tuple[int, bytes, bool]] = []  # of streamed answers: handle, bytes, whether it is the last
        self.attached_limits: dict[str, Any] = {
            "body_bytes_max": 2**20,
            "hold_ms_max": 15_000,
            "pull_interval_ms": 0,
        } | limits
        self.outbox = MemoryOutbox()
        self.received: list[tuple[int, int]] = []  # lane, name of the packet
        self.attachments: dict[bytes, int] = {}  # id -> generation
        self.replies: list[tuple[int, int, list[Buffer]]] = []  # handle, status, body
        self.lanes: dict[int, ServedLane] = {}
        self._random = random
        self.epoch = random.getrandbits(64)

    def restart(self) -> None:
        """Forget lanes and attachments, and draw another epoch; frames that the endpoint did not confirm wait again."""
        for lane in self.lanes.values():
            for reply in lane.close():
                self._send(reply)
        self.lanes = {}
        self.attachments = {}
        self.epoch = self._random.getrandbits(64)

    def request(self, handle: int, body: Buffer, now: int) -> None:
        match decode_envelope(body):
            case Attach() as attach:
                self._attach(handle, attach)
            case Exchange() as exchange:
                self._exchange(handle, exchange, now)
            case _:
                self._refuse(handle, StatusCode.CORRUPT)

    def give(self, frames: list[Frame], now: int = 0) -> None:
        """Let these frames wait for the endpoint."""
        self.outbox.frames.extend(frames)
        self.pump_streams(now)
        for lane in sorted((lane for lane in self.lanes.values() if lane.parked_handle is not None), key=parked_at):
            self._send(lane.wake(now))

    def handle_timeout(self, now: int) -> None:
        for lane in self.lanes.values():
            self._send(lane.expire(now))
            for reply in lane.check_stream(now):
                self._send(reply)
        self.pump_streams(now)

    def next_timeout(self) -> int | None:
        times = [lane.parked_until_us for lane in self.lanes.values() if lane.parked_handle is not None]
        times += [due_us for lane in self.lanes.values() if (due_us := lane.stream_due_us) is not None]
        return min(times, default=None)

    def carrier(self) -> ServedLane | None:
        return next((lane for lane in reversed(self.streams.values()) if lane.carries), None)

    def pump_streams(self, now: int) -> None:
        """Let each stream send what is due; only the stream that carries the packets takes waiting frames."""
        for lane in list(self.streams.values()):
            self.outbox.is_withheld = self.carrier() not in (None, lane)
            while (reply := lane.poll_stream(now)) is not None:
                self._send(reply)
        self.outbox.is_withheld = self.carrier() is not None

    def _confirm(self, number: int, serial: int, now: int) -> None:
        before = self.carrier()
        self.lanes[number].confirm(serial, now)
        carrier = self.carrier()
        if carrier is not None and carrier is not before:
            for older in list(self.streams.values()):
                if older is not carrier and older.carries:
                    self._send(older.finish_stream(now))
            for lane in self.lanes.values():
                for reply in lane.release():
                    self._send(reply)
        self.pump_streams(now)

    def _attach(self, handle: int, attach: Attach) -> None:
        identity = attachment_id(attach.secret)
        known = self.attachments.get(identity)
        if known is not None and attach.generation < known:
            return self._refuse(handle, StatusCode.STALE)
        if attach.generation != known:
            for lane in self.lanes.values():
                for reply in lane.close():
                    self._send(reply)
            self.lanes = {}
            self.attachments[identity] = attach.generation
        message = Attached(
            attachment_id=identity,
            epoch=self.epoch,
            generation=attach.generation,
            fresh=known is None,
            packet_bytes_max=2**20,
            initial_edge_bytes=65536,
            lanes=self.limits.lanes,
            streams=self.limits.streams,
            **self.attached_limits,
        )
        self.replies.append((handle, 200, encode_envelope(message)))
        return None

    def _exchange(self, handle: int, exchange: Exchange, now: int) -> None:
        if exchange.epoch != self.epoch or self.attachments.get(exchange.attachment_id) != exchange.generation:
            return self._refuse(handle, StatusCode.UNKNOWN)
        if exchange.lane not in self.lanes:
            self.lanes[exchange.lane] = ServedLane(exchange.lane, self.outbox, self._evidence, self.limits, self.window)
        lane = self.lanes[exchange.lane]
        if exchange.confirms is not None:
            self._confirm(*exchange.confirms, now)
        arrival = lane.receive(exchange, handle, now)
        for reply in arrival.replies:
            self._send(reply)
        if arrival.applies:
            self.received += [(exchange.lane, frame.sequence) for frame in arrival.frames]
            self.outbox.is_withheld = self.carrier() is not None
            answered = lane.answer(now)
            if answered is not None and answered.answer.goes_on:
                self.streams[handle] = lane
            self._send(answered)
        self.pump_streams(now)
        return None

    def _evidence(self) -> list[tuple[int, int]]:
        return [(lane.lane, lane.answered) for lane in self.lanes.values()]

    def _send(self, reply: Reply | None) -> None:
        if reply is None:
            return
        body: list[Buffer] = [] if reply.is_cut else encode_envelope(reply.answer)
        if reply.handle in self.streams:
            if not reply.answer.goes_on:
                del self.streams[reply.handle]
            self.pieces.append((reply.handle, b"".join(body), not reply.answer.goes_on))
        else:
            self.replies.append((reply.handle, 200, body))

    def _refuse(self, handle: int, code: StatusCode) -> None:
        self.replies.append((handle, HTTP_STATUS[code], encode_envelope(Status(code))))


def parked_at(lane: ServedLane) -> int:
    return lane.parked_at_us


@dataclass
class Fate:
    """The fate of one attempt."""

    request_lost: bool = False
    response_lost: bool = False
    reported: bool = False
    """The endpoint learns of the loss, as by a reset."""
    taken: bool = False
    """A request that is lost left on a new connection, which opened. (Every other one leaves so.)"""
    copies: tuple[int, ...] = ()
    """The relay receives the request again after each of these delays (us). Its answers to these copies are lost."""
    delay_us: int = 0
    status: int = 0
    """An intermediary answers with this status, and the relay does not see the request."""
    body: bytes = b"<html>"
    retry_after_us: int = 0
    too_large: "Fate | None" = None
    """The fate of an answer that is larger than `answer_bytes_max`: a status, or lost."""
    answer_bytes_max: int = 0
    buffered: bool = False
    """A streamed answer is held back until its end."""
    stream_bytes: int = -1
    """How many bytes of a streamed answer pass; -1: all. If `reported`, the endpoint then learns that it is cut."""


@dataclass
class Loop:
    """An endpoint with a queue of packets to push, a path and a relay."""

    config: LaneConfig = field(default_factory=LaneConfig)
    fate: Callable[[Request, int], Fate] = lambda request, now: Fate()
    one_way_us: int = 10_000
    bytes_per_second: int = 0
    queue_us: int = 0
    """How long answers wait on the path behind the bytes of others."""
    seed: int = 1
    relay: Relay = field(default_factory=lambda: Relay(Random(2)))
    now: int = 0
    resends: bool = False
    """Queue the packets of each batch that was given up, as the core would."""
    streams: bool = False

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.lanes = Lanes(self.config, SECRET, self.random, streams=self.streams)
        self.passed: dict[int, int] = {}  # by handle: how many bytes of a streamed answer have passed
        self.kept: dict[int, bytes] = {}  # by handle: a streamed answer that is held back
        self.queue: deque[Packet] = deque()
        self.requests: list[tuple[int, Request]] = []
        self.events: list[tuple[int, LaneEvent]] = []
        self.delivered: list[int] = []
        self.pushed: dict[int, tuple[int, list[int]]] = {}  # token -> requests before the batch, names
        self.tokens = 0
        self._batches: dict[int, list[Packet]] = {}
        self.waiting: dict[int, tuple[int, Fate]] = {}  # handle -> request id, fate
        self._handles = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._up_free_us = self._down_free_us = 0  # when all requests, or all responses, will have been sent

    # observations

    def told(self, kind: type) -> list[LaneEvent]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def ok(self) -> list[int]:
        return [event.token for _, event in self.events if isinstance(event, BatchDone) and event.ok]

    def in_flight(self, *, pull: bool) -> int:
        return sum(flight.pull == pull for flight in self.lanes._set.flights())

    # time

    def at(self, time_us: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (max(time_us, self.now), self._order, action))

    def run(self, until_us: int) -> None:
        """Run until that time."""
        self.pump()
        while True:
            times = [t for t in (self.lanes.next_timeout(), self.relay.next_timeout()) if t is not None]
            if self._heap:
                times.append(self._heap[0][0])
            if not times or min(times) > until_us:
                self.now = until_us
                return
            assert min(times) > self.now or self._heap, "something stays due forever"
            self.now = max(self.now, min(times))
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            self.lanes.handle_timeout(self.now)
            self.relay.handle_timeout(self.now)
            self.pump()

    def until(self, condition: Callable[[], bool], limit_us: int) -> int:
        """Run in steps of a millisecond until the condition holds; return the time."""
        while not condition():
            assert self.now < limit_us, "the condition did not hold within the limit"
            self.run(self.now + 1000)
        return self.now

    def pump(self) -> None:
        """Drain answers, pushes, requests and events in the order that `tunnel.exchange.lanes.lanes` documents."""
        while self._respond() | self._push() | self._send() | self._tell():
            pass
        due_us = self.lanes.next_timeout()
        assert due_us is None or due_us > self.now, "something that was due was not done"

    def _push(self) -> bool:
        moved = False
        while self.queue and (room := self.lanes.room(self.now)):
            batch = [self.queue.popleft()]
            size = batch[0].size
            while self.queue and size + self.queue[0].size <= room:
                size += self.queue[0].size
                batch.append(self.queue.popleft())
            self.tokens += 1
            self._batches[self.tokens] = batch
            self.pushed[self.tokens] = (len(self.requests), [packet.sequence for packet in batch])
            self.lanes.push(batch, self.tokens, self.now)
            moved = True
        return moved

    def _send(self) -> bool:
        moved = False
        while (request := self.lanes.poll_request(self.now)) is not None:
            self.requests.append((self.now, request))
            self._travel(request, self.fate(request, self.now))
            moved = True
        return moved

    def _tell(self) -> bool:
        moved = False
        while (event := self.lanes.poll_event()) is not None:
            self.events.append((self.now, event))
            if isinstance(event, PacketsReceived):
                self.delivered += [packet.sequence for packet in event.packets]
            if self.resends and isinstance(event, BatchDone) and not event.ok:
                self.queue.extend(self._batches[event.token])
            moved = True
        return moved

    # the path

    def _travel(self, request: Request, fate: Fate) -> None:
        self._handles += 1
        handle = self._handles
        body = b"".join(request.body)
        round_trip_us = 2 * self.one_way_us
        if fate.status:
            status, answer, retry_us = fate.status, fate.body, fate.retry_after_us
            self.at(self.now + round_trip_us, lambda: self._answer(request.id, status, answer, retry_us))
            return
        self._up_free_us = max(self.now, self._up_free_us) + self._transfer_us(len(body))
        arrive_us = self._up_free_us + self.one_way_us + fate.delay_us
        self.waiting[handle] = request.id, fate
        if fate.taken or not fate.request_lost:
            self.at(self.now + self.one_way_us, lambda: self.lanes.on_opened(request.id))
        if not fate.request_lost:
            self.at(arrive_us, lambda: self.relay.request(handle, body, self.now))
        elif fate.reported:
            self.at(self.now + round_trip_us, lambda: self.lanes.on_failed(request.id, self.now))
        for delay_us in fate.copies:
            self.at(arrive_us + delay_us, lambda: self.relay.request(-1, body, self.now))

    def _respond(self) -> bool:
        replies, self.relay.replies = self.relay.replies, []
        for handle, status, buffers in replies:
            found = self.waiting.pop(handle, None)
            if found is None:
                continue
            request_id, fate = found
            body = b"".join(buffers)
            self._down_free_us = max(self.now, self._down_free_us) + self._transfer_us(len(body))
            at_us = self._down_free_us + self.queue_us + self.one_way_us
            if fate.too_large is not None and len(body) > fate.answer_bytes_max:
                fate = fate.too_large
            if fate.status:
                self.at(at_us, self._answering(request_id, fate.status, fate.body))
            elif not fate.response_lost:
                self.at(at_us, self._answering(request_id, status, body))
            elif fate.reported:
                self.at(at_us, self._failing(request_id))
        pieces, self.relay.pieces = self.relay.pieces, []
        for handle, piece, is_last in pieces:
            self._pass_on(handle, piece, is_last)
        return bool(replies or pieces)

    def _pass_on(self, handle: int, piece: bytes, is_last: bool) -> None:
        """Pass on a piece of a streamed answer that has left the relay."""
        if handle not in self.waiting:
            return
        request_id, fate = self.waiting[handle]
        if is_last:
            del self.waiting[handle]
        if fate.response_lost:
            return
        if fate.buffered:
            self.kept[handle] = self.kept.get(handle, b"") + piece
            if not is_last:
                return
            piece = self.kept.pop(handle)
        before = self.passed.get(handle, 0)
        self.passed[handle] = before + len(piece)
        self._down_free_us = max(self.now, self._down_free_us) + self._transfer_us(len(piece))
        at_us = self._down_free_us + self.queue_us + self.one_way_us
        is_cut = 0 <= fate.stream_bytes < before + len(piece)
        if is_cut and before > fate.stream_bytes:
            return
        if is_cut:
            piece = piece[: fate.stream_bytes - before]
        if piece:
            self.at(at_us, lambda: self.lanes.on_received(request_id, piece, self.now))
        if is_cut and fate.reported:
            self.at(at_us, self._failing(request_id))
        elif is_last and not is_cut:
            self.at(at_us, lambda: self.lanes.on_ended(request_id, self.now))

    def _answering(self, request_id: int, status: int, body: bytes) -> Callable[[], None]:
        return lambda: self._answer(request_id, status, body, 0)

    def _failing(self, request_id: int) -> Callable[[], None]:
        return lambda: self.lanes.on_failed(request_id, self.now)

    def _answer(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        self.lanes.on_answered(request_id, status, body, retry_after_us, self.now)

    def _transfer_us(self, size: int) -> int:
        return size * 1_000_000 // self.bytes_per_second if self.bytes_per_second else 0


def attached_times(loop: Loop) -> list[int]:
    return [time_us for time_us, event in loop.events if isinstance(event, AttachedEvent)]


def abandoned(loop: Loop) -> list[int]:
    return [event.request_id for _, event in loop.events if isinstance(event, Abandoned)]
