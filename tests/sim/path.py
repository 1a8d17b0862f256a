"""A model of the HTTP path between one endpoint and the relay: connections, time, and faults per exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tests.sim.answer_flow import AnswerFlow, FlowShape, FlowSink
from tests.sim.clock import MILLISECOND, SECOND, Clock
from tests.sim.faults import DELAY_US_MAX, EXCHANGE_KINDS, REPLAY_US_MAX, STREAM_KINDS, FaultKind, FaultPlan
from tests.sim.limits import PathLimits
from tests.sim.randomness import between, chance, pick

__all__ = ["HttpPath", "PathShape", "Peer", "Relayed", "Strike"]

K = FaultKind
HEAD_BYTES = 400  # request or response line and headers
KEPT_CONNECTIONS = 8  # idle connections that a client keeps
LOGIN_PAGE = b"<!doctype html><html><body>Please sign in to continue.</body></html>"
ERROR_STATUSES = (408, 425, 429, 500, 502, 503, 504)

Strike = Callable[[FaultKind, int, int, str], None]
"""(kind, node, size in bytes, a word): a fault struck."""


class Peer(Protocol):
    """The endpoint's side: the reports of its HTTP client."""

    def answered(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None: ...

    def failed(self, request_id: int) -> None: ...

    def taken(self, request_id: int, size_bytes: int) -> None: ...

    def received(self, request_id: int, piece: bytes) -> None: ...

    def answer_ended(self, request_id: int) -> None: ...


class Relayed(Protocol):
    """The relay's side of the path."""

    def arrived(self, path: HttpPath, exchange_id: int, body: bytes, faults: list[FaultKind]) -> bool:
        """Take a complete request, and the faults planned for its response. Return False if no relay listens, or if it
        refuses the connection."""

    def gone(self, path: HttpPath, exchange_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class PathShape:
    """The properties of the path without faults."""

    up_us: int = 10 * MILLISECOND
    down_us: int = 10 * MILLISECOND
    jitter_us: int = 0
    bytes_per_second: int = 10_000_000
    flow: FlowShape = FlowShape()
    connections: int = 1  # where each is limited to that rate, how many of them exchanges use

    def transfer_us(self, size: int) -> int:
        return size * SECOND // (self.connections * self.bytes_per_second)


class HttpPath:
    """One endpoint's way to the relay. Exchanges are named by ids of this path. `forget_all` starts a new life of the
    endpoint; answers to its earlier exchanges are dropped."""

    def __init__(
        self, clock: Clock, shape: PathShape, plan: FaultPlan, random: Random, node: int, strike: Strike, relay: Relayed
    ) -> None:
        self.shape = shape
        self.peer: Peer | None = None
        self.user = ""
        self.source = f"node {node}"
        self.is_exit = False
        self.reads_answers = True
        self.exchanges = 0
        self.repeats = 0
        self._clock = clock
        self._plan = plan
        self._random = random
        self.node = node
        self._strike = strike
        self._relay = relay
        self._waiting: dict[int, int] = {}  # exchange id -> request id, until answered or given up
        self._flows: dict[int, AnswerFlow] = {}  # by exchange id: streamed answers
        self._limits = PathLimits(plan, node)
        self._next_id = 0
        self._kept = 0
        self._up_free_us = 0  # when all requests will have been sent, so that the path has room for another one
        self._down_free_us = 0  # the same for responses
        concerned = not plan.nodes or node in plan.nodes
        self._rates = [(kind, plan.rates[kind]) for kind in EXCHANGE_KINDS if concerned and kind in plan.rates]
        self._stream_rates = [(kind, plan.rates[kind]) for kind in STREAM_KINDS if concerned and kind in plan.rates]

    # the endpoint's side

    def send(self, request_id: int, body: bytes, new_connection: bool) -> int:
        """A request leaves; return its exchange id."""
        self._next_id += 1
        exchange_id = self._next_id
        self.exchanges += 1
        self.repeats += new_connection
        self._waiting[exchange_id] = request_id
        now_us = self._clock.now_us
        leave_us = now_us
        if new_connection or not self._kept:
            leave_us += self.shape.up_us + self.shape.down_us  # SYN, SYN-ACK
        else:
            self._kept -= 1
        self._up_free_us = max(leave_us, self._up_free_us) + self.shape.transfer_us(len(body) + HEAD_BYTES)
        arrive_us = self._up_free_us + self.shape.up_us + self._jitter()
        limit, wait_us = self._limits.strike(now_us, new_connection=new_connection)
        if now_us >= self._plan.end_us:
            self._clock.at(arrive_us, lambda: self._arrive(exchange_id, body, []))
        elif not self._lost_in_window(K.BLACKHOLE_UP, len(body)):
            if limit is not None:
                self._note(limit, body)
            if limit is K.BANNED:
                self._clock.at(arrive_us, lambda: self._answer(exchange_id, 429, LOGIN_PAGE, 0))
            elif limit is K.SWALLOWED:
                self._clock.at(arrive_us, lambda: self._take(exchange_id, len(body)))
            elif limit is K.FEW_CONNECTIONS:
                self._clock.at(arrive_us, lambda: self._fail(exchange_id))
            else:
                self._send_through_faults(exchange_id, body, arrive_us + wait_us)
        return exchange_id

    def abandon(self, exchange_id: int) -> None:
        """The endpoint closed this exchange's connection; the relay learns of it in half of the cases."""
        self._flows.pop(exchange_id, None)
        if self._waiting.pop(exchange_id, -1) >= 0 and chance(self._random, 0.5):
            self._clock.after(self.shape.up_us, lambda: self._relay.gone(self, exchange_id))

    def forget_all(self) -> None:
        """The endpoint died with all its connections."""
        self._waiting.clear()
        self._flows.clear()
        self._kept = 0

    # the relay's side

    def respond(self, exchange_id: int, status: int, body: bytes, faults: list[FaultKind]) -> None:
        """A response leaves the relay."""
        if exchange_id not in self._waiting:
            return
        self._down_free_us = max(self._clock.now_us, self._down_free_us) + self.shape.transfer_us(
            len(body) + HEAD_BYTES
        )
        arrive_us = self._down_free_us + self.shape.down_us + self._jitter()
        if self._clock.now_us < self._plan.end_us:
            if self._lost_in_window(K.BLACKHOLE_DOWN, len(body)):
                return
            if K.RESPONSE_LOST in faults:
                self._note(K.RESPONSE_LOST, body)
                return
            if K.RESPONSE_RESET in faults:
                self._note(K.RESPONSE_RESET, body)
                self._clock.at(arrive_us, lambda: self._fail(exchange_id))
                return
            body = self._damage(body, faults, K.RESPONSE_CUT, K.RESPONSE_FLIPPED)
        self._clock.at(arrive_us, lambda: self._answer(exchange_id, status, body, 0))

    def stream(self, exchange_id: int, piece: bytes, faults: list[FaultKind], *, is_last: bool) -> None:
        """A piece of a streamed answer leaves the relay."""
        if exchange_id not in self._waiting:
            return
        flow = self._flows.get(exchange_id)
        in_phase = self._clock.now_us < self._plan.end_us
        if flow is None:
            if in_phase and K.RESPONSE_LOST in faults:
                self._note(K.RESPONSE_LOST, piece)
                return
            flow = self._flows[exchange_id] = self._flow(exchange_id, faults if in_phase else [])
        self._down_free_us = max(self._clock.now_us, self._down_free_us) + self.shape.transfer_us(len(piece) + 8)
        if in_phase and self._lost_in_window(K.BLACKHOLE_DOWN, len(piece)):
            self._flows.pop(exchange_id, None)
            self._waiting.pop(exchange_id, None)  # without this piece, TCP passes nothing more on
            return
        flow.send(piece, self._down_free_us + self.shape.down_us + self._jitter(), is_last=is_last)

    def _flow(self, exchange_id: int, faults: list[FaultKind]) -> AnswerFlow:
        """Draw what happens to a streamed answer. Faults of whole answers strike it, too."""
        kinds: list[FaultKind] = []
        if self._clock.now_us < self._plan.end_us:
            kinds = [kind for kind, rate in self._stream_rates if chance(self._random, rate)]
        kinds += [K.STREAM_CUT] if K.RESPONSE_CUT in faults or K.RESPONSE_RESET in faults else []
        kinds += [K.STREAM_FLIPPED] if K.RESPONSE_FLIPPED in faults else []
        sink = FlowSink(
            lambda piece: self._pass_piece(exchange_id, piece),
            lambda: self._end(exchange_id),
            lambda: self._fail(exchange_id),
        )
        return AnswerFlow(self._clock, self._random, self.shape.flow, kinds, self._note, sink)

    def reset(self, exchange_id: int) -> None:
        """The relay's host resets the connection: the relay has died, does not listen, or refuses it."""
        self._clock.after(self.shape.down_us, lambda: self._fail(exchange_id))

    # faults on the way up

    def _send_through_faults(self, exchange_id: int, body: bytes, arrive_us: int) -> None:
        random = self._random
        faults = [kind for kind, rate in self._rates if chance(random, rate)]
        if self._stopped(exchange_id, body, faults, arrive_us + self.shape.down_us):
            return
        if K.DELAYED in faults:
            self._note(K.DELAYED, body)
            arrive_us += between(random, 10 * MILLISECOND, DELAY_US_MAX)
        body = self._damage(body, faults, K.REQUEST_CUT, K.REQUEST_FLIPPED)
        self._clock.at(arrive_us, lambda: self._arrive(exchange_id, body, faults))
        if K.DUPLICATED in faults:
            self._note(K.DUPLICATED, body)
            self._clock.at(arrive_us + between(random, 0, 100 * MILLISECOND), lambda: self._ghost(body))
        if K.REPLAYED in faults:
            self._note(K.REPLAYED, body)
            self._clock.at(arrive_us + between(random, 1, REPLAY_US_MAX), lambda: self._ghost(body))

    def _stopped(self, exchange_id: int, body: bytes, faults: list[FaultKind], back_us: int) -> bool:
        """Whether the relay never sees the request. The endpoint learns of the failure at `back_us`, or not at all."""
        limit = self._limit()
        if limit and len(body) > limit:
            self._note(K.TOO_LARGE, body)
            self._clock.at(back_us, lambda: self._answer(exchange_id, 413, LOGIN_PAGE, 0))
            return True
        if K.REQUEST_LOST in faults:
            self._note(K.REQUEST_LOST, body)
            return True
        if K.REQUEST_RESET in faults:
            self._note(K.REQUEST_RESET, body)
            self._clock.at(back_us, lambda: self._fail(exchange_id))
            return True
        instead = K.HTML_ANSWER in faults or K.ERROR_ANSWER in faults
        return instead and self._answer_instead(exchange_id, body, faults, back_us)

    def _answer_instead(self, exchange_id: int, body: bytes, faults: list[FaultKind], back_us: int) -> bool:
        """A proxy answers. True: the relay never sees the request; False: the relay's own answer is lost."""
        random = self._random
        kind = K.HTML_ANSWER if K.HTML_ANSWER in faults else K.ERROR_ANSWER
        self._note(kind, body)
        status = pick(random, (200, 200, 404)) if kind is K.HTML_ANSWER else pick(random, ERROR_STATUSES)
        retry_after_us = between(random, 1, 3) * SECOND if status in (429, 503) and chance(random, 0.5) else 0
        self._clock.at(back_us, lambda: self._answer(exchange_id, status, LOGIN_PAGE, retry_after_us))
        if chance(random, 0.5):
            return True
        faults.append(K.RESPONSE_LOST)
        return False

    def _damage(self, body: bytes, faults: list[FaultKind], cut: FaultKind, flipped: FaultKind) -> bytes:
        if cut in faults and body:
            self._note(cut, body)
            body = body[: between(self._random, 0, len(body) - 1)]
        if flipped in faults and body:
            self._note(flipped, body)
            damaged = bytearray(body)
            for _ in range(between(self._random, 1, 64)):
                damaged[between(self._random, 0, len(damaged) - 1)] ^= 1 << between(self._random, 0, 7)
            body = bytes(damaged)
        return body

    def _lost_in_window(self, one_way: FaultKind, size: int) -> bool:
        for window in self._plan.windows:
            if window.kind in (K.BLACKHOLE, K.FLAPPING, one_way) and window.covers(self.node, self._clock.now_us):
                self._strike(window.kind, self.node, size, "")
                return True
        return False

    def _limit(self) -> int:
        limit = 0
        for from_us, size in self._plan.body_limits:
            if from_us <= self._clock.now_us:
                limit = size
        return limit

    def _jitter(self) -> int:
        return between(self._random, 0, self.shape.jitter_us) if self.shape.jitter_us else 0

    def _note(self, kind: FaultKind, body: bytes) -> None:
        self._strike(kind, self.node, len(body), "")

    # arrivals

    def _arrive(self, exchange_id: int, body: bytes, faults: list[FaultKind]) -> None:
        self._take(exchange_id, len(body))
        if not self._relay.arrived(self, exchange_id, body, faults):
            self.reset(exchange_id)

    def _take(self, exchange_id: int, size: int) -> None:
        """The endpoint's connection is open, and takes the request; unless nothing comes back to the endpoint."""
        request_id = self._waiting.get(exchange_id, -1)
        dark = (K.BLACKHOLE, K.FLAPPING, K.BLACKHOLE_DOWN)
        now_us = self._clock.now_us
        is_dark = any(window.kind in dark and window.covers(self.node, now_us) for window in self._plan.windows)
        if request_id >= 0 and self.peer is not None and not is_dark:
            self.peer.taken(request_id, size)

    def _ghost(self, body: bytes) -> None:
        """A proxy's own copy: the relay sees a request whose answer will reach no endpoint."""
        self._next_id += 1
        self._relay.arrived(self, self._next_id, body, [])

    def _answer(self, exchange_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        request_id = self._waiting.pop(exchange_id, -1)
        if request_id >= 0 and self.peer is not None:
            self._kept = min(self._kept + 1, KEPT_CONNECTIONS)
            self.peer.answered(request_id, status, body, retry_after_us)

    def _pass_piece(self, exchange_id: int, piece: bytes) -> None:
        request_id = self._waiting.get(exchange_id, -1)
        if request_id >= 0 and self.peer is not None:
            self.peer.received(request_id, piece)

    def _end(self, exchange_id: int) -> None:
        self._flows.pop(exchange_id, None)
        request_id = self._waiting.pop(exchange_id, -1)
        if request_id >= 0 and self.peer is not None:
            self._kept = min(self._kept + 1, KEPT_CONNECTIONS)
            self.peer.answer_ended(request_id)

    def _fail(self, exchange_id: int) -> None:
        self._flows.pop(exchange_id, None)
        request_id = self._waiting.pop(exchange_id, -1)
        if request_id >= 0 and self.peer is not None:
            self.peer.failed(request_id)
