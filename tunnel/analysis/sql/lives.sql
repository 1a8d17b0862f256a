-- The life of each stream whose sender was traced: from its first step to the end of its connection, to the end of the
-- sender's trace if that came first, or until the receiver's application had read everything. Times: microseconds.
-- Reads: least_trips, steps, stalls, streams, spans, unread. Parameters: payload_most (bytes, of any stream), main_share.
-- trip_us: the shortest round trip of the stream or, if none was measured, of its node.
-- is_main: it carries 1/main_share of payload_most at least. limited_us, stalled_us: the time with a limit, and in stalls.
with begun as (
    select stream, min(t) as begin_us
    from steps
    group by stream
),
stalled as (
    select stream, sum(gap_us) as us
    from stalls
    group by stream
),
read as (
    select stream, max(end_us) as us
    from unread
    group by stream
),
shortest as (
    select sender, min(us) as us
    from least_trips
    group by sender
)
select /*+ BROADCAST(spans) */
    steps.stream,
    steps.node,
    streams.receiver,
    begun.begin_us,
    greatest(
        case when steps.kind = 8 then steps.t else greatest(spans.until_us, steps.t) end,
        coalesce(read.us, steps.t)
    ) as end_us,
    streams.payload_bytes * :main_share >= :payload_most as is_main,
    coalesce(idle, 0) + coalesce(connecting, 0) + coalesce(all_sent, 0) + coalesce(awaiting, 0) + coalesce(ending, 0)
        + coalesce(reader_slow, 0) + coalesce(window_full, 0) + coalesce(edge_reached, 0) + coalesce(carrier_full, 0)
        as limited_us,
    coalesce(idle, 0) as idle_us,
    coalesce(connecting, 0) as connecting_us,
    coalesce(stalled.us, 0) as stalled_us,
    coalesce(least_trips.us, shortest.us) as trip_us
from steps
join streams on steps.stream = streams.stream
join begun on steps.stream = begun.stream
left join least_trips on steps.stream = least_trips.stream
left join shortest on xxhash64(steps.node) = shortest.sender
left join spans on steps.writer_id = spans.writer_id
left join stalled on steps.stream = stalled.stream
left join read on steps.stream = read.stream
where steps.is_last
