-- The samples of each kind (of) and the RTO. Times: microseconds.
-- Reads: samples. Parameters: begin_us, bucket_us.
-- Three sets of rows: by time bucket; over the whole trace (bucket null); and, where is_class is true, only counts (samples) by
-- class of time (us_class) and class of the RTO over that time (rto_class).
-- jitter_us: the mean difference between one sample and the next. rto_over_us: the RTO over the time of the sample.
-- The classes are logarithmic, 8 for each factor of 2. The small number keeps the powers of 2, whose logarithm may come
-- out a little too low, in the class that they begin.
with bucketed as (
    select
        of,
        cast(floor((t - :begin_us) / :bucket_us) as bigint) as bucket,
        us,
        abs(us - us_before) as change_us,
        rto_us,
        rto_us / us as rto_over_us,
        cast(floor(ln(us) / ln(2) * 8 + 0.000000001) as int) as us_class,
        cast(floor(ln(rto_us / us) / ln(2) * 8 + 0.000000001) as int) as rto_class
    from samples
)
select
    of,
    bucket,
    us_class,
    rto_class,
    grouping(us_class) = 0 as is_class,
    count(*) as samples,
    min(us) as us_min,
    cast(percentile_disc(0.5) within group (order by us) as bigint) as us_p50,
    cast(percentile_disc(0.95) within group (order by us) as bigint) as us_p95,
    cast(percentile_disc(0.99) within group (order by us) as bigint) as us_p99,
    avg(change_us) as jitter_us,
    cast(percentile_disc(0.5) within group (order by rto_us) as bigint) as rto_us_p50,
    percentile_disc(0.5) within group (order by rto_over_us) as rto_over_us_p50,
    percentile_disc(0.99) within group (order by rto_over_us) as rto_over_us_p99
from bucketed
group by grouping sets ((of, bucket), (of), (of, us_class, rto_class))
order by of, bucket nulls first, us_class nulls first, rto_class nulls first
