"""The life of a connection, as data. Nothing else in the core decides which state follows which.

Two tables. OPENING is how a connection comes to be; CLOSING holds the four events of the close protocol (close()
called, the ACK of our CLOSE, the peer's CLOSE, the reader reaching it), each row with the actions that `Connection`
carries out, in order. An input without a row changes nothing. Both sides use the same tables.
"""

import enum

__all__ = ["CLOSING", "LIVE", "OPENING", "TRANSITIONS", "Action", "Input", "State"]


class State(enum.Enum):
    """Where a connection is."""

    CONNECTING = "connecting"
    """CONNECT was sent and is not answered."""
    CLOSED_EARLY = "closed before the answer"
    """close() was called while CONNECT was not answered: what was written still wants to be delivered."""
    REQUESTED = "requested"
    """CONNECT came; the application has not decided."""
    ACCEPTED = "accepted"
    """ACCEPTED was sent; the initiator has not been heard since."""
    OPEN = "open"
    """Both sides know each other."""
    CLOSING = "closing"
    """close() was called; our CLOSE is not acknowledged, theirs has not come."""
    PEER_CLOSED = "peer closed"
    """Their CLOSE has come; our reader has not reached it."""
    DRAIN = "drain"
    """Both halves have ended; repeats are still acknowledged."""
    CLOSED = "closed"
    """Nothing is left but the memory of the id."""


class Input(enum.Enum):
    """What can happen to a connection."""

    ANSWERED = "ACCEPTED came"
    REJECTED = "REJECTED came"
    ACCEPT_CALLED = "accept() called"
    REFUSE_CALLED = "refuse() called"
    PEER_HEARD = "a packet of the initiator came"
    CLOSE_CALLED = "close() called"
    CLOSE_ACKED = "our CLOSE was acknowledged"
    PEER_CLOSE = "their CLOSE came"
    READER_AT_CLOSE = "the reader reached their CLOSE"
    SHUTDOWN = "SHUTDOWN came"
    DRAINED = "the drain time is over"
    LOST = "aborted, timed out, gone or broken"


class Action(enum.Enum):
    """What `Connection` does on a transition."""

    SEND_ACCEPTED = "put ACCEPTED at the head of the stream"
    SEND_REJECTED = "answer REJECTED"
    BEGIN = "the stream may flow"
    SURFACE = "show the connection to the application"
    DISCARD_RECEIVED = "junk the receive queue and discard what comes"
    QUEUE_CLOSE = "CLOSE after everything written"
    JUNK_SEND = "junk the send queue, end timers; unacknowledged bytes are a reset"
    REPORT_CLOSED = "tell the application how it ended"
    SEND_SHUTDOWN = "release the route"
    START_DRAIN = "re-acknowledge for a while"
    FORGET = "free everything but the id"


Row = tuple[State, tuple[Action, ...]]

LIVE = frozenset(State) - {State.DRAIN, State.CLOSED}

OPENING: dict[tuple[State, Input], Row] = {
    (State.CONNECTING, Input.ANSWERED): (State.OPEN, (Action.BEGIN,)),
    (State.CONNECTING, Input.REJECTED): (State.CLOSED, (Action.FORGET,)),
    (State.CONNECTING, Input.CLOSE_CALLED): (State.CLOSED_EARLY, (Action.DISCARD_RECEIVED, Action.QUEUE_CLOSE)),
    (State.CLOSED_EARLY, Input.ANSWERED): (State.CLOSING, (Action.BEGIN,)),
    (State.CLOSED_EARLY, Input.REJECTED): (State.CLOSED, (Action.FORGET,)),
    (State.REQUESTED, Input.ACCEPT_CALLED): (State.ACCEPTED, (Action.SEND_ACCEPTED, Action.BEGIN)),
    (State.REQUESTED, Input.REFUSE_CALLED): (State.CLOSED, (Action.SEND_REJECTED, Action.FORGET)),
    (State.ACCEPTED, Input.PEER_HEARD): (State.OPEN, (Action.SURFACE,)),
    (State.ACCEPTED, Input.CLOSE_CALLED): (State.CLOSING, (Action.DISCARD_RECEIVED, Action.QUEUE_CLOSE)),
}

CLOSING: dict[tuple[State, Input], Row] = {
    # 5.2
    (State.OPEN, Input.CLOSE_CALLED): (State.CLOSING, (Action.DISCARD_RECEIVED, Action.QUEUE_CLOSE)),
    # 5.3: nothing of ours is missing there and nothing of theirs is wanted here
    (State.CLOSING, Input.CLOSE_ACKED): (
        State.DRAIN,
        (Action.JUNK_SEND, Action.REPORT_CLOSED, Action.SEND_SHUTDOWN, Action.START_DRAIN),
    ),
    # 5.4
    (State.OPEN, Input.PEER_CLOSE): (State.PEER_CLOSED, (Action.JUNK_SEND,)),
    # 5.4 and 5.6: both closed at once; each acknowledges the other's CLOSE and waits for nothing
    (State.CLOSING, Input.PEER_CLOSE): (State.DRAIN, (Action.JUNK_SEND, Action.REPORT_CLOSED, Action.START_DRAIN)),
    # 5.5
    (State.PEER_CLOSED, Input.READER_AT_CLOSE): (State.DRAIN, (Action.REPORT_CLOSED, Action.START_DRAIN)),
    # the application does not want the rest
    (State.PEER_CLOSED, Input.CLOSE_CALLED): (
        State.DRAIN,
        (Action.DISCARD_RECEIVED, Action.REPORT_CLOSED, Action.START_DRAIN),
    ),
    # 5.7: an ACK of a CLOSE that crossed theirs
    (State.DRAIN, Input.CLOSE_ACKED): (State.DRAIN, (Action.SEND_SHUTDOWN,)),
    (State.DRAIN, Input.SHUTDOWN): (State.CLOSED, (Action.SEND_SHUTDOWN, Action.FORGET)),
    (State.DRAIN, Input.DRAINED): (State.CLOSED, (Action.SEND_SHUTDOWN, Action.FORGET)),
    (State.DRAIN, Input.LOST): (State.CLOSED, (Action.FORGET,)),
}

TRANSITIONS: dict[tuple[State, Input], Row] = {
    **OPENING,
    **CLOSING,
    **{(state, Input.LOST): (State.CLOSED, (Action.REPORT_CLOSED, Action.FORGET)) for state in State if state in LIVE},
}
