-- Sums over the packets that were lost or sent again; of tells them apart. Times are microseconds, sizes bytes.
-- Reads: troubled, events.
-- 'burst': by length of the burst of losses (key); packets is the number of bursts.
-- 'stage': where first attempts were lost (stage): before the relay had the batch, in the relay, or after it.
-- 'cause' compares what both ends prove with what the sender believed, by the cause of the first repeat (key:
-- result.CAUSES). 'attempts' has the time from the first attempt to the acknowledgement, by attempts (key: at most 8).
-- never_arrived: packets that no later attempt brought. attempts: the repeats. hits: needless ones that the sender
-- recognised; false_alarms: ones that it took for needless.
-- Packets without a number record 0, which would match the packet with that number, so they are left out.
with ends as (
    select node_id, batch, max(case when event = 'batch_receipted' then 1 else 0 end) as receipted
    from events
    where event in ('batch_receipted', 'batch_given_up')
    group by node_id, batch
),
dropped as (
    select connection as stream, sequence, min(reason) as reason
    from events
    where event = 'packet_dropped' and reason <> 'duplicate' and packet_type in (4, 5, 10, 13)
    group by connection, sequence
),
known as (
    select
        troubled.*,
        troubled.recovered_us - troubled.sent_us as repaired_us,
        troubled.spurious_mask <> 0 as is_recognised,
        case
            when dropped.reason is not null then concat('dropped by the relay: ', replace(dropped.reason, '_', ' '))
            when ends.receipted = 1 then 'after the relay had it'
            when ends.receipted = 0 then 'before the relay had it'
            else 'unknown: its batch is not in the trace'
        end as lost_at
    from troubled
    left join ends on troubled.sender = ends.node_id and troubled.batch = ends.batch
    left join dropped on troubled.stream = dropped.stream and troubled.sequence = dropped.sequence
),
keyed as (
    select
        kinds.of,
        case kinds.of
            when 'burst' then cast(burst as bigint)
            when 'cause' then cast(coalesce(cause, 0) as bigint)
            when 'attempts' then cast(least(sent, 8) as bigint)
        end as key,
        case when kinds.of = 'stage' then lost_at end as stage,
        case when kinds.of = 'attempts' then repaired_us end as took_us,
        size_bytes,
        sent,
        received = 0 and not proven as is_missing,
        needless,
        is_recognised
    from known
    cross join (
        select 'burst' as of union all select 'stage' union all select 'cause' union all select 'attempts'
    ) as kinds
    where (kinds.of = 'burst' and burst is not null)
        or (kinds.of = 'stage' and lost_first = 1)
        or (kinds.of = 'cause' and sent > 1 and both_ends)
        or (kinds.of = 'attempts' and sent > 1 and repaired_us is not null)
)
select
    of,
    key,
    stage,
    count(*) as packets,
    sum(size_bytes) as bytes,
    count(*) filter (where is_missing) as never_arrived,
    sum(sent - 1) as attempts,
    sum(needless) as needless,
    count(*) filter (where needless > 0 and is_recognised) as hits,
    count(*) filter (where needless = 0 and is_recognised) as false_alarms,
    count(*) filter (where needless > 0 and not is_recognised) as missed,
    cast(percentile_disc(0.5) within group (order by took_us) as bigint) as took_us_p50,
    cast(percentile_disc(0.99) within group (order by took_us) as bigint) as took_us_p99
from keyed
group by of, key, stage
order by of, key, stage
