"""A trace of silences. Each has its own stream and node. The analysis must name its cause, or find no stall."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunnel.traces import TraceCause, TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter

__all__ = ["SILENCES", "Silence", "stream_of", "write_silences"]

BEGIN_US = 1_000_000
SILENCE_US = 100_000
END_US = BEGIN_US + SILENCE_US
MIDDLE_US = BEGIN_US + SILENCE_US // 2
SRTT_US, RTO_US = 10_000, 50_000
ROOM = 65_536
DATA = 4

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Silence:
    """A packet is sent, then nothing happens to its stream until `ended_by`."""

    name: str
    cause: str
    """The expected cause of the stall; empty if the silence is no stall."""
    ended_by: Fields
    before: Fields = field(default_factory=dict)
    """Fields of the packet sent before the silence: the sender's state during it."""
    meanwhile: tuple[Fields, ...] = ()
    """Other records: of the sender's node, unless they name another."""
    received: tuple[int, ...] = (0,)
    """Which attempts of the packet arrived."""
    earlier: tuple[int, ...] = (0,)
    """Which attempts of the packet were sent before the silence."""
    asks: bool = False
    """The packet before the silence is CONNECT."""
    lasts_us: int = SILENCE_US
    """The time from the beginning of the silence to `ended_by` or, without it, to the end of the sender's trace."""


def _acked(**fields: Any) -> Fields:
    return {"event": TraceEvent.PACKETS_ACKED, "count": 1, **fields}


def _sent(attempt: int = 0, **fields: Any) -> Fields:
    number = {"sequence": 1} if attempt else {"sequence": 2}
    return (
        {"event": TraceEvent.PACKET_SENT, "packet_type": DATA, "attempt": attempt, "size_bytes": 100} | number | fields
    )


def _connect() -> Fields:
    return {"event": TraceEvent.PACKET_SENT, "packet_type": 1, "size_bytes": 91}


def _accepted() -> Fields:
    return {"event": TraceEvent.PACKET_RECEIVED, "packet_type": 2, "size_bytes": 91}


def _pull(event: TraceEvent, time_us: int, **fields: Any) -> Fields:
    return {"event": event, "text": "pull", "time_us": time_us, **fields}


def _exchange(event: TraceEvent, **fields: Any) -> Fields:
    return {"event": event, "text": "push", "time_us": MIDDLE_US, **fields}


def _sampled(time_us: int, count: int) -> Fields:
    return {"event": TraceEvent.SOCKET_SAMPLED, "time_us": time_us, "count": count}


def _lag(latency_us: int, late_us: int = 0, whose: str = "sender") -> Fields:
    """Return the record of a loop that was late and ran again `late_us` after the end of the silence."""
    event = {"event": TraceEvent.LOOP_LAG, "time_us": END_US + late_us, "latency_us": latency_us}
    return event if whose == "sender" else event | {"node": whose}


_WAITS = {"backlog_bytes": 5_000}
_ANSWERED = TraceEvent.EXCHANGE_ANSWERED

SILENCES = (
    # loops that are late
    Silence("loop late", "loop_lag", _acked(), meanwhile=(_lag(60_000),)),
    Silence("loop late for less than half of it", "packet_delay", _acked(), meanwhile=(_lag(40_000),)),
    Silence("lag recorded after what ended it", "loop_lag", _acked(), meanwhile=(_lag(70_000, 5_000),)),
    Silence("lag mostly after it", "packet_delay", _acked(), meanwhile=(_lag(70_000, 60_000),)),
    Silence("lag told by two nodes of a process", "packet_delay", _acked(), meanwhile=(_lag(40_000), _lag(40_000))),
    Silence("peer's loop late", "peer_loop_lag", _acked(), meanwhile=(_lag(60_000, whose="receiver"),)),
    Silence("relay's loop late", "relay_loop_lag", _acked(), meanwhile=(_lag(60_000, whose="relay"),)),
    Silence("another relay's loop late", "packet_delay", _acked(), meanwhile=(_lag(60_000, whose="other relay"),)),
    # the carrier
    Silence("relay away", "carrier_http", _acked(), meanwhile=({"event": TraceEvent.DETACHED, "time_us": MIDDLE_US},)),
    Silence("exchange failed", "carrier_http", _acked(), meanwhile=(_exchange(TraceEvent.EXCHANGE_FAILED),)),
    Silence("exchange repeated", "carrier_http", _acked(), meanwhile=(_exchange(TraceEvent.EXCHANGE_REPEATED),)),
    Silence("exchange refused", "carrier_http", _acked(), meanwhile=(_exchange(_ANSWERED, status=503),)),
    Silence("exchange answered", "packet_delay", _acked(), meanwhile=(_exchange(_ANSWERED, status=200),)),
    Silence("batch given up", "carrier_http", _sent(1, cause=TraceCause.BATCH_GIVEN_UP), received=(1,)),
    Silence("route resumed", "carrier_http", _sent(1, cause=TraceCause.ROUTE_RESUMED), received=(1,)),
    Silence("TCP repeated", "carrier_tcp", _acked(), meanwhile=(_sampled(BEGIN_US - 1, 3), _sampled(MIDDLE_US, 5))),
    Silence(
        "TCP had repeated", "packet_delay", _acked(), meanwhile=(_sampled(BEGIN_US - 1, 3), _sampled(MIDDLE_US, 3))
    ),
    Silence(
        "no pull open",
        "no_poll_outstanding",
        _acked(),
        meanwhile=(
            _pull(TraceEvent.EXCHANGE_SENT, BEGIN_US - 2),
            _pull(_ANSWERED, BEGIN_US - 1, status=200),
            _pull(TraceEvent.EXCHANGE_SENT, END_US - 20_000),
        ),
    ),
    Silence("pull open", "packet_delay", _acked(), meanwhile=(_pull(TraceEvent.EXCHANGE_SENT, BEGIN_US - 2),)),
    # room
    Silence("peer's window full of bytes in flight", "window_small", _acked(), _WAITS | {"window_bytes": 0}),
    Silence("window smaller than the next packet", "window_small", _acked(), _WAITS | {"window_bytes": 1_000}),
    Silence("window as large as the next packet", "packet_delay", _acked(), _WAITS | {"window_bytes": 1_024}),
    Silence("window as large as what waits", "packet_delay", _acked(), {"backlog_bytes": 9, "window_bytes": 9}),
    Silence(
        "window shut, nothing in flight",
        "flow_control_peer",
        _acked(),
        _WAITS | {"window_bytes": 0, "in_flight_bytes": 0},
    ),
    Silence("relay's edge reached", "flow_control_relay", _acked(), _WAITS | {"edge_bytes": 0}),
    Silence("edge smaller than the next packet", "flow_control_relay", _acked(), _WAITS | {"edge_bytes": 1_000}),
    Silence(
        "edge smaller than the next repeat",
        "flow_control_relay",
        _sent(1, cause=TraceCause.RETRANSMIT_TIMEOUT, size_bytes=5_024),
        _WAITS | {"edge_bytes": 4_999},
        received=(1,),
    ),
    Silence("edge unknown", "packet_delay", _acked(), _WAITS | {"edge_bytes": -1}),
    # the handshake
    Silence("CONNECT repeated", "connecting", _connect(), asks=True),
    Silence("CONNECT answered late", "connecting", _accepted(), asks=True),
    Silence(
        "CONNECT without an answer on a bad path",
        "carrier_http",
        _connect(),
        asks=True,
        meanwhile=(_exchange(TraceEvent.EXCHANGE_FAILED),),
    ),
    # the end of the trace
    Silence("nothing ever came", "no_answer", {}, {"rto_us": 50_000}, lasts_us=2_000_000),
    Silence(
        "window shut to the end",
        "flow_control_peer",
        {},
        _WAITS | {"window_bytes": 0, "in_flight_bytes": 0},
        lasts_us=2_000_000,
    ),
    Silence("CONNECT unanswered to the end", "connecting", {}, asks=True, lasts_us=2_000_000),
    Silence("nothing under way at the end", "", {}, {"in_flight_bytes": 0}, lasts_us=2_000_000),
    Silence(
        "ended in the meantime", "", {"event": TraceEvent.CONNECTION_CLOSED}, {"in_flight_bytes": 0}, lasts_us=2_000_000
    ),
    # the network
    Silence(
        "acknowledgement late", "ack_delay_or_loss", _sent(1, cause=TraceCause.RETRANSMIT_TIMEOUT), received=(0, 1)
    ),
    Silence(
        "repeat lost",
        "double_retransmission",
        _sent(2, cause=TraceCause.RETRANSMIT_TIMEOUT),
        received=(2,),
        earlier=(0, 1),
    ),
    Silence("tail lost", "tail_retransmission", _sent(1, cause=TraceCause.PTO_PROBE), received=(1,)),
    Silence("lost", "loss", _sent(1, cause=TraceCause.RETRANSMIT_TIMEOUT), _WAITS, received=(1,)),
    Silence("path slower", "packet_delay", _acked()),
    # the sender
    Silence("carrier takes nothing", "carrier_busy", _sent(), _WAITS),
    Silence("nothing to send", "application", _sent()),
    Silence("nothing under way", "", _sent(), {"in_flight_bytes": 0}),
    Silence("no longer than two round trips", "", _acked(), {"srtt_us": SILENCE_US, "rto_us": 10 * SILENCE_US}),
)


def stream_of(silence: Silence) -> int:
    """The stream that has this silence."""
    return 100 + SILENCES.index(silence)


def write_silences(directory: Path) -> None:
    """Write the traces of all silences to the directory; each sender is a process of its own."""
    with JsonLinesWriter(directory / "silences.jsonl") as others, contextlib.ExitStack() as stack:
        for silence in SILENCES:
            stream = stream_of(silence)
            writers = {
                name: stack.enter_context(JsonLinesWriter(directory / f"silent-{name}-{stream}.jsonl"))
                for name in ("sender", "receiver", "relay", "other")
            }
            for record in sorted(_records(silence), key=lambda record: record.time_us):
                writers.get(record.node.split("-")[0].split(" ")[0], others)(record)


def _records(silence: Silence) -> Iterator[TraceRecord]:
    stream = stream_of(silence)
    sender, receiver = f"sender-{stream}", f"receiver-{stream}"
    state = {
        "srtt_us": SRTT_US,
        "rto_us": RTO_US,
        "in_flight_bytes": 1_000,
        "window_bytes": ROOM,
        "edge_bytes": ROOM,
        **silence.before,
    }
    ends: Fields = {"node": sender, "connection": stream, "peer": stream + 1000}
    for attempt in silence.earlier:
        time_us = BEGIN_US - 1000 * (silence.earlier[-1] - attempt)
        first = (
            {**_connect(), **state, "in_flight_bytes": 0} if silence.asks else {**_sent(attempt, sequence=1), **state}
        )
        yield TraceRecord(time_us=time_us, **ends, **first)
    for fields in silence.meanwhile:
        node = fields.get("node", "sender")
        yield TraceRecord(**{**fields, "node": f"{node}-{stream}"})
    if silence.ended_by:
        ended_us = BEGIN_US + silence.lasts_us
        known = {} if silence.ended_by["event"] == TraceEvent.CONNECTION_CLOSED else state
        known = {} if silence.ended_by.get("packet_type") == 2 else known
        yield TraceRecord(time_us=ended_us, **ends, **silence.ended_by, **known)
    # the sender's process lives on
    yield TraceRecord(time_us=BEGIN_US + silence.lasts_us, node=sender, event=TraceEvent.PACKET_BUFFERED)
    yield TraceRecord(
        time_us=BEGIN_US, node=f"relay-{stream}", event=TraceEvent.ROUTE_BOUND, connection=stream, peer=stream + 1000
    )
    for attempt in silence.received:
        yield TraceRecord(
            time_us=BEGIN_US + attempt,
            node=receiver,
            event=TraceEvent.PACKET_RECEIVED,
            connection=stream + 1000,
            peer=stream,
            packet_type=DATA,
            sequence=1,
            attempt=attempt,
            size_bytes=100,
        )
