"""Connection and endpoint state: a reliable byte stream over batches of packets. Synchronous and sans-I/O.

Nothing here reads a clock, opens a socket or draws a random number of its own. The caller (`tunnel/driver.py`, or the
simulator in `tests/sim`) hands in `now` in microseconds, the packets that have come, and a source of random bits. It
takes out batches, events and the time of the next timer. So every run can be repeated exactly.

Where things are
----------------

    endpoint.py       all connections of a process; finds the connection of each packet; one timer, one queue of events
    admission.py      what happens to a CONNECT: open, repeat the answer, resume, refuse
    services.py       the services that this endpoint offers, their backlog, and what the relay is told of them
    scheduler.py      fills batches fairly, and knows what each batch carried until its receipt
    tombstones.py     what outlives a connection: its id, and the answer to a late CONNECT
    tracer.py         what the endpoint tells the trace
    connection/
      state.py        the life of a connection as two tables of rows: (state, input) -> (state, actions)
      connection.py   wires the parts; what the application holds; carries out the actions of a row
      handshake.py    CONNECT, ACCEPTED, REJECTED, resume: how the route is bound, and bound again
      closing.py      FINISH, CLOSE, SHUTDOWN, the drain, and ends with an error
      liveness.py     keepalive and user timeout
      inbound.py      what each type of packet does
      outbound.py     segments and control packets as they leave
      base.py         what these parts share
    send/             window (segments and their fate), rtt, loss (RACK), sender (wires the three and their timers)
    receive/          window (order, gaps, digest), acks (when an ACK leaves)
    timers, ranges, events, config, constants, errors, stats, budget, ports: shared basics

How a byte travels
------------------

`Connection.write` puts it into the send window. The scheduler asks the connection for segments while it fills a batch
(`Endpoint.next_batch`); each is a numbered packet, and the batch remembers which attempts of which segments it carries.
A *receipt* (`batch_done(ok=True)`) says that the batch is queued at the relay: from then on the retransmission timer
runs. A batch that is given up (`ok=False`) makes its segments lost at once. Data is freed only by the peer's ACK.

At the peer, `receive_packets` finds the connection by its own id, `inbound` the method for the type, and the receive
window puts the segment in order. Bytes in order are readable; an ACK travels with a batch that leaves anyway (unless
one has just left), at the latest after 25 ms; at once when something is missing. The end of a direction (FINISH or
CLOSE) carries length and digest, which are compared before it is acknowledged.

What goes wrong
---------------

- A packet is lost: the loss detector notices by time (a later packet was acknowledged), the tail probe by silence, the
  retransmission timer as the backstop. Reports of the carrier and of the relay (DROPPED) are certain, and act at once.
- The relay dies, or forgets us: `attached(fresh=True)`, or DROPPED(no route). Nothing flows; the initiator sends
  CONNECT with `resume`, and its answer makes both sides resend what is unacknowledged.
- The peer is silent: keepalive PINGs, window probes, and in the end the user timeout, which both applications hear of.
- Close is lost, repeated, or crosses the peer's: the state table has a row for each. SHUTDOWN is repeated until it is
  answered, so that the relay forgets the route.

What an application does wrong raises `LocalProtocolError` or `PeerClosedError`. What a peer sends never raises: it is
discarded and counted. Clause numbers, as in (4.6), are those of docs/PROTOCOL.md.
"""

from tunnel.core.config import EndpointConfig
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import State
from tunnel.core.endpoint import Batch, Endpoint
from tunnel.core.errors import LocalProtocolError, PeerClosedError, TunnelError
from tunnel.core.events import (
    Closed,
    Connected,
    ConnectRequested,
    Event,
    Flushed,
    Incoming,
    Lost,
    LostReason,
    PeerClosed,
    PeerFinished,
    Readable,
    Refused,
    Writable,
)
from tunnel.core.stats import ConnectionStats

__all__ = [
    "Batch",
    "Closed",
    "ConnectRequested",
    "Connected",
    "Connection",
    "ConnectionStats",
    "Endpoint",
    "EndpointConfig",
    "Event",
    "Flushed",
    "Incoming",
    "LocalProtocolError",
    "Lost",
    "LostReason",
    "PeerClosed",
    "PeerClosedError",
    "PeerFinished",
    "Readable",
    "Refused",
    "State",
    "TunnelError",
    "Writable",
]
