-- One row: the time in which at least one sender was busy (us, microseconds).
-- Reads: steps. Parameters: begin_us, bucket_us.
-- Each time bucket is counted for itself. carry: how many senders were busy when it began. next_t: the first change after
-- it. There are few buckets, so the running sum over them is little work.
with turns as (
    select t, cast(floor((t - :begin_us) / :bucket_us) as bigint) as bucket, sum(turn) as turn
    from steps
    where turn <> 0
    group by t
),
buckets as (
    select bucket, sum(turn) as turn, min(t) as first_t
    from turns
    group by bucket
),
carried as (
    select
        bucket,
        coalesce(
            sum(turn) over (order by bucket rows between unbounded preceding and 1 preceding), 0
        ) as carry,
        lead(first_t) over (order by bucket) as next_t
    from buckets
),
marks as (
    select /*+ BROADCAST(carried) */
        carry + sum(turn) over (
            partition by turns.bucket order by t rows between unbounded preceding and current row
        ) as busy,
        coalesce(lead(t) over (partition by turns.bucket order by t), next_t) - t as us
    from turns
    join carried on turns.bucket = carried.bucket
)
select coalesce(sum(us), 0) as us
from marks
where busy > 0
