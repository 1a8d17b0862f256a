"""The transport of a connection that is encrypted, or that offers encryption and may go on in clear."""

import asyncio
from collections.abc import Callable
from typing import Any

from tunnel.core import Connected, Connection, Event, Lost, State
from tunnel.driver import Driver
from tunnel.encryption.connection import EncryptedConnection
from tunnel.encryption.tls import TlsSession
from tunnel.encryption.trust import PeerTrust
from tunnel.encryption.turns import HandshakeSlot
from tunnel.streams.transport import MadeTransport, Transport
from tunnel.wire import AbortReason, is_inline_exit

__all__ = ["HANDSHAKE_S", "EncryptedTransport"]

HANDSHAKE_S = 10.0  # time for a TLS handshake, from ACCEPTED on
_LATE = f"the TLS handshake did not end within {HANDSHAKE_S:g} s"


class EncryptedTransport(Transport):
    """A transport with TLS below. At the initiator it has `trust`, at the acceptor the `slot` of its handshake.

    At the acceptor, the connection is accepted when its handshake has its turn. Nothing passes in either direction
    before the initiator's binding has come; what the asyncio protocol writes before that has to wait.
    """

    def __init__(
        self,
        driver: Driver,
        connection: Connection,
        target: str,
        extra: dict[str, Any],
        made: MadeTransport,
        ended: Callable[[Transport], None],
        connected: Callable[[Transport], None] | None = None,
        *,
        tls: TlsSession,
        trust: PeerTrust | None = None,
        slot: HandshakeSlot | None = None,
    ) -> None:
        judge = None if trust is None else trust.judge_key
        stream = EncryptedConnection(connection, tls, judge, target)
        super().__init__(driver, stream, target, extra, made, ended, connected)
        self._stream: EncryptedConnection | None = stream  # None: in clear
        self._reading.after_turn = self._show_released
        self._writing.after_turn = self._flush_records
        self._clear = connection
        self._trust = trust
        self._slot = slot
        self._deadline: asyncio.TimerHandle | None = None
        if slot is not None:
            slot.is_used = True
            slot.ask(self._accept)

    @property
    def encryption(self) -> str:
        """How the stream is encrypted: "verified" if the acceptor has a key that was known before, "not verified" if
        its key was taken on trust, "accepted" at the acceptor. Empty in clear and before the handshake has ended."""
        if self._stream is None or not self._stream.is_ready:
            return ""
        if self._trust is None:
            return "accepted"
        return "verified" if self._trust.is_verified else "not verified"

    def _handle(self, event: Event) -> None:
        stream = self._stream
        if stream is None:
            super()._handle(event)
            return
        if isinstance(event, Connected) and self._trust is not None:
            if not self._clear.handshake.is_encrypted:
                self._go_on_in_clear(event, self._trust)
                return
            self._begin_handshake()
        for shown in stream.translate(event, self._state.driver.now()):
            self._show(stream, shown)
        self._look_for_end()

    def _show(self, stream: EncryptedConnection, event: Event) -> None:
        if isinstance(event, Connected):
            self.set_extra_info("peer_key", stream.peer_key)
            self.set_extra_info("peer_key_verified", self._trust is not None and self._trust.is_verified)
        if isinstance(event, Lost) and stream.failure is not None:
            self._finish(stream.failure)
        elif self._state.over is None:
            super()._handle(event)

    def _flush_records(self) -> None:
        if self._writing.flushes and not self._writing.waiting:
            self._state.connection.flush()

    def close(self) -> None:
        super().close()
        self._state.loop.call_soon(self._show_released)

    def abort(self, reason: AbortReason = AbortReason.APPLICATION, text: str = "") -> None:
        super().abort(reason, text)
        self._state.loop.call_soon(self._show_released)

    def _show_released(self) -> None:
        """Process the end that was held back for the reader, if the reader has read everything or will not read on."""
        if self._stream is not None and self._state.over is None:
            for event in self._stream.take_released():
                self._show(self._stream, event)

    def _finish(self, error: BaseException | None, *, shown: bool = True) -> None:
        super()._finish(error, shown=shown)
        self._look_for_end()

    # the handshake

    def _go_on_in_clear(self, event: Connected, trust: PeerTrust) -> None:
        """Leave TLS out, because the acceptor does not encrypt; or end the connection, if it has to be encrypted."""
        self._state.connection = self._clear
        self._stream = None
        self.set_extra_info("tunnel_connection", self._clear)
        acceptor = self._clear.identity.acceptor_endpoint
        error = trust.judge_clear(by_inline_exit=acceptor is not None and is_inline_exit(acceptor))
        if error is None:
            super()._handle(event)
        else:
            self._fail(error)

    def _accept(self) -> None:
        """Answer CONNECT, with our part of the handshake in the same batch, unless the connection has ended."""
        if self._slot is not None and self._stream is not None and self._clear.state is State.REQUESTED:
            self._state.driver.endpoint.accept(self._clear.id, self._state.driver.now(), encrypted=True)
            self._begin_handshake()
            self._stream.begin(self._slot.client_hello, self._state.driver.now())
            self._state.driver.wake()

    def _begin_handshake(self) -> None:
        self._deadline = self._state.loop.call_later(HANDSHAKE_S, self._end_late)

    def _end_late(self) -> None:
        if self._stream is not None:
            self._stream.give_up(_LATE, self._state.driver.now())
            self._state.driver.wake()

    def _look_for_end(self) -> None:
        """Stop the timer and leave the slot when the handshake has ended, one way or the other."""
        if self._state.over is None and self._stream is not None and not self._stream.is_ready:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._slot is not None:
            self._slot.leave()
