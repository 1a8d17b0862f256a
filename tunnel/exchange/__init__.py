"""Both halves of lanes and links: numbers, repeats, confirmations and pacing (sections 6 to 8). Without I/O.

A *lane* moves batches in numbered exchanges, that is, requests and their answers; a *link* moves them on one open
connection. Both halves are here, because both must agree about numbers: the endpoint's half is driven by the carriers
(`tunnel/carriers`), the relay's by the switch (`tunnel_servlet/switch`). The callers pass in `now` in microseconds, the
bytes that have come, and random bits. They take out requests or replies, events, and the time of the next timer.

Where to start
--------------

`lanes/lanes.py` for the endpoint, `served/served.py` for the relay, `link/state.py` for links, `roads/ladder.py` for
the choice between them. Each coordinates small parts that know nothing of each other:

    lanes/                the endpoint's half of lanes
      lanes.py            attaches, pushes and pulls; asks the other parts what is due
      exchanges.py        the exchanges under way, which start, are repeated, fail and end; what the parts share
      lane.py             one lane: its number, the exchange in flight, packets in pieces; laneset.py has all of them
      registration.py     secret, id, generation and epoch; the limits of the relay
      responses.py        an HTTP response, as data; refusals.py reacts to those that are no answer
      health.py           trouble of the path, told once
      streams.py          streamed answers (7.20): when to ask for one, and what comes on it
      incoming_stream.py  one stream; stream_set.py has those of a generation
    served/               the relay's half of lanes
      served.py           one lane: applies each request once, answers, confirms and puts back
      served_stream.py    one streamed answer
      ledger.py           the packets of answers that are not confirmed
      outbox.py           the interface through which a lane takes packets; the switch implements it
    link/                 one half of a link, the same at both ends
      state.py            bytes into batches and receipts; buffers.py reads into one piece, pace.py sizes batches
      line.py             one of several links that share the load: how much may wait on it, and whether it stalls
    path/                 what an endpoint learns of the path
      path_model.py       all of it in one object, which outlives generations
      roundtrip.py, pacing.py   deadlines; sizes of bodies, number of lanes, and the hold
      pulls.py, held_pulls.py   when to pull, and how many pulls may be held
      request_pace.py     requests per second
      window.py           how much may have no receipt: on a link at both ends, on streamed answers at the relay
      body_formats.py     in which format bodies pass (7.19)
    roads/                the choice of a road
      ladder.py           which road to try, to use, to doubt
      roads.py            the states of one road, as a table; slow_road.py compares a slow one with exchanges
      stream_road.py      whether streamed answers pass
      road_tries.py       one try of a connection at a time, as tables
      spare_times.py      when to try a spare link
    for several of these
      stream_times.py     times of streamed answers that both their ends keep
      config.py, events.py   settings; what goes to the carrier and to the driver
      flight.py           one body in flight: attempts, deadlines, repeats; backoff.py has the pauses after refusals
      pieces.py           packets that are larger than a body
      envelope_stream.py  cuts a streamed answer into envelopes

How a batch travels
-------------------

`Lanes.push` gives the batch to a free lane, whose `start_push` makes the next numbered exchange; `PathModel.flight`
sets deadline and repeats. `poll_request` hands the body to the carrier. At the relay, `ServedLane.receive` says whether
the number is new; if it is, the switch routes the packets and calls `answer`. The carrier brings the HTTP response to
`Lanes.on_answered`: `responses` classifies it, the lane accepts it, `BatchDone` tells the driver about the batch,
`PacketsReceived` brings the packets, and the path model learns. What is lost, cut or refused goes to `on_failed` or
`refusals`: the same body leaves again, until the flight ends and `BatchDone(ok=False)` gives the batch up.

Errors of the path and of the relay become repeats and events, never exceptions. Clause numbers, as in (7.3), are those
of docs/PROTOCOL.md.
"""

from tunnel.exchange.backoff import Refusal
from tunnel.exchange.config import LaneConfig
from tunnel.exchange.events import (
    Abandoned,
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    PacketsReceived,
    Recovered,
    Request,
    Troubled,
)
from tunnel.exchange.lanes.lanes import Lanes
from tunnel.exchange.lanes.responses import NEEDS_HTTPS, THE_PROXY, TO_HTTPS, quoted, refusal_of, title_of, wait_us_of
from tunnel.exchange.lanes.streams import Streams
from tunnel.exchange.link.buffers import BufferPool
from tunnel.exchange.link.line import Line
from tunnel.exchange.link.pace import LinkPace
from tunnel.exchange.link.state import LinkInput, LinkState
from tunnel.exchange.path.window import PATIENCE_US_MAX, PathWindow
from tunnel.exchange.roads.ladder import POLL, Decision, Ladder, Step
from tunnel.exchange.roads.road_tries import Next, RoadTries, Try
from tunnel.exchange.roads.roads import Road, RoadReport
from tunnel.exchange.roads.stream_road import StreamState
from tunnel.exchange.served.outbox import Outbox
from tunnel.exchange.served.served import Reply, ServedLane, ServedLimits, ServedRequest

__all__ = [
    "NEEDS_HTTPS",
    "PATIENCE_US_MAX",
    "POLL",
    "THE_PROXY",
    "TO_HTTPS",
    "Abandoned",
    "AttachRefused",
    "AttachedEvent",
    "BatchDone",
    "BufferPool",
    "Decision",
    "Detached",
    "Ladder",
    "LaneConfig",
    "LaneEvent",
    "Lanes",
    "LanesChanged",
    "Line",
    "LinkInput",
    "LinkPace",
    "LinkState",
    "Next",
    "Outbox",
    "PacketsReceived",
    "PathWindow",
    "Recovered",
    "Refusal",
    "Reply",
    "Request",
    "Road",
    "RoadReport",
    "RoadTries",
    "ServedLane",
    "ServedLimits",
    "ServedRequest",
    "Step",
    "StreamState",
    "Streams",
    "Troubled",
    "Try",
    "quoted",
    "refusal_of",
    "title_of",
    "wait_us_of",
]
