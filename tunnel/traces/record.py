"""The trace record: the one schema of all traces.

A record has only integers and strings, without nesting. No float can round differently on another machine, and a line
of a trace is a row of a table. Names follow qlog (draft-ietf-quic-qlog-quic-events) where qlog has one; the others are
ours.

The version rises when a field changes its meaning or is removed. A new field with a default does not change it.
"""

import enum
from collections.abc import Callable

import msgspec

__all__ = [
    "TRACE_VERSION",
    "TraceCause",
    "TraceEvent",
    "TraceFault",
    "TraceLevel",
    "TraceReason",
    "TraceRecord",
    "TraceSink",
    "TraceSource",
    "level_of",
]

TRACE_VERSION = 1


class TraceEvent(enum.StrEnum):
    """The kinds of events: the values of `TraceRecord.event`."""

    # qlog: packets at an endpoint
    PACKET_SENT = "packet_sent"
    PACKET_RECEIVED = "packet_received"
    PACKET_DROPPED = "packet_dropped"  # discarded on arrival; `reason` says why
    PACKET_BUFFERED = "packet_buffered"
    PACKETS_ACKED = "packets_acked"  # one ACK acknowledged `count` packets; `sequence` is its cumulative number
    # ours: the same ACK acknowledged `count` packets from `sequence` on for the first time, beyond a gap (SACK, 2.4)
    PACKETS_SACKED = "packets_sacked"
    # qlog: recovery
    TIMER_UPDATED = "timer_updated"  # it has expired; `text` names the timers
    # qlog: connections and streams
    CONNECTION_STATE_UPDATED = "connection_state_updated"  # `text` names the new state
    CONNECTION_CLOSED = "connection_closed"  # `reason` says why
    STREAM_DATA_MOVED = (
        "stream_data_moved"  # the total of one direction, which `cause` names; written when the connection ends
    )
    # ours: the application read late: the oldest byte that it read had waited for `latency_us`; `size_bytes` were read
    # since the last such record, and `backlog_bytes` still wait
    STREAM_DATA_WAITED = "stream_data_waited"
    # ours: the outcome of a packet that was sent more than once
    PACKET_RECOVERED = "packet_recovered"  # acknowledged in the end; `attempt` is the last one
    SPURIOUS_RETRANSMIT = "spurious_retransmit"  # an attempt proved to be unnecessary (PROTOCOL 4.9)
    # ours: batches between an endpoint and its carrier
    BATCH_SENT = "batch_sent"  # `batch` is its number; it has `count` packets
    BATCH_RECEIPTED = "batch_receipted"
    BATCH_GIVEN_UP = "batch_given_up"
    # ours: lanes and exchanges
    # (node, lane, exchange, attempt) is one request; `text` is attach, push or pull
    EXCHANGE_SENT = "exchange_sent"
    EXCHANGE_REPEATED = "exchange_repeated"  # sent again
    EXCHANGE_ANSWERED = "exchange_answered"
    EXCHANGE_FAILED = "exchange_failed"
    EXCHANGE_ABANDONED = "exchange_abandoned"  # another attempt was answered or took its place, or all were given up
    # ours: the attachment at a relay, and its routes
    ATTACHED = "attached"  # `text` names the relay at an endpoint, and the user at a relay
    DETACHED = "detached"
    CARRIER_CHANGED = "carrier_changed"
    ROUTE_BOUND = "route_bound"
    ROUTE_RESUMED = "route_resumed"
    ROUTE_RELEASED = "route_released"
    # at an endpoint: the connection has come to this node's relay from another one (PROTOCOL 6.11); `text` has both, as
    # in FROM -> TO, and `cause` says why
    CONNECTION_MOVED = "connection_moved"
    # ours: samples of the event loop and of sockets
    LOOP_LAG = "loop_lag"  # a timer of the event loop was late by `latency_us`
    SOCKET_SAMPLED = "socket_sampled"  # TCP_INFO of a carrier's connection; TCP retransmitted `count` segments
    # ours: faults that a test injected, and losses of the trace itself
    FAULT_INJECTED = "fault_injected"  # `cause` is a TraceFault
    FAULTS_HEALED = "faults_healed"
    TRACE_DROPPED = "trace_dropped"  # `count` records were not written
    CLOCK_READ = "clock_read"  # `wall_us` is the wall clock at this time
    PROCESS_DIED = "process_died"  # the writer's process left its file unfinished; who repaired the file says so


class TraceLevel(enum.IntEnum):
    """How much a trace records; each level includes the one before."""

    OFF = 0
    CONNECTION = 1
    """Start and end of connections and attachments, the totals that they moved, faults and failures."""
    PACKET = 2
    """Also every packet, batch and exchange."""


class TraceCause(enum.StrEnum):
    """The values of `TraceRecord.cause`, except for faults: why a packet was sent again, what happened to a
    timer, and in which direction data moved."""

    # qlog: the trigger of packet_sent
    RETRANSMIT_REORDERED = "retransmit_reordered"  # fast retransmit, by time (4.8)
    RETRANSMIT_TIMEOUT = "retransmit_timeout"  # RTO (4.6)
    PTO_PROBE = "pto_probe"  # tail probe (4.7)
    # ours: the trigger of packet_sent, when the loss is certain (4.10)
    BATCH_GIVEN_UP = "batch_given_up"
    DROPPED_BY_RELAY = "dropped_by_relay"
    ROUTE_RESUMED = "route_resumed"
    # ours: the trigger of packet_sent, without a loss
    HANDSHAKE_TIMEOUT = "handshake_timeout"  # ACCEPTED sent again, because CONNECT was repeated (3.3)
    # qlog: the event of a timer
    EXPIRED = "expired"
    # ours: why a connection moved to another relay
    RELAY_DRAINED = "relay_drained"
    RELAY_SILENT = "relay_silent"
    PEER_MOVED = "peer_moved"  # the other end, which alone decides about moves
    # the direction of stream data, for which qlog has `from` and `to`
    APPLICATION_TO_TRANSPORT = "application_to_transport"
    TRANSPORT_TO_NETWORK = "transport_to_network"
    NETWORK_TO_TRANSPORT = "network_to_transport"
    TRANSPORT_TO_APPLICATION = "transport_to_application"


class TraceReason(enum.StrEnum):
    """Why something was discarded or ended: the values of `TraceRecord.reason`."""

    # qlog: the trigger of packet_dropped
    REJECTED = "rejected"
    INVALID = "invalid"
    DUPLICATE = "duplicate"
    CONNECTION_UNKNOWN = "connection_unknown"
    # ours: discarded by an endpoint
    OUTSIDE_WINDOW = "outside_window"
    # ours: dropped by the relay, which names the packet (2.9)
    FULL = "full"
    NO_ROUTE = "no_route"
    GONE = "gone"
    TOO_LARGE = "too_large"
    # ours: why a connection ended; the names of `LostReason` in lower case
    CLEAN = "clean"
    RESET = "reset"
    PEER_CLOSED = "peer_closed"
    TIMEOUT = "timeout"
    INTEGRITY = "integrity"
    UNKNOWN = "unknown"
    PROTOCOL = "protocol"
    SHUTDOWN = "shutdown"
    DENIED = "denied"
    MOVED = "moved"
    ABORTED = "aborted"
    # ours: why the relay forgot an attachment
    USER_TIMEOUT = "user_timeout"


class TraceFault(enum.StrEnum):
    """The faults that a test injects: the values of `TraceRecord.cause` in fault_injected."""

    REQUEST_LOST = "request_lost"
    RESPONSE_LOST = "response_lost"
    REQUEST_DUPLICATED = "request_duplicated"
    REQUEST_DELAYED = "request_delayed"
    RESPONSE_DELAYED = "response_delayed"
    REQUEST_TRUNCATED = "request_truncated"
    RESPONSE_TRUNCATED = "response_truncated"
    REQUEST_CORRUPTED = "request_corrupted"
    RESPONSE_CORRUPTED = "response_corrupted"
    ANSWER_REPLACED = "answer_replaced"  # a page, a cached answer or a status that is not from the relay
    CONNECTION_REFUSED = "connection_refused"
    CONNECTION_RESET = "connection_reset"
    PACKET_DROPPED = "packet_dropped"  # one packet inside an accepted body
    BLACKHOLE = "blackhole"
    NODE_KILLED = "node_killed"
    NODE_FROZEN = "node_frozen"
    READER_STOPPED = "reader_stopped"


# The version is the tag of every line. It costs nothing, and records of another version do not decode.
class TraceRecord(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="version", tag=TRACE_VERSION
):
    """One event at one node. Fields that the event does not use keep their defaults and are not written.

    Records of different nodes are joined on (connection, peer, sequence, attempt), never on time.
    """

    time_us: int  # by the node's own monotonic clock
    node: str  # the node that saw the event; unique in a run
    event: str  # TraceEvent
    connection: int = 0  # the node's own connection id
    peer: int = 0  # the peer's connection id
    packet_type: int = 0  # PROTOCOL 1.5
    sequence: int = 0  # the wire number, 32 bits
    attempt: int = 0  # 0: first transmission
    size_bytes: int = 0
    cause: str = ""  # TraceCause or TraceFault
    reason: str = ""  # TraceReason
    rtt_us: int = 0  # latest sample
    srtt_us: int = 0
    rto_us: int = 0
    backoff: int = 0  # times that the RTO has doubled
    window_bytes: int = 0
    in_flight_bytes: int = 0
    backlog_bytes: int = 0  # bytes that wait to be sent, first or again
    edge_bytes: int = -1  # bytes that the relay still takes on this route (2.10); -1: unknown
    batch: int = 0  # the endpoint's number of the batch
    carrier: str = ""  # the carrier that moved the packet: poll, link, ...
    lane: int = 0
    exchange: int = 0  # its number in the lane (7.3)
    serial: int = 0  # the response serial (7.3)
    status: int = 0  # HTTP status
    latency_us: int = 0
    count: int = 0
    text: str = ""  # for people; analyses read it only for the events whose comment above says what it is
    writer: str = ""  # the writer of the file; unique in a run
    number: int = 0  # counts the records of that writer, from 1; a gap shows lost records
    wall_us: int = 0  # microseconds since 1970, UTC; the writer sets it


TraceSink = Callable[[TraceRecord], None]


class TraceSource:
    """Creates the records of one node and passes them to the sink. Only TraceWriter also creates records by itself."""

    __slots__ = ("_node", "_sink")

    def __init__(self, sink: TraceSink, node: str) -> None:
        self._sink = sink
        self._node = node

    def tell(
        self,
        event: str,
        now: int,
        *,
        connection: int = 0,
        peer: int = 0,
        packet_type: int = 0,
        sequence: int = 0,
        attempt: int = 0,
        size_bytes: int = 0,
        cause: str = "",
        reason: str | None = None,
        rtt_us: int = 0,
        srtt_us: int = 0,
        rto_us: int = 0,
        backoff: int = 0,
        window_bytes: int = 0,
        in_flight_bytes: int = 0,
        backlog_bytes: int = 0,
        edge_bytes: int = -1,
        batch: int = 0,
        carrier: str = "",
        lane: int = 0,
        exchange: int = 0,
        serial: int = 0,
        status: int = 0,
        latency_us: int = 0,
        count: int = 0,
        text: str = "",
    ) -> None:
        """Record an event. The parameters are the fields of `TraceRecord`.

        They are named one by one, because `**fields` costs half a microsecond more.
        """
        self._sink(
            TraceRecord(
                time_us=now,
                node=self._node,
                event=event,
                connection=connection,
                peer=peer,
                packet_type=packet_type,
                sequence=sequence,
                attempt=attempt,
                size_bytes=size_bytes,
                cause=cause,
                reason=reason or "",
                rtt_us=rtt_us,
                srtt_us=srtt_us,
                rto_us=rto_us,
                backoff=backoff,
                window_bytes=window_bytes,
                in_flight_bytes=in_flight_bytes,
                backlog_bytes=backlog_bytes,
                edge_bytes=edge_bytes,
                batch=batch,
                carrier=carrier,
                lane=lane,
                exchange=exchange,
                serial=serial,
                status=status,
                latency_us=latency_us,
                count=count,
                text=text,
            )
        )


def level_of(sink: TraceSink | None) -> TraceLevel:
    """Return the level that the sink asks for: its attribute `level`, else PACKET; OFF without a sink."""
    if sink is None:
        return TraceLevel.OFF
    return TraceLevel(getattr(sink, "level", TraceLevel.PACKET))
