-- The number and durations of stalls by cause (why), the largest total (us) first. Times: microseconds.
-- Reads: stalls.
select
    why,
    count(*) as stalls,
    sum(gap_us) as us,
    cast(percentile_disc(0.5) within group (order by gap_us) as bigint) as us_p50,
    cast(percentile_disc(0.99) within group (order by gap_us) as bigint) as us_p99,
    max(gap_us) as us_max,
    count(distinct stream) as streams
from stalls
group by why
order by us desc, why
