"""Connects the switch to the clock and the event loop: passes requests and links in, answers and batches out."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from random import SystemRandom
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

from tunnel.clock import LoopTimer, now_us
from tunnel.garbage import CollectorTime
from tunnel.traces.record import TraceSink
from tunnel.turns.meter import ProcessorMeter
from tunnel.turns.queues import Turns
from tunnel.wire import Buffer, Status, StatusCode, encode_envelope
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import Authorise, MayListen, PacketFilter, Publisher, RatesOf, Rules, SeparateExits
from tunnel_servlet.switch.pacing import no_rates
from tunnel_servlet.switch.review import Ended
from tunnel_servlet.switch.switch import Response, Switch

__all__ = ["AnswerPath", "Answered", "HostedLink", "HostedStream", "SwitchHost"]

Answered: TypeAlias = Callable[[int, bytes], None]  # HTTP status, body
_Request: TypeAlias = tuple[int, str, Buffer, bool, bytes | None]

_CLOSING = b"".join(encode_envelope(Status(StatusCode.BUSY, 1000, "the relay is shutting down")))


class AnswerPath(Protocol):
    """A connection on which answers leave, one after the other."""

    def answer_begins(self, number: int) -> int:
        """Note that the answer to this request leaves from now on. Return the request whose answer left before."""

    def cut_answer(self, number: int) -> None:
        """End the connection if the answer to this request has not left this process yet."""


class HostedLink(Protocol):
    """The methods of a link that the host calls."""

    def fill(self) -> None:
        """Send the batches that wait, until none is left or the connection takes no more."""

    def end(self, text: str) -> None:
        """Close the connection, because the switch has forgotten the link. `text` is the reason, for the log."""


class HostedStream(Protocol):
    """The methods of a streamed answer that the host calls."""

    def wake(self) -> None:
        """Ask the switch for the next envelope."""

    def finish(self, data: bytes) -> None:
        """End the response after these bytes."""


class SwitchHost:
    """Owns the switch and runs it in one event loop. No method blocks."""

    def __init__(
        self,
        config: SwitchConfig,
        authorise: Authorise,
        *,
        answer: Authorise | None = None,
        may_listen: MayListen,
        may_share: MayListen = lambda user, name: True,
        publisher: Publisher | None = None,
        rates_of: RatesOf = no_rates,
        separate_exits: SeparateExits | None = None,
        is_exempt: Callable[[str], bool] = lambda user: False,
        packet_filter: PacketFilter | None = None,
        trace: TraceSink | None = None,
    ) -> None:
        self.switch = Switch(
            config,
            SystemRandom(),
            authorise,
            answer=answer,
            may_listen=may_listen,
            may_share=may_share,
            publisher=publisher,
            rates_of=rates_of,
            separate_exits=separate_exits,
            packet_filter=packet_filter,
            trace=trace,
            started_us=now_us(),
        )
        self.collector = CollectorTime()
        self.turns = Turns(is_exempt, ProcessorMeter(garbage=self.collector))
        self.links: dict[int, HostedLink] = {}
        self.streams: dict[int, HostedStream | None] = {}
        """The streamed answers, by the numbers of their requests; None: no handler has begun to write the answer."""
        self.is_closed = False
        self._waiting: dict[int, Answered] = {}
        self._posted: deque[_Request] = deque()
        self._answer_paths: WeakValueDictionary[int, AnswerPath] = WeakValueDictionary()
        self._count = 0
        self._pumping = False
        self._scheduled: asyncio.Handle | None = None
        self._timer = LoopTimer(self._on_timer)
        self._drained: asyncio.Future[None] | None = None

    # --- requests

    async def exchange(self, user: str, body: Buffer, *, is_exit: bool, path: AnswerPath | None = None) -> Response:
        """Pass a request to the switch at once, and return the response, which leaves by `path`. The caller has waited
        for the user's turn (`turns.admitted`), with the body charged to the user.

        If the response goes on, the caller must at once pass the object that writes the rest to `stream_begins`, and
        call `stream_gone` in the end. On cancellation the switch forgets the request.
        """
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answered(status: int, data: bytes) -> None:
            if not answer.done():
                answer.set_result(Response(number, status, [data], goes_on=number in self.streams))
                if path is not None:
                    self._answer_paths.pop(path.answer_begins(number), None)
                    self._answer_paths[number] = path

        number = self._wait(answered)
        if self.is_closed:
            answered(503, _CLOSING)
        else:
            began = self.turns.meter.start()
            self.switch.request(number, user, body, now_us(), is_exit=is_exit)
            self.pump()
            self.turns.spent_since(user, began)
        try:
            return await answer
        except asyncio.CancelledError:
            self.stream_gone(number)
            raise
        finally:
            self.gone(number)

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool, identity: bytes | None = None) -> int:
        """Queue a request from this process and return its number.

        `answered` is called later, never from within this method, and not at all after `gone` with this number.
        `identity` is the id that an ATTACH gives the endpoint, instead of the one that its secret gives.
        """
        number = self._wait(answered)
        self._posted.append((number, user, body, is_exit, identity))
        self._schedule()
        return number

    def gone(self, number: int) -> None:
        """Discard the answer to this request. Has no effect if it has been answered."""
        if self._waiting.pop(number, None) is not None:
            self.switch.gone(number, now_us())

    def stream_begins(self, number: int, stream: HostedStream) -> None:
        """Register the object that writes the rest of a response that goes on."""
        if number in self.streams:
            self.streams[number] = stream
        else:
            stream.finish(b"" if not self.is_closed else _CLOSING)

    def stream_gone(self, number: int) -> None:
        """Forget a streamed answer whose response or connection has ended. Has no effect if it is unknown."""
        if number in self.streams:
            del self.streams[number]
            self.switch.gone(number, now_us())
            self.pump()

    def _wait(self, answered: Answered) -> int:
        self._count += 1
        self._waiting[self._count] = answered
        return self._count

    def review(self, rules: Rules) -> Iterator[Ended | None]:
        """End what the new rules do not allow, in small steps. Each yields what it has ended, for the log, or None."""
        for ended in self.switch.review(rules, now_us):
            self.pump()
            yield ended

    # --- links

    def link_opened(self, link: HostedLink, user: str, identity: bytes, epoch: int, generation: int) -> int:
        """Register a link and return its number, or 0 if the switch refuses it.

        The caller must call `pump` once the link is ready for `fill`.
        """
        self._count += 1
        opened = not self.is_closed and self.switch.link_opened(
            self._count, user, identity, epoch, generation, now_us()
        )
        if not opened:
            return 0
        self.links[self._count] = link
        return self._count

    def link_closed(self, number: int) -> None:
        """Unregister a link whose connection has ended. Has no effect if the switch has ended the link."""
        if self.links.pop(number, None) is not None:
            self.switch.link_closed(number, now_us())
            self.pump()

    # --- lifetime

    @property
    def waiting(self) -> int:
        """The number of requests without an answer, including those from this process."""
        return len(self._waiting)

    def close(self) -> None:
        """Answer all waiting requests with 503, end all streams and links, and refuse further requests and links."""
        if self.is_closed:
            return
        self.is_closed = True
        self._timer.cancel()
        self.turns.close()
        self.collector.close()
        if self._scheduled is not None:
            self._scheduled.cancel()
        waiting, self._waiting = self._waiting, {}
        streams, self.streams = self.streams, {}
        for answered in waiting.values():
            answered(503, _CLOSING)
        for stream in streams.values():
            if stream is not None:
                stream.finish(_CLOSING)
        links, self.links = self.links, {}
        for link in links.values():
            link.end("the relay is shutting down")
        self._look_whether_drained()

    async def drained(self) -> None:
        """Wait until no route is left or the host is closed."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._look_whether_drained()
        await asyncio.shield(self._drained)

    def _look_whether_drained(self) -> None:
        if self._drained is None or self._drained.done():
            return
        if self.is_closed or not self.switch.stats().routes:
            self._drained.set_result(None)

    # --- the pump

    def pump(self) -> None:
        """Deliver the switch's output and set its timer. May be called at any time, also while it is running."""
        if self._pumping or self.is_closed:
            return
        self._pumping = True
        try:
            while self._deliver():
                pass
        finally:
            self._pumping = False
        due_us = self.switch.next_timeout()
        if due_us is not None:
            self._timer.due_by(due_us, now_us())
        self._look_whether_drained()

    def _deliver(self) -> bool:
        moved = False
        switch = self.switch
        while (response := switch.poll_response()) is not None:
            moved = True
            # A lane has one answer on its way: the endpoint has asked again, so it does not wait for the previous one.
            previous = self._answer_paths.pop(response.previous, None)
            if previous is not None:
                previous.cut_answer(response.previous)
            body = response.body
            data = bytes(body[0]) if len(body) == 1 else b"".join(body)
            answered = self._waiting.pop(response.handle, None)
            if answered is not None:
                if response.goes_on:
                    self.streams[response.handle] = None
                answered(response.status, data)
            elif response.handle in self.streams:
                stream = self.streams.pop(response.handle)
                if stream is not None:
                    stream.finish(data)
        while (number := switch.poll_stream_ready()) is not None:
            stream = self.streams.get(number)
            if stream is not None:
                stream.wake()
        while (number := switch.poll_link_ready()) is not None:
            moved = True
            if number in self.links:
                self.links[number].fill()
        while (number := switch.poll_link_end()) is not None:
            moved = True
            ended = self.links.pop(number, None)
            if ended is not None:
                ended.end("the attachment has ended or has attached again")
        return moved

    def _schedule(self) -> None:
        if self._scheduled is None and not self.is_closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = None
        while self._posted:
            number, user, body, is_exit, identity = self._posted.popleft()
            if number in self._waiting:
                self.switch.request(number, user, body, now_us(), is_exit=is_exit, identity=identity)
        self.pump()

    def _on_timer(self) -> None:
        self.switch.handle_timeout(now_us())
        self.pump()
