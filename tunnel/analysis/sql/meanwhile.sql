-- What happened at the node of each silence while it lasted. Times: microseconds.
-- Reads: silences, events.
-- failures: exchanges that failed or were repeated or refused. absences: losses of the relay. tcp_retransmits: of the
-- carrier's connection. no_pull_us: the time in which no pull was open. ever_pulled: 1 if one was open before.
-- One ordered pass over the events of each node computes running sums; the difference of a sum between the end and the
-- start of a silence is what happened during it.
with marks as (
    select
        node_id,
        time_us as t,
        cast(null as bigint) as stream,
        cast(null as bigint) as stall,
        case
            when text <> 'pull' then 0
            when event in ('exchange_sent', 'exchange_repeated') then 1
            when event in ('exchange_answered', 'exchange_failed', 'exchange_abandoned') then -1
            else 0
        end as pulls,
        case
            when event in ('exchange_failed', 'exchange_repeated') then 1
            when event = 'exchange_answered' and status <> 200 then 1
            else 0
        end as failures,
        case when event = 'detached' then 1 else 0 end as absences,
        case when event = 'socket_sampled' then count end as tcp
    from events
    where event in (
        'exchange_sent', 'exchange_repeated', 'exchange_answered', 'exchange_failed', 'exchange_abandoned',
        'detached', 'socket_sampled'
    )
    union all
    select
        xxhash64(node) as node_id,
        case when edge = 0 then start_us else end_us end as t,
        stream,
        stall,
        0 as pulls,
        0 as failures,
        0 as absences,
        cast(null as bigint) as tcp
    from silences
    cross join (select 0 as edge union all select 1 as edge) as edges
),
summed as (
    select
        *,
        sum(pulls) over so_far as open_pulls,
        lag(t) over by_time as before_us,
        max(abs(pulls)) over so_far as ever_pulled,
        sum(failures) over so_far as failures_sum,
        sum(absences) over so_far as absences_sum,
        last_known(tcp) over so_far as tcp_last
    from marks
    window
        by_time as (partition by node_id order by t, stall nulls first, stream, pulls desc, tcp),
        so_far as (
            partition by node_id order by t, stall nulls first, stream, pulls desc, tcp
            rows between unbounded preceding and current row
        )
),
idled as (
    select
        *,
        case when lag(open_pulls) over by_time <= 0 then t - before_us else 0 end as idle_us
    from summed
    window by_time as (partition by node_id order by t, stall nulls first, stream, pulls desc, tcp)
),
added as (
    select
        *,
        sum(idle_us) over (
            partition by node_id order by t, stall nulls first, stream, pulls desc, tcp
            rows between unbounded preceding and current row
        ) as idle_sum
    from idled
)
select
    stream,
    stall,
    max(failures_sum) - min(failures_sum) as failures,
    max(absences_sum) - min(absences_sum) as absences,
    max(idle_sum) - min(idle_sum) as no_pull_us,
    max(tcp_last) - min(tcp_last) as tcp_retransmits,
    max(ever_pulled) as ever_pulled
from added
where stall is not null
group by stream, stall
