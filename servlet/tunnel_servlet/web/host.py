"""Connects the switch to the clock and the event loop: passes requests and links in, answers and batches out."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from random import SystemRandom
from typing import ParamSpec, Protocol, TypeAlias
from weakref import WeakValueDictionary

from tunnel.process.garbage import CollectorTime
from tunnel.system.clock import LoopTimer, now_us
from tunnel.traces.record import TraceSink
from tunnel.turns.meter import ProcessorMeter
from tunnel.turns.queues import FIRST, Turns
from tunnel.wire import Buffer, Frame, Status, StatusCode, encode_envelope
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import Authorise, MayListen, PacketFilter, Publisher, RatesOf, Rules, SeparateExits
from tunnel_servlet.switch.forwarding import BodyRest
from tunnel_servlet.switch.mailboxes.rate_turns import no_rates
from tunnel_servlet.switch.model import ANY_TOKEN, Credential
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.switch.review import Ended
from tunnel_servlet.switch.switch import Switch
from tunnel_servlet.switch.witness import NOWHERE, Origin, Witness

__all__ = ["AnswerPath", "Answered", "HostedLink", "HostedStream", "SwitchHost"]

Answered: TypeAlias = Callable[[int, bytes], None]  # HTTP status, body
_P = ParamSpec("_P")
_CLOSING = b"".join(encode_envelope(Status(StatusCode.BUSY, 1000, "the relay is shutting down")))
_UNFINISHED = b"".join(encode_envelope(Status(StatusCode.BUSY, 1000, "another body of this user is not handled yet")))


class AnswerPath(Protocol):
    """A connection on which answers leave, one after the other."""

    def answer_begins(self, handle: int) -> int:
        """Note that the answer to this request leaves from now on. Return the request whose answer left before."""

    def cut_answer(self, handle: int) -> None:
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
        witness: Witness | None = None,
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
            witness=witness,
        )
        self.collector = CollectorTime()
        self.turns = Turns(is_exempt, ProcessorMeter(garbage=self.collector))
        self.links: dict[int, HostedLink] = {}
        self.streams: dict[int, HostedStream | None] = {}
        """The streamed answers, by the handles of their requests; None: no handler has begun to write the answer."""
        self.is_closed = False
        self._waiting: dict[int, Answered] = {}
        self._rests: set[str] = set()  # the users with a body whose packets are not all handled
        self._posted: deque[Callable[[], None]] = deque()  # what endpoints of this process have sent
        self._answer_paths: WeakValueDictionary[int, AnswerPath] = WeakValueDictionary()
        self._count = 0
        self._pumping = False
        self._scheduled: asyncio.Handle | None = None
        self._timer = LoopTimer(self._on_timer)
        self._drained: asyncio.Future[None] | None = None

    # --- requests

    async def exchange(
        self,
        user: str,
        body: Buffer,
        *,
        is_exit: bool,
        credential: Credential = ANY_TOKEN,
        path: AnswerPath | None = None,
        origin: Origin = NOWHERE,
    ) -> RelayResponse:
        """Pass a request to the switch at once, and return the response, which leaves by `path`. The caller has waited
        for the user's turn (`turns.wait_for_turn`), with the body charged to the user.

        The packets of a large body are handled in parts, and other users have their turns between them.

        If the response goes on, the caller must at once pass the object that writes the rest to `stream_begins`, and
        call `stream_gone` in the end. On cancellation the switch forgets the request.
        """
        answer: asyncio.Future[RelayResponse] = asyncio.get_running_loop().create_future()

        def answered(status: int, data: bytes) -> None:
            if not answer.done():
                answer.set_result(RelayResponse(handle, status, [data], goes_on=handle in self.streams))
                if path is not None:
                    self._answer_paths.pop(path.answer_begins(handle), None)
                    self._answer_paths[handle] = path

        handle = self._wait(answered)
        try:
            if self.is_closed:
                answered(503, _CLOSING)
            elif user in self._rests:
                answered(503, _UNFINISHED)
            else:
                began = self.turns.meter.start()
                rest = self.switch.request(
                    handle,
                    user,
                    body,
                    now_us(),
                    is_exit=is_exit,
                    credential=credential,
                    origin=origin,
                    in_parts=True,
                )
                self.pump()
                self.turns.spent_since(user, began)
                if rest is not None:
                    self._rests.add(user)
                    _RestInput(self, user, rest, answer).start()
            return await answer
        except asyncio.CancelledError:
            self.stream_gone(handle)
            raise
        finally:
            self.on_gone(handle)

    def go_on(self, rest: BodyRest) -> bool:
        """Handle the next packets of a body. Return whether there are more. A host that is closed handles none."""
        now, is_awaited = now_us(), rest.handle in self._waiting
        has_more = not self.is_closed and self.switch.go_on(rest, now)
        if not has_more and not is_awaited:  # its connection has ended meanwhile
            self.switch.on_gone(rest.handle, now)
        self.pump()
        return has_more

    def rest_ended(self, user: str) -> None:
        """Note that the rest of the user's body is handled, or has failed."""
        self._rests.discard(user)

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool, identity: bytes | None = None) -> int:
        """Queue a request from this process and return its handle.

        `answered` is called later, never from within this method, and not at all after `gone` with this handle.
        `identity` is the id that an ATTACH gives the endpoint, instead of the one that its secret gives.
        """
        handle = self._wait(answered)

        def request() -> None:
            if handle in self._waiting:
                self.switch.request(handle, user, body, now_us(), is_exit=is_exit, identity=identity)

        self._post(request)
        return handle

    def _post(self, what: Callable[[], None]) -> None:
        self._posted.append(what)
        if self._scheduled is None and not self.is_closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def on_gone(self, handle: int) -> None:
        """Discard the answer to this request. Has no effect if it has been answered."""
        if self._waiting.pop(handle, None) is not None:
            self.switch.on_gone(handle, now_us())

    def stream_begins(self, handle: int, stream: HostedStream) -> None:
        """Register the object that writes the rest of a response that goes on."""
        if handle in self.streams:
            self.streams[handle] = stream
        else:
            stream.finish(b"" if not self.is_closed else _CLOSING)

    def stream_gone(self, handle: int) -> None:
        """Forget a streamed answer whose response or connection has ended. Has no effect if it is unknown."""
        if handle in self.streams:
            del self.streams[handle]
            self.switch.on_gone(handle, now_us())
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

    def drain(self) -> Iterator[None]:
        """Refuse new connections and attachments from now on. The steps of the iterator tell it to the attachments."""
        self.switch.drain()
        return self._tell_draining()

    def _tell_draining(self) -> Iterator[None]:
        for _ in self.switch.tell_draining(now_us):
            self.pump()
            yield

    def let_serve(self) -> None:
        """Deliver what a change by the operator has made ready."""
        self.switch.handle_timeout(now_us())
        self.pump()

    # --- links

    def link_opened(
        self,
        link: HostedLink,
        user: str,
        identity: bytes,
        epoch: int,
        generation: int,
        origin: Origin = NOWHERE,
        *,
        shares: bool = False,
    ) -> int:
        """Register a link and return its number, or 0 if the switch refuses it. `shares`: it shares the load (8.7).

        The caller must call `pump` once the link is ready for `fill`.
        """
        self._count += 1
        opened = not self.is_closed and self.switch.link_opened(
            self._count, user, identity, epoch, generation, now_us(), origin, shares=shares
        )
        if not opened:
            return 0
        self.links[self._count] = link
        return self._count

    def link_closed(self, link: int) -> None:
        """Unregister a link whose connection has ended. Has no effect if the switch has ended the link."""
        if self.links.pop(link, None) is not None:
            self.switch.link_closed(link, now_us())
            self.pump()

    def join_link(self, link: HostedLink, user: str, identity: bytes, epoch: int, generation: int) -> int:
        """Register the link of an endpoint in this process, and fill it. Return its number, or 0 if it is refused."""
        number = self.link_opened(link, user, identity, epoch, generation)
        self.pump()
        return number

    def take_packets(self, link: int, limit_bytes: int) -> list[Frame]:
        """Return the packets of the next batch for an endpoint in this process. They have arrived."""
        now = now_us()
        frames = self.switch.poll_link(link, limit_bytes, now)
        if frames:
            self.switch.link_receipted(link, 1, now)
        return frames

    def post_packets(self, link: int, frames: list[Frame], handled: Callable[[], None]) -> None:
        """Queue a batch of an endpoint in this process. `handled` is called later, never from within this method, when
        the switch has the batch; not at all if the link ends before."""

        def handle() -> None:
            if link in self.links:
                try:
                    self.switch.link_packets(link, frames, now_us())
                    handled()
                except Exception as error:
                    self._fail_link(link, error)

        self._post(handle)

    def _fail_link(self, link: int, error: Exception) -> None:
        """End a link whose owner has failed, or whose packets have: nobody knows which of its batches count."""
        _report("a link failed", error)
        self._end_link(link, "it failed in the relay")
        self.switch.link_closed(link, now_us())

    def _end_link(self, link: int, text: str) -> None:
        owner = self.links.pop(link, None)
        if owner is not None:
            _guarded(owner.end, text)

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
        self.switch.note_stopped(now_us())
        self._timer.cancel()
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
        self.turns.close()  # last: an input that goes on may not handle what waits, since the switch has stopped
        self._look_whether_drained()

    async def wait_until_drained(self) -> None:
        """Wait until all connections are over or the host is closed."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._look_whether_drained()
        await asyncio.shield(self._drained)

    def _look_whether_drained(self) -> None:
        if self._drained is None or self._drained.done():
            return
        if self.is_closed or self.switch.operator.are_over():
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
        due_us, timer = self.switch.next_timeout(), self._timer
        if due_us is not None and (timer.due_us is None or due_us < timer.due_us):
            timer.due_by(due_us, now_us())
        if self._drained is not None:
            self._look_whether_drained()

    def _deliver(self) -> bool:
        """Deliver what the switch has for others. Return whether there was anything."""
        switch = self.switch
        if not (switch.responses or switch.streams_ready or switch.links_ready or switch.links_ended):
            return False
        while switch.responses and (response := switch.poll_response()) is not None:
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
                _guarded(answered, response.status, data)
            elif response.handle in self.streams:
                stream = self.streams.pop(response.handle)
                if stream is not None:
                    _guarded(stream.finish, data)
        while switch.streams_ready and (handle := switch.poll_stream_ready()) is not None:
            stream = self.streams.get(handle)
            if stream is not None:
                try:
                    stream.wake()
                except Exception as error:
                    _report("a streamed answer failed", error)
                    if self.streams.pop(handle, None) is not None:
                        self.switch.on_gone(handle, now_us())
        while switch.links_ready and (link := switch.poll_link_ready()) is not None:
            if link in self.links:
                try:
                    self.links[link].fill()
                except Exception as error:
                    self._fail_link(link, error)
        while switch.links_ended and (link := switch.poll_link_end()) is not None:
            self._end_link(link, "the attachment has ended or has attached again")
        return True

    def _run(self) -> None:
        self._scheduled = None
        for _ in range(len(self._posted)):  # what is posted meanwhile waits for the next turn
            _guarded(self._posted.popleft())
        self.pump()

    def _on_timer(self) -> None:
        self.switch.handle_timeout(now_us())
        self.pump()


class _RestInput:
    """Handles the rest of a body while it is its user's turn. If that fails, the request whose `answer` is awaited
    fails, as it does where the first part fails."""

    def __init__(self, host: SwitchHost, user: str, rest: BodyRest, answer: "asyncio.Future[RelayResponse]") -> None:
        self._host = host
        self._user = user
        self._rest = rest
        self._answer = answer
        self._is_held = False

    def start(self) -> None:
        """Go on now, or as soon as it is the user's turn again, before all other input of the user."""
        self._host.turns.join(self._user, self, FIRST)
        self._go_on()

    def pause_input(self) -> None:
        self._is_held = True

    def resume_input(self) -> None:
        self._is_held = False
        self._go_on()

    def _go_on(self) -> None:
        turns, has_more = self._host.turns, True
        try:
            while has_more and not self._is_held:
                began, has_more = turns.meter.start(), False
                has_more = self._host.go_on(self._rest)
                turns.spent_since(self._user, began)
        except Exception as error:
            has_more = False
            if self._answer.done():
                _report("the rest of a body failed", error)
            else:
                self._answer.set_exception(error)
        finally:
            if not has_more:
                turns.leave(self._user, self, FIRST)
                self._host.rest_ended(self._user)


def _report(message: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def _guarded(call: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call something outside the switch. If it fails, what waits for others still goes on."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        _report("the receiver of what the switch has for it failed", error)
