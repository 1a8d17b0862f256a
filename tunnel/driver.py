"""The only place where the clock, the core and a carrier meet.

The driver makes no decisions. It moves events, batches and timeouts between an endpoint and its carrier until nothing
moves, then sets one timer. Registered handlers interpret the events; the core and the lanes decide what to repeat and
when.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol, TypeAlias

from msgspec import structs

from tunnel.carriers.base import Carrier
from tunnel.carriers.exchanging import ExchangingCarrier
from tunnel.core import ConnectRequested, Endpoint, EndpointConfig, Event, Incoming, Moved, State
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    PacketsReceived,
    Recovered,
    RoadReport,
    Troubled,
)
from tunnel.system.clock import LoopTimer, now_us, slept_us
from tunnel.traces.exchanges import ExchangeTracer
from tunnel.traces.record import TraceCause, TraceLevel, TraceSink, level_of
from tunnel.traces.watch import DriverWatch
from tunnel.wire import RejectReason

__all__ = ["Application", "ByteCounts", "Driver", "StatusEvent"]

StatusEvent: TypeAlias = AttachedEvent | Detached | Troubled | Recovered | AttachRefused


# The text of a trace's `detached` record, by event; analyses read it.
_TRACED: dict[type, str] = {Detached: "detached", Troubled: "troubled", AttachRefused: "refused"}


class Application(Protocol):
    """Receives the events that belong to no registered connection."""

    def incoming(self, event: Incoming) -> None:
        """Handle a new connection to a service. Register a handler before returning: later events without one are
        dropped."""

    def on_asked(self, event: ConnectRequested) -> None:
        """Handle a CONNECT that the application decides about: accept or refuse it, now or later."""

    def on_moved(self, event: Moved) -> None:
        """Handle a connection that goes on here; until now a sibling had it, at another relay. Register its handler
        before returning."""

    def on_refused(self, name: str, text: str) -> None:
        """Handle the relay's refusal of a service, be it new or accepted before. `text`: the relay's reason."""

    def status(self, event: StatusEvent) -> None:
        """Handle a change of the attachment: attached, detached, troubled, recovered or refused."""

    def trouble(self, text: str, *, final: bool) -> None:
        """Handle the failure of an HTTP connection to the relay; `text` and `final` as in `Host.trouble`."""


class ByteCounts(Protocol):
    """Hears of the bytes of batches, as a `tunnel.StatisticsCollector` does."""

    def increment_out_bytes(self, size_bytes: int) -> None: ...

    def register_write(self, size_bytes: int) -> None: ...


class Driver:
    """Connects one endpoint, one carrier and one timer. Everything runs in one event loop; no method blocks.

    One thing because what each of the three does may make something of the others due: one pump asks all of them.
    """

    def __init__(
        self,
        carrier: Carrier,
        application: Application,
        config: EndpointConfig,
        random: Random,
        *,
        name: str = "",
        trace: TraceSink | None = None,
    ) -> None:
        # for traces; a later process may have the same endpoint name, but not the same id
        node = f"{name or 'endpoint'}-{carrier.attachment_id.hex()[:8]}"
        self.endpoint = Endpoint(config, random, endpoint_id=carrier.attachment_id, name=node, trace=trace)
        self.carrier = carrier
        self.now: Callable[[], int] = now_us
        """Return the time, which callers pass to the methods of the endpoint."""
        self.unreceipted = 0  # number of batches without a receipt
        self.statistics: ByteCounts | None = None
        self._application = application
        self._attached: AttachedEvent | None = None
        self._slept_us = slept_us()  # at the last attach
        self._handlers: dict[int, Callable[[Event], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._pumping = False
        self._was_called = False  # the carrier may have new events, since it was asked, or calls during a pump
        self._scheduled: asyncio.Handle | None = None
        self._is_turn_awaited = False  # no batch leaves before the next round of the event loop
        self._timer = LoopTimer(self._move)
        self._carrier_due_us: int | None = None
        self._carrier_changed = True  # its due time must be asked again
        self._carrier_called = True  # exchanges may be due, whatever its due time is
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._watch: DriverWatch | None = None
        if trace is not None and level_of(trace) is not TraceLevel.OFF:
            exchanging = carrier if isinstance(carrier, ExchangingCarrier) else None
            self._watch = DriverWatch(trace, node, exchanging.sockets if exchanging is not None else tuple)
            if exchanging is not None:
                exchanging.exchange_trace = ExchangeTracer(trace, node)

    # lifecycle

    def start(self) -> None:
        """Start the carrier, which begins to attach."""
        self.carrier.start(self)
        if self._watch is not None:
            self._watch.start()
        self.pump()

    async def close(self) -> None:
        """Stop at once and give up the batches that are not receipted."""
        self._closed = True
        self._timer.cancel()
        if self._scheduled is not None:
            self._scheduled.cancel()
        if self._watch is not None:
            self._watch.close()
        self._wake_waiters()
        await self.carrier.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: nothing leaves any more."""
        return self._closed

    @property
    def is_attached(self) -> bool:
        """Whether, by our latest information, the relay knows this attachment."""
        return self._attached is not None

    # for callers that use the endpoint

    def register(self, connection_id: int, handler: Callable[[Event], None]) -> None:
        """Pass the events of this connection to `handler` from now on."""
        self._handlers[connection_id] = handler

    def unregister(self, connection_id: int) -> None:
        """Drop the events of this connection from now on."""
        self._handlers.pop(connection_id, None)

    def wake(self) -> None:
        """Schedule a pump. Call it after using the endpoint. Several calls in one round of the loop cause one pump."""
        if self._scheduled is None and not self._pumping and not self._closed:
            self._scheduled = self._loop.call_soon(self._run)

    def await_turn(self) -> None:
        """Let the batch of this pump wait for the next round of the event loop, in which the application has its turn:
        what it writes then, for example to a connection that was just opened, leaves with the ACK."""
        self._is_turn_awaited = True

    def abort_all(self) -> None:
        """End every connection, so that no peer waits; also those that the application has not seen yet."""
        now = self.now()
        for connection in list(self.endpoint.connections.values()):
            if connection.state is State.REQUESTED:
                self.endpoint.refuse(connection.id, RejectReason.SHUTTING_DOWN, "", now)
            else:
                connection.abort(now)
        self.wake()

    async def quiet(self) -> None:
        """Return when no packet waits to be sent and every batch is receipted, or when the driver is closed."""
        await self.until(lambda: not self.unreceipted and not self.endpoint.wants_batch())

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return when `reached()` is true, which is checked now and after every pump, or when the driver is closed."""
        while not self._closed and not reached():
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    @property
    def roads(self) -> list[RoadReport]:
        """The state of each road, for people."""
        return self.carrier.roads() if isinstance(self.carrier, ExchangingCarrier) else []

    # Host: called by the carrier

    def pump(self) -> None:
        """Move everything that can move, then set the timer. Afterwards nothing is due."""
        self._carrier_changed = self._carrier_called = True
        self._move()

    def deliver(self) -> None:
        """Do as `pump`, but do not ask the carrier for exchanges before its next timeout."""
        self._carrier_changed = True
        self._move()

    def wrote(self, size_bytes: int) -> None:
        if self.statistics is not None:
            self.statistics.register_write(size_bytes)

    def trouble(self, text: str, *, final: bool = False) -> None:
        self._application.trouble(text, final=final)

    # the pump

    def _run(self) -> None:
        self._scheduled = None
        self._move()

    def _move(self) -> None:
        """Move what can move. The carrier is asked for what is due only if it has changed since, or something is."""
        if self._pumping or self._closed:
            self._was_called = True
            return
        self._pumping = True
        carrier, endpoint = self.carrier, self.endpoint
        events, refusals, options = endpoint.events, endpoint.services.refusals, endpoint.attachment_options
        try:
            now = now_us()
            while True:
                self._was_called = False
                if events or carrier.has_events or refusals or options.settled:
                    self._events(now)
                    now = now_us()  # event handlers ran, which takes time
                if endpoint.wants_batch() and not self._is_turn_awaited:
                    self._batches(now)
                if self._carrier_called:
                    self._advance(now)
                    self._was_called = True
                if events or (self._was_called and carrier.has_events) or refusals or options.settled:
                    continue
                endpoint_us = endpoint.next_timeout()
                if endpoint_us is not None and endpoint_us <= now:
                    endpoint.handle_timeout(now)
                    continue  # first, because the packets that leave now carry receipts that may be due, too
                if self._carrier_changed:
                    self._carrier_due_us = carrier.next_timeout()
                    self._carrier_changed = False
                carrier_us = self._carrier_due_us
                if carrier_us is None or carrier_us > now:
                    break
                if not self._advance(now):
                    carrier.handle_timeout(now)
                    self._carrier_changed = self._carrier_called = True
        finally:
            self._pumping = False
        if self._is_turn_awaited:
            self._is_turn_awaited = False
            self.wake()
        due_us = (
            carrier_us if endpoint_us is None or (carrier_us is not None and carrier_us < endpoint_us) else endpoint_us
        )
        timer = self._timer
        if due_us is not None and (timer.due_us is None or due_us < timer.due_us):
            timer.due_by(due_us, now)
        if self._waiters:
            self._wake_waiters()

    def _events(self, now: int) -> None:
        poll_carrier, endpoint = self.carrier.poll_event, self.endpoint
        while (lane_event := poll_carrier()) is not None:
            self._carrier_event(lane_event, now)
        events = endpoint.events
        while events:
            event = events.popleft()
            handler = self._handlers.get(event.connection_id)
            if handler is not None:
                handler(event)
            elif isinstance(event, Incoming):
                self._application.incoming(event)
            elif isinstance(event, Moved):
                self._application.on_moved(event)
            elif isinstance(event, ConnectRequested):
                self._application.on_asked(event)
        while endpoint.services.refusals and (refusal := endpoint.services.poll_refusal()) is not None:
            self._application.on_refused(*refusal)
        options = endpoint.attachment_options
        if options.settled and (settled := options.poll_settled()) is not None:
            wanted_us, settled_us = settled
            self.carrier.set_pull_interval(settled_us, wanted_us=wanted_us)
            self._carrier_changed = self._carrier_called = True

    def _carrier_event(self, event: LaneEvent, now: int) -> None:
        match event:
            case PacketsReceived(packets=packets):
                self.endpoint.carrier.round_trip_us = self.carrier.round_trip_us
                self.endpoint.receive_packets(packets, now)
            case BatchDone(token=token, ok=ok):
                self.unreceipted -= 1
                self.endpoint.batch_done(token, ok, now)
            case LanesChanged(lanes=lanes, pull_interval_us=pull_interval_us):
                self.endpoint.carrier_changed(lanes, pull_interval_us, now)
                if self._watch is not None:
                    self._trace_carrier(self._watch, lanes)
            case AttachedEvent() | Detached() | Troubled() | Recovered() | AttachRefused():
                self._status(event)

    def _status(self, event: StatusEvent) -> None:
        """Pass the change on. The user timeout runs while the relay does not know us or cannot be reached (4.15)."""
        match event:
            case AttachedEvent():
                self._attached = event = self._awake(event)
                self._present(fresh=event.fresh, moved=event.both_ran_us > 0)
            case Recovered():
                self._present(fresh=False)
            case Detached() | AttachRefused():
                self._attached = None
                self.endpoint.on_detached(self.now())
            case Troubled() if not event.is_partial:
                self.endpoint.on_detached(self.now())
        if self._watch is not None:
            self._trace_status(self._watch, event)
        self._application.status(event)

    def _awake(self, event: AttachedEvent) -> AttachedEvent:
        """Return the event without its proof of a move if the relay may have been restarted while the machine slept.

        All sleep since the last attach counts as if it came after the last answer of the earlier relay.
        """
        before_us, self._slept_us = self._slept_us, slept_us()
        if event.both_ran_us > self._slept_us - before_us:
            return event
        return structs.replace(event, both_ran_us=0)

    @property
    def relay(self) -> str:
        """Where the relay is, for people: its URL, and the proxy on the way."""
        return self.carrier.relay

    def note_move(self, connection_id: int, peer_id: int, before: str, cause: TraceCause) -> None:
        """Write a trace record of a connection that has come from another relay, which was called `before`."""
        if self._watch is not None:
            self._watch.on_moved(connection_id, peer_id, (before, self.relay), cause, self.now())

    def _trace_status(self, watch: DriverWatch, event: StatusEvent) -> None:
        now = self.now()
        if isinstance(event, AttachedEvent | Recovered):
            self._trace_carrier(watch, 0)
            watch.on_attached(self.relay, fresh=isinstance(event, AttachedEvent) and event.fresh, now=now)
        else:
            watch.on_detached(_TRACED[type(event)], now)

    def _trace_carrier(self, watch: DriverWatch, lanes: int) -> None:
        carrier = self.carrier.description.partition(" ")[0]
        watch.carrier_changed(carrier, lanes, self.now())
        if self.endpoint.tracer is not None:
            self.endpoint.tracer.carrier = carrier

    def _present(self, *, fresh: bool, moved: bool = False) -> None:
        known = self._attached
        if known is not None:
            limits = known.packet_bytes_max, known.initial_edge_bytes
            self.endpoint.on_attached(fresh, *limits, self.now(), packets_max=known.packets_max, moved=moved)

    def _batches(self, now: int) -> None:
        """Push what may leave."""
        while (room := self.carrier.room(now)) > 0:
            batch = self.endpoint.next_batch(room, now)
            if batch is None:
                break
            self.unreceipted += 1
            if self.statistics is not None:
                self.statistics.increment_out_bytes(batch.size)
            if self.carrier.push(batch.packets, batch.token, now):
                self._carrier_called = True
            self._carrier_changed = True
            if not self.endpoint.wants_batch():
                break

    def _advance(self, now: int) -> bool:
        """Let the carrier start the exchanges that are due; return whether any was."""
        moved = self.carrier.advance(now)
        self._carrier_called = False
        self._carrier_changed = self._carrier_changed or moved
        return moved

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
