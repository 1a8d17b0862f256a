"""A trace of silences. Each has its own stream and node, and one cause that the analysis must name."""

from __future__ import annotations

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
    """Other records of the node."""
    received: tuple[int, ...] = (0,)
    """Attempts of the packet that arrived."""
    earlier: tuple[int, ...] = (0,)
    """Attempts of the packet that were sent before the silence."""


def _acked(**fields: Any) -> Fields:
    return {"event": TraceEvent.PACKETS_ACKED, "count": 1, **fields}


def _sent(attempt: int = 0, **fields: Any) -> Fields:
    number = {"sequence": 1} if attempt else {"sequence": 2}
    return (
        {"event": TraceEvent.PACKET_SENT, "packet_type": DATA, "attempt": attempt, "size_bytes": 100} | number | fields
    )


def _pull(event: TraceEvent, time_us: int, **fields: Any) -> Fields:
    return {"event": event, "text": "pull", "time_us": time_us, **fields}


def _exchange(event: TraceEvent, **fields: Any) -> Fields:
    return {"event": event, "text": "push", "time_us": MIDDLE_US, **fields}


def _sampled(time_us: int, count: int) -> Fields:
    return {"event": TraceEvent.SOCKET_SAMPLED, "time_us": time_us, "count": count}


def _lag(latency_us: int) -> Fields:
    return {"event": TraceEvent.LOOP_LAG, "time_us": MIDDLE_US, "latency_us": latency_us}


_WAITS = {"backlog_bytes": 5_000}
_ANSWERED = TraceEvent.EXCHANGE_ANSWERED

SILENCES = (
    # this process
    Silence("loop late", "loop_lag", _acked(), meanwhile=(_lag(60_000),)),
    Silence("loop late for less than half of it", "packet_delay", _acked(), meanwhile=(_lag(40_000),)),
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
    Silence("peer's window shut", "flow_control_peer", _acked(), _WAITS | {"window_bytes": 0}),
    Silence(
        "window shut, nothing in flight",
        "flow_control_peer",
        _acked(),
        _WAITS | {"window_bytes": 0, "in_flight_bytes": 0},
    ),
    Silence("relay's edge reached", "flow_control_relay", _acked(), _WAITS | {"edge_bytes": 0}),
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
    """Write the traces of all silences to the directory."""
    with JsonLinesWriter(directory / "silences.jsonl") as trace:
        for silence in SILENCES:
            for record in _records(silence):
                trace(record)


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
        yield TraceRecord(time_us=time_us, **ends, **_sent(attempt, sequence=1), **state)
    for fields in silence.meanwhile:
        yield TraceRecord(node=sender, **fields)
    yield TraceRecord(time_us=END_US, **ends, **silence.ended_by, **state)
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
