"""The end of a connection: CLOSE both ways, SHUTDOWN until it is answered, and the drain after both (section 5).

The state table (`state.py`) says which of these methods is called when. `answer_farewell` is for the peer of a
connection that is already forgotten.
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

__all__ = ["Closing", "answer_farewell"]

ATTEMPT_MAX = 255  # one byte (1.1); 0 would say that no answer is awaited (5.7)
_SHUTDOWN = int(PacketType.SHUTDOWN)


class Closing:
    """Ends one connection, well or with an error."""

    __slots__ = ("_connection", "_farewells", "_handshake", "_owner", "_peer_released", "finished_writing", "loss")

    def __init__(self, connection: ConnectionBase, handshake: Handshake, owner: Owner) -> None:
        self._connection = connection
        self._handshake = handshake
        self._owner = owner
        self.finished_writing = False  # by finish() or close()
        self.loss: tuple[LostReason, str] | None = None  # why the connection ended, if that was an error
        self._farewells = 0  # number of SHUTDOWNs sent (5.7)
        self._peer_released = False  # the peer sent SHUTDOWN

    # what the application asks for

    def finish(self, now: int) -> None:
        """FINISH after everything written (5.1), unless our direction has ended already."""
        state = self._connection.state
        if state is State.REQUESTED:
            raise LocalProtocolError("finish() before accept()")
        if not self.finished_writing and state in LIVE and state is not State.PEER_CLOSED:
            self.finished_writing = True
            self._connection.sender.end(PacketType.FINISH, now)

    def queue_close(self, now: int) -> None:
        """CLOSE after everything written (5.2)."""
        self.finished_writing = True
        self._connection.sender.end(PacketType.CLOSE, now)

    def discard_received(self, now: int) -> None:
        """The application reads nothing more."""
        connection = self._connection
        if connection.identity.peer_id:
            connection.sender.window.close_received = connection.receiver.window.next_sequence - 1
        connection.receiver.window.discard()

    # what the peer does

    def all_received(self, now: int) -> None:
        """The peer has ended after our CLOSE reached it: everything arrived, though no ACK said so (5.7)."""
        window = self._connection.sender.window
        window.acknowledge(window.next_sequence - 1, [])
        self._connection.apply(Input.CLOSE_ACKED, now)

    def peer_released(self, now: int) -> None:
        """SHUTDOWN came: the peer needs the route no more (5.7)."""
        connection = self._connection
        self._peer_released = True
        if connection.state is State.DRAIN:
            connection.apply(Input.SHUTDOWN, now)
        elif connection.state is State.CLOSING:
            self.all_received(now)  # without a CLOSE of its own it can have ended only so
        elif not connection.complete:
            connection.fail(LostReason.RESET, None, now, "the peer released the route before the end")

    # reports

    def junked(self, junked_bytes: int) -> None:
        """The peer closed before it had acknowledged this many bytes of ours: that will be reported as a loss."""
        if junked_bytes:
            self.loss = (LostReason.PEER_CLOSED, f"{junked_bytes} bytes were not acknowledged")

    def report_closed(self, now: int) -> None:
        """Tell the application how the connection ended, unless it never heard of it (3.5)."""
        connection = self._connection
        if self._handshake.unseen and connection.identity.target.kind == TargetKind.SERVICE:
            return
        self._owner.emit(Closed(connection.id) if self.loss is None else Lost(connection.id, *self.loss))

    def fail(self, reason: LostReason, tell: AbortReason | None, now: int, text: str) -> None:
        """End with an error: the application learns the reason, the peer too if `tell` is given. When everything has
        been received, only an abort by the application ends the connection; anything else merely stops its timers."""
        connection = self._connection
        if connection.state is State.CLOSED:
            return
        if connection.complete and reason is not LostReason.ABORTED:
            for timer in (Timer.OPEN, Timer.KEEPALIVE, Timer.USER_TIMEOUT):
                connection.timers.clear(timer)
            return
        peer_id = connection.identity.peer_id
        if tell is not None and peer_id:
            self._owner.send(Packet(PacketType.ABORT, connection.id, peer_id, 0, encode_abort(Abort(tell, text))))
        self.loss = (reason, text)
        connection.apply(Input.LOST, now)

    # SHUTDOWN

    def release(self, now: int) -> None:
        """Release the route: SHUTDOWN leaves, and is repeated until the peer answers it."""
        if self._connection.identity.peer_id:
            self._say_farewell(0, now)

    def _repeat_farewell(self, now: int) -> None:
        """Send SHUTDOWN again: it was not answered, or the CLOSEs crossed and neither side has sent one (5.7). Without
        a route it could not arrive."""
        if self._handshake.suspended_since_us == NEVER_US:
            self._say_farewell(self._farewells, now)

    def _say_farewell(self, attempt: int, now: int) -> None:
        identity = self._connection.identity
        packet = Packet(_SHUTDOWN, identity.own_id, identity.peer_id, 0, attempt=min(attempt, ATTEMPT_MAX))
        self._owner.send(packet)
        self._farewells = attempt + 1
        self._await_farewell(now)

    def _await_farewell(self, now: int) -> None:
        connection = self._connection
        doublings = max(0, self._farewells - 1)
        interval_us = min(connection.sender.rtt.base_rto_us() << doublings, BACKOFF_MAX_US)
        connection.timers.set(Timer.FAREWELL, now + interval_us)

    # the drain

    def start_drain(self, now: int) -> None:
        """Both halves have ended well: a later CONNECT learns that nothing is missing."""
        connection = self._connection
        self._handshake.refuse(RejectReason.FINISHED, "")
        connection.sender.stop()
        connection.timers.clear(Timer.KEEPALIVE)
        connection.receiver.window.discard()
        if self._peer_released:
            connection.apply(Input.SHUTDOWN, now)
        else:
            self.drain_anew(now)

    def drain_anew(self, now: int) -> None:
        """Acknowledge late repeats until the peer sends SHUTDOWN or its user timeout has passed (5.7)."""
        connection = self._connection
        connection.timers.set(Timer.DRAIN, now + max(DRAIN_US, connection.liveness.user_timeout_us))
        if self._farewells or connection.sender.window.close_sequence != NO_EDGE:
            self._await_farewell(now)

    def handle_timers(self, now: int) -> None:
        """Whatever is due of FAREWELL and DRAIN."""
        timers = self._connection.timers
        if timers.due(Timer.FAREWELL, now):
            self._repeat_farewell(now)
        if timers.due(Timer.DRAIN, now):
            self._drain_over(now)

    def _drain_over(self, now: int) -> None:
        """The drain time is over. Without a route, extend the drain until the user timeout: the peer's repeats cannot
        arrive, and the peer would time out although everything was read."""
        connection, suspended_since_us = self._connection, self._handshake.suspended_since_us
        given_up_us = suspended_since_us + connection.liveness.user_timeout_us
        if suspended_since_us != NEVER_US and now < given_up_us:
            connection.timers.set(Timer.DRAIN, given_up_us)
        else:
            connection.apply(Input.DRAINED, now)


def answer_farewell(packet: Packet) -> Packet | None:
    """The answer to a SHUTDOWN for a connection that is not known any more; None when none is awaited (5.7)."""
    if packet.type != _SHUTDOWN or not packet.attempt:
        return None
    return Packet(_SHUTDOWN, packet.destination, packet.source, 0)
