-- The points of the time-sequence graphs of a few streams: packets sent, received, acknowledged, and acknowledged beyond
-- a gap (kind 10). t: microseconds. flow.sql explains the columns.
-- Reads: flow, chosen (stream). Parameters: columns, rows (cells in a graph).
-- Each graph is divided into cells. Of the points of one kind in a cell, the first is returned: the others would lie
-- under it. So how much is drawn of a stream does not depend on the other streams, and repeats are always drawn.
with shown as (
    select
        flow.stream, flow.kind, flow.t, flow.sequence, flow.attempt, flow.cause, flow.acked, flow.number,
        flow.in_flight_bytes, flow.window_bytes,
        min(case when flow.kind = 1 then flow.t end) over (partition by flow.stream) as begin_us
    from flow
    join chosen on flow.stream = chosen.stream
    where flow.kind in (1, 2, 3, 10)
),
based as (
    select
        *,
        min(case when kind = 1 and t = begin_us then sequence end) over (partition by stream) as first_sent,
        min(sequence) over (partition by stream) as lowest
    from shown
),
placed as (
    select *, ((sequence - coalesce(first_sent, lowest) + 2147483648) & 4294967295) - 2147483648 as position
    from based
),
spanned as (
    select
        *,
        min(t) over (partition by stream) as t_min,
        max(t) over (partition by stream) as t_max,
        min(position) over (partition by stream) as position_min,
        max(position) over (partition by stream) as position_max
    from placed
),
celled as (
    select
        *,
        floor((t - t_min) * :columns / greatest(t_max - t_min, 1)) as cell_x,
        floor((position - position_min) * :rows / greatest(position_max - position_min, 1)) as cell_y
    from spanned
),
ranked as (
    select
        *,
        row_number() over (
            partition by stream, kind, attempt > 0, cell_x, cell_y order by t, sequence, attempt, cause, number
        ) as place
    from celled
)
select stream, kind, t, sequence, attempt, cause, acked, in_flight_bytes, window_bytes
from ranked
where place = 1
order by stream, t, kind, sequence, attempt
