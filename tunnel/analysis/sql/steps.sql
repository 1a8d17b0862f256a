-- The steps of each stream's sender, in the order of its clock, with the state before each. Times: microseconds.
-- Reads: flow, streams (trip_us_p50), unread. Parameters: stall_min_us, ack_delay_us, patience_us (analyse.py has them).
-- A step is a packet sent (kind 1) or acknowledged (3), a CONNECT (6) or its answer (7), or the end of the connection
-- (8). Only some steps are returned: they measured a round trip, ended a stall (is_stall), found the timeout doubled,
-- changed whether the sender was busy (turn: 1 if a busy time begins, -1 if one ends), or are the last of their stream
-- (is_last), or the last before it moved to another relay, where its end is another node (is_left). node_before: the node
-- of the step before. Of a stream whose receiver read late, all are returned. limited_by: the limit of the time before the
-- step. A sender is busy while it has bytes in flight or waiting, or a CONNECT without an answer (asked).
--
-- In a stall, a busy sender was silent for longer than stall_min_us, and for longer than the lower of two times. One is
-- two round trips and the delay of acknowledgements. The other is the timeout, which runs from the receipt, and so ends
-- later by the time from sending to receipt. Until a round trip is known, a CONNECT may take patience_us.
--
-- Each time between two steps is either a stall or belongs to one limit: the first of limits.LIMITS that applies. The
-- columns of these names are the sums of such times up to the step. An idle time counts only if the application wrote
-- something at its end; the idle time before the end of the stream does not count.
-- granted: the window that the peer granted, as an acknowledgement tells it.
--
-- is_full, is_at_edge: the next packet is larger than the peer's window, or than what the relay still takes. A repeat
-- cannot be cut; new bytes are cut to the room, but not to less than 1024 while packets are in flight (as in
-- core/send/window.py; RFC 9293, 3.8.6.2.1). The window has room for a repeat, since it had room for the packet.
-- is_unread: the peer's buffer was full of bytes that its application had not read. Then nothing is in flight, or the
-- peer grants less than half of what it once did; a window that is merely small is full of bytes in flight.
-- Where 262144 bytes are in flight at the edge, the relay's room is not the cause: the receiver takes them too slowly.
with taken as (
    select
        stream,
        node,
        node_id,
        writer_id,
        kind,
        t,
        packet_type,
        sequence,
        attempt,
        number,
        size_bytes,
        cause,
        rtt_us,
        rto_us,
        backoff,
        window_bytes,
        in_flight_bytes,
        edge_bytes,
        -- at the same microsecond, the sender handles arrivals before it sends anything
        case when kind in (1, 6) then 1 else 0 end as is_sending,
        -- the record of an answer tells nothing of the sender
        case when kind <> 7 then in_flight_bytes end as told_in_flight_bytes,
        case when kind <> 7 then backlog_bytes end as told_backlog_bytes,
        case when kind <> 7 then window_bytes end as told_window_bytes,
        case when kind <> 7 then edge_bytes end as told_edge_bytes,
        case when kind <> 7 then srtt_us end as told_srtt_us,
        case when kind <> 7 then rto_us end as told_rto_us,
        case when rtt_us > 0 then rtt_us end as told_rtt_us,
        case when kind = 6 then 1 when kind in (7, 8) then 0 end as told_asked,
        case when kind = 1 and packet_type in (5, 13) then 1 else 0 end as ends,
        case when kind = 3 then window_bytes + in_flight_bytes end as granted
    from flow
    where kind in (1, 3, 6, 7, 8)
),
ordered as (
    select
        *,
        lag(t) over in_turn as t_before,
        lead(t) over in_turn is null as is_last,
        lag(node) over in_turn as node_before,
        coalesce(lead(node_id) over in_turn <> node_id, false) as is_left,
        last_known(told_in_flight_bytes) over earlier as in_flight_bytes_before,
        last_known(told_backlog_bytes) over earlier as backlog_bytes_before,
        last_known(told_window_bytes) over earlier as window_bytes_before,
        last_known(told_edge_bytes) over earlier as edge_bytes_before,
        last_known(told_srtt_us) over earlier as srtt_us_before,
        last_known(told_rto_us) over earlier as rto_us_before,
        last_known(told_in_flight_bytes) over so_far as in_flight_bytes_now,
        last_known(told_backlog_bytes) over so_far as backlog_bytes_now,
        last_known(told_rtt_us) over earlier as rtt_before,
        coalesce(last_known(told_asked) over earlier, 0) as asked_before,
        coalesce(last_known(told_asked) over so_far, 0) as asked_now,
        coalesce(max(ends) over earlier, 0) as ended_before,
        last_known(granted) over earlier as granted_before,
        max(granted) over earlier as granted_most
    from taken
    window
        in_turn as (partition by stream order by t, is_sending, kind, sequence, attempt, number),
        so_far as (
            partition by stream order by t, is_sending, kind, sequence, attempt, number
            rows between unbounded preceding and current row
        ),
        earlier as (
            partition by stream order by t, is_sending, kind, sequence, attempt, number
            rows between unbounded preceding and 1 preceding
        )
),
patient as (
    select
        ordered.*,
        t - t_before as gap_us,
        case when srtt_us_before > 0 then srtt_us_before end as smoothed_us,
        greatest(case when srtt_us_before > 0 then srtt_us_before end, streams.trip_us_p50) as trip_us,
        in_flight_bytes_before > 0 or backlog_bytes_before > 0 or asked_before > 0 as was_busy,
        in_flight_bytes_now > 0 or backlog_bytes_now > 0 or asked_now > 0 as is_busy
    from ordered
    left join streams on ordered.stream = streams.stream
),
waited as (
    select
        *,
        least(2 * trip_us + :ack_delay_us, rto_us_before + coalesce(trip_us - smoothed_us, 0)) as known_patience_us
    from patient
),
judged as (
    select
        *,
        coalesce(
            was_busy and gap_us > :stall_min_us and gap_us > case
                when asked_before > 0 then coalesce(known_patience_us, :patience_us)
                else known_patience_us
            end,
            false
        ) as is_stall,
        case when is_busy and not is_last then 1 else 0 end - case when was_busy then 1 else 0 end as turn,
        coalesce(
            backlog_bytes_before > 0 and window_bytes_before >= 0
                and window_bytes_before < least(backlog_bytes_before, 1024),
            false
        ) as is_full,
        coalesce(
            backlog_bytes_before > 0 and edge_bytes_before >= 0 and edge_bytes_before < case
                when kind = 1 and attempt > 0 then greatest(size_bytes - 24, least(backlog_bytes_before, 1024))
                else least(backlog_bytes_before, 1024)
            end,
            false
        ) as is_at_edge,
        in_flight_bytes_before = 0 or 2 * granted_before < granted_most as is_unread,
        kind = 1 and attempt = 0 and packet_type = 4 as is_written
    from waited
),
limited as (
    select
        *,
        case
            when is_stall then null
            when asked_before > 0 then 'connecting'
            when is_full and is_unread then 'reader_slow'
            when is_full then 'window_full'
            when is_at_edge and in_flight_bytes_before < 262144 then 'edge_reached'
            when backlog_bytes_before > 0 then 'carrier_full'
            when in_flight_bytes_before > 0 and ended_before > 0 then 'ending'
            when in_flight_bytes_before > 0 and is_written then 'all_sent'
            when in_flight_bytes_before > 0 then 'awaiting'
            when is_written then 'idle'
        end as limited_by
    from judged
),
summed as (
    select
        *,
        sum(case when limited_by = 'idle' then gap_us end) over so_far as idle,
        sum(case when limited_by = 'connecting' then gap_us end) over so_far as connecting,
        sum(case when limited_by = 'all_sent' then gap_us end) over so_far as all_sent,
        sum(case when limited_by = 'awaiting' then gap_us end) over so_far as awaiting,
        sum(case when limited_by = 'ending' then gap_us end) over so_far as ending,
        sum(case when limited_by = 'reader_slow' then gap_us end) over so_far as reader_slow,
        sum(case when limited_by = 'window_full' then gap_us end) over so_far as window_full,
        sum(case when limited_by = 'edge_reached' then gap_us end) over so_far as edge_reached,
        sum(case when limited_by = 'carrier_full' then gap_us end) over so_far as carrier_full
    from limited
    window so_far as (
        partition by stream order by t, is_sending, kind, sequence, attempt, number
        rows between unbounded preceding and current row
    )
)
select
    stream,
    node,
    node_before,
    writer_id,
    kind,
    t,
    t_before,
    sequence,
    attempt,
    size_bytes,
    cause,
    rtt_us,
    rtt_before,
    rto_us,
    backoff,
    window_bytes,
    edge_bytes,
    backlog_bytes_before,
    granted_most,
    asked_before,
    in_flight_bytes_now,
    backlog_bytes_now,
    asked_now,
    is_full,
    is_at_edge,
    is_unread,
    is_stall,
    is_last,
    is_left,
    turn,
    idle,
    connecting,
    all_sent,
    awaiting,
    ending,
    reader_slow,
    window_full,
    edge_reached,
    carrier_full,
    limited_by
from summed
where is_stall or rtt_us > 0 or backoff > 0 or turn <> 0 or is_last or is_left or stream in (select stream from unread)
