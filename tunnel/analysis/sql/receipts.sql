-- Figures of each stream's sender: times from receipt to acknowledgement (PROTOCOL 4.5), RTO (microseconds), backoff.
-- Reads: steps.
select
    stream,
    count(*) filter (where rtt_us > 0) as receipts,
    cast(percentile_disc(0.5) within group (order by case when rtt_us > 0 then rtt_us end) as bigint) as receipt_us_p50,
    cast(percentile_disc(0.5) within group (order by case when rtt_us > 0 then rto_us end) as bigint) as rto_us_p50,
    max(backoff) as backoff_max
from steps
group by stream
