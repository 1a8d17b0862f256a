"""The relay's host: the real switch, its requests and responses, and its deaths."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.sim.clock import Clock
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.front import Front, FrontLimits
from tests.sim.path import Strike
from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.switch.switch import Switch

__all__ = ["RelayHost", "RelayLink", "Requester"]


class Requester(Protocol):
    """Sends requests and receives their responses."""

    node: int
    source: str
    user: str
    is_exit: bool
    reads_answers: bool

    def respond(self, exchange_id: int, status: int, body: bytes, faults: list[FaultKind]) -> None: ...

    def stream(self, exchange_id: int, piece: bytes, faults: list[FaultKind], *, is_last: bool) -> None: ...

    def reset(self, exchange_id: int) -> None: ...


class RelayLink(Protocol):
    """A link that the switch knows. `shares`: it shares the load with other links."""

    shares: bool

    def signalled(self) -> None:
        """Something waits for this link. (A link may also fetch what waits at any other time.)"""

    def fill_down(self) -> None: ...

    def cut_by_relay(self) -> None: ...


class RelayHost:
    """Feeds the switch and delivers its responses. A restart loses everything but the clock."""

    def __init__(
        self,
        clock: Clock,
        plan: FaultPlan,
        random: Random,
        make_switch: Callable[[], Switch],
        strike: Strike,
        check: Callable[[RelayHost], None],
        limits: FrontLimits | None = None,
    ) -> None:
        self.clock = clock
        self.plan = plan
        self.switch = make_switch()
        self.offset_us = 0
        self.down_until_us = 0
        self.restarts = 0
        self.exchanges = 0
        self.steps_unchecked = 0
        self.links: dict[int, RelayLink] = {}
        self.limits = limits or FrontLimits()
        self.front = Front(self.limits)
        self._random = random
        self._make_switch = make_switch
        self._strike = strike
        self._check = check  # called after every step
        # handle -> the exchange to answer, and its connection
        self._open: dict[int, tuple[Requester, int, list[FaultKind], CountedConnection]] = {}
        self._streams: dict[int, None] = {}  # handles of streamed answers
        self._handles: dict[tuple[int, int], int] = {}  # (node, exchange id) -> handle
        self._next_handle = 0
        self._next_link = 0
        self._restart_at_exchange = self._draw_restart()
        self._armed_us = -1

    @property
    def now_us(self) -> int:
        return self.clock.now_us + self.offset_us

    # the path's side

    def arrived(self, path: Requester, exchange_id: int, body: bytes, faults: list[FaultKind]) -> bool:
        """A request arrives; return False when no relay listens, or the front refuses the connection."""
        if self.clock.now_us < self.down_until_us:
            return False
        counted = self.front.open(path.source, path.user, len(body))
        if counted is None:
            return False
        self._next_handle += 1
        handle = self._next_handle
        self._open[handle] = (path, exchange_id, faults, counted)
        self._handles[path.node, exchange_id] = handle
        self._take(handle, body)
        return True

    def _take(self, handle: int, body: bytes) -> None:
        """Handle a request as soon as the relay may read from its user, who may have to wait because of a debt."""
        found = self._open.get(handle)
        if found is None:
            return  # the relay has died, or the connection has ended
        path, _, _, counted = found
        wait_us = self.front.wait_us(path.user, self.now_us)
        if wait_us:
            self.clock.after(wait_us, lambda: self._take(handle, body))
            return
        self.exchanges += 1
        counted.free(counted.held_bytes)
        packets = self.switch._context.counters.packets_received
        self.switch.request(handle, path.user, body, self.now_us, is_exit=path.is_exit)
        self.front.charge(path.user, self.switch._context.counters.packets_received - packets, len(body), self.now_us)
        self.pump()
        if self.exchanges >= self._restart_at_exchange and self.clock.now_us < self.plan.end_us:
            self.restart(self.plan.restart_absence_us)

    def gone(self, path: Requester, exchange_id: int) -> None:
        handle = self._handles.pop((path.node, exchange_id), None)
        if handle is not None:
            self.front.leave(self._open.pop(handle)[3])
            self._streams.pop(handle, None)
            self.switch.on_gone(handle, self.now_us)
            self.pump()

    def _answer(self, handle: int, status: int, body: bytes, *, goes_on: bool = False) -> None:
        if goes_on or handle in self._streams:
            self._stream(handle, body, goes_on=goes_on)
            return
        found = self._open.pop(handle, None)
        if found is None:
            return
        path, exchange_id, faults, counted = found
        self._handles.pop((path.node, exchange_id), None)
        path.respond(exchange_id, status, body, faults)
        front = self.front
        if path.reads_answers or not counted.hold(len(body)):
            front.leave(counted)
        else:
            self.clock.after(self.limits.answer_us, lambda: front.leave(counted))

    def _stream(self, handle: int, piece: bytes, *, goes_on: bool) -> None:
        """Send a piece of a streamed answer. If the client reads no answers, hold one piece; its request ends later."""
        found = self._open.get(handle)
        if found is None:
            self.switch.on_gone(handle, self.now_us)
            return
        path, exchange_id, faults, counted = found
        self._streams[handle] = None
        if not path.reads_answers:
            if not counted.held_bytes and counted.hold(len(piece)):
                self.clock.after(self.limits.answer_us, lambda: self.gone(path, exchange_id))
            return
        path.stream(exchange_id, piece, faults, is_last=not goes_on)
        if not goes_on:
            del self._open[handle]
            self._streams.pop(handle)
            self._handles.pop((path.node, exchange_id), None)
            self.front.leave(counted)

    def _pump_streams(self) -> bool:
        moved = False
        while (handle := self.switch.poll_stream_ready()) is not None:
            while handle in self._streams and self._open[handle][0].reads_answers:
                response = self.switch.poll_stream(handle, self.now_us)
                if response is None:
                    break
                moved = True
                self._answer(handle, 200, b"".join(response.body), goes_on=response.goes_on)
        return moved

    # links

    def link_opened(
        self, link: RelayLink, user: str, attachment_id: bytes, epoch: int, generation: int, *, shares: bool = False
    ) -> int:
        """Return the number of the new link, 0 if the switch refuses it or no relay listens."""
        if self.clock.now_us < self.down_until_us:
            return 0
        self._next_link += 1
        number = self._next_link
        names = user, attachment_id, epoch, generation
        if not self.switch.link_opened(number, *names, self.now_us, shares=shares):
            return 0
        self.links[number] = link
        self.pump()
        return number

    def link_closed(self, number: int) -> None:
        if self.links.pop(number, None) is not None:
            self.switch.link_closed(number, self.now_us)
            self.pump()

    # drained after every step

    def pump(self) -> None:
        """Deliver the switch's output to paths and links; then set its timer."""
        while True:
            while (response := self.switch.poll_response()) is not None:
                self._answer(response.handle, response.status, b"".join(response.body), goes_on=response.goes_on)
            if not self._pump_streams():
                break
        while True:
            while (ready := self.switch.poll_link_ready()) is not None:
                if ready in self.links:
                    self.links[ready].signalled()
            for link in list(self.links.values()):
                link.fill_down()
            if not any(self.links[ready].shares for ready in self.switch.links_ready if ready in self.links):
                break
        while (number := self.switch.poll_link_end()) is not None:
            ended = self.links.pop(number, None)
            if ended is not None:
                ended.cut_by_relay()
        self._check(self)
        self._arm()

    def _arm(self) -> None:
        due_us = self.switch.next_timeout()
        if due_us is None:
            return
        at_us = due_us - self.offset_us
        if self._armed_us < 0 or at_us < self._armed_us:
            self._armed_us = at_us
            self.clock.at(at_us, lambda: self._timer(at_us))

    def _timer(self, at_us: int) -> None:
        if self._armed_us == at_us:
            self._armed_us = -1
            self.switch.handle_timeout(self.now_us)
            self.pump()

    # faults

    def restart(self, absence_us: int) -> None:
        """Lose all state and do not listen for a while. The host may reset the exchanges, or leave them silent."""
        self.restarts += 1
        self._strike(FaultKind.RELAY_RESTART, -1, 0, f"{absence_us} us")
        open_exchanges, self._open = self._open, {}
        self._handles.clear()
        self._streams.clear()
        reported = self._random.random() < 0.5
        for path, exchange_id, _, _ in open_exchanges.values():
            if reported:
                path.reset(exchange_id)
        links, self.links = self.links, {}
        self.switch = self._make_switch()
        self.front = Front(self.limits)
        self._armed_us = -1
        self.down_until_us = self.clock.now_us + absence_us
        for link in links.values():
            link.cut_by_relay()
        self._restart_at_exchange = self._draw_restart()

    def jump(self, amount_us: int) -> None:
        """The relay's clock leaps ahead, as after a suspension."""
        self._strike(FaultKind.CLOCK_JUMP, -1, 0, f"{amount_us} us")
        self.offset_us += amount_us
        self.switch.handle_timeout(self.now_us)
        self._armed_us = -1
        self.pump()

    def _draw_restart(self) -> int:
        mean = self.plan.restart_exchanges_mean
        if not mean or self.restarts >= self.plan.restarts_max:
            return 1 << 62
        return self.exchanges + 1 + round(self._random.expovariate(1 / mean))
