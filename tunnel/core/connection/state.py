"""The states of a connection and their transitions, as data. No other code in the core chooses the next state.

There are two tables. OPENING describes how a connection opens, or is closed before it is open. CLOSING describes how it
ends: close() is called, our CLOSE is acknowledged, the peer's CLOSE comes, the reader reaches it, and the drain ends.
TRANSITIONS joins both, and adds the failure of a connection in each live state. Each row lists the
actions that `Connection` carries out, in order. An input without a row changes nothing. Both sides use the same tables.
"""

import enum

__all__ = ["CLOSING", "LIVE", "OPENING", "TRANSITIONS", "Action", "Input", "State"]


class State(enum.Enum):
    """The states of a connection."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    CONNECTING = "connecting"
    """CONNECT was sent and is not answered."""
    CLOSED_EARLY = "closed before the answer"
    """close() was called before CONNECT was answered. The bytes written before that must still be delivered."""
    REQUESTED = "requested"
    """CONNECT came; the application has not decided."""
    ACCEPTED = "accepted"
    """ACCEPTED was sent; no packet of the initiator has come since, except ABORT and SHUTDOWN (3.5)."""
    OPEN = "open"
    """ACCEPTED has come; or, at the acceptor, a packet of the initiator after ACCEPTED was sent (3.5)."""
    CLOSING = "closing"
    """close() was called; our CLOSE is not acknowledged, and the peer's has not come."""
    PEER_CLOSED = "peer closed"
    """The peer's CLOSE has come; the reader has not reached it."""
    DRAIN = "drain"
    """Both halves have ended; repeats are still acknowledged."""
    CLOSED = "closed"
    """The connection is forgotten except for its tombstone."""


class Input(enum.Enum):
    """The inputs of the state table: events that can change the state of a connection."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    ANSWERED = "ACCEPTED came"
    REJECTED = "REJECTED came"
    ACCEPT_CALLED = "accept() called"
    REFUSE_CALLED = "refuse() called"
    PEER_HEARD = "a packet of the initiator came"
    CLOSE_CALLED = "close() called"
    CLOSE_ACKED = "our CLOSE was acknowledged"
    PEER_CLOSE = "the peer's CLOSE came"
    READER_AT_CLOSE = "the reader reached the peer's CLOSE"
    SHUTDOWN = "SHUTDOWN came"
    DRAINED = "the drain time is over"
    LOST = "the connection failed"


class Action(enum.Enum):
    """The actions that `Connection` carries out on a transition."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    SEND_ACCEPTED = "send ACCEPTED at the head of the stream"
    SEND_REJECTED = "send REJECTED"
    BEGIN = "let the stream flow"
    SURFACE = "show the connection to the application"
    DISCARD_RECEIVED = "drop the receive queue, and discard later data"
    QUEUE_CLOSE = "queue CLOSE after everything written"
    JUNK_SEND = "drop the send queue and stop its timers; unacknowledged bytes cause a reset"
    REPORT_CLOSED = "report the end to the application"
    SEND_SHUTDOWN = "begin to release the route, unless that has begun"
    SEND_LAST_SHUTDOWN = "release the route before the connection is forgotten"
    START_DRAIN = "acknowledge repeats until the drain ends"
    FORGET = "free everything except the tombstone"


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
    # 5.3: the peer has everything of ours, and our application wants nothing more from the peer
    (State.CLOSING, Input.CLOSE_ACKED): (
        State.DRAIN,
        (Action.JUNK_SEND, Action.REPORT_CLOSED, Action.SEND_SHUTDOWN, Action.START_DRAIN),
    ),
    # 5.4
    (State.OPEN, Input.PEER_CLOSE): (State.PEER_CLOSED, (Action.JUNK_SEND,)),
    # 5.4 and 5.6: both closed at once; each acknowledges the other's CLOSE and does not wait for the ACK of its own
    (State.CLOSING, Input.PEER_CLOSE): (State.DRAIN, (Action.JUNK_SEND, Action.REPORT_CLOSED, Action.START_DRAIN)),
    # 5.5
    (State.PEER_CLOSED, Input.READER_AT_CLOSE): (State.DRAIN, (Action.REPORT_CLOSED, Action.START_DRAIN)),
    # 5.2: the application does not read the rest of the peer's stream
    (State.PEER_CLOSED, Input.CLOSE_CALLED): (
        State.DRAIN,
        (Action.DISCARD_RECEIVED, Action.REPORT_CLOSED, Action.START_DRAIN),
    ),
    # 5.7: the ACK of a CLOSE that crossed the peer's
    (State.DRAIN, Input.CLOSE_ACKED): (State.DRAIN, (Action.SEND_SHUTDOWN,)),
    (State.DRAIN, Input.SHUTDOWN): (State.CLOSED, (Action.SEND_SHUTDOWN, Action.FORGET)),
    (State.DRAIN, Input.DRAINED): (State.CLOSED, (Action.SEND_LAST_SHUTDOWN, Action.FORGET)),
    (State.DRAIN, Input.LOST): (State.CLOSED, (Action.FORGET,)),
}

TRANSITIONS: dict[tuple[State, Input], Row] = {
    **OPENING,
    **CLOSING,
    **{(state, Input.LOST): (State.CLOSED, (Action.REPORT_CLOSED, Action.FORGET)) for state in State if state in LIVE},
}
