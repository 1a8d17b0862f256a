"""What an `Attachment` is made of: the driver, the connections and the services of one endpoint, and their events."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from random import Random, SystemRandom
from typing import Any, TypeAlias

from tunnel.carrier_rates import pull_interval_us
from tunnel.carriers.base import Carrier
from tunnel.core import Connection, ConnectRequested, EndpointConfig, Incoming
from tunnel.defaults import ATTACH_TIMEOUT_S, LINGER_S
from tunnel.driver import Driver, StatusEvent
from tunnel.encryption.decisions import Mode
from tunnel.encryption.settings import Encryption, Offer
from tunnel.encryption.transport import EncryptedTransport
from tunnel.encryption.turns import HandshakeSlot
from tunnel.errors import LostError, RefusedError, TunnelError, UnreachableError
from tunnel.exchange import AttachedEvent, AttachRefused, Detached, Recovered, Troubled
from tunnel.listener import ExitHandler, ExitRequest, Handler, OfferedService, Server, Sink, dial_failure, streams_sink
from tunnel.rate_limit import RateLimit
from tunnel.refusals import name_error, refusal_error
from tunnel.secret_renewal import Renew
from tunnel.special_targets import target_text
from tunnel.status import AttachmentStats, Listeners
from tunnel.streams import StreamReader, StreamWriter, open_streams
from tunnel.tasks import KeptTasks
from tunnel.traces.record import TraceSink
from tunnel.transport import MadeTransport, Transport
from tunnel.waiting import UnansweredConnects, WaitingLog, log_move
from tunnel.wire import SECRET_SIZE, PublicPlace, RejectReason, Target, TargetKind, question_about

__all__ = ["AttachedEndpoint", "CarrierMaker"]

ANNOUNCE_TIMEOUT_S = 2.0  # how long start_server waits for the relay to confirm a service

CarrierMaker: TypeAlias = Callable[[bytes, Random], Carrier]  # called with the attachment's secret


class AttachedEndpoint:
    """Does the work of an `Attachment`, which describes the methods. It belongs to one event loop from `start` on.

    `renew` passes new secrets to the carrier; None if it needs none. The driver calls the methods of `Application`.
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
    ) -> None:
        self.rate_limit = rate_limit  # the limit of all connections together
        self.renew = renew
        self.listeners = Listeners(self._report)
        self._make_carrier = make_carrier
        self._encryption = encryption or Encryption()
        self._config = config
        self._name = name
        self._exit_handler = exit_handler
        self._attach_timeout = attach_timeout
        self._linger = linger
        self._trace = trace
        self._unanswered = UnansweredConnects(self.check, self.listeners.unanswered)
        self._servers: dict[str, OfferedService] = {}
        self._transports: dict[Transport, MadeTransport] = {}
        self._tasks = KeptTasks()
        self._trouble = ""
        self._refusal: TunnelError | None = None
        self._empty: asyncio.Event
        self._attached: asyncio.Future[None]
        self._driver: Driver | None = None
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
        waiting = WaitingLog(self._driver.relay, self._last_trouble)
        limit = asyncio.timeout(self._attach_timeout)
        try:
            self._driver.start()
            async with limit:
                await self._attached
                await carrier.prepared()
        except BaseException as error:
            trouble = self._last_trouble()  # the end of the carrier changes it
            await self._driver.close()
            if isinstance(error, TimeoutError) and limit.expired():
                raise UnreachableError(self._unreachable(trouble)) from None
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

    def interrupt(self) -> None:
        """Abort the connections: an exception interrupted writing, so the peers must not see a clean end of stream."""
        for transport in list(self._transports):
            transport.abort()
        self._linger = min(self._linger, 1.0)

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
        driver = self._driver
        if driver is None or self._closed:
            return
        self.leave()
        for transport in list(self._transports):
            transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger):
                await self._empty.wait()
        for transport in list(self._transports):
            transport.abort()
        driver.abort_all()
        self._closed = True
        self._tasks.cancel()
        driver.pump()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(1.0, self._linger)):
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
        with self._unanswered.watched(host, port) as watch:
            try:
                return await self._connect(host, port, seconds)
            except TimeoutError as error:
                raise TimeoutError(f"{error}: {watch.why}" if watch.why else str(error)) from None

    async def _connect(
        self, host: str, port: int | None, seconds: float | None, *, asks: bool = False
    ) -> MadeTransport:
        """Do as `connect`; with `asks`, only ask whether the rules allow it."""
        driver = self._ready()
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if port is not None and not 0 < port < 65536:
            raise ValueError(f"port must be between 1 and 65535, not {port}: leave it out to reach a service")
        target = Target(TargetKind.SERVICE, host) if port is None else Target(TargetKind.TCP, host, port)
        offer, target = (None, question_about(target)) if asks else (self._encryption.offer(target), target)
        connection = driver.endpoint.connect(target, driver.now(), b"" if offer is None else offer.client_hello)
        label = target_text(host, port)
        made = self._transport(connection, label, peername=(host, port or 0), offer=offer)
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
            self._transports.pop(transport, None)
            if not self._transports:
                self._empty.set()
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
        self._transports[made.transport] = made
        self._empty.clear()
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
        if self._encryption.mode is Mode.REQUIRE and self._encryption.key is None:
            raise ValueError(f"encryption is required, but {name!r} has no key to be served with: name a file as `key`")
        if name in self._servers:
            raise ValueError(f"this attachment already has a server for {name!r}: close that one first")
        Target(TargetKind.SERVICE, name)  # raises ValueError for a name that does not fit on the wire
        driver.endpoint.listen(name, backlog, driver.now(), public)
        server = self._servers[name] = OfferedService(name, self._unlisten, take)
        driver.wake()
        with suppress(TimeoutError):  # the endpoint repeats the announcement until the relay answers
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
                await driver.until(lambda: server.refusal is not None or driver.endpoint.services.is_answered(name))
        if server.refusal is not None:
            raise server.refusal.with_traceback(None)
        return server.server

    def _unlisten(self, name: str) -> None:
        driver = self._ready()
        self._servers.pop(name, None)
        driver.endpoint.unlisten(name, driver.now())
        driver.wake()

    # status

    @property
    def is_attached(self) -> bool:
        """Whether, by our latest information, the relay knows this attachment and answers."""
        return self.listeners.is_connected

    @property
    def refusal(self) -> TunnelError | None:
        """The error with which the relay refused this attachment for good, or None. It ends every connection."""
        return self._refusal

    def stats(self) -> AttachmentStats:
        """Return a snapshot of the attachment and its connections."""
        driver = self._ready()
        connections = {number: connection.snapshot() for number, connection in driver.endpoint.connections.items()}
        return AttachmentStats(
            attached=self.is_attached,
            carrier=driver.carrier.description,
            trouble=self._trouble or ("" if self._attached.done() else driver.carrier.failure),
            batches_unreceipted=driver.unreceipted,
            packets_discarded=driver.endpoint.packets_discarded,
            connections=connections | {transport.connection_id: transport.stats() for transport in self._transports},
            targets={transport.connection_id: transport.target for transport in self._transports},
            encryption={transport.connection_id: transport.encryption for transport in self._transports},
            pull_interval=driver.carrier.pull_interval_us / 1_000_000,
            roads=driver.roads,
        )

    async def set_pull_interval(self, seconds: float) -> float:
        """Ask the relay for another interval between pulls, and return the seconds on which the relay settles."""
        driver, rate = self._ready(), self._ready().endpoint.attachment_options
        rate.ask(pull_interval_us(seconds) // 1000, driver.now())
        driver.wake()
        await driver.until(lambda: self._refusal is not None or rate.is_answered)
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        return self.stats().pull_interval

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

    def asked(self, event: ConnectRequested) -> None:
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

        request = ExitRequest(target, event.user, accept, refuse)
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

    def refused(self, name: str, text: str) -> None:
        if (server := self._servers.get(name)) is not None:
            server.refuse(name_error(name, text))

    def status(self, event: StatusEvent) -> None:
        match event:
            case AttachedEvent() | Recovered():
                self._trouble = ""
                if isinstance(event, AttachedEvent) and event.both_ran_us and self._transports:
                    log_move()
                if self._driver is not None and self._driver.attached:  # Recovered can come while it is not attached
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
        self.listeners.failed(text)
        if final and not self._attached.done():
            assert self._driver is not None
            self._attached.set_exception(UnreachableError(f"no relay answers at {self._driver.relay}: {text}"))

    def buffered(self, size_bytes: int) -> None:
        if self.listeners.statistics is not None:
            self.listeners.statistics.increment_out_bytes(size_bytes)

    def wrote(self, size_bytes: int) -> None:
        if self.listeners.statistics is not None:
            self.listeners.statistics.register_write(size_bytes)

    # internals

    def _refused(self, event: AttachRefused) -> None:
        """Record the relay's final refusal, and end every connection and server with it."""
        self._refusal = refusal_error(event, self._driver.relay if self._driver is not None else "the relay")
        self._trouble = str(self._refusal)
        self.listeners.absent(self._trouble)
        if not self._attached.done():
            self._attached.set_exception(self._refusal)
        for made in list(self._transports.values()):
            made.fail(self._refusal)
        for server in list(self._servers.values()):
            server.close()

    def _ready(self) -> Driver:
        if self._driver is None or self._closed:
            raise RuntimeError("the attachment is not open: use it within `async with tunnel.attach(...) as t`")
        return self._driver

    def _report(self, message: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
