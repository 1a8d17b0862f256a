-- One row: the time for which streams lived, and what of the times of CONNECT is the path's. Times: microseconds.
-- Reads: lives, stalls. Parameter: trip_us (the shortest round trip of all, for nodes that have none).
-- us: a stream that carries little counts only while it is busy, since it is normal that it is idle most of the time.
-- asked_us, asked_stalled_us: of the time until CONNECT was answered, as much as the stream's shortest round trip, which
-- every answer takes; outside stalls, and in them.
with connecting as (
    select stream, sum(gap_us) as us
    from stalls
    where why = 'connecting'
    group by stream
),
asked as (
    select
        lives.*,
        least(lives.connecting_us, coalesce(lives.trip_us, :trip_us)) as path_us,
        coalesce(connecting.us, 0) as connecting_stalled_us
    from lives
    left join connecting on lives.stream = connecting.stream
)
select
    coalesce(sum(case when is_main then end_us - begin_us else limited_us - idle_us + stalled_us end), 0) as us,
    coalesce(sum(path_us), 0) as asked_us,
    coalesce(sum(least(connecting_stalled_us, coalesce(trip_us, :trip_us) - path_us)), 0) as asked_stalled_us
from asked
