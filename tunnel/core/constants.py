"""The constants of the protocol, each with its unit and source (clauses are those of docs/PROTOCOL.md)."""

__all__ = [
    "ACK_DELAY_US",
    "ACK_SPACING_BYTES",
    "ACK_SPACING_US",
    "ACK_SPACING_US_MAX",
    "BACKOFF_MAX_US",
    "BATCH_PACKETS_MAX",
    "DRAIN_US",
    "EARLY_BYTES_MAX",
    "EARLY_PACKETS_MAX",
    "FAST_OPENS",
    "FAST_OPEN_INTERVAL_US",
    "HELD_BYTES_MAX",
    "MOVED_US",
    "MOVES_ALL_MAX",
    "MOVES_MAX",
    "MOVE_REST_US",
    "MOVE_REST_US_MAX",
    "MOVE_SPREAD_BITS",
    "MOVE_TRIES",
    "NEVER_US",
    "PACKET_PAYLOAD_MAX",
    "PACKET_PAYLOAD_MIN",
    "REORDER_MIN_US",
    "RESUME_INTERVAL_US",
    "RTO_INITIAL_US",
    "RTO_MIN_US",
    "SECOND_US",
    "SILENCE_US",
    "SMALL_BYTES",
    "TOMBSTONE_US",
    "VARIANCE_MIN_US",
    "WATCH_IDLE_US",
    "WATCH_US",
]

SECOND_US = 1_000_000
NEVER_US = 1 << 62  # later than any deadline: 146,000 years

ACK_SPACING_US = 1_000  # 4.3: least time between ACKs that nothing asks for
ACK_SPACING_US_MAX = 10_000  # 4.3: the same while fewer than ACK_SPACING_BYTES have come since the last ACK
ACK_SPACING_BYTES = 16 * 1024  # 4.3: far less than the first window
ACK_DELAY_US = 25_000  # 4.3: the longest time that an ACK waits for a batch that leaves anyway
RTO_INITIAL_US = SECOND_US  # 4.6, RFC 6298 2.1
RTO_MIN_US = SECOND_US  # 4.6, RFC 6298 2.4
BACKOFF_MAX_US = 60 * SECOND_US  # 4.6, RFC 6298 2.5
VARIANCE_MIN_US = 10_000  # 4.6: floor of 4 x RTTVAR, the timer precision of event loops under load
REORDER_MIN_US = 1_000  # 4.8
# 6.3: in a failover, the peer comes to the other relay when its last held pull at the dead one is over. A pull is held
# for 65 s at most, and a pull interval is at most 60 s.
MOVED_US = 75 * SECOND_US
RESUME_INTERVAL_US = SECOND_US  # 6.5: a connection recovers within 2 s after the path does
MOVE_SPREAD_BITS = 17  # 6.11: endpoints that leave the same relay begin within 2**17 us, 131 ms
MOVE_TRIES = 3  # 6.11: resumes that a try sends, one each second
MOVE_REST_US = SECOND_US // 2  # 6.11: after a try without success; it doubles each time
MOVE_REST_US_MAX = 60 * SECOND_US
MOVES_MAX = 256  # 6.11: tries at a time for one acceptor, so that 200 connections need one round trip
MOVES_ALL_MAX = 768  # 6.11: tries of an endpoint at a time; they must fit into its queue of 1024 such packets
WATCH_US = SECOND_US  # 6.11: silence after which an acceptor is asked whether it is there
WATCH_IDLE_US = 15 * SECOND_US  # 6.11: the same when its last packet was the answer to that
SILENCE_US = 2 * SECOND_US  # 6.11: the least time for its answer; a process that is busy for longer is rare
# 3.1: quick repeats of CONNECT after a fresh attach. Together they cover the 5 s of 6.5; the acceptor attaches
# again within about 1 s of this endpoint.
FAST_OPENS = 10
FAST_OPEN_INTERVAL_US = SECOND_US // 2

EARLY_BYTES_MAX = 64 * 1024  # 3.6: DATA that may precede ACCEPTED
EARLY_PACKETS_MAX = 64  # 3.7
HELD_BYTES_MAX = 256 * 1024  # 3.7

DRAIN_US = 60 * SECOND_US  # 5.7: the least drain time; proxies were seen to repeat a request a minute late
TOMBSTONE_US = 4 * 60 * SECOND_US  # 3.1, 3.3: how long tombstones keep ids and route keys

BATCH_PACKETS_MAX = 1024  # 4.13: in one body or batch, if the relay announces no smaller number
PACKET_PAYLOAD_MIN = 1024  # 4.13
PACKET_PAYLOAD_MAX = 256 * 1024  # 4.13
SMALL_BYTES = 4 * 1024  # 4.14: connections with less to send than this go first
