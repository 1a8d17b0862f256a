"""What an `Attachment` is made of: the driver, the connections and the services of one endpoint, and their events."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from random import Random, SystemRandom
from typing import Any, TypeAlias

from tunnel.carriers.base import Carrier
from tunnel.core import Connection, ConnectRequested, EndpointConfig, Incoming, Moved, Siblings
from tunnel.driver import Driver, StatusEvent
from tunnel.encryption.decisions import Mode
from tunnel.encryption.settings import Encryption, Offer
from tunnel.encryption.transport import EncryptedTransport
from tunnel.encryption.turns import HandshakeSlot
from tunnel.errors import LostError, RefusedError, TunnelError, UnreachableError
from tunnel.exchange import AttachedEvent, AttachRefused, Detached, Recovered, Troubled
from tunnel.ground.carrier_limits import pull_interval_us
from tunnel.ground.defaults import ATTACH_TIMEOUT_S, LINGER_S
from tunnel.ground.relay_urls import is_same_relay
from tunnel.ground.special_targets import target_text
from tunnel.refusals import name_error, refusal_error
from tunnel.secret_renewal import Renew
from tunnel.status import AttachmentStats, Listeners, StatisticsCollector
from tunnel.streams.listener import (
    ExitHandler,
    ExitRequest,
    Handler,
    OfferedService,
    Server,
    Sink,
    dial_failure,
    streams_sink,
)
from tunnel.streams.rate_limit import RateLimit
from tunnel.streams.streams import StreamReader, StreamWriter, open_streams
from tunnel.streams.transport import MadeTransport, Transport
from tunnel.system.tasks import KeptTasks
from tunnel.traces.record import TraceCause, TraceSink
from tunnel.waiting import UnansweredConnects, WaitingLog, log_move
from tunnel.wire import SECRET_SIZE, PublicPlace, RejectReason, Target, TargetKind, question_about

__all__ = ["AttachedEndpoint", "CarrierMaker"]

ANNOUNCE_TIMEOUT_S = 2.0  # how long start_server waits for the relay to confirm a service
_DRAINING = "the relay is about to stop: it takes no new connections until it runs again; open ones go on"

CarrierMaker: TypeAlias = Callable[[bytes, Random], Carrier]  # called with the attachment's secret
TellMove: TypeAlias = "Callable[[AttachedEndpoint, AttachedEndpoint, int, str, TraceCause], None]"
"""Hears of a connection that has moved: from where, to where, its id, its target, and why."""


class AttachedEndpoint:
    """Does the work of an `Attachment`, which describes the methods. It belongs to one event loop from `start` on.

    `renew` passes new secrets to the carrier; None if it needs none. `url`: that of the relay, if it has one. The
    driver calls the methods of `Application`.

    One thing because it owns every connection and every server of one endpoint: what ends it must end all of them.
    """

    def __init__(
        self,
        make_carrier: CarrierMaker,
        config: EndpointConfig,
        *,
        name: str = "",
        exit_handler: ExitHandler | None = None,
        attach_timeout: float | None = ATTACH_TIMEOUT_S,
        linger: float = LINGER_S,
        trace: TraceSink | None = None,
        encryption: Encryption | None = None,
        rate_limit: RateLimit | None = None,
        renew: Renew | None = None,
        url: str = "",
    ) -> None:
        self.rate_limit = rate_limit  # the limit of all connections together
        self._renew = renew
        self._url = url
        self.listeners = Listeners(self._report)
        self._make_carrier = make_carrier
        self._encryption = encryption or Encryption()
        self._config = config
        self._name = name
        self._exit_handler = exit_handler
        self._attach_timeout = attach_timeout
        self.linger = linger  # how many seconds `close` waits for written bytes to arrive
        self._trace = trace
        self._unanswered = UnansweredConnects(self.check, self.listeners.on_unanswered)
        self._servers: dict[str, OfferedService] = {}
        self._transports: dict[int, MadeTransport] = {}  # by the id of the connection
        self._siblings = Siblings(is_one_domain=False)
        self._others: list[AttachedEndpoint] = []  # of this process, at other relays
        self._place = 0  # how many of them are preferred to this one
        self._tell_move: TellMove | None = None
        self._tasks = KeptTasks()
        self._trouble = ""
        self._refusal: TunnelError | None = None
        self._empty: asyncio.Event
        self._attached: asyncio.Future[None]
        self._driver: Driver | None = None
        self.epoch = 0  # which the relay drew when it was started; 0 before it has answered
        self._leaving = False  # no further connections are accepted
        self._closed = False

    # lifecycle

    async def start(self) -> None:
        """Attach, and return when the relay has answered."""
        if self._driver is not None:
            raise RuntimeError("an attachment can be started only once: create another one")
        loop = asyncio.get_running_loop()
        self._attached = loop.create_future()
        self._empty = asyncio.Event()
        self._empty.set()
        random = SystemRandom()
        carrier = self._make_carrier(secrets.token_bytes(SECRET_SIZE), random)
        self._driver = Driver(carrier, self, self._config, random, name=self._name, trace=self._trace)
        self._driver.statistics = self.listeners.statistics
        if self._others:
            self._driver.endpoint.join(self._siblings, self._place, self._driver.wake)
        waiting = WaitingLog(self._driver.relay, self._last_trouble)
        limit = asyncio.timeout(self._attach_timeout)
        try:
            self._driver.start()
            async with limit:
                await self._attached
                await carrier.until_ready()
        except BaseException as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            if late:
                text = self._unreachable(self._last_trouble())  # now: the end of the carrier changes it
            else:
                text = f"the attachment ended before a relay answered at {self._driver.relay}"
            self._refusal = error if isinstance(error, TunnelError) else UnreachableError(text)
            self._end_all(self._refusal)  # at several relays, connections and services may wait here already
            await self._driver.close()
            if late:
                raise self._refusal.with_traceback(None) from None
            raise
        finally:
            waiting.stop()

    def _unreachable(self, trouble: str) -> str:
        assert self._driver is not None
        assert self._attach_timeout is not None
        where = self._driver.relay
        return (
            f"no relay answers at {where} within {self._attach_timeout:g} s ({trouble or 'no answer'}): "
            "check the URL, the proxy, the relay; `tunnel doctor` finds out which is at fault"
        )

    def _last_trouble(self) -> str:
        assert self._driver is not None
        return self._trouble or self._driver.carrier.failure

    def report_to(self, outer: Listeners, on_change: Callable[[str], None]) -> None:
        """Let an attachment to several relays hear what happens at this one (`Listeners`); call it before `start`."""
        self.listeners = Listeners(self._report, outer, on_change)
        self._unanswered = UnansweredConnects(self.check, self.listeners.on_unanswered)

    def join(
        self, siblings: Siblings, others: list[AttachedEndpoint], place: int, tell_move: TellMove | None = None
    ) -> None:
        """Move open connections to and from these endpoints at other relays (PROTOCOL 6.11); call it before `start`.
        `place`: how many of them are preferred to this one. `tell_move` hears of each connection that comes here."""
        self._siblings, self._others, self._place, self._tell_move = siblings, others, place, tell_move

    def renew_at(self, relay: str) -> Renew | None:
        """Return what passes new secrets to the carrier. Raise ValueError if another relay is named."""
        if relay and not is_same_relay(relay, self._url):
            raise ValueError(f"{relay} is not the relay of this attachment, {self._url}: its secrets go nowhere else")
        return self._renew

    def interrupt(self) -> None:
        """Abort the connections: an exception interrupted writing, so the peers must not see a clean end of stream."""
        for made in list(self._transports.values()):
            made.transport.abort()
        self.linger = min(self.linger, 1.0)

    def leave(self) -> None:
        """Stop accepting connections, and tell the relay."""
        driver = self._ready()
        self._leaving = True
        for server in list(self._servers.values()):
            server.close()
        if self._exit_handler is not None and self._refusal is None:
            driver.endpoint.leave(driver.now())
            driver.wake()

    async def close(self) -> None:
        """Stop accepting connections, wait for written bytes to arrive, then end everything."""
        if self._driver is None or self._closed:
            return
        self.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.linger):
                await self.until_empty()
        await self.end()

    def finish(self) -> None:
        """Stop accepting connections, and close those that are here once their written bytes have arrived."""
        if self._driver is None:
            return
        self.leave()
        for made in list(self._transports.values()):
            made.transport.close()

    async def until_empty(self) -> None:
        """Return when no connection is here, because each has ended or moved."""
        await self._empty.wait()

    async def end(self) -> None:
        """Abort the connections, and end everything."""
        driver = self._driver
        if driver is None or self._closed:
            return
        for made in list(self._transports.values()):
            made.transport.abort()
        driver.abort_all()
        if self.is_attached and self._refusal is None:
            driver.endpoint.leave(driver.now())  # so that it takes no place at the relay any more
        self._closed = True
        self._tasks.cancel()
        driver.pump()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(1.0, self.linger)):
                await driver.quiet()
        await self._tasks.stop()
        await driver.close()
        await asyncio.sleep(0)  # the loop calls connection_lost in its next round

    # connections

    async def connect_streams(
        self, host: str, port: int | None, seconds: float | None, limit: int
    ) -> tuple[StreamReader, StreamWriter]:
        """Connect, and return streams."""
        return open_streams(await self.connect(host, port, seconds), limit=limit)

    async def check(self, host: str, port: int | None, seconds: float) -> str:
        """Raise DeniedError if the relay's rules deny this connection (3.14). Return why an unanswered connection to
        this target waits, if there is one and the relay answers."""
        try:
            (await self._connect(host, port, seconds, asks=True)).transport.abort()
        except RefusedError as error:
            return error.said if error.reason is RejectReason.ALLOWED else ""
        except (LostError, TimeoutError):
            pass
        return ""

    async def connect(self, host: str, port: int | None, seconds: float | None) -> MadeTransport:
        """Connect to a TCP target, or without a port to a service. The transport has not begun."""
        with self._unanswered.watch(host, port) as watch:
            try:
                return await self._connect(host, port, seconds)
            except TimeoutError as error:
                raise TimeoutError(f"{error}: {watch.why}" if watch.why else str(error)) from None

    async def _connect(
        self, host: str, port: int | None, seconds: float | None, *, asks: bool = False
    ) -> MadeTransport:
        """Do as `connect`; with `asks`, only ask whether the rules allow it."""
        driver = self._ready()
        self._raise_refusal()
        if port is not None and not 0 < port < 65536:
            raise ValueError(f"port must be between 1 and 65535, not {port}: leave it out to reach a service")
        target = Target(TargetKind.SERVICE, host) if port is None else Target(TargetKind.TCP, host, port)
        offer, target = (None, question_about(target)) if asks else (self._encryption.offer(target), target)
        connection = driver.endpoint.connect(target, driver.now(), b"" if offer is None else offer.client_hello)
        label = target_text(host, port)
        # Data leaves with the ACK of the opening, but not to a service. Unlike an exit, it sees the connection only
        # with this ACK, and may want a turn of its own before data comes, as for `start_tls`.
        made: MadeTransport
        connected: Callable[[Transport], None] | None = None if port is None else lambda _: made.await_turn()
        made = self._transport(connection, label, peername=(host, port or 0), connected=connected, offer=offer)
        if seconds is None:
            await made.opened()
            return made
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await made.opened()
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"{label}: no answer within {seconds:g} s") from None
        return made

    def _transport(
        self,
        connection: Connection,
        label: str,
        *,
        peername: tuple[str, int],
        ended: Callable[[Transport], None] | None = None,
        connected: Callable[[Transport], None] | None = None,
        offer: Offer | None = None,
        slot: HandshakeSlot | None = None,
    ) -> MadeTransport:
        """Return a connection's new transport. `offer`: our offer to encrypt; `slot`: our turn to answer the peer's."""

        def forget(transport: Transport) -> None:
            for one in (self, *self._others):
                one.let_go(transport.connection_id)
            if ended is not None:
                ended(transport)

        extra: dict[str, Any] = {
            "peername": peername,
            "sockname": (self._name, 0),
            "tunnel_user": connection.identity.user,
            "tunnel_target": connection.identity.target,
        }
        made = MadeTransport()
        common = (self._ready(), connection, label, extra, made, forget, connected)
        if offer is not None:
            EncryptedTransport(*common, tls=offer.tls, trust=offer.trust)
        elif slot is not None:
            EncryptedTransport(*common, tls=self._encryption.session(), slot=slot)
        else:
            Transport(*common)
        if self.rate_limit is not None:
            made.transport.limit_rate(self.rate_limit)
        self._keep(made)
        return made

    def _keep(self, made: MadeTransport) -> None:
        self._transports[made.transport.connection_id] = made
        self._empty.clear()

    def let_go(self, connection_id: int) -> MadeTransport | None:
        """Forget and return the transport of a connection that has ended, or has moved to another relay."""
        made = self._transports.pop(connection_id, None)
        if made is not None and not self._transports:
            self._empty.set()
        return made

    # services

    async def serve_streams(
        self, handler: Handler, limit: int, name: str, backlog: int, public: PublicPlace | None
    ) -> Server:
        """Offer a service: call `handler` with the streams of each connection."""
        return await self.serve(streams_sink(handler, limit, self._tasks.keep), name, backlog, public)

    async def serve(self, take: Sink, name: str, backlog: int, public: PublicPlace | None) -> Server:
        """Offer a service: call `take` with each connection."""
        driver = self._ready()
        if self._leaving:
            raise RuntimeError("this attachment accepts no connections any more: make another one")
        self._raise_refusal()
        if self._encryption.mode is Mode.REQUIRE and self._encryption.key is None:
            raise ValueError(f"encryption is required, but {name!r} has no key to be served with: name a file as `key`")
        if name in self._servers:
            raise ValueError(f"this attachment already has a server for {name!r}: close that one first")
        Target(TargetKind.SERVICE, name)  # raises ValueError for a name that does not fit on the wire
        driver.endpoint.listen(name, backlog, driver.now(), public)
        server = self._servers[name] = OfferedService(name, self._unlisten, take)
        driver.wake()
        try:
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
                await driver.until(lambda: not server.is_serving or driver.endpoint.services.is_answered(name))
        except TimeoutError:
            pass  # the endpoint repeats the announcement until the relay answers
        except BaseException:  # cancelled: nobody will have the server, so that nobody could close it
            if not self._closed:
                server.close()
            raise
        if server.refusal is not None:
            raise server.refusal.with_traceback(None)
        self._raise_refusal()
        return server.server

    def _unlisten(self, name: str) -> None:
        driver = self._ready()
        self._servers.pop(name, None)
        driver.endpoint.unlisten(name, driver.now())
        driver.wake()

    # status

    @property
    def has_connections(self) -> bool:
        """Whether any connection is here."""
        return bool(self._transports)

    @property
    def is_attached(self) -> bool:
        """Whether, by our latest information, the relay knows this attachment and answers."""
        return self.listeners.is_connected

    @property
    def refusal(self) -> TunnelError | None:
        """The error with which this attachment ended for good, such as the relay's refusal, or None. It ends every
        connection."""
        return self._refusal

    def stats(self) -> AttachmentStats:
        """Return a snapshot of the attachment and its connections. Listeners may ask until nothing leaves any more."""
        driver = self._driver
        if driver is None or driver.is_closed:
            driver = self._ready()  # raises
        connections = {number: connection.snapshot() for number, connection in driver.endpoint.connections.items()}
        return AttachmentStats(
            attached=self.is_attached,
            carrier=driver.carrier.description,
            trouble=self._trouble or self._notice(driver),
            batches_unreceipted=driver.unreceipted,
            packets_discarded=driver.endpoint.packets_discarded,
            connections=connections | {number: made.transport.stats() for number, made in self._transports.items()},
            targets={number: made.transport.target for number, made in self._transports.items()},
            encryption={number: made.transport.encryption for number, made in self._transports.items()},
            pull_interval=driver.carrier.pull_interval_us / 1_000_000,
            roads=driver.roads,
        )

    def _notice(self, driver: Driver) -> str:
        if not self._attached.done():
            return driver.carrier.failure
        return _DRAINING if self.is_draining else ""

    def count_bytes(self, collector: StatisticsCollector | None) -> None:
        """Report bytes to this object from now on."""
        self.listeners.statistics = collector
        if self._driver is not None:
            self._driver.statistics = collector

    @property
    def is_draining(self) -> bool:
        """Whether the relay is about to stop (PROTOCOL 9.9)."""
        return self._driver is not None and self._driver.endpoint.attachment_options.is_draining

    @property
    def relay(self) -> str:
        """Where the relay is, for people; empty before the start."""
        return "" if self._driver is None else self._driver.relay

    @property
    def drivers(self) -> list[Driver]:
        """The driver, for metrics; none if the attachment is not open."""
        return [] if self._driver is None or self._closed else [self._driver]

    async def set_pull_interval(self, seconds: float) -> float:
        """Ask the relay for another interval between pulls, and return the seconds on which the relay settles."""
        driver = self._ready()
        self.ask_for_pull_interval(seconds)
        rate = driver.endpoint.attachment_options
        await driver.until(lambda: self._refusal is not None or rate.is_answered)
        self._raise_refusal()
        return self.stats().pull_interval

    def ask_for_pull_interval(self, seconds: float) -> None:
        """Ask the relay for another interval between pulls, and do not wait for its answer."""
        driver = self._ready()
        driver.endpoint.attachment_options.ask(pull_interval_us(seconds) // 1000, driver.now())
        driver.wake()

    # Application: called by the driver

    def incoming(self, event: Incoming) -> None:
        driver = self._driver
        assert driver is not None
        server = self._servers.get(event.service)
        connection = driver.endpoint.connections.get(event.connection_id)
        if connection is None:
            return  # it ended before this event was handled
        if server is None or self._closed:
            connection.abort(driver.now())
            return
        made = self._transport(
            connection, f"{event.service} (from {event.user})", peername=(event.user, 0), ended=server.remove
        )
        server.add(made)

    def on_asked(self, event: ConnectRequested) -> None:
        driver = self._driver
        assert driver is not None
        if event.connection_id not in driver.endpoint.connections:
            return  # it ended before this event was handled
        target, label = event.target, target_text(event.target.host, event.target.port)
        is_service = target.kind == TargetKind.SERVICE
        server = self._servers.get(target.host) if is_service else None
        try:
            if self._leaving:
                who = "endpoint" if is_service else "exit"
                raise RefusedError(f"the {who} is shutting down", RejectReason.SHUTTING_DOWN)
            if is_service and server is None:
                raise RefusedError("", RejectReason.NO_SUCH_SERVICE)
            slot = self._encryption.take_up(event.offer, event.user)
        except RefusedError as error:
            driver.endpoint.refuse(event.connection_id, error.reason, str(error), driver.now())
            return
        if server is not None:
            self._accept_service(event, server, slot)
            return

        def accept() -> MadeTransport:
            return self._transport(self._accepted(event, slot), label, peername=(event.user, 0), slot=slot)

        def refuse(reason: RejectReason, text: str) -> None:
            if event.connection_id in driver.endpoint.connections:
                driver.endpoint.refuse(event.connection_id, reason, text, driver.now())
                driver.wake()

        request = ExitRequest(target, event.user, accept, refuse, event.connection_id)
        self._tasks.keep(asyncio.get_running_loop().create_task(self._dial(request, slot)))

    def _accept_service(self, event: ConnectRequested, server: OfferedService, slot: HandshakeSlot | None) -> None:
        """Accept a connection to a service, and give it to the server once it is open."""

        def surface(transport: Transport) -> None:
            if self._closed or not server.is_serving:
                transport.abort()
            else:
                server.add(made)

        made = self._transport(
            self._accepted(event, slot),
            f"{event.target.host} (from {event.user})",
            peername=(event.user, 0),
            ended=server.remove,
            connected=surface,
            slot=slot,
        )

    def _accepted(self, event: ConnectRequested, slot: HandshakeSlot | None) -> Connection:
        """Accept the connection and return it. With a slot, the transport accepts it when it is the user's turn."""
        driver = self._ready()
        if slot is None or event.connection_id not in driver.endpoint.connections:
            driver.endpoint.accept(event.connection_id, driver.now())
        return driver.endpoint.connections[event.connection_id]

    async def _dial(self, request: ExitRequest, slot: HandshakeSlot | None) -> None:
        """Run the exit handler. If it ends without an answer, refuse the request."""
        try:
            assert self._exit_handler is not None  # without a handler, the core refuses the request
            await self._exit_handler(request)
        except OSError as error:
            request.refuse(dial_failure(error), str(error))
        except Exception as error:
            self._report("unhandled exception in an exit handler", error)
        finally:
            request.refuse(RejectReason.SHUTTING_DOWN if self._closed else RejectReason.UNREACHABLE)
            if slot is not None and not slot.is_used:
                slot.leave()

    def on_moved(self, event: Moved) -> None:
        driver = self._driver
        assert driver is not None
        for one in self._others:
            if (made := one.let_go(event.connection_id)) is not None:
                made.move_to(driver)
                self._keep(made)
                self._note_move(event.connection_id, one, made.transport.target)
                if self._closed:
                    made.transport.abort()

    def _note_move(self, connection_id: int, before: AttachedEndpoint, target: str) -> None:
        driver = self._ready()
        connection = driver.endpoint.connections.get(connection_id)
        if connection is None:
            return  # it ended before this event was handled
        if not connection.identity.initiator:
            cause = TraceCause.PEER_MOVED
        else:
            cause = TraceCause.RELAY_DRAINED if before.is_draining else TraceCause.RELAY_SILENT
        driver.note_move(connection_id, connection.identity.peer_id, before.relay, cause)
        if self._tell_move is not None:
            self._tell_move(before, self, connection_id, target, cause)

    def on_refused(self, name: str, text: str) -> None:
        if (server := self._servers.get(name)) is not None:
            server.refuse(name_error(name, text))

    def status(self, event: StatusEvent) -> None:
        match event:
            case AttachedEvent() | Recovered():
                self._trouble = ""
                if isinstance(event, AttachedEvent):
                    self.epoch = event.epoch
                    if event.both_ran_us and self._transports:
                        log_move()
                if self._driver is not None and self._driver.is_attached:  # Recovered can come while it is not attached
                    self.listeners.present()
                    if not self._attached.done():
                        self._attached.set_result(None)
            case Troubled(last=last):
                self._trouble = last
                self.listeners.absent(last)
            case Detached():
                self.listeners.absent("the relay no longer knows this attachment")
            case AttachRefused():
                self._refused(event)

    def trouble(self, text: str, *, final: bool) -> None:
        self._trouble = text
        self.listeners.on_failed(text)
        if final and not self._attached.done():
            assert self._driver is not None
            self._attached.set_exception(UnreachableError(f"no relay answers at {self._driver.relay}: {text}"))

    # internals

    def _refused(self, event: AttachRefused) -> None:
        """Record the relay's final refusal, and end every connection and server with it."""
        error = refusal_error(event, self._driver.relay if self._driver is not None else "the relay")
        self._trouble = str(error)
        self._refusal = error
        self.listeners.absent(self._trouble, is_final=self._attached.done())
        if not self._attached.done():
            self._attached.set_exception(error)
        self._end_all(error)

    def _end_all(self, error: TunnelError) -> None:
        """End every connection with this error, and every server."""
        for made in list(self._transports.values()):
            made.fail(error)
        for server in list(self._servers.values()):
            server.close()

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def _ready(self) -> Driver:
        if self._driver is None or self._closed:
            raise RuntimeError("the attachment is not open: use it within `async with tunnel.attach(...) as t`")
        return self._driver

    def _report(self, message: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
