"""The end of a connection: FINISH and CLOSE; SHUTDOWN until it is answered; and the drain (section 5).

The actions of the state table (`state.py`) call `discard_received`, `queue_close`, `report_closed`, `release`,
`send_last_shutdown` and `start_drain`. `answer_shutdown` answers the peer of a connection that is already forgotten.
"""

from tunnel.core.connection.base import ConnectionBase, Owner
from tunnel.core.connection.handshake import Handshake
from tunnel.core.connection.state import LIVE, Input, State
from tunnel.core.constants import BACKOFF_MAX_US, DRAIN_US, NEVER_US
from tunnel.core.errors import LocalProtocolError
from tunnel.core.events import Closed, Lost, LostReason
from tunnel.core.send.window import NO_EDGE
from tunnel.core.timers import Timer
from tunnel.wire import Abort, AbortReason, Packet, PacketType, RejectReason, TargetKind, encode_abort

__all__ = ["Closing", "answer_shutdown"]

ATTEMPT_MAX = 255  # one byte (1.1); it must not wrap to 0, which a peer that has forgotten us does not answer (5.7)
_SHUTDOWN = int(PacketType.SHUTDOWN)


class Closing:
    """Ends one connection, cleanly or with an error."""

    __slots__ = (
        "_connection",
        "_drain_until_us",
        "_handshake",
        "_owner",
        "_shutdowns_sent",
        "finished_writing",
        "is_released",
        "loss",
    )

    def __init__(self, connection: ConnectionBase, handshake: Handshake, owner: Owner) -> None:
        self._connection = connection
        self._handshake = handshake
        self._owner = owner
        self.finished_writing = False  # finish() or close() was called
        self.loss: tuple[LostReason, str] | None = None  # why the connection ended, if that was an error
        self._shutdowns_sent = 0  # attempt of the next repeat of SHUTDOWN; 0: none was sent (5.7)
        self.is_released = False  # the peer sent SHUTDOWN: it awaits nothing more
        self._drain_until_us = NEVER_US  # no resume lets the drain last longer (5.7)

    def leave_for(self, owner: Owner) -> None:
        """Belong to another endpoint from now on."""
        self._owner = owner

    # requests of the application

    def finish(self, now: int) -> None:
        """Queue FINISH after everything written (5.1), unless this direction has ended already."""
        state = self._connection.state
        if state is State.REQUESTED:
            raise LocalProtocolError("finish() before accept(): accept or refuse the connection first")
        if not self.finished_writing and state in LIVE and state is not State.PEER_CLOSED:
            self.finished_writing = True
            self._connection.sender.end(PacketType.FINISH, now)

    def queue_close(self, now: int) -> None:
        """Queue CLOSE after everything written (5.2)."""
        self.finished_writing = True
        self._connection.sender.end(PacketType.CLOSE, now)

    def discard_received(self, now: int) -> None:
        """Discard everything received, now and later: the application will not read it."""
        connection = self._connection
        if connection.identity.peer_id:
            connection.sender.window.close_received = connection.receiver.window.next_sequence - 1
        connection.receiver.window.discard()

    # actions of the peer

    def all_received(self, now: int) -> None:
        """Treat everything sent as received: the peer has ended, which only our CLOSE can have caused (5.7)."""
        self._connection.sender.window.acknowledge_all()
        self._connection.apply(Input.CLOSE_ACKED, now)

    def peer_released(self, now: int) -> None:
        """Process SHUTDOWN: the peer no longer needs the route (5.7)."""
        connection = self._connection
        self.is_released = True
        if connection.state is State.DRAIN:
            connection.apply(Input.SHUTDOWN, now)
        elif connection.state is State.CLOSING:
            self.all_received(now)  # the peer has sent no CLOSE, so only ours can have ended the connection there
        elif not connection.complete:
            connection.fail(LostReason.RESET, None, now, "the peer released the route before the end")

    # reports

    def on_peer_closed(self, junked_bytes: int) -> None:
        """Record that the peer closed with `junked_bytes` of ours unacknowledged; more than 0 are an error."""
        if junked_bytes:
            self.loss = (LostReason.PEER_CLOSED, f"{junked_bytes} bytes were not acknowledged")

    def report_closed(self, now: int) -> None:
        """Emit Closed or Lost, unless the connection was never shown to the application (3.5)."""
        connection = self._connection
        is_service = connection.identity.target.kind == TargetKind.SERVICE
        if self._handshake.unseen and is_service and not self._handshake.is_asked:
            return
        self._owner.emit(Closed(connection.id) if self.loss is None else Lost(connection.id, *self.loss))

    def fail(self, reason: LostReason, tell: AbortReason | None, now: int, text: str) -> None:
        """End the connection with an error.

        The application gets `reason`, except during the drain, when it has had its last event. The peer gets ABORT with
        `tell`, if that is given and the peer's id is known, or REJECTED if ACCEPTED has not bound the route. When
        everything has been received (`complete`), only an
        abort by our own application ends the connection; any other error only stops the open, keepalive and
        user-timeout timers.
        """
        connection = self._connection
        if connection.state is State.CLOSED:
            return
        if connection.complete and reason is not LostReason.ABORTED:
            for timer in (Timer.OPEN, Timer.KEEPALIVE, Timer.USER_TIMEOUT):
                connection.timers.clear(timer)
            return
        peer_id = connection.identity.peer_id
        if tell is not None and peer_id:
            abort = encode_abort(Abort(tell, text))
            if self._handshake.answer_left:
                self._owner.send(Packet(PacketType.ABORT, connection.id, peer_id, 0, abort))
            self._handshake.withdraw(tell, text, now)
        self.loss = (reason, text)
        connection.apply(Input.LOST, now)

    # SHUTDOWN

    def release(self, now: int) -> None:
        """Release the route: send SHUTDOWN, and repeat it until the peer answers or the drain ends.

        Without the peer's id, do nothing. If SHUTDOWN was sent already, because the CLOSEs crossed, do nothing either:
        its repeats go on, and an attempt above 0 tells a peer that has forgotten the connection to answer (5.7).
        """
        if self._connection.identity.peer_id and not self._shutdowns_sent:
            self._send_shutdown(0, now)

    def send_last_shutdown(self, now: int) -> None:
        """Send SHUTDOWN with attempt 0, which asks for no answer: the connection is forgotten right after it (5.7)."""
        if self._connection.identity.peer_id:
            self._send_shutdown(0, now)

    def _repeat_shutdown(self, now: int) -> None:
        """Send SHUTDOWN: again if it was not answered, or for the first time if the CLOSEs crossed (5.7).

        While the route is lost, send nothing, since it could not arrive.
        """
        if self._handshake.suspended_since_us == NEVER_US:
            self._send_shutdown(self._shutdowns_sent, now)

    def _send_shutdown(self, attempt: int, now: int) -> None:
        identity = self._connection.identity
        packet = Packet(_SHUTDOWN, identity.own_id, identity.peer_id, 0, attempt=min(attempt, ATTEMPT_MAX))
        self._owner.send(packet)
        self._shutdowns_sent = attempt + 1
        self._await_shutdown(now)

    def _await_shutdown(self, now: int) -> None:
        connection = self._connection
        doublings = max(0, self._shutdowns_sent - 1)
        interval_us = min(connection.sender.rtt.base_rto_us() << doublings, BACKOFF_MAX_US)
        connection.timers.set(Timer.FAREWELL, now + interval_us)

    # the drain

    def start_drain(self, now: int) -> None:
        """Start the drain, because both halves have ended. The acceptor's tombstone will answer REJECTED(finished)."""
        connection = self._connection
        self._handshake.refuse(RejectReason.FINISHED, "")
        connection.sender.stop()
        connection.timers.clear(Timer.KEEPALIVE)
        connection.receiver.window.discard()
        if self.is_released:
            connection.apply(Input.SHUTDOWN, now)
        else:
            self._drain_until_us = now + 2 * self._drain_us
            self.drain_anew(now)

    def drain_anew(self, now: int) -> None:
        """Start or restart the drain: acknowledge late repeats until SHUTDOWN comes or the drain time is over (5.7)."""
        connection = self._connection
        connection.timers.set(Timer.DRAIN, min(now + self._drain_us, self._drain_until_us))
        if self._shutdowns_sent or connection.sender.window.close_sequence != NO_EDGE:
            self._await_shutdown(now)

    @property
    def _drain_us(self) -> int:
        return max(DRAIN_US, self._connection.liveness.user_timeout_us)

    def handle_timers(self, now: int) -> None:
        """Handle FAREWELL and DRAIN if they are due."""
        timers = self._connection.timers
        if timers.due(Timer.FAREWELL, now):
            self._repeat_shutdown(now)
        if timers.due(Timer.DRAIN, now):
            self._drain_over(now)

    def _drain_over(self, now: int) -> None:
        """End the drain when its time is over.

        While the route is lost, extend the drain until the user timeout. If it ended now, the peer's repeats would find
        no connection when the route is back, and the peer would report a loss although everything was read.
        """
        connection, suspended_since_us = self._connection, self._handshake.suspended_since_us
        given_up_us = suspended_since_us + connection.liveness.user_timeout_us
        if suspended_since_us != NEVER_US and now < given_up_us:
            connection.timers.set(Timer.DRAIN, given_up_us)
        else:
            connection.apply(Input.DRAINED, now)


def answer_shutdown(packet: Packet) -> Packet | None:
    """Return the answer to a SHUTDOWN for a forgotten connection; None if no answer is awaited (5.7)."""
    if packet.type != _SHUTDOWN or not packet.attempt:
        return None
    return Packet(_SHUTDOWN, packet.destination, packet.source, 0)
