"""An endpoint's attachment to a relay: it opens connections through the relay and offers services."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from tunnel.carrier_rates import pull_interval_us
from tunnel.carriers.base import Carrier
from tunnel.core import Connection, ConnectRequested, EndpointConfig, Incoming
from tunnel.driver import Driver, StatusEvent
from tunnel.encryption.decisions import Mode
from tunnel.encryption.settings import Encryption, Offer
from tunnel.encryption.transport import EncryptedTransport
from tunnel.encryption.turns import HandshakeSlot
from tunnel.errors import DeniedError, RefusedError, TunnelError, UnreachableError
from tunnel.exchange import AttachedEvent, AttachRefused, Detached, Recovered, Troubled
from tunnel.listener import BACKLOG, ExitHandler, ExitRequest, Handler, Server, Sink, dial_failure, serve_streams
from tunnel.rate_limit import RateLimit
from tunnel.refusals import refusal_error
from tunnel.special_targets import target_text
from tunnel.status import AttachmentStats, ConnectionListener, ErrorListener, Listeners, StatisticsCollector
from tunnel.streams import LIMIT_BYTES, StreamReader, StreamWriter, open_streams
from tunnel.tasks import KeptTasks
from tunnel.traces.record import TraceSink
from tunnel.transport import Transport
from tunnel.wire import SECRET_SIZE, PublicPlace, RejectReason, Target, TargetKind
        try:
            if self._closed:
                raise RefusedError("", RejectReason.SHUTTING_DOWN)
            if is_service and server is None:
                raise RefusedError("", RejectReason.NO_SUCH_SERVICE)
            slot = self._encryption.take_up(event.offer, event.user)
        except RefusedError as error:
            driver.endpoint.refuse(event.connection_id, error.reason, str(error), driver.now())
            return
        if server is not None:
            self._accept_service(event, server, slot)
            return

        def accept() -> Transport:
            return self._transport(self._accepted(event, slot), label, peername=(event.user, 0), slot=slot)

        def refuse(reason: RejectReason, text: str) -> None:
            if event.connection_id in driver.endpoint.connections:
                driver.endpoint.refuse(event.connection_id, reason, text, driver.now())
                driver.wake()

        request = ExitRequest(target, event.user, accept, refuse)
        self._tasks.keep(asyncio.get_running_loop().create_task(self._dial(request, slot)))

    def _accept_service(self, event: ConnectRequested, server: Server, slot: HandshakeSlot | None) -> None:
        """Accept a connection to a service, and surface it once it is open."""

        def surface(transport: Transport) -> None:
            if self._closed or not server.is_serving():
                transport.abort()
            else:
                server.add(transport)

        self._transport(
            self._accepted(event, slot),
            f"{event.target.host} (from {event.user})",
            peername=(event.user, 0),
            ended=server.remove,
            connected=surface,
            slot=slot,
        )

    def _accepted(self, event: ConnectRequested, slot: HandshakeSlot | None) -> Connection:
        """Return the connection. With a slot, its transport accepts it, when the handshake has its turn."""
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
        server = self._servers.get(name)
        if server is not None:
            reason = text or (
                "the relay does not allow this user to listen under this name: ask its operator for the line "
                f'listen = ["{name}"] under your user\'s name in the configuration'
            )
            server.refuse(DeniedError(f"{name}: {reason}"))

    def status(self, event: StatusEvent) -> None:
        match event:
            case AttachedEvent() | Recovered():
                self._trouble = ""
                if self._driver is not None and self._driver.attached:  # a Recovered may find it detached
                    self._listeners.present()
                    if not self._attached.done():
                        self._attached.set_result(None)
            case Troubled(last=last):
                self._trouble = last
                self._listeners.absent(last)
            case Detached():
                self._listeners.absent("the relay no longer knows this attachment")
            case AttachRefused():
                self._refused(event)

    def trouble(self, text: str, *, final: bool) -> None:
        self._trouble = text
        self._listeners.failed(text)
        if final and not self._attached.done():
            assert self._driver is not None
            where = self._driver.carrier.description
            self._attached.set_exception(UnreachableError(f"no relay answers at {where}: {text}"))

    def buffered(self, size_bytes: int) -> None:
        if self._listeners.statistics is not None:
            self._listeners.statistics.increment_out_bytes(size_bytes)

    def wrote(self, size_bytes: int) -> None:
        if self._listeners.statistics is not None:
            self._listeners.statistics.register_write(size_bytes)

    # internals

    def _refused(self, event: AttachRefused) -> None:
        """Record the relay's final refusal, and end every connection and server with it."""
        self._refusal = refusal_error(event)
        self._trouble = str(self._refusal)
        self._listeners.absent(self._trouble)
        if not self._attached.done():
            self._attached.set_exception(self._refusal)
        for transport in list(self._transports):
            transport.fail(self._refusal)
        for server in list(self._servers.values()):
            server.close()

    def _ready(self) -> Driver:
        if self._driver is None or self._closed:
            raise RuntimeError("the attachment is not open: use it within `async with tunnel.attach(...) as t`")
        return self._driver

    def _report(self, message: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
