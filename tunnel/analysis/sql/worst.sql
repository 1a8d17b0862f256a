-- The streams that were stalled for longest, or lost most. Times: microseconds; streams.sql explains most columns.
-- Reads: streams, stalls, receipts. Parameter: most (rows).
-- stalled_by: the cause of most of the stalled time.
with by_cause as (
    select stream, why, count(*) as stalls, sum(gap_us) as stalled_us
    from stalls
    group by stream, why
),
ranked as (
    select
        *,
        row_number() over (partition by stream order by stalled_us desc, why) as place
    from by_cause
),
stalled as (
    select
        stream,
        sum(stalls) as stalls,
        sum(stalled_us) as stalled_us,
        max(case when place = 1 then why end) as stalled_by
    from ranked
    group by stream
)
select
    streams.*,
    stalled.stalls,
    stalled.stalled_us,
    stalled.stalled_by,
    receipts.receipts,
    receipts.receipt_us_p50,
    receipts.rto_us_p50,
    receipts.backoff_max
from streams
left join stalled on streams.stream = stalled.stream
left join receipts on streams.stream = receipts.stream
order by
    coalesce(stalled.stalled_us, 0) + 1000 * coalesce(streams.lost, 0) + coalesce(streams.needless, 0) desc,
    streams.stream
limit :most
