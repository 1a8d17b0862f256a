"""Both halves of lanes and links: numbers, repeats, confirmations and pacing (sections 6 to 8). Without I/O.

A *lane* moves batches in numbered exchanges, that is, requests and their answers; a *link* moves them on one open
connection. Both halves are here, because both must agree about numbers: the endpoint's half is driven by the carriers
(`tunnel/carriers`), the relay's by the switch (`tunnel_servlet/switch`). The callers pass in `now` in microseconds, the
bytes that have come, and random bits. They take out requests or replies, events, and the time of the next timer.

Where to start
--------------

`lanes.py` for the endpoint, `served.py` for the relay, `link_state.py` for links, `ladder.py` for the choice between
them. Each coordinates small parts that know nothing of each other:

    the endpoint's half of lanes
      lanes.py            attaches, pushes, pulls and repeats; asks the parts below what is due
      lane.py             one lane: its number, the exchange in flight, packets in pieces; laneset.py has all of them
      flight.py           one body in flight: attempts, deadlines, repeats
      registration.py     secret, id, generation and epoch; the limits of the relay
      config.py, events.py   settings; what goes to the carrier and to the driver
    what it learns of the path
      path_model.py       all of it in one object, which outlives generations
      roundtrip.py, pacing.py   deadlines; sizes of bodies, number of lanes, and the hold
      pulls.py, held_pulls.py   when to pull, and how many pulls may be held
      request_pace.py, backoff.py   requests per second; pauses after refusals
      body_formats.py     in which format bodies pass (7.19)
    what an answer means
      responses.py        an HTTP response, as data; refusals.py reacts to those that are no answer
      health.py           trouble of the path, told once
    streamed answers (7.20)
      streaming_lanes.py  lanes that let the relay stream; incoming_stream.py is one stream, envelope_stream.py cuts it
      stream_road.py, stream_pace.py   whether streams pass; how much may be unconfirmed
    the relay's half of lanes
      served.py           one lane: applies each request once, answers, confirms and puts back
      served_stream.py    one streamed answer
      ledger.py           the packets of answers that are not confirmed
      outbox.py           the interface through which a lane takes packets; the switch implements it
    both halves
      pieces.py           packets that are larger than a body
      link_state.py       one half of a link; link_buffers.py reads into one piece, link_pace.py sizes batches
    the choice of a road
      ladder.py           which road to try, to use, to doubt
      roads.py            the states of one road, as a table; slow_road.py compares a slow one with exchanges
      spare_times.py      when to try a spare link

How a batch travels
-------------------

`Lanes.push` gives the batch to a free lane, whose `start_push` makes the next numbered exchange; `PathModel.flight`
sets deadline and repeats. `poll_request` hands the body to the carrier. At the relay, `ServedLane.receive` says whether
the number is new; if it is, the switch routes the packets and calls `answer`. The carrier brings the HTTP response to
`Lanes.answered`: `responses` classifies it, the lane accepts it, `BatchDone` tells the driver about the batch,
`PacketsReceived` brings the packets, and the path model learns. What is lost, cut or refused goes to `failed` or
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
from tunnel.exchange.ladder import POLL, Decision, Ladder, Step
from tunnel.exchange.lanes import Lanes
from tunnel.exchange.link_buffers import BufferPool
from tunnel.exchange.link_pace import LinkPace
from tunnel.exchange.link_state import LinkInput, LinkState
from tunnel.exchange.outbox import Outbox
from tunnel.exchange.responses import THE_PROXY, quoted, refusal_of, title_of, wait_us_of
from tunnel.exchange.roads import Road, RoadReport
from tunnel.exchange.served import Reply, ServedLane, ServedLimits, ServedRequest
from tunnel.exchange.spare_times import SpareTimes
from tunnel.exchange.stream_road import RoadState
from tunnel.exchange.streaming_lanes import StreamingLanes

__all__ = [
    "POLL",
    "THE_PROXY",
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
    "LinkInput",
    "LinkPace",
    "LinkState",
    "Outbox",
    "PacketsReceived",
    "Recovered",
    "Refusal",
    "Reply",
    "Request",
    "Road",
    "RoadReport",
    "RoadState",
    "ServedLane",
    "ServedLimits",
    "ServedRequest",
    "SpareTimes",
    "Step",
    "StreamingLanes",
    "Troubled",
    "quoted",
    "refusal_of",
    "title_of",
    "wait_us_of",
]
