-- The times in which bytes that had arrived waited for the application at the receiver. Times: microseconds.
-- Reads: events_part (the events, or those of some streams).
-- A record says for how long the oldest byte had waited, up to its own time. Records whose times overlap are one row.
-- stream: the sender's id. wait: its number in the stream.
with waits as (
    select peer as stream, time_us - latency_us as begin_us, time_us as end_us
    from events_part
    where event = 'stream_data_waited'
),
followed as (
    select
        *,
        max(end_us) over (
            partition by stream order by begin_us, end_us rows between unbounded preceding and 1 preceding
        ) as before_us
    from waits
),
numbered as (
    select
        *,
        sum(case when before_us >= begin_us then 0 else 1 end) over (
            partition by stream order by begin_us, end_us rows between unbounded preceding and current row
        ) as wait
    from followed
)
select stream, wait, min(begin_us) as begin_us, max(end_us) as end_us
from numbered
group by stream, wait
