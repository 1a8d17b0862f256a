"""The state of connections and endpoints: reliable byte streams over batches of packets. Synchronous, without I/O.

Nothing in this package reads a clock, opens a socket or seeds its own random numbers. The caller (`tunnel/driver.py`,
or the simulator in `tests/sim`) passes in `now` in microseconds, the packets that have come, and a source of random
bits. It takes out batches, events and the time of the next timer. Therefore every run can be repeated exactly.

Where things are
----------------

    endpoint.py       all connections; finds the connection of each packet; one timer, one queue of events
    admission.py      decides about each CONNECT: open, repeat the answer, resume or refuse
    moving.py         moves open connections to another relay where both ends sit
    services.py       the services that this endpoint offers, and their announcements to the relay
    attachment_options.py  tells the relay which interval between pulls is wanted, and that an exit leaves
    scheduler.py      fills batches fairly, and remembers the contents of each batch until its receipt
    tombstones.py     the memory of ended connections: their ids, and the answers to late CONNECTs
    tracer.py         writes the trace records of an endpoint
    connection/
      state.py        the life of a connection as two tables of rows: (state, input) -> (state, actions)
      connection.py   the object that the application holds; wires the parts and carries out the actions of a row
      handshake.py    CONNECT, ACCEPTED, REJECTED and resume: binds the route, and binds it again
      closing.py      FINISH, CLOSE, SHUTDOWN, the drain, and ends with an error
      liveness.py     keepalive and user timeout
      inbound.py      the handler of each packet type
      outbound.py     segments and control packets as they leave
      base.py         state that these parts share
    send/             window (segments and their state), rtt, loss (RACK), sender (wires the three and their timers)
    receive/          window (order, gaps, digest), acks (decides when an ACK leaves)
    timers, ranges, events, config, constants, errors, stats, budget, ports: shared basics

How a byte travels
------------------

`Connection.write` puts it into the send window. The scheduler asks the connection for segments while it fills a batch
(`Endpoint.next_batch`). Each segment is a numbered packet, and the batch remembers which attempts of which segments it
carries. A *receipt* (`batch_done(ok=True)`) says that the batch is queued at the relay; from then on the retransmission
timer may run. When a batch is given up (`ok=False`), its segments count as lost at once. Data is freed when the peer
has acknowledged it, or when the send half ends.

At the peer, `receive_packets` finds the connection by the id that the peer itself has given it, `inbound` finds the
handler for the packet type, and the receive window puts the segment in order. Bytes in order are readable. An ACK
travels with a batch that leaves anyway, unless an ACK has just left; it leaves after 25 ms at the latest, and at once
when something is missing. The end of a direction (FINISH or CLOSE) carries length and digest. The receiver compares
them before it acknowledges everything up to that end.

Errors that the core handles
----------------------------

- A packet is lost. The loss detector notices it by time (a later packet was acknowledged), the tail probe by silence,
  and the retransmission timer is the backstop. Packets of a batch that the carrier has given up, and packets that the
  relay names in DROPPED, count as lost at once.
- The relay dies, or loses the attachment: `attached(fresh=True)`, or DROPPED(no route). Nothing flows until the
  initiator has sent CONNECT with `resume`; the answer to it makes both sides resend what is unacknowledged.
- The relay is away, or drains, and both ends sit at another one, too: the initiator resumes its connections there, and
  another `Endpoint` of the same process takes them over, at each end. Nothing else of them changes.
- The peer is silent. Keepalive PINGs and window probes leave, and in the end the user timeout passes and both
  applications get an error.
- CLOSE is lost, or crosses the peer's. It is retransmitted like DATA, and the state table has a row for CLOSEs that
  cross. SHUTDOWN is repeated until it is answered or the drain ends, so that the relay frees the route.

Misuse by the application raises `LocalProtocolError`, `PeerClosedError`, or ValueError for a value that fits no packet.
Input from a peer never raises: invalid input is discarded and counted. Clause numbers, as in (4.6), are those of
docs/PROTOCOL.md.
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
    Moved,
    PeerClosed,
    PeerFinished,
    Readable,
    Refused,
    Writable,
)
from tunnel.core.moving import Moves, Siblings, Stay, StayCause
from tunnel.core.stats import RESENT_BOUNDS, ROUND_TRIP_BOUNDS_US, ConnectionStats, EndedTotals

__all__ = [
    "RESENT_BOUNDS",
    "ROUND_TRIP_BOUNDS_US",
    "Batch",
    "Closed",
    "ConnectRequested",
    "Connected",
    "Connection",
    "ConnectionStats",
    "EndedTotals",
    "Endpoint",
    "EndpointConfig",
    "Event",
    "Flushed",
    "Incoming",
    "LocalProtocolError",
    "Lost",
    "LostReason",
    "Moved",
    "Moves",
    "PeerClosed",
    "PeerClosedError",
    "PeerFinished",
    "Readable",
    "Refused",
    "Siblings",
    "State",
    "Stay",
    "StayCause",
    "TunnelError",
    "Writable",
]
